//! The contract of this bench: it burns time and adds one to every slot of an object, like the application of the Eve
//! paper.
//!
//! Call data are three words: how many times 1 KiB is hashed, how many slots of 32 bytes the object has, and its first
//! slot.

use alloy_primitives::{Address, Bytes, TxKind, U256};
use alloy_sol_types::SolValue;

use slipnet::load::Call;

/// Gas of one hash of 1 KiB with its loop, of an empty slot, and of everything else; all rounded up.
const GAS_PER_HASH: u64 = 320;
const GAS_PER_SLOT: u64 = 22_300;
const GAS_BASE: u64 = 30_000;

/// The work of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    /// Hashes of 1 KiB.
    pub(super) hashes: u64,
    /// Slots of the object.
    pub(super) slots: u64,
}

impl Request {
    /// Returns the request's gas limit.
    pub(super) fn gas(self) -> u64 {
        GAS_BASE + GAS_PER_HASH * self.hashes + GAS_PER_SLOT * self.slots
    }

    /// Returns the request's call data for an object. Objects share no slot.
    pub(super) fn input(self, object: u64) -> Bytes {
        let words = [self.hashes, self.slots, object << 16].map(U256::from);
        words.abi_encode().into()
    }

    /// Returns the request as a transaction of the load.
    pub(super) fn call(self, contract: Address, object: u64) -> Call {
        let to = TxKind::Call(contract);
        Call { to, gas_limit: self.gas(), input: self.input(object), ..Call::default() }
    }
}

/// Opcodes that push one byte, and two.
const PUSH1: u8 = 0x60;
const PUSH2: u8 = 0x61;

/// Returns the code of the contract.
pub(super) fn code() -> Vec<u8> {
    #[rustfmt::skip]
    let code = vec![
        PUSH1, 0x00, 0x35,                                     //  0: hashes = word 0
        0x5b,                                                  //  3: loop
        0x80, 0x15, PUSH1, 25, 0x57,                           //  4: leave at none
        PUSH2, 0x04, 0x00, PUSH1, 0x00, 0x20,                  //  9: hash 1 KiB
        PUSH1, 0x00, 0x52,                                     // 15: over its beginning
        PUSH1, 0x01, 0x90, 0x03,                               // 18: one less
        PUSH1, 3, 0x56,                                        // 22: again
        0x5b, 0x50,                                            // 25: forget the count
        PUSH1, 0x20, 0x35,                                     // 27: slots = word 1
        0x5b,                                                  // 30: loop
        0x80, 0x15, PUSH1, 55, 0x57,                           // 31: leave at none
        PUSH1, 0x01, 0x90, 0x03,                               // 36: one less
        0x80, PUSH1, 0x40, 0x35, 0x01,                         // 40: the slot = word 2 + count
        0x80, 0x54, PUSH1, 0x01, 0x01,                         // 45: its value and one
        0x90, 0x55,                                            // 50: stored
        PUSH1, 30, 0x56,                                       // 52: again
        0x5b, 0x00,                                            // 55: done
    ];
    code
}

/// Returns the code that deploys the contract.
pub(super) fn init_code() -> Bytes {
    let code = code();
    let len = code.len() as u8;
    // Copies the code that follows to memory and returns it.
    let mut init = vec![PUSH1, len, 0x80, PUSH1, 11, PUSH1, 0x00, 0x39, PUSH1, 0x00, 0xf3];
    init.extend(code);
    init.into()
}

#[cfg(test)]
mod tests {
    use slipstream_types::{Delta, StateKey, StateValue, delta::DeltaEntry};

    use super::*;
    use crate::consensus::local::{CONTRACT, Local};

    /// Returns the values that a batch wrote in the contract.
    fn slots(delta: &Delta) -> Vec<U256> {
        let slot = |entry: &DeltaEntry| match (entry.key, entry.value) {
            (StateKey::Slot(CONTRACT, _), Some(StateValue::Slot(value))) => Some(value),
            _ => None,
        };
        delta.entries().iter().filter_map(slot).collect()
    }

    /// Goal: every call adds one to every slot of its object and to no other, within its gas limit.
    #[test]
    fn a_request_adds_one_to_every_slot() {
        let local = Local::new(4).unwrap();
        for request in [Request { hashes: 0, slots: 1 }, Request { hashes: 40, slots: 32 }] {
            let batch = local.batch(request, 0, |sender| sender % 2).unwrap();
            let outcome = local.execute(&batch).unwrap();
            assert!(outcome.receipts.receipts.iter().all(|receipt| receipt.success), "{request:?}");
            let values = slots(&outcome.delta);
            assert_eq!(values, vec![U256::from(2); 2 * request.slots as usize], "{request:?}");
        }
    }
}
