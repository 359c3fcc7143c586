//! KECCAK256, with its two-word inputs remembered: that is how Solidity and Vyper place the entries of a mapping, so these inputs
//! say in a few bytes where a slot's 32 come from.

use alloy_primitives::B256;
use revm::{
    bytecode::opcode::KECCAK256,
    handler::MainnetContext,
    interpreter::{
        Instruction, InstructionContext, InstructionExecResult, instructions::system,
        interpreter::EthInterpreter,
    },
};
use slipstream_types::hints::Preimage;

use super::machine::{Database, Evm};

/// Two words: the key and the slot of the mapping.
const PREIMAGE_BYTES: usize = 64;

/// Has a machine remember what it hashes.
pub(super) fn install(evm: &mut Evm<'_>) {
    let gas = evm.instruction.gas_table()[usize::from(KECCAK256)];
    evm.instruction.insert_instruction(KECCAK256, Instruction::new(keccak256), gas);
}

fn keccak256(
    context: InstructionContext<'_, MainnetContext<Database<'_>>, EthInterpreter>,
) -> InstructionExecResult {
    let InstructionContext { interpreter, host } = context;
    let operands = (interpreter.stack.peek(0), interpreter.stack.peek(1));
    system::keccak256(InstructionContext { interpreter: &mut *interpreter, host: &mut *host })?;
    if let (Ok(offset), Ok(len)) = operands
        && len == PREIMAGE_BYTES
        && let Ok(hash) = interpreter.stack.peek(0)
    {
        // The instruction succeeded, so the operands fit and the memory reaches so far.
        let memory = interpreter.memory.slice_len(offset.to::<usize>(), PREIMAGE_BYTES);
        let (first, second) = memory.split_at(PREIMAGE_BYTES / 2);
        let preimage = Preimage {
            first: B256::from_slice(first),
            second: B256::from_slice(second),
            hash: B256::from(hash),
        };
        host.journaled_state.database.database.remember(preimage);
    }
    Ok(())
}
