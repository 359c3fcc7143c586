//! The points that commit to pieces.
//!
//! Generator `j` is the hash of `j` to the group, so nobody knows a relation between generators. With a known relation,
//! other scalars would fit the same commitment. The generators are the same for all chains and never change.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use curve25519_dalek::{
    RistrettoPoint, ristretto::VartimeRistrettoPrecomputation, traits::VartimePrecomputedMultiscalarMul,
};
use sha2::{Digest as _, Sha512};

/// The generators that this process has made so far: 160 bytes and some 15 microseconds each. They are constants, so it does
/// not matter which thread made them.
static MADE: Mutex<Option<Arc<[RistrettoPoint]>>> = Mutex::new(None);

/// Generators whose odd multiples are kept, 10 kB for each and 5 MB together. Sums over at most this many generators
/// take a fifth to a quarter less time with these multiples. Sums over a thousand or more take more time, because the
/// multiples do not fit the caches.
const TABLE_GENERATORS: usize = 512;

static TABLE: LazyLock<VartimeRistrettoPrecomputation> =
    LazyLock::new(|| VartimeRistrettoPrecomputation::new(&first(TABLE_GENERATORS)[..TABLE_GENERATORS]));

/// Multiples of the first generators, if `count` is at most [`TABLE_GENERATORS`]. The first call takes milliseconds.
pub(super) fn table(count: usize) -> Option<&'static VartimeRistrettoPrecomputation> {
    (count <= TABLE_GENERATORS).then(|| &*TABLE)
}

/// Returns at least the first `count` generators. Makes the missing ones; meanwhile other threads may use the existing
/// ones.
pub(super) fn first(count: usize) -> Arc<[RistrettoPoint]> {
    let made = || MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = made().clone().unwrap_or_default();
    if known.len() >= count {
        return known;
    }
    // A caller that needs more generators will often need a few more soon.
    let wanted = count.next_multiple_of(512);
    let more: Arc<[_]> = known.iter().copied().chain((known.len()..wanted).map(generator)).collect();
    let mut shared = made();
    match &*shared {
        Some(longer) if longer.len() >= more.len() => longer.clone(),
        _ => shared.insert(more).clone(),
    }
}

/// Generator `index`, as RFC 9496 maps 64 uniform bytes to the group.
fn generator(index: usize) -> RistrettoPoint {
    let hash =
        Sha512::new().chain_update(b"slipstream rlnc generator").chain_update((index as u64).to_le_bytes());
    RistrettoPoint::from_uniform_bytes(&hash.finalize().into())
}
