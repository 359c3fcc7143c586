//! [`Sets`]: interned sets of jump targets. Equal sets share memory, and each union is computed once.

use alloy_primitives::map::HashMap;

use super::TARGETS_MAX;

/// Maximum number of sets of jump targets in one analysis, to bound its memory.
const SETS_MAX: usize = 65_536;

/// Sets of blocks, each stored once and named by a number; number 0 is the empty set.
pub(super) struct Sets {
    sets: Vec<Vec<u32>>,
    numbers: HashMap<Vec<u32>, u32>,
    unions: HashMap<(u32, u32), u32>,
}

impl Sets {
    /// Creates a collection that holds only the empty set.
    pub(super) fn new() -> Sets {
        let mut sets = Sets { sets: Vec::new(), numbers: HashMap::default(), unions: HashMap::default() };
        sets.number(Vec::new());
        sets
    }

    /// The members of a set.
    pub(super) fn get(&self, set: u32) -> &[u32] {
        &self.sets[set as usize]
    }

    pub(super) fn any(&self, set: u32, is_meant: impl Fn(u32) -> bool) -> bool {
        self.get(set).iter().any(|label| is_meant(*label))
    }

    pub(super) fn number(&mut self, set: Vec<u32>) -> u32 {
        if let Some(number) = self.numbers.get(&set) {
            return *number;
        }
        if self.sets.len() >= SETS_MAX {
            return 0;
        }
        let number = self.sets.len() as u32;
        self.sets.push(set.clone());
        self.numbers.insert(set, number);
        number
    }

    pub(super) fn union(&mut self, a: u32, b: u32) -> u32 {
        if a == b || b == 0 {
            return a;
        }
        if a == 0 {
            return b;
        }
        if let Some(union) = self.unions.get(&(a, b)) {
            return *union;
        }
        let mut both = self.sets[a as usize].clone();
        both.extend_from_slice(&self.sets[b as usize]);
        both.sort_unstable();
        both.dedup();
        // A full set stays as it is, so that the sets cannot grow for ever.
        let union = if both.len() > TARGETS_MAX { a } else { self.number(both) };
        let union = if union == 0 { a } else { union };
        self.unions.insert((a, b), union);
        union
    }
}
