//! `slipstream snapshot` on archives: snapshots in object storage.

use std::{num::NonZeroUsize, sync::Arc};

use miette::Result;
use slipstream_archive::{
    Archive, ArchiveError, ArchivePruneReport, ArchiveSummary, ArchivedSnapshot, DamagePolicy, ExportReport,
    Location, Settings,
};
use slipstream_base::NodeError;
use slipstream_config::Role;
use slipstream_storage::{Snapshot, Store, Trust};
use slipstream_types::BatchNumber;
use tokio::runtime::Runtime;

use super::{
    advice::advised,
    exit::{CommandFailure, Exit, OrFail as _},
    output::print,
};

/// Parses a location. Errors omit the text, because it may contain a secret.
pub(super) fn location(text: &str) -> Result<Location> {
    text.parse().map_err(ArchiveError::from).or_fail()
}

pub(super) fn list(location: &Location) -> Result<()> {
    let entries =
        run(async { Archive::open(location, &Settings::from_env())?.snapshots().await })?.or_fail()?;
    if entries.is_empty() {
        return print(&format!("no snapshots in {location}; `slipstream snapshot export` adds one"));
    }
    entries
        .iter()
        .try_for_each(|entry| print(&format!("batch {}  waypoint {}", entry.number(), entry.waypoint())))
}

pub(super) fn export(snapshot: Arc<Snapshot>, location: &Location, role: Role) -> Result<()> {
    let exported =
        run(async { Archive::create(location, &Settings::from_env())?.export_snapshot(snapshot).await })?;
    let ExportReport { summary, uploaded, uploaded_bytes } = advised(exported, role)?;
    print(&described("exported", &summary, location))?;
    print(&format!("sent {uploaded} objects, {uploaded_bytes} bytes; the others were already there"))
}

pub(super) fn import(
    store: &Store,
    location: &Location,
    number: Option<BatchNumber>,
    trust: &Trust,
    role: Role,
) -> Result<String> {
    let imported = run(async { snapshot(location, number, trust).await?.import(store).await })?;
    Ok(described("imported", &advised(imported, role)?, location))
}

pub(super) fn verify(location: &Location, number: Option<BatchNumber>, trust: &Trust) -> Result<()> {
    let verified = run(async { snapshot(location, number, trust).await?.verify().await })?;
    print(&described("verified", &verified.or_fail()?, location))
}

/// Prunes. If manifests are unreadable, it finishes all other work and then fails with their names.
pub(super) fn prune(location: &Location, keep: NonZeroUsize, on_damage: DamagePolicy) -> Result<()> {
    let pruned = run(async { Archive::open(location, &Settings::from_env())?.prune(keep, on_damage).await })?
        .or_fail()?;
    print(&format!(
        "{location}: {} snapshots kept, {} taken out, {} objects with {} bytes deleted",
        pruned.kept, pruned.retired, pruned.deleted, pruned.deleted_bytes
    ))?;
    match pruned.damaged.is_empty() {
        true => Ok(()),
        false => Err(CommandFailure::new(Exit::Data, damaged(location, &pruned)).into()),
    }
}

/// Describes the manifests that a prune could not read, and the result of the prune.
fn damaged(location: &Location, pruned: &ArchivePruneReport) -> String {
    let named = pruned.damaged.iter().map(|manifest| format!("{}: {}\n", manifest.name, manifest.reason));
    let (count, named) = (pruned.damaged.len(), named.collect::<String>());
    let outcome = match pruned.on_damage {
        DamagePolicy::Hold => format!(
            "{} objects stay because these manifests may name them. Export a snapshot again; if nobody can repair the manifests, \
             `slipstream snapshot prune --drop-damaged` deletes them and the objects that only they need",
            pruned.held
        ),
        DamagePolicy::Drop => "they were deleted".to_owned(),
    };
    format!("{count} manifests of {location} cannot be read:\n{named}{outcome}")
}

async fn snapshot(
    location: &Location,
    number: Option<BatchNumber>,
    trust: &Trust,
) -> std::result::Result<Arc<ArchivedSnapshot>, ArchiveError> {
    let archive = Archive::open(location, &Settings::from_env())?;
    Ok(Arc::new(archive.snapshot(number, trust).await?))
}

fn described(done: &str, summary: &ArchiveSummary, location: &Location) -> String {
    let ArchiveSummary { number, waypoint, state_root, rows, pieces, codes, bytes } = summary;
    format!(
        "{done} {location}: batch {number}, {rows} rows in {pieces} pieces, {codes} codes, {bytes} bytes\n\
         state root {state_root}\nwaypoint {waypoint}"
    )
}

fn run<T>(work: impl Future<Output = T>) -> Result<T> {
    let runtime = Runtime::new()
        .map_err(|source| NodeError::Io { action: "start the async runtime", source })
        .or_fail()?;
    Ok(runtime.block_on(work))
}
