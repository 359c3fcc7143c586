//! Filters that clients install and poll: logs, batches, or transactions that reach the pool.
//!
//! A filter is a place in the ledger, or in the pool's arrivals, and what is told of what lies behind it: nothing is collected
//! between two polls. A poll moves the place behind what it answers, so everything is told once, in order; what does not fit
//! one answer is the next one's. Batches are final, so nothing is ever taken back.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::{B256, U128};
use alloy_rpc_types_eth::{BlockNumberOrTag, Filter, FilterBlockOption, Log};
use jsonrpsee::types::Params;
use parking_lot::Mutex;
use serde::Serialize;
use slipstream_types::BatchNumber;
use tokio_util::sync::CancellationToken;

use super::{
    all, number, range,
    search::{Budget, Criteria, End, Found, Place},
    wanted::Wanted,
};
use crate::rpc::{
    RpcContext,
    errors::{RpcError, RpcResult},
    params::args,
};

/// How long a filter that nobody polls is kept, as in geth.
const UNPOLLED_MAX: Duration = Duration::from_secs(5 * 60);
/// The same while there is no room for another one: whoever uses a filter polls it every few seconds.
const UNPOLLED_CROWDED_MAX: Duration = Duration::from_secs(30);
/// Filters at a time, and what their criteria may take: bounds the memory.
const FILTERS_MAX: usize = 1_024;
const FILTERS_BYTES_MAX: usize = 16 << 20;
/// Hashes in one answer; more come with the next.
const HASHES_MAX: usize = 10_000;

/// What a filter watches, and how far it has told.
enum Watch {
    Logs(Box<Criteria>, Place),
    Batches(BatchNumber),
    /// The pool's count of arrivals.
    Arrivals(u64),
}

struct Installed {
    /// Held through a poll, so that two at a time do not tell the same.
    watch: Arc<Mutex<Watch>>,
    bytes: usize,
    polled: Instant,
}

/// All filters of this node. They are gone after a restart, as everywhere.
#[derive(Default)]
pub(crate) struct Filters(Mutex<HashMap<u128, Installed>>);

/// What a poll answers.
#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Changes {
    /// Of a filter for logs.
    Logs(Vec<Log>),
    /// Of batches or transactions.
    Hashes(Vec<B256>),
}

impl Filters {
    fn install(&self, watch: Watch, now: Instant) -> Result<U128, RpcError> {
        let bytes = match &watch {
            Watch::Logs(criteria, _) => criteria.bytes(),
            Watch::Batches(_) | Watch::Arrivals(_) => 0,
        };
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| RpcError::Rejected(format!("the system gives no random id: {error}")))?;
        let id = u128::from_le_bytes(random);
        let mut filters = self.0.lock();
        let full = |filters: &HashMap<u128, Installed>| {
            let taken: usize = filters.values().map(|filter| filter.bytes).sum();
            filters.len() >= FILTERS_MAX || taken + bytes > FILTERS_BYTES_MAX
        };
        for unpolled_max in [UNPOLLED_MAX, UNPOLLED_CROWDED_MAX] {
            if full(&filters) {
                filters.retain(|_, filter| now.saturating_duration_since(filter.polled) < unpolled_max);
            }
        }
        if full(&filters) {
            let text = format!(
                "too many filters: {} are installed; uninstall what is not needed, or poll eth_getLogs instead",
                filters.len()
            );
            return Err(RpcError::TooMuch(text));
        }
        filters.insert(id, Installed { watch: Arc::new(Mutex::new(watch)), bytes, polled: now });
        Ok(U128::from(id))
    }

    fn find(&self, id: Option<u128>, now: Instant) -> Result<Arc<Mutex<Watch>>, RpcError> {
        let mut filters = self.0.lock();
        let found = id.and_then(|id| filters.get_mut(&id)).ok_or(RpcError::FilterNotFound)?;
        if now.saturating_duration_since(found.polled) >= UNPOLLED_MAX {
            return Err(RpcError::FilterNotFound);
        }
        found.polled = now;
        Ok(Arc::clone(&found.watch))
    }

    fn uninstall(&self, id: Option<u128>) -> bool {
        id.is_some_and(|id| self.0.lock().remove(&id).is_some())
    }
}

/// The id of a filter: any text is taken, as in geth, but only ours name one.
fn id(params: &Params<'_>) -> RpcResult<Option<u128>> {
    let (text,): (String,) = args(params)?;
    Ok(text.strip_prefix("0x").and_then(|digits| u128::from_str_radix(digits, 16).ok()))
}

/// `eth_newFilter`
pub(in crate::rpc) fn new_filter(context: &RpcContext, params: &Params<'_>) -> RpcResult<U128> {
    let (wanted,): (Wanted,) = args(params)?;
    let criteria = Criteria::new(wanted.into_filter()?)?;
    let head = context.store.head().map_err(RpcError::from)?.header.number;
    check_watchable(criteria.filter(), head)?;
    let watch = Watch::Logs(Box::new(criteria), Place::before(head.next()));
    Ok(context.filters.install(watch, Instant::now())?)
}

/// A range may end in the future, which is what a filter waits for, but not before it begins.
fn check_watchable(filter: &Filter, head: BatchNumber) -> Result<(), RpcError> {
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
pub(in crate::rpc) fn new_block_filter(context: &RpcContext) -> RpcResult<U128> {
    let head = context.store.head().map_err(RpcError::from)?.header.number;
    Ok(context.filters.install(Watch::Batches(head.next()), Instant::now())?)
}

/// `eth_newPendingTransactionFilter`
pub(in crate::rpc) fn new_pending_filter(context: &RpcContext) -> RpcResult<U128> {
    Ok(context.filters.install(Watch::Arrivals(context.pool.arrivals()), Instant::now())?)
}

/// `eth_uninstallFilter`
pub(in crate::rpc) fn uninstall(context: &RpcContext, params: &Params<'_>) -> RpcResult<bool> {
    Ok(context.filters.uninstall(id(params)?))
}

/// `eth_getFilterChanges`
pub(in crate::rpc) fn changes(
    context: &RpcContext,
    params: &Params<'_>,
    gone: &CancellationToken,
) -> RpcResult<Changes> {
    let watch = context.filters.find(id(params)?, Instant::now())?;
    let mut watch = watch.lock();
    Ok(match &mut *watch {
        Watch::Logs(criteria, place) => {
            Changes::Logs(new_logs(context, criteria, place, gone, Budget::CALL)?)
        }
        Watch::Batches(next) => Changes::Hashes(new_batches(context, next)?),
        Watch::Arrivals(next) => {
            let (hashes, after) = context.pool.arrived_since(*next, HASHES_MAX);
            *next = after;
            Changes::Hashes(hashes)
        }
    })
}

/// `eth_getFilterLogs`
pub(in crate::rpc) fn filter_logs(
    context: &RpcContext,
    params: &Params<'_>,
    gone: &CancellationToken,
) -> RpcResult<Vec<Log>> {
    let watch = context.filters.find(id(params)?, Instant::now())?;
    let criteria = match &*watch.lock() {
        Watch::Logs(criteria, _) => criteria.clone(),
        Watch::Batches(_) | Watch::Arrivals(_) => return Err(RpcError::FilterNotFound.into()),
    };
    Ok(all(context, &criteria, gone, Budget::CALL)?)
}

/// The logs from a place up to the head, as far as one answer goes; the place moves behind them.
pub(super) fn new_logs(
    context: &RpcContext,
    criteria: &Criteria,
    place: &mut Place,
    gone: &CancellationToken,
    budget: Budget,
) -> Result<Vec<Log>, RpcError> {
    let head = context.store.head()?.header.number;
    let (first, last) = watched(context, criteria.filter(), head)?;
    let from = if first > place.batch { Place::before(first) } else { *place };
    let found = context.search(criteria, gone).run(from, last, budget);
    if let Err(RpcError::LogsNotStored { number, kept_from }) = &found {
        // A restore or pruning left a gap. It is told once; the next poll goes on where there are receipts again.
        *place = Place::before(kept_from.unwrap_or(head.next()).max(number.next()));
    }
    let Found { logs, end } = found?;
    *place = match end {
        End::Reached => Place::before(head.next()).max(*place),
        End::Results(place) => place,
        End::Work(batch) => Place::before(batch),
    };
    Ok(logs)
}

/// The committed batches that a filter watches: named ends count, others are the head as it goes on.
fn watched(
    context: &RpcContext,
    filter: &Filter,
    head: BatchNumber,
) -> Result<(BatchNumber, BatchNumber), RpcError> {
    let FilterBlockOption::Range { from_block, to_block } = filter.block_option else {
        return range(context, filter);
    };
    let named = |end: Option<BlockNumberOrTag>| end.and_then(|end| end.as_number()).map(BatchNumber);
    Ok((named(from_block).unwrap_or_default(), named(to_block).map_or(head, |last| last.min(head))))
}

/// The hashes of the batches from a number on, as far as one answer goes.
fn new_batches(context: &RpcContext, next: &mut BatchNumber) -> Result<Vec<B256>, RpcError> {
    let head = context.store.head()?.header.number;
    let headers = context.store.headers(*next, HASHES_MAX)?;
    match headers.last() {
        Some(last) => *next = last.number.next(),
        // A restore from a snapshot leaves a gap, of which nobody can tell.
        None if head >= *next => *next = head.next(),
        None => {}
    }
    Ok(headers.iter().map(|header| header.digest().into()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a filter that nobody polls goes, sooner when others need its place; one that is polled stays.
    #[test]
    fn filters_are_bounded_and_expire() {
        let (filters, start) = (Filters::default(), Instant::now());
        let install = |now| filters.install(Watch::Batches(BatchNumber(1)), now);
        let ids: Vec<u128> = (0..FILTERS_MAX).map(|_| install(start).unwrap().to()).collect();
        let refused = install(start).unwrap_err().to_string();
        assert!(refused.starts_with("too many filters: 1024 are installed"), "{refused}");

        let end = start + UNPOLLED_MAX;
        filters.find(Some(ids[0]), start + UNPOLLED_MAX / 2).unwrap();
        assert!(matches!(filters.find(Some(ids[1]), end), Err(RpcError::FilterNotFound)));
        filters.find(Some(ids[0]), end).unwrap();

        install(start + UNPOLLED_CROWDED_MAX).unwrap();
        assert_eq!(filters.0.lock().len(), 2, "the one that was polled, and the new one");
    }

    #[test]
    fn criteria_are_bounded_together() {
        let (filters, now) = (Filters::default(), Instant::now());
        let addresses: Vec<_> = (0..1_000)
            .map(|number| alloy_primitives::Address::left_padding_from(&u32::to_be_bytes(number)))
            .collect();
        let criteria = Criteria::new(Filter::new().address(addresses)).unwrap();
        let watch = || Watch::Logs(Box::new(criteria.clone()), Place::before(BatchNumber(1)));
        let installed = (0..FILTERS_MAX).take_while(|_| filters.install(watch(), now).is_ok()).count();
        assert_eq!(installed, FILTERS_BYTES_MAX / criteria.bytes());
    }
}
