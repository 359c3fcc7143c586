//! Ethereum's JSON-RPC over the node's store, pool and executor.
//!
//! A batch is shown as a block. Every committed batch is certified and final, so `latest`, `safe` and `finalized` are the
//! same; state is kept for the head alone, and a question about another state is answered by an error that says so.

mod batches;
mod blocks;
mod call;
mod errors;
mod fees;
mod params;
mod senders;
mod state;
#[cfg(test)]
pub(crate) mod tests;
mod transactions;

use std::sync::Arc;

use alloy_primitives::U64;
use jsonrpsee::{RpcModule, core::RegisterMethodError, types::Params};
use serde_json::{Value, json, value::to_raw_value};
use slipstream_consensus::{Forwarder, Pool};
use slipstream_executor::Envelope;
use slipstream_network::Transport;
use slipstream_storage::Store;
use slipstream_types::{ChainConfig, Clock};

pub(crate) use self::batches::Batches;
use self::{
    errors::{RpcError, RpcResult},
    params::{Hash, Number, args},
};
use crate::{blocking::Blocking, health::HealthSource};

/// An Ethereum transaction as JSON-RPC shows it.
pub(crate) type RpcTransaction = alloy_rpc_types_eth::Transaction<Envelope>;

/// Most threads that calls take at once, far below the 512 that tokio has for everybody: consensus and sync never wait for them.
const THREADS_MAX: usize = 64;

/// Calls read the disk or compute: two a core and some that wait for the disk.
fn threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (2 * cores + 8).min(THREADS_MAX)
}

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
}

/// `slipstream/v0.1.0/linux-x86_64`, as `web3_clientVersion` and `/v1/status` give it.
pub(crate) fn client_version() -> String {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("slipstream/v{}/{os}-{arch}", env!("CARGO_PKG_VERSION"))
}

/// Builds the table of methods.
pub(crate) fn module(context: RpcContext) -> Result<RpcModule<RpcContext>, RegisterMethodError> {
    let mut table = Table { module: RpcModule::new(context), blocking: Blocking::new(threads()) };
    table.plain("web3_clientVersion", |_| Ok(client_version()))?;
    table.plain("net_version", |context| Ok(context.chain.chain_id.to_string()))?;
    table.plain("net_listening", |_| Ok(true))?;
    table.plain("net_peerCount", |context| Ok(U64::from(context.transport.peers().len())))?;
    table.plain("eth_chainId", |context| Ok(U64::from(context.chain.chain_id)))?;
    table.plain("eth_syncing", syncing)?;
    table.plain("eth_accounts", |_| Ok(Vec::<alloy_primitives::Address>::new()))?;

    table.add("eth_getBalance", state::balance)?;
    table.add("eth_getTransactionCount", state::nonce)?;
    table.add("eth_getCode", state::code)?;
    table.add("eth_getStorageAt", state::storage)?;
    table.add("eth_call", call::call)?;
    table.add("eth_estimateGas", call::estimate)?;

    table.plain("eth_gasPrice", |context| Ok(fees::gas_price(context)))?;
    table.plain("eth_maxPriorityFeePerGas", |context| Ok(fees::priority_fee(context)))?;
    table.add("eth_feeHistory", fees::history)?;

    table.plain("eth_blockNumber", blocks::block_number)?;
    table.add("eth_getBlockByNumber", blocks::block::<Number>)?;
    table.add("eth_getBlockByHash", blocks::block::<Hash>)?;
    table.add("eth_getBlockReceipts", blocks::receipts)?;
    table.add("eth_getBlockTransactionCountByNumber", blocks::transaction_count::<Number>)?;
    table.add("eth_getBlockTransactionCountByHash", blocks::transaction_count::<Hash>)?;
    table.add("eth_getUncleCountByBlockNumber", blocks::uncle_count::<Number>)?;
    table.add("eth_getUncleCountByBlockHash", blocks::uncle_count::<Hash>)?;

    table.add("eth_sendRawTransaction", transactions::send_raw)?;
    table.add("eth_getTransactionByHash", transactions::by_hash)?;
    table.add("eth_getTransactionByBlockNumberAndIndex", transactions::by_index::<Number>)?;
    table.add("eth_getTransactionByBlockHashAndIndex", transactions::by_index::<Hash>)?;
    table.add("eth_getTransactionReceipt", transactions::receipt)?;
    table.add("eth_getLogs", transactions::logs)?;
    Ok(table.module)
}

struct Table {
    module: RpcModule<RpcContext>,
    blocking: Blocking,
}

impl Table {
    /// A method without parameters.
    fn plain<T: serde::Serialize>(
        &mut self,
        name: &'static str,
        method: impl Fn(&RpcContext) -> RpcResult<T> + Clone + Send + Sync + 'static,
    ) -> Result<(), RegisterMethodError> {
        self.add(name, move |context, params| {
            let () = args(params)?;
            method(context)
        })
    }

    /// Methods read the store or run the EVM, so each call gets a thread that may block, and writes its answer there. Each reads
    /// its parameters by `args`, which refuses what the method does not know.
    fn add<T: serde::Serialize>(
        &mut self,
        name: &'static str,
        method: impl Fn(&RpcContext, &Params<'_>) -> RpcResult<T> + Clone + Send + Sync + 'static,
    ) -> Result<(), RegisterMethodError> {
        let blocking = self.blocking.clone();
        self.module.register_async_method(name, move |params, context, _| {
            let (blocking, method) = (blocking.clone(), method.clone());
            async move {
                let call = move || -> RpcResult<_> {
                    let result = method(&context, &params)?;
                    to_raw_value(&result).map_err(|error| RpcError::internal(name, &error).into())
                };
                blocking.run(call).await.unwrap_or_else(|error| Err(RpcError::internal(name, &error).into()))
            }
        })?;
        Ok(())
    }
}

/// `eth_syncing`: false at the head, while following it closely, and where the chain itself stands still: then there is nothing to sync.
/// A node that is behind, that has not passed the operator's waypoint, or that hears of no peer and cannot know, says how far it is.
fn syncing(context: &RpcContext) -> RpcResult<Value> {
    let health = context.health.read().map_err(RpcError::from)?;
    if !health.syncing {
        return Ok(json!(false));
    }
    let (head, highest) = (health.head.0, health.head.0 + health.behind_batches);
    let (head, highest) = (U64::from(head), U64::from(highest));
    Ok(json!({ "startingBlock": head, "currentBlock": head, "highestBlock": highest }))
}
