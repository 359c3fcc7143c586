//! A KECCAK256 that records its two-word inputs. Solidity and Vyper derive the slots of a mapping's entries with it, so
//! such an input describes a 32-byte slot in a few bytes.

use alloy_primitives::B256;
use revm::{
    Database,
    interpreter::{
        InstructionContext, InstructionExecResult, instructions::system, interpreter::EthInterpreter,
    },
};
use slipstream_types::hints::Preimage;

use super::observe::ObservedContext;

/// Maximum number of inputs that are kept per batch: 6 MB at most. Mainnet blocks since London have 500 to 8,000.
pub(super) const PREIMAGES_MAX: usize = 65_536;
/// Two words: the key and the slot of the mapping.
const PREIMAGE_BYTES: usize = 64;

pub(super) fn keccak256<DB: Database>(
    context: InstructionContext<'_, ObservedContext<DB>, EthInterpreter>,
) -> InstructionExecResult {
    let InstructionContext { interpreter, host } = context;
    let operands = (interpreter.stack.peek(0), interpreter.stack.peek(1));
    system::keccak256(InstructionContext { interpreter: &mut *interpreter, host: &mut *host })?;
    if let (Ok(offset), Ok(len)) = operands
        && len == PREIMAGE_BYTES
        && host.chain.preimages.len() < PREIMAGES_MAX
        && let Ok(hash) = interpreter.stack.peek(0)
    {
        // The instruction succeeded, so the operands fit and the memory is long enough.
        let memory = interpreter.memory.slice_len(offset.to::<usize>(), PREIMAGE_BYTES);
        let (first, second) = memory.split_at(PREIMAGE_BYTES / 2);
        let preimage = Preimage {
            first: B256::from_slice(first),
            second: B256::from_slice(second),
            hash: B256::from(hash),
        };
        host.chain.preimages.push(preimage);
    }
    Ok(())
}
