//! [`ArchivedSnapshot`]: a snapshot of the trusted ledger, whose objects are checked one by one as they are read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{
    StreamExt as _, TryStreamExt as _,
    stream::{self, BoxStream},
};
use slipstream_storage::{
    CodePack, Piece, PieceError, PieceMap, Restore, RestoreError, StorageError, Store, Takeover as _, Trust,
    VerifiedChunk,
};
use slipstream_types::{
    BatchNumber, Blob, BlobKind, Digest, Genesis, blob, delta::Code, genesis::GenesisError,
};
use tokio::task::spawn_blocking;

use crate::{
    entry::ArchiveEntry,
    error::ArchiveError,
    manifest::{ArchiveSummary, BLOB_BYTES_MAX, Manifest, Object, PackEntry, PieceEntry},
    names::{self, SNAPSHOTS},
    store::{Archive, PARALLEL},
};

/// Pieces in flight for each of the parts that are filled in parallel.
const AHEAD: usize = 2;
/// Packs in flight.
const PACKS_AHEAD: usize = 4;

/// The name of a pack's object, and its codes with their hashes.
type NamedCodes = (String, Vec<(Digest, Code)>);

/// A snapshot in an archive whose manifest belongs to the trusted ledger: certificate, headers, genesis, and the list of its pieces.
#[derive(Debug)]
pub struct ArchivedSnapshot {
    pub(crate) archive: Archive,
    pub(crate) manifest: Manifest,
    genesis: Genesis,
    pub(crate) map: PieceMap,
}

impl Archive {
    /// Returns the newest snapshot, or that of a batch, if it is of the trusted ledger.
    ///
    /// # Errors
    /// [`ArchiveError::NoSnapshot`], [`ArchiveError::Untrusted`], or the first object that is refused.
    pub async fn snapshot(
        &self,
        number: Option<BatchNumber>,
        trust: &Trust,
    ) -> Result<ArchivedSnapshot, ArchiveError> {
        let entries = self.snapshots().await?;
        // The trusted waypoint may be that of the entry's batch: another snapshot with that number is a lie.
        let is_meant = |entry: &&ArchiveEntry| {
            number.is_none_or(|number| entry.number() == number)
                && trust
                    .waypoint
                    .is_none_or(|trusted| trusted.number != entry.number() || trusted == entry.waypoint())
        };
        let entry = entries.iter().find(is_meant);
        let entry =
            entry.ok_or_else(|| ArchiveError::NoSnapshot { location: self.location().clone(), number })?;
        let manifest = self.manifest(&entry.name, SNAPSHOTS).await?;
        let genesis = self.genesis(&manifest.genesis).await?;
        let (archive, trust) = (self.clone(), trust.clone());
        spawn_blocking(move || ArchivedSnapshot::checked(archive, manifest, genesis, &trust)).await?
    }

    pub(crate) async fn genesis(&self, digest: &Digest) -> Result<Genesis, ArchiveError> {
        let name = names::genesis(digest);
        let bytes = self.read(&name, blob::BLOB_BYTES_MAX).await?;
        let content = Blob::from_bytes(bytes).and_then(|blob| blob.content(BlobKind::Genesis));
        let genesis = content.map_err(GenesisError::from).and_then(|content| Genesis::decode(&content));
        let genesis = genesis.map_err(|error| self.damaged(&name, error))?;
        let found = genesis.header().map_err(|error| self.damaged(&name, error))?.digest();
        if found != *digest {
            return Err(self.damaged(&name, format!("it is another genesis, {found}")));
        }
        Ok(genesis)
    }
}

impl ArchivedSnapshot {
    fn checked(
        archive: Archive,
        manifest: Manifest,
        genesis: Genesis,
        trust: &Trust,
    ) -> Result<ArchivedSnapshot, ArchiveError> {
        let name = manifest.name().within(SNAPSHOTS);
        let refused = |reason: String| archive.damaged(&name, reason);
        manifest.lineage.check(&genesis, &manifest.genesis_proof).map_err(refused)?;
        let info = manifest.lineage.info();
        trust.check(&genesis, info).map_err(|error| ArchiveError::Untrusted {
            name: name.clone(),
            location: archive.location().clone(),
            error,
        })?;
        let pieces = manifest.pieces.iter().map(|entry| entry.piece.clone()).collect();
        let map = PieceMap::new(pieces, info.state_root).map_err(|error| refused(error.to_string()))?;
        Ok(ArchivedSnapshot { archive, manifest, genesis, map })
    }

    /// Returns the contents of the snapshot.
    pub fn summary(&self) -> ArchiveSummary {
        self.manifest.summary()
    }

    /// Reads and checks the whole snapshot: every piece, every code, and that no code is missing.
    ///
    /// # Errors
    /// The first object that is refused, and why.
    pub async fn verify(self: &Arc<Self>) -> Result<ArchiveSummary, ArchiveError> {
        let pieces = stream::iter(0..self.manifest.pieces.len()).map(|index| {
            let this = Arc::clone(self);
            async move { this.codes_of_piece(index).await }
        });
        let mut needed = BTreeSet::new();
        let mut pieces = pieces.buffer_unordered(PARALLEL);
        while let Some(hashes) = pieces.try_next().await? {
            needed.extend(hashes);
        }
        let mut packs = Arc::clone(self).packs();
        while let Some((name, codes)) = packs.try_next().await? {
            for (hash, _) in codes {
                if !needed.remove(&hash) {
                    return Err(self.archive.damaged(&name, format!("no account needs its code {hash}")));
                }
            }
        }
        match needed.first() {
            None => Ok(self.summary()),
            Some(hash) => Err(self.damaged(format!("an account's code {hash} is missing from all objects"))),
        }
    }

    /// Makes the snapshot the state of a store that is empty or holds only the same genesis. An interrupted import
    /// continues where it stopped.
    ///
    /// # Errors
    /// [`ArchiveError::NotFresh`], or the first object that is refused. The head has not moved then.
    pub async fn import(self: &Arc<Self>, store: &Store) -> Result<ArchiveSummary, ArchiveError> {
        let (this, own) = (Arc::clone(self), store.clone());
        let restore = spawn_blocking(move || {
            if let Some(head) = own.head_behind_genesis()? {
                return Err(ArchiveError::NotFresh { head });
            }
            Ok(Arc::new(this.manifest.lineage.begin(&own, &this.genesis)?))
        });
        let restore = restore.await??;
        // Parts of the paths are filled in parallel, each in order, so that its rows become a few large files.
        let mut parts: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
        for (index, entry) in self.manifest.pieces.iter().enumerate() {
            parts.entry(entry.piece.place.path().0[0] >> 4).or_default().push(index);
        }
        let fill = |part: Vec<usize>| {
            let (this, restore) = (Arc::clone(self), Arc::clone(&restore));
            async move { this.fill(part, &restore).await }
        };
        stream::iter(parts.into_values()).map(fill).buffer_unordered(PARALLEL).try_collect::<()>().await?;
        let mut packs = Arc::clone(self).packs();
        while let Some((name, codes)) = packs.try_next().await? {
            let (this, store, restore) = (Arc::clone(self), store.clone(), Arc::clone(&restore));
            spawn_blocking(move || this.add_codes(&name, codes, &store, &restore)).await??;
        }
        let this = Arc::clone(self);
        spawn_blocking(move || {
            let Manifest { lineage, genesis_proof, .. } = &this.manifest;
            lineage.finish(&restore, genesis_proof).map_err(|error| match error {
                StorageError::Restore(error) => this.damaged(error),
                error => error.into(),
            })
        })
        .await??;
        Ok(self.summary())
    }

    /// Fetches and adds pieces in their order.
    async fn fill(self: Arc<Self>, part: Vec<usize>, restore: &Arc<Restore>) -> Result<(), ArchiveError> {
        let missing = part.into_iter().filter(|index| restore.is_missing(self.map.span(*index)));
        let fetch = |index: usize| {
            let this = Arc::clone(&self);
            async move {
                let entry = &this.manifest.pieces[index];
                let (name, blob) = (entry.name(), this.blob(&entry.name(), entry.object).await?);
                spawn_blocking(move || this.checked_chunk(index, &name, &blob)).await?
            }
        };
        let mut chunks = stream::iter(missing).map(fetch).buffered(AHEAD);
        while let Some(chunk) = chunks.try_next().await? {
            let restore = Arc::clone(restore);
            spawn_blocking(move || restore.fill(chunk)).await??;
        }
        Ok(())
    }

    fn checked_chunk(&self, index: usize, name: &str, blob: &Blob) -> Result<VerifiedChunk, ArchiveError> {
        self.map.chunk(index, blob).map_err(|error| self.archive.damaged(name, error))
    }

    /// Returns the code hashes of the accounts in a piece, after checking its rows against its name.
    async fn codes_of_piece(self: Arc<Self>, index: usize) -> Result<Vec<Digest>, ArchiveError> {
        let entry: PieceEntry = self.manifest.pieces[index].clone();
        let blob = self.blob(&entry.name(), entry.object).await?;
        let opened = spawn_blocking(move || {
            Piece::open(&entry.piece, &blob)
                .map(|piece| piece.code_hashes().collect())
                .map_err(|error| (entry.name(), error))
        });
        opened.await?.map_err(|(name, error): (String, PieceError)| self.archive.damaged(&name, error))
    }

    /// Returns all packs in order, each with the name of its object.
    fn packs(self: Arc<Self>) -> BoxStream<'static, Result<NamedCodes, ArchiveError>> {
        let count = self.manifest.packs.len();
        let pack = move |index: usize| {
            let this = Arc::clone(&self);
            async move { this.pack(index).await }
        };
        stream::iter(0..count).map(pack).buffered(PACKS_AHEAD).boxed()
    }

    async fn pack(&self, index: usize) -> Result<NamedCodes, ArchiveError> {
        let entry: &PackEntry = &self.manifest.packs[index];
        let blob = self.blob(&entry.name(), entry.object).await?;
        let codes = CodePack::open(&entry.pack, &blob);
        let codes = codes.map_err(|error| self.archive.damaged(&entry.name(), error))?;
        Ok((entry.name(), codes))
    }

    fn add_codes(
        &self,
        name: &str,
        codes: Vec<(Digest, Code)>,
        store: &Store,
        restore: &Restore,
    ) -> Result<(), ArchiveError> {
        for (hash, code) in codes {
            match restore.add_code(&code) {
                // The genesis also has this code, or an interrupted import stored it.
                Err(StorageError::Restore(RestoreError::UnwantedCode { .. })) if store.has_code(&hash)? => {}
                Err(StorageError::Restore(RestoreError::UnwantedCode { .. })) => {
                    return Err(self.archive.damaged(name, format!("no account needs its code {hash}")));
                }
                added => added?,
            }
        }
        Ok(())
    }

    async fn blob(&self, name: &str, object: Object) -> Result<Blob, ArchiveError> {
        let bytes = self.archive.read(name, BLOB_BYTES_MAX).await?;
        if bytes.len() != object.len as usize {
            let reason = format!("it has {} bytes, but the manifest says {}", bytes.len(), object.len);
            return Err(self.archive.damaged(name, reason));
        }
        Blob::from_bytes(bytes).map_err(|error| self.archive.damaged(name, error))
    }

    fn damaged(&self, reason: impl ToString) -> ArchiveError {
        self.archive.damaged(&self.manifest.name().within(SNAPSHOTS), reason)
    }
}
