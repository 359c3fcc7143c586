//! Requests of peers that sync. An answer is at most as long as the request allows, and a refused request costs nothing
//! further.

use slipstream_storage::PathPrefix;
use slipstream_sync::{
    answer,
    protocol::{
        CHUNK_BYTES_MAX, Parts, RANGE_BYTES_MAX, REQUEST_BYTES_MAX, RangeDeltaRequest, RangeRequest, Request,
        SubtreesRequest,
    },
};
use slipstream_types::{BatchNumber, Digest, Epoch, Path, bounded::BoundedVec, codec};

use super::world::{BATCHES, CHAIN};

pub(super) fn run(bytes: &[u8]) {
    let request = codec::decode::<Request>("sync request", bytes, REQUEST_BYTES_MAX);
    let Ok(answered) = answer(&CHAIN.store, bytes) else { return };
    let request = request.expect("only a request is answered");
    assert!(answered.len() <= request.answer_bytes_max(), "{} bytes for {request:?}", answered.len());
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let encode = |request| codec::encode("sync request", &request).expect("it encodes");
    requests().into_iter().map(encode).collect()
}

/// Returns one request of each kind.
pub(super) fn requests() -> Vec<Request> {
    let (one, head) = (BatchNumber::new(1), BatchNumber::new(BATCHES));
    let (first, last) = (Path::MIN, Path::MAX);
    vec![
        Request::Summary,
        Request::Range(RangeRequest {
            first: one,
            batches_max: 3,
            parts: Parts(u8::MAX),
            bytes_max: RANGE_BYTES_MAX,
        }),
        Request::Headers { first: one, last: head },
        Request::Offer { number: head, passing: Some(one) },
        Request::Chunk { number: head, first, last, bytes_max: CHUNK_BYTES_MAX },
        Request::Codes { number: head, hashes: BoundedVec::new(vec![Digest([7; 32])]).expect("one") },
        Request::Origin { number: head },
        Request::RangeProof { number: head, first, last },
        Request::Epochs { first: Epoch(0) },
        Request::RangeDelta(RangeDeltaRequest {
            from: one,
            to: head,
            first,
            last,
            bytes_max: CHUNK_BYTES_MAX,
        }),
        Request::Subtrees(SubtreesRequest {
            number: head,
            root: CHAIN.snapshot.info().state_root,
            places: BoundedVec::new(vec![PathPrefix::ROOT]).expect("one"),
            levels: 4,
        }),
        Request::ReverseDelta { from: head, to: one },
        Request::Survey { numbers: BoundedVec::new(vec![one, head]).expect("two"), last: head },
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use strum::VariantNames as _;

    use super::*;

    /// Goal: a new request is fuzzed.
    #[test]
    fn there_is_a_seed_of_each_kind() {
        let name = |request: Request| {
            let text = format!("{request:?}");
            text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
        };
        let seeds: BTreeSet<String> = requests().into_iter().map(name).collect();
        assert_eq!(seeds, Request::VARIANTS.iter().map(|name| (*name).to_owned()).collect());
    }
}
