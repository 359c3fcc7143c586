//! [`Archive::prune`]: old snapshots are taken out, and what only they needed is deleted, while others export and import.

use std::{collections::HashSet, num::NonZeroUsize, time::Duration};

use crate::{
    error::ArchiveError,
    export::OBJECTS_MAX,
    names::{self, CODES, PIECES, SNAPSHOTS},
    store::{Archive, modified_ms},
};

/// How long an object stays that no snapshot needs any more: an export, or an import, that goes by what it saw before may take half of it.
pub const GRACE: Duration = Duration::from_secs(48 * 3_600);
/// Objects that are deleted with one request.
const DELETED_AT_ONCE: usize = 1_000;

/// What a prune did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrunedArchive {
    /// Snapshots that are listed now.
    pub kept: usize,
    /// Snapshots that were taken out of the list.
    pub retired: usize,
    /// Objects that were deleted.
    pub deleted: usize,
    /// Their bytes.
    pub deleted_bytes: u64,
}

impl Archive {
    /// Keeps the newest `keep` snapshots. The others are taken out of the list at once; what only they name is deleted by a prune that
    /// comes [`GRACE`] later, so that who reads one of them can end.
    ///
    /// An object is deleted if it was written more than [`GRACE`] ago, and neither a listed snapshot names it nor one that was taken out less
    /// than [`GRACE`] ago. All times are the archive's. No export that ends can lose an object by that: let it begin at `b` and write its
    /// manifest at `w`, at most half of [`GRACE`] later, and let a prune look at the time and then list the manifests, at `p`.
    /// * If `w` is before `p`, the prune sees the manifest.
    /// * Else `b` is later than `p` less half of [`GRACE`]. What the export sent was written after `b`, and what it found unnamed less than half of
    ///   [`GRACE`] before `b`: both too late for this prune. What a manifest named that was listed at `b` is protected by that manifest, if it
    ///   is still listed at `p`, or was taken out since `b`; if it was written after `p`, the same holds for its own export.
    /// * A delete that reaches the archive late hits no newer object, as no name is used twice.
    ///
    /// # Errors
    /// What the archive says, or a manifest that cannot be read: nothing is deleted then, as nobody knows what it names.
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
