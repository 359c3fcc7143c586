//! Bootstrap from a snapshot: rows in chunks, each verified alone; then code; then the headers that the EVM can ask for.

use slipstream_network::PeerId;
use slipstream_storage::{Restore, RestoreTarget, StateChunk, StorageError};
use slipstream_types::{BatchNumber, Blob, BlobKind, Digest, Path, bounded::BoundedVec, keccak256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Follower;
use crate::{
    SyncError,
    error::Fault,
    protocol::{CODES_MAX, Codes, Headers, Offer, Request},
    status::SnapshotStatus,
    verify::{self, Violation},
};

/// Uncompressed bytes of a chunk: long enough that its proof is below 0.1 %, short enough that a failure costs little.
const CHUNK_BYTES: u32 = 1 << 20;
/// Headers fetched with a snapshot: BLOCKHASH reaches back this far.
const TAIL_HEADERS: u64 = 256;

impl Follower {
    /// Restores the state of a snapshot from the peers that serve it. Ends early when none of them can be asked any more;
    /// what was restored stays, and is taken up when the plan comes back to the same snapshot.
    pub(super) async fn bootstrap(
        &self,
        number: BatchNumber,
        peers: Vec<PeerId>,
        shutdown: &CancellationToken,
    ) -> Result<(), SyncError> {
        let mut source = Source { follower: self, peers, shutdown };
        let Some(offer) = source.fetch("snapshot offer", |this, peer| this.fetch_offer(peer, number)).await
        else {
            return Ok(());
        };
        let target = RestoreTarget { header: offer.header, certificate: offer.certificate };
        let store = self.store.clone();
        let (restore, target) = blocking(move || Ok((store.restore(&target)?, target))).await?;
        // The restore goes to a worker and back for every step that touches the disk.
        let Some(restore) = self.restore_rows(&mut source, &target, restore).await? else { return Ok(()) };
        let Some(restore) = self.restore_codes(&mut source, number, restore).await? else { return Ok(()) };
        let first = BatchNumber(number.0.saturating_sub(TAIL_HEADERS - 1));
        let certificate = &target.certificate;
        let headers =
            source.fetch("headers", |this, peer| this.fetch_headers(peer, first, certificate)).await;
        let Some(headers) = headers else { return Ok(()) };
        blocking(move || restore.finish(&headers.headers, &headers.proof)).await?;
        tracing::info!(batch = number.0, "snapshot restored and its root checked");
        Ok(())
    }

    async fn restore_rows(
        &self,
        source: &mut Source<'_>,
        target: &RestoreTarget,
        mut restore: Restore,
    ) -> Result<Option<Restore>, SyncError> {
        let (number, root) = (target.header.number, target.header.state_root);
        loop {
            let (next, rows) = (restore.next_path(), restore.rows());
            self.state.lock().snapshot =
                Some(SnapshotStatus { number, rows, share: next.map_or(1.0, share) });
            let Some(first) = next else { return Ok(Some(restore)) };
            let chunk =
                source.fetch("state chunk", |this, peer| this.fetch_chunk(peer, number, first, root)).await;
            let Some(chunk) = chunk else { return Ok(None) };
            restore = blocking(move || restore.add_chunk(&chunk).map(|()| restore)).await?;
        }
    }

    async fn restore_codes(
        &self,
        source: &mut Source<'_>,
        number: BatchNumber,
        mut restore: Restore,
    ) -> Result<Option<Restore>, SyncError> {
        loop {
            let missing = restore.missing_codes(CODES_MAX)?;
            if missing.is_empty() {
                return Ok(Some(restore));
            }
            let codes =
                source.fetch("contract code", |this, peer| this.fetch_codes(peer, number, &missing)).await;
            let Some(codes) = codes else { return Ok(None) };
            let add =
                move || codes.codes.iter().try_for_each(|code| restore.add_code(code)).map(|()| restore);
            restore = blocking(add).await?;
        }
    }

    async fn fetch_offer(&self, peer: PeerId, number: BatchNumber) -> Result<Offer, Fault> {
        let offer: Offer = self.ask(peer, &Request::Offer { number }).await?;
        verify::offer(&offer, number, &self.set)?;
        Ok(offer)
    }

    async fn fetch_chunk(
        &self,
        peer: PeerId,
        number: BatchNumber,
        first: Path,
        root: Digest,
    ) -> Result<StateChunk, Fault> {
        let asked = Instant::now();
        let bytes = self.ask_bytes(peer, &Request::Chunk { number, first, bytes_max: CHUNK_BYTES }).await?;
        let (len, took) = (bytes.len(), asked.elapsed());
        let check = move || -> Result<StateChunk, Violation> {
            let chunk: StateChunk = Blob::from_bytes(bytes)?.open(BlobKind::StateChunk)?;
            if chunk.first != first {
                return Err(Violation::Unrelated("the chunk begins elsewhere"));
            }
            chunk.verify(root)?;
            Ok(chunk)
        };
        let checked = tokio::task::spawn_blocking(check).await;
        let chunk = checked.map_err(|_| Violation::Unrelated("checking it failed"))??;
        self.credit(peer, len, took);
        Ok(chunk)
    }

    async fn fetch_codes(
        &self,
        peer: PeerId,
        number: BatchNumber,
        hashes: &[Digest],
    ) -> Result<Codes, Fault> {
        let asked = Instant::now();
        let request = Request::Codes { number, hashes: BoundedVec::new(hashes.to_vec())? };
        let answer: Codes = self.ask(peer, &request).await?;
        let same = |(code, hash): (&slipstream_types::delta::Code, &Digest)| keccak256(&code[..]).0 == hash.0;
        if answer.codes.len() != hashes.len() || !answer.codes.iter().zip(hashes).all(same) {
            return Err(Violation::Unrelated("code that does not have the hash asked for").into());
        }
        self.credit(peer, answer.codes.iter().map(|code| code.len()).sum(), asked.elapsed());
        Ok(answer)
    }

    async fn fetch_headers(
        &self,
        peer: PeerId,
        first: BatchNumber,
        certificate: &slipstream_types::Certificate,
    ) -> Result<Headers, Fault> {
        let request = Request::Headers { first, last: certificate.info.number };
        let answer: Headers = self.ask(peer, &request).await?;
        verify::headers(&answer, first, certificate)?;
        Ok(answer)
    }

    fn credit(&self, peer: PeerId, bytes: usize, took: std::time::Duration) {
        let mut state = self.state.lock();
        state.book.credit(&peer, bytes, took);
        state.counters.bytes_received += bytes as u64;
    }
}

/// The peers that serve one snapshot, tried in turn.
struct Source<'a> {
    follower: &'a Follower,
    peers: Vec<PeerId>,
    shutdown: &'a CancellationToken,
}

impl<'a> Source<'a> {
    /// Asks until one answer passes its checks. None when all peers have failed or the node stops.
    async fn fetch<T, F>(&mut self, what: &str, ask: impl Fn(&'a Follower, PeerId) -> F) -> Option<T>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        while let Some(peer) = self.peers.first().copied() {
            let answer = tokio::select! {
                () = self.shutdown.cancelled() => return None,
                answer = ask(self.follower, peer) => answer,
            };
            match answer {
                Ok(value) => return Some(value),
                Err(fault) => {
                    self.follower.punish(peer, what, &fault);
                    self.peers.remove(0);
                }
            }
        }
        None
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
) -> Result<T, SyncError> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(|error| SyncError::Worker(error.to_string()))??)
}

/// How far along all paths this one is.
fn share(path: Path) -> f64 {
    let mut first = [0; 8];
    first.copy_from_slice(&path.0[..8]);
    u64::from_be_bytes(first) as f64 / u64::MAX as f64
}
