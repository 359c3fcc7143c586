//! [`Summary`]: the effect of one block on the jump targets that lie on the stack.

use super::ENTRIES;
use crate::{
    blocks::Blocks,
    constants::{Constants, Operand},
    ssa::{Exit, Tracer},
};

/// A stack word, reduced to what jumps depend on.
#[derive(Clone, Copy)]
pub(super) enum Word {
    Entry(u16),
    Target(u32),
    Other,
}

/// The effect of a block on the jump targets on the stack.
pub(super) struct Summary {
    pub(super) taken: usize,
    pub(super) left: Vec<Word>,
    pub(super) jump: Option<Word>,
    pub(super) falls: Option<u32>,
    pub(super) fails: bool,
}

/// Traces a block and summarizes it.
pub(super) fn summarize(blocks: &Blocks<'_>, at: usize, constants: &mut Constants) -> Summary {
    let block = blocks.get(at);
    let mut tracer = Tracer::new(blocks, constants);
    let exit = tracer.block(block);
    tracer.trim();
    let word = |operand: Operand| match operand {
        Operand::Entry(depth) => Word::Entry(depth),
        Operand::Const(_) => {
            let pc = tracer.value(operand).and_then(|value| usize::try_from(value).ok());
            pc.and_then(|pc| blocks.jump_target(pc)).map_or(Word::Other, |at| Word::Target(at as u32))
        }
        _ => Word::Other,
    };
    // Compilers write all labels with one width. So in code of more than 256 bytes a PUSH1 is a number, even if it
    // equals a position.
    let is_long = blocks.code().len() > 256;
    let stack_word = |operand: Operand| match word(operand) {
        Word::Target(_) if is_long && tracer.is_narrow(operand) => Word::Other,
        word => word,
    };
    let next = || blocks.at(block.end).map(|at| at as u32);
    let (jump, falls) = match exit {
        Exit::Next => (None, next()),
        Exit::Jump(target) => (Some(word(target)), None),
        Exit::Branch { target, condition } => match tracer.value(condition) {
            Some(value) if value.is_zero() => (None, next()),
            Some(_) => (Some(word(target)), None),
            None => (Some(word(target)), next()),
        },
        _ => (None, None),
    };
    let fails = matches!(exit, Exit::Revert(..) | Exit::Invalid);
    // A jump to a constant position without a JUMPDEST fails too.
    let is_wild = |target| tracer.value(target).is_some() && matches!(word(target), Word::Other);
    let fails = fails || matches!(exit, Exit::Jump(target) if is_wild(target));
    let left = tracer.stack.iter().rev().take(ENTRIES).map(|operand| stack_word(*operand)).collect();
    Summary { taken: tracer.taken, left, jump, falls, fails }
}
