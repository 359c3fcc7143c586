//! Replaces the instructions that every long execution uses (JUMPDEST, KECCAK256 and the calls) with ones that poll an
//! [`Interrupt`] first. A machine without an interrupt keeps the plain instructions.

use revm::{
    Database,
    bytecode::opcode,
    context_interface::context::ContextError,
    database_interface::bal::EvmDatabaseError,
    interpreter::{
        Instruction, InstructionContext, InstructionExecResult, InstructionResult,
        instructions::{contract, control},
        interpreter::EthInterpreter,
    },
};

use super::{
    observe::{self, ObservedContext, ObservedEvm},
    preimages,
    recorder::ReadError,
};
use crate::{error::ExecuteError, interrupt::Interrupt};

type Ictx<'i, DB> = InstructionContext<'i, ObservedContext<DB>, EthInterpreter>;

/// A database error that ends all frames at once, like that of an unreadable state.
pub(super) trait Interrupted {
    fn interrupted() -> Self;
}

impl Interrupted for ReadError {
    fn interrupted() -> Self {
        ReadError(ExecuteError::Interrupted)
    }
}

impl Interrupted for EvmDatabaseError<ReadError> {
    fn interrupted() -> Self {
        EvmDatabaseError::Database(ReadError::interrupted())
    }
}

/// Jumps between two polls: reading a clock takes as long as two or three jumps.
const JUMPS: u32 = 64;
/// Amount of gas after which the next jump polls. Costly instructions take about a nanosecond per gas.
const GAS: u64 = 50_000;

/// The interrupt of an execution, and the work since the last poll.
#[derive(Default, Debug)]
pub(super) struct Pace {
    pub(super) interrupt: Interrupt,
    jumps: u32,
    gas_left: u64,
}

impl Pace {
    pub(super) fn new(interrupt: Interrupt) -> Pace {
        Pace { interrupt, jumps: 0, gas_left: 0 }
    }

    /// Whether execution should end at a jump with this much gas left in its frame.
    fn ends_at_jump(&mut self, gas_left: u64) -> bool {
        self.jumps += 1;
        // Another frame has another amount of gas, which may cause one needless poll.
        if self.jumps < JUMPS && gas_left.abs_diff(self.gas_left) < GAS {
            return false;
        }
        (self.jumps, self.gas_left) = (0, gas_left);
        self.interrupt.is_due()
    }
}

/// Replaces the instructions of a machine that records no observations.
pub(super) fn install<DB: Database<Error: Interrupted>>(evm: &mut ObservedEvm<DB>) {
    install_as::<DB, false>(evm);
}

/// Replaces the instructions of a machine that records observations, and keeps it recording.
pub(super) fn install_observed<DB: Database<Error: Interrupted>>(evm: &mut ObservedEvm<DB>) {
    install_as::<DB, true>(evm);
    let table = evm.instruction.instruction_table_mut();
    table[usize::from(opcode::KECCAK256)] = Instruction::new(keccak256);
}

fn install_as<DB: Database<Error: Interrupted>, const NOTES: bool>(evm: &mut ObservedEvm<DB>) {
    let table = evm.instruction.instruction_table_mut();
    table[usize::from(opcode::JUMPDEST)] = Instruction::new(jumpdest);
    table[usize::from(opcode::CALL)] = Instruction::new(call::<{ opcode::CALL }, DB, NOTES>);
    table[usize::from(opcode::CALLCODE)] = Instruction::new(call::<{ opcode::CALLCODE }, DB, NOTES>);
    table[usize::from(opcode::DELEGATECALL)] = Instruction::new(call::<{ opcode::DELEGATECALL }, DB, false>);
    table[usize::from(opcode::STATICCALL)] = Instruction::new(call::<{ opcode::STATICCALL }, DB, false>);
    table[usize::from(opcode::CREATE)] = Instruction::new(create::<false, DB, NOTES>);
    table[usize::from(opcode::CREATE2)] = Instruction::new(create::<true, DB, NOTES>);
}

fn is_due_here<DB: Database>(context: &mut Ictx<'_, DB>) -> bool {
    let gas_left = context.interpreter.gas.remaining();
    context.host.chain.pace.ends_at_jump(gas_left)
}

fn jumpdest<DB: Database<Error: Interrupted>>(mut context: Ictx<'_, DB>) -> InstructionExecResult {
    if is_due_here(&mut context) {
        return end(&mut context);
    }
    control::jumpdest(context)
}

/// Polls the interrupt first: one contract's code can hash for most of a second without a jump.
fn keccak256<DB: Database<Error: Interrupted>>(mut context: Ictx<'_, DB>) -> InstructionExecResult {
    if is_due_here(&mut context) {
        return end(&mut context);
    }
    preimages::keccak256(context)
}

fn call<const KIND: u8, DB: Database<Error: Interrupted>, const NOTES: bool>(
    mut context: Ictx<'_, DB>,
) -> InstructionExecResult {
    if context.host.chain.pace.interrupt.is_due() {
        return end(&mut context);
    }
    if NOTES { observe::call::<KIND, DB>(context) } else { contract::call::<KIND, _, _>(context) }
}

fn create<const IS_CREATE2: bool, DB: Database<Error: Interrupted>, const NOTES: bool>(
    mut context: Ictx<'_, DB>,
) -> InstructionExecResult {
    if context.host.chain.pace.interrupt.is_due() {
        return end(&mut context);
    }
    if NOTES {
        observe::create::<IS_CREATE2, DB>(context)
    } else {
        contract::create::<IS_CREATE2, _, _>(context)
    }
}

fn end<DB: Database<Error: Interrupted>>(context: &mut Ictx<'_, DB>) -> InstructionExecResult {
    context.host.error = Err(ContextError::Db(Interrupted::interrupted()));
    Err(InstructionResult::FatalExternalError)
}
