//! [`Backfill`]: fetches the history of a node that began at a state, newest first, while the head needs nothing.
//!
//! ```text
//!  store's backlog ─▶ next_span ─▶ Pieces ─ request ─▶ peers ─ answer ─▶ check ─▶ store, newest first ─▶ the next backlog
//!   (what is missing)  (what peers keep)                                            (one of each at a time)
//! ```
//! The head comes first. While the node is behind, no peer is asked. A peer with any other request in flight is not
//! asked either. Checks and writes wait until no other job runs. A request takes about a quarter of a second of its
//! link. Only the store records the progress, so a kill costs what was not stored.

mod asking;
mod pieces;
mod progress;
mod report;
mod span;
mod states;
mod throttle;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use slipstream_network::PeerId;
use slipstream_storage::Backlog;
use slipstream_types::BatchNumber;
use tokio::time::Instant;

pub(super) use self::states::REVERSE_DELTA;
use self::{
    pieces::{PieceAnswer, Pieces, State},
    progress::Progress,
    span::next_span,
    states::States,
    throttle::Throttle,
};
use super::{
    Engine,
    jobs::{CheckPast, StorePast},
    streams::{Flight, Subject},
};
use crate::{
    SyncError,
    error::Fault,
    plan::Stage,
    protocol::{RANGE_BATCHES_MAX, RangeRequest},
    work::{BackfillResult, Job, PastRange},
};

/// Presumed compressed bytes of a batch's parts before the first answer.
const BATCH_BYTES_UNKNOWN: f64 = 16e3;
/// A node counts as being at the head while at most this many certified batches are ahead of it.
const NEAR_BATCHES: u64 = 4;
/// How long a peer that refused a range gets no other request: it pruned that range, or is overloaded.
const REST: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug)]
pub(super) struct Backfill {
    /// What the store lacks; `None` before the first look at the store, and after a leap of the head.
    backlog: Option<[Backlog; 4]>,
    pieces: Pieces,
    /// Number of leaps of the head. A store job that began before a leap says nothing about the gap behind that leap.
    leaps: u64,
    /// Maximum number of batches of the next pieces: fewer once an answer ended early.
    batches_max: u64,
    /// Compressed bytes of a batch's parts, from the last answer.
    batch_bytes: f64,
    /// The states before the first known one.
    states: States,
    /// Peers that refused a range or were late with it, and until when they are left alone.
    resting: BTreeMap<PeerId, Instant>,
    throttle: Throttle,
    progress: Progress,
    /// Whether batches that were committed since the last look at the store lack parts that the node keeps.
    lacks: bool,
    /// Whether something was missing at the last look.
    is_missing: bool,
}

impl Default for Backfill {
    fn default() -> Backfill {
        Backfill {
            backlog: None,
            pieces: Pieces::default(),
            leaps: 0,
            batches_max: u64::from(RANGE_BATCHES_MAX),
            batch_bytes: BATCH_BYTES_UNKNOWN,
            states: States::default(),
            resting: BTreeMap::new(),
            throttle: Throttle::default(),
            progress: Progress::default(),
            lacks: false,
            is_missing: false,
        }
    }
}

impl Backfill {
    /// Resets after a leap of the head: the store has another gap, so the next step looks at it anew.
    pub(super) fn leapt(&mut self) {
        (self.backlog, self.pieces) = (None, Pieces::default());
        self.states.leapt();
        self.leaps += 1;
    }

    /// The next time at which a peer becomes late, a peer may be asked again, or the throttle's pause ends.
    pub(super) fn next_look(&self, now: Instant) -> Option<Instant> {
        let late = self.pieces.next_late(now).into_iter().chain(self.states.next_late(now));
        let late = late.chain(self.throttle.end(now));
        self.resting.values().copied().chain(late).min()
    }

    /// Learns from an answer how large batches are, and how many of them fit into one.
    fn learn(&mut self, range: &PastRange, is_short: bool) {
        let batches = range.batches().max(1);
        self.batch_bytes = (range.bytes() as f64 / batches as f64).max(64.0);
        self.batches_max = match is_short {
            true => (batches / 2).max(1),
            false => (self.batches_max * 2).min(u64::from(RANGE_BATCHES_MAX)),
        };
    }
}

impl Engine {
    /// Continues the backfill if the head leaves time for it.
    pub(super) fn backfill(&mut self, now: Instant) {
        // A restore changes what is missing.
        if !self.config.history || self.restore.is_some() {
            return self.close_states();
        }
        self.backfill.resting.retain(|_, until| *until > now);
        if self.backfill.lacks && !self.is_behind() {
            // Batches may come faster than answers. So the pieces in flight finish first, and then the new gap follows.
            self.backfill.pieces.cut_no_more();
            if self.backfill.pieces.is_empty() {
                (self.backfill.lacks, self.backfill.backlog) = (false, None);
            }
        }
        let Some(backlog) = self.backfill.backlog else {
            if !self.jobs.store_past.is_any() {
                let look = StorePast { leaps: self.backfill.leaps, ..StorePast::default() };
                self.run(look, Job::Backfill(None));
            }
            return;
        };
        if self.is_behind() {
            return self.close_states();
        }
        let mut peers = self.book.holdings(now);
        self.backfill_states(&backlog, &peers, now);
        if Backlog::missing(&backlog).is_none() {
            return;
        }
        // A peer that refused what it claims to keep has no say in what is fetched next.
        peers.retain(|peer| !self.backfill.resting.contains_key(&peer.peer));
        self.rest_late(&backlog, &mut peers, now);
        if self.is_unserved(&peers) {
            self.backfill.pieces = Pieces::default();
        }
        if self.backfill.pieces.is_empty() {
            self.backfill.pieces = Pieces::of(next_span(&backlog, &peers));
        }
        let batches = self.past_batches(&peers, now);
        self.backfill.pieces.cut(batches);
        self.ask_past(&peers, now);
        if !self.jobs.is_working() {
            self.check_past();
            self.store_past();
        }
    }

    /// Records whether committed batches lack parts that the node keeps.
    pub(super) fn backfill_lacks(&mut self, lacks: bool) {
        self.backfill.lacks |= lacks;
    }

    /// Records that the head moved by `batches` batches: one batch is a new batch at the head, and several are the end
    /// of catching up.
    pub(super) fn rest_for_head(&mut self, batches: u64, now: Instant) {
        if batches == 1 {
            self.backfill.throttle.head_moved(now);
        }
    }

    /// Whether the head needs peers and this machine for itself.
    fn is_behind(&self) -> bool {
        self.newest.since(self.head) > NEAR_BATCHES
    }

    /// Takes an answer if its piece still waits for one. Any of the asked peers may have sent the answer.
    pub(super) fn past_arrived(
        &mut self,
        request: RangeRequest,
        flight: Flight,
        answer: Vec<u8>,
        at: Instant,
    ) {
        self.backfill.throttle.answered(at.saturating_duration_since(flight.sent.at), at);
        let Some(piece) = self.backfill.pieces.get_mut(request.first) else { return };
        let is_asked = matches!(piece.state, State::Asked { .. });
        if is_asked && (piece.span.batches() as u32, piece.span.parts) == (request.batches_max, request.parts)
        {
            piece.state = State::Arrived(Box::new(PieceAnswer { flight, at, request, answer }));
        }
    }

    /// Handles a failed request of the backfill: the piece goes to another peer. A peer that refuses keeps its score.
    /// It pruned the range after its last summary, so that summary expires. Returns whether nothing else is left to do.
    pub(super) fn past_failed(&mut self, about: Subject, peer: &PeerId, fault: &Fault, now: Instant) -> bool {
        match about {
            Subject::Past { request: RangeRequest { first, .. }, .. } => {
                self.backfill
                    .pieces
                    .want(first, |state| matches!(state, State::Asked { peer: asked, .. } if asked == peer));
            }
            Subject::States { .. } => self.states_failed(peer),
            _ => return false,
        }
        let is_refused = fault.is_refusal() && !fault.is_busy();
        if is_refused {
            self.backfill.resting.insert(*peer, now + REST);
            self.book.expire(peer);
        }
        is_refused
    }

    /// Hands the newest answer to the worker, one at a time.
    fn check_past(&mut self) {
        if self.jobs.check_past.is_any() {
            return;
        }
        let Some(arrived) = self.backfill.pieces.take_arrived() else { return };
        let PieceAnswer { flight, at, request, answer } = arrived;
        let Subject::Past { head, .. } = flight.about else { return };
        let first = request.first;
        let (due, trust) = (head.since(first).saturating_add(1), Arc::clone(&self.trust));
        self.run(CheckPast { first, flight, at }, Job::CheckPast { answer, request, due, trust });
    }

    /// Takes the result of a check: the sender is credited, or pays.
    pub(super) fn past_checked(
        &mut self,
        check: CheckPast,
        checked: Result<PastRange, Fault>,
        took: Duration,
        now: Instant,
    ) {
        let CheckPast { first, flight, at } = check;
        let range = match checked {
            Ok(range) => range,
            Err(fault) => {
                self.backfill.pieces.want(first, |state| matches!(state, State::Checking));
                let what = describe(first);
                return match fault {
                    // The peer may only be an epoch ahead: its next summary leads there.
                    Fault::Unverified(_) => self.claimed(flight.peer, &what, &fault, now),
                    fault => self.punish(flight.peer, &what, &fault, now),
                };
            }
        };
        self.stages.worked(Stage::Check, now, took, range.bytes());
        self.backfill.throttle.worked(took, now);
        self.credit(&flight, at, now, range.bytes() as usize);
        let Some(piece) = self.backfill.pieces.get_mut(first) else { return };
        let is_short = range.last() < Some(piece.span.last);
        self.backfill.learn(&range, is_short);
        match is_short {
            // The batches between this range's end and the stored ones must come first.
            true => self.backfill.pieces.recut(first),
            false => self.backfill.pieces.checked(first, range, flight.peer),
        }
    }

    /// Hands the newest piece to the worker, if it is checked.
    fn store_past(&mut self) {
        if self.jobs.store_past.is_any() {
            return;
        }
        let Some((range, from)) = self.backfill.pieces.take_newest() else { return };
        let (batches, bytes, leaps) = (range.batches(), range.bytes(), self.backfill.leaps);
        let store = StorePast { from: Some(from), batches, bytes, leaps };
        self.run(store, Job::Backfill(Some(range)));
    }

    /// Takes the result of a store job. A piece was stored or refused, or the job only looked at what is missing.
    pub(super) fn past_stored(
        &mut self,
        store: StorePast,
        stored: Result<BackfillResult, SyncError>,
        took: Duration,
        now: Instant,
    ) -> Result<(), SyncError> {
        let BackfillResult { backlog, states, refused } = stored?;
        let StorePast { from, batches, bytes, leaps } = store;
        if leaps != self.backfill.leaps {
            return Ok(());
        }
        (self.backfill.backlog, self.backfill.states.backlog) = (Some(backlog), Some(states));
        let Some(from) = from else {
            self.backfill.progress = Progress::began(now);
            let missing = Backlog::missing(&backlog);
            let was_missing = std::mem::replace(&mut self.backfill.is_missing, missing.is_some());
            if let Some((lowest, wanted_from)) = missing.filter(|_| !was_missing) {
                tracing::info!(
                    lowest = lowest.get(),
                    wanted_from = wanted_from.get(),
                    "the backfill of history begins: newest batches first, while following the head"
                );
            }
            return Ok(());
        };
        if let Some(violation) = refused {
            let newest = self.backfill.pieces.iter().next().map(|newest| newest.span.first);
            if let Some(first) = newest {
                self.backfill.pieces.want(first, |state| matches!(state, State::Storing));
            }
            self.punish(from, "batches of the backfill", &violation.into(), now);
            return Ok(());
        }
        self.stages.worked(Stage::Commit, now, took, bytes);
        self.backfill.throttle.worked(took, now);
        self.backfill.progress.stored(batches, bytes, now);
        self.backfill.pieces.stored();
        if self.backfill.pieces.iter().next().is_some_and(|next| !next.span.is_next(&backlog)) {
            // The backfill met batches that were kept below a gap, or they were pruned.
            self.backfill.pieces = Pieces::default();
        }
        match Backlog::missing(&backlog) {
            None => {
                self.backfill.is_missing = false;
                tracing::info!("the backfill of history is complete");
            }
            Some((lowest, wanted_from)) if self.backfill.progress.is_log_due(now) => {
                let (per_second, eta_seconds) = self.past_pace(lowest, wanted_from, now);
                tracing::info!(
                    lowest = lowest.get(),
                    wanted_from = wanted_from.get(),
                    per_second,
                    eta_seconds,
                    "backfilling history"
                );
            }
            Some(_) => {}
        }
        Ok(())
    }
}

/// Describes a piece, for use in reasons.
pub(super) fn describe(first: BatchNumber) -> String {
    format!("batches of the backfill from {first} on")
}
