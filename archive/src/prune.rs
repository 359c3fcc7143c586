//! [`Archive::prune`]: old snapshots are taken out, and what only they needed is deleted, while others export and import.

use std::{collections::HashSet, num::NonZeroUsize, time::Duration};

use crate::{
    error::ArchiveError,
    export::OBJECTS_MAX,
    names::{self, CODES, PIECES, SNAPSHOTS},
    store::{Archive, modified_ms},
};

/// How long an object stays after its last snapshot went. An export or import may rely for half of that time on what it saw.
pub const GRACE: Duration = Duration::from_secs(48 * 3_600);
/// Objects that are deleted with one request.
const DELETED_AT_ONCE: usize = 1_000;

/// Counts what a prune did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrunedArchive {
    /// Snapshots that are listed now.
    pub kept: usize,
    /// Snapshots that were taken out of the list.
    pub retired: usize,
    /// Objects that were deleted.
    pub deleted: usize,
    /// Bytes of the deleted objects.
    pub deleted_bytes: u64,
}

impl Archive {
    /// Keeps the newest `keep` snapshots. The others leave the list at once. A prune at least [`GRACE`] later deletes the objects that
    /// only they name, so that running readers can end.
    ///
    /// An object is deleted if it was written more than [`GRACE`] ago and no protecting snapshot names it. Protecting are listed
    /// snapshots, and those unlisted less than [`GRACE`] ago. All times are the archive's. An export that ends loses no object by that.
    /// Let it begin at `b` and write its manifest at `w`, at most half of [`GRACE`] later. Let a prune read the time and then list the
    /// manifests, at `p`.
    /// * If `w` is before `p`, the prune sees the manifest.
    /// * Else `b` is later than `p` less half of [`GRACE`]. The export wrote its own objects after `b`; the unnamed ones that it found are
    ///   older than `b` by less than half of [`GRACE`]. Both are too young for this prune. Other objects were named by a manifest listed at
    ///   `b`. That manifest protects them if it is still listed at `p`, or was unlisted since `b`. If it was written after `p`, this proof
    ///   holds for its own export.
    /// * A late delete hits no newer object, because names are unique.
    ///
    /// # Errors
    /// Errors of the archive, or an unreadable manifest. The prune then deletes nothing: it cannot tell what the manifest
    /// names.
    pub async fn prune(&self, keep: NonZeroUsize) -> Result<PrunedArchive, ArchiveError> {
        self.check_writable()?;
        let now_ms = self.now_ms().await?;
        let grace_ms = u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX);
        let is_old = |written_ms: u64| now_ms.saturating_sub(written_ms) > grace_ms;
        let mut listed = self.manifests(SNAPSHOTS).await?;
        let surplus = listed.split_off(listed.len().min(keep.get()));
        for entry in &surplus {
            match self.retire(&entry.name).await {
                // Another prune did.
                Err(error) if error.is_gone() => {}
                retired => retired?,
            }
        }
        self.write_index().await?;

        let retired = self.retired().await?;
        let (expired, protecting): (Vec<_>, Vec<_>) =
            retired.into_iter().partition(|(entry, _)| is_old(entry.modified_ms));
        let mut named = HashSet::new();
        let listed_in = listed.iter().map(|entry| (entry, SNAPSHOTS));
        for (entry, folder) in listed_in.chain(protecting.iter().map(|(entry, folder)| (entry, &**folder))) {
            let manifest = self.manifest(&entry.name, folder).await?;
            named.extend(manifest.objects().map(|(hash, object)| (hash, object.run)));
        }
        let mut pruned =
            PrunedArchive { kept: listed.len(), retired: surplus.len(), ..PrunedArchive::default() };
        for folder in [PIECES, CODES] {
            let mut surplus = Vec::new();
            self.list(folder, OBJECTS_MAX, |object| {
                let Some((hash, run)) = names::hash_and_run(object.location.as_ref()) else { return };
                if is_old(modified_ms(&object)) && !named.contains(&(hash, run)) {
                    pruned.deleted += 1;
                    pruned.deleted_bytes += object.size;
                    surplus.push(if folder == PIECES {
                        names::piece(&hash, run)
                    } else {
                        names::pack(&hash, run)
                    });
                }
            })
            .await?;
            for names in surplus.chunks(DELETED_AT_ONCE) {
                self.delete(names.to_vec()).await?;
            }
        }
        // Last: a prune that dies before leaves them to protect nothing, and to be deleted by the next.
        self.delete(expired.iter().map(|(entry, folder)| entry.name.within(folder)).collect()).await?;
        Ok(pruned)
    }
}
