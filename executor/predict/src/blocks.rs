//! [`Blocks`]: bytecode cut into basic blocks (step 3 of 12 of the source).

use crate::opcode::*;

/// A basic block: instructions that are entered only at the first and left only at the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    /// Position of its first instruction.
    pub(crate) start: usize,
    /// Position after its last instruction.
    pub(crate) end: usize,
}

/// The basic blocks of a contract, in the order of the code.
pub(crate) struct Blocks<'a> {
    code: &'a [u8],
    blocks: Vec<Block>,
}

/// An instruction and its position.
#[derive(Clone, Copy)]
pub(crate) struct Instruction<'a> {
    pub(crate) pc: usize,
    pub(crate) code: u8,
    /// The bytes that a PUSH pushes, up to the code's end.
    pub(crate) push: &'a [u8],
}

impl<'a> Blocks<'a> {
    /// Cuts `code` into blocks. Drops code between a block's end and the next JUMPDEST, because that code can never
    /// run.
    pub(crate) fn new(code: &'a [u8]) -> Self {
        let mut blocks: Vec<Block> = Vec::new();
        let mut start = Some(0);
        for instruction in instructions(code, 0, code.len()) {
            let Instruction { pc, code: op, push } = instruction;
            if op == JUMPDEST
                && let Some(begun) = start.replace(pc)
                && begun < pc
            {
                blocks.push(Block { start: begun, end: pc });
            }
            let end = pc + 1 + push.len();
            if let Some(begun) = start
                && ends_block(op)
            {
                blocks.push(Block { start: begun, end });
                start = (op == JUMPI).then_some(end);
            }
        }
        // Running off the end of the code is a STOP, so an empty block at the end means STOP too.
        if let Some(begun) = start {
            blocks.push(Block { start: begun, end: code.len() });
        }
        Self { code, blocks }
    }

    /// The number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The block at an index.
    pub(crate) fn get(&self, index: usize) -> Block {
        self.blocks[index]
    }

    /// The whole code.
    pub(crate) fn code(&self) -> &'a [u8] {
        self.code
    }

    /// The block that begins at a position.
    pub(crate) fn at(&self, pc: usize) -> Option<usize> {
        self.blocks.binary_search_by_key(&pc, |block| block.start).ok()
    }

    /// The block that a jump to `pc` enters. A jump may only go to a JUMPDEST that is an instruction of its own.
    pub(crate) fn jump_target(&self, pc: usize) -> Option<usize> {
        (self.code.get(pc) == Some(&JUMPDEST)).then(|| self.at(pc)).flatten()
    }

    /// The instructions of a block.
    pub(crate) fn instructions(&self, block: Block) -> impl Iterator<Item = Instruction<'a>> + use<'a> {
        instructions(self.code, block.start, block.end)
    }
}

fn instructions(code: &[u8], from: usize, to: usize) -> impl Iterator<Item = Instruction<'_>> {
    let mut pc = from;
    std::iter::from_fn(move || {
        let op = *code[..to].get(pc)?;
        let length = if (PUSH0..=PUSH32).contains(&op) { usize::from(op - PUSH0) } else { 0 };
        let push = &code[pc + 1..code.len().min(pc + 1 + length)];
        let instruction = Instruction { pc, code: op, push };
        pc += 1 + length;
        Some(instruction)
    })
}

fn ends_block(code: u8) -> bool {
    let continues = plain_arity(code).is_some()
        || matches!(code, POP | PC | CODESIZE | JUMPDEST | PUSH0..=PUSH32 | DUP1..=SWAP16 | LOG0..=LOG4);
    !continues
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(code: &[u8]) -> Vec<(usize, usize)> {
        let blocks = Blocks::new(code);
        blocks.blocks.iter().map(|block| (block.start, block.end)).collect()
    }

    /// Goal: blocks begin at JUMPDESTs and after JUMPIs, and end at jumps and stops; dead code belongs to no block.
    #[test]
    fn blocks_end_where_control_may_leave() {
        // PUSH1 6 JUMPI | STOP | STOP(dead) STOP(dead) JUMPDEST PC STOP
        assert_eq!(cut(&[0x60, 6, 0x57, 0x00, 0x00, 0x00, 0x5b, 0x58, 0x00]), [(0, 3), (3, 4), (6, 9)]);
        assert_eq!(cut(&[0x58, 0x5b, 0x58]), [(0, 1), (1, 3)], "falling into a JUMPDEST ends a block");
        assert_eq!(cut(&[]), [(0, 0)], "empty code is one block that stops");
        assert_eq!(cut(&[0x0c, 0x58]), [(0, 1)], "an undefined instruction ends the code");
    }

    /// Goal: a 0x5b inside a PUSH is no jump target, and a PUSH cut off by the code's end is still read.
    #[test]
    fn bytes_of_a_push_are_not_instructions() {
        let code = [0x61, 0x5b, 0x5b, 0x5b, 0x7f, 0x5b];
        let blocks = Blocks::new(&code);
        assert_eq!(cut(&code), [(0, 3), (3, 6)]);
        assert_eq!((1..3).filter_map(|pc| blocks.jump_target(pc)).count(), 0);
        assert_eq!(blocks.jump_target(3), Some(1));
        assert_eq!(blocks.jump_target(5), None);
        assert_eq!(blocks.jump_target(0), None, "a block's start that is no JUMPDEST");
        assert_eq!(blocks.jump_target(usize::MAX), None);
    }
}
