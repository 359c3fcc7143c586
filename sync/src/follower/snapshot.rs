//! Bootstrap from a snapshot: rows in chunks, each verified alone, some at a time from all peers that serve it; then code;
//! then the headers that the EVM can ask for. When the peers drop a snapshot before it is restored, the next one is a new target for
//! the same rows: those that are still right stay.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use slipstream_network::PeerId;
use slipstream_storage::{Checked, Restore, RestoreTarget, Span, StorageError, VerifiedChunk};
use slipstream_types::{
    BatchNumber, Blob, BlobKind, Digest, Path, bounded::BoundedVec, keccak256, tree::StateRangeProof,
};
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
/// Rows of a chunk that does not end its range, at least: no row has more than 128 bytes.
const CHUNK_ROWS_MIN: usize = CHUNK_BYTES as usize / 128;
/// Headers fetched with a snapshot: BLOCKHASH reaches back this far.
const TAIL_HEADERS: u64 = 256;
/// Ranges fetched at the same time: hides the round trips, and bounds the memory for chunks to some 20 MiB.
const RANGES_AT_ONCE: usize = 6;
/// Siblings kept until a chunk shows whether they were right; bounds the memory for them to 9 MiB. For further ones nobody is blamed.
const DOUBTS_MAX: usize = 256;

impl Follower {
    /// Restores the state of a snapshot from the peers that serve it. Ends early when none of them can be asked any more;
    /// what was restored stays, and is taken up when the plan comes back to the same snapshot.
    pub(super) async fn bootstrap(
        &self,
        number: BatchNumber,
        peers: Vec<PeerId>,
        shutdown: &CancellationToken,
    ) -> Result<(), SyncError> {
        let source = Source { follower: self, peers: Mutex::new(peers), doubts: Mutex::default(), shutdown };
        let offer = source.fetch("snapshot offer", 0, |this, peer| this.fetch_offer(peer, number)).await;
        let Some(offer) = offer else { return Ok(()) };
        let certificate = offer.certificate;
        // The accumulator proves every field of the header; the certificate alone repeats only a few.
        let first = BatchNumber(number.0.saturating_sub(TAIL_HEADERS - 1));
        let headers =
            source.fetch("headers", 0, |this, peer| this.fetch_headers(peer, first, &certificate)).await;
        let Some(headers) = headers else { return Ok(()) };
        let header = headers.headers.last().expect("`verify::headers` counts them").clone();
        let target = RestoreTarget { header, certificate };
        let (store, begun) = (self.store.clone(), target);
        let restore = Arc::new(blocking(move || store.restore(&begun)).await?);
        let complete = self.check_older_rows(&source, &restore).await?
            && self.restore_rows(&source, &restore).await?
            && self.restore_codes(&source, &restore).await?;
        if !complete {
            // Its last rows become durable when it is dropped, which takes a while.
            let put_down = move || {
                drop(restore);
                Ok(())
            };
            return blocking(put_down).await;
        }
        let Some(restore) = Arc::into_inner(restore) else { return Ok(()) };
        blocking(move || restore.finish(&headers.headers, &headers.proof)).await?;
        tracing::info!(batch = number.0, "snapshot restored and its root checked");
        Ok(())
    }

    /// Has the rows checked that an older target left. False when nobody can be asked any more.
    ///
    /// Siblings that do not fit this node's rows are either a lie, or the rows have changed; a chunk of the same range tells.
    /// Of a peer none of whose siblings were right so far that chunk is fetched at once, so that lies cost a chunk and not all
    /// rows; of another the siblings wait until the chunk's turn comes. Lies about a range that is then divided cost no rows, and
    /// are not looked into.
    async fn check_older_rows(&self, source: &Source<'_>, restore: &Arc<Restore>) -> Result<bool, SyncError> {
        let number = restore.target().header.number;
        loop {
            self.note_progress(restore);
            let looking = Arc::clone(restore);
            let spans = blocking(move || looking.unchecked(1)).await?;
            let Some(&span) = spans.first() else { return Ok(true) };
            let siblings =
                source.fetch("range proof", 0, |this, peer| this.fetch_siblings(peer, number, span)).await;
            let Some(siblings) = siblings else { return Ok(false) };
            let checking = Arc::clone(restore);
            let check = move || Ok((checking.check_range(span, &siblings.proof)?, siblings));
            let (checked, siblings) = blocking(check).await?;
            match checked {
                Checked::Kept => source.trust(siblings.from),
                Checked::Divided => {}
                Checked::Refetch => {
                    tracing::debug!(first = ?span.first, "rows of the older snapshot do not fit and are fetched again");
                    if !source.doubt(siblings) && !self.restore_chunk(source, restore, span, 0).await?.1 {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Fetches some ranges at a time until no row is missing. False when nobody can be asked any more.
    async fn restore_rows(&self, source: &Source<'_>, restore: &Arc<Restore>) -> Result<bool, SyncError> {
        let mut under_way = FuturesUnordered::new();
        let mut starts = Vec::new();
        let mut turn = 0;
        loop {
            self.note_progress(restore);
            for span in restore.next_ranges(RANGES_AT_ONCE) {
                if starts.len() < RANGES_AT_ONCE && !starts.contains(&span.first) {
                    starts.push(span.first);
                    turn += 1;
                    under_way.push(self.restore_chunk(source, restore, span, turn));
                }
            }
            let Some(done) = under_way.next().await else { return Ok(restore.next_path().is_none()) };
            let (first, fetched) = done?;
            starts.retain(|start| *start != first);
            if !fetched {
                return Ok(false);
            }
        }
    }

    /// Fetches and adds the chunk that a range begins with. Returns where it began, and whether it came.
    async fn restore_chunk(
        &self,
        source: &Source<'_>,
        restore: &Arc<Restore>,
        span: Span,
        turn: usize,
    ) -> Result<(Path, bool), SyncError> {
        let header = &restore.target().header;
        let (number, root) = (header.number, header.state_root);
        let chunk =
            source.fetch("state chunk", turn, |this, peer| this.fetch_chunk(peer, number, span, root)).await;
        let Some(chunk) = chunk else { return Ok((span.first, false)) };
        let (adding, doubted) = (Arc::clone(restore), source.doubted(&chunk));
        let add = move || {
            let judged = doubted.map(|siblings| (siblings.from, chunk.confirms(&siblings.proof)));
            adding.add_verified(chunk)?;
            Ok(judged)
        };
        match blocking(add).await? {
            Some((peer, true)) => source.trust(peer),
            Some((peer, false)) => source.give_up(peer, "range proof", &Violation::WrongSiblings.into()),
            None => {}
        }
        Ok((span.first, true))
    }

    fn note_progress(&self, restore: &Restore) {
        let kept = restore.retargeted();
        self.state.lock().snapshot = Some(SnapshotStatus {
            number: restore.target().header.number,
            rows: restore.rows(),
            share: restore.share(),
            rows_kept: kept.rows,
            bytes_kept: kept.bytes,
        });
    }

    async fn restore_codes(&self, source: &Source<'_>, restore: &Arc<Restore>) -> Result<bool, SyncError> {
        let number = restore.target().header.number;
        loop {
            let looking = Arc::clone(restore);
            let missing = blocking(move || looking.missing_codes(CODES_MAX)).await?;
            if missing.is_empty() {
                return Ok(true);
            }
            let codes =
                source.fetch("contract code", 0, |this, peer| this.fetch_codes(peer, number, &missing)).await;
            let Some(codes) = codes else { return Ok(false) };
            let adding = Arc::clone(restore);
            blocking(move || codes.codes.iter().try_for_each(|code| adding.add_code(code))).await?;
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
        span: Span,
        root: Digest,
    ) -> Result<VerifiedChunk, Fault> {
        let asked = Instant::now();
        let Span { first, last } = span;
        let request = Request::Chunk { number, first, last, bytes_max: CHUNK_BYTES };
        let bytes = self.ask_bytes(peer, &request).await?;
        let (len, took) = (bytes.len(), asked.elapsed());
        let check = move || -> Result<VerifiedChunk, Violation> {
            let content = Blob::from_bytes(bytes)?.content(BlobKind::StateChunk)?;
            let chunk = VerifiedChunk::open(content, root)?;
            if chunk.first() != first || chunk.last() > last {
                return Err(Violation::Unrelated("the chunk begins or ends elsewhere"));
            }
            // Or a liar could serve one path at a time for ever, each with a good proof.
            if chunk.last() < last && chunk.rows() < CHUNK_ROWS_MIN {
                return Err(Violation::Unrelated("the chunk ends early"));
            }
            Ok(chunk)
        };
        let checked = tokio::task::spawn_blocking(check).await;
        let chunk = checked.map_err(|_| Violation::Unrelated("checking it failed"))??;
        self.credit(peer, len, took);
        Ok(chunk)
    }

    async fn fetch_siblings(&self, from: PeerId, number: BatchNumber, span: Span) -> Result<Siblings, Fault> {
        let Span { first, last } = span;
        let proof: StateRangeProof = self.ask(from, &Request::RangeProof { number, first, last }).await?;
        proof.check_places(first, last).map_err(Violation::from)?;
        Ok(Siblings { from, span, proof })
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
        state.book.credit(&peer, Instant::now(), bytes, took);
        state.counters.bytes_received += bytes as u64;
    }
}

/// A proof of a range, and who sent it.
struct Siblings {
    from: PeerId,
    span: Span,
    proof: StateRangeProof,
}

/// What is known of the siblings that peers sent.
#[derive(Default)]
struct Doubts {
    /// Some of their siblings were right.
    trusted: BTreeSet<PeerId>,
    /// Siblings that did not fit this node's rows, by the path at which their range begins.
    waiting: BTreeMap<Path, Siblings>,
}

/// The peers that serve one snapshot, each asked in its turn.
struct Source<'a> {
    follower: &'a Follower,
    peers: Mutex<Vec<PeerId>>,
    doubts: Mutex<Doubts>,
    shutdown: &'a CancellationToken,
}

impl<'a> Source<'a> {
    /// Asks until one answer passes its checks, beginning with the peer whose turn it is. None when all peers have failed or
    /// the node stops.
    async fn fetch<T, F>(&self, what: &str, turn: usize, ask: impl Fn(&'a Follower, PeerId) -> F) -> Option<T>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        while let Some(peer) = self.peer(turn) {
            let answer = tokio::select! {
                () = self.shutdown.cancelled() => return None,
                answer = ask(self.follower, peer) => answer,
            };
            match answer {
                Ok(value) => return Some(value),
                Err(fault) => self.give_up(peer, what, &fault),
            }
        }
        None
    }

    fn peer(&self, turn: usize) -> Option<PeerId> {
        let peers = self.peers.lock();
        (!peers.is_empty()).then(|| peers[turn % peers.len()])
    }

    /// Notes that siblings of a peer were right.
    fn trust(&self, peer: PeerId) {
        self.doubts.lock().trusted.insert(peer);
    }

    /// Notes siblings that did not fit. False if the chunk that tells why must not wait.
    fn doubt(&self, siblings: Siblings) -> bool {
        let mut doubts = self.doubts.lock();
        let can_wait = doubts.trusted.contains(&siblings.from);
        if !can_wait || doubts.waiting.len() < DOUBTS_MAX {
            doubts.waiting.insert(siblings.span.first, siblings);
        }
        can_wait
    }

    /// The siblings that a chunk can tell right from wrong. One that ends before their range cannot.
    fn doubted(&self, chunk: &VerifiedChunk) -> Option<Siblings> {
        let siblings = self.doubts.lock().waiting.remove(&chunk.first())?;
        (siblings.span.last == chunk.last()).then_some(siblings)
    }

    /// Several requests to one peer may fail at once: it pauses once, but a proof of wrong always counts.
    fn give_up(&self, peer: PeerId, what: &str, fault: &Fault) {
        if fault.is_proof() {
            self.doubts.lock().waiting.retain(|_, siblings| siblings.from != peer);
        }
        let mut peers = self.peers.lock();
        let was_asked = peers.contains(&peer);
        peers.retain(|other| *other != peer);
        drop(peers);
        if was_asked || fault.is_proof() {
            self.follower.punish(peer, what, fault);
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
) -> Result<T, SyncError> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(|error| SyncError::Worker(error.to_string()))??)
}
