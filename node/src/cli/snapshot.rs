//! `slipstream snapshot`: snapshots of a node that does not run, and exports of them. A running node lists its own.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use miette::{Result, bail};
use slipstream_config::NodeConfig;
use slipstream_storage::{
    ExportSummary, StorageError, Store, Trust, export_snapshot, import_snapshot, verify_export,
};
use slipstream_types::{BatchNumber, Waypoint};

use super::{
    access::{self, Access},
    advice::advised,
    ask::{ask, parse},
    exit::OrFail as _,
    output::print,
    source::ConfigArgs,
};
use crate::{api::inspect::SnapshotEntry, genesis_file, lock::DataLock, node::DATABASE, schedule_file};

#[derive(Debug, Subcommand)]
pub(super) enum SnapshotCommand {
    /// Show the snapshots in a data directory
    List(SnapshotArgs),
    /// Make a snapshot of the last batch, which must have a certificate
    Create(SnapshotArgs),
    /// Write a snapshot into a new directory, from which another node can be started
    Export(ExportArgs),
    /// Start an empty data directory from an export, without any peer
    Import(ImportArgs),
    /// Check an export against a waypoint or a genesis; no data directory is needed
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
pub(super) struct SnapshotArgs {
    #[command(flatten)]
    source: ConfigArgs,
}

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    node: SnapshotArgs,
    /// The batch of the snapshot; the newest if it is left out
    #[arg(long, value_name = "NUMBER")]
    batch: Option<u64>,
    /// A directory that is empty or does not exist
    dir: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    #[command(flatten)]
    node: SnapshotArgs,
    /// The waypoint NUMBER:0xHASH of the export's batch; otherwise the configuration's waypoint and genesis are trusted
    #[arg(long)]
    waypoint: Option<Waypoint>,
    /// The export
    dir: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// The waypoint NUMBER:0xHASH of the export's batch, as `slipstream status` of a trusted node prints it
    #[arg(long)]
    waypoint: Option<Waypoint>,
    /// The ledger's genesis file
    #[arg(long, value_name = "FILE")]
    genesis: Option<PathBuf>,
    /// The export
    dir: PathBuf,
}

pub(super) fn snapshot(command: &SnapshotCommand) -> Result<()> {
    match command {
        SnapshotCommand::List(args) => list(args),
        SnapshotCommand::Create(args) => create(args),
        SnapshotCommand::Export(args) => export(args),
        SnapshotCommand::Import(args) => import(args),
        SnapshotCommand::Verify(args) => verify(args),
    }
}

fn list(args: &SnapshotArgs) -> Result<()> {
    let config = args.source.load()?;
    let snapshots: Vec<SnapshotEntry> = match access::look(&config)? {
        Access::Running(authority) => parse(&ask(&authority, "/v1/snapshots")?)?,
        Access::Stopped(_lock) => {
            let store = advised(open(&config), config.role)?;
            store.snapshots().iter().map(SnapshotEntry::of).collect()
        }
    };
    if snapshots.is_empty() {
        return print("no snapshots; `slipstream snapshot create` makes one of the last batch");
    }
    snapshots.iter().try_for_each(|snapshot| print(&snapshot.to_string()))
}

fn create(args: &SnapshotArgs) -> Result<()> {
    let (config, _lock, store) = open_stopped(args)?;
    let info = advised(store.create_snapshot(), config.role)?;
    store.close();
    print(&format!("snapshot of {}", SnapshotEntry::of(&info)))
}

fn export(args: &ExportArgs) -> Result<()> {
    let (config, _lock, store) = open_stopped(&args.node)?;
    let newest = store.snapshots().first().map(|info| info.number);
    let Some(number) = args.batch.map(BatchNumber::new).or(newest) else {
        bail!("there is no snapshot to export: make one with `slipstream snapshot create`");
    };
    let summary = advised(export_snapshot(&store, number, &args.dir), config.role)?;
    print(&described("exported", &summary, &args.dir))
}

fn import(args: &ImportArgs) -> Result<()> {
    let config = args.node.source.load()?;
    let trust = trust(args.waypoint.or(config.waypoint), config.genesis.as_deref())?;
    let _lock = access::take(&config)?;
    let store = advised(open(&config), config.role)?;
    if let Some(path) = &config.schedule {
        store.follow_schedule(schedule_file::load(path).or_fail()?).or_fail()?;
    }
    let summary = advised(import_snapshot(&store, &args.dir, &trust), config.role)?;
    store.close();
    print(&described("imported", &summary, &args.dir))
}

fn verify(args: &VerifyArgs) -> Result<()> {
    let trust = trust(args.waypoint, args.genesis.as_deref())?;
    let summary = verify_export(&args.dir, &trust).or_fail()?;
    print(&described("verified", &summary, &args.dir))
}

fn trust(waypoint: Option<Waypoint>, genesis: Option<&Path>) -> Result<Trust> {
    let genesis = genesis.map(genesis_file::load).transpose().or_fail()?;
    Ok(Trust { waypoint, genesis })
}

fn described(done: &str, summary: &ExportSummary, dir: &Path) -> String {
    let ExportSummary { number, waypoint, state_root, rows, chunks, codes, bytes } = summary;
    format!(
        "{done} {}: batch {number}, {rows} rows in {chunks} chunks, {codes} codes, {bytes} bytes\n\
         state root {state_root}\nwaypoint {waypoint}",
        dir.display()
    )
}

/// Opens the store of a node that does not run. The lock is held as long as the store is.
fn open_stopped(args: &SnapshotArgs) -> Result<(NodeConfig, DataLock, Store)> {
    let config = args.source.load()?;
    let lock = access::take_database(&config)?;
    let store = advised(open(&config), config.role)?;
    Ok((config, lock, store))
}

fn open(config: &NodeConfig) -> std::result::Result<Store, StorageError> {
    Store::open(&config.storage, &config.data_dir.join(DATABASE))
}
