//! Makes answers from a store's content, in the protocol's form. Blobs are served as they are stored.

use std::sync::Arc;

use serde::Serialize;
use slipstream_network::Payload;
use slipstream_storage::{Blobs, Snapshot, StorageError, Store};
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, BlobKind, CodecError, Digest, Path, bounded::BoundedVec, codec,
    delta::Code,
};

use super::{
    cache::{Key, Part},
    error::ServeError,
    merges::{MergeKey, MergeOutput},
};
use crate::protocol::{
    CHUNK_BYTES_MAX, CODES_MAX, Codes, EPOCH_ENDS_MAX, EpochEnds, Headers, Offer, Origin, Parts, PassedBatch,
    RANGE_BATCHES_MAX, RANGE_BYTES_MAX, RangeBatch, RangeDeltaRequest, RangeRequest, Request, SNAPSHOTS_MAX,
    SnapshotOffer, Subtrees, SubtreesRequest, Summary, Survey,
};

pub(super) fn not_kept(what: &str, number: BatchNumber) -> ServeError {
    ServeError::NotKept(format!("the {what} of batch {number} is not kept here"))
}

fn bytes<T: Serialize>(answer: &T) -> Result<Vec<u8>, ServeError> {
    codec::encode("answer", answer).map_err(|error| ServeError::NotKept(error.to_string()))
}

fn bounded<T, const MAX: usize>(items: Vec<T>) -> Result<BoundedVec<T, MAX>, ServeError> {
    BoundedVec::new(items).map_err(|error| ServeError::NotKept(error.to_string()))
}

/// A request whose work is the same for every asker, in normal form: limits are applied and future batches are cut off. So
/// equal requests have equal answers for good.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) enum SharedRequest {
    Range(RangeRequest),
    Headers { first: BatchNumber, last: BatchNumber },
    Chunk { number: BatchNumber, first: Path, last: Path, bytes_max: u32 },
    Codes { number: BatchNumber, hashes: BoundedVec<Digest, CODES_MAX> },
    RangeDelta(RangeDeltaRequest),
    Subtrees(SubtreesRequest),
    ReverseDelta { from: BatchNumber, to: BatchNumber },
}

/// The work that a request needs.
pub(super) enum PreparedAnswer {
    /// Nothing more: this is the answer.
    Done(Payload),
    /// A part that others may ask for too.
    Shared(SharedRequest),
}

/// Answers a request that is cheap or different every time, and normalises any other. The request must have passed
/// [`super::check`].
pub(super) fn prepare(store: &Store, request: Request) -> Result<PreparedAnswer, ServeError> {
    let done = match request {
        Request::Range(request) => {
            let latest = store.latest_certificate()?.filter(|latest| latest.info.number >= request.first);
            let latest = latest.ok_or_else(|| not_kept("certificate", request.first))?;
            let due = latest.info.number.since(request.first) + 1;
            let batches_max = request.batches_max.min(RANGE_BATCHES_MAX);
            let batches_max = u32::try_from(due).map_or(batches_max, |due| batches_max.min(due));
            let bytes_max = request.bytes_max.min(RANGE_BYTES_MAX);
            let range = RangeRequest { batches_max, bytes_max, ..request };
            return Ok(PreparedAnswer::Shared(SharedRequest::Range(range)));
        }
        Request::Chunk { number, first, last, bytes_max } => {
            let bytes_max = bytes_max.min(CHUNK_BYTES_MAX);
            return Ok(PreparedAnswer::Shared(SharedRequest::Chunk { number, first, last, bytes_max }));
        }
        Request::Codes { number, hashes } => {
            return Ok(PreparedAnswer::Shared(SharedRequest::Codes { number, hashes }));
        }
        Request::RangeDelta(request) => {
            let bytes_max = request.bytes_max.min(CHUNK_BYTES_MAX);
            return Ok(PreparedAnswer::Shared(SharedRequest::RangeDelta(RangeDeltaRequest {
                bytes_max,
                ..request
            })));
        }
        Request::Subtrees(request) => return Ok(PreparedAnswer::Shared(SharedRequest::Subtrees(request))),
        Request::ReverseDelta { from, to } => {
            return Ok(PreparedAnswer::Shared(SharedRequest::ReverseDelta { from, to }));
        }
        Request::Headers { first, last } => {
            return Ok(PreparedAnswer::Shared(SharedRequest::Headers { first, last }));
        }
        Request::Summary => bytes(&summary(store)?)?,
        Request::Survey { numbers, last } => bytes(&survey(store, &numbers, last)?)?,
        Request::Offer { number, passing } => bytes(&offer(store, number, passing)?)?,
        Request::RangeProof { number, first, last } => {
            bytes(&snapshot(store, number)?.range_proof(first, last)?)?
        }
        Request::Origin { number } => bytes(&origin(store, number)?)?,
        Request::Epochs { first } => {
            bytes(&EpochEnds { certificates: bounded(store.epoch_ends(first, EPOCH_ENDS_MAX)?)? })?
        }
    };
    Ok(PreparedAnswer::Done(done.into()))
}

/// The snapshot whose tree an answer comes from, if any.
pub(super) fn proved_by(store: &Store, request: &Request) -> Option<BatchNumber> {
    match request {
        Request::Chunk { number, .. } | Request::RangeProof { number, .. } => Some(*number),
        Request::RangeDelta(request) => Some(request.to),
        Request::Subtrees(request) => store.snapshot_below(request.number),
        Request::Summary
        | Request::Range(_)
        | Request::Headers { .. }
        | Request::Offer { .. }
        | Request::Codes { .. }
        | Request::Origin { .. }
        | Request::Epochs { .. }
        | Request::Survey { .. }
        | Request::ReverseDelta { .. } => None,
    }
}

impl SharedRequest {
    /// The part's key in the cache.
    pub(super) fn key(&self) -> Result<Key, ServeError> {
        Ok(bytes(self)?.into())
    }

    /// The merge that must come before the part.
    pub(super) fn merge(&self) -> Option<MergeKey> {
        match self {
            SharedRequest::RangeDelta(request) => Some(MergeKey::Range(request.from, request.to)),
            SharedRequest::Subtrees(request) => Some(MergeKey::State(request.number)),
            SharedRequest::Range(_)
            | SharedRequest::Headers { .. }
            | SharedRequest::Chunk { .. }
            | SharedRequest::Codes { .. }
            | SharedRequest::ReverseDelta { .. } => None,
        }
    }

    /// Makes the part from the result of its [`SharedRequest::merge`].
    pub(super) fn make(&self, store: &Store, merged: Option<&MergeOutput>) -> Result<Part, ServeError> {
        Ok(match self {
            SharedRequest::Range(request) => range_batches(store, request)?,
            SharedRequest::Headers { first, last } => Part::whole(bytes(&headers(store, *first, *last)?)?),
            SharedRequest::Chunk { number, first, last, bytes_max } => {
                let chunk = snapshot(store, *number)?.encoded_chunk(*first, *last, *bytes_max as usize)?;
                let blob = Blob::compress(BlobKind::StateChunk, &chunk.content)
                    .map_err(|e| ServeError::NotKept(e.to_string()))?;
                Part::whole(blob.into_bytes())
            }
            SharedRequest::Codes { number, hashes } => Part::whole(bytes(&codes(store, *number, hashes)?)?),
            SharedRequest::RangeDelta(RangeDeltaRequest { from, to, first, last, bytes_max }) => {
                let Some(MergeOutput::Range(merged)) = merged else {
                    return Err(not_kept("range delta", *from));
                };
                let snapshot = snapshot(store, *to)?;
                let chunk = snapshot.range_delta_chunk(merged, *first, *last, *bytes_max as usize)?;
                let blob = Blob::seal(BlobKind::RangeDelta, &chunk)
                    .map_err(|error| ServeError::NotKept(error.to_string()))?;
                Part::whole(blob.into_bytes())
            }
            SharedRequest::Subtrees(SubtreesRequest { number, levels, places, .. }) => {
                let Some(MergeOutput::State(state)) = merged else { return Err(not_kept("state", *number)) };
                let opened = places.iter().map(|place| state.open(place, *levels));
                let opened = bounded(opened.collect::<Result<_, StorageError>>()?)?;
                Part::whole(bytes(&Subtrees { opened })?)
            }
            SharedRequest::ReverseDelta { from, to } => {
                let failed = |error: CodecError| ServeError::NotKept(error.to_string());
                let content = store.reverse_delta(*from, *to)?.content().map_err(failed)?;
                Part::whole(Blob::compress(BlobKind::Delta, &content).map_err(failed)?.into_bytes())
            }
        })
    }

    /// Completes the part to an answer. A range has the batch's own certificate if the store keeps it. Otherwise it has
    /// the latest one, which covers the batch too and changes. So the cached part excludes the certificate and its
    /// proof. Both can be put before the part: they are the first fields of a [`crate::protocol::Range`], and BCS
    /// encodes fields one after the other.
    pub(super) fn answer(&self, store: &Store, part: &Part) -> Result<Payload, ServeError> {
        let first = match self {
            SharedRequest::Range(RangeRequest { first, .. }) => *first,
            SharedRequest::Headers { .. }
            | SharedRequest::Chunk { .. }
            | SharedRequest::Codes { .. }
            | SharedRequest::RangeDelta(_)
            | SharedRequest::Subtrees(_)
            | SharedRequest::ReverseDelta { .. } => return Ok(part.bytes.clone().into()),
        };
        let last = first.after(part.batches as u64 - 1);
        let certificate = match store.certificate(last)? {
            Some(own) => own,
            None => store.latest_certificate()?.ok_or_else(|| not_kept("certificate", last))?,
        };
        let proof = store.header_range_proof(certificate.info.number.leaves(), first, part.batches)?;
        // Bytes that other askers get as well are shared without a copy.
        Ok(vec![bytes(&(certificate, proof))?.into(), part.bytes.clone()].into())
    }
}

fn summary(store: &Store) -> Result<Summary, ServeError> {
    let genesis =
        store.header(BatchNumber::GENESIS)?.ok_or_else(|| not_kept("header", BatchNumber::GENESIS))?;
    let offers = store.snapshots().into_iter().map(|info| SnapshotOffer::new(info.number, info.rows));
    let snapshots = offers.take(SNAPSHOTS_MAX).collect();
    Ok(Summary {
        genesis: genesis.digest(),
        head: store.latest_certificate()?,
        bodies_from: store.lowest(BlobKind::Body)?,
        receipts_from: store.lowest(BlobKind::Receipts)?,
        deltas_from: store.lowest(BlobKind::Delta)?,
        states_from: Some(store.states_from()?),
        snapshots: bounded(snapshots)?,
        forks: store.chain()?.schedule.told(),
    })
}

/// The batches of a range, at least one, as [`crate::protocol::Range`] encodes them.
fn range_batches(store: &Store, request: &RangeRequest) -> Result<Part, ServeError> {
    let count = request.batches_max as usize;
    let mut batches = Vec::new();
    let (mut certified, mut hinted) = (0, 0);
    let mut parts = RangeParts::new(store, request, count);
    for header in store.headers(request.first, count)? {
        let mut batch = parts.of(header)?;
        certified += batch.certified_bytes();
        hinted += batch.hints.as_ref().map_or(0, |hints| hints.len());
        if certified + hinted > request.bytes_max as usize {
            // Hints end no answer, but the answer has to fit.
            batch.hints = None;
        }
        batches.push(batch);
        if certified >= request.bytes_max as usize {
            break;
        }
    }
    if batches.is_empty() {
        return Err(not_kept("header", request.first));
    }
    let len = batches.len();
    let batches: BoundedVec<RangeBatch, { RANGE_BATCHES_MAX as usize }> = bounded(batches)?;
    Ok(Part { batches: len, ..Part::whole(bytes(&batches)?) })
}

/// The wanted parts of a range; each kind is read in one pass.
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

    /// Makes a batch with its parts. Hints may be missing; the other parts must be there.
    fn of(&mut self, header: BatchHeader) -> Result<RangeBatch, ServeError> {
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

fn headers(store: &Store, first: BatchNumber, last: BatchNumber) -> Result<Headers, ServeError> {
    let count = last.since(first) as usize + 1;
    let headers = store.headers(first, count)?;
    if headers.len() != count {
        return Err(not_kept("header", last));
    }
    let proof = store.header_range_proof(last.leaves(), first, count)?;
    Ok(Headers { headers: bounded(headers)?, proof })
}

/// The headers that this node can prove. A node that began at a snapshot lacks most headers before it.
fn survey(store: &Store, numbers: &[BatchNumber], last: BatchNumber) -> Result<Survey, ServeError> {
    let place = |number: BatchNumber| -> Result<Option<PassedBatch>, ServeError> {
        let Some(header) = store.header(number)? else { return Ok(None) };
        match store.header_range_proof(last.leaves(), number, 1) {
            Ok(proof) => Ok(Some(PassedBatch { header, proof })),
            Err(StorageError::Accumulator(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    };
    let placed = numbers.iter().filter_map(|number| place(*number).transpose());
    let headers: Vec<PassedBatch> = placed.collect::<Result<_, _>>()?;
    match headers.last().filter(|placed| placed.header.number == last) {
        Some(_) => Ok(Survey { headers: bounded(headers)? }),
        None => Err(not_kept("header", last)),
    }
}

pub(super) fn snapshot(store: &Store, number: BatchNumber) -> Result<Arc<Snapshot>, ServeError> {
    store.snapshot(number)?.ok_or_else(|| not_kept("snapshot", number))
}

fn codes(store: &Store, number: BatchNumber, hashes: &[Digest]) -> Result<Codes, ServeError> {
    let snapshot = store.snapshot(number)?;
    let view = store.view()?;
    let mut codes: Vec<Code> = Vec::with_capacity(hashes.len().min(CODES_MAX));
    for hash in hashes {
        let code = match &snapshot {
            Some(snapshot) => snapshot.code(hash)?,
            None => view.code(hash)?,
        };
        let code = code.ok_or_else(|| ServeError::NotKept(format!("code {hash} is not kept here")))?;
        codes.push(Code::new(code.to_vec()).map_err(|error| ServeError::NotKept(error.to_string()))?);
    }
    Ok(Codes { codes: bounded(codes)? })
}

fn offer(store: &Store, number: BatchNumber, passing: Option<BatchNumber>) -> Result<Offer, ServeError> {
    let certificate = snapshot(store, number)?.info().certificate.clone();
    let kept = |number| store.header(number)?.ok_or_else(|| not_kept("header", number));
    let place = |batch: BatchNumber| store.header_range_proof(number.leaves(), batch, 1);
    let pass =
        |batch| -> Result<_, ServeError> { Ok(PassedBatch { header: kept(batch)?, proof: place(batch)? }) };
    let header = kept(number)?;
    Ok(Offer {
        certificate,
        header,
        genesis_proof: place(BatchNumber::GENESIS)?,
        passed: passing.map(pass).transpose()?,
    })
}

/// Makes the answer about the ledger's origin. A node that began from a snapshot knows no headers before those that
/// came with the snapshot.
fn origin(store: &Store, number: BatchNumber) -> Result<Origin, ServeError> {
    // This check comes first, because the genesis is long.
    let info = store.ledger_info(number)?.ok_or_else(|| not_kept("header", number))?;
    let genesis =
        store.blob(BlobKind::Body, BatchNumber::GENESIS)?.ok_or_else(|| not_kept("genesis", number))?;
    let proof = store.header_range_proof(number.leaves(), BatchNumber::GENESIS, 1)?;
    Ok(Origin { info, genesis, proof })
}
