//! `eth_subscribe`: sends news to every subscribed socket.
//!
//! ```text
//!  eth_subscribe ─▶ made ─ the answer is on its way ─▶ told ─ it is in the socket's queue ─▶ active
//!                                                                                             │ news, and room in the queue
//!                                                                       step: cached news ◀───┴──▶ work: other news, in a lane of callers
//! ```
//!
//! A subscription is a position in the ledger or in the pool's arrivals. The news after it is read when its socket has
//! room. So a slow reader costs only as much memory as a fast one. A reader that falls too far behind is disconnected
//! with a reason; nothing is ever silently left out.

mod set;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Arc;

use alloy_primitives::U128;
use alloy_rpc_types_eth::{Filter, FilterBlockOption};
use jsonrpsee_types::Params;
use serde::de::IgnoredAny;
use tokio_util::sync::CancellationToken;

pub(crate) use self::set::PendingSubscription;
use self::watch::{Watch, Watched};
pub use self::{
    set::{CostlyTurn, NewsStep, Notice, SubscriberSocket, Subscriptions, Tallies},
    watch::SubscriptionError,
};
use super::{
    RpcContext,
    effect::Effect,
    errors::{RpcError, RpcResult},
    feed::SubscriptionKind,
    lanes::Lane,
    logs::{Wanted, check_watchable},
    params::args,
    table::{CallContext, Table},
};

/// Maximum characters of an unknown kind that the error repeats.
const NAME_SHOWN_MAX: usize = 64;

/// `eth_subscribe`
pub(super) fn subscribe(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> (RpcResult<U128>, Option<Effect>) {
    match begun(context, params, asker) {
        Ok(begun) => (Ok(U128::from(begun.id())), Some(Effect::Subscription(begun))),
        Err(error) => (Err(error.into()), None),
    }
}

fn begun(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> Result<PendingSubscription, RpcError> {
    let (name, _): (Option<String>, Option<IgnoredAny>) = args(params)?;
    let listening = asker.listening.ok_or(RpcError::NotificationsUnsupported)?;
    let name =
        name.ok_or_else(|| RpcError::InvalidParams("expected subscription name as first argument".into()))?;
    let Some(kind) = SubscriptionKind::of(&name) else {
        return Err(RpcError::NoSuchSubscription(name.chars().take(NAME_SHOWN_MAX).collect()));
    };
    listening.check(kind, params.as_str().map_or(0, str::len))?;
    // The listener is registered before the starting position is read.
    let mut listens = context.feed.listen(kind);
    let head = || context.store.head().map(|head| head.header.number);
    let watch = match kind {
        SubscriptionKind::NewHeads => {
            let (_,): (IgnoredAny,) = args(params)?;
            Watch::NewHeads { next: head()?.next() }
        }
        SubscriptionKind::Logs => {
            context.keeps.check_logs()?;
            let (_, wanted): (IgnoredAny, Option<Wanted>) = args(params)?;
            let filter = wanted.map(Wanted::into_filter).transpose()?.unwrap_or_default();
            Watch::logs(Arc::new(Watched::new(checked(filter, head()?)?)), head()?.next())
        }
        SubscriptionKind::Pending => {
            let (_, whole): (IgnoredAny, Option<bool>) = args(params)?;
            let whole = whole.unwrap_or(false);
            if whole {
                listens = listens.whole();
            }
            Watch::Pending { next: context.feed.arrivals(), whole }
        }
        SubscriptionKind::Syncing => {
            let (_,): (IgnoredAny,) = args(params)?;
            Watch::Syncing { told: None }
        }
    };
    listening.begin(watch, listens)
}

/// Checks a filter for future batches.
fn checked(filter: Filter, head: slipstream_types::BatchNumber) -> Result<Filter, RpcError> {
    if let FilterBlockOption::AtBlockHash(_) = filter.block_option {
        let text = "a subscription takes no blockHash: ask eth_getLogs for the logs of an existing block";
        return Err(RpcError::InvalidParams(text.into()));
    }
    check_watchable(&filter, head)?;
    Ok(filter)
}

/// `eth_unsubscribe`
pub(super) fn unsubscribe(_: &RpcContext, params: &Params<'_>, asker: &CallContext<'_>) -> RpcResult<bool> {
    let (text,): (String,) = args(params)?;
    let id = text.strip_prefix("0x").and_then(|digits| u128::from_str_radix(digits, 16).ok());
    match (id, asker.listening) {
        (Some(id), Some(listening)) if listening.end(id) => Ok(true),
        _ => Err(RpcError::SubscriptionNotFound.into()),
    }
}

impl Table {
    /// Follows the node for all listeners, until `shutdown`.
    pub fn follow(&self, shutdown: CancellationToken) -> impl Future<Output = ()> + Send + use<> {
        self.context.feed.clone().run(self.context.clone(), shutdown)
    }

    /// Builds the uncached news of a socket, on a thread of a lane and on the owner's behalf.
    ///
    /// # Errors
    /// If one of the socket's subscriptions cannot continue.
    pub async fn work_for(
        &self,
        subscriptions: Arc<Subscriptions>,
        lane: Lane,
        bytes_max: usize,
    ) -> Result<NewsStep, SubscriptionError> {
        let (context, origin) = (self.context.clone(), subscriptions.origin());
        let work = move |leash: &slipstream_fair::Leash| subscriptions.work(&context, leash, bytes_max);
        let worked = self.lanes.of(lane).run_while_awaited(origin, None, work).await;
        worked.unwrap_or_else(|panic| {
            Err(SubscriptionError::Failed(RpcError::internal("eth_subscribe", &panic)))
        })
    }
}
