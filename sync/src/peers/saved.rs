//! Scores across restarts: one bounded record in the store.

use serde::{Deserialize, Serialize};
use slipstream_network::PeerId;
use slipstream_types::{CodecError, bounded::BoundedVec, codec};
use tokio::time::Instant;

use super::score::{SUMS, Score};

/// The key of the record in the store.
pub(crate) const KEY: &str = "sync/scores";
/// Maximum number of peers whose score is kept, in memory while they are away and in the record: the best measured ones.
pub(super) const PEERS_MAX: usize = 256;
/// Maximum bytes of the record. A peer takes some 350.
const RECORD_BYTES_MAX: usize = PEERS_MAX * 512;

/// A peer's sums as the bits of IEEE 754 doubles: BCS has no floating-point numbers.
#[derive(Serialize, Deserialize)]
struct SavedScore {
    peer: PeerId,
    sums: [u64; SUMS],
    latency: [u64; 32],
}

type Record = BoundedVec<SavedScore, PEERS_MAX>;

/// Encodes the scores of at most [`PEERS_MAX`] peers.
pub(super) fn encode<'a>(
    now: Instant,
    scores: impl Iterator<Item = (PeerId, &'a Score)>,
) -> Result<Vec<u8>, CodecError> {
    let saved = scores.map(|(peer, score)| {
        let (sums, latency) = score.sums(now);
        SavedScore { peer, sums: sums.map(f64::to_bits), latency: latency.map(f64::to_bits) }
    });
    let record: Record = BoundedVec::new(saved.collect())?;
    codec::encode("peer scores", &record)
}

/// Decodes the scores of a record. Skips a peer whose sums are invalid.
pub(super) fn decode(now: Instant, bytes: &[u8]) -> Result<Vec<(PeerId, Score)>, CodecError> {
    let record: Record = codec::decode("peer scores", bytes, RECORD_BYTES_MAX)?;
    let score = |saved: &SavedScore| {
        Score::restored(now, saved.sums.map(f64::from_bits), saved.latency.map(f64::from_bits))
    };
    Ok(record.iter().filter_map(|saved| Some((saved.peer, score(saved)?))).collect())
}
