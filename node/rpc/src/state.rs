//! Reads from a state: the head's, or a past one.

use std::{collections::BTreeMap, fmt};

use alloy_primitives::{Address, B256, Bytes, U64, U256};
use alloy_rpc_types_eth::{BlockId, BlockNumberOrTag};
use jsonrpsee_types::Params;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use slipstream_storage::View;
use slipstream_types::{BatchNumber, bounded::BoundedVec};

use super::{
    RpcContext,
    errors::{RpcError, RpcResult},
    params::{BlockParam, Slot, Strict, args},
    table::CallContext,
};

/// Maximum number of slots in one `eth_getStorageValues`, as in geth: each is a disk read.
const SLOTS_MAX: usize = 1_024;

impl RpcContext {
    /// The state that a block id names, as far back as states are kept.
    pub(super) fn state_at(&self, id: BlockId) -> Result<View, RpcError> {
        let view = self.store.view()?;
        let head = view.head().number;
        let asked = self.asked(id, head)?;
        match asked.cmp(&head) {
            std::cmp::Ordering::Equal => Ok(view),
            std::cmp::Ordering::Less => match self.store.view_of(asked)? {
                Some(view) => Ok(view),
                None => {
                    let first = self.store.states_from()?;
                    let to_come = match self.health.past_states_to_come() {
                        // A backfill fetches the deltas first, and then the states that they lead to.
                        None if self.health.is_backfilling() => Some(self.store.states_wanted_from()?),
                        to_come => to_come,
                    };
                    match to_come.filter(|to_come| *to_come <= asked) {
                        Some(to_come) => Err(RpcError::StateNotYetKept { asked, first, head, to_come }),
                        None => Err(RpcError::StateNotKept { asked, first, head }),
                    }
                }
            },
            std::cmp::Ordering::Greater => Err(RpcError::BeyondHead { asked, head }),
        }
    }

    /// The batch that a block id names, where `latest` is the newest one available. The result may be above `latest`.
    pub(super) fn asked(&self, id: BlockId, latest: BatchNumber) -> Result<BatchNumber, RpcError> {
        Ok(match id {
            BlockId::Number(BlockNumberOrTag::Number(number)) => BatchNumber::new(number),
            BlockId::Number(BlockNumberOrTag::Earliest) => BatchNumber::GENESIS,
            // A certified batch is final, and pending transactions are not executed anywhere yet.
            BlockId::Number(_) => latest,
            BlockId::Hash(hash) => {
                let found = self.store.find_header(&hash.block_hash.into())?;
                found.ok_or(RpcError::UnknownHash(hash.block_hash))?
            }
        })
    }
}

/// An address, and the block id that ends most parameter lists: the head if omitted.
type AddressAt = (Strict<Address>, Option<BlockParam>);

/// `eth_getBalance`
pub(super) fn balance(context: &RpcContext, params: &Params<'_>) -> RpcResult<U256> {
    let (Strict(address), id): AddressAt = args(params)?;
    let view = context.state_at(id.unwrap_or_default().0)?;
    Ok(view.account(&address).map_err(RpcError::from)?.unwrap_or_default().balance)
}

/// `eth_getTransactionCount`; `pending` counts the sender's executable transactions in the pool as well.
pub(super) fn nonce(context: &RpcContext, params: &Params<'_>) -> RpcResult<U64> {
    let (Strict(address), id): AddressAt = args(params)?;
    let id = id.unwrap_or_default().0;
    let account = context.state_at(id)?.account(&address).map_err(RpcError::from)?.unwrap_or_default();
    let waiting = if id.is_pending() { context.pool.pending_nonce(&address) } else { None };
    Ok(U64::from(waiting.unwrap_or(0).max(account.nonce)))
}

/// `eth_getCode`
pub(super) fn code(context: &RpcContext, params: &Params<'_>) -> RpcResult<Bytes> {
    let (Strict(address), id): AddressAt = args(params)?;
    let view = context.state_at(id.unwrap_or_default().0)?;
    let account = view.account(&address).map_err(RpcError::from)?.unwrap_or_default();
    let Some(hash) = account.code_hash else { return Ok(Bytes::new()) };
    Ok(view.code(&hash).map_err(RpcError::from)?.unwrap_or_default())
}

/// `eth_getStorageAt`
pub(super) fn storage(context: &RpcContext, params: &Params<'_>) -> RpcResult<B256> {
    let (Strict(address), Strict(Slot(slot)), id): (Strict<Address>, Strict<Slot>, Option<BlockParam>) =
        args(params)?;
    let view = context.state_at(id.unwrap_or_default().0)?;
    Ok(view.slot(&address, &slot).map_err(RpcError::from)?.into())
}

/// Slots by account, at most [`SLOTS_MAX`] in total. An account counts as one slot, so accounts without slots are
/// bounded, too.
struct SlotsOf(BTreeMap<Address, Vec<B256>>);

impl<'de> Deserialize<'de> for SlotsOf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SlotsVisitor)
    }
}

struct SlotsVisitor;

impl<'de> Visitor<'de> for SlotsVisitor {
    type Value = SlotsOf;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a list of storage keys for each address")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SlotsOf, A::Error> {
        let (mut asked, mut count) = (BTreeMap::new(), 0);
        while let Some(Strict(address)) = map.next_key::<Strict<Address>>()? {
            let slots: BoundedVec<Strict<Slot>, SLOTS_MAX> = map.next_value()?;
            count += slots.len().max(1);
            if count > SLOTS_MAX {
                return Err(A::Error::custom(format!("more than {SLOTS_MAX} slots; ask in several calls")));
            }
            // The same address in another letter case is another key of the object.
            if asked.insert(address, slots.iter().map(|slot| slot.0.0).collect()).is_some() {
                return Err(A::Error::custom(format!(
                    "{address} appears twice; list it once with all its slots"
                )));
            }
        }
        Ok(SlotsOf(asked))
    }
}

/// `eth_getStorageValues`
pub(super) fn storage_values(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<BTreeMap<Address, Vec<B256>>> {
    let (SlotsOf(asked), id): (SlotsOf, Option<BlockParam>) = args(params)?;
    let view = context.state_at(id.unwrap_or_default().0)?;
    let mut values = BTreeMap::new();
    for (address, slots) in asked {
        asker.still_waits()?;
        let read = |slot: &B256| view.slot(&address, slot).map(B256::from);
        let found: Result<Vec<B256>, _> = slots.iter().map(read).collect();
        values.insert(address, found.map_err(RpcError::from)?);
    }
    Ok(values)
}
