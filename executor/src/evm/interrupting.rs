//! The instructions that no long call gets around, JUMPDEST and those that call, made to ask an [`Interrupt`] first. A machine for the
//! transactions of a batch has the plain ones: nobody may interrupt those.

use revm::{
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
    machine::{Database, Evm},
    observe::ObservedContext,
    recorder::ReadError,
};
use crate::{error::ExecuteError, interrupt::Interrupt};

type Ictx<'i, 'a> = InstructionContext<'i, ObservedContext<Database<'a>>, EthInterpreter>;

/// Jumps after which the interrupt is asked: looking at a clock takes as long as two or three of them.
const JUMPS: u32 = 64;
/// Gas after which it is asked at the next jump. Costly instructions take about a nanosecond per gas.
const GAS: u64 = 50_000;

/// The interrupt of a call, and what was done since it was asked.
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

    /// Whether a jump with so much gas left in its frame is to be the last.
    fn ends_at_jump(&mut self, gas_left: u64) -> bool {
        self.jumps += 1;
        // Another frame has another amount of gas: then it is asked once too often.
        if self.jumps < JUMPS && gas_left.abs_diff(self.gas_left) < GAS {
            return false;
        }
        (self.jumps, self.gas_left) = (0, gas_left);
        self.interrupt.is_due()
    }
}

/// Replaces the instructions in a machine for calls.
pub(super) fn install(evm: &mut Evm<'_>) {
    let table = evm.instruction.instruction_table_mut();
    table[usize::from(opcode::JUMPDEST)] = Instruction::new(jumpdest);
    table[usize::from(opcode::CALL)] = Instruction::new(call::<{ opcode::CALL }>);
    table[usize::from(opcode::CALLCODE)] = Instruction::new(call::<{ opcode::CALLCODE }>);
    table[usize::from(opcode::DELEGATECALL)] = Instruction::new(call::<{ opcode::DELEGATECALL }>);
    table[usize::from(opcode::STATICCALL)] = Instruction::new(call::<{ opcode::STATICCALL }>);
    table[usize::from(opcode::CREATE)] = Instruction::new(create::<false>);
    table[usize::from(opcode::CREATE2)] = Instruction::new(create::<true>);
}

fn jumpdest(mut context: Ictx<'_, '_>) -> InstructionExecResult {
    let gas_left = context.interpreter.gas.remaining();
    if context.host.chain.pace.ends_at_jump(gas_left) {
        return end(&mut context);
    }
    control::jumpdest(context)
}

fn call<const KIND: u8>(mut context: Ictx<'_, '_>) -> InstructionExecResult {
    if context.host.chain.pace.interrupt.is_due() {
        return end(&mut context);
    }
    contract::call::<KIND, _, _>(context)
}

fn create<const IS_CREATE2: bool>(mut context: Ictx<'_, '_>) -> InstructionExecResult {
    if context.host.chain.pace.interrupt.is_due() {
        return end(&mut context);
    }
    contract::create::<IS_CREATE2, _, _>(context)
}

/// Ends all frames at once, as a state that cannot be read does.
fn end(context: &mut Ictx<'_, '_>) -> InstructionExecResult {
    let interrupted = EvmDatabaseError::Database(ReadError(ExecuteError::Interrupted));
    context.host.error = Err(ContextError::Db(interrupted));
    Err(InstructionResult::FatalExternalError)
}
