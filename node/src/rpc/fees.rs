//! Suggests fees for a transaction. The base fee changes with forks only, so the past tells about tips.

use alloy_consensus::Transaction as _;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{U64, U256};
use alloy_rpc_types_eth::{BlockId, FeeHistory};
use jsonrpsee::types::Params;
use slipstream_executor::Envelope;
use slipstream_types::BatchNumber;

use super::{
    RpcContext,
    batches::Batch,
    errors::{RpcError, RpcResult},
    params::{Number, Strict, args},
    table::Asker,
};

/// Batches in one fee history, as in geth.
const HISTORY_MAX: u64 = 1_024;
/// Batches whose transactions are opened to answer for tips; fewer than asked for may be returned.
const HISTORY_WITH_TIPS_MAX: u64 = 64;
/// Percentiles in one request, as in geth.
const PERCENTILES_MAX: usize = 100;

/// The price of a unit of blob gas, if the chain had blobs: the least possible one.
pub(super) const BLOB_BASE_FEE_WEI: U64 = U64::from_limbs([1]);

/// The tip that gets a transaction into the next batch unless batches are full: a tenth of the base fee. That is small beside the
/// base fee, and above zero, so that it orders before transactions without a tip.
fn suggested_tip_wei(base_fee_wei: u64) -> u64 {
    (base_fee_wei / 10).max(1)
}

/// Of the batch that would be made now.
fn base_fee_wei(context: &RpcContext) -> Result<u64, RpcError> {
    Ok(context.store.next_rules()?.base_fee_wei)
}

/// `eth_baseFee`
pub(super) fn base_fee(context: &RpcContext) -> Result<U256, RpcError> {
    Ok(U256::from(base_fee_wei(context)?))
}

/// `eth_gasPrice`
pub(super) fn gas_price(context: &RpcContext) -> Result<U256, RpcError> {
    let base_fee_wei = base_fee_wei(context)?;
    Ok(U256::from(base_fee_wei) + U256::from(suggested_tip_wei(base_fee_wei)))
}

/// `eth_maxPriorityFeePerGas`
pub(super) fn priority_fee(context: &RpcContext) -> Result<U256, RpcError> {
    Ok(U256::from(suggested_tip_wei(base_fee_wei(context)?)))
}

/// `eth_feeHistory`
pub(super) fn history(context: &RpcContext, params: &Params<'_>, asker: &Asker<'_>) -> RpcResult<FeeHistory> {
    let (count, Strict(newest), percentiles): (serde_json::Value, Number, Option<Vec<f64>>) = args(params)?;
    let (count, percentiles) = (block_count(count)?, percentiles.unwrap_or_default());
    let ascending = percentiles.is_sorted() && percentiles.iter().all(|one| (0.0..=100.0).contains(one));
    if percentiles.len() > PERCENTILES_MAX || !ascending {
        let text = format!("percentiles must be at most {PERCENTILES_MAX}, ascending, from 0 to 100");
        return Err(RpcError::InvalidParams(text).into());
    }
    let Some(newest) = context.batch_number(BlockId::Number(newest))? else {
        return Err(RpcError::InvalidParams("the newest block does not exist yet".into()).into());
    };
    let most = if percentiles.is_empty() { HISTORY_MAX } else { HISTORY_WITH_TIPS_MAX };
    let count = count.min(most).min(newest.since(BatchNumber::GENESIS) + 1);
    // Fewer where headers were pruned.
    let oldest = newest.next().before(count).max(context.store.headers_floor().min(newest));
    let count = newest.since(oldest) + 1;
    let mut history = FeeHistory {
        base_fee_per_gas: Vec::new(),
        base_fee_per_blob_gas: vec![BLOB_BASE_FEE_WEI.to(); count as usize + 1],
        blob_gas_used_ratio: vec![0.0; count as usize],
        oldest_block: oldest.get(),
        ..FeeHistory::default()
    };
    let mut rewards = Vec::new();
    let mut timestamp_ms = 0;
    for number in oldest.through(newest) {
        asker.still_waits()?;
        let header = context.store.header(number).map_err(RpcError::from)?;
        let used = header.as_ref().map_or(0, |header| header.gas_used);
        // The headers that a restore leaves out were made before those that follow.
        timestamp_ms = header.map_or(timestamp_ms, |header| header.timestamp_ms);
        let rules = context.chain.rules_at(number, timestamp_ms);
        history.base_fee_per_gas.push(rules.base_fee_wei.into());
        history.gas_used_ratio.push(used as f64 / rules.gas_limit as f64);
        if !percentiles.is_empty() {
            let batch = context.batches.get(number)?;
            let none = || vec![0; percentiles.len()];
            rewards.push(
                batch.as_ref().map_or_else(none, |batch| tips(batch, &percentiles, rules.base_fee_wei)),
            );
        }
    }
    let behind = context.chain.rules_at(newest.next(), timestamp_ms);
    history.base_fee_per_gas.push(behind.base_fee_wei.into());
    history.reward = (!percentiles.is_empty()).then_some(rewards);
    Ok(history)
}

/// A number of blocks, as a quantity or, as old clients send it, as a number.
fn block_count(value: serde_json::Value) -> Result<u64, RpcError> {
    let count = match &value {
        serde_json::Value::Number(number) => number.as_u64(),
        _ => serde_json::from_value::<Strict<u64>>(value.clone()).ok().map(|count| count.0),
    };
    count
        .filter(|count| *count > 0)
        .ok_or_else(|| RpcError::InvalidParams(format!("{value} is not a number of blocks")))
}

/// The tip at each percentile of the batch's gas; zeros if nothing is known of its transactions.
fn tips(batch: &Batch, percentiles: &[f64], base_fee_wei: u64) -> Vec<u128> {
    let (Some(body), Some(receipts)) = (&batch.body, &batch.receipts) else {
        return vec![0; percentiles.len()];
    };
    let paid = body.transactions.iter().zip(&receipts.receipts).filter_map(|(raw, receipt)| {
        let envelope = Envelope::decode_2718_exact(&raw[..]).ok()?;
        Some((envelope.effective_tip_per_gas(base_fee_wei)?, receipt.gas_used))
    });
    tips_at(paid.collect(), percentiles)
}

fn tips_at(mut paid: Vec<(u128, u64)>, percentiles: &[f64]) -> Vec<u128> {
    paid.sort_unstable();
    let total: u64 = paid.iter().map(|(_, gas)| gas).sum();
    let tip_at = |percentile: &f64| {
        let threshold = (total as f64 * percentile / 100.0) as u64;
        let mut sum = 0;
        let found = paid.iter().find(|(_, gas)| {
            sum += gas;
            sum >= threshold
        });
        found.map_or(0, |(tip, _)| *tip)
    };
    percentiles.iter().map(tip_at).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn percentiles_are_weighted_by_gas() {
        let paid = vec![(9, 10), (1, 80), (5, 10)];
        assert_eq!(tips_at(paid, &[0.0, 50.0, 80.0, 85.0, 95.0, 100.0]), [1, 1, 1, 5, 9, 9]);
        assert_eq!(tips_at(Vec::new(), &[50.0]), [0]);
    }

    #[test]
    fn block_counts_in_both_forms() {
        assert_eq!(block_count(json!("0x14")).unwrap(), 20);
        assert_eq!(block_count(json!(20)).unwrap(), 20);
        for wrong in [json!("0x0"), json!(0), json!("twenty"), json!(-1), json!(null)] {
            assert!(block_count(wrong).is_err());
        }
    }
}
