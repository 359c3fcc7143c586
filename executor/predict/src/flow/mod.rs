//! [`Flow`]: which block follows which (step 5 of 12 of the source), and which blocks always fail.
//!
//! A jump's target is a constant of its block, or a stack entry that earlier blocks filled: the return address of a
//! compiler's internal function. For every block and every entry near the top, the analysis collects the jump targets
//! that may lie there, over all paths into the block. The sets leave out words that are no jump target. So a jump whose
//! target may also come from an unknown source looks resolved, and its predictor may be wrong. Jumps seen during
//! execution are added.
//!
//! The source prunes rare blocks. This analysis prunes failing blocks: it stops at a block from which every path
//! reverts. So a predictor need not compute the condition for entering that block. Transactions in batches mostly
//! succeed.

mod sets;
mod summary;

use std::collections::VecDeque;

use alloy_primitives::map::{HashMap, HashSet};

use self::{
    sets::Sets,
    summary::{Summary, Word, summarize},
};
use crate::{blocks::Blocks, constants::Constants};

/// Number of stack entries that are tracked for each block; internal calls nest less deeply. Deeper words never count
/// as jump targets.
const ENTRIES: usize = 48;
/// Maximum number of jump targets in one set; further ones are left out.
const TARGETS_MAX: usize = 512;
/// Maximum number of times that a block's effect is passed on to a successor. Most contracts need a few thousand.
const STEPS_MAX: usize = 60_000;

/// A jump that execution made, as positions in the code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JumpEdge {
    /// Position of the JUMP or JUMPI in the code.
    pub from: u32,
    /// Position of the JUMPDEST in the code.
    pub to: u32,
}

/// The known control flow.
pub(crate) struct Flow {
    /// The successors of each block.
    pub(crate) successors: Vec<Vec<u32>>,
    /// Whether each block ends in a jump to an unknown target.
    pub(crate) is_unresolved: Vec<bool>,
    /// Number of blocks leading to each block, not counting those that always fail.
    pub(crate) predecessors: Vec<u32>,
    /// Marks the blocks that always fail.
    pub(crate) fails: Vec<bool>,
}

impl Flow {
    /// Analyses the blocks; `observed` are jumps that execution made.
    pub(crate) fn new(blocks: &Blocks<'_>, observed: &[JumpEdge]) -> Flow {
        let mut constants = Constants::default();
        let summarize = |at| summarize(blocks, at, &mut constants);
        let summaries: Vec<_> = (0..blocks.len()).map(summarize).collect();
        let mut seen: HashMap<u32, Vec<u32>> = HashMap::default();
        for edge in observed {
            let from = blocks_holding(blocks, edge.from as usize);
            if let (Some(from), Some(to)) = (from, blocks.jump_target(edge.to as usize)) {
                seen.entry(from).or_default().push(to as u32);
            }
        }
        let mut search = Search::new(&summaries, seen);
        search.run();
        search.flow()
    }
}

fn blocks_holding(blocks: &Blocks<'_>, pc: usize) -> Option<u32> {
    (0..blocks.len())
        .find(|at| (blocks.get(*at).start..blocks.get(*at).end).contains(&pc))
        .map(|at| at as u32)
}

/// The entries of a block, top first: for each the number of a set of labels.
type Entries = [u32; ENTRIES];

/// Flag of a label that means the return targets of the function that begins at a block, instead of the block itself.
const RETURN: u32 = 1 << 31;
/// Flag of a label that is no jump target: it marks the first stack word that belongs to the caller.
const BASE: u32 = 1 << 30;

struct Search<'a> {
    summaries: &'a [Summary],
    observed: HashMap<u32, Vec<u32>>,
    sets: Sets,
    /// For each block that was reached, the possible labels of each entry.
    entries: Vec<Option<Entries>>,
    /// For each function, the return labels that its callers passed.
    callers: HashMap<u32, Vec<u32>>,
    /// For each return address, the entries below it on the caller's stack.
    below: HashMap<u32, Entries>,
    /// For each function, the blocks that return from it; for each return address, the blocks that return to it. These
    /// blocks run again when more is known about the function or address.
    returners: HashMap<u32, Vec<u32>>,
    pending: VecDeque<u32>,
    is_pending: Vec<bool>,
}

impl<'a> Search<'a> {
    fn new(summaries: &'a [Summary], observed: HashMap<u32, Vec<u32>>) -> Self {
        let mut entries = vec![None; summaries.len()];
        entries[0] = Some([0; ENTRIES]);
        let mut is_pending = vec![false; summaries.len()];
        is_pending[0] = true;
        Self {
            summaries,
            observed,
            sets: Sets::new(),
            entries,
            callers: HashMap::default(),
            below: HashMap::default(),
            returners: HashMap::default(),
            pending: VecDeque::from([0]),
            is_pending,
        }
    }

    fn run(&mut self) {
        let mut steps = 0;
        while let Some(at) = self.pending.pop_front()
            && steps <= STEPS_MAX
        {
            self.is_pending[at as usize] = false;
            let Some(before) = self.entries[at as usize] else { continue };
            let summary = &self.summaries[at as usize];
            let after = self.after(summary, &before);
            if let Some(next) = summary.falls {
                self.enter(next, &after);
            }
            for next in self.observed.get(&at).cloned().unwrap_or_default() {
                self.enter(next, &after);
            }
            steps += 1 + match summary.jump {
                Some(Word::Target(target)) => self.call(target, after),
                Some(Word::Entry(entry)) => self.go_back(at, usize::from(entry), &before, &after),
                Some(Word::Other) | None => 0,
            };
        }
    }

    fn after(&mut self, summary: &Summary, before: &Entries) -> Entries {
        let mut after = [0; ENTRIES];
        for (depth, slot) in after.iter_mut().enumerate() {
            *slot = match summary.left.get(depth) {
                Some(Word::Entry(entry)) => before.get(usize::from(*entry)).copied().unwrap_or(0),
                Some(Word::Target(target)) => self.sets.number(vec![*target]),
                Some(Word::Other) => 0,
                None => before.get(depth - summary.left.len() + summary.taken).copied().unwrap_or(0),
            };
        }
        after
    }

    /// Jumps to a known block. A jump target on the stack is presumably the block's return address. The block sees a
    /// label instead of that address, so the sets do not grow with the number of callers. The block sees only where the
    /// entries below the address begin.
    fn call(&mut self, to: u32, mut after: Entries) -> usize {
        let top = after.iter().position(|set| self.sets.any(*set, |label| label & BASE == 0));
        let top = top.filter(|at| self.sets.any(after[*at], |label| label & (RETURN | BASE) == 0));
        if let Some(at) = top {
            let mut below = [0; ENTRIES];
            below[..ENTRIES - at - 1].copy_from_slice(&after[at + 1..]);
            for label in self.sets.get(after[at]).to_vec() {
                self.add_caller(to, label, &below);
            }
            after[at..].fill(0);
            after[at] = self.sets.number(vec![to | RETURN]);
            if let Some(base) = after.get_mut(at + 1) {
                *base = self.sets.number(vec![to | BASE]);
            }
        }
        self.enter(to, &after);
        1
    }

    fn add_caller(&mut self, function: u32, label: u32, below: &Entries) {
        let known = self.below.entry(label).or_insert([0; ENTRIES]);
        if join(&mut self.sets, known, below) {
            self.run_again(label);
        }
        let callers = self.callers.entry(function).or_default();
        if !callers.contains(&label) {
            callers.push(label);
            self.run_again(function | RETURN);
        }
    }

    fn run_again(&mut self, label: u32) {
        for at in self.returners.get(&label).into_iter().flatten() {
            if !std::mem::replace(&mut self.is_pending[*at as usize], true) {
                self.pending.push_back(*at);
            }
        }
    }

    /// Jumps to the target in an entry. The function's results are the entries above its base. Below the results comes
    /// the stack of the caller with the target's label.
    fn go_back(&mut self, at: u32, entry: usize, before: &Entries, after: &Entries) -> usize {
        let base = after.iter().position(|set| self.sets.any(*set, |label| label & BASE != 0));
        let labels = self.labels(before.get(entry).copied().unwrap_or(0));
        for label in &labels {
            let returners = self.returners.entry(*label).or_default();
            if !returners.contains(&at) {
                returners.push(at);
            }
            if label & RETURN != 0 {
                continue;
            }
            let mut stack = *after;
            if let (Some(base), Some(below)) = (base, self.below.get(label)) {
                stack[base..].copy_from_slice(&below[..ENTRIES - base]);
            }
            self.enter(*label, &stack);
        }
        labels.len()
    }

    /// The labels of a set, followed through the callers of its functions, transitively.
    fn labels(&self, set: u32) -> Vec<u32> {
        let mut labels = self.sets.get(set).to_vec();
        labels.retain(|label| label & BASE == 0);
        let mut seen: HashSet<u32> = labels.iter().copied().collect();
        let mut next = 0;
        while let Some(label) = labels.get(next).copied() {
            next += 1;
            if label & RETURN != 0 && labels.len() < TARGETS_MAX {
                let callers = self.callers.get(&(label & !RETURN)).into_iter().flatten();
                labels.extend(callers.filter(|label| **label & BASE == 0 && seen.insert(**label)));
            }
        }
        labels
    }

    fn successors(&self, at: u32, before: &Entries) -> Vec<u32> {
        let summary = &self.summaries[at as usize];
        let mut successors: Vec<u32> = summary.falls.into_iter().collect();
        match summary.jump {
            Some(Word::Target(target)) => successors.push(target),
            Some(Word::Entry(entry)) => {
                let labels = self.labels(before.get(usize::from(entry)).copied().unwrap_or(0));
                successors.extend(labels.into_iter().filter(|label| label & RETURN == 0));
            }
            Some(Word::Other) | None => {}
        }
        successors.extend(self.observed.get(&at).into_iter().flatten());
        successors
    }

    fn enter(&mut self, at: u32, with: &Entries) {
        let is_changed = match &mut self.entries[at as usize] {
            slot @ None => {
                *slot = Some(*with);
                true
            }
            Some(entries) => join(&mut self.sets, entries, with),
        };
        if is_changed && !std::mem::replace(&mut self.is_pending[at as usize], true) {
            self.pending.push_back(at);
        }
    }

    fn flow(self) -> Flow {
        let count = self.summaries.len();
        let mut flow = Flow {
            successors: vec![Vec::new(); count],
            is_unresolved: vec![false; count],
            predecessors: vec![0; count],
            fails: self.summaries.iter().map(|summary| summary.fails).collect(),
        };
        for at in 0..count as u32 {
            let Some(before) = &self.entries[at as usize] else { continue };
            let mut successors = self.successors(at, before);
            successors.sort_unstable();
            successors.dedup();
            let summary = &self.summaries[at as usize];
            let fallen = usize::from(summary.falls.is_some());
            flow.is_unresolved[at as usize] = match summary.jump {
                Some(Word::Target(_)) | None => false,
                Some(Word::Entry(_) | Word::Other) => !summary.fails && successors.len() <= fallen,
            };
            flow.successors[at as usize] = successors;
        }
        flow.find_failing();
        for (at, successors) in flow.successors.iter().enumerate() {
            if !flow.fails[at] {
                successors.iter().for_each(|next| flow.predecessors[*next as usize] += 1);
            }
        }
        flow
    }
}

/// Adds the sets of `from` to those of `into`. Returns whether any set of `into` grew.
fn join(sets: &mut Sets, into: &mut Entries, from: &Entries) -> bool {
    let mut is_changed = false;
    for (into, from) in into.iter_mut().zip(from) {
        let union = sets.union(*into, *from);
        is_changed |= union != *into;
        *into = union;
    }
    is_changed
}

impl Flow {
    fn find_failing(&mut self) {
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); self.fails.len()];
        for (at, successors) in self.successors.iter().enumerate() {
            successors.iter().for_each(|next| before[*next as usize].push(at as u32));
        }
        let mut pending: Vec<u32> =
            (0..self.fails.len() as u32).filter(|at| self.fails[*at as usize]).collect();
        while let Some(failing) = pending.pop() {
            for at in &before[failing as usize] {
                let index = *at as usize;
                let only_fails = || self.successors[index].iter().all(|next| self.fails[*next as usize]);
                if !self.fails[index] && !self.is_unresolved[index] && only_fails() {
                    self.fails[index] = true;
                    pending.push(*at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(code: &[u8], observed: &[JumpEdge]) -> Flow {
        Flow::new(&Blocks::new(code), observed)
    }

    /// Goal: a function that is called from two places returns to both, through the address on the stack.
    #[test]
    fn return_addresses_are_followed_through_the_stack() {
        // 0: PUSH1 5 PUSH1 14 JUMP; 5: JUMPDEST PUSH1 11 PUSH1 14 JUMP; 11: JUMPDEST STOP; 14: JUMPDEST CALLER POP JUMP
        let code = [
            0x60, 5, 0x60, 14, 0x56, 0x5b, 0x60, 11, 0x60, 14, 0x56, 0x5b, 0x00, 0xfe, 0x5b, 0x33, 0x50, 0x56,
        ];
        let flow = flow(&code, &[]);
        assert_eq!(flow.successors, [&[3][..], &[3], &[], &[1, 2]]);
        assert!(flow.is_unresolved.iter().all(|is_unresolved| !is_unresolved));
    }

    /// Goal: the analysis finds the blocks from which every path reverts, and no block with another path.
    #[test]
    fn only_what_cannot_succeed_fails() {
        // 0: CALLER PUSH1 5 JUMPI; 4: STOP; 5: JUMPDEST PUSH1 9 JUMP; 9: JUMPDEST PUSH0 PUSH0 REVERT
        let code = [0x33, 0x60, 5, 0x57, 0x00, 0x5b, 0x60, 9, 0x56, 0x5b, 0x5f, 0x5f, 0xfd];
        assert_eq!(flow(&code, &[]).fails, [false, false, true, true]);
    }

    /// Goal: a jump to a computed target stays unresolved until an execution is observed to make it.
    #[test]
    fn observed_jumps_resolve_what_analysis_cannot() {
        // 0: PUSH0 CALLDATALOAD JUMP; 3: JUMPDEST STOP
        let code = [0x5f, 0x35, 0x56, 0x5b, 0x00];
        assert_eq!(flow(&code, &[]).is_unresolved, [true, false]);
        let seen = flow(&code, &[JumpEdge { from: 2, to: 3 }]);
        assert_eq!((seen.is_unresolved[0], &seen.successors[0]), (false, &vec![1]));
        let nonsense = [JumpEdge { from: 900, to: 3 }, JumpEdge { from: 2, to: 4 }];
        assert_eq!(flow(&code, &nonsense).is_unresolved, [true, false]);
    }
}
