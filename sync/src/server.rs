//! [`SyncServer`]: answers [`Request`]s from a store. Blobs are served as they are stored.

use std::sync::Arc;

use serde::Serialize;
use slipstream_network::{PeerId, Refusal};
use slipstream_storage::{Blobs, Snapshot, StorageError, Store};
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, BlobKind, Certificate, LedgerInfo, bounded::BoundedVec, codec,
    delta::Code, limits,
};
use tokio::sync::Semaphore;

use crate::protocol::{
    CHUNK_BYTES_MAX, CODES_MAX, Codes, Headers, Offer, Origin, Parts, RANGE_BATCHES_MAX, RANGE_BYTES_MAX,
    REQUEST_BYTES_MAX, Range, RangeBatch, RangeRequest, Request, SNAPSHOTS_MAX, Summary,
};

/// Requests of all peers that are worked on at once. Each holds an answer of up to 48 MiB and a thread that waits for the
/// disk; more of them would take memory from the node's own work without serving anybody sooner.
const ANSWERS_MAX: usize = 16;

/// The serving side. `network` bounds how many requests of one peer wait here, this how many of all peers are worked on.
pub struct SyncServer {
    store: Store,
    answers: Arc<Semaphore>,
}

impl SyncServer {
    /// Serves what the store has.
    pub fn new(store: Store) -> SyncServer {
        SyncServer { store, answers: Arc::new(Semaphore::new(ANSWERS_MAX)) }
    }

    /// Answers one request.
    ///
    /// # Errors
    /// A text for the asker, if the request is malformed or asks for what is not kept here.
    pub async fn handle(&self, _peer: PeerId, payload: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let request: Request = codec::decode("sync request", &payload, REQUEST_BYTES_MAX)
            .map_err(|error| Refusal(error.to_string()))?;
        let answers = self.answers.clone();
        let permit = answers.acquire_owned().await.map_err(|_| Refusal("this node is stopping".into()))?;
        let store = self.store.clone();
        // The permit goes along: the work runs on when the peer disconnects and this future is dropped.
        let work = move || {
            let _permit = permit;
            answer(&store, request)
        };
        let answer = tokio::task::spawn_blocking(work).await;
        answer.map_err(|_| Refusal("the request failed here".into()))?.map_err(Unserved::into_refusal)
    }
}

/// Why a request was not served.
enum Unserved {
    Storage(StorageError),
    NotKept(String),
}

impl Unserved {
    fn into_refusal(self) -> Refusal {
        match self {
            Unserved::Storage(error) => {
                tracing::warn!(%error, "cannot serve a sync request");
                Refusal("the store of this node failed".into())
            }
            Unserved::NotKept(text) => Refusal(text),
        }
    }
}

impl From<StorageError> for Unserved {
    fn from(error: StorageError) -> Self {
        match error {
            // A node that began from a snapshot lacks the headers before it; a peer may ask beyond the head.
            StorageError::Accumulator(error) => Unserved::NotKept(error.to_string()),
            error => Unserved::Storage(error),
        }
    }
}

fn not_kept(what: &str, number: BatchNumber) -> Unserved {
    Unserved::NotKept(format!("the {what} of batch {number} is not kept here"))
}

fn bytes<T: Serialize>(answer: &T) -> Result<Vec<u8>, Unserved> {
    codec::encode("answer", answer).map_err(|error| Unserved::NotKept(error.to_string()))
}

fn bounded<T, const MAX: usize>(items: Vec<T>) -> Result<BoundedVec<T, MAX>, Unserved> {
    BoundedVec::new(items).map_err(|error| Unserved::NotKept(error.to_string()))
}

fn answer(store: &Store, request: Request) -> Result<Vec<u8>, Unserved> {
    if !store.is_initialized() {
        return Err(Unserved::NotKept("this node has no ledger yet".into()));
    }
    match request {
        Request::Summary => bytes(&summary(store)?),
        Request::Range(request) => bytes(&range(store, &request)?),
        Request::Headers { first, last } => bytes(&headers(store, first, last)?),
        Request::Offer { number } => {
            let certificate = snapshot(store, number)?.info().certificate.clone();
            let header = store.header(number)?.ok_or_else(|| not_kept("header", number))?;
            bytes(&Offer { certificate, header })
        }
        Request::Chunk { number, first, last, bytes_max } => {
            if first > last {
                return Err(Unserved::NotKept("the range of the chunk is empty".into()));
            }
            let bytes_max = bytes_max.min(CHUNK_BYTES_MAX) as usize;
            let chunk = snapshot(store, number)?.encoded_chunk(first, last, bytes_max)?;
            let blob = Blob::compress(BlobKind::StateChunk, &chunk.content)
                .map_err(|e| Unserved::NotKept(e.to_string()))?;
            Ok(blob.into_bytes())
        }
        Request::RangeProof { number, first, last } => {
            bytes(&snapshot(store, number)?.range_proof(first, last)?)
        }
        Request::Codes { number, hashes } => bytes(&codes(&*snapshot(store, number)?, &hashes)?),
        Request::Origin { number } => bytes(&origin(store, number)?),
    }
}

fn summary(store: &Store) -> Result<Summary, Unserved> {
    let genesis = store.header(BatchNumber(0))?.ok_or_else(|| not_kept("header", BatchNumber(0)))?;
    let snapshots = store.snapshots().into_iter().map(|info| info.number).take(SNAPSHOTS_MAX).collect();
    Ok(Summary {
        genesis: genesis.digest(),
        head: store.latest_certificate()?,
        bodies_from: store.lowest(BlobKind::Body)?,
        receipts_from: store.lowest(BlobKind::Receipts)?,
        deltas_from: store.lowest(BlobKind::Delta)?,
        snapshots: bounded(snapshots)?,
    })
}

fn range(store: &Store, request: &RangeRequest) -> Result<Range, Unserved> {
    let latest = store.latest_certificate()?.filter(|latest| latest.info.number >= request.first);
    let latest = latest.ok_or_else(|| not_kept("certificate", request.first))?;
    let due = latest.info.number.0 - request.first.0 + 1;
    let count = u64::from(request.batches_max.min(RANGE_BATCHES_MAX)).min(due) as usize;
    let bytes_max = request.bytes_max.min(RANGE_BYTES_MAX) as usize;
    let mut batches = Vec::new();
    let mut bytes = 0;
    let mut parts = RangeParts::new(store, request, count);
    for header in store.headers(request.first, count)? {
        let batch = parts.of(header)?;
        bytes += batch.certified_bytes();
        batches.push(batch);
        if bytes >= bytes_max {
            break;
        }
    }
    let last = batches.last().ok_or_else(|| not_kept("header", request.first))?.header.number;
    let certificate = certificate_for(store, last, latest)?;
    let leaves = certificate.info.number.0 + 1;
    let proof = store.header_range_proof(leaves, request.first, batches.len())?;
    Ok(Range { certificate, proof, batches: bounded(batches)? })
}

/// The batch's own certificate if it is kept, else the latest, which covers it too.
fn certificate_for(
    store: &Store,
    last: BatchNumber,
    latest: Certificate,
) -> Result<Certificate, StorageError> {
    Ok(store.certificate(last)?.unwrap_or(latest))
}

/// The wanted parts of a range, each read in one pass beside the others.
struct RangeParts<'a> {
    body: Option<Blobs<'a>>,
    receipts: Option<Blobs<'a>>,
    delta: Option<Blobs<'a>>,
    hints: Option<Blobs<'a>>,
}

impl<'a> RangeParts<'a> {
    fn new(store: &'a Store, request: &RangeRequest, count: usize) -> RangeParts<'a> {
        let wanted = |part, kind| request.parts.has(part).then(|| store.blobs(kind, request.first, count));
        RangeParts {
            body: wanted(Parts::BODY, BlobKind::Body),
            receipts: wanted(Parts::RECEIPTS, BlobKind::Receipts),
            delta: wanted(Parts::DELTA, BlobKind::Delta),
            hints: wanted(Parts::HINTS, BlobKind::Hints),
        }
    }

    /// A batch with its parts. Hints may be missing, the others are due.
    fn of(&mut self, header: BatchHeader) -> Result<RangeBatch, Unserved> {
        let number = header.number;
        let due = |blobs: &mut Option<Blobs<'_>>, kind: BlobKind| {
            let Some(blobs) = blobs else { return Ok(None) };
            blobs.of(number)?.map(Some).ok_or_else(|| not_kept(kind.name(), number))
        };
        Ok(RangeBatch {
            body: due(&mut self.body, BlobKind::Body)?,
            receipts: due(&mut self.receipts, BlobKind::Receipts)?,
            delta: due(&mut self.delta, BlobKind::Delta)?,
            hints: self.hints.as_mut().map(|hints| hints.of(number)).transpose()?.flatten(),
            header,
        })
    }
}

fn headers(store: &Store, first: BatchNumber, last: BatchNumber) -> Result<Headers, Unserved> {
    let count = last.0.checked_sub(first.0).map_or(0, |n| n.saturating_add(1)) as usize;
    if count == 0 || count > limits::HEADERS_MAX {
        return Err(Unserved::NotKept(format!(
            "headers {first} to {last} are not 1 to {}",
            limits::HEADERS_MAX
        )));
    }
    let headers = store.headers(first, count)?;
    if headers.len() != count {
        return Err(not_kept("header", last));
    }
    let proof = store.header_range_proof(last.0 + 1, first, count)?;
    Ok(Headers { headers: bounded(headers)?, proof })
}

fn snapshot(store: &Store, number: BatchNumber) -> Result<Arc<Snapshot>, Unserved> {
    store.snapshot(number)?.ok_or_else(|| not_kept("snapshot", number))
}

fn codes(snapshot: &Snapshot, hashes: &[slipstream_types::Digest]) -> Result<Codes, Unserved> {
    let mut codes: Vec<Code> = Vec::with_capacity(hashes.len().min(CODES_MAX));
    for hash in hashes {
        let code =
            snapshot.code(hash)?.ok_or_else(|| Unserved::NotKept(format!("code {hash} is not kept here")))?;
        codes.push(Code::new(code.to_vec()).map_err(|error| Unserved::NotKept(error.to_string()))?);
    }
    Ok(Codes { codes: bounded(codes)? })
}

fn origin(store: &Store, number: BatchNumber) -> Result<Origin, Unserved> {
    let genesis = store.blob(BlobKind::Body, BatchNumber(0))?.ok_or_else(|| not_kept("genesis", number))?;
    let info: LedgerInfo = match store.certificate(number)? {
        Some(certificate) => certificate.info,
        None if number.0 == 0 => {
            let genesis = store.genesis()?;
            genesis.ledger_info().map_err(|error| Unserved::NotKept(error.to_string()))?
        }
        None => return Err(not_kept("certificate", number)),
    };
    let proof = store.header_range_proof(number.0 + 1, BatchNumber(0), 1)?;
    Ok(Origin { info, genesis, proof })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slipstream_storage::StorageConfig;
    use slipstream_types::SecretKey;

    use super::*;

    // A peer that disconnects drops the request, not the work behind it: that goes on to count.
    #[test]
    fn a_dropped_request_holds_its_permit_until_its_work_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let server = SyncServer::new(Store::memory(&StorageConfig::default()));
            let (open, gate) = std::sync::mpsc::channel::<()>();
            // The only thread for such work is taken, so that the request's own work cannot begin.
            let blocker = tokio::task::spawn_blocking(move || gate.recv());
            let payload = codec::encode("request", &Request::Summary).unwrap();
            let request = server.handle(SecretKey::from_seed([1; 32]).public(), payload);
            assert!(tokio::time::timeout(Duration::from_millis(20), request).await.is_err());
            assert_eq!(server.answers.available_permits(), ANSWERS_MAX - 1);
            open.send(()).unwrap();
            blocker.await.unwrap().unwrap();
            let done = server.answers.acquire_many(ANSWERS_MAX as u32);
            assert!(tokio::time::timeout(Duration::from_secs(30), done).await.unwrap().is_ok());
        });
    }
}
