//! `slipstream db`: inspects, checks and prunes the database of a stopped node. A running node reports its own
//! statistics.

mod get;
mod json;
mod rollback;

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use miette::{Result, bail};
use slipstream_api::inspect::DbStats;
use slipstream_base::DATABASE;
use slipstream_config::{NodeConfig, Role};
use slipstream_storage::{CheckReport, Maintenance, PruneConfig, PruneReport};
use slipstream_sync::{
    repair::{REPAIR_RECORD, RepairCause, RepairRecord},
    work::{ALARM_RECORD, Alarm},
};
use slipstream_types::BatchNumber;

use super::{
    access::{self, Access},
    advice::{advice, advised},
    ask::{ask, parse},
    exit::{CommandFailure, Exit, OrFail as _},
    output::{note, print},
    source::ConfigArgs,
};

/// Interval between lines of progress: reading a large store takes minutes.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Subcommand)]
pub(super) enum DbCommand {
    /// Show what the database keeps and how much space each part takes
    Stats(DbArgs),
    /// Show one entry of the database, read only, even while the node runs
    #[command(subcommand)]
    Get(get::GetCommand),
    /// Read everything and check its integrity: checksums, headers, blobs, certificates, state
    Check(DbArgs),
    /// Drop the blobs beyond the windows of `storage.prune` now
    Prune(PruneArgs),
    /// Move the head back to an earlier batch whose state is kept, and drop everything after it
    Rollback(rollback::RollbackArgs),
    /// Show the alarm that an audit raised, if there is one; with --clear, remove it
    Alarm(AlarmArgs),
    /// Make the node compare its state with its peers' at its next start, and repair the differences
    Repair(DbArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DbArgs {
    #[command(flatten)]
    source: ConfigArgs,
}

#[derive(Debug, Args)]
pub(super) struct PruneArgs {
    #[command(flatten)]
    db: DbArgs,
    /// Only show how many bytes would be freed
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct AlarmArgs {
    #[command(flatten)]
    db: DbArgs,
    /// Remove the alarm, once its cause is settled
    #[arg(long)]
    clear: bool,
}

pub(super) fn db(command: &DbCommand) -> Result<()> {
    match command {
        DbCommand::Stats(args) => stats(args),
        DbCommand::Get(command) => get::get(command),
        DbCommand::Check(args) => with_store(args, |store, config| check(store, config.role)),
        DbCommand::Prune(args) => with_store(&args.db, |store, config| {
            let windows = &config.storage.prune;
            if *windows == PruneConfig::default() {
                bail!("storage.prune keeps everything: set a window there (see docs/configuration.md)");
            }
            let pruned = advised(store.prune(windows, args.dry_run), config.role)?;
            print(prune_table(&pruned, args.dry_run).trim_end())
        }),
        DbCommand::Rollback(args) => rollback::rollback(args),
        DbCommand::Repair(args) => with_store(args, |store, config| repair(store, config.role)),
        DbCommand::Alarm(args) => with_store(&args.db, |store, config| alarm(store, config.role, args.clear)),
    }
}

/// Prints the alarm before removing it, so that the terminal's history still has it.
fn alarm(store: &Maintenance, role: Role, clear: bool) -> Result<()> {
    let Some(record) = advised(store.record(ALARM_RECORD), role)? else {
        return print("there is no alarm");
    };
    // An unreadable alarm is still an alarm, and can still be removed.
    print(&Alarm::decode(&record).map_or_else(|error| error.to_string(), |alarm| alarm.to_string()))?;
    if clear {
        advised(store.remove_record(ALARM_RECORD), role)?;
        print("removed")?;
    }
    Ok(())
}

fn repair(store: &Maintenance, role: Role) -> Result<()> {
    let Some(head) = advised(store.stats(), role)?.head else {
        bail!("the database is empty: there is nothing to repair");
    };
    let record = advised(store.record(REPAIR_RECORD), role)?;
    let record = record.map(|bytes| RepairRecord::decode(&bytes)).unwrap_or_default();
    let record = RepairRecord { due: Some(RepairCause::Operator), ..record };
    advised(store.put_record(REPAIR_RECORD, &record.encode().or_fail()?), role)?;
    print(&format!(
        "noted: the next start compares the state of batch {head} with that of the node's peers and repairs the differences"
    ))
}

fn stats(args: &DbArgs) -> Result<()> {
    let config = args.source.load()?;
    let stats: DbStats = match access::look(&config)? {
        Access::Running(node) => parse(&ask(&node, "/v1/db")?)?,
        Access::Stopped(_lock) => stats_of(&config)?,
    };
    print(stats_table(&stats).trim_end())
}

/// The statistics of a database whose directory the caller has locked.
pub(super) fn stats_of(config: &NodeConfig) -> Result<DbStats> {
    let stats = slipstream_storage::stats_of(&config.storage, &config.data_dir.join(DATABASE));
    Ok(DbStats::from(advised(stats, config.role)?))
}

/// Opens the store under the directory's lock, which a running node would hold. A missing store is an error.
fn with_store(args: &DbArgs, work: impl FnOnce(&Maintenance, &NodeConfig) -> Result<()>) -> Result<()> {
    let config = args.source.load()?;
    let _lock = access::take_database(&config)?;
    work(&open(&config)?, &config)
}

fn open(config: &NodeConfig) -> Result<Maintenance> {
    advised(Maintenance::open(&config.storage, &config.data_dir.join(DATABASE)), config.role)
}

fn stats_table(stats: &DbStats) -> String {
    let mut text = match stats.head {
        Some(head) => format!("head      batch {head}\n"),
        None => "head      none: the database is empty\n".to_owned(),
    };
    if let Some(target) = stats.restoring {
        write_line(&mut text, format_args!("restoring the state of batch {target}"));
    }
    for range in &stats.kept {
        match range.lowest.zip(stats.head) {
            Some((lowest, head)) => {
                write_line(&mut text, format_args!("{:<9} {lowest} to {head}", range.kind));
            }
            None => write_line(&mut text, format_args!("{:<9} none at the head", range.kind)),
        }
    }
    if let Some(head) = stats.head.filter(|_| stats.headers_floor > BatchNumber::GENESIS) {
        write_line(&mut text, format_args!("{:<9} {} to {head}", "headers", stats.headers_floor));
    }
    write_line(&mut text, format_args!("\n{:<18} {:>14} {:>12}", "column", "keys (about)", "MiB"));
    for column in &stats.columns {
        write_line(
            &mut text,
            format_args!("{:<18} {:>14} {:>12}", column.name, column.keys, mib(column.bytes)),
        );
    }
    let total = stats.columns.iter().map(|column| column.bytes).sum();
    write_line(&mut text, format_args!("{:<18} {:>14} {:>12}", "all", "", mib(total)));
    text
}

fn prune_table(pruned: &[PruneReport], dry_run: bool) -> String {
    let title = if dry_run { "would free MiB" } else { "freed MiB" };
    let mut text = format!("{:<9} {:>12} {title:>15} {:>22}\n", "kind", "kept from", "in snapshots MiB");
    for PruneReport { kind, lowest, bytes, bytes_in_snapshots } in pruned {
        let (name, lowest) = (kind.name(), lowest.to_string());
        write_line(
            &mut text,
            format_args!("{name:<9} {lowest:>12} {:>15} {:>22}", mib(*bytes), mib(*bytes_in_snapshots)),
        );
    }
    if pruned.iter().any(|it| it.bytes_in_snapshots > 0) {
        text.push_str("Space that snapshots share becomes free once newer snapshots have replaced them.\n");
    }
    text
}

fn check(store: &Maintenance, role: Role) -> Result<()> {
    let mut last: Option<Instant> = None;
    let report = store.check(&mut |progress| {
        if last.is_none_or(|last| last.elapsed() >= PROGRESS_INTERVAL) {
            last = Some(Instant::now());
            note(&format!(
                "checking {}: {} of about {} rows",
                progress.column, progress.rows, progress.rows_total
            ));
        }
    });
    verdict(&advised(report, role)?, role)
}

fn verdict(report: &CheckReport, role: Role) -> Result<()> {
    let read = format!("{} rows, {} MiB read", report.rows, mib(report.bytes));
    if report.damage.is_empty() && report.unused.is_empty() {
        return print(&format!("the database is whole: {read}"));
    }
    if report.damage.is_empty() {
        let help =
            "Start the node: it drops them, and fetches again what a restore still needs. Check the disk.";
        let what = report.unused.join("\n  ");
        let text = format!("the database is whole ({read}), except for rows that are not in use:\n  {what}");
        return Err(CommandFailure::new(Exit::Failure, text).with_help(help).into());
    }
    let mut text = format!("the database is damaged ({read}):\n");
    for what in report.damage.iter().chain(&report.unused) {
        write_line(&mut text, format_args!("  {what}"));
    }
    if report.more > 0 {
        write_line(&mut text, format_args!("  and {} more", report.more));
    }
    Err(CommandFailure::new(Exit::Data, text.trim_end()).with_help(advice(role)).into())
}

fn write_line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a String takes everything");
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use slipstream_base::lock;
    use slipstream_storage::{ColumnStats, KeptRange, PrunedKind, StorageConfig, Store, StoreStats};
    use slipstream_types::BlobKind;

    use super::*;

    #[test]
    fn tables() {
        let stats = StoreStats {
            head: Some(BatchNumber::new(9)),
            restoring: None,
            kept: vec![
                KeptRange { kind: BlobKind::Body, lowest: Some(BatchNumber::new(3)) },
                KeptRange { kind: BlobKind::Hints, lowest: None },
            ],
            headers_floor: BatchNumber::new(2),
            columns: vec![ColumnStats { name: "bodies", keys: 7, bytes: 3 << 20 }],
        };
        let text = stats_table(&stats.into());
        assert!(
            text.contains("body      3 to 9\n")
                && text.contains("hints     none at the head\nheaders   2 to 9\n"),
            "{text}"
        );
        assert!(text.contains("3.0") && !text.contains("restoring"), "{text}");
        let pruned = PruneReport {
            kind: PrunedKind::Blobs(BlobKind::Body),
            lowest: BatchNumber::new(3),
            bytes: 5 << 20,
            bytes_in_snapshots: 1 << 20,
        };
        let text = prune_table(&[pruned], true);
        assert!(text.contains("would free") && text.contains("newer snapshots"), "{text}");
    }

    /// Goal: the commands work on a stopped node's store, report damage as an error, and respect the lock. They do not
    /// create a missing store.
    #[test]
    fn commands_work_on_a_stopped_node() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("node.yaml");
        std::fs::write(&file, "role: validator\ngenesis: genesis.json\nstorage:\n  prune:\n    bodies: 10\n")
            .unwrap();
        let args = || DbArgs { source: ConfigArgs::of(file.clone()) };
        let prune = |dry_run| DbCommand::Prune(PruneArgs { db: args(), dry_run });
        let error = db(&DbCommand::Stats(args())).unwrap_err().to_string();
        assert!(error.contains("no database"), "{error}");
        assert!(!dir.path().join("data").exists());

        let database = dir.path().join("data").join(DATABASE);
        drop(Store::open(&StorageConfig::default(), &database).unwrap());
        db(&DbCommand::Stats(args())).unwrap();
        db(&DbCommand::Check(args())).unwrap();
        assert!(db(&prune(true)).unwrap_err().to_string().contains("empty"));
        assert!(db(&DbCommand::Repair(args())).unwrap_err().to_string().contains("empty"));
        let held = lock::acquire(&dir.path().join("data"), None).unwrap();
        assert!(db(&prune(false)).unwrap_err().to_string().contains("in use"));
        drop(held);
        let damage = vec!["body of batch 3: gone".to_owned()];
        let report = CheckReport { damage, more: 2, ..CheckReport::default() };
        let error = verdict(&report, Role::Validator).unwrap_err();
        assert!(error.to_string().contains("body of batch 3: gone\n  and 2 more"), "{error}");
        assert_eq!(error.help().unwrap().to_string(), advice(Role::Validator));
        let unused = vec!["column state_b: a block is damaged".to_owned()];
        let report = CheckReport { unused, ..CheckReport::default() };
        let error = verdict(&report, Role::Fullnode).unwrap_err();
        assert!(error.to_string().contains("not in use:\n  column state_b"), "{error}");
        assert!(error.help().unwrap().to_string().starts_with("Start the node"));
    }
}
