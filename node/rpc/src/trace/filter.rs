//! `trace_filter`: the calls of a range of blocks by caller and callee.

use std::collections::HashSet;

use alloy_primitives::Address;
use alloy_rpc_types_eth::BlockNumberOrTag;
use jsonrpsee_types::Params;
use serde::Deserialize;
use slipstream_executor::trace::{Action, LocalizedTransactionTrace, Rerun, TraceOutput};
use slipstream_types::BatchNumber;

use super::{Executable, Request};
use crate::{
    RpcContext,
    batches::{BatchParts, Reader},
    errors::{RpcError, RpcResult},
    params::{AtMost, Number, Strict, args},
    table::CallContext,
};

/// Maximum number of blocks in one request: each is executed.
const BLOCKS_MAX: u64 = 100;
/// Maximum number of addresses in each of the two lists.
const ADDRESSES_MAX: usize = 1_000;

type Addresses = AtMost<Strict<Address>, ADDRESSES_MAX>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Filter {
    from_block: Option<Number>,
    to_block: Option<Number>,
    from_address: Option<Addresses>,
    to_address: Option<Addresses>,
    mode: Option<Mode>,
    /// Number of traces to skip.
    after: Option<u64>,
    /// Maximum number of traces to return.
    count: Option<u64>,
}

/// How the two lists combine.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
enum Mode {
    /// The caller is in the first list, or the callee in the second.
    #[default]
    Union,
    /// The caller is in the first list, and the callee in the second.
    Intersection,
}

/// The two lists; an empty list matches every address.
struct Wanted {
    from: HashSet<Address>,
    to: HashSet<Address>,
    mode: Mode,
}

impl Wanted {
    fn takes(&self, from: Address, to: Option<Address>) -> bool {
        let is_from = self.from.contains(&from);
        let is_to = to.is_some_and(|to| self.to.contains(&to));
        match self.mode {
            _ if self.from.is_empty() && self.to.is_empty() => true,
            Mode::Union => is_from || is_to,
            Mode::Intersection => (is_from || self.from.is_empty()) && (is_to || self.to.is_empty()),
        }
    }

    fn takes_trace(&self, trace: &LocalizedTransactionTrace) -> bool {
        match &trace.trace.action {
            Action::Call(call) => self.takes(call.from, Some(call.to)),
            Action::Create(create) => {
                let created = trace.trace.result.as_ref().and_then(|output| match output {
                    TraceOutput::Create(output) => Some(output.address),
                    TraceOutput::Call(_) => None,
                });
                self.takes(create.from, created)
            }
            Action::Selfdestruct(end) => self.takes(end.address, Some(end.refund_address)),
            Action::Reward(reward) => self.takes(Address::ZERO, Some(reward.author)),
        }
    }
}

fn addresses(list: Option<Addresses>) -> Result<HashSet<Address>, RpcError> {
    let list = list.unwrap_or_default();
    if list.len > ADDRESSES_MAX {
        let text =
            format!("{} addresses are too many: one request may name at most {ADDRESSES_MAX}", list.len);
        return Err(RpcError::InvalidParams(text));
    }
    Ok(list.first.into_iter().map(|address| address.0).collect())
}

/// The error for a missing header. It names the batch where headers start again: a range must begin there or later.
fn no_header(context: &RpcContext, number: BatchNumber) -> Result<RpcError, RpcError> {
    let (mut missing, mut kept_from) = (number, context.store.head()?.header.number);
    while missing.next() < kept_from {
        let middle = missing.after(kept_from.since(missing) / 2);
        match context.store.header(middle)? {
            Some(_) => kept_from = middle,
            None => missing = middle,
        }
    }
    Ok(match context.batches.missing("header", number) {
        RpcError::NotStored { number, .. } => RpcError::HeaderNotStored { number, kept_from },
        yet => yet,
    })
}

/// `trace_filter`
pub(super) fn filter(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Vec<LocalizedTransactionTrace>> {
    let (filter,): (Filter,) = args(params)?;
    let wanted = Wanted {
        from: addresses(filter.from_address)?,
        to: addresses(filter.to_address)?,
        mode: filter.mode.unwrap_or_default(),
    };
    let request = Request::begin(context, asker);
    let number = |id: Option<Number>, default| {
        let id = id.map_or(default, |id| id.0);
        let unknown = || RpcError::InvalidParams(format!("block {id} does not exist yet"));
        context.batch_number(id.into())?.ok_or_else(unknown)
    };
    let from = number(filter.from_block, BlockNumberOrTag::Latest)?;
    let to = number(filter.to_block, BlockNumberOrTag::Latest)?;
    if to < from || to.since(from) >= BLOCKS_MAX {
        let text = format!("blocks {from} to {to} are not a range of at most {BLOCKS_MAX} blocks");
        return Err(RpcError::InvalidParams(text).into());
    }
    let (mut left, mut passed) = (request.bytes_max(), filter.after.unwrap_or(0));
    let count = filter.count.unwrap_or(u64::MAX);
    let mut found = Vec::new();
    for number in from.through(to) {
        asker.still_waits()?;
        let Some(batch) = context.batches.get(number, BatchParts::Both, Reader::passing(asker.leash))? else {
            return Err(no_header(context, number)?.into());
        };
        // This covers the genesis, too.
        if batch.is_empty() {
            continue;
        }
        let batch = Executable::open(context, batch)?;
        let (traces, bytes_left) = batch.all(&request, left, Rerun::calls)?;
        let before = found.len();
        for trace in traces.into_iter().flatten().filter(|trace| wanted.takes_trace(trace)) {
            if passed > 0 {
                passed -= 1;
            } else if (found.len() as u64) < count {
                found.push(trace);
            }
        }
        // The memory of traces outside the filter is free again.
        left = if found.len() > before { bytes_left } else { left };
        if found.len() as u64 >= count {
            break;
        }
    }
    Ok(found)
}
