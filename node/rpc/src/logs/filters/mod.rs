//! Filters that clients install and poll: logs, batches, or transactions that reach the pool.
//!
//! A filter is a position in the ledger, or in the pool's arrivals. A poll reports the changes after it; nothing is
//! collected between two polls. A poll moves the position past its answer, so every change is reported once, in order.
//! The next answer has the rest. Batches are final, so no change is ever revoked.

mod installed;

use std::{sync::Arc, time::Instant};

use alloy_primitives::{B256, U128};
use alloy_rpc_types_eth::{BlockNumberOrTag, Filter, FilterBlockOption, Log};
use jsonrpsee_types::Params;
use serde::Serialize;
use slipstream_fair::Leash;
use slipstream_types::BatchNumber;

pub use self::installed::Filters;
pub(crate) use self::installed::PendingPoll;
use self::installed::Watch;
use super::{
    all, number, range,
    search::{Budget, Criteria, FoundLogs, LogPosition, SearchEnd},
    wanted::Wanted,
};
use crate::{
    RpcContext,
    errors::{RpcError, RpcResult},
    params::args,
    table::CallContext,
};

/// Maximum number of hashes in one answer; the next answer has the rest.
const HASHES_MAX: usize = 10_000;

/// The answer to a poll.
#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Changes {
    /// Changes of a filter for logs.
    Logs(Vec<Log>),
    /// Changes of a filter for batches or transactions.
    Hashes(Vec<B256>),
}

/// Parses the id of a filter. Any text is accepted, as in geth, but only ids of this node name a filter.
fn id(params: &Params<'_>) -> RpcResult<Option<u128>> {
    let (text,): (String,) = args(params)?;
    Ok(text.strip_prefix("0x").and_then(|digits| u128::from_str_radix(digits, 16).ok()))
}

/// `eth_newFilter`
pub(crate) fn new_filter(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<U128> {
    let (wanted,): (Wanted,) = args(params)?;
    context.keeps.check_logs()?;
    let criteria = Criteria::new(wanted.into_filter()?);
    let head = context.store.head().map_err(RpcError::from)?.header.number;
    check_watchable(criteria.filter(), head)?;
    let watch = Watch::Logs(Arc::new(criteria), LogPosition::before(head.next()));
    Ok(context.filters.install(asker.origin, watch, Instant::now())?)
}

/// Refuses ranges that cannot be watched. A range may end in the future, because a filter waits, but not before it
/// begins.
pub(crate) fn check_watchable(filter: &Filter, head: BatchNumber) -> Result<(), RpcError> {
    if let FilterBlockOption::Range { from_block, to_block } = filter.block_option {
        let (first, last) = (number(from_block, head)?, number(to_block, head)?);
        if to_block.is_some_and(|to| to.is_number()) && first > last {
            let text = format!("invalid block range params: from {first} is after to {last}");
            return Err(RpcError::InvalidParams(text));
        }
    }
    Ok(())
}

/// `eth_newBlockFilter`
pub(crate) fn new_block_filter(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<U128> {
    let () = args(params)?;
    let head = context.store.head().map_err(RpcError::from)?.header.number;
    Ok(context.filters.install(asker.origin, Watch::Batches(head.next()), Instant::now())?)
}

/// `eth_newPendingTransactionFilter`
pub(crate) fn new_pending_filter(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<U128> {
    let () = args(params)?;
    Ok(context.filters.install(asker.origin, Watch::Arrivals(context.pool.arrivals()), Instant::now())?)
}

/// `eth_uninstallFilter`
pub(crate) fn uninstall(context: &RpcContext, params: &Params<'_>) -> RpcResult<bool> {
    Ok(context.filters.uninstall(id(params)?))
}

/// `eth_getFilterChanges`. The filter advances once the answer is queued for sending. An answer that is lost before
/// that is repeated.
pub(crate) fn changes(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> (RpcResult<Changes>, Option<PendingPoll>) {
    let begun = id(params).and_then(|id| Ok(context.filters.poll(id, Instant::now())?));
    match begun {
        Err(error) => (Err(error), None),
        Ok(mut poll) => {
            let changes = new(context, &mut poll.watch, asker.leash).map_err(Into::into);
            (changes, Some(poll))
        }
    }
}

/// The changes after a filter's position, which moves past them.
fn new(context: &RpcContext, watch: &mut Watch, leash: &Leash) -> Result<Changes, RpcError> {
    Ok(match watch {
        Watch::Logs(criteria, place) => {
            Changes::Logs(new_logs(context, criteria, place, leash, Budget::CALL)?)
        }
        Watch::Batches(next) => Changes::Hashes(new_batches(context, next)?),
        Watch::Arrivals(next) => {
            let (pool, from) = (context.pool.clone(), *next);
            let copied = context.pool_reader.wait_for(move || pool.arrived_since(from, HASHES_MAX));
            let (hashes, after) =
                copied.map_err(|error| RpcError::internal("eth_getFilterChanges", &error))?;
            *next = after;
            Changes::Hashes(hashes)
        }
    })
}

/// `eth_getFilterLogs`
pub(crate) fn filter_logs(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Vec<Log>> {
    match context.filters.find(id(params)?, Instant::now())? {
        Watch::Logs(criteria, _) => Ok(all(context, &criteria, asker.leash, Budget::CALL)?),
        Watch::Batches(_) | Watch::Arrivals(_) => Err(RpcError::FilterNotFound.into()),
    }
}

/// The logs from a position up to the head, as many as one answer holds; the position moves past them.
pub(super) fn new_logs(
    context: &RpcContext,
    criteria: &Criteria,
    place: &mut LogPosition,
    leash: &Leash,
    budget: Budget,
) -> Result<Vec<Log>, RpcError> {
    let head = context.store.head()?.header.number;
    let (first, last) = watched(context, criteria.filter(), head)?;
    let from = if first > place.batch { LogPosition::before(first) } else { *place };
    let found = context.search(criteria, leash).run(from, last, budget);
    if let Err(RpcError::LogsNotStored { number, kept_from }) = &found {
        // A restore or pruning left a gap. It is reported once; the next poll continues where receipts exist again.
        *place = LogPosition::before(kept_from.unwrap_or(head.next()).max(number.next()));
    }
    let FoundLogs { logs, end } = found?;
    *place = match end {
        SearchEnd::Reached => LogPosition::before(head.next()).max(*place),
        SearchEnd::Results(place) => place,
        SearchEnd::Work(batch) => LogPosition::before(batch),
    };
    Ok(logs)
}

/// The committed batches that a filter watches: a numbered end is fixed, and other ends follow the head.
fn watched(
    context: &RpcContext,
    filter: &Filter,
    head: BatchNumber,
) -> Result<(BatchNumber, BatchNumber), RpcError> {
    let FilterBlockOption::Range { from_block, to_block } = filter.block_option else {
        return range(context, filter);
    };
    let named = |end: Option<BlockNumberOrTag>| end.and_then(|end| end.as_number()).map(BatchNumber::new);
    Ok((named(from_block).unwrap_or_default(), named(to_block).map_or(head, |last| last.min(head))))
}

/// The hashes of the batches from a number on, as many as one answer holds.
fn new_batches(context: &RpcContext, next: &mut BatchNumber) -> Result<Vec<B256>, RpcError> {
    let head = context.store.head()?.header.number;
    let headers = context.store.headers(*next, HASHES_MAX)?;
    match headers.last() {
        Some(last) => *next = last.number.next(),
        // A restore from a snapshot leaves a gap whose batches nobody can report.
        None if head >= *next => *next = head.next(),
        None => {}
    }
    Ok(headers.iter().map(|header| header.digest().into()).collect())
}
