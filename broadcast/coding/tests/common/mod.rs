//! The shared parts of the codecs' tests.

use std::sync::Arc;

use proptest::prelude::*;
use rand::{RngCore, SeedableRng};
use slipstream_coding::{Codec, Parameters, Verdict};
use slipstream_types::PublicKey;

/// The random source of the tests.
pub(crate) type Rng = rand::rngs::StdRng;

pub(crate) fn rng(seed: u64) -> Rng {
    Rng::seed_from_u64(seed)
}

/// A peer for each number.
pub(crate) fn peer(number: usize) -> PublicKey {
    let mut key = [0xee; 32];
    key[..8].copy_from_slice(&number.to_be_bytes());
    PublicKey(key)
}

/// Random bytes, none of them zero: all of a payload's pieces matter.
pub(crate) fn payload(bytes: usize, rng: &mut Rng) -> Arc<[u8]> {
    let mut payload = vec![0; bytes];
    rng.fill_bytes(&mut payload);
    payload.iter_mut().for_each(|byte| *byte |= 1);
    payload.into()
}

pub(crate) fn parameters() -> impl Strategy<Value = Parameters> {
    (1..=12_u16, 1..=24_u16, 1..=24_u16).prop_map(|(pieces, data, parity)| Parameters {
        pieces,
        data,
        parity,
    })
}

/// Runs one check, if there is one.
pub(crate) fn judge(codec: &mut dyn Codec, rng: &mut Rng) -> Vec<Verdict> {
    let check = codec.check(rng);
    check.map(|check| codec.checked(check.run())).unwrap_or_default()
}

/// Runs checks until there are none.
pub(crate) fn settle(codec: &mut dyn Codec, rng: &mut Rng) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    while codec.work().is_some() {
        verdicts.extend(judge(codec, rng));
    }
    verdicts
}
