//! [`Tracer`]: turns stack code into values (step 4 of 12 of the source), and folds constants on the way (step 6).
//!
//! A chain of basic blocks becomes a list of operations. Their arguments are constants, earlier results, or *entries*:
//! words below the chain on the stack, counted from the top. Entries are the parameters of the chain. PUSH, DUP, SWAP
//! and POP vanish; so do LOG and the gas of a call, which name no key.
//!
//! Memory is tracked where addresses are constant. So the free memory pointer and the scratch space where Solidity
//! hashes mapping keys become plain values. A write to an unknown address is assumed to lie above both. That is true of
//! compiled code; for other code, the predictor may be wrong.

use alloy_primitives::{U256, map::HashMap};

use crate::{
    blocks::{Block, Blocks},
    constants::{Constants, Operand},
    fold::{FOLDED_ARGS_MAX, fold},
    opcode::*,
};

/// Number of arguments of the widest operation: a call without its gas.
pub(crate) const ARGS_MAX: usize = 6;
/// Maximum number of stack entries that a chain may take: the EVM's own limit.
const ENTRIES_MAX: usize = 1024;
/// Maximum number of words of memory that a chain tracks; more would make a hostile contract's analysis quadratic.
const KNOWN_WORDS_MAX: usize = 32;
/// Compilers keep the scratch space and the free memory pointer below this address; see the module.
const FREE_MEMORY: u64 = 0x60;

/// An operation of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Op {
    /// Its opcode.
    pub(crate) code: u8,
    args: [Operand; ARGS_MAX],
    len: u8,
}

impl Op {
    fn new(code: u8, args: &[Operand]) -> Self {
        let mut padded = [Operand::Unknown; ARGS_MAX];
        padded[..args.len()].copy_from_slice(args);
        Self { code, args: padded, len: args.len() as u8 }
    }

    /// Its arguments, from the top of the stack.
    pub(crate) fn args(&self) -> &[Operand] {
        &self.args[..usize::from(self.len)]
    }
}

/// How control leaves a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// The call ends without data.
    Stop,
    /// The call ends with `memory[offset..offset + length]`.
    Return(Operand, Operand),
    /// As `Return`, but the call's effects are undone.
    Revert(Operand, Operand),
    /// The call ends, and the balance goes to an account.
    SelfDestruct(Operand),
    /// The instruction is unknown, or the stack does not fit.
    Invalid,
    /// Control continues after the block.
    Next,
    /// A jump.
    Jump(Operand),
    /// A jump if the condition is not zero; otherwise control continues after the block.
    Branch {
        /// The target of the jump.
        target: Operand,
        /// The condition that decides.
        condition: Operand,
    },
}

/// Traces a chain of blocks, one after the other.
pub(crate) struct Tracer<'a, 'c> {
    blocks: &'a Blocks<'a>,
    constants: &'c mut Constants,
    /// The operations so far.
    pub(crate) ops: Vec<Op>,
    /// The operands that the chain leaves above the entries that it did not take, top last.
    pub(crate) stack: Vec<Operand>,
    /// Number of entries that the chain took.
    pub(crate) taken: usize,
    known: Vec<(u64, Operand)>,
    seen: HashMap<(u8, [Operand; FOLDED_ARGS_MAX]), u32>,
}

impl<'a, 'c> Tracer<'a, 'c> {
    pub(crate) fn new(blocks: &'a Blocks<'a>, constants: &'c mut Constants) -> Self {
        Self {
            blocks,
            constants,
            ops: Vec::new(),
            stack: Vec::new(),
            taken: 0,
            known: Vec::new(),
            seen: HashMap::default(),
        }
    }

    /// The value of an operand that is constant.
    pub(crate) fn value(&self, operand: Operand) -> Option<U256> {
        self.constants.value(operand)
    }

    /// Whether an operand is a constant of a PUSH1.
    pub(crate) fn is_narrow(&self, operand: Operand) -> bool {
        self.constants.is_narrow(operand)
    }

    /// Traces one block and returns how control leaves it.
    pub(crate) fn block(&mut self, block: Block) -> Exit {
        for instruction in self.blocks.instructions(block) {
            if self.taken > ENTRIES_MAX {
                return Exit::Invalid;
            }
            let code = instruction.code;
            match code {
                PUSH0..=PUSH32 => {
                    let mut bytes = [0; 32];
                    let length = usize::from(code - PUSH0);
                    bytes[32 - length..][..instruction.push.len()].copy_from_slice(instruction.push);
                    let value = U256::from_be_bytes(bytes);
                    self.stack.push(self.constants.pushed(value, length < 2));
                }
                DUP1..=DUP16 => {
                    let operand = *self.slot(usize::from(code - DUP1));
                    self.stack.push(operand);
                }
                SWAP1..=SWAP16 => {
                    let depth = usize::from(code - SWAP1) + 1;
                    self.slot(depth);
                    let top = self.stack.len() - 1;
                    self.stack.swap(top, top - depth);
                }
                POP => {
                    self.pop();
                }
                LOG0..=LOG4 => (0..usize::from(code - LOG0) + 2).for_each(|_| {
                    self.pop();
                }),
                JUMPDEST => {}
                PC => self.push_value(U256::from(instruction.pc)),
                CODESIZE => self.push_value(U256::from(self.blocks.code().len())),
                _ if plain_arity(code).is_some() => self.plain(code),
                _ => return self.exit(code),
            }
        }
        Exit::Next
    }

    fn exit(&mut self, code: u8) -> Exit {
        match code {
            STOP => Exit::Stop,
            RETURN => Exit::Return(self.pop(), self.pop()),
            REVERT => Exit::Revert(self.pop(), self.pop()),
            SELFDESTRUCT => Exit::SelfDestruct(self.pop()),
            JUMP => Exit::Jump(self.pop()),
            JUMPI => {
                let (target, condition) = (self.pop(), self.pop());
                Exit::Branch { target, condition: self.without_double_not(condition) }
            }
            _ => Exit::Invalid,
        }
    }

    /// Drops the entries that were read but not moved.
    pub(crate) fn trim(&mut self) {
        let kept = self.stack.iter().take(self.taken).enumerate();
        let untouched = kept
            .take_while(|(above, operand)| **operand == Operand::Entry((self.taken - 1 - above) as u16))
            .count();
        self.stack.drain(..untouched);
        self.taken -= untouched;
    }

    fn plain(&mut self, code: u8) {
        let (args, has_result) = operation_arity(code);
        if is_call(code) {
            // Drops the gas, which decides nothing that can be predicted.
            self.pop();
        }
        let mut taken = [Operand::Unknown; ARGS_MAX];
        taken[..args].fill_with(|| self.pop());
        let result = self.operation(code, &taken[..args]);
        if has_result {
            self.stack.push(result);
        }
    }

    fn operation(&mut self, code: u8, args: &[Operand]) -> Operand {
        match (code, args) {
            (MLOAD, [at]) => {
                if let Some(word) = self.known_word(*at) {
                    return word;
                }
            }
            (KECCAK256, [at, length]) => {
                if let Some(hash) = self.hash_of_known(*at, *length) {
                    return hash;
                }
            }
            _ => {}
        }
        if is_pure(code) {
            return self.pure(code, args);
        }
        let result = self.append(Op::new(code, args));
        match (code, args) {
            (MLOAD, [at]) => self.know(*at, result),
            _ => self.note_writes(code, args),
        }
        result
    }

    fn pure(&mut self, code: u8, args: &[Operand]) -> Operand {
        if let Some(operand) = self.simplified(code, args) {
            return operand;
        }
        let mut values = [U256::ZERO; FOLDED_ARGS_MAX];
        let are_known = args
            .iter()
            .zip(&mut values)
            .all(|(operand, slot)| self.constants.value(*operand).map(|value| *slot = value).is_some());
        if are_known && let Some(value) = fold(code, &values[..args.len()]) {
            return self.constants.operand(value);
        }
        let mut key = [Operand::Unknown; FOLDED_ARGS_MAX];
        key[..args.len()].copy_from_slice(args);
        if let Some(same) = self.seen.get(&(code, key)) {
            return Operand::Op(*same);
        }
        let result = self.append(Op::new(code, args));
        if let Operand::Op(number) = result {
            self.seen.insert((code, key), number);
        }
        result
    }

    /// Applies the few identities that are frequent in compilers' output.
    fn simplified(&self, code: u8, args: &[Operand]) -> Option<Operand> {
        let [a, b] = *args else { return None };
        let (left, right) = (self.value(a), self.value(b));
        match code {
            ADD | OR | XOR if left == Some(U256::ZERO) => Some(b),
            ADD | SUB | OR | XOR if right == Some(U256::ZERO) => Some(a),
            SHL | SHR if left == Some(U256::ZERO) => Some(b),
            MUL if left == Some(U256::from(1)) => Some(b),
            MUL | DIV if right == Some(U256::from(1)) => Some(a),
            AND if self.fits(a, right?) => Some(a),
            _ => None,
        }
        .or_else(|| (code == AND && self.fits(b, left?)).then_some(b))
    }

    /// Whether an operand stays the same under `mask`. Compilers mask addresses again and again.
    fn fits(&self, operand: Operand, mask: U256) -> bool {
        let Operand::Op(number) = operand else { return false };
        let op = &self.ops[number as usize];
        let address_mask = U256::MAX >> 96;
        match op.code {
            ADDRESS | CALLER | ORIGIN | COINBASE => mask == address_mask,
            ISZERO | EQ | LT | GT | SLT | SGT => mask.bit(0),
            AND => op.args().iter().any(|arg| self.value(*arg) == Some(mask)),
            _ => false,
        }
    }

    /// Strips double negations: `ISZERO(ISZERO(x))` decides a branch as `x` does.
    fn without_double_not(&self, condition: Operand) -> Operand {
        let negated = |operand| match operand {
            Operand::Op(number) if self.ops[number as usize].code == ISZERO => {
                Some(self.ops[number as usize].args[0])
            }
            _ => None,
        };
        let mut condition = condition;
        while let Some(inner) = negated(condition).and_then(negated) {
            condition = inner;
        }
        condition
    }

    fn known_word(&self, at: Operand) -> Option<Operand> {
        let at = self.constants.offset(at)?;
        self.known.iter().find(|(offset, _)| *offset == at).map(|(_, word)| *word)
    }

    fn hash_of_known(&mut self, at: Operand, length: Operand) -> Option<Operand> {
        let length = self.constants.offset(length)?;
        let first = self.known_word(at)?;
        if length == 32 {
            return Some(self.pure(HASH1, &[first]));
        }
        let second = self.constants.offset(at)?.checked_add(32)?;
        let (_, second) = *self.known.iter().find(|(offset, _)| length == 64 && *offset == second)?;
        Some(self.pure(HASH2, &[first, second]))
    }

    fn note_writes(&mut self, code: u8, args: &[Operand]) {
        let word = self.constants.operand(U256::from(32));
        match (code, args) {
            (MSTORE, [at, value]) => {
                self.forget(*at, word);
                self.know(*at, *value);
            }
            (MSTORE8, [at, _]) => self.forget(*at, word),
            (CALLDATACOPY | CODECOPY | RETURNDATACOPY | MCOPY, [at, _, length])
            | (EXTCODECOPY, [_, at, _, length])
            | (CALL | CALLCODE, [_, _, _, _, at, length])
            | (DELEGATECALL | STATICCALL, [_, _, _, at, length]) => self.forget(*at, *length),
            _ => {}
        }
    }

    fn know(&mut self, at: Operand, word: Operand) {
        if let Some(at) = self.constants.offset(at)
            && self.known.len() < KNOWN_WORDS_MAX
        {
            self.known.push((at, word));
        }
    }

    /// Forgets the words that a write to `memory[at..at + length]` may have changed.
    fn forget(&mut self, at: Operand, length: Operand) {
        let end = |at: u64| self.constants.offset(length).and_then(|length| at.checked_add(length));
        let (from, to) = match self.constants.offset(at) {
            Some(at) => (at, end(at).unwrap_or(u64::MAX)),
            None => (FREE_MEMORY, u64::MAX),
        };
        if from < to {
            self.known.retain(|(offset, _)| *offset >= to || offset.saturating_add(32) <= from);
        }
    }

    fn append(&mut self, op: Op) -> Operand {
        self.ops.push(op);
        Operand::Op(self.ops.len() as u32 - 1)
    }

    fn push_value(&mut self, value: U256) {
        let operand = self.constants.operand(value);
        self.stack.push(operand);
    }

    fn pop(&mut self) -> Operand {
        self.stack.pop().unwrap_or_else(|| self.take_entry())
    }

    /// The stack's word at a depth, 0 at the top.
    fn slot(&mut self, depth: usize) -> &mut Operand {
        while self.stack.len() <= depth {
            let entry = self.take_entry();
            self.stack.insert(0, entry);
        }
        let at = self.stack.len() - 1 - depth;
        &mut self.stack[at]
    }

    fn take_entry(&mut self) -> Operand {
        self.taken += 1;
        Operand::Entry((self.taken - 1) as u16)
    }
}
