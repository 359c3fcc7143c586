//! [`Cost`]: a request's presumed cost before work on it begins, and where that work is done.

use std::time::Duration;

use slipstream_types::BatchHeader;

use crate::protocol::{CHUNK_BYTES_MAX, RANGE_BYTES_MAX, REVERSE_DELTA_BYTES, RangeRequest, Request};

/// The currency in which peers pay.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Cost {
    /// Bytes of the answer.
    pub(super) bytes: u64,
    /// Thread time.
    pub(super) work: Duration,
}

/// Where a request is worked on, so that cheap and urgent work never waits behind expensive work. Merges of deltas have
/// places of their own besides these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A few reads, such as followers need all the time.
    Cheap,
    /// Megabytes from the disk, with proofs and compression.
    Disk,
}

/// Up to this many headers are a few reads; more of them are megabytes.
const CHEAP_HEADERS_MAX: u64 = 256;
/// Approximate bytes of a header with its share of the proof.
const HEADER_BYTES: u64 = 400;
const _: () = assert!(HEADER_BYTES > BatchHeader::BYTES as u64);
/// Approximate bytes of one batch of a range: a request for one batch with room for 4 MiB does not pay for 4 MiB.
const BATCH_BYTES: u64 = 256 << 10;
/// Approximate bytes of a contract's code.
const CODE_BYTES: u64 = 24 << 10;
/// Bytes of a short answer.
const SHORT_BYTES: u64 = 4 << 10;
/// Least work of any answer.
const WORK_LEAST: Duration = Duration::from_micros(200);
/// Work per MiB: reading takes 1 to 2 ms, compressing a chunk 3.
const WORK_PER_MIB: Duration = Duration::from_millis(4);

/// Presumed cost of merging the deltas of a range, whatever its result. A merge takes seconds at most, see `storage`.
pub(super) const MERGE: Cost = Cost { bytes: 0, work: Duration::from_millis(500) };

impl Cost {
    /// A request's place, and its charge on admission. Its real cost replaces the charge afterwards.
    pub(super) fn of(request: &Request) -> (Kind, Cost) {
        let (kind, bytes) = match request {
            Request::Summary | Request::Offer { .. } | Request::Epochs { .. } | Request::Origin { .. } => {
                (Kind::Cheap, SHORT_BYTES)
            }
            Request::Headers { first, last } => {
                let count = last.since(*first).saturating_add(1);
                let kind = if count <= CHEAP_HEADERS_MAX { Kind::Cheap } else { Kind::Disk };
                (kind, count.min(slipstream_types::limits::HEADERS_MAX as u64) * HEADER_BYTES)
            }
            Request::Range(RangeRequest { batches_max, bytes_max, .. }) => {
                let batches = u64::from(*batches_max).saturating_mul(BATCH_BYTES);
                (Kind::Disk, batches.min(u64::from(*bytes_max)).min(u64::from(RANGE_BYTES_MAX)))
            }
            Request::Chunk { bytes_max, .. } => (Kind::Disk, u64::from((*bytes_max).min(CHUNK_BYTES_MAX))),
            Request::RangeDelta(request) => (Kind::Disk, u64::from(request.bytes_max.min(CHUNK_BYTES_MAX))),
            Request::Codes { hashes, .. } => (Kind::Disk, hashes.len() as u64 * CODE_BYTES),
            Request::RangeProof { .. } => (Kind::Disk, SHORT_BYTES),
            // The proof of each header takes some twenty reads.
            Request::Survey { numbers, .. } => (Kind::Disk, numbers.len() as u64 * SHORT_BYTES),
            // Its rows are read one by one, from a past state.
            Request::ReverseDelta { .. } => (Kind::Disk, 16 * u64::from(REVERSE_DELTA_BYTES)),
            Request::Subtrees(_) => (Kind::Disk, request.answer_bytes_expected() as u64),
        };
        (kind, Cost { bytes, work: WORK_LEAST + WORK_PER_MIB.mul_f64(bytes as f64 / f64::from(1 << 20)) })
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::{BatchNumber, Digest, bounded::BoundedVec};

    use super::*;
    use crate::protocol::Parts;

    fn range(batches_max: u32, bytes_max: u32) -> Cost {
        let request = RangeRequest { first: BatchNumber::new(1), batches_max, bytes_max, parts: Parts::BODY };
        Cost::of(&Request::Range(request)).1
    }

    #[test]
    fn a_request_pays_for_what_it_may_get() {
        assert_eq!(range(u32::MAX, u32::MAX).bytes, u64::from(RANGE_BYTES_MAX));
        assert_eq!(range(1, 4 << 20).bytes, BATCH_BYTES);
        assert_eq!(range(256, 4 << 20).bytes, 4 << 20);
        assert!(range(256, 16 << 20).work > range(256, 1 << 20).work);
    }

    #[test]
    fn each_code_is_paid_for() {
        let codes = |count| {
            let hashes = BoundedVec::new(vec![Digest::ZERO; count]).unwrap();
            Cost::of(&Request::Codes { number: BatchNumber::new(1), hashes })
        };
        assert_eq!(codes(64).1.bytes, 64 * codes(1).1.bytes);
        assert_eq!(codes(1).0, Kind::Disk);
    }

    #[test]
    fn many_headers_are_not_cheap() {
        let kind =
            |last| Cost::of(&Request::Headers { first: BatchNumber::new(1), last: BatchNumber::new(last) }).0;
        assert_eq!((kind(256), kind(257), kind(u64::MAX)), (Kind::Cheap, Kind::Disk, Kind::Disk));
        assert_eq!(Cost::of(&Request::Summary).0, Kind::Cheap);
    }
}
