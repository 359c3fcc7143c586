//! [`Watch`]: what one subscription listens for, its position, and its next news.

use std::sync::Arc;

use alloy_primitives::{B256, keccak256};
use alloy_rpc_types_eth::{Filter, FilterBlockOption};
use slipstream_fair::Leash;
use slipstream_types::BatchNumber;

use super::set::NewsStep;
use crate::{
    RpcContext,
    batches::{BatchParts, Reader},
    errors::RpcError,
    feed::{Feed, Head, MatchedLogs, NewsPositions, SubscriptionKind},
    lanes::Lane,
    logs::{Budget, Criteria, LogPosition, SearchEnd},
};

/// Maximum number of batches that a subscriber may be behind: more than a minute of an ordinary chain.
pub(super) const BEHIND_MAX: u64 = 1_024;
/// The part of one batch's logs that is produced at once; the rest continues from there.
const PART: Budget = Budget { work_bytes: usize::MAX, logs: 256, data_bytes: 64 << 10 };
/// Maximum number of arrivals that are examined together.
const HASHES_MAX: usize = 128;
const WHOLE_MAX: usize = 64;
/// The memory of a subscription besides its criteria.
pub(super) const SUBSCRIPTION_BYTES: usize = 512;

/// Why a subscription cannot continue. Its socket is then closed.
#[derive(Debug, thiserror::Error)]
pub enum SubscriptionError {
    #[error("you are {0} batches behind: read faster, or subscribe to less")]
    /// The reader is this many batches behind.
    Behind(u64),
    #[error("you missed pending transactions: read faster, or subscribe to less")]
    /// The ring of pending transactions has moved on.
    Arrivals,
    #[error("batch {0} is not stored here: this node took a snapshot or pruned it; subscribe again")]
    /// This batch is not stored here.
    Gap(BatchNumber),
    #[error("{0}")]
    /// The store or the executor failed.
    Failed(RpcError),
}

impl From<RpcError> for SubscriptionError {
    fn from(error: RpcError) -> Self {
        match error {
            RpcError::LogsNotStored { number, .. }
            | RpcError::NotStored { number, .. }
            | RpcError::NotYetStored { number, .. } => SubscriptionError::Gap(number),
            error => SubscriptionError::Failed(error),
        }
    }
}

/// The criteria of a subscription for logs. Equal criteria get the same name.
pub(crate) struct Watched {
    criteria: Criteria,
    name: B256,
}

impl Watched {
    pub(super) fn new(filter: Filter) -> Watched {
        let criteria = Criteria::new(filter);
        let name = name(criteria.filter());
        Watched { criteria, name }
    }

    /// Whether a batch with this head certainly has no matching log: takes some nanoseconds per address and topic.
    fn is_ruled_out(&self, head: &Head) -> bool {
        head.bloom.as_ref().is_some_and(|bloom| !self.criteria.may_match(bloom))
    }

    /// The range that the filter names by number. A tag means the moving head, and does not limit the range.
    fn range(&self) -> (BatchNumber, Option<BatchNumber>) {
        let FilterBlockOption::Range { from_block, to_block } = self.criteria.filter().block_option else {
            return Default::default();
        };
        let number = |end: Option<alloy_rpc_types_eth::BlockNumberOrTag>| {
            end.and_then(|end| end.as_number()).map(BatchNumber::new)
        };
        (number(from_block).unwrap_or_default(), number(to_block))
    }
}

/// A name for the addresses and topics of a filter, independent of their order.
fn name(filter: &Filter) -> B256 {
    let mut text = Vec::new();
    let mut addresses: Vec<_> = filter.address.iter().map(|address| address.into_word()).collect();
    addresses.sort_unstable();
    let topics = filter.topics.iter().map(|topics| {
        let mut topics: Vec<B256> = topics.iter().copied().collect();
        topics.sort_unstable();
        topics
    });
    for values in std::iter::once(addresses).chain(topics) {
        text.extend_from_slice(&(values.len() as u64).to_be_bytes());
        values.iter().for_each(|value| text.extend_from_slice(value.as_slice()));
    }
    keccak256(text)
}

/// The subject of one subscription, and its position.
#[derive(Clone)]
pub(super) enum Watch {
    NewHeads {
        next: BatchNumber,
    },
    Logs {
        watched: Arc<Watched>,
        place: LogPosition,
    },
    Pending {
        next: u64,
        whole: bool,
    },
    /// The state that was sent last.
    Syncing {
        told: Option<bool>,
    },
}

/// The means to build texts that are not cached.
#[derive(Clone, Copy)]
pub(super) struct Worker<'a> {
    pub(super) context: &'a RpcContext,
    pub(super) leash: &'a Leash,
}

impl Watch {
    pub(super) fn logs(watched: Arc<Watched>, next: BatchNumber) -> Watch {
        let next = next.max(watched.range().0);
        Watch::Logs { watched, place: LogPosition::before(next) }
    }

    pub(super) fn kind(&self) -> SubscriptionKind {
        match self {
            Watch::NewHeads { .. } => SubscriptionKind::NewHeads,
            Watch::Logs { .. } => SubscriptionKind::Logs,
            Watch::Pending { .. } => SubscriptionKind::Pending,
            Watch::Syncing { .. } => SubscriptionKind::Syncing,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let criteria = if let Watch::Logs { watched, .. } = self { watched.criteria.bytes() } else { 0 };
        SUBSCRIPTION_BYTES + criteria
    }

    /// # Errors
    /// If the subscription is too far behind the present.
    pub(super) fn check(&self, now: &NewsPositions) -> Result<(), SubscriptionError> {
        let next = match self {
            Watch::NewHeads { next } => *next,
            Watch::Logs { place, .. } => place.batch,
            Watch::Pending { .. } | Watch::Syncing { .. } => return Ok(()),
        };
        match now.tip.since(next) {
            behind if behind > BEHIND_MAX => Err(SubscriptionError::Behind(behind)),
            _ => Ok(()),
        }
    }

    /// Whether there is news that the subscription has not examined.
    pub(super) fn is_behind(&self, now: &NewsPositions) -> bool {
        match self {
            Watch::NewHeads { next } => *next <= now.tip,
            Watch::Logs { place, .. } => place.batch <= now.tip,
            Watch::Pending { next, .. } => *next < now.arrived,
            Watch::Syncing { told } => now.syncing.as_ref().is_some_and(|(is, _)| *told != Some(*is)),
        }
    }

    /// Sends the news, if the subscription [is behind](Self::is_behind), and advances its position. It stops when the
    /// step is full or needs a worker that is missing.
    ///
    /// # Errors
    /// If the subscription cannot continue.
    pub(super) fn go(&mut self, mut telling: SubscriptionStep<'_>) -> Result<(), SubscriptionError> {
        match self {
            Watch::NewHeads { next } => telling.heads(next),
            Watch::Logs { watched, place } => telling.logs(watched, place),
            Watch::Pending { next, whole: false } => telling.hashes(next),
            Watch::Pending { next, whole: true } => telling.whole(next),
            Watch::Syncing { told } => {
                if let Some((is_syncing, text)) = &telling.now.syncing {
                    *told = Some(*is_syncing);
                    telling.push(SubscriptionKind::Syncing, text.clone());
                }
                Ok(())
            }
        }
    }
}

/// One subscription's part in a step.
pub(super) struct SubscriptionStep<'a> {
    /// The id of the subscription.
    pub(super) id: u128,
    pub(super) feed: &'a Feed,
    pub(super) now: &'a NewsPositions,
    /// Builds the texts that are not cached; if it is `None`, the step requests a worker.
    pub(super) worker: Option<Worker<'a>>,
    pub(super) step: &'a mut NewsStep,
}

impl SubscriptionStep<'_> {
    fn push(&mut self, kind: SubscriptionKind, text: Arc<str>) {
        self.step.push(self.id, kind, text);
    }

    fn heads(&mut self, next: &mut BatchNumber) -> Result<(), SubscriptionError> {
        while *next <= self.now.tip && self.step.has_room() {
            let head = match (self.feed.head(*next), self.worker) {
                (Some(head), _) => head,
                (None, None) => {
                    // This lane's threads open the batch, with the same low priority as the sockets' thread.
                    self.step.needs(Lane::Searches);
                    break;
                }
                (None, Some(worker)) => {
                    self.feed.head_made(worker.context, *next)?.ok_or(SubscriptionError::Gap(*next))?
                }
            };
            self.push(SubscriptionKind::NewHeads, head.text.clone());
            *next = next.next();
        }
        Ok(())
    }

    fn logs(&mut self, watched: &Watched, place: &mut LogPosition) -> Result<(), SubscriptionError> {
        let (feed, tip) = (self.feed, self.now.tip);
        let last = watched.range().1.map_or(tip, |last| last.min(tip));
        while place.batch <= last && self.step.has_room() {
            let (number, is_whole) = (place.batch, place.logs == 0);
            if is_whole && feed.head(number).is_some_and(|head| watched.is_ruled_out(&head)) {
                *place = LogPosition::before(number.next());
                continue;
            }
            let kept = if is_whole { feed.matches.get(&(number, watched.name)) } else { None };
            if let Some(matched) = kept {
                matched.iter().for_each(|log| self.push(SubscriptionKind::Logs, log.clone()));
                *place = LogPosition::before(number.next());
                continue;
            }
            let Some(worker) = self.worker else {
                self.step.needs(Lane::Searches);
                break;
            };
            let (matched, after) = matched(watched, *place, worker)?;
            matched.iter().for_each(|log| self.push(SubscriptionKind::Logs, log.clone()));
            if is_whole && after.batch > number {
                feed.matches.insert((number, watched.name), matched);
            }
            *place = after;
        }
        // A filter with a numbered end does not wait for logs beyond it.
        if place.batch > last && watched.range().1.is_some() {
            *place = LogPosition::before(tip.next()).max(*place);
        }
        Ok(())
    }

    fn hashes(&mut self, next: &mut u64) -> Result<(), SubscriptionError> {
        while *next < self.now.arrived && self.step.has_room() {
            let (first, hashes) =
                self.feed.pending.hashes(*next, HASHES_MAX).ok_or(SubscriptionError::Arrivals)?;
            *next = first + hashes.len() as u64;
            hashes.into_iter().for_each(|hash| self.push(SubscriptionKind::Pending, hash));
        }
        Ok(())
    }

    fn whole(&mut self, next: &mut u64) -> Result<(), SubscriptionError> {
        while *next < self.now.arrived && self.step.has_room() {
            let (first, arrivals) =
                self.feed.pending.whole(*next, WHOLE_MAX).ok_or(SubscriptionError::Arrivals)?;
            *next = first;
            for arrival in arrivals {
                // One transaction may be longer than the whole limit.
                if !self.step.has_room() {
                    return Ok(());
                }
                self.push(SubscriptionKind::Pending, arrival.whole()?);
                *next += 1;
            }
        }
        Ok(())
    }
}

/// The logs of one batch from a position on, as many as one part holds, and the position after them.
fn matched(
    watched: &Watched,
    place: LogPosition,
    worker: Worker<'_>,
) -> Result<(MatchedLogs, LogPosition), SubscriptionError> {
    let Worker { context, leash } = worker;
    if place.logs > 0 {
        // The batch is opened once for all of its parts.
        context.batches.get(place.batch, BatchParts::Both, Reader::long(leash))?;
    }
    let found = context.search(&watched.criteria, leash).run(place, place.batch, PART)?;
    let text = |log| serde_json::to_string(&log).map(Arc::from);
    let matched = found.logs.into_iter().map(text).collect::<Result<MatchedLogs, _>>();
    let matched = matched.map_err(|error| RpcError::internal("eth_subscribe", &error))?;
    let after = match found.end {
        SearchEnd::Results(place) => place,
        SearchEnd::Reached | SearchEnd::Work(_) => LogPosition::before(place.batch.next()),
    };
    Ok((matched, after))
}
