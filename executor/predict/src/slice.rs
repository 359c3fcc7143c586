//! [`Slice`]: the operations of each chain that a predictor needs (steps 7 to 9 of 12 of the source).
//!
//! The slice goes backwards to the arguments of operations that name a key, call, write memory that is read later, or
//! decide the control flow. The slice crosses chains through the stack entries that they take. Everything else is
//! dropped.

use alloy_primitives::map::HashMap;

use crate::{
    chain::{Chain, ChainExit},
    constants::Operand,
    opcode::is_effect,
};

/// Stack entries that are tracked across chains; deeper ones always count as needed.
const ENTRIES: usize = 64;
/// Maximum number of rounds to reach a fixed point; after them every entry counts as needed.
const ROUNDS_MAX: usize = 64;

/// The needed part of one chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Slice {
    /// Whether each operation is needed.
    pub(crate) ops: Vec<bool>,
    /// Whether each operation's result is needed.
    pub(crate) results: Vec<bool>,
    /// Whether each word that the chain leaves on the stack is needed, top last.
    pub(crate) stack: Vec<bool>,
    /// Entries that the chain or its successors take: a bit for each, the lowest for the top.
    entries: u64,
}

/// Slices all chains of a contract; `chains` comes from [`super::chain::chains`].
pub(crate) fn slices(chains: &HashMap<u32, Chain>) -> HashMap<u32, Slice> {
    let mut order: Vec<u32> = chains.keys().copied().collect();
    // Needs flow backwards, while code mostly runs forwards.
    order.sort_unstable_by(|a, b| b.cmp(a));
    let mut entries: HashMap<u32, u64> = order.iter().map(|at| (*at, 0)).collect();
    let mut is_settled = false;
    for _ in 0..ROUNDS_MAX {
        is_settled = true;
        for at in &order {
            let slice = slice(&chains[at], &entries);
            is_settled &= entries.insert(*at, slice.entries) == Some(slice.entries);
        }
        if is_settled {
            break;
        }
    }
    if !is_settled {
        entries.values_mut().for_each(|entries| *entries = u64::MAX);
    }
    order.iter().map(|at| (*at, slice(&chains[at], &entries))).collect()
}

fn slice(chain: &Chain, entries: &HashMap<u32, u64>) -> Slice {
    let after = needed_after(chain, entries);
    let is_needed = |depth: usize| depth >= ENTRIES || after >> depth & 1 == 1;
    let left = chain.stack.len();
    let mut slice = Slice {
        ops: chain.ops.iter().map(|op| is_effect(op.code)).collect(),
        results: vec![false; chain.ops.len()],
        stack: (0..left).map(|at| is_needed(left - 1 - at)).collect(),
        entries: 0,
    };
    let mut mark = Mark { results: &mut slice.results, entries: &mut slice.entries };
    // Entries that the chain leaves alone change their depth by `left - taken`.
    for depth in (left..ENTRIES).filter(|depth| is_needed(*depth)) {
        mark.operand(Operand::Entry((depth - left + chain.taken) as u16));
    }
    for (operand, _) in chain.stack.iter().zip(&slice.stack).filter(|(_, is_needed)| **is_needed) {
        mark.operand(*operand);
    }
    match chain.exit {
        ChainExit::Return(a, b) | ChainExit::Revert(a, b) => {
            mark.operand(a);
            mark.operand(b);
        }
        ChainExit::SelfDestruct(operand)
        | ChainExit::Jump { target: operand, .. }
        | ChainExit::Branch { condition: operand, .. } => mark.operand(operand),
        ChainExit::Stop | ChainExit::Invalid | ChainExit::Goto(_) => {}
    }
    for (at, op) in chain.ops.iter().enumerate().rev() {
        slice.ops[at] |= mark.results[at];
        if slice.ops[at] {
            op.args().iter().for_each(|arg| mark.operand(*arg));
        }
    }
    slice
}

/// The entries that the successors of this chain take.
fn needed_after(chain: &Chain, entries: &HashMap<u32, u64>) -> u64 {
    let of = |target: &u32| entries.get(target).copied().unwrap_or(0);
    match &chain.exit {
        ChainExit::Jump { known, .. } if known.is_empty() => u64::MAX,
        exit => {
            let branches = exit.branches().into_iter().flatten().fold(0, |all, target| all | of(&target));
            exit.targets().iter().fold(branches, |all, target| all | of(target))
        }
    }
}

struct Mark<'a> {
    results: &'a mut [bool],
    entries: &'a mut u64,
}

impl Mark<'_> {
    fn operand(&mut self, operand: Operand) {
        match operand {
            Operand::Op(number) => self.results[number as usize] = true,
            Operand::Entry(depth) if usize::from(depth) < ENTRIES => *self.entries |= 1 << depth,
            Operand::Entry(_) | Operand::Const(_) | Operand::Unknown => {}
        }
    }
}
