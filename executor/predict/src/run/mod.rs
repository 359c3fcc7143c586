//! [`Run`]: runs programs for one transaction, within [`PredictLimits`].

mod buffer;
mod calls;
mod operations;
mod world;

use std::sync::Arc;

use alloy_primitives::{
    Address, Bytes, U256,
    map::{B256Map, HashMap},
};
use slipstream_storage::StateReader;
use slipstream_types::Digest;

use self::{
    buffer::{Buffer, Value},
    world::{PredictedState, Stopped},
};
use crate::{
    config::{PredictConfig, PredictLimits, PredictMode},
    flow::JumpEdge,
    opcode::*,
    program::{GOTO, INVALID, NO_BLOCK, Program, Reader, Ref},
    request::{BlockValues, TransactionRef},
    ssa::ARGS_MAX,
    stats::{PredictStats, Predicted, StopReason},
};

/// Maximum number of stack words of a call: the EVM's own limit.
const STACK_MAX: usize = 1024;
/// Branches and jumps on unknown values that one transaction decides by guessing. After this many, the prediction is
/// useless anyway.
const GUESSES_MAX: u32 = 64;
/// Maximum number of jumps to positions without a block that one transaction reports.
const MISSED_MAX: usize = 16;

/// The prediction for one transaction.
pub(crate) struct Run<'a> {
    /// Finds the program of some code, by the code's hash.
    find: &'a dyn Fn(&Digest) -> Option<Arc<Program>>,
    limits: PredictLimits,
    transaction: TransactionRef<'a>,
    block: &'a BlockValues,
    world: PredictedState<'a>,
    /// Programs of contracts that the transaction itself would create.
    created: B256Map<Arc<Program>>,
    depth: usize,
    memory_bytes: usize,
    guesses: u32,
    missed: Vec<(Digest, JumpEdge)>,
}

/// A message call.
struct Call {
    /// The account whose storage the call uses.
    address: Address,
    caller: Address,
    value: Value,
    input: Buffer,
    /// Keccak-256 of the code.
    hash: Digest,
    /// The code, if it is available.
    code: Option<Bytes>,
}

/// How a call ended.
struct CallResult {
    has_succeeded: bool,
    output: Buffer,
}

impl CallResult {
    /// An unknown result; success is assumed, because calls mostly succeed.
    fn unknown() -> Self {
        Self { has_succeeded: true, output: Buffer::opaque() }
    }

    fn empty(has_succeeded: bool) -> Self {
        Self { has_succeeded, output: Buffer::default() }
    }
}

/// A call in progress.
struct Frame {
    call: Call,
    memory: Buffer,
    /// The data that the last inner call returned.
    returned: Buffer,
    stack: Vec<Value>,
    results: Vec<Value>,
    next: Vec<Value>,
    /// Number of times that each block was entered by guessing.
    guessed: HashMap<u16, u32>,
}

enum Transition {
    Block(usize),
    End(CallResult),
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        find: &'a dyn Fn(&Digest) -> Option<Arc<Program>>,
        config: &PredictConfig,
        transaction: TransactionRef<'a>,
        block: &'a BlockValues,
        state: &'a dyn StateReader,
        sink: &'a mut dyn FnMut(Predicted),
    ) -> Self {
        Self {
            find,
            limits: config.limits,
            transaction,
            block,
            world: PredictedState::new(state, sink, config.limits, config.reads_slots),
            created: B256Map::default(),
            depth: 0,
            memory_bytes: 0,
            guesses: 0,
            missed: Vec::new(),
        }
    }

    /// Predicts the whole transaction.
    pub(crate) fn transaction(&mut self, mode: PredictMode) {
        // The statistics say why the prediction stopped; the error needs no other handling.
        let _ = self.try_transaction(mode);
        self.world.tell_changes();
    }

    /// Returns the counts, and the jumps to positions where the program has no block.
    pub(crate) fn finish(self) -> (PredictStats, Vec<(Digest, JumpEdge)>) {
        (self.world.stats, self.missed)
    }

    fn try_transaction(&mut self, mode: PredictMode) -> Result<(), Stopped> {
        let transaction = self.transaction;
        let envelope = transaction.envelope;
        self.world.account(&transaction.sender)?;
        self.world.account(&self.block.beneficiary)?;
        for item in envelope.access_list().into_iter().flat_map(|list| &list.0) {
            self.world.account(&item.address)?;
            for slot in &item.storage_keys {
                self.world.touch(item.address, (*slot).into())?;
            }
        }
        for authorization in envelope.authorization_list().unwrap_or_default() {
            if let Ok(authority) = authorization.recover_authority() {
                self.world.account(&authority)?;
            }
        }
        let (sender, value) = (transaction.sender, Some(envelope.value()));
        let input = envelope.input();
        match (envelope.to(), mode) {
            (Some(to), PredictMode::Full) => {
                let input = Buffer::known(input.to_vec());
                self.invoke(to, to, sender, value, true, input)?;
            }
            (Some(to), _) => {
                if let Some(hash) = self.world.account(&to)?.and_then(|account| account.code_hash) {
                    self.world.code(hash);
                }
            }
            (None, PredictMode::Full) => {
                let address = sender.create(envelope.nonce());
                self.create(address, sender, value, Some(input.to_vec()))?;
            }
            (None, _) => {
                self.world.account(&sender.create(envelope.nonce()))?;
            }
        }
        Ok(())
    }

    /// Runs a call to its end.
    fn run(&mut self, program: &Program, call: Call) -> Result<CallResult, Stopped> {
        let mut frame = Frame {
            call,
            memory: Buffer::default(),
            returned: Buffer::default(),
            stack: Vec::new(),
            results: Vec::new(),
            next: Vec::new(),
            guessed: HashMap::default(),
        };
        let checkpoint = self.world.checkpoint();
        self.depth += 1;
        let mut block = 0;
        let ended = loop {
            match self.run_block(program, &mut frame, block)? {
                Transition::Block(next) => block = next,
                Transition::End(ended) => break ended,
            }
        };
        self.depth -= 1;
        self.memory_bytes -= frame.memory.held();
        if !ended.has_succeeded {
            self.world.undo(checkpoint);
        }
        Ok(ended)
    }

    fn run_block(
        &mut self,
        program: &Program,
        frame: &mut Frame,
        block: usize,
    ) -> Result<Transition, Stopped> {
        // An empty program stands for code that cannot be analysed.
        let Some(mut reader) = program.reader(block) else {
            return Ok(Transition::End(CallResult::unknown()));
        };
        frame.results.clear();
        let mut steps = 1;
        loop {
            let Some(code) = reader.byte() else { return Ok(Transition::End(CallResult::unknown())) };
            let (count, has_result) = operation_arity(code);
            if count == 0 && !has_result {
                self.world.count_steps(steps)?;
                return self.exit(program, frame, code, &mut reader);
            }
            steps += 1;
            let mut args = [None; ARGS_MAX];
            args[..count].fill_with(|| frame.read(&mut reader));
            let result = self.operation(frame, code, &args[..count])?;
            if has_result {
                frame.results.push(result);
            }
        }
    }

    fn exit(
        &mut self,
        program: &Program,
        frame: &mut Frame,
        code: u8,
        reader: &mut Reader<'_>,
    ) -> Result<Transition, Stopped> {
        let to = match code {
            STOP => return Ok(Transition::End(CallResult::empty(true))),
            RETURN | REVERT => {
                let (at, length) = (frame.read(reader), frame.read(reader));
                let output = self.part(frame, at, length)?;
                return Ok(Transition::End(CallResult { has_succeeded: code == RETURN, output }));
            }
            SELFDESTRUCT => {
                if let Some(heir) = frame.read(reader) {
                    self.world.account(&address(heir))?;
                }
                return Ok(Transition::End(CallResult::empty(true)));
            }
            GOTO => reader.short().map(JumpTarget::Block),
            JUMP => self.computed(frame, reader),
            JUMPI => self.branch(frame, reader).map(JumpTarget::Block),
            INVALID => return Ok(Transition::End(CallResult::empty(false))),
            _ => None,
        };
        let (Some(to), Some(())) = (to, frame.leave(reader)) else {
            return Ok(Transition::End(CallResult::unknown()));
        };
        Ok(match to {
            JumpTarget::Block(NO_BLOCK) => Transition::End(CallResult::empty(false)),
            JumpTarget::Block(block) => Transition::Block(usize::from(block)),
            JumpTarget::Position(from, to) => self.jump(program, frame, from, to),
        })
    }

    /// The target of a computed jump. If the computed value is unknown, the target is the jump's only known one.
    fn computed(&mut self, frame: &Frame, reader: &mut Reader<'_>) -> Option<JumpTarget> {
        let (from, to, only) = (reader.short()?, frame.read(reader), reader.short()?);
        if to.is_some() || only == NO_BLOCK || self.guesses >= GUESSES_MAX {
            return Some(JumpTarget::Position(from, to));
        }
        self.world.stop(StopReason::UnknownJump);
        self.guesses += 1;
        Some(JumpTarget::Block(only))
    }

    fn jump(&mut self, program: &Program, frame: &Frame, from: u16, to: Value) -> Transition {
        if let Some(block) = to.and_then(|to| program.block_at(to)) {
            return Transition::Block(block);
        }
        self.world.stop(StopReason::UnknownJump);
        if let Some(to) = to.and_then(|to| u32::try_from(to).ok())
            && self.missed.len() < MISSED_MAX
        {
            self.missed.push((frame.call.hash, JumpEdge { from: from.into(), to }));
        }
        Transition::End(CallResult::unknown())
    }

    /// Decides a branch. On an unknown condition, it takes the path that was guessed less often, so that loops end.
    fn branch(&mut self, frame: &mut Frame, reader: &mut Reader<'_>) -> Option<u16> {
        let (then, otherwise) = (reader.short()?, reader.short()?);
        if let Some(condition) = frame.read(reader) {
            return Some(if condition.is_zero() { otherwise } else { then });
        }
        self.world.stop(StopReason::UnknownBranch);
        self.guesses += 1;
        if self.guesses > GUESSES_MAX {
            return None;
        }
        let count = |block| frame.guessed.get(&block).copied().unwrap_or(0);
        let guess = if count(then) < count(otherwise) { then } else { otherwise };
        *frame.guessed.entry(guess).or_default() += 1;
        Some(guess)
    }

    /// Grows the memory to include `memory[at..at + length]`; returns `None` if the range is unknown.
    fn range(
        &mut self,
        frame: &mut Frame,
        at: Value,
        length: Value,
    ) -> Result<Option<(usize, usize)>, Stopped> {
        if length == Some(U256::ZERO) {
            return Ok(Some((0, 0)));
        }
        let (Some(at), Some(length)) = (at, length) else { return Ok(None) };
        let before = frame.memory.held();
        // Half of the limit, because the marks of unknown bytes take as much again.
        let room = (self.limits.memory_bytes_max / 2).saturating_sub(self.memory_bytes - before);
        let (at, length) = (usize::try_from(at), usize::try_from(length));
        let (Ok(at), Ok(length)) = (at, length) else { return Err(self.world.stop(StopReason::Memory)) };
        let end = at.saturating_add(length);
        if end > room {
            return Err(self.world.stop(StopReason::Memory));
        }
        // Hashing and copying a word costs about an operation.
        self.world.count_steps(length as u64 / 32)?;
        frame.memory.grow(end.next_multiple_of(32));
        self.memory_bytes = self.memory_bytes - before + frame.memory.held();
        Ok(Some((at, length)))
    }

    /// A copy of `memory[at..at + length]`.
    fn part(&mut self, frame: &mut Frame, at: Value, length: Value) -> Result<Buffer, Stopped> {
        let range = self.range(frame, at, length)?;
        Ok(range.map_or_else(Buffer::opaque, |(at, length)| frame.memory.part(at, length)))
    }
}

/// The next position of control.
enum JumpTarget {
    Block(u16),
    /// A jump at this position, to the target in a value.
    Position(u16, Value),
}

impl Frame {
    /// The value of the next operand; unknown if the operand is missing.
    fn read(&self, reader: &mut Reader<'_>) -> Value {
        match reader.operand()? {
            Ref::Value(value) => Some(value),
            Ref::Result(number) => self.results.get(number).copied().flatten(),
            Ref::Entry(depth) => {
                let at = self.stack.len().checked_sub(depth + 1)?;
                self.stack[at]
            }
            Ref::Unknown => None,
        }
    }

    /// Replaces stack words as the block's exit says; returns `None` if they do not fit.
    fn leave(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        let (taken, left) = (usize::from(reader.short()?), usize::from(reader.short()?));
        let kept = self.stack.len().checked_sub(taken)?;
        if kept + left > STACK_MAX {
            return None;
        }
        let mut next = std::mem::take(&mut self.next);
        next.clear();
        next.extend((0..left).map(|_| self.read(reader)));
        self.stack.truncate(kept);
        self.stack.append(&mut next);
        self.next = next;
        Some(())
    }
}

/// The address in a word.
fn address(word: U256) -> Address {
    Address::from_word(word.into())
}
