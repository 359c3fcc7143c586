//! [`chains`]: joins basic blocks into the runs of operations that make up a predictor.
//!
//! A block's trace continues into its only successor, if that successor has no other predecessor or is small enough to
//! copy. Copies of a compiler's small internal functions then end in a constant return address. Whole internal calls
//! then vanish into their callers, and constants fold through them.

use alloy_primitives::map::HashMap;

use crate::{
    blocks::Blocks,
    constants::{Constants, Operand},
    flow::Flow,
    ssa::{Exit, Op, Tracer},
};

/// Blocks of at most this many bytes of code are copied into each chain that leads to them.
const COPIED_BLOCK_BYTES_MAX: usize = 64;
/// Maximum bytes of code that one chain copies.
const COPIED_BYTES_MAX: usize = 512;
/// Operations after which a chain is not continued.
const CHAIN_OPS_MAX: usize = 2_000;
/// Blocks after which a chain is not continued.
const CHAIN_BLOCKS_MAX: usize = 128;
/// Maximum number of operations of all chains of a contract; later chains are left out. The limit is twice what 24 KiB of code can
/// hold, so only copying reaches it.
const OPS_MAX: usize = 50_000;

/// Operations that are entered only at the first and left only at the last.
pub(crate) struct Chain {
    /// Position of its first instruction in the code.
    pub(crate) pc: usize,
    pub(crate) ops: Vec<Op>,
    /// Number of stack entries that the chain takes.
    pub(crate) taken: usize,
    /// The operands that the chain leaves in place of those entries, top last.
    pub(crate) stack: Vec<Operand>,
    pub(crate) exit: ChainExit,
}

/// How control leaves a chain. Blocks are named by their index in [`Blocks`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ChainExit {
    /// The call ends without data.
    Stop,
    /// The call ends with `memory[offset..offset + length]`.
    Return(Operand, Operand),
    /// As `Return`, but the call's effects are undone.
    Revert(Operand, Operand),
    /// The call ends, and the balance goes to an account.
    SelfDestruct(Operand),
    /// The call fails.
    Invalid,
    /// Control continues in a block.
    Goto(u32),
    /// A jump to a target that only the run can determine.
    Jump {
        /// The computed target.
        target: Operand,
        /// Position of the jump.
        from: usize,
        /// The known targets among the blocks; empty if none is known.
        known: Vec<u32>,
    },
    /// Control continues in one of two blocks.
    Branch {
        /// The condition that decides.
        condition: Operand,
        /// The block for a condition other than zero.
        then: u32,
        /// The block for a condition of zero.
        otherwise: u32,
    },
}

impl ChainExit {
    /// The blocks that the chain may continue in; empty for a branch.
    pub(crate) fn targets(&self) -> &[u32] {
        match self {
            ChainExit::Goto(target) => std::slice::from_ref(target),
            ChainExit::Jump { known, .. } => known,
            _ => &[],
        }
    }

    /// Both targets of a branch.
    pub(crate) fn branches(&self) -> Option<[u32; 2]> {
        match self {
            ChainExit::Branch { then, otherwise, .. } => Some([*then, *otherwise]),
            _ => None,
        }
    }
}

/// The chains that are reachable from the start of the code, by the index of their first block.
pub(crate) fn chains(blocks: &Blocks<'_>, flow: &Flow, constants: &mut Constants) -> HashMap<u32, Chain> {
    let mut chains = HashMap::default();
    let mut pending = vec![0];
    let mut ops = 0;
    while let Some(start) = pending.pop() {
        if chains.contains_key(&start) || ops > OPS_MAX {
            continue;
        }
        let chain = chain(blocks, flow, constants, start);
        ops += chain.ops.len() + 1;
        pending.extend_from_slice(chain.exit.targets());
        pending.extend(chain.exit.branches().into_iter().flatten());
        chains.insert(start, chain);
    }
    chains
}

fn chain(blocks: &Blocks<'_>, flow: &Flow, constants: &mut Constants, start: u32) -> Chain {
    let mut tracer = Tracer::new(blocks, constants);
    let (mut at, mut inside, mut copied) = (start, vec![start], 0);
    let exit = loop {
        let exit = tracer.block(blocks.get(at as usize));
        let exit = resolved(blocks, flow, &tracer, at, exit);
        let ChainExit::Goto(next) = exit else { break exit };
        let block = blocks.get(next as usize);
        let bytes = block.end - block.start;
        let is_sole = flow.predecessors[next as usize] <= 1;
        let is_copied = bytes <= COPIED_BLOCK_BYTES_MAX && copied + bytes <= COPIED_BYTES_MAX;
        let has_room = tracer.ops.len() < CHAIN_OPS_MAX && inside.len() < CHAIN_BLOCKS_MAX;
        if !(is_sole || is_copied) || !has_room || inside.contains(&next) {
            break exit;
        }
        copied += if is_sole { 0 } else { bytes };
        inside.push(next);
        at = next;
    };
    tracer.trim();
    let Tracer { ops, stack, taken, .. } = tracer;
    Chain { pc: blocks.get(start as usize).start, ops, taken, stack, exit }
}

/// Names the blocks that an exit leads to. Paths that only fail become `Invalid`.
fn resolved(blocks: &Blocks<'_>, flow: &Flow, tracer: &Tracer<'_, '_>, at: u32, exit: Exit) -> ChainExit {
    let block = blocks.get(at as usize);
    let goto = |block: Option<usize>| match block {
        Some(block) if !flow.fails[block] => ChainExit::Goto(block as u32),
        _ => ChainExit::Invalid,
    };
    let next = || match blocks.at(block.end) {
        Some(next) => goto(Some(next)),
        None => ChainExit::Stop,
    };
    let jump = |target| match tracer.value(target) {
        Some(pc) => goto(usize::try_from(pc).ok().and_then(|pc| blocks.jump_target(pc))),
        None => {
            let known = flow.successors[at as usize].iter().filter(|next| !flow.fails[**next as usize]);
            ChainExit::Jump { target, from: block.end - 1, known: known.copied().collect() }
        }
    };
    match exit {
        Exit::Stop => ChainExit::Stop,
        Exit::Return(offset, length) => ChainExit::Return(offset, length),
        Exit::Revert(offset, length) => ChainExit::Revert(offset, length),
        Exit::SelfDestruct(heir) => ChainExit::SelfDestruct(heir),
        Exit::Invalid => ChainExit::Invalid,
        Exit::Next => next(),
        Exit::Jump(target) => jump(target),
        Exit::Branch { target, condition } => match (tracer.value(condition), jump(target), next()) {
            (Some(value), _, next) if value.is_zero() => next,
            (Some(_), then, _) => then,
            (None, ChainExit::Invalid, next) => next,
            (None, then, ChainExit::Invalid) => then,
            (None, ChainExit::Goto(then), ChainExit::Goto(otherwise)) => {
                ChainExit::Branch { condition, then, otherwise }
            }
            // No compiler makes a branch with a computed target, so only the known path is followed.
            (None, _, next) => next,
        },
    }
}
