//! `slipstream db rollback`: moves the head of a stopped node back to an earlier batch.

use clap::Args;
use miette::Result;
use slipstream_config::NodeConfig;
use slipstream_consensus::{VOTE_RECORD, voted_up_to};
use slipstream_rpc::log_records_behind;
use slipstream_storage::{Maintenance, RollbackReport};
use slipstream_types::BatchNumber;

use super::{DbArgs, with_store};
use crate::{
    advice::advised,
    exit::{CommandFailure, Exit, OrFail as _},
    output::{note, print},
};

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    db: DbArgs,
    /// The batch that becomes the head
    #[arg(long, value_name = "N")]
    to: u64,
    /// Only show what would be dropped
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn rollback(args: &RollbackArgs) -> Result<()> {
    let to = BatchNumber::new(args.to);
    with_store(&args.db, |store, config| {
        check_votes(store, config, to)?;
        note("reading the rows after the batch, and the state to compare its root");
        let told = advised(store.roll_back(to, &[log_records_behind(to)], args.dry_run), config.role)?;
        print(&table(&told, args.dry_run))
    })
}

/// Refuses to roll back below the validator's last vote. A validator that forgets a batch on which it voted could sign
/// another outcome of that batch.
fn check_votes(store: &Maintenance, config: &NodeConfig, to: BatchNumber) -> Result<()> {
    let Some(record) = advised(store.record(VOTE_RECORD), config.role)? else { return Ok(()) };
    let voted = voted_up_to(&record).or_fail()?;
    if voted <= to {
        return Ok(());
    }
    let text = format!(
        "this database belongs to a validator, which has voted up to batch {voted}: back at batch {to}, it would have forgotten \
         its votes up to {voted}, and could sign other batches with the same numbers. Never roll back a validator; roll back \
         fullnodes, and let this node follow the others"
    );
    Err(CommandFailure::new(Exit::Failure, text).into())
}

fn table(told: &RollbackReport, dry_run: bool) -> String {
    let RollbackReport { from, to, state_root, rows_put, rows_removed, blob_bytes, certificates, snapshots } =
        told;
    let snapshots: Vec<String> = snapshots.iter().map(ToString::to_string).collect();
    let snapshots = if snapshots.is_empty() { "none".to_owned() } else { snapshots.join(", ") };
    let what = if dry_run { "a rollback would drop" } else { "dropped" };
    let head = if dry_run { "would be" } else { "is" };
    format!(
        "{what}:\n  batches          {} ({} to {from})\n  rows             {rows_put} get their earlier value, {rows_removed} are removed\n  \
         bodies and more  {blob_bytes} bytes\n  certificates     {certificates}\n  snapshots        {snapshots}\nthe head {head} batch {to}, \
         state root {state_root}",
        from.since(*to),
        to.next(),
    )
}
