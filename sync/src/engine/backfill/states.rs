//! The past states of a backfill: reverse deltas, one after the other, each from one peer.

use slipstream_network::PeerId;
use slipstream_storage::{Backlog, StateBacklog};
use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{
    Engine,
    asking::{expected, late_after},
};
use crate::{
    SyncError,
    engine::{
        jobs::StoreStates,
        streams::{Flight, Subject},
    },
    peers::Holdings,
    protocol::{REVERSE_DELTA_BYTES, Request},
    status::PastStatesStatus,
    work::{Job, PastStatesResult, ReverseAnswer},
};

/// A peer's first known state rises with its head. So the node asks for a state this many batches above the one in the peer's summary.
const MARGIN_BATCHES: u64 = 16;
/// The index of deltas in a store's backlog.
const DELTAS: usize = 2;

/// Progress of the past states.
#[derive(Debug, Default)]
pub(super) struct States {
    /// `None` before the first look at the store, and after a leap of the head.
    pub(super) backlog: Option<StateBacklog>,
    step: Option<DeltaState>,
    /// Whether no older state can be added until the head leaps.
    is_over: bool,
    /// Whether the worker holds memory for past states.
    is_open: bool,
}

/// The reverse delta in flight.
#[derive(Debug)]
enum DeltaState {
    Asked { peer: PeerId, from: BatchNumber, to: BatchNumber, late_at: Instant },
    Arrived { flight: Flight, at: Instant, answer: Vec<u8> },
    Storing,
}

impl States {
    /// Resets after a leap of the head: other states are known now.
    pub(super) fn leapt(&mut self) {
        *self = States { is_open: self.is_open, ..States::default() };
    }

    /// When the asked peer becomes late.
    pub(super) fn next_late(&self, now: Instant) -> Option<Instant> {
        match self.step {
            Some(DeltaState::Asked { late_at, .. }) if late_at > now => Some(late_at),
            _ => None,
        }
    }

    /// Number of missing states.
    pub(super) fn left(&self) -> u64 {
        let backlog = self.backlog.filter(|backlog| backlog.next.is_some() && !self.is_over);
        backlog.map_or(0, |backlog| backlog.lowest.since(backlog.wanted_from))
    }
}

/// Returns the peer to ask for the next reverse delta, and the batch that it leads to. Prefers peers that have
/// delivered, then the lowest batch that a peer knows, then the lowest rank.
fn next_step<R: Ord>(
    backlog: &StateBacklog,
    peers: &[Holdings],
    rank: impl Fn(&PeerId) -> Option<(bool, R)>,
) -> Option<(PeerId, BatchNumber)> {
    let next = backlog.next?;
    let ranked = |peer: &Holdings| {
        let from = peer.states_from.filter(|_| peer.head >= backlog.lowest)?;
        let to = if from <= next { next } else { from.after(MARGIN_BATCHES) };
        let (is_proven, rank) = rank(&peer.peer)?;
        (to < backlog.lowest).then_some((!is_proven, to, rank, peer.peer))
    };
    let (_, to, _, peer) = peers.iter().filter_map(ranked).min()?;
    Some((peer, to))
}

impl Engine {
    /// Continues with the past states once the deltas of the range are here.
    pub(super) fn backfill_states(&mut self, blobs: &[Backlog], peers: &[Holdings], now: Instant) {
        let backfill = &mut self.backfill;
        let states = &mut backfill.states;
        let deltas = &blobs[DELTAS];
        let Some(backlog) = states.backlog.filter(|backlog| {
            let is_to_come = deltas.wanted_from < deltas.lowest && backlog.wanted_from < deltas.lowest;
            backlog.next.is_some() && !states.is_over && !is_to_come
        }) else {
            return self.close_states();
        };
        let is_due = match states.step {
            None => backfill.throttle.end(now).is_none(),
            Some(DeltaState::Asked { late_at, .. }) => late_at <= now,
            Some(_) => false,
        };
        if is_due {
            let (links, book, bytes) = (&self.streams.links, &self.book, u64::from(REVERSE_DELTA_BYTES));
            let rested = |peer: &PeerId| !backfill.resting.contains_key(peer);
            let expected = |peer: &PeerId| {
                let is_free = rested(peer) && links.is_idle(peer);
                is_free.then(|| (book.is_proven(peer, now), expected(book, links, peer, (now, bytes))))
            };
            if let Some((peer, to)) = next_step(&backlog, peers, expected) {
                let late_at = now + late_after(links.expected(&peer, bytes));
                let from = backlog.lowest;
                states.step = Some(DeltaState::Asked { peer, from, to, late_at });
                let (about, request) = (Subject::States { from, to }, Request::ReverseDelta { from, to });
                self.streams.ask(peer, about, request, (now, bytes), &mut self.effects);
            } else if states.step.is_none()
                && next_step(&backlog, peers, |peer| rested(peer).then_some((true, ()))).is_none()
            {
                self.close_states();
            }
            return;
        }
        match states.step.take() {
            Some(DeltaState::Arrived { flight, at, answer }) if !self.jobs.is_working() => {
                let Subject::States { from, to } = flight.about else { return };
                (states.step, states.is_open) = (Some(DeltaState::Storing), true);
                let leaps = backfill.leaps;
                let store = StoreStates { from: Some((flight, at, answer.len())), leaps };
                self.run(store, Job::PastStates(Some(ReverseAnswer { answer, from, to })));
            }
            step => states.step = step,
        }
    }

    /// Makes the worker free its memory for past states, if it holds any.
    pub(super) fn close_states(&mut self) {
        if std::mem::take(&mut self.backfill.states.is_open) {
            let leaps = self.backfill.leaps;
            self.run(StoreStates { from: None, leaps }, Job::PastStates(None));
        }
    }

    /// Takes a reverse delta if the step still waits for one. Any of the asked peers may have sent the delta.
    pub(in crate::engine) fn states_arrived(&mut self, flight: Flight, answer: Vec<u8>, at: Instant) {
        self.backfill.throttle.answered(at.saturating_duration_since(flight.sent.at), at);
        let step = &mut self.backfill.states.step;
        if let Some(DeltaState::Asked { from, to, .. }) = *step
            && flight.about == (Subject::States { from, to })
        {
            *step = Some(DeltaState::Arrived { flight, at, answer });
        }
    }

    /// Handles a peer that did not answer: then another peer is asked, or the same peer for another range.
    pub(super) fn states_failed(&mut self, peer: &PeerId) {
        let step = &mut self.backfill.states.step;
        if matches!(step, Some(DeltaState::Asked { peer: asked, .. }) if asked == peer) {
            *step = None;
        }
    }

    /// The status of the past states for operators, while a connected peer knows some that are missing.
    pub(crate) fn past_states_status(&self, now: Instant) -> Option<PastStatesStatus> {
        let states = &self.backfill.states;
        let backlog = states.backlog.filter(|_| states.left() > 0)?;
        next_step(&backlog, &self.book.holdings(now), |_| Some((true, ())))?;
        let reason = match &states.step {
            Some(DeltaState::Asked { peer, to, .. }) => {
                format!("asking {} for the states from batch {to} on", peer.short())
            }
            Some(_) => "checking and storing what arrived".into(),
            None => "the head and the deltas of older batches come first".into(),
        };
        Some(PastStatesStatus { wanted_from: backlog.wanted_from, lowest: backlog.lowest, reason })
    }

    /// Takes the result of a reverse delta: it was added, or it is false and its sender pays.
    pub(in crate::engine) fn states_stored(
        &mut self,
        store: StoreStates,
        added: Result<PastStatesResult, SyncError>,
        now: Instant,
    ) -> Result<(), SyncError> {
        let PastStatesResult { backlog, checked, is_over } = added?;
        let StoreStates { from: Some((flight, at, bytes)), leaps } = store else { return Ok(()) };
        match checked {
            Some(Ok(())) => self.credit(&flight, at, now, bytes),
            Some(Err(fault)) => self.punish(flight.peer, REVERSE_DELTA, &fault, now),
            None => {}
        }
        if leaps != self.backfill.leaps {
            return Ok(());
        }
        let states = &mut self.backfill.states;
        let is_complete = states.left() > 0 && backlog.next.is_none();
        (states.backlog, states.step, states.is_over) = (Some(backlog), None, is_over);
        let lowest = backlog.lowest.get();
        if is_complete {
            tracing::info!(lowest, "all past states of the window are here");
        }
        Ok(())
    }
}

/// Names the request, for use in reasons.
pub(in crate::engine) const REVERSE_DELTA: &str = "reverse delta";
