//! Answers to sync's requests, built from the snapshots of an archive.

use std::sync::Arc;

use serde::Serialize;
use slipstream_archive::{ArchivedSnapshot, SupplyError};
use slipstream_network::Refusal;
use slipstream_storage::Span;
use slipstream_sync::protocol::{
    CHUNK_BYTES_MAX, Codes, EPOCH_ENDS_MAX, EpochEnds, Headers, Offer, PassedBatch, REQUEST_BYTES_MAX,
    Request, SnapshotOffer, Summary,
};
use slipstream_types::{BatchNumber, Blob, BlobKind, Epoch, bounded::BoundedVec, codec};

type Snapshots = [Arc<ArchivedSnapshot>];

/// The answer to a request, from `snapshots`, newest first.
pub(super) async fn answer(snapshots: &Snapshots, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
    let request: Request = codec::decode("sync request", payload, REQUEST_BYTES_MAX)
        .map_err(|error| Refusal::malformed(error.to_string()))?;
    match request {
        Request::Summary => encoded(&summary(snapshots)?),
        Request::Epochs { first } => encoded(&epoch_ends(snapshots, first)?),
        Request::Offer { number, passing } => encoded(&offer(find(snapshots, number)?, passing)?),
        Request::Headers { first, last } => {
            let (headers, proof) = find(snapshots, last)?.headers(first, last).ok_or_else(not_kept)?;
            encoded(&Headers { headers: bounded(headers)?, proof })
        }
        Request::Chunk { number, first, last, bytes_max } if first <= last => {
            let bytes_max = bytes_max.min(CHUNK_BYTES_MAX) as usize;
            match find(snapshots, number)?.chunk(Span { first, last }, bytes_max).await {
                Ok(chunk) => {
                    let blob = Blob::compress(BlobKind::StateChunk, &chunk.content);
                    Ok(blob.map_err(|error| Refusal::failed(error.to_string()))?.into_bytes())
                }
                Err(reason) => unsupplied(reason),
            }
        }
        Request::RangeProof { number, first, last } if first <= last => {
            match find(snapshots, number)?.range_proof(Span { first, last }).await {
                Ok(proof) => encoded(&proof),
                Err(reason) => unsupplied(reason),
            }
        }
        Request::Codes { number, hashes } => match find(snapshots, number)?.codes(&hashes).await {
            Ok(codes) => encoded(&Codes { codes: bounded(codes)? }),
            Err(reason) => unsupplied(reason),
        },
        _ => Err(not_kept()),
    }
}

fn summary(snapshots: &Snapshots) -> Result<Summary, Refusal> {
    let newest = snapshots.first().ok_or_else(not_kept)?;
    let offers = snapshots.iter().map(|snapshot| {
        let summary = snapshot.summary();
        SnapshotOffer::new(summary.number, summary.rows)
    });
    Ok(Summary {
        genesis: newest.genesis(),
        head: Some(newest.lineage().certificate.clone()),
        bodies_from: None,
        receipts_from: None,
        deltas_from: None,
        states_from: None,
        snapshots: bounded(offers.collect())?,
        forks: Default::default(),
    })
}

/// The certificates that lead to the newest snapshot: a node that knows none of them follows them to the snapshot's
/// certificate.
fn epoch_ends(snapshots: &Snapshots, first: Epoch) -> Result<EpochEnds, Refusal> {
    let ends = &snapshots.first().ok_or_else(not_kept)?.lineage().epoch_ends;
    let asked = ends.iter().filter(|end| end.info.epoch >= first).take(EPOCH_ENDS_MAX);
    Ok(EpochEnds { certificates: bounded(asked.cloned().collect())? })
}

fn offer(snapshot: &ArchivedSnapshot, passing: Option<BatchNumber>) -> Result<Offer, Refusal> {
    let certificate = snapshot.lineage().certificate.clone();
    let header = snapshot.lineage().headers.last().cloned().ok_or_else(not_kept)?;
    let passed = match passing {
        None => None,
        // For a waypoint far behind, peers that have its batch supply the proof.
        Some(passing) => {
            let (headers, proof) = snapshot.headers(passing, passing).ok_or_else(not_kept)?;
            headers.into_iter().next().map(|header| PassedBatch { header, proof })
        }
    };
    Ok(Offer { certificate, header, genesis_proof: snapshot.genesis_proof().clone(), passed })
}

fn find(snapshots: &Snapshots, number: BatchNumber) -> Result<&Arc<ArchivedSnapshot>, Refusal> {
    let found = snapshots.iter().find(|snapshot| snapshot.lineage().info().number == number);
    found.ok_or_else(not_kept)
}

/// Passes a wrong object on unchanged: sync detects that it is wrong and bans the archive for it.
fn unsupplied(reason: SupplyError) -> Result<Vec<u8>, Refusal> {
    match reason {
        SupplyError::NotKept => Err(not_kept()),
        SupplyError::Failed(error) => Err(Refusal::failed(error.to_string())),
        SupplyError::Wrong { bytes, error } => {
            tracing::warn!(%error, "an archive returned other data than it promised");
            Ok(bytes)
        }
    }
}

fn not_kept() -> Refusal {
    Refusal::not_kept("the archive does not have it")
}

fn encoded<T: Serialize>(value: &T) -> Result<Vec<u8>, Refusal> {
    codec::encode("answer", value).map_err(|error| Refusal::failed(error.to_string()))
}

fn bounded<T, const MAX: usize>(items: Vec<T>) -> Result<BoundedVec<T, MAX>, Refusal> {
    BoundedVec::new(items).map_err(|error| Refusal::failed(error.to_string()))
}
