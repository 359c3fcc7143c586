//! `txpool_*`: the transactions in this node's pool. A pool that does not fit in one answer is refused with its size: a
//! part would look like the whole.

use std::{collections::BTreeMap, fmt::Write};

use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, U64};
use jsonrpsee_types::Params;
use serde::Serialize;
use slipstream_consensus::{ContentLimit, PoolContent};
use slipstream_executor::Transaction;

use super::{
    RpcContext, RpcTransaction,
    errors::{RpcError, RpcResult},
    params::{Strict, args},
    table::CallContext,
    transactions::pending,
};

/// The limits of one answer: some ten megabytes of JSON.
const CONTENT: ContentLimit = ContentLimit { transactions_max: 8_192, bytes_max: 4 << 20 };
/// The limits of one answer if each transaction is one line.
const INSPECTED: ContentLimit = ContentLimit { transactions_max: 32_768, bytes_max: 32 << 20 };

/// Values by nonce, which is a decimal number here.
type ByNonce<T> = BTreeMap<u64, T>;

/// The transactions that can execute, and those that wait for a nonce or for funds.
#[derive(Debug, Serialize)]
pub(super) struct PoolParts<T> {
    pending: T,
    queued: T,
}

/// `txpool_status`
pub(super) fn status(context: &RpcContext) -> RpcResult<PoolParts<U64>> {
    let status = context.pool.status();
    Ok(PoolParts { pending: U64::from(status.pending), queued: U64::from(status.queued) })
}

/// `txpool_content`
pub(super) fn content(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<PoolParts<BTreeMap<String, ByNonce<RpcTransaction>>>> {
    let () = args(params)?;
    Ok(by_sender(copied(context, None, CONTENT)?, asker, pending)?)
}

/// `txpool_contentFrom`
pub(super) fn content_from(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<PoolParts<ByNonce<RpcTransaction>>> {
    let (Strict(address),): (Strict<Address>,) = args(params)?;
    let content = copied(context, Some(&address), CONTENT)?;
    let parts = by_sender(content, asker, pending)?;
    let one = |part: BTreeMap<String, _>| part.into_values().next().unwrap_or_default();
    Ok(PoolParts { pending: one(parts.pending), queued: one(parts.queued) })
}

/// `txpool_inspect`
pub(super) fn inspect(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<PoolParts<BTreeMap<String, ByNonce<String>>>> {
    let () = args(params)?;
    Ok(by_sender(copied(context, None, INSPECTED)?, asker, line)?)
}

pub(super) fn copied(
    context: &RpcContext,
    of: Option<&Address>,
    limit: ContentLimit,
) -> Result<PoolContent, RpcError> {
    let (pool, one) = (context.pool.clone(), of.copied());
    let copied = context.pool_reader.wait_for(move || pool.content(one.as_ref(), limit));
    let copied = copied.map_err(|error| RpcError::internal("txpool_content", &error))?;
    copied.map_err(|too_much| {
        let ContentLimit { transactions_max, bytes_max } = limit;
        let advice =
            if of.is_some() { "ask for it by hash" } else { "ask for one sender with txpool_contentFrom" };
        let text = format!(
            "the pool holds {too_much}, but one answer shows at most {transactions_max} of {bytes_max}; {advice}"
        );
        RpcError::TooMuch(text)
    })
}

fn by_sender<T>(
    content: PoolContent,
    asker: &CallContext<'_>,
    show: impl Fn(&Transaction) -> T,
) -> Result<PoolParts<BTreeMap<String, ByNonce<T>>>, RpcError> {
    let part = |senders: Vec<(Address, Vec<Transaction>)>| {
        let shown = senders.into_iter().map(|(sender, transactions)| {
            asker.still_waits()?;
            let shown = transactions.iter().map(|one| (one.nonce(), show(one)));
            // With its checksum, as geth writes it here.
            Ok((sender.to_checksum(None), shown.collect()))
        });
        shown.collect::<Result<BTreeMap<_, _>, RpcError>>()
    };
    Ok(PoolParts { pending: part(content.pending)?, queued: part(content.queued)? })
}

/// Formats a transaction as geth does in one line.
fn line(transaction: &Transaction) -> String {
    let envelope = &transaction.envelope;
    let mut text = match transaction.to() {
        Some(to) => to.to_checksum(None),
        None => "contract creation".into(),
    };
    let (value, gas, price) = (envelope.value(), envelope.gas_limit(), envelope.max_fee_per_gas());
    // Writing to a String cannot fail.
    let _ = write!(text, ": {value} wei + {gas} gas × {price} wei");
    text
}
