//! Suggests fees for a transaction. The base fee changes only with forks, so the past informs only the tip.

use std::fmt;

use alloy_consensus::Transaction as _;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{U64, U256};
use alloy_rpc_types_eth::{BlockId, FeeHistory};
use jsonrpsee_types::Params;
use parking_lot::Mutex;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, Visitor},
};
use slipstream_executor::Envelope;
use slipstream_types::{BatchNumber, batch::RawTransaction};

use super::{
    RpcContext,
    batches::{Batch, BatchParts, Reader},
    errors::{RpcError, RpcResult},
    params::{AtMost, Number, Strict, args},
    table::CallContext,
};

/// Maximum number of batches in one fee history, as in geth.
const HISTORY_MAX: u64 = 1_024;
/// Maximum number of batches whose transactions are opened for their tips; an answer may cover fewer batches than
/// requested.
const HISTORY_WITH_TIPS_MAX: u64 = 64;
/// Maximum number of percentiles in one request, as in geth.
const PERCENTILES_MAX: usize = 100;

/// The lowest possible price of a unit of blob gas, given although the chain has no blobs.
pub(super) const BLOB_BASE_FEE_WEI: U64 = U64::from_limbs([1]);

/// The number of batches up to the head whose tips are examined, and the number of transactions examined in each full
/// batch. These are its last transactions, because proposers take the best first. So one request opens few bodies, and
/// further requests with the same head open none.
const RECENT_BATCHES: u64 = 8;
const TIPS_PER_BATCH: usize = 32;
/// The part of its gas limit, as a divisor, from which a batch counts as full. Transaction count and time also bound a
/// batch.
const FULL_SHARE: u64 = 2;
/// The percentile of the examined tips that is suggested, as in geth.
const TIPS_PERCENTILE: usize = 60;

/// The tip that gets a transaction into the next batch, the highest of three:
///
/// * A tenth of the base fee. It is small next to the base fee, but above zero, so the transaction is ordered before
///   those without a tip.
/// * The pool's minimum while it is full and for a while afterwards, so that this node accepts the tip it suggested.
/// * The tips that the last transactions of recent full batches paid.
fn suggested_tip_wei(context: &RpcContext, base_fee_wei: u64, reader: Reader<'_>) -> Result<u128, RpcError> {
    let least_wei = u128::from(base_fee_wei / 10).max(1);
    let paid_wei = context.congestion.tip_wei(context, reader)?;
    Ok(least_wei.max(context.pool.entry_tip_wei()).max(paid_wei))
}

/// The recent cost of a place in a full batch, with the head for which it was computed.
#[derive(Default)]
pub struct Congestion(Mutex<Option<(BatchNumber, u128)>>);

impl Congestion {
    /// Wei per gas; 0 if no recent batch was full.
    pub(super) fn tip_wei(&self, context: &RpcContext, reader: Reader<'_>) -> Result<u128, RpcError> {
        let head = context.store.head()?.header.number;
        if let Some((found, tip_wei)) = *self.0.lock()
            && found == head
        {
            return Ok(tip_wei);
        }
        let mut tips = Vec::new();
        let oldest = head.before(RECENT_BATCHES - 1).max(context.store.headers_floor());
        for number in oldest.through(head) {
            tips.extend(tips_of_full(context, number, reader)?);
        }
        tips.sort_unstable();
        let tip_wei = tips.get(tips.len() * TIPS_PERCENTILE / 100).copied().unwrap_or(0);
        *self.0.lock() = Some((head, tip_wei));
        Ok(tip_wei)
    }
}

/// The tips of a full batch's last transactions. A large batch is left out, because this must stay a cheap request.
fn tips_of_full(
    context: &RpcContext,
    number: BatchNumber,
    reader: Reader<'_>,
) -> Result<Vec<u128>, RpcError> {
    let Some(header) = context.store.header(number)? else { return Ok(Vec::new()) };
    let rules = context.chain.rules_at(number, header.timestamp_ms);
    if header.gas_used < rules.gas_limit / FULL_SHARE {
        return Ok(Vec::new());
    }
    let batch = match context.batches.get(number, BatchParts::Body, reader) {
        Err(RpcError::LargeBatch) => None,
        batch => batch?,
    };
    let Some(body) = batch.as_ref().and_then(|batch| batch.body().ok()) else { return Ok(Vec::new()) };
    let last = body.transactions.iter().rev().take(TIPS_PER_BATCH);
    let tip = |raw: &RawTransaction| {
        Envelope::decode_2718_exact(&raw[..]).ok()?.effective_tip_per_gas(rules.base_fee_wei)
    };
    Ok(last.filter_map(tip).collect())
}

/// The base fee of a batch proposed now.
fn base_fee_wei(context: &RpcContext) -> Result<u64, RpcError> {
    Ok(context.store.next_rules()?.base_fee_wei)
}

/// `eth_baseFee`
pub(super) fn base_fee(context: &RpcContext) -> Result<U256, RpcError> {
    Ok(U256::from(base_fee_wei(context)?))
}

/// `eth_gasPrice`
pub(super) fn gas_price(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<U256> {
    Ok(U256::from(base_fee_wei(context)?) + priority_fee(context, params, asker)?)
}

/// `eth_maxPriorityFeePerGas`
pub(super) fn priority_fee(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<U256> {
    let () = args(params)?;
    Ok(U256::from(suggested_tip_wei(context, base_fee_wei(context)?, asker.reader())?))
}

/// `eth_feeHistory`
pub(super) fn history(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<History> {
    let (Count(count), Strict(newest), percentiles): (Count, Number, Option<Percentiles>) = args(params)?;
    if count == 0 {
        return Ok(History::NoBatches { oldest_block: U64::ZERO, gas_used_ratio: () });
    }
    let percentiles = percentiles.unwrap_or_default();
    check_percentiles(&percentiles)?;
    let head = context.store.head().map_err(RpcError::from)?.header.number;
    let newest = context.asked(BlockId::Number(newest), head)?;
    if newest > head {
        let text = format!("request beyond head block: requested {newest}, head {head}");
        return Err(RpcError::Rejected(text).into());
    }
    Ok(History::Batches(fees(context, asker, count, newest, &percentiles.first)?))
}

type Percentiles = AtMost<f64, PERCENTILES_MAX>;

/// Checks percentiles; the errors are in geth's words.
fn check_percentiles(percentiles: &Percentiles) -> Result<(), RpcError> {
    let refuse = |what: String| Err(RpcError::Rejected(format!("invalid reward percentile: {what}")));
    let AtMost { first: percentiles, len } = percentiles;
    if *len > PERCENTILES_MAX {
        return refuse(format!("over the query limit {PERCENTILES_MAX}"));
    }
    // The first fault is reported, whichever kind it is.
    let mut before = None;
    for (at, one) in percentiles.iter().enumerate() {
        if !(0.0..=100.0).contains(one) {
            return refuse(format!("{one:.6}"));
        }
        if let Some((place, last)) = before.replace((at, one))
            && one <= last
        {
            return refuse(format!("#{place}:{last:.6} >= #{at}:{one:.6}"));
        }
    }
    Ok(())
}

/// The fees of at most `count` batches up to `newest`.
fn fees(
    context: &RpcContext,
    asker: &CallContext<'_>,
    count: u64,
    newest: BatchNumber,
    percentiles: &[f64],
) -> Result<FeeHistory, RpcError> {
    let most = if percentiles.is_empty() { HISTORY_MAX } else { HISTORY_WITH_TIPS_MAX };
    let count = count.min(most).min(newest.since(BatchNumber::GENESIS) + 1);
    // The answer covers fewer batches where headers were pruned.
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
        let header = context.store.header(number)?;
        let used = header.as_ref().map_or(0, |header| header.gas_used);
        // A restore leaves out some headers. Their batches get the time of the last header before them, or 0.
        timestamp_ms = header.map_or(timestamp_ms, |header| header.timestamp_ms);
        let rules = context.chain.rules_at(number, timestamp_ms);
        history.base_fee_per_gas.push(rules.base_fee_wei.into());
        history.gas_used_ratio.push(used as f64 / rules.gas_limit as f64);
        if !percentiles.is_empty() {
            let batch = context.batches.get(number, BatchParts::Both, Reader::passing(asker.leash))?;
            let none = || vec![0; percentiles.len()];
            rewards
                .push(batch.as_ref().map_or_else(none, |batch| tips(batch, percentiles, rules.base_fee_wei)));
        }
    }
    let behind = context.chain.rules_at(newest.next(), timestamp_ms);
    history.base_fee_per_gas.push(behind.base_fee_wei.into());
    history.reward = (!percentiles.is_empty()).then_some(rewards);
    Ok(history)
}

/// The answer.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum History {
    Batches(FeeHistory),
    /// The caller requested no batch. geth answers null for the list, too.
    #[serde(rename_all = "camelCase")]
    NoBatches {
        oldest_block: U64,
        gas_used_ratio: (),
    },
}

/// A number of blocks in every form that geth accepts: hexadecimal digits after `0x`, decimal digits, leading zeros or
/// none, or a JSON number. An empty text is zero.
#[derive(Debug, PartialEq)]
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

struct CountVisitor;

impl Visitor<'_> for CountVisitor {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of blocks: hexadecimal digits after 0x, or decimal ones")
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<Count, E> {
        Ok(Count(count))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Count, E> {
        if text.is_empty() {
            return Ok(Count(0));
        }
        let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let (digits, radix) = hexadecimal.map_or((text, 10), |digits| (digits, 16));
        // Rust would accept a sign.
        let count = u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'));
        count.map(Count).ok_or_else(|| E::custom(format!("invalid hex or decimal integer {text:?}")))
    }
}

/// The tip at each percentile of the batch's gas; zeros if its transactions are unknown.
fn tips(batch: &Batch, percentiles: &[f64], base_fee_wei: u64) -> Vec<u128> {
    let (Ok(body), Ok(receipts)) = (batch.body(), batch.receipts()) else {
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
    fn block_counts_in_all_forms_of_geth() {
        let read = |value| serde_json::from_value::<Count>(value).map_err(|error| error.to_string());
        for (value, count) in [
            (json!("0x14"), 20),
            (json!("0X14"), 20),
            (json!("0x0014"), 20),
            (json!("20"), 20),
            (json!("0020"), 20),
            (json!(20), 20),
            (json!("0x0"), 0),
            (json!("0"), 0),
            (json!(""), 0),
            (json!(0), 0),
            (json!("0xffffffffffffffff"), u64::MAX),
        ] {
            assert_eq!(read(value.clone()), Ok(Count(count)), "{value}");
        }
        for wrong in ["twenty", "0x", "-1", "+1", "0x+1", " 1", "1_0", "14f", "0x10000000000000000"] {
            let refusal = format!("invalid hex or decimal integer {wrong:?}");
            assert_eq!(read(json!(wrong)), Err(refusal), "{wrong}");
        }
        for wrong in [json!(-1), json!(1.5), json!(null), json!([1])] {
            assert!(read(wrong.clone()).unwrap_err().contains("expected a number of blocks"), "{wrong}");
        }
    }

    #[test]
    fn percentiles_are_refused_in_geths_words() {
        let check =
            |percentiles: &[f64]| check_percentiles(&serde_json::from_value(json!(percentiles)).unwrap());
        let refused = |percentiles: &[f64]| check(percentiles).unwrap_err().to_string();
        assert!(check(&[]).is_ok());
        assert!(check(&[0.0, 12.5, 100.0]).is_ok());
        assert_eq!(refused(&[-0.5]), "invalid reward percentile: -0.500000");
        assert_eq!(refused(&[50.0, 100.5]), "invalid reward percentile: 100.500000");
        assert_eq!(refused(&[1.0, 5.0, 2.5]), "invalid reward percentile: #1:5.000000 >= #2:2.500000");
        let first = "invalid reward percentile: #0:5.000000 >= #1:2.000000";
        assert_eq!(refused(&[5.0, 2.0, 101.0]), first, "the range of a later one is not looked at");
        assert_eq!(refused(&[5.0, 5.0]), "invalid reward percentile: #0:5.000000 >= #1:5.000000");
        let many: Vec<f64> = (0..=PERCENTILES_MAX).map(|one| one as f64 / 10.0).collect();
        assert_eq!(refused(&many), "invalid reward percentile: over the query limit 100");
        assert!(check(&many[1..]).is_ok());
    }
}
