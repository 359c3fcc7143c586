//! Executes each operation of a program, except calls.

use alloy_primitives::{Bytes, U256};
use slipstream_types::BatchNumber;

use super::{
    Frame, Run, address,
    buffer::{Buffer, Value},
    world::Stopped,
};
use crate::{
    fold::{FOLDED_ARGS_MAX, fold},
    opcode::*,
    stats::StopReason,
};

/// Number of earlier batches that BLOCKHASH knows.
const BLOCK_HASHES: u64 = 256;
/// Approximate gas per operation of a program; the value of GAS decides hardly anything.
const STEP_GAS: u64 = 20;

impl Run<'_> {
    /// Runs one operation. Returns its result, or `None` if it has none or the result is unknown.
    pub(super) fn operation(
        &mut self,
        frame: &mut Frame,
        code: u8,
        args: &[Value],
    ) -> Result<Value, Stopped> {
        match code {
            ADD..=SIGNEXTEND | LT..=CLZ | HASH1 | HASH2 => Ok(folded(code, args)),
            SLOAD | SSTORE | TLOAD | TSTORE | TOUCH_SLOT => self.storage(frame, code, args),
            BALANCE | SELFBALANCE | EXTCODESIZE | EXTCODEHASH | EXTCODECOPY | TOUCH_ACCOUNT => {
                self.accounts(frame, code, args)
            }
            KECCAK256 | MLOAD | MSTORE | MSTORE8 | MCOPY | CALLDATACOPY | CODECOPY | RETURNDATACOPY => {
                self.memory(frame, code, args)
            }
            CALL | CALLCODE | DELEGATECALL | STATICCALL => self.call(frame, code, args),
            CREATE | CREATE2 => self.create_from(frame, args),
            _ => Ok(self.environment(frame, code, args)),
        }
    }

    fn storage(&mut self, frame: &Frame, code: u8, args: &[Value]) -> Result<Value, Stopped> {
        let address = frame.call.address;
        let Some(slot) = args[0] else {
            self.world.stop(StopReason::UnknownSlot);
            return Ok(None);
        };
        match code {
            SLOAD => return self.world.slot(address, slot),
            TLOAD => return Ok(self.world.transient(address, slot)),
            SSTORE => self.world.set_slot(address, slot, args[1])?,
            TSTORE => self.world.set_transient(address, slot, args[1]),
            _ => self.world.touch(address, slot)?,
        }
        Ok(None)
    }

    fn accounts(&mut self, frame: &mut Frame, code: u8, args: &[Value]) -> Result<Value, Stopped> {
        let own = (code == SELFBALANCE).then_some(frame.call.address);
        let Some(of) = own.or_else(|| args[0].map(address)) else {
            if let [_, at, _, length] = *args
                && let Some((at, length)) = self.range(frame, at, length)?
            {
                frame.memory.forget(at, length);
            }
            return Ok(None);
        };
        let account = self.world.account(&of)?;
        let hash = account.and_then(|account| account.code_hash);
        Ok(match code {
            BALANCE | SELFBALANCE => Some(account.unwrap_or_default().balance),
            EXTCODEHASH => Some(hash.map_or(U256::ZERO, |hash| U256::from_be_bytes(hash.0))),
            EXTCODESIZE => match hash {
                Some(hash) => self.world.read_code(hash)?.map(|code| U256::from(code.len())),
                None => Some(U256::ZERO),
            },
            EXTCODECOPY => {
                let code = match hash {
                    Some(hash) => self.world.read_code(hash)?,
                    None => Some(Bytes::new()),
                };
                self.copy_code(frame, code, &args[1..])?;
                None
            }
            _ => None,
        })
    }

    fn memory(&mut self, frame: &mut Frame, code: u8, args: &[Value]) -> Result<Value, Stopped> {
        let length = match code {
            MLOAD | MSTORE => Some(U256::from(32)),
            MSTORE8 => Some(U256::from(1)),
            KECCAK256 => args[1],
            _ => args[2],
        };
        let Some((at, length)) = self.range(frame, args[0], length)? else { return Ok(None) };
        match code {
            MLOAD => return Ok(frame.memory.word(at)),
            KECCAK256 => return Ok(frame.memory.hash(at, length)),
            MSTORE => frame.memory.set_word(at, args[1]),
            MSTORE8 => frame.memory.set(at, &[args[1].unwrap_or_default().byte(0)], args[1].is_some()),
            MCOPY => match self.range(frame, args[1], args[2])? {
                Some((start, _)) => frame.memory.copy_within(at, start, length),
                None => frame.memory.forget(at, length),
            },
            CODECOPY => {
                if frame.call.code.is_none() {
                    frame.call.code = self.world.read_code(frame.call.hash)?;
                }
                let code = frame.call.code.clone();
                self.copy_code(frame, code, args)?;
            }
            _ => {
                let Some(start) = args[1] else {
                    frame.memory.forget(at, length);
                    return Ok(None);
                };
                let start = usize::try_from(start).unwrap_or(usize::MAX);
                let from = if code == CALLDATACOPY { &frame.call.input } else { &frame.returned };
                frame.memory.copy(at, from, start, length);
            }
        }
        Ok(None)
    }

    /// Executes `memory[at..at + length] = code[start..]`; `args` are in this order.
    fn copy_code(&mut self, frame: &mut Frame, code: Option<Bytes>, args: &[Value]) -> Result<(), Stopped> {
        let [at, start, length] = *args else { return Ok(()) };
        let Some((at, length)) = self.range(frame, at, length)? else { return Ok(()) };
        let (Some(code), Some(start)) = (code, start) else {
            frame.memory.forget(at, length);
            return Ok(());
        };
        let start = usize::try_from(start).unwrap_or(usize::MAX).min(code.len());
        let part = Buffer::known(code[start..code.len().min(start.saturating_add(length))].to_vec());
        frame.memory.copy(at, &part, 0, length);
        Ok(())
    }

    fn environment(&mut self, frame: &Frame, code: u8, args: &[Value]) -> Value {
        let (call, block, transaction) = (&frame.call, self.block, self.transaction);
        match code {
            ADDRESS => Some(call.address.into_word().into()),
            CALLER => Some(call.caller.into_word().into()),
            ORIGIN => Some(transaction.sender.into_word().into()),
            COINBASE => Some(block.beneficiary.into_word().into()),
            CALLVALUE => call.value,
            CALLDATASIZE => call.input.len().map(U256::from),
            CALLDATALOAD => call.input.word(usize::try_from(args[0]?).unwrap_or(usize::MAX)),
            RETURNDATASIZE => frame.returned.len().map(U256::from),
            MSIZE => frame.memory.len().map(U256::from),
            GASPRICE => {
                let tip = transaction.envelope.effective_tip_per_gas(block.base_fee_wei).unwrap_or_default();
                Some(U256::from(tip) + U256::from(block.base_fee_wei))
            }
            TIMESTAMP => Some(U256::from(block.timestamp_s)),
            NUMBER => Some(U256::from(block.number)),
            PREVRANDAO => Some(block.prev_randao),
            GASLIMIT => Some(U256::from(block.gas_limit)),
            CHAINID => Some(U256::from(block.chain_id)),
            BASEFEE => Some(U256::from(block.base_fee_wei)),
            BLOBHASH => {
                let hashes = transaction.envelope.blob_versioned_hashes().unwrap_or_default();
                let index = usize::try_from(args[0]?).unwrap_or(usize::MAX);
                Some(hashes.get(index).map_or(U256::ZERO, |hash| (*hash).into()))
            }
            BLOCKHASH => self.block_hash(args[0]?),
            GAS => {
                let used = self.world.stats.steps.saturating_mul(STEP_GAS);
                Some(U256::from(transaction.envelope.gas_limit().saturating_sub(used)))
            }
            _ => None,
        }
    }

    fn block_hash(&self, number: U256) -> Value {
        let here = self.block.number;
        let back = u64::try_from(number).ok().and_then(|number| here.checked_sub(number));
        match back {
            Some(1) => Some(self.block.parent_hash.into()),
            Some(back @ 2..=BLOCK_HASHES) => {
                let digest = self.world.reader().header_digest(BatchNumber::new(here - back)).ok()?;
                digest.map(|digest| U256::from_be_bytes(digest.0))
            }
            _ => Some(U256::ZERO),
        }
    }
}

fn folded(code: u8, args: &[Value]) -> Value {
    let mut values = [U256::ZERO; FOLDED_ARGS_MAX];
    for (value, arg) in values.iter_mut().zip(args) {
        *value = (*arg)?;
    }
    fold(code, values.get(..args.len())?)
}
