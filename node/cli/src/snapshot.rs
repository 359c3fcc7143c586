//! `slipstream snapshot`: snapshots of a node, and exports of them. A running node lists its own snapshots; exports are
//! made from its files. An export is a directory or lies in an archive ([`super::archive`]).

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, Subcommand};
use miette::{Report, Result, bail, miette};
use slipstream_api::inspect::SnapshotEntry;
use slipstream_archive::{DamagePolicy, Location};
use slipstream_base::{DATABASE, genesis_file, lock::DataLock, schedule_file};
use slipstream_config::{NodeConfig, Role};
use slipstream_storage::{
    ExportError, ExportSummary, Snapshot, StorageError, Store, Trust, import_snapshot, snapshots_beside,
    verify_export, write_export,
};
use slipstream_types::{BatchNumber, Waypoint};

use super::{
    access::{self, Access},
    advice::advised,
    archive,
    ask::{ask, parse},
    exit::{CommandFailure, Exit, OrFail as _},
    output::print,
    run,
    source::{ConfigArgs, OverrideArgs},
};

/// Attempts to open a running node's newest snapshot: the node may be replacing it.
const OPEN_ATTEMPTS: usize = 5;

#[derive(Debug, Subcommand)]
pub(super) enum SnapshotCommand {
    /// Show the snapshots in a data directory, or in an archive
    List(ListArgs),
    /// Make a snapshot of the last batch, which must have a certificate
    Create(SnapshotArgs),
    /// Write a snapshot into a new directory, or add it to an archive, so that other nodes can start from it. The node
    /// may run
    Export(ExportArgs),
    /// Start an empty data directory from an export or an archive, without any peer
    Import(ImportArgs),
    /// Check an export, or a snapshot of an archive, against a waypoint or a genesis; no data directory is needed
    Verify(VerifyArgs),
    /// Remove old snapshots from an archive, and delete what no snapshot has needed for 48 hours
    Prune(PruneArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// The node's configuration file
    #[arg(long, value_name = "FILE", required_unless_present = "archive")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: OverrideArgs,
    /// The archive: s3://BUCKET/PREFIX, https://HOST/PATH or file:///DIR
    #[arg(value_name = "URL", conflicts_with_all = ["config", "sets", "instance"])]
    archive: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct PruneArgs {
    /// How many of the newest snapshots to keep
    #[arg(long, value_name = "COUNT")]
    keep: NonZeroUsize,
    /// Delete manifests that cannot be read, and objects that only they may need; never do this where a later release
    /// writes
    #[arg(long)]
    drop_damaged: bool,
    /// The archive: s3://BUCKET/PREFIX or file:///DIR
    #[arg(value_name = "URL")]
    archive: String,
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
    /// The batch of the snapshot; the newest if omitted
    #[arg(long, value_name = "NUMBER")]
    batch: Option<u64>,
    /// A directory that is empty or does not exist, or an archive: s3://BUCKET/PREFIX or file:///DIR
    #[arg(value_name = "DIR|URL")]
    to: String,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    #[command(flatten)]
    node: SnapshotArgs,
    /// The waypoint NUMBER:0xHASH of the export's batch; without it, the configuration's waypoint and genesis are
    /// trusted
    #[arg(long)]
    waypoint: Option<Waypoint>,
    #[command(flatten)]
    from: FromArgs,
}

/// The source of a snapshot.
#[derive(Debug, Args)]
pub(super) struct FromArgs {
    /// The batch of the snapshot in an archive; the newest if omitted
    #[arg(long, value_name = "NUMBER")]
    batch: Option<u64>,
    /// The export, or an archive: s3://BUCKET/PREFIX, https://HOST/PATH or file:///DIR
    #[arg(value_name = "DIR|URL")]
    from: String,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// The waypoint NUMBER:0xHASH of the export's batch, as `slipstream status` of a trusted node prints it
    #[arg(long)]
    waypoint: Option<Waypoint>,
    /// The ledger's genesis file
    #[arg(long, value_name = "FILE")]
    genesis: Option<PathBuf>,
    #[command(flatten)]
    from: FromArgs,
}

impl FromArgs {
    fn place(&self) -> Result<ExportTarget> {
        let place = ExportTarget::of(&self.from)?;
        if let (ExportTarget::Dir(dir), Some(_)) = (&place, self.batch) {
            bail!("{} is an export, which has one snapshot: leave --batch out", dir.display());
        }
        Ok(place)
    }

    fn number(&self) -> Option<BatchNumber> {
        self.batch.map(BatchNumber::new)
    }
}

pub(super) fn snapshot(command: &SnapshotCommand) -> Result<()> {
    match command {
        SnapshotCommand::List(args) => list(args),
        SnapshotCommand::Create(args) => create(args),
        SnapshotCommand::Export(args) => export(args),
        SnapshotCommand::Import(args) => import(args),
        SnapshotCommand::Verify(args) => verify(args),
        SnapshotCommand::Prune(args) => prune(args),
    }
}

fn list(args: &ListArgs) -> Result<()> {
    match (&args.config, &args.archive) {
        (_, Some(url)) => archive::list(&archive::location(url)?),
        (Some(config), None) => list_own(&args.overrides.load(config)?.config),
        (None, None) => bail!("give --config FILE, or the URL of an archive"),
    }
}

fn list_own(config: &NodeConfig) -> Result<()> {
    let snapshots: Vec<SnapshotEntry> = match access::look(config)? {
        Access::Running(node) => parse(&ask(&node, "/v1/snapshots")?)?,
        Access::Stopped(_lock) => {
            let store = advised(open(config), config.role)?;
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
    let to = ExportTarget::of(&args.to)?;
    let config = args.node.source.load()?;
    let batch = args.batch.map(BatchNumber::new);
    match access::look(&config)? {
        Access::Running(_) => export_to(&to, open_beside(&config, batch)?, config.role),
        Access::Stopped(_lock) => {
            let store = advised(open(&config), config.role)?;
            let Some(number) = batch.or_else(|| store.snapshots().first().map(|info| info.number)) else {
                bail!("there is no snapshot to export: make one with `slipstream snapshot create`");
            };
            let snapshot = advised(store.snapshot(number), config.role)?;
            let snapshot = snapshot.ok_or(ExportError::NoSnapshot { number }).or_fail()?;
            export_to(&to, snapshot, config.role)
        }
    }
}

fn export_to(to: &ExportTarget, snapshot: Arc<Snapshot>, role: Role) -> Result<()> {
    match to {
        ExportTarget::Dir(dir) => {
            let summary = advised(write_export(&snapshot, dir), role)?;
            print(&described("exported", &summary, dir))
        }
        ExportTarget::Archive(location) => archive::export(snapshot, location, role),
    }
}

/// Opens a snapshot of a running node: that of `batch`, or the newest. An open snapshot stays intact, whatever the node
/// does meanwhile.
fn open_beside(config: &NodeConfig, batch: Option<BatchNumber>) -> Result<Arc<Snapshot>> {
    // Opening needs all files of the snapshot at once: the node may remove it at any time.
    run::raise_open_files();
    let dir = config.data_dir.join(DATABASE);
    for _ in 0..OPEN_ATTEMPTS {
        let newest = snapshots_beside(&dir).or_fail()?.first().copied();
        let Some(number) = batch.or(newest) else { return Err(none_yet(config)) };
        let opened = Snapshot::open_beside(&config.storage, &dir, number);
        match advised(opened, config.role)? {
            Some(snapshot) => return Ok(Arc::new(snapshot)),
            None if batch.is_some() => return Err(ExportError::NoSnapshot { number }).or_fail(),
            // A newer snapshot has replaced it.
            None => {}
        }
    }
    let text = "the node replaces its snapshots faster than one of them can be opened: try again, or raise `storage.snapshots_kept`";
    Err(CommandFailure::new(Exit::TryAgain, text).into())
}

fn none_yet(config: &NodeConfig) -> Report {
    let interval = config.storage.snapshot_interval_batches;
    match interval > 0 && config.storage.snapshots_kept > 0 {
        true => {
            let text =
                format!("the node has no snapshot yet: it makes one every {interval} batches, try again");
            CommandFailure::new(Exit::TryAgain, text).into()
        }
        false => miette!(
            "the node makes no snapshots: set `storage.snapshot_interval_batches` and `storage.snapshots_kept`, or stop it and \
             use `slipstream snapshot create`"
        ),
    }
}

fn import(args: &ImportArgs) -> Result<()> {
    let from = args.from.place()?;
    let config = args.node.source.load()?;
    let trust = trust(args.waypoint.or(config.waypoint), config.genesis.as_deref())?;
    let _lock = access::take(&config)?;
    let store = advised(open(&config), config.role)?;
    if let Some(path) = &config.schedule {
        store.follow_schedule(schedule_file::load(path).or_fail()?).or_fail()?;
    }
    let done = match from {
        ExportTarget::Dir(dir) => {
            let summary = advised(import_snapshot(&store, &dir, &trust), config.role)?;
            described("imported", &summary, &dir)
        }
        ExportTarget::Archive(location) => {
            archive::import(&store, &location, args.from.number(), &trust, config.role)?
        }
    };
    store.close();
    print(&done)
}

fn prune(args: &PruneArgs) -> Result<()> {
    let on_damage = if args.drop_damaged { DamagePolicy::Drop } else { DamagePolicy::Hold };
    archive::prune(&archive::location(&args.archive)?, args.keep, on_damage)
}

fn verify(args: &VerifyArgs) -> Result<()> {
    let from = args.from.place()?;
    let trust = trust(args.waypoint, args.genesis.as_deref())?;
    match from {
        ExportTarget::Dir(dir) => {
            let summary = verify_export(&dir, &trust).or_fail()?;
            print(&described("verified", &summary, &dir))
        }
        ExportTarget::Archive(location) => archive::verify(&location, args.from.number(), &trust),
    }
}

/// The destination of an export.
enum ExportTarget {
    Dir(PathBuf),
    Archive(Location),
}

impl ExportTarget {
    fn of(text: &str) -> Result<ExportTarget> {
        match Location::is_meant(text) {
            true => Ok(ExportTarget::Archive(archive::location(text)?)),
            false => Ok(ExportTarget::Dir(text.into())),
        }
    }
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

/// Opens the store of a stopped node. The lock is held as long as the store.
fn open_stopped(args: &SnapshotArgs) -> Result<(NodeConfig, DataLock, Store)> {
    let config = args.source.load()?;
    let lock = access::take_database(&config)?;
    let store = advised(open(&config), config.role)?;
    Ok((config, lock, store))
}

fn open(config: &NodeConfig) -> std::result::Result<Store, StorageError> {
    Store::open(&config.storage, &config.data_dir.join(DATABASE))
}
