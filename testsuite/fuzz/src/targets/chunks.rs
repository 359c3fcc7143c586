//! Plans and chunks of peers, for each codec. Accepting and checking them never panics and never holds more than
//! announced. A decoded payload has the digest that its plan names.

use std::sync::Arc;

use rand::{SeedableRng, rngs::StdRng};
use slipstream_coding::{Accepted, CodecKind, Parameters, Plan, encode, open, payload_digest};
use slipstream_types::{PublicKey, codec};

use crate::claim::edit;

const PLAN_BYTES_MAX: usize = 4 << 10;
/// The largest payload that a plan may promise, so that a single case stays fast.
const PAYLOAD_BYTES_MAX: u32 = 64 << 10;

// A plan is honest with altered bytes, or wholly the fuzzer's. Chunks follow, each honest with altered bytes, or wholly
// the fuzzer's.
pub(crate) fn run(bytes: &[u8]) {
    let [kind, pieces, len, plan_edits, rest @ ..] = bytes else { return };
    let mut rng = StdRng::seed_from_u64(1);
    let payload: Arc<[u8]> = (0..20 * usize::from(*len)).map(|at| at as u8 | 1).collect();
    let parameters = Parameters {
        pieces: u16::from(pieces % 8 + 1),
        data: u16::from(pieces % 5 + 1),
        parity: u16::from(pieces / 64 + 1),
    };
    let kind = CodecKind::ALL[usize::from(*kind) % CodecKind::ALL.len()];
    let (plan, mut source) = encode(kind, payload, &parameters).expect("within all limits");
    let mut encoded = codec::encode("plan", &plan).expect("it encodes");
    let edits_bytes = (3 * usize::from(*plan_edits % 4)).min(rest.len());
    let (edits, mut rest) = rest.split_at(edits_bytes);
    edit(&mut encoded, edits);
    let Ok(plan) = codec::decode::<Plan>("plan", &encoded, PLAN_BYTES_MAX) else { return };
    if plan.bytes > PAYLOAD_BYTES_MAX {
        return;
    }
    let Ok(mut codec) = open(&plan) else { return };
    while let [from, mode, tail @ ..] = rest {
        let count = usize::from(*mode >> 1).min(tail.len());
        let (edits, next) = tail.split_at(count);
        rest = next;
        let chunk = if mode & 1 == 0 {
            edits.to_vec()
        } else {
            let Some(mut chunk) = source.next_chunk(&PublicKey([*from; 32]), &mut rng) else { continue };
            edit(&mut chunk, edits);
            chunk
        };
        let held = codec.held_bytes();
        if let Accepted::Malformed(_) | Accepted::Dependent | Accepted::Surplus =
            codec.accept(PublicKey([*from; 32]), &chunk)
        {
            assert!(codec.held_bytes() <= held);
        }
        assert!(codec.held_bytes() <= codec.held_bytes_max());
        if from % 3 == 0
            && let Some(check) = codec.check(&mut rng)
        {
            codec.checked(check.run());
        }
    }
    while let Some(check) = codec.check(&mut rng) {
        codec.checked(check.run());
    }
    if let Some(payload) = codec.payload() {
        assert_eq!(payload_digest(&payload), plan.digest);
    }
}

/// Returns, for each codec, honest chunks of four peers.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let chunks: Vec<u8> = (0..40).flat_map(|from| [from % 4, 1]).collect();
    (0..CodecKind::ALL.len() as u8).map(|kind| [&[kind, 0x4b, 9, 0][..], &chunks].concat()).collect()
}
