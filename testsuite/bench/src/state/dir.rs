//! [`SizeDir`]: the directory of one size's stores, and the progress of their workload.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use slipstream_types::Digest;

use super::{
    contender::OwnStore,
    workload::{Initial, Workload},
};
use crate::{
    harness::kept::{is_whole, once, remove},
    size::short,
};
use slipnet::progress::Progress;

const MARKER: &str = "workload.json";

/// The facts about a directory's stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Marker {
    /// The fingerprint of the rows that they were filled with.
    fingerprint: Digest,
    /// Batches that runs have taken since, committed or not.
    batches: u64,
}

/// The directory of one size.
pub(crate) struct SizeDir {
    dir: PathBuf,
    keys: u64,
}

impl SizeDir {
    /// Opens the directory of a size, emptied if it holds other rows.
    pub(crate) fn open(place: &Path, keys: u64) -> Result<SizeDir> {
        let size_dir = SizeDir { dir: place.join(format!("slipnet-state-{}", short(keys))), keys };
        let fingerprint = Workload::fingerprint(keys);
        let is_same = size_dir.marker().is_ok_and(|marker| marker.fingerprint == fingerprint);
        if !is_same {
            remove(&size_dir.dir)?;
            fs::create_dir_all(&size_dir.dir)
                .with_context(|| format!("cannot create {}", size_dir.dir.display()))?;
            size_dir.mark(Marker { fingerprint, batches: 0 })?;
        }
        Ok(size_dir)
    }

    /// Whether a directory keeps a store of a size.
    pub(crate) fn keeps_store(place: &Path, keys: u64) -> bool {
        let size_dir = SizeDir { dir: place.join(format!("slipnet-state-{}", short(keys))), keys };
        is_whole(&size_dir.store())
            && size_dir.marker().is_ok_and(|marker| marker.fingerprint == Workload::fingerprint(keys))
    }

    /// Returns the store's path, whether it exists or not.
    pub(crate) fn store(&self) -> PathBuf {
        self.of("ours")
    }

    /// Returns the path of a contender's rows.
    fn of(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Whether a contender's rows are kept from an earlier run.
    pub(super) fn keeps(&self, name: &str) -> bool {
        is_whole(&self.of(name))
    }

    /// Returns the store, filled unless it is kept.
    pub(crate) fn filled_store(&self, progress: Progress) -> Result<PathBuf> {
        self.fill_once("ours", &mut None, progress, |dir, initial| OwnStore::fill(dir, initial, progress))
    }

    /// Fills a contender's directory, unless it is kept. The rows are sorted when the first contender needs them.
    pub(super) fn fill_once(
        &self,
        name: &str,
        initial: &mut Option<Initial>,
        progress: Progress,
        fill: impl FnOnce(&Path, &Initial) -> Result<()>,
    ) -> Result<PathBuf> {
        let dir = self.of(name);
        once(&dir, |dir| {
            let size = short(self.keys);
            if initial.is_none() {
                progress.step(&format!("sorting {size} keys"));
            }
            let initial = initial.get_or_insert_with(|| Initial::new(self.keys));
            progress.step(&format!("filling {name} with {size} keys"));
            fill(dir, initial)
        })?;
        Ok(dir)
    }

    /// Takes a workload of `batches` batches, which no later run repeats.
    pub(crate) fn take(&self, batches: u64) -> Result<Workload> {
        let marker = self.marker()?;
        self.mark(Marker { batches: marker.batches + batches, ..marker })?;
        Ok(Workload::after(self.keys, marker.batches))
    }

    /// Takes batches as [`SizeDir::take`] does, for a process that makes the workload itself; returns the number of
    /// batches taken before.
    pub(crate) fn take_number(&self, batches: u64) -> Result<u64> {
        let before = self.marker()?.batches;
        self.take(batches)?;
        Ok(before)
    }

    fn marker(&self) -> Result<Marker> {
        let path = self.dir.join(MARKER);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Writes the marker; a run that is killed leaves the old marker or the new one.
    fn mark(&self, marker: Marker) -> Result<()> {
        let path = self.dir.join(MARKER);
        let written = path.with_extension("new");
        fs::write(&written, serde_json::to_vec(&marker)?)
            .and_then(|()| fs::rename(&written, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: runs on a kept directory never repeat each other's batches, and a directory of other rows is detected.
    #[test]
    fn a_later_run_goes_on() {
        let place = tempfile::tempdir().unwrap();
        let open = || SizeDir::open(place.path(), 2_000).unwrap();
        assert_eq!(open().take_number(10).unwrap(), 0);
        assert_eq!(open().take_number(5).unwrap(), 10);
        let size_dir = open();
        let fill =
            |dir: &Path, initial: &Initial| Ok(fs::write(dir.join("keys"), initial.keys().to_string())?);
        size_dir.fill_once("ours", &mut None, Progress::Quiet, fill).unwrap();
        assert!(SizeDir::keeps_store(place.path(), 2_000) && !SizeDir::keeps_store(place.path(), 3_000));
        assert_eq!(fs::read_to_string(open().store().join("keys")).unwrap(), "2000");
        size_dir.mark(Marker { fingerprint: Digest::ZERO, batches: 15 }).unwrap();
        assert!(!SizeDir::keeps_store(place.path(), 2_000));
        assert_eq!(open().take_number(5).unwrap(), 0);
        assert!(!open().store().exists());
    }
}
