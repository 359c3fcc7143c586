//! A cache of recently verified signatures.
//!
//! A validator sees the same signature as a vote, in the certificate of its batch, in peers' announcements, and in
//! their summaries. Checking a signature takes about 50 us, finding it here less than one.

use std::sync::{Mutex, PoisonError};

use crate::digest::Digest;

/// Number of remembered signatures: those of 100 validators on some dozens of batches, in 256 KiB.
const SLOTS: usize = 1 << 13;

/// One cache for the process, because a signature's validity does not depend on the caller.
static CACHE: Mutex<SignatureCache> = Mutex::new(SignatureCache { slots: [Digest::ZERO; SLOTS] });

/// Names of signatures. Each name has only one possible slot, where a newer name replaces it.
struct SignatureCache {
    slots: [Digest; SLOTS],
}

/// Whether a signature is valid, by `check` or because it is in the cache. The parts are the key, the signature and the
/// message.
pub(crate) fn once(parts: [&[u8]; 3], check: impl FnOnce() -> bool) -> bool {
    // The first two parts have fixed lengths, so no other parts have this name.
    let name = Digest::tagged("slipstream/verified/1", &parts.concat());
    let locked = || CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if locked().has(&name) {
        return true;
    }
    let is_right = check();
    if is_right {
        locked().add(name);
    }
    is_right
}

/// Empties the cache, for benchmarks of signature checks.
#[doc(hidden)]
pub fn forget() {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner).slots.fill(Digest::ZERO);
}

impl SignatureCache {
    fn has(&self, name: &Digest) -> bool {
        self.slots[slot(name)] == *name
    }

    fn add(&mut self, name: Digest) {
        self.slots[slot(&name)] = name;
    }
}

fn slot(name: &Digest) -> usize {
    usize::from(u16::from_le_bytes([name.0[0], name.0[1]])) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a valid signature is not checked again, an invalid one is. A change of any part makes it another
    /// signature.
    #[test]
    fn what_was_right_is_not_checked_again() {
        let mut checks = 0;
        let mut once = |parts: [u8; 3], is_right: bool| {
            super::once(parts.each_ref().map(std::slice::from_ref), || {
                checks += 1;
                is_right
            })
        };
        let right = [1, 2, 3];
        assert_eq!([once(right, false), once(right, true), once(right, false)], [false, true, true]);
        assert!(![[9, 2, 3], [1, 9, 3], [1, 2, 9]].iter().any(|parts| once(*parts, false)));
        assert_eq!(checks, 5);
    }

    /// Goal: the cache does not grow, and a newer signature replaces an older one in the same slot.
    #[test]
    fn a_newer_one_replaces_an_older_one() {
        let mut verified = Box::new(SignatureCache { slots: [Digest::ZERO; SLOTS] });
        let [older, newer] = [1, 2].map(|last| {
            let mut name = Digest([7; 32]);
            name.0[31] = last;
            name
        });
        verified.add(older);
        assert!(verified.has(&older) && !verified.has(&newer));
        verified.add(newer);
        assert!(verified.has(&newer) && !verified.has(&older));
    }
}
