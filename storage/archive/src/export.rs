//! [`Archive::export`]: copies a snapshot of a store into the archive. Objects that the archive already has are not
//! sent again.

use std::{
    collections::{BTreeSet, HashMap},
    num::NonZeroUsize,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;
use slipstream_storage::{
    CodePack, CodePackInfo, Lineage, PathPrefix, Piece, PieceInfo, PieceMap, Snapshot, StorageError, Store,
};
use slipstream_types::{BatchNumber, Blob, BlobKind, Digest, Genesis, bounded::BoundedVec, codec};
use tokio::{sync::mpsc, task::spawn_blocking};

use crate::{
    entry::modified_ms,
    error::ArchiveError,
    manifest::{ArchiveSummary, Manifest, Object, PackEntry, PieceEntry, VERSION},
    names::{self, CODES, GENESIS, PIECES, RunId, SNAPSHOTS, SnapshotName},
    prune::GRACE,
    store::{Archive, OBJECTS_MAX, PARALLEL},
};

/// An object that no snapshot names is used again if it is younger than this: an interrupted export wrote it.
const RECENT: Duration = Duration::from_secs(GRACE.as_secs() / 2);
/// How long an export may take. It is less than [`RECENT`], because the last write is in flight for a while.
const EXPORT_TIME_MAX: Duration = Duration::from_secs(GRACE.as_secs() / 2 - 4 * 3_600);
/// Manifests that are read to find objects that the archive already has.
const MANIFESTS_READ: usize = 4;
/// Maximum number of genesis objects in a listing: an archive of this program has one.
const LEDGERS_MAX: usize = 16;
/// Maximum number of threads that read the state: the network is slower.
const THREADS_MAX: usize = 4;

/// Counts what an export did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExportReport {
    /// The contents of the snapshot.
    pub summary: ArchiveSummary,
    /// Objects of pieces and codes that were sent; the archive had the others.
    pub uploaded: usize,
    /// Bytes of these objects.
    pub uploaded_bytes: u64,
}

/// The existing objects that a manifest may name, by the hashes in their names.
#[derive(Debug, Default)]
struct KnownObjects(HashMap<Digest, Object>);

/// An object to be written.
struct Upload {
    name: String,
    blob: Blob,
}

/// The data that the threads that read the state share.
struct Scan {
    snapshot: Arc<Snapshot>,
    known: KnownObjects,
    run: RunId,
    ranges: Vec<PathPrefix>,
    /// Index of the next range.
    next: AtomicUsize,
    found: Mutex<ScanResult>,
}

/// The objects found so far.
#[derive(Default)]
struct ScanResult {
    pieces: Vec<PieceEntry>,
    packs: Vec<PackEntry>,
    codes: BTreeSet<Digest>,
}

impl Archive {
    /// Adds the snapshot of a batch, as [`Archive::export_snapshot`] does.
    ///
    /// # Errors
    /// [`ArchiveError::NotInStore`], and those of [`Archive::export_snapshot`].
    pub async fn export(&self, store: &Store, number: BatchNumber) -> Result<ExportReport, ArchiveError> {
        self.check_writable()?;
        let snapshot = store.snapshot(number)?.ok_or(ArchiveError::NotInStore { number })?;
        self.export_snapshot(snapshot).await
    }

    /// Adds a snapshot. Continues an interrupted export, and uses the objects that it wrote.
    ///
    /// # Errors
    /// [`ArchiveError::OtherLedger`], [`ArchiveError::TooSlow`], or errors of the snapshot or the archive; there is
    /// no new snapshot then.
    pub async fn export_snapshot(&self, snapshot: Arc<Snapshot>) -> Result<ExportReport, ArchiveError> {
        self.check_writable()?;
        let now_ms = self.now_ms().await?;
        let lineage = Lineage::of(&snapshot)?;
        let (genesis, genesis_proof) = Lineage::genesis_of(&snapshot)?;
        let genesis = self.put_genesis(&genesis).await?;
        let name = SnapshotName::of(lineage.info());
        let known = self.known(now_ms).await?;
        let scan = Arc::new(Scan {
            snapshot,
            known,
            run: names::draw_run()?,
            ranges: Snapshot::piece_ranges(),
            next: AtomicUsize::new(0),
            found: Mutex::default(),
        });
        let (uploaded, uploaded_bytes) = self.upload(&scan).await?;
        let ScanResult { mut pieces, packs, .. } = std::mem::take(&mut *scan.found.lock());
        pieces.sort_unstable_by(|a, b| a.piece.place.path().cmp(b.piece.place.path()));
        let list = pieces.iter().map(|entry| entry.piece.clone()).collect();
        PieceMap::new(list, lineage.info().state_root)?;
        let manifest = Manifest {
            version: VERSION,
            lineage,
            genesis,
            genesis_proof,
            pieces: BoundedVec::new(pieces)?,
            packs: BoundedVec::new(packs)?,
        };
        let took = Duration::from_millis(self.now_ms().await?.saturating_sub(now_ms));
        if took > EXPORT_TIME_MAX {
            return Err(ArchiveError::TooSlow { took, max: EXPORT_TIME_MAX });
        }
        // If another node was faster, its manifest is as good, unless it is damaged.
        if !self.write_new(&name.within(SNAPSHOTS), codec::encode("manifest", &manifest)?).await? {
            self.manifest(&name, SNAPSHOTS).await?;
        }
        self.write_index().await?;
        Ok(ExportReport { summary: manifest.summary(), uploaded, uploaded_bytes })
    }

    /// Writes the genesis unless it is there. Returns its digest.
    async fn put_genesis(&self, blob: &Blob) -> Result<Digest, ArchiveError> {
        let digest = Genesis::decode(&blob.content(BlobKind::Genesis)?)
            .map_err(StorageError::from)?
            .header()?
            .digest();
        let name = names::genesis(&digest);
        let mut other = None;
        self.list(GENESIS, LEDGERS_MAX, |object| {
            let found = object.location.filename().unwrap_or_default();
            if !name.ends_with(found) {
                other = Some(found.to_owned());
            }
        })
        .await?;
        if let Some(name) = other {
            return Err(ArchiveError::OtherLedger { location: self.location().clone(), name });
        }
        if !self.write_new(&name, blob.as_bytes().to_vec()).await? {
            self.genesis(&digest).await?;
        }
        Ok(digest)
    }

    /// Returns the objects that a manifest may name without sending them: those of the listed snapshots, and those
    /// written lately. [`Archive::prune`] explains why the latter stay.
    async fn known(&self, now_ms: u64) -> Result<KnownObjects, ArchiveError> {
        let mut named = HashMap::new();
        for entry in self.manifests(SNAPSHOTS).await?.iter().take(MANIFESTS_READ) {
            match self.manifest(&entry.name, SNAPSHOTS).await {
                Ok(manifest) => {
                    named.extend(manifest.objects().map(|(hash, object)| ((hash, object.run), object.len)))
                }
                Err(error @ ArchiveError::Damaged { .. }) => {
                    tracing::warn!(%error, "an older snapshot is damaged: the export cannot reuse its objects");
                }
                // A prune removed it since it was listed.
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        let recent_ms = u64::try_from(RECENT.as_millis()).unwrap_or(u64::MAX);
        let mut known = KnownObjects::default();
        for folder in [PIECES, CODES] {
            self.list(folder, OBJECTS_MAX, |object| {
                let (written_ms, len) = (modified_ms(&object), u32::try_from(object.size).ok());
                let found = names::hash_and_run(object.location.as_ref()).zip(len);
                let Some(((hash, run), len)) = found else { return };
                // An object whose length differs from the manifest's was cut short, and does not count as named.
                let is_named = named.get(&(hash, run)) == Some(&len);
                if is_named || now_ms.saturating_sub(written_ms) < recent_ms {
                    known.0.insert(hash, Object { run, len });
                }
            })
            .await?;
        }
        Ok(known)
    }

    /// Reads the state on a few threads, and sends the missing objects. Returns how many objects and bytes were sent.
    async fn upload(&self, scan: &Arc<Scan>) -> Result<(usize, u64), ArchiveError> {
        let (sender, mut receiver) = mpsc::channel(PARALLEL);
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS_MAX);
        let scanning: Vec<_> = (0..threads)
            .map(|_| {
                let (scan, sender) = (Arc::clone(scan), sender.clone());
                spawn_blocking(move || scan.pieces(&sender))
            })
            .collect();
        let codes = {
            let scan = Arc::clone(scan);
            async move {
                for thread in scanning {
                    thread.await??;
                }
                // The codes of all accounts are known only now.
                spawn_blocking(move || scan.codes(&sender)).await??;
                Ok::<_, ArchiveError>(())
            }
        };
        let uploads =
            stream::poll_fn(|context| receiver.poll_recv(context)).map(|upload: Upload| async move {
                let len = upload.blob.len() as u64;
                self.write(&upload.name, upload.blob.into_bytes()).await?;
                Ok::<_, ArchiveError>(len)
            });
        let sent = uploads
            .buffer_unordered(PARALLEL)
            .try_fold((0, 0), |(count, bytes), len| async move { Ok((count + 1, bytes + len)) });
        let ((), sent) = futures::try_join!(codes, sent)?;
        Ok(sent)
    }
}

impl Scan {
    /// Cuts ranges until none is left. Ends early if the receiver is gone.
    fn pieces(&self, sender: &mpsc::Sender<Upload>) -> Result<(), ArchiveError> {
        while let Some(range) = self.ranges.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let mut is_over = false;
            self.snapshot.pieces(*range, &mut |piece: Piece| {
                self.found.lock().codes.extend(piece.code_hashes());
                let info: PieceInfo = piece.info().clone();
                let name = names::piece(&info.hash(), self.run);
                let Some(object) = self.object(&info.hash(), name, sender, || Ok(piece.blob()?))? else {
                    is_over = true;
                    return Ok(ControlFlow::Break(()));
                };
                self.found.lock().pieces.push(PieceEntry { piece: info, object });
                Ok(ControlFlow::Continue(()))
            })?;
            if is_over {
                break;
            }
        }
        Ok(())
    }

    fn codes(&self, sender: &mpsc::Sender<Upload>) -> Result<(), ArchiveError> {
        let hashes = std::mem::take(&mut self.found.lock().codes);
        Ok(self.snapshot.code_packs(&hashes, &mut |pack: CodePack| {
            let info: CodePackInfo = *pack.info();
            let name = names::pack(&info.digest, self.run);
            let Some(object) = self.object(&info.digest, name, sender, || Ok(pack.blob()?))? else {
                return Ok(ControlFlow::Break(()));
            };
            self.found.lock().packs.push(PackEntry { pack: info, object });
            Ok(ControlFlow::Continue(()))
        })?)
    }

    /// Returns the object with a hash: the stored one, or the one that it now sends. Returns `None` if sending has
    /// ended.
    fn object(
        &self,
        hash: &Digest,
        name: String,
        sender: &mpsc::Sender<Upload>,
        blob: impl FnOnce() -> Result<Blob, StorageError>,
    ) -> Result<Option<Object>, StorageError> {
        if let Some(object) = self.known.0.get(hash) {
            return Ok(Some(*object));
        }
        let blob = blob()?;
        let object = Object { run: self.run, len: blob.len() as u32 };
        Ok(sender.blocking_send(Upload { name, blob }).is_ok().then_some(object))
    }
}
