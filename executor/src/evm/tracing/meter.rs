//! [`Meter`]: an inspector around another one. The meter counts the bytes that the inner inspector keeps, and ends the
//! execution if they exceed a limit.
//!
//! The memory of a trace has little to do with gas. An instruction for 3 gas records a copy of the stack, and of the
//! memory on request. A call for 100 gas records its input, which may be a megabyte. So the meter weighs each piece
//! before the tracer sees it. The weight covers all copies: the tracer's, the answer's and the answer's text.

use alloy_primitives::{Address, B256, Log, U256, map::HashMap};
use revm::{
    Inspector,
    bytecode::opcode,
    context::{ContextTr, JournalTr},
    context_interface::context::ContextError,
    database_interface::bal::EvmDatabaseError,
    handler::FrameResult,
    interpreter::{
        CallInputs, CallOutcome, CreateInputs, CreateOutcome, FrameInput, InstructionResult, Interpreter,
        interpreter::EthInterpreter,
        interpreter_types::{InputsTr as _, Jumps as _, LegacyBytecode as _, MemoryTr as _},
    },
};

use super::super::recorder::ReadError;
use crate::error::ExecuteError;

/// Bytes that each piece of a trace takes in total; 0 for pieces that a tracer does not keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Weights {
    /// Bytes for an instruction.
    pub(super) step: usize,
    /// Bytes for a word on the stack, at each instruction.
    pub(super) stack_word: usize,
    /// Bytes for a byte of memory, at each instruction.
    pub(super) memory_byte: usize,
    /// Bytes for a byte that the last call returned, at each instruction.
    pub(super) returned_byte: usize,
    /// Bytes for a slot, at each access to one: the trace shows all slots that the contract accessed before.
    pub(super) slot: usize,
    /// Bytes for a call.
    pub(super) call: usize,
    /// Bytes for each enclosing call of a call.
    pub(super) depth: usize,
    /// Bytes for a byte of input, output, created code or a log's data.
    pub(super) data_byte: usize,
    /// Bytes for a byte that an instruction writes to memory.
    pub(super) written_byte: usize,
    /// Bytes for a byte of the code that a call runs.
    pub(super) code_byte: usize,
    /// Maximum number of instructions that the trace keeps; `None` keeps all.
    pub(super) steps_max: Option<u64>,
}

impl Weights {
    /// Weights of a tracer that keeps nothing.
    pub(super) const NONE: Weights = Weights {
        step: 0,
        stack_word: 0,
        memory_byte: 0,
        returned_byte: 0,
        slot: 0,
        call: 0,
        depth: 0,
        data_byte: 0,
        written_byte: 0,
        code_byte: 0,
        steps_max: None,
    };
}

impl std::ops::Add for Weights {
    type Output = Weights;

    fn add(self, other: Weights) -> Weights {
        Weights {
            step: self.step + other.step,
            stack_word: self.stack_word + other.stack_word,
            memory_byte: self.memory_byte + other.memory_byte,
            returned_byte: self.returned_byte + other.returned_byte,
            slot: self.slot + other.slot,
            call: self.call + other.call,
            depth: self.depth + other.depth,
            data_byte: self.data_byte + other.data_byte,
            written_byte: self.written_byte + other.written_byte,
            code_byte: self.code_byte + other.code_byte,
            steps_max: self.steps_max.or(other.steps_max),
        }
    }
}

/// The metering inspector; see the module.
pub(super) struct Meter<I> {
    pub(super) inner: I,
    weights: Weights,
    /// The bytes left. `None` once a trace was too large: from then on the tracer sees nothing, not even the ends of
    /// frames whose beginnings it saw.
    left: Option<usize>,
    /// Accesses to slots so far, by contract.
    accessed: HashMap<Address, usize>,
    /// Instructions so far.
    steps: u64,
    /// A contract that just self-destructed with itself as beneficiary, and its balance. revm reports only destructions
    /// that move or burn ether; geth's and parity's traces show this one, too.
    destroyed: Option<(Address, U256)>,
}

impl<I> Meter<I> {
    pub(super) fn new(inner: I, weights: Weights, bytes_max: usize) -> Meter<I> {
        let (left, accessed) = (Some(bytes_max), HashMap::default());
        Meter { inner, weights, left, accessed, steps: 0, destroyed: None }
    }

    /// Bytes that are left, or `None` if the trace was too large.
    pub(super) fn left(&self) -> Option<usize> {
        self.left
    }

    /// Takes `bytes` from the budget. Returns whether they fit.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        self.left = self.left.and_then(|left| left.checked_sub(bytes));
        self.left.is_some()
    }

    fn take_data(&mut self, len: usize) -> bool {
        self.take(len.saturating_mul(self.weights.data_byte))
    }

    fn take_call(&mut self, depth: usize, len: usize) -> bool {
        let call = self.weights.call + depth.saturating_mul(self.weights.depth);
        self.take(call) && self.take_data(len)
    }

    /// Reports a destruction that revm did not report, before the contract's call ends.
    fn tell_destroyed<C>(&mut self, result: InstructionResult)
    where
        I: Inspector<C>,
    {
        if let Some((contract, balance)) = self.destroyed.take()
            && result == InstructionResult::SelfDestruct
        {
            self.inner.selfdestruct(contract, contract, balance);
        }
    }

    fn take_step(&mut self, interpreter: &Interpreter<EthInterpreter>) -> bool {
        let weights = self.weights;
        if weights.step == 0 || weights.steps_max.is_some_and(|max| self.steps >= max) {
            return self.left.is_some();
        }
        self.steps += 1;
        let opcode = interpreter.bytecode.opcode();
        let mut bytes = weights.step
            + interpreter.stack.len() * weights.stack_word
            + interpreter.memory.size() * weights.memory_byte
            + interpreter.return_data.0.len() * weights.returned_byte;
        if weights.written_byte > 0 {
            bytes += written(interpreter, opcode) * weights.written_byte;
        }
        if weights.slot > 0 && matches!(opcode, opcode::SLOAD | opcode::SSTORE) {
            let accessed = self.accessed.entry(interpreter.input.target_address()).or_default();
            *accessed += 1;
            bytes += *accessed * weights.slot;
        }
        self.take(bytes)
    }
}

/// Upper bound of the bytes of memory that an instruction writes.
fn written(interpreter: &Interpreter<EthInterpreter>, opcode: u8) -> usize {
    let stack = interpreter.stack.data();
    let word = |from_top: usize| stack.iter().rev().nth(from_top).map_or(0, |word| word.saturating_to());
    let len: usize = match opcode {
        opcode::MSTORE | opcode::MSTORE8 => 32,
        opcode::MCOPY | opcode::CALLDATACOPY | opcode::CODECOPY | opcode::RETURNDATACOPY => word(2),
        opcode::EXTCODECOPY => word(3),
        opcode::CALL | opcode::CALLCODE => word(6),
        opcode::DELEGATECALL | opcode::STATICCALL => word(5),
        _ => 0,
    };
    // A word of memory costs 3 gas, so a larger write runs out of gas and writes nothing.
    let affordable = interpreter.gas.remaining() as usize / 3 * 32;
    len.min(interpreter.memory.size() + affordable)
}

/// The contract that is about to self-destruct with itself as beneficiary, and its balance.
fn destroys_itself<C: ContextTr>(
    interpreter: &Interpreter<EthInterpreter>,
    context: &mut C,
) -> Option<(Address, U256)> {
    if interpreter.bytecode.opcode() != opcode::SELFDESTRUCT {
        return None;
    }
    let contract = interpreter.input.target_address();
    let target = interpreter.stack.data().last()?;
    if Address::from_word(B256::from(*target)) != contract {
        return None;
    }
    let account = context.journal_mut().load_account(contract).ok()?;
    Some((contract, account.data.info.balance))
}

/// Fails the execution as an unreadable state would, so its results do not count.
fn fail<C: ContextTr<Db: revm::Database<Error = EvmDatabaseError<ReadError>>>>(context: &mut C) {
    let interrupted = EvmDatabaseError::Database(ReadError(ExecuteError::Interrupted));
    *context.error() = Err(ContextError::Db(interrupted));
}

impl<C, I> Inspector<C> for Meter<I>
where
    C: ContextTr<Db: revm::Database<Error = EvmDatabaseError<ReadError>>>,
    I: Inspector<C>,
{
    fn initialize_interp(&mut self, interpreter: &mut Interpreter, context: &mut C) {
        let code = interpreter.bytecode.bytecode_len().saturating_mul(self.weights.code_byte);
        if self.take(code) {
            self.inner.initialize_interp(interpreter, context);
        } else {
            fail(context);
        }
    }

    fn step(&mut self, interpreter: &mut Interpreter, context: &mut C) {
        if self.take_step(interpreter) {
            self.destroyed = destroys_itself(interpreter, context);
            self.inner.step(interpreter, context);
        } else {
            fail(context);
            interpreter.halt_fatal();
        }
    }

    fn step_end(&mut self, interpreter: &mut Interpreter, context: &mut C) {
        if self.left.is_some() {
            self.inner.step_end(interpreter, context);
        }
    }

    fn log(&mut self, context: &mut C, log: Log) {
        if self.take_data(log.data.data.len()) {
            self.inner.log(context, log);
        }
    }

    fn log_full(&mut self, interpreter: &mut Interpreter, context: &mut C, log: Log) {
        if self.take_data(log.data.data.len()) {
            self.inner.log_full(interpreter, context, log);
        }
    }

    fn call(&mut self, context: &mut C, inputs: &mut CallInputs) -> Option<CallOutcome> {
        let depth = context.journal().depth();
        if self.take_call(depth, inputs.input.len()) {
            return self.inner.call(context, inputs);
        }
        fail(context);
        None
    }

    fn call_end(&mut self, context: &mut C, inputs: &CallInputs, outcome: &mut CallOutcome) {
        if self.take_data(outcome.result.output.len()) {
            self.tell_destroyed::<C>(outcome.result.result);
            self.inner.call_end(context, inputs, outcome);
        }
    }

    fn create(&mut self, context: &mut C, inputs: &mut CreateInputs) -> Option<CreateOutcome> {
        let depth = context.journal().depth();
        if self.take_call(depth, inputs.init_code().len()) {
            return self.inner.create(context, inputs);
        }
        fail(context);
        None
    }

    fn create_end(&mut self, context: &mut C, inputs: &CreateInputs, outcome: &mut CreateOutcome) {
        if self.take_data(outcome.result.output.len()) {
            self.tell_destroyed::<C>(outcome.result.result);
            self.inner.create_end(context, inputs, outcome);
        }
    }

    fn frame_start(&mut self, context: &mut C, input: &mut FrameInput) -> Option<FrameResult> {
        if self.left.is_some() { self.inner.frame_start(context, input) } else { None }
    }

    fn frame_end(&mut self, context: &mut C, input: &FrameInput, result: &mut FrameResult) {
        if self.left.is_some() {
            self.inner.frame_end(context, input, result);
        }
    }

    fn selfdestruct(&mut self, contract: Address, target: Address, value: U256) {
        self.destroyed = None;
        if self.left.is_some() {
            self.inner.selfdestruct(contract, target, value);
        }
    }
}
