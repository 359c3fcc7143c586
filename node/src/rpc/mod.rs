//! Ethereum's JSON-RPC over the node's store, pool and executor.
//!
//! A batch is shown as a block. Every committed batch is certified and final, so `latest`, `safe` and `finalized` are the
//! same; states of the past are answered for as far back as the store keeps them, and others by an error that says so.

mod access_list;
mod batches;
mod blocks;
mod call;
mod errors;
mod fees;
mod lanes;
mod logs;
mod params;
mod senders;
mod simulate;
mod state;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod trace;
mod transactions;

use std::{sync::Arc, time::Duration};

use alloy_primitives::U64;
use serde_json::{Value, json};
use slipstream_consensus::{Forwarder, Pool};
use slipstream_executor::Envelope;
use slipstream_network::Transport;
use slipstream_storage::Store;
use slipstream_types::{ChainConfig, Clock};

pub(crate) use self::{
    batches::Batches,
    lanes::Lane,
    logs::{Filters, LogIndex, Poll},
    table::{Reply, Table},
    trace::TraceLimits,
};
use self::{
    errors::{RpcError, RpcResult},
    lanes::Lanes,
    params::{Hash, Number},
};
use crate::health::HealthSource;

/// An Ethereum transaction as JSON-RPC shows it.
pub(crate) type RpcTransaction = alloy_rpc_types_eth::Transaction<Envelope>;

/// What every method may use.
pub(crate) struct RpcContext {
    pub(crate) store: Store,
    pub(crate) chain: ChainConfig,
    pub(crate) pool: Pool,
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) health: Arc<HealthSource>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) batches: Batches,
    pub(crate) log_index: Arc<LogIndex>,
    pub(crate) filters: Arc<Filters>,
    /// How long an `eth_call` or `eth_estimateGas` may run.
    pub(crate) call_time_max: Duration,
    pub(crate) trace_limits: TraceLimits,
}

/// `slipstream/v0.1.0/linux-x86_64`, as `web3_clientVersion` and `/v1/status` give it.
pub(crate) fn client_version() -> String {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("slipstream/v{}/{os}-{arch}", env!("CARGO_PKG_VERSION"))
}

/// Builds the table of methods.
pub(crate) fn table(context: RpcContext) -> Table {
    methods(context, Lanes::new())
}

fn methods(context: RpcContext, lanes: Lanes) -> Table {
    let mut table = Table::new(context, lanes);
    table.plain("web3_clientVersion", |_| Ok(client_version()));
    table.plain("net_version", |context| Ok(context.chain.chain_id.to_string()));
    table.plain("net_listening", |_| Ok(true));
    table.plain("net_peerCount", |context| Ok(U64::from(context.transport.peers().len())));
    table.plain("eth_chainId", |context| Ok(U64::from(context.chain.chain_id)));
    table.plain("eth_syncing", syncing);
    table.plain("eth_accounts", |_| Ok(Vec::<alloy_primitives::Address>::new()));

    table.add("eth_getBalance", state::balance);
    table.add("eth_getTransactionCount", state::nonce);
    table.add("eth_getCode", state::code);
    table.add("eth_getStorageAt", state::storage);
    table.add_long("eth_call", call::call);
    table.add_long("eth_estimateGas", call::estimate);
    table.add_long("eth_createAccessList", access_list::create);
    table.add_long("eth_simulateV1", simulate::simulate);

    table.plain("eth_gasPrice", |context| Ok(fees::gas_price(context)?));
    table.plain("eth_maxPriorityFeePerGas", |context| Ok(fees::priority_fee(context)?));
    table.add_long("eth_feeHistory", fees::history);

    table.plain("eth_blockNumber", blocks::block_number);
    table.add_long("eth_getBlockByNumber", blocks::block::<Number>);
    table.add_long("eth_getBlockByHash", blocks::block::<Hash>);
    table.add_long("eth_getBlockReceipts", blocks::receipts);
    table.add("eth_getBlockTransactionCountByNumber", blocks::transaction_count::<Number>);
    table.add("eth_getBlockTransactionCountByHash", blocks::transaction_count::<Hash>);
    table.add("eth_getUncleCountByBlockNumber", blocks::uncle_count::<Number>);
    table.add("eth_getUncleCountByBlockHash", blocks::uncle_count::<Hash>);

    table.add_long("eth_sendRawTransaction", transactions::send_raw);
    table.add("eth_getTransactionByHash", transactions::by_hash);
    table.add("eth_getTransactionByBlockNumberAndIndex", transactions::by_index::<Number>);
    table.add("eth_getTransactionByBlockHashAndIndex", transactions::by_index::<Hash>);
    table.add("eth_getTransactionReceipt", transactions::receipt);

    table.add_long("eth_getLogs", logs::logs);
    table.add_long("eth_newFilter", logs::filters::new_filter);
    table.add_long("eth_newBlockFilter", logs::filters::new_block_filter);
    table.add_long("eth_newPendingTransactionFilter", logs::filters::new_pending_filter);
    table.add("eth_uninstallFilter", logs::filters::uninstall);
    table.add_poll("eth_getFilterChanges", logs::filters::changes);
    table.add_long("eth_getFilterLogs", logs::filters::filter_logs);
    trace::add(&mut table);
    table
}

/// `eth_syncing`: false at the head, while following it closely, and where the chain itself stands still: then there is nothing to sync.
/// A node that is behind, that has not passed the operator's waypoint, or that hears of no peer and cannot know, says how far it is.
fn syncing(context: &RpcContext) -> RpcResult<Value> {
    let health = context.health.read().map_err(RpcError::from)?;
    if !health.syncing {
        return Ok(json!(false));
    }
    let highest = health.head.after(health.behind_batches);
    let (head, highest) = (U64::from(health.head.get()), U64::from(highest.get()));
    Ok(json!({ "startingBlock": head, "currentBlock": head, "highestBlock": highest }))
}
