//! [`Neighbour`]: what this node knows of one peer, and how much useless work that peer may cause.

use std::time::Duration;

use tokio::time::Instant;

use crate::message::Wants;

/// Maximum debt of an honest peer. A useless message costs 1, and its useless bytes cost 1 for each `DEBT_BYTES`.
/// Honest peers send some: chunks that were on their way when their payload became complete here.
const DEBT_MAX: f64 = 1_024.0;
const DEBT_BYTES: f64 = 16_384.0;
/// Debt that is forgiven per second.
const DEBT_FORGIVEN_PER_SECOND: f64 = 256.0;
/// How long a peer whose debt exceeded [`DEBT_MAX`] is ignored.
const MUTED: Duration = Duration::from_secs(10);
/// A peer that was muted this many times within [`MUTES_TIME`] is cut off; an honest peer never is.
const MUTES_MAX: u32 = 3;
const MUTES_TIME: Duration = Duration::from_secs(600);
/// How often a peer that claims to have restarted is told everything again.
const ASKS_EVERY: Duration = Duration::from_secs(1);
/// How often a peer's claim to be far ahead is passed to sync: anybody can claim that.
const FAR_EVERY: Duration = Duration::from_millis(250);
/// The assumed latency of a peer that has answered no pull yet.
const LATENCY_DEFAULT: Duration = Duration::from_millis(150);
/// Weight of a new latency measurement against the known value: a mean over the last eight.
const LATENCY_WEIGHT: f64 = 1.0 / 8.0;

/// Maximum number of payloads in a row that a peer may leave untaken. After that, it counts as a peer that takes nothing.
const UNTAKEN_MAX: u32 = 8;

/// See the module.
#[derive(Debug)]
pub(super) struct Neighbour {
    /// The parts that the peer wants; none until it says so.
    pub(super) wants: Wants,
    /// The peer's useful chunks, decaying.
    pub(super) score: f64,
    /// Payloads that this node began to send to the peer since the peer last had one whole, or sent a useful chunk.
    /// `None` until the peer did one of these.
    untaken: Option<u32>,
    /// Mean and mean deviation of the time from a pull to its first chunk, in seconds.
    latency: Option<(f64, f64)>,
    debt: f64,
    debt_at: Instant,
    muted_until: Option<Instant>,
    mutes: u32,
    first_muted_at: Instant,
    far_at: Option<Instant>,
    asks_at: Option<Instant>,
}

/// The record of a peer that left, so that leaving clears no debt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departed {
    debt: f64,
    debt_at: Instant,
    muted_until: Option<Instant>,
    mutes: u32,
    first_muted_at: Instant,
    pub(super) left_at: Instant,
}

impl Departed {
    /// Whether nothing in the record counts any more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.left_at) > MUTES_TIME
    }
}

/// The consequence for a peer that sent a useless message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ChargeResult {
    /// None: honest peers send some, now and then.
    Fine,
    /// The peer is ignored for a while.
    Muted,
    /// The peer was muted again and again.
    CutOff,
}

impl Neighbour {
    pub(super) fn new(now: Instant) -> Neighbour {
        Neighbour {
            wants: Wants::default(),
            score: 0.0,
            untaken: None,
            latency: None,
            debt: 0.0,
            debt_at: now,
            muted_until: None,
            mutes: 0,
            first_muted_at: now,
            far_at: None,
            asks_at: None,
        }
    }

    /// Returns the record to keep when the peer leaves, if there is anything to keep.
    pub(super) fn depart(self, now: Instant) -> Option<Departed> {
        let Neighbour { debt, debt_at, muted_until, mutes, first_muted_at, .. } = self;
        let departed = Departed { debt, debt_at, muted_until, mutes, first_muted_at, left_at: now };
        (debt > 0.0 || mutes > 0 || muted_until.is_some()).then_some(departed)
    }

    /// Restores the record of a peer that was here before.
    pub(super) fn returned(self, departed: Departed) -> Neighbour {
        let Departed { debt, debt_at, muted_until, mutes, first_muted_at, .. } = departed;
        Neighbour { debt, debt_at, muted_until, mutes, first_muted_at, ..self }
    }

    /// Whether the peer is muted at that moment: all its messages but notices are then dropped unread.
    pub(super) fn is_muted(&self, now: Instant) -> bool {
        self.muted_until.is_some_and(|until| now < until)
    }

    /// Charges the peer for a useless message and its useless bytes.
    pub(super) fn charge(&mut self, bytes: usize, now: Instant) -> ChargeResult {
        let forgiven = now.saturating_duration_since(self.debt_at).as_secs_f64() * DEBT_FORGIVEN_PER_SECOND;
        self.debt = (self.debt - forgiven).max(0.0) + 1.0 + bytes as f64 / DEBT_BYTES;
        self.debt_at = now;
        self.score *= 0.98;
        if self.debt <= DEBT_MAX {
            return ChargeResult::Fine;
        }
        self.debt = 0.0;
        if now.saturating_duration_since(self.first_muted_at) > MUTES_TIME {
            self.mutes = 0;
        }
        if self.mutes == 0 {
            self.first_muted_at = now;
        }
        self.mutes += 1;
        self.mute(MUTED, now);
        if self.mutes >= MUTES_MAX { ChargeResult::CutOff } else { ChargeResult::Muted }
    }

    /// Mutes the peer for that long.
    pub(super) fn mute(&mut self, time: Duration, now: Instant) {
        self.muted_until = self.muted_until.max(Some(now + time));
    }

    /// Whether the peer's claim to have restarted is accepted now.
    pub(super) fn may_ask(&mut self, now: Instant) -> bool {
        let is_due = self.asks_at.is_none_or(|at| now.saturating_duration_since(at) >= ASKS_EVERY);
        if is_due {
            self.asks_at = Some(now);
        }
        is_due
    }

    /// Whether the peer's claim to be far ahead is passed on now.
    pub(super) fn is_heard_far(&mut self, now: Instant) -> bool {
        let is_due = self.far_at.is_none_or(|at| now.saturating_duration_since(at) >= FAR_EVERY);
        if is_due {
            self.far_at = Some(now);
        }
        is_due
    }

    /// Credits the peer for a useful chunk.
    pub(super) fn credit(&mut self) {
        self.score = self.score * 0.98 + 1.0;
        self.took();
    }

    /// Notes that the peer has a payload whole.
    pub(super) fn took(&mut self) {
        self.untaken = Some(0);
    }

    /// Notes that the peer is sent the first chunk of a payload.
    pub(super) fn begins(&mut self) {
        self.untaken = self.untaken.map(|untaken| untaken.saturating_add(1));
    }

    /// Whether a node with these wants serves this peer before others. It does if the peer takes what it is sent.
    /// Otherwise an attacker with many connections, which cost little, would be sent most of the chunks. Peers report
    /// no bodies to a node that wants none, such as a validator, so that node serves all peers alike.
    pub(super) fn comes_first(&self, own: Wants) -> bool {
        !own.body || self.untaken.is_some_and(|untaken| untaken < UNTAKEN_MAX)
    }

    /// Notes how long the peer took to answer a pull.
    pub(super) fn answered(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        self.latency = Some(match self.latency {
            None => (took, took / 2.0),
            Some((mean, deviation)) => (
                mean + (took - mean) * LATENCY_WEIGHT,
                deviation + ((took - mean).abs() - deviation) * LATENCY_WEIGHT,
            ),
        });
    }

    /// The time within which the peer answers about nineteen pulls of twenty: mean and two deviations.
    pub(super) fn latency(&self) -> Duration {
        self.latency
            .map_or(LATENCY_DEFAULT, |(mean, deviation)| Duration::from_secs_f64(mean + 2.0 * deviation))
    }
}
