//! Proofs for light clients: accounts and slots, and the signatures that prove them. docs/light-clients.md explains
//! their use.

#[cfg(test)]
mod tests;

use alloy_primitives::{Address, B256, U256};
use jsonrpsee_types::Params;
use serde::de::IgnoredAny;
use slipstream_light::{
    AccountProof, EPOCH_CHANGES_MAX, Encoded, EpochChanges, SLOTS_MAX, SlotProof, WaypointProof,
};
use slipstream_storage::{ProvableState, StorageError};
use slipstream_types::{
    BatchNumber, Certificate, Epoch, LedgerInfo, StateKey, StateValue, accumulator::AccumulatorRangeProof,
    bounded::BoundedVec,
};

use super::{
    RpcContext,
    errors::{RpcError, RpcResult},
    params::{BlockParam, Slot, Strict, args},
    table::CallContext,
};

/// `eth_getProof`, which does not exist here. The error says why, and names the alternative.
pub(super) fn no_trie(_context: &RpcContext, params: &Params<'_>) -> RpcResult<()> {
    type Arguments = (Option<IgnoredAny>, Option<IgnoredAny>, Option<IgnoredAny>);
    let _: Arguments = args(params)?;
    Err(RpcError::NoTrie.into())
}

/// `slipstream_getProof`
pub(super) fn proof(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<AccountProof> {
    type Arguments = (Strict<Address>, BoundedVec<Strict<Slot>, SLOTS_MAX>, Option<BlockParam>);
    let (Strict(address), slots, id): Arguments = args(params)?;
    let slots: Vec<B256> = slots.iter().map(|slot| slot.0.0).collect();
    let store = &context.store;
    let head = store.head().map_err(RpcError::from)?.header.number;
    // The newest certificate up to `head`. Batches that are committed from now on do not count. While a node catches
    // up, its newest batches may have no certificate yet.
    let newest = store.certificate_at_or_before(head).map_err(RpcError::from)?;
    let certified = newest.as_ref().map_or(head, |newest| newest.info.number);
    let asked = context.asked(id.unwrap_or_default().0, certified)?;
    if asked > head {
        return Err(RpcError::BeyondHead { asked, head }.into());
    }
    let certificate = newest.filter(|_| certified >= asked).ok_or(RpcError::NotCertified { asked })?;
    let state = store.provable_state(asked).map_err(RpcError::from)?;
    Ok(context.account_proof(&state, certificate, address, &slots, asker)?)
}

/// `slipstream_getEpochChanges`
pub(super) fn epoch_changes(context: &RpcContext, params: &Params<'_>) -> RpcResult<EpochChanges> {
    let (Strict(first),): (Strict<u64>,) = args(params)?;
    let ends = context.store.epoch_ends(Epoch(first), EPOCH_CHANGES_MAX).map_err(RpcError::from)?;
    let ends = BoundedVec::new(ends.into_iter().map(Encoded).collect()).map_err(RpcError::from)?;
    Ok(EpochChanges(ends))
}

/// `slipstream_getWaypoint`
pub(super) fn waypoint(context: &RpcContext, params: &Params<'_>) -> RpcResult<WaypointProof> {
    let (Strict(number),): (Strict<u64>,) = args(params)?;
    let number = BatchNumber::new(number);
    let info = context.ledger_info(number)?;
    let genesis = context.store.header(BatchNumber::GENESIS).map_err(RpcError::from)?;
    let genesis = genesis.ok_or(RpcError::NotStored { what: "header", number: BatchNumber::GENESIS })?;
    let genesis_proof = context.ledger_proof(number, BatchNumber::GENESIS)?;
    Ok(WaypointProof { ledger_info: Encoded(info), genesis: genesis.digest(), genesis_proof })
}

impl RpcContext {
    fn account_proof(
        &self,
        state: &ProvableState,
        certificate: Certificate,
        address: Address,
        slots: &[B256],
        asker: &CallContext<'_>,
    ) -> Result<AccountProof, RpcError> {
        let certified = certificate.info.number;
        let slot_keys = slots.iter().map(|slot| StateKey::Slot(address, *slot));
        let keys: Vec<StateKey> = std::iter::once(StateKey::Account(address)).chain(slot_keys).collect();
        let rows = state.view().rows(&keys)?;
        let prove = |index: usize| -> Result<_, RpcError> {
            asker.still_waits()?;
            Ok(Encoded(state.prove(&keys[index], rows[index])?))
        };
        let account = match rows[0] {
            Some(StateValue::Account(account)) => Some(account.into()),
            _ => None,
        };
        let slot = |(index, key): (usize, &B256)| -> Result<SlotProof, RpcError> {
            let value = match rows[index] {
                Some(StateValue::Slot(value)) => value,
                _ => U256::ZERO,
            };
            Ok(SlotProof { key: *key, value, proof: prove(index)? })
        };
        let storage = (1..).zip(slots).map(slot).collect::<Result<Vec<_>, _>>()?;
        Ok(AccountProof {
            genesis_proof: self.ledger_proof(certified, BatchNumber::GENESIS)?,
            header_proof: self.ledger_proof(certified, state.header().number)?,
            certificate: Encoded(certificate),
            header: Encoded(state.header().clone()),
            address,
            account,
            account_proof: prove(0)?,
            storage: BoundedVec::new(storage)?,
        })
    }

    /// The proof that a header is in the ledger up to a batch.
    fn ledger_proof(
        &self,
        up_to: BatchNumber,
        number: BatchNumber,
    ) -> Result<Encoded<AccumulatorRangeProof>, RpcError> {
        match self.store.header_range_proof(up_to.leaves(), number, 1) {
            Ok(proof) => Ok(Encoded(proof)),
            Err(StorageError::Accumulator(_)) => Err(self.batches.missing("nodes of the accumulator", up_to)),
            Err(error) => Err(error.into()),
        }
    }

    /// The validators' signed statement about a batch. Statements that end epochs are kept for good.
    fn ledger_info(&self, number: BatchNumber) -> Result<LedgerInfo, RpcError> {
        let head = self.store.head()?.header.number;
        if number > head {
            return Err(RpcError::BeyondHead { asked: number, head });
        }
        if let Some(end) = self.store.epoch_end_at(number)? {
            return Ok(end.info);
        }
        let info = self.store.ledger_info(number)?;
        info.ok_or_else(|| self.batches.missing("header and ledger", number))
    }
}
