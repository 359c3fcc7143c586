//! [`Conflicts`] in bytes: per transaction its gas in thousands, the number of earlier transactions that it waits for,
//! and the distances to them.

use super::bytes::{Ascending, Reader, invalid, put};
use crate::{codec::CodecError, conflicts::Conflicts};

/// Gas is rounded up to a multiple of this, because it only serves to distinguish long chains of transactions from
/// short ones.
pub(super) const GAS_UNIT: u64 = 1_000;

pub(super) fn encode(conflicts: &Conflicts) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 * conflicts.gas.len());
    for (index, (predecessors, gas)) in (0u64..).zip(conflicts.predecessors.iter().zip(&conflicts.gas)) {
        put(&mut out, gas.div_ceil(GAS_UNIT));
        // The nearest predecessor comes first, so that the distances ascend.
        let earlier = predecessors.iter().rev().filter(|earlier| u64::from(**earlier) < index);
        put(&mut out, earlier.clone().count() as u64);
        let mut ascending = Ascending::default();
        earlier.for_each(|earlier| ascending.put(&mut out, index - 1 - u64::from(*earlier)));
    }
    out
}

/// # Errors
/// If the bytes do not describe `transactions` transactions, or an edge leads before the first of them.
pub(super) fn decode(mut reader: Reader<'_>, transactions: usize) -> Result<Conflicts, CodecError> {
    // A transaction takes at least two bytes.
    if reader.checked(transactions as u64 * 2).is_err() {
        return Err(invalid("the conflicts belong to a shorter batch"));
    }
    let mut conflicts = Conflicts::default();
    for index in 0..transactions as u64 {
        conflicts.gas.push(reader.number()?.saturating_mul(GAS_UNIT));
        let mut ascending = Ascending::default();
        let mut predecessors = Vec::new();
        for _ in 0..reader.count()? {
            let earlier =
                index.checked_sub(1).and_then(|before| before.checked_sub(ascending.next(&mut reader).ok()?));
            predecessors
                .push(earlier.ok_or(invalid("a transaction waits for one that is not before it"))? as u32);
        }
        predecessors.reverse();
        conflicts.predecessors.push(predecessors);
    }
    if reader.is_empty() { Ok(conflicts) } else { Err(invalid("the conflicts belong to a longer batch")) }
}
