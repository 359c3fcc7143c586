//! [`TakenSeats`]: the taken seats, and who goes first when a newcomer needs one.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use slipstream_fair::Origin;
use tokio::time::Instant;

use super::{Seat, WAITS};

/// A recent caller's seat that was used within this time ranks above one that was not. So a connection that has just
/// opened, or that sends requests again and again, survives a crowd of idle connections.
pub(super) const GRACE: Duration = Duration::from_millis(250);
/// The step that recent use adds to a rank.
const YOUNG: u8 = 2;
/// How long an address counts as a caller after it has read an answer, and the most connections it may have meanwhile.
/// So a client cannot protect its old connections by opening ever new ones.
const CALLER_MAX: Duration = Duration::from_secs(10);
const CALLER_SEATS_MAX: usize = 8;
/// Maximum number of remembered callers. Further callers are not remembered.
const CALLERS_MAX: usize = 4_096;

/// All taken seats. [`TakenSeats::insert`] and [`TakenSeats::remove`] maintain the counts.
#[derive(Default)]
pub(super) struct TakenSeats {
    pub(super) next: u64,
    pub(super) seats: BTreeMap<u64, Seat>,
    /// The number of seats of each address; addresses without seats are absent.
    counts: HashMap<Origin, usize>,
    /// The number of seats that strangers have.
    pub(super) strangers: usize,
    /// The numbers of dismissed connections.
    leaving: Vec<u64>,
    /// When an address last had its answer.
    callers: BTreeMap<Origin, Instant>,
}

impl TakenSeats {
    pub(super) fn count(&self, origin: Origin) -> usize {
        self.counts.get(&origin).copied().unwrap_or_default()
    }

    pub(super) fn insert(&mut self, seat: Seat) {
        let origin = seat.0.origin;
        *self.counts.entry(origin).or_default() += 1;
        self.strangers += usize::from(origin.is_stranger());
        self.seats.insert(seat.0.number, seat);
    }

    pub(super) fn remove(&mut self, number: u64) {
        let Some(seat) = self.seats.remove(&number) else { return };
        self.leaving.retain(|leaving| *leaving != number);
        let origin = seat.0.origin;
        self.strangers -= usize::from(origin.is_stranger());
        if let Some(count) = self.counts.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&origin);
            }
        }
    }

    /// The dismissed connections that are leaving.
    pub(super) fn leaving(&self) -> impl Iterator<Item = &Seat> {
        self.leaving.iter().filter_map(|number| self.seats.get(number)).filter(|seat| seat.has_to_go())
    }

    /// Whether an address with this many connections was answered recently.
    fn is_caller(&self, origin: Origin, connections: usize) -> bool {
        let is_answered = |at: &Instant| at.elapsed() < CALLER_MAX;
        connections <= CALLER_SEATS_MAX && self.callers.get(&origin).is_some_and(is_answered)
    }

    pub(super) fn note_caller(&mut self, origin: Origin) {
        if self.callers.len() >= CALLERS_MAX && !self.callers.contains_key(&origin) {
            self.callers.retain(|_, at| at.elapsed() < CALLER_MAX);
        }
        if self.callers.len() < CALLERS_MAX || self.callers.contains_key(&origin) {
            self.callers.insert(origin, Instant::now());
        }
    }

    /// Dismisses the connection that can go first, unless one is leaving already. Strangers go before the operator's
    /// hosts. Of strangers that are equally idle, one whose address has most connections goes first. A waiting call is
    /// displaced only by an address with fewer connections, or by the operator.
    pub(super) fn dismiss_one(&mut self, newcomer: Origin, may_go: impl Fn(Origin) -> bool) {
        let own = self.count(newcomer);
        let yields = |one: Origin| match newcomer.is_stranger() {
            true => self.count(one) > own + 1,
            false => one.is_stranger(),
        };
        let is_leaving = |seat: &Seat| {
            let waits = seat.0.state.lock().rank().is_some_and(|(class, _)| class == WAITS);
            !waits || yields(seat.0.origin)
        };
        if self.leaving().any(|seat| may_go(seat.0.origin) && is_leaving(seat)) {
            return;
        }
        let ranks = self.seats.values().filter(|seat| may_go(seat.0.origin)).filter_map(|seat| {
            let (class, since) = seat.0.state.lock().rank()?;
            if class == WAITS && !yields(seat.0.origin) {
                return None;
            }
            let own = self.count(seat.0.origin);
            let is_young = class < WAITS && since.elapsed() < GRACE && self.is_caller(seat.0.origin, own);
            let (class, others) = (class + if is_young { YOUNG } else { 0 }, self.seats.len() - own);
            Some(((!seat.0.origin.is_stranger(), class, others, since), seat))
        });
        let first = ranks.min_by_key(|(rank, _)| *rank).map(|(_, seat)| seat.clone());
        if let Some(seat) = first {
            seat.0.dismissed.cancel();
            self.leaving.push(seat.0.number);
        }
    }
}
