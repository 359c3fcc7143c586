//! [`Memory`]: remembers recent refusals, so that a transaction is refused again without the work.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    mem,
    time::Duration,
};

use alloy_primitives::B256;
use tokio::time::Instant;

use crate::pool::Refused;

/// Maximum number of hashes of one generation. Two generations exist, of 16 bytes a hash and the table's slack.
const GENERATION_MAX: usize = 65_536;
/// Age of a generation of refusals that no later state takes back.
const LASTING: Duration = Duration::from_secs(600);
/// Age of a generation of refusals that the next batch may take back.
const PASSING: Duration = Duration::from_secs(5);

/// The recent refusals.
#[derive(Debug)]
pub(super) struct Memory {
    lasting: Generations,
    passing: Generations,
    /// Keys the hashes, so that nobody can make them collide, or knows which ones are remembered.
    secret: RandomState,
}

#[derive(Debug)]
struct Generations {
    young: HashMap<u64, Refused>,
    old: HashMap<u64, Refused>,
    born: Instant,
    age: Duration,
}

impl Memory {
    pub(super) fn new(now: Instant) -> Memory {
        Memory {
            lasting: Generations::new(LASTING, now),
            passing: Generations::new(PASSING, now),
            secret: RandomState::new(),
        }
    }

    /// Remembers a refusal, if its reason stays true for a while.
    pub(super) fn insert(&mut self, hash: &B256, reason: Refused, now: Instant) {
        let key = self.secret.hash_one(hash);
        match reason {
            Refused::Malformed | Refused::Signature | Refused::NonceTooLow | Refused::Invalid => {
                self.lasting.insert(key, reason, now);
            }
            Refused::NonceTooHigh | Refused::Funds => self.passing.insert(key, reason, now),
            _ => {}
        }
    }

    /// Why the transaction was refused, if that is remembered.
    pub(super) fn get(&mut self, hash: &B256, now: Instant) -> Option<Refused> {
        let key = self.secret.hash_one(hash);
        self.lasting.get(key, now).or_else(|| self.passing.get(key, now))
    }
}

impl Generations {
    fn new(age: Duration, now: Instant) -> Generations {
        Generations { young: HashMap::new(), old: HashMap::new(), born: now, age }
    }

    fn turn(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.born);
        if elapsed >= self.age || self.young.len() >= GENERATION_MAX {
            self.old = mem::take(&mut self.young);
            if elapsed >= 2 * self.age {
                self.old.clear();
            }
            self.born = now;
        }
    }

    fn insert(&mut self, key: u64, reason: Refused, now: Instant) {
        self.turn(now);
        self.young.insert(key, reason);
    }

    fn get(&mut self, key: u64, now: Instant) -> Option<Refused> {
        self.turn(now);
        self.young.get(&key).or_else(|| self.old.get(&key)).copied()
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::U256;

    use super::*;

    /// Goal: lasting refusals are remembered for minutes, passing ones for seconds, others not at all. The memory stays
    /// bounded.
    #[test]
    fn memory_is_as_long_as_the_refusal_holds() {
        let begun = Instant::now();
        let mut memory = Memory::new(begun);
        let hash = |number: u64| B256::from(U256::from(number));
        let at = |seconds| begun + Duration::from_secs(seconds);
        for (number, reason) in [(1, Refused::Signature), (2, Refused::Funds), (3, Refused::Full)] {
            memory.insert(&hash(number), reason, begun);
        }
        let mut known = |seconds| [1, 2, 3].map(|number| memory.get(&hash(number), at(seconds)));
        assert_eq!(known(4), [Some(Refused::Signature), Some(Refused::Funds), None]);
        assert_eq!(known(15), [Some(Refused::Signature), None, None]);
        assert_eq!(known(1_199), [Some(Refused::Signature), None, None]);
        assert_eq!(known(1_801), [None, None, None]);
        for number in 0..200_000 {
            memory.insert(&hash(number), Refused::NonceTooLow, at(2_000));
        }
        assert!(memory.lasting.young.len() + memory.lasting.old.len() <= 2 * GENERATION_MAX);
        assert_eq!(memory.get(&hash(199_999), at(2_000)), Some(Refused::NonceTooLow));
    }
}
