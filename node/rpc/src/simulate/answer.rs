//! Simulated batches shown as blocks.

use alloy_consensus::{
    Header as ConsensusHeader, SignableTransaction, TxEip1559, TxEip7702,
    constants::{EMPTY_OMMER_ROOT_HASH, EMPTY_WITHDRAWALS},
    transaction::Recovered,
};
use alloy_eips::{eip2718::Encodable2718, eip7685::EMPTY_REQUESTS_HASH, eip7702::SignedAuthorization};
use alloy_primitives::{B256, Bloom, Bytes, Signature, TxKind, U64, U256};
use alloy_rpc_types_eth::{Block, BlockTransactions, Header, Log};
use serde::Serialize;
use slipstream_executor::{BatchEnv, CallRequest, Envelope, SimulatedBatch, SimulatedCall, SpecId};

use super::request::BlockAsked;
use crate::{RpcTransaction, errors::RpcError};

/// "Execution error" in the execution APIs.
const VM_ERROR_CODE: i32 = -32015;
/// The code of a reverted `eth_call`.
const REVERTED_CODE: i32 = 3;

/// A block and the results of its calls.
#[derive(Serialize)]
pub(crate) struct SimulatedBlock {
    #[serde(flatten)]
    block: Block<RpcTransaction>,
    calls: Vec<CallResult>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallResult {
    status: U64,
    return_data: Bytes,
    gas_used: U64,
    logs: Vec<Log>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<CallError>,
}

#[derive(Serialize)]
struct CallError {
    code: i32,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Bytes>,
}

impl SimulatedBlock {
    /// Builds the answer for a simulated batch and its request.
    pub(super) fn new(
        chain_id: u64,
        batch: SimulatedBatch,
        asked: &BlockAsked,
        is_full: bool,
    ) -> SimulatedBlock {
        let asked = asked.calls.iter().zip(&asked.authorizations);
        let envelopes: Vec<(Envelope, &CallRequest)> = asked
            .zip(&batch.calls)
            .map(|((request, signed), call)| (envelope(chain_id, request, signed, call), request))
            .collect();
        let inner = header(&batch);
        let hash = inner.hash_slow();
        let size = envelopes.iter().map(|(envelope, _)| envelope.encode_2718_len()).sum::<usize>();
        let header = Header { hash, inner, total_difficulty: None, size: Some(U256::from(size)) };
        let hashes: Vec<B256> = envelopes.iter().map(|(envelope, _)| *envelope.tx_hash()).collect();
        let transactions = if is_full {
            let whole = envelopes.into_iter().enumerate();
            BlockTransactions::Full(
                whole.map(|(at, (envelope, request))| shown(envelope, request, &header, at)).collect(),
            )
        } else {
            BlockTransactions::Hashes(hashes.clone())
        };
        let mut logs_before = 0;
        let calls = batch.calls.into_iter().zip(hashes).enumerate();
        let calls = calls.map(|(at, (call, hash))| {
            let first = logs_before;
            logs_before += call.logs.len() as u64;
            CallResult::new(call, &header, (at as u64, hash), first)
        });
        let calls = calls.collect();
        let block = Block { header, uncles: Vec::new(), transactions, withdrawals: None };
        SimulatedBlock { block: block.with_withdrawals(Some(Default::default())), calls }
    }

    pub(super) fn hash(&self) -> B256 {
        self.block.header.hash
    }
}

/// Builds the header. The roots stay zero, because a simulated state is not kept.
fn header(batch: &SimulatedBatch) -> ConsensusHeader {
    let env: &BatchEnv = &batch.env;
    let mut logs_bloom = Bloom::ZERO;
    batch.calls.iter().flat_map(|call| &call.logs).for_each(|log| logs_bloom.accrue_log(log));
    ConsensusHeader {
        parent_hash: env.parent_hash,
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        beneficiary: env.beneficiary,
        state_root: B256::ZERO,
        transactions_root: B256::ZERO,
        receipts_root: B256::ZERO,
        logs_bloom,
        difficulty: env.difficulty,
        number: env.number,
        gas_limit: env.gas_limit,
        gas_used: batch.gas_used,
        timestamp: env.timestamp_s,
        mix_hash: env.prev_randao.unwrap_or_default(),
        base_fee_per_gas: Some(env.base_fee_wei),
        withdrawals_root: Some(EMPTY_WITHDRAWALS),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: env.parent_beacon_root,
        requests_hash: env.spec.is_enabled_in(SpecId::PRAGUE).then_some(EMPTY_REQUESTS_HASH),
        ..Default::default()
    }
}

/// The transaction equivalent to the call, with an empty signature.
fn envelope(
    chain_id: u64,
    request: &CallRequest,
    signed: &[SignedAuthorization],
    call: &SimulatedCall,
) -> Envelope {
    let signature = Signature::new(U256::ZERO, U256::ZERO, false);
    let (nonce, gas_limit, value) = (call.nonce, call.gas_limit, request.value);
    let (input, access_list) = (request.data.clone(), request.access_list.clone());
    let (max_fee_per_gas, max_priority_fee_per_gas) = (request.max_fee_wei, request.max_tip_wei);
    if let (Some(to), true) = (request.to, request.authorizations.is_some()) {
        let transaction = TxEip7702 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to,
            value,
            access_list,
            authorization_list: signed.to_vec(),
            input,
        };
        return transaction.into_signed(signature).into();
    }
    let to = request.to.map_or(TxKind::Create, TxKind::Call);
    let transaction = TxEip1559 {
        chain_id,
        nonce,
        gas_limit,
        max_fee_per_gas,
        max_priority_fee_per_gas,
        to,
        value,
        access_list,
        input,
    };
    transaction.into_signed(signature).into()
}

fn shown(envelope: Envelope, request: &CallRequest, header: &Header, at: usize) -> RpcTransaction {
    let base_fee_wei = u128::from(header.inner.base_fee_per_gas.unwrap_or_default());
    let price = request.max_fee_wei.min(base_fee_wei.saturating_add(request.max_tip_wei));
    RpcTransaction {
        inner: Recovered::new_unchecked(envelope, request.from),
        block_hash: Some(header.hash),
        block_number: Some(header.inner.number),
        transaction_index: Some(at as u64),
        effective_gas_price: Some(price),
        block_timestamp: Some(header.inner.timestamp),
    }
}

impl CallResult {
    fn new(call: SimulatedCall, header: &Header, (at, hash): (u64, B256), logs_before: u64) -> CallResult {
        let SimulatedCall { outcome, logs, .. } = call;
        let logs = logs.into_iter().zip(logs_before..).map(|(inner, log_index)| Log {
            inner,
            block_hash: Some(header.hash),
            block_number: Some(header.inner.number),
            block_timestamp: Some(header.inner.timestamp),
            transaction_hash: Some(hash),
            transaction_index: Some(at),
            log_index: Some(log_index),
            removed: false,
        });
        let error = match (outcome.success, outcome.halt) {
            (true, _) => None,
            (false, Some(message)) => Some(CallError { code: VM_ERROR_CODE, message, data: None }),
            (false, None) => {
                let output = outcome.output.clone();
                let message = RpcError::reverted(outcome.revert_reason, output.clone()).to_string();
                Some(CallError { code: REVERTED_CODE, message, data: Some(output) })
            }
        };
        CallResult {
            status: U64::from(outcome.success),
            // Revert data goes into the error's data.
            return_data: if outcome.success { outcome.output } else { Bytes::new() },
            gas_used: U64::from(outcome.gas_used),
            logs: logs.collect(),
            error,
        }
    }
}
