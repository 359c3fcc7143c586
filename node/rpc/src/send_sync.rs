//! `eth_sendRawTransactionSync` (EIP-7966): sends a transaction and answers with its receipt, or with the time that the
//! node waited.
//!
//! ```text
//!  asked ─▶ the pool takes it, on a thread of its lane ─▶ waits, without a thread ─▶ its batch is committed ─▶ the receipt, on a thread
//!                 └─▶ refused, or cannot execute now            └─▶ the time is over
//! ```

use std::time::Duration;

use alloy_primitives::{B256, Bytes, keccak256};
use jsonrpsee_types::Params;
use serde_json::value::{RawValue, to_raw_value};
use slipstream_fair::{Leash, Origin};

use super::{
    RpcContext,
    batches::Reader,
    effect::Effect,
    errors::{RpcError, RpcResult},
    feed::ReceiptWait,
    lanes::Lane,
    params::{Strict, args},
    table::{CallContext, Table},
    transactions,
};

/// The name of the method.
pub const NAME: &str = "eth_sendRawTransactionSync";
/// The time to wait unless the caller sets one, as the EIP recommends.
const TIME: Duration = Duration::from_secs(2);

/// Submits the transaction. The answer follows later: see [`Table::receipt`].
pub(super) fn send(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> (RpcResult<B256>, Option<Effect>) {
    match sent(context, params, asker) {
        Ok(awaited) => (Ok(awaited.hash), Some(Effect::Receipt(awaited))),
        Err(error) => (Err(error.into()), None),
    }
}

fn sent(context: &RpcContext, params: &Params<'_>, asker: &CallContext<'_>) -> Result<ReceiptWait, RpcError> {
    let (Strict(raw), wanted): (Strict<Bytes>, Option<Box<RawValue>>) = args(params)?;
    // A transaction whose receipt could never be found is refused.
    context.keeps.check_found()?;
    let time = time(wanted.as_deref(), context.send_sync_time_max);
    let awaited = context.feed.await_receipt(keccak256(&raw), time);
    let hash = context.forwarder.submit(&raw, asker.origin.stranger())?;
    if context.pool.is_waiting(&hash) {
        return Err(RpcError::NotReady { hash });
    }
    Ok(awaited)
}

/// The caller's time in milliseconds, as a number or a quantity, if it is within the limit. Otherwise the node's own
/// time, as the EIP requires.
fn time(wanted: Option<&RawValue>, max: Duration) -> Duration {
    // Any other value may be as long as a request, and would take far more memory once parsed.
    let text = wanted.map_or("", RawValue::get);
    let quantity = || serde_json::from_str::<Strict<u64>>(text).map(|ms| ms.0).ok();
    let ms = serde_json::from_str(text).ok().or_else(quantity);
    let wanted = ms.map(Duration::from_millis).filter(|time| !time.is_zero() && *time <= max);
    wanted.unwrap_or(TIME.min(max))
}

impl Table {
    /// The receipt of a submitted transaction, once available.
    pub(super) async fn receipt(&self, origin: Origin, awaited: ReceiptWait) -> RpcResult<Box<RawValue>> {
        awaited.over().await;
        let (context, hash) = (self.context.clone(), awaited.hash);
        let read = async |lane| {
            let context = context.clone();
            let read = move |leash: &Leash| {
                let receipt = transactions::receipt_of(&context, &hash, Reader::on(lane, leash))?;
                // Formatted on this thread: it may be long.
                let written = receipt.map(|receipt| to_raw_value(&receipt)).transpose();
                written.map_err(|error| RpcError::internal(NAME, &error))
            };
            let found = self.lanes.of(lane).run_while_awaited(origin, None, read).await;
            found.map_err(|panic| RpcError::internal(NAME, &panic))?
        };
        let found = match read(Lane::Reads).await {
            Err(RpcError::LargeBatch) => read(Lane::Batches).await,
            found => found,
        };
        Ok(found?.ok_or(RpcError::NotIncluded { hash, time: awaited.time })?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_that_are_allowed_count() {
        let max = Duration::from_secs(20);
        for (wanted, ms) in [
            (json!(5_000), 5_000),
            (json!("0x1388"), 5_000),
            (json!(20_000), 20_000),
            (json!(20_001), 2_000),
            (json!(0), 2_000),
            (json!(-1), 2_000),
            (json!(1.5), 2_000),
            (json!("5000"), 2_000),
            (json!(null), 2_000),
            (json!({}), 2_000),
        ] {
            assert_eq!(
                time(Some(&to_raw_value(&wanted).unwrap()), max),
                Duration::from_millis(ms),
                "{wanted}"
            );
        }
        assert_eq!(time(None, max), TIME);
        assert_eq!(
            time(None, Duration::from_millis(7)),
            Duration::from_millis(7),
            "it may be less than usual"
        );
    }
}
