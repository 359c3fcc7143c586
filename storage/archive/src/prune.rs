//! [`Archive::prune`]: retires old snapshots and deletes what only they needed, while others export and import.

use std::{collections::HashSet, num::NonZeroUsize, time::Duration};

use slipstream_types::Digest;

use crate::{
    entry::{ArchiveEntry, modified_ms},
    error::ArchiveError,
    names::{self, CODES, PIECES, RunId, SNAPSHOTS},
    store::{Archive, OBJECTS_MAX},
};

/// How long an object stays after its last snapshot was retired. An export or import may rely for half of that time
/// on what it saw.
pub const GRACE: Duration = Duration::from_secs(48 * 3_600);
/// How much later than its manifest an object may seem to be written. A manifest is written after all that it names,
/// but the clock of a machine with a directory can be set back.
const CLOCK_SLACK: Duration = Duration::from_secs(3_600);
/// Objects that one request deletes.
const DELETED_AT_ONCE: usize = 1_000;

/// What a prune does about manifests that it cannot read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DamagePolicy {
    /// Keeps them, and everything that they may name.
    #[default]
    Hold,
    /// Deletes them. They then protect no object any more.
    Drop,
}

/// The result of a prune.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ArchivePruneReport {
    /// Listed snapshots that can be read.
    pub kept: usize,
    /// Snapshots that were removed from the list.
    pub retired: usize,
    /// Objects that were deleted.
    pub deleted: usize,
    /// Bytes of the deleted objects.
    pub deleted_bytes: u64,
    /// Objects that stay because a damaged manifest may name them.
    pub held: usize,
    /// The manifests that cannot be read.
    pub damaged: Vec<DamagedManifest>,
    /// Whether these manifests were deleted.
    pub on_damage: DamagePolicy,
}

/// A manifest that cannot be read: damaged, or of a later release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DamagedManifest {
    /// Name of the object.
    pub name: String,
    /// The rule that the manifest breaks.
    pub reason: String,
}

/// The objects that readable manifests name, and the manifests that cannot be read.
#[derive(Default)]
struct NeededObjects {
    named: HashSet<(Digest, RunId)>,
    damaged: Vec<DamagedManifest>,
    /// When the newest damaged manifest was written.
    damaged_ms: Option<u64>,
}

impl Archive {
    /// Keeps the newest `keep` snapshots whose manifests can be read. Older ones leave the list at once. A prune that
    /// comes [`GRACE`] later deletes what only they name, so that their readers can finish.
    ///
    /// An object is deleted if it was written more than [`GRACE`] ago and no protecting snapshot names it. Protecting
    /// snapshots are those listed, and those unlisted less than [`GRACE`] ago. All times are the archive's. No export
    /// that completes loses an object this way. Let it begin at `b` and write its manifest at `w`, at most half of
    /// [`GRACE`] later. Let a prune read the time and then list the manifests, at `p`.
    /// * If `w` is before `p`, the prune sees the manifest.
    /// * Otherwise `b` is later than `p` less half of [`GRACE`]. The export wrote its own objects after `b`; the
    ///   unnamed ones that it found are older than `b` by less than half of [`GRACE`]. Both are too young for this
    ///   prune. Other objects were named by a manifest listed at `b`. That manifest protects them if it is still
    ///   listed at `p`, or was unlisted since `b`. If it was written after `p`, this proof holds for its own export.
    /// * A late delete hits no newer object, because names are unique.
    ///
    /// A manifest that cannot be read does not count towards `keep`, and may name anything written before it: with
    /// [`DamagePolicy::Hold`] none of that is deleted. The result lists these manifests.
    ///
    /// # Errors
    /// Errors of the archive.
    pub async fn prune(
        &self,
        keep: NonZeroUsize,
        on_damage: DamagePolicy,
    ) -> Result<ArchivePruneReport, ArchiveError> {
        self.check_writable()?;
        let now_ms = self.now_ms().await?;
        let grace_ms = millis(GRACE);
        let is_old = |written_ms: u64| now_ms.saturating_sub(written_ms) > grace_ms;
        let mut needed = NeededObjects::default();
        let (mut kept, mut retired) = (0, 0);
        for entry in self.manifests(SNAPSHOTS).await? {
            match kept < keep.get() {
                true => kept += usize::from(self.look(&entry, SNAPSHOTS, &mut needed).await?),
                false => retired += usize::from(self.take_out(&entry, &mut needed).await?),
            }
        }
        let taken_out = self.retired().await?;
        let (expired, protecting): (Vec<_>, Vec<_>) =
            taken_out.into_iter().partition(|(entry, _)| is_old(entry.modified_ms));
        for (entry, folder) in &protecting {
            self.look(entry, folder, &mut needed).await?;
        }
        if on_damage == DamagePolicy::Drop {
            self.delete(needed.damaged.iter().map(|manifest| manifest.name.clone()).collect()).await?;
            needed.damaged_ms = None;
        }
        self.write_index().await?;

        let mut pruned = ArchivePruneReport { kept, retired, on_damage, ..ArchivePruneReport::default() };
        for folder in [PIECES, CODES] {
            self.delete_surplus(folder, &needed, is_old, &mut pruned).await?;
        }
        // The expired manifests go last. They protect nothing, so if this prune dies before, the next one deletes them.
        self.delete(expired.iter().map(|(entry, folder)| entry.name.within(folder)).collect()).await?;
        pruned.damaged = needed.damaged;
        Ok(pruned)
    }

    /// Records what a manifest names. Returns whether it can be read.
    async fn look(
        &self,
        entry: &ArchiveEntry,
        folder: &str,
        needed: &mut NeededObjects,
    ) -> Result<bool, ArchiveError> {
        match self.manifest(&entry.name, folder).await {
            Ok(manifest) => {
                needed.named.extend(manifest.objects().map(|(hash, object)| (hash, object.run)));
                Ok(true)
            }
            Err(error) => needed.note(error, entry).map(|()| false),
        }
    }

    /// Removes a snapshot from the list, whether its manifest is readable or not. The manifest then protects what it
    /// names for a while. Returns whether this prune removed it.
    async fn take_out(&self, entry: &ArchiveEntry, needed: &mut NeededObjects) -> Result<bool, ArchiveError> {
        match self.retire(&entry.name).await {
            Ok(()) => Ok(true),
            // Another prune did it.
            Err(error) if error.is_gone() => Ok(false),
            // It is too long to be a manifest.
            Err(error) => needed.note(error, entry).map(|()| false),
        }
    }

    /// Deletes the old objects in a folder that nothing needs.
    async fn delete_surplus(
        &self,
        folder: &'static str,
        needed: &NeededObjects,
        is_old: impl Fn(u64) -> bool,
        pruned: &mut ArchivePruneReport,
    ) -> Result<(), ArchiveError> {
        let mut surplus = Vec::new();
        self.list(folder, OBJECTS_MAX, |object| {
            let Some((hash, run)) = names::hash_and_run(object.location.as_ref()) else { return };
            let written_ms = modified_ms(&object);
            if !is_old(written_ms) || needed.named.contains(&(hash, run)) {
                return;
            }
            if needed.may_name(written_ms) {
                pruned.held += 1;
                return;
            }
            pruned.deleted += 1;
            pruned.deleted_bytes += object.size;
            surplus.push(if folder == PIECES { names::piece(&hash, run) } else { names::pack(&hash, run) });
        })
        .await?;
        for names in surplus.chunks(DELETED_AT_ONCE) {
            self.delete(names.to_vec()).await?;
        }
        Ok(())
    }
}

impl NeededObjects {
    /// Records a damaged manifest; any other error fails the prune.
    fn note(&mut self, error: ArchiveError, entry: &ArchiveEntry) -> Result<(), ArchiveError> {
        match error {
            ArchiveError::Damaged { name, reason, .. } => {
                self.damaged.push(DamagedManifest { name, reason });
                self.damaged_ms = self.damaged_ms.max(Some(entry.modified_ms));
                Ok(())
            }
            error => Err(error),
        }
    }

    /// Whether a damaged manifest may name an object that was written at `written_ms`.
    fn may_name(&self, written_ms: u64) -> bool {
        self.damaged_ms.is_some_and(|damaged_ms| written_ms <= damaged_ms.saturating_add(millis(CLOCK_SLACK)))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
