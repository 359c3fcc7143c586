//! `eth_config` (EIP-7910): the rules of a batch proposed now, the rules that follow them, and the last planned ones.

use std::collections::BTreeMap;

use alloy_primitives::{Address, FixedBytes, U64};
use serde::Serialize;
use slipstream_executor::precompiles;
use slipstream_types::{
    BatchHeader, RulesId, ScheduledFork,
    chain::Fork,
    predeploys::{BEACON_ROOTS, HISTORY_STORAGE},
    schedule::Activation,
};

use super::{RpcContext, errors::RpcError};

/// Contracts that the protocol itself calls on chains that have them, by their names in EIP-7910. Cancun has the first.
const SYSTEM_CONTRACTS: [(&str, Address); 2] =
    [("BEACON_ROOTS_ADDRESS", BEACON_ROOTS), ("HISTORY_STORAGE_ADDRESS", HISTORY_STORAGE)];

/// The answer.
#[derive(Debug, Serialize)]
pub(super) struct Forks {
    current: Config,
    next: Option<Config>,
    last: Option<Config>,
}

/// The rules from one fork on.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    /// Seconds since 1970; 0 for the genesis's own rules, and for rules that began at a batch whose header is not kept.
    activation_time: u64,
    blob_schedule: BlobSchedule,
    chain_id: U64,
    /// The first bytes of the rules' id. Ethereum's fork id differs, but nodes do not speak the protocol that uses it.
    fork_id: FixedBytes<4>,
    precompiles: BTreeMap<String, Address>,
    system_contracts: BTreeMap<&'static str, Address>,
}

/// Ethereum's fraction under the same fork, for clients that compute with it. The chain has no blobs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BlobSchedule {
    base_fee_update_fraction: u64,
    max: u64,
    target: u64,
}

/// `eth_config`
pub(super) fn config(context: &RpcContext) -> Result<Forks, RpcError> {
    let head = context.store.head()?.header;
    let forks = context.chain.schedule.forks();
    let now = context.chain.rules_at(head.number.next(), head.timestamp_ms).id;
    let active = forks.iter().position(|(_, id)| *id == now).map_or(0, |place| place + 1);
    let planned = |count: usize| match active < forks.len() {
        true => after(context, &head, count).map(Some),
        false => Ok(None),
    };
    Ok(Forks {
        current: after(context, &head, active)?,
        next: planned(active + 1)?,
        last: planned(forks.len())?,
    })
}

/// The rules after the first `count` forks of the schedule.
fn after(context: &RpcContext, head: &BatchHeader, count: usize) -> Result<Config, RpcError> {
    let forks = &context.chain.schedule.forks()[..count];
    let evm = forks.iter().fold(context.chain.fork, |evm, (fork, _)| fork.fork.unwrap_or(evm));
    let (activation_time, id) = match forks.last() {
        Some((fork, id)) => (activation_s(context, head, fork)?, *id),
        None => (0, RulesId::GENESIS),
    };
    let (base_fee_update_fraction, called) = match evm {
        Fork::Cancun => (3_338_477, 1),
        Fork::Prague | Fork::Osaka => (5_007_716, 2),
    };
    let view = context.store.view()?;
    let mut system_contracts = BTreeMap::new();
    for (name, address) in SYSTEM_CONTRACTS.into_iter().take(called) {
        if view.account(&address)?.is_some_and(|account| account.code_hash.is_some()) {
            system_contracts.insert(name, address);
        }
    }
    Ok(Config {
        activation_time,
        blob_schedule: BlobSchedule { base_fee_update_fraction, max: 0, target: 0 },
        chain_id: U64::from(context.chain.chain_id),
        fork_id: FixedBytes::from_slice(&id.0[..4]),
        precompiles: precompiles(evm),
        system_contracts,
    })
}

/// # Errors
/// If the fork begins at a batch beyond the next one: its time is unknown.
fn activation_s(context: &RpcContext, head: &BatchHeader, fork: &ScheduledFork) -> Result<u64, RpcError> {
    let first = match fork.at {
        Activation::TimeMs(first_ms) => return Ok(first_ms.div_ceil(1_000)),
        Activation::Batch(first) => first,
    };
    if first > head.number.next() {
        return Err(RpcError::Rejected(format!(
            "eth_config reports forks by their time, and the time of batch {first}, where fork {} begins, is not known yet: the \
             status (/v1/status) names the fork",
            fork.name
        )));
    }
    if first > head.number {
        return Ok(head.timestamp_ms / 1_000);
    }
    let header = context.store.header(first)?;
    Ok(header.map_or(0, |header| header.timestamp_ms / 1_000))
}
