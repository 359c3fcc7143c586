//! Ethereum's JSON-RPC over the node's store, pool and executor.
//!
//! A batch is shown as a block. Every committed batch is certified and final, so `latest`, `safe` and `finalized` are
//! the same. Past states are readable as far back as the store keeps them; older ones give an error that says so.

mod access_list;
pub mod batches;
mod blocks;
mod call;
mod caller;
mod effect;
mod errors;
mod feed;
mod fees;
#[cfg(any(test, feature = "testing"))]
pub mod fixture;
mod forks;
mod keeps;
mod lanes;
mod logs;
mod params;
mod pending_backfill;
mod proofs;
mod raw;
pub mod send_sync;
mod senders;
mod simulate;
mod state;
mod subscriptions;
mod table;
#[cfg(test)]
pub mod tests;
mod trace;
mod transactions;
mod txpool;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use alloy_primitives::{B256, Bytes, U64, keccak256};
use jsonrpsee_types::Params;
use serde_json::{Value, json};
use slipstream_base::client_version;
use slipstream_consensus::{Forwarder, Pool};
use slipstream_executor::Envelope;
use slipstream_fair::Workers;
use slipstream_network::Transport;
use slipstream_status::health::HealthSource;
use slipstream_storage::Store;
use slipstream_types::{ChainConfig, Clock};

pub use self::{
    batches::Batches,
    caller::Caller,
    effect::Effect,
    feed::{Feed, NewsSignal},
    fees::Congestion,
    keeps::Keeps,
    lanes::Lane,
    logs::{Filters, LogIndex, log_records_behind},
    subscriptions::{
        CostlyTurn, NewsStep, Notice, SubscriberSocket, SubscriptionError, Subscriptions, Tallies,
    },
    table::{Reply, Table},
    trace::TraceLimits,
    transactions::SEND_RAW,
};
use self::{
    errors::{RpcError, RpcResult},
    lanes::Lanes,
    params::{Hash, Number, Strict, args},
};

/// An Ethereum transaction as JSON-RPC shows it.
pub(crate) type RpcTransaction = alloy_rpc_types_eth::Transaction<Envelope>;

/// The context of every method.
pub struct RpcContext {
    /// The node's store.
    pub store: Store,
    /// The configuration of the chain.
    pub chain: ChainConfig,
    /// The waiting transactions.
    pub pool: Pool,
    /// Copies much of the pool at once on behalf of low-priority threads. If such a thread held the pool's lock,
    /// everyone would wait for it.
    pub pool_reader: Workers,
    /// Brings transactions to the validators.
    pub forwarder: Arc<Forwarder>,
    /// The network.
    pub transport: Arc<dyn Transport>,
    /// Whether the node is healthy.
    pub health: Arc<HealthSource>,
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
    /// Opens batches, and remembers those that were opened.
    pub batches: Batches,
    /// The tips that recent full batches show to be needed.
    pub congestion: Congestion,
    /// What this node keeps of transactions.
    pub keeps: Keeps,
    /// Finds logs across the chain.
    pub log_index: Arc<LogIndex>,
    /// The installed filters.
    pub filters: Arc<Filters>,
    /// The news for subscribers.
    pub feed: Arc<Feed>,
    /// How long an `eth_call` or `eth_estimateGas` may run.
    pub call_time_max: Duration,
    /// How long an `eth_sendRawTransactionSync` may wait.
    pub send_sync_time_max: Duration,
    /// How long a trace may run, and how long its answer may be.
    pub trace_limits: TraceLimits,
}

/// Builds the table of methods.
pub fn table(context: RpcContext) -> Table {
    methods(context, Lanes::new())
}

fn methods(context: RpcContext, lanes: Lanes) -> Table {
    let mut table = Table::new(context, lanes);
    table.plain(Lane::Reads, "web3_clientVersion", |_| Ok(client_version()));
    table.add(Lane::Reads, "web3_sha3", sha3);
    table.plain(Lane::Reads, "net_version", |context| Ok(context.chain.chain_id.to_string()));
    table.plain(Lane::Reads, "net_listening", |_| Ok(true));
    table.plain(Lane::Reads, "net_peerCount", |context| Ok(U64::from(context.transport.peers().len())));
    table.plain(Lane::Reads, "eth_chainId", |context| Ok(U64::from(context.chain.chain_id)));
    table.plain(Lane::Reads, "eth_config", |context| Ok(forks::config(context)?));
    table.plain(Lane::Reads, "eth_syncing", syncing);
    table.plain(Lane::Reads, "eth_accounts", |_| Ok(Vec::<alloy_primitives::Address>::new()));

    table.add(Lane::Reads, "eth_getBalance", state::balance);
    table.add(Lane::Reads, "eth_getTransactionCount", state::nonce);
    table.add(Lane::Reads, "eth_getCode", state::code);
    table.add(Lane::Reads, "eth_getStorageAt", state::storage);
    table.add_long(Lane::Calls, "eth_getStorageValues", state::storage_values);
    table.add_long(Lane::Calls, "eth_call", call::call);
    table.add_long(Lane::Calls, "eth_estimateGas", call::estimate);
    table.add_long(Lane::Calls, "eth_createAccessList", access_list::create);
    table.add_long(Lane::Calls, "eth_simulateV1", simulate::simulate);

    table.plain(Lane::Reads, "eth_baseFee", |context| Ok(fees::base_fee(context)?));
    table.add_long(Lane::Reads, "eth_gasPrice", fees::gas_price);
    table.add_long(Lane::Reads, "eth_maxPriorityFeePerGas", fees::priority_fee);
    table.plain(Lane::Reads, "eth_blobBaseFee", |_| Ok(fees::BLOB_BASE_FEE_WEI));
    table.add_long(Lane::Calls, "eth_feeHistory", fees::history);

    table.plain(Lane::Reads, "eth_blockNumber", blocks::block_number);
    table
        .add_long(Lane::Reads, "eth_getBlockByNumber", blocks::block::<Number>)
        .costly_if(lanes::names_every_transaction);
    table
        .add_long(Lane::Reads, "eth_getBlockByHash", blocks::block::<Hash>)
        .costly_if(lanes::names_every_transaction);
    table.add_long(Lane::Reads, "eth_getHeaderByNumber", blocks::header::<Number>);
    table.add_long(Lane::Reads, "eth_getHeaderByHash", blocks::header::<Hash>);
    table.add_long(Lane::Calls, "eth_getBlockReceipts", blocks::receipts);
    table.add(Lane::Reads, "eth_getBlockTransactionCountByNumber", blocks::transaction_count::<Number>);
    table.add(Lane::Reads, "eth_getBlockTransactionCountByHash", blocks::transaction_count::<Hash>);
    table.add(Lane::Reads, "eth_getUncleCountByBlockNumber", blocks::uncle_count::<Number>);
    table.add(Lane::Reads, "eth_getUncleCountByBlockHash", blocks::uncle_count::<Hash>);
    table.add(Lane::Reads, "eth_getUncleByBlockNumberAndIndex", blocks::uncle::<Number>);
    table.add(Lane::Reads, "eth_getUncleByBlockHashAndIndex", blocks::uncle::<Hash>);

    table.add_long(Lane::Transactions, SEND_RAW, transactions::send_raw);
    table.add_effect(Lane::Transactions, send_sync::NAME, send_sync::send);
    table.add_long(Lane::Reads, "eth_getTransactionByHash", transactions::by_hash);
    table.add_long(Lane::Reads, "eth_getTransactionByBlockNumberAndIndex", transactions::by_index::<Number>);
    table.add_long(Lane::Reads, "eth_getTransactionByBlockHashAndIndex", transactions::by_index::<Hash>);
    table.add_long(Lane::Reads, "eth_getTransactionReceipt", transactions::receipt);
    table.add_long(Lane::Reads, "eth_getRawTransactionByHash", raw::by_hash);
    table.add_long(Lane::Reads, "eth_getRawTransactionByBlockNumberAndIndex", raw::by_index::<Number>);
    table.add_long(Lane::Reads, "eth_getRawTransactionByBlockHashAndIndex", raw::by_index::<Hash>);
    table.add_long(Lane::Reads, "debug_getRawTransaction", raw::by_hash);

    table.add(Lane::Reads, "eth_getProof", proofs::no_trie);
    table.add_long(Lane::Calls, "slipstream_getProof", proofs::proof);
    table.add(Lane::Reads, "slipstream_getEpochChanges", proofs::epoch_changes);
    table.add(Lane::Reads, "slipstream_getWaypoint", proofs::waypoint);

    table.add_long(Lane::Searches, "eth_getLogs", logs::logs);
    table.add_long(Lane::Reads, "eth_newFilter", logs::filters::new_filter).costly_if(lanes::has_long_filter);
    table.add_long(Lane::Reads, "eth_newBlockFilter", logs::filters::new_block_filter);
    table.add_long(Lane::Reads, "eth_newPendingTransactionFilter", logs::filters::new_pending_filter);
    table.add(Lane::Reads, "eth_uninstallFilter", logs::filters::uninstall);
    table.add_effect(Lane::Searches, "eth_getFilterChanges", logs::filters::changes);
    table.add_long(Lane::Searches, "eth_getFilterLogs", logs::filters::filter_logs);
    table
        .add_effect(Lane::Reads, "eth_subscribe", subscriptions::subscribe)
        .costly_if(lanes::has_long_filter);
    table.add_long(Lane::Reads, "eth_unsubscribe", subscriptions::unsubscribe);

    table.plain(Lane::Reads, "txpool_status", txpool::status);
    table.add_long(Lane::Calls, "txpool_content", txpool::content);
    table.add_long(Lane::Calls, "txpool_contentFrom", txpool::content_from);
    table.add_long(Lane::Calls, "txpool_inspect", txpool::inspect);
    trace::add(&mut table);

    // Last, because it lists the methods present.
    let modules = modules(table.names());
    table.plain(Lane::Reads, "rpc_modules", move |_| Ok(modules.clone()));
    table
}

/// `rpc_modules`: the namespaces of the methods present, all in version 1.0, as in geth.
fn modules(names: impl Iterator<Item = &'static str>) -> BTreeMap<&'static str, &'static str> {
    let namespaces = names.filter_map(|name| name.split_once('_')).map(|(namespace, _)| namespace);
    namespaces.chain(["rpc"]).map(|namespace| (namespace, "1.0")).collect()
}

/// `web3_sha3`: Keccak-256, despite its name.
fn sha3(_: &RpcContext, params: &Params<'_>) -> RpcResult<B256> {
    let (Strict(data),): (Strict<Bytes>,) = args(params)?;
    Ok(keccak256(&data))
}

/// `eth_syncing`: false at the head, while closely behind it, and where the chain itself stands still, as there is
/// nothing to sync. It reports progress if the node is behind, is below the operator's waypoint, or hears from no peer.
fn syncing(context: &RpcContext) -> RpcResult<Value> {
    let health = context.health.read().map_err(RpcError::from)?;
    if !health.syncing {
        return Ok(json!(false));
    }
    let (head, highest) = (health.head, health.head.after(health.behind_batches));
    // Clients build a progress bar from these three.
    let start = context.health.syncing_from().unwrap_or(head);
    let [start, head, highest] = [start, head, highest].map(|number| U64::from(number.get()));
    Ok(json!({ "startingBlock": start, "currentBlock": head, "highestBlock": highest }))
}
