//! Logs: `eth_getLogs` over any range, and the means to do so within bounds.
//!
//! ```text
//!  range, addresses, topics ─▶ index: which batches may match? ─▶ search: open those, within a budget ─▶ logs, and how far
//! ```
//!
//! The index only excludes batches. A search opens each batch that the index admits or does not know, and compares its
//! logs. `filters` keeps the positions of clients that poll for changes.

pub(super) mod bloom;
pub(super) mod filters;
mod index;
mod search;
#[cfg(test)]
pub(super) mod tests;
mod wanted;

use alloy_rpc_types_eth::{BlockId, BlockNumberOrTag, Filter, FilterBlockOption, Log};
use jsonrpsee_types::Params;
use slipstream_fair::Leash;
use slipstream_types::BatchNumber;

pub(crate) use self::filters::PendingPoll;
use self::search::{FoundLogs, Search};
pub use self::{
    filters::Filters,
    index::{LogIndex, records_behind as log_records_behind},
};
pub(super) use self::{
    filters::check_watchable,
    search::{Budget, Criteria, LogPosition, SearchEnd},
    wanted::Wanted,
};
use super::{
    RpcContext,
    errors::{RpcError, RpcResult},
    params::args,
    table::CallContext,
};

/// `eth_getLogs`
pub(super) fn logs(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Vec<Log>> {
    let (wanted,): (Wanted,) = args(params)?;
    let criteria = Criteria::new(wanted.into_filter()?);
    Ok(all(context, &criteria, asker.leash, Budget::CALL)?)
}

/// All logs in the range of the criteria, or an error that says how far one call gets.
fn all(
    context: &RpcContext,
    criteria: &Criteria,
    leash: &Leash,
    budget: Budget,
) -> Result<Vec<Log>, RpcError> {
    let (first, last) = range(context, criteria.filter())?;
    let FoundLogs { logs, end } =
        context.search(criteria, leash).run(LogPosition::before(first), last, budget)?;
    let (reason, fits) = match end {
        SearchEnd::Reached => return Ok(logs),
        SearchEnd::Results(place) => {
            let reason = format!(
                "query returned more than {} results or {} bytes of data",
                budget.logs, budget.data_bytes
            );
            (reason, place.batch)
        }
        SearchEnd::Work(batch) => (
            "query exceeds the limit of what one call may read: the block range is too large".to_owned(),
            batch,
        ),
    };
    // A single batch may hold more logs than fit in one answer; then only narrower criteria help.
    let advice = match fits.previous().filter(|fits| *fits >= first) {
        Some(fits) => {
            format!(
                "ask for batches {first} to {fits} (0x{:x} to 0x{:x}), then for the rest",
                first.get(),
                fits.get()
            )
        }
        None => format!("name an address or topics: batch {first} alone is too large"),
    };
    Err(RpcError::TooMuch(format!("{reason}; {advice}")))
}

/// The first and the last batch that a filter covers; both exist.
fn range(context: &RpcContext, filter: &Filter) -> Result<(BatchNumber, BatchNumber), RpcError> {
    match filter.block_option {
        FilterBlockOption::AtBlockHash(hash) => {
            let number = context.batch_number(BlockId::from(hash))?.ok_or(RpcError::UnknownBlock(hash))?;
            Ok((number, number))
        }
        FilterBlockOption::Range { from_block, to_block } => {
            let head = context.store.head()?.header.number;
            let (first, last) = (number(from_block, head)?, number(to_block, head)?);
            // Both errors begin with geth's words.
            if first.max(last) > head {
                let text = format!(
                    "block range extends beyond current head block: asked for {first} to {last}, the head is {head}"
                );
                return Err(RpcError::InvalidParams(text));
            }
            if first > last {
                let text = format!("invalid block range params: from {first} is after to {last}");
                return Err(RpcError::InvalidParams(text));
            }
            Ok((first, last))
        }
    }
}

/// The batch number of a range's end, given the head; a missing end is the head.
fn number(end: Option<BlockNumberOrTag>, head: BatchNumber) -> Result<BatchNumber, RpcError> {
    match end.unwrap_or_default() {
        BlockNumberOrTag::Number(number) => Ok(BatchNumber::new(number)),
        BlockNumberOrTag::Earliest => Ok(BatchNumber::GENESIS),
        // A certified batch is final.
        BlockNumberOrTag::Latest | BlockNumberOrTag::Safe | BlockNumberOrTag::Finalized => Ok(head),
        BlockNumberOrTag::Pending => Err(RpcError::InvalidParams("pending logs are not supported".into())),
    }
}

impl RpcContext {
    pub(super) fn search<'a>(&'a self, criteria: &'a Criteria, leash: &'a Leash) -> Search<'a> {
        Search { store: &self.store, batches: &self.batches, index: &self.log_index, criteria, leash }
    }
}
