//! [`Link`]: the measurements of the link to one peer, and the window that they give.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{DELAY_UNKNOWN, WINDOW_FIRST};

/// Largest window of a peer, whatever it delivers: if it fails, the requested bytes are lost for a while.
const WINDOW_MAX: f64 = 32e6;
/// Smallest window, so that small answers overlap.
const WINDOW_MIN: f64 = 256e3;
/// Answers come in bursts, so bytes within a shorter time than this say nothing about a rate.
const BURST: Duration = Duration::from_millis(50);
/// After this time a wait is forgotten, and the peer's rate is presumed again.
const OWED_AGE: Duration = Duration::from_secs(30);
/// Maximum number of samples of each kind.
const SAMPLES: usize = 64;

/// The link to one peer.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Bytes that were requested and have not come, as estimated at the request.
    pub(super) in_flight: u64,
    pub(super) requests: usize,
    /// Total bytes of checked answers.
    pub(super) delivered: u64,
    /// When the first answer arrived.
    pub(super) began: Option<Instant>,
    pub(super) is_starting: bool,
    /// When the last answers arrived, and the bytes delivered by then.
    pub(super) arrivals: VecDeque<(Instant, u64)>,
    pub(super) rates: VecDeque<(Instant, f64)>,
    pub(super) delays: VecDeque<(Instant, Duration)>,
    /// Open requests that this node waits for.
    pub(super) owing: usize,
    pub(super) owed: Option<Silence>,
    /// Open requests that also went to another peer.
    pub(super) overdue: usize,
    /// How often in a row another peer answered first, and when that last counted.
    pub(super) overtaken: Option<(u32, Instant)>,
}

/// The requests to a peer since it last sent any wanted answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// When the wait began. Time in which nothing was asked does not count.
    pub(super) since: Instant,
    /// When the last request ended without an answer, if none was made since.
    pub(super) ended: Option<Instant>,
    /// The most bytes that were in flight.
    pub(super) bytes: u64,
}

impl Silence {
    /// How long the node has waited. Returns `None` once the wait is forgotten.
    pub(super) fn waited(&self, now: Instant) -> Option<Duration> {
        let waited = self.ended.unwrap_or(now).saturating_duration_since(self.since);
        let idle = self.ended.map_or(Duration::ZERO, |ended| now.saturating_duration_since(ended));
        (waited < OWED_AGE && idle < OWED_AGE).then_some(waited)
    }
}

impl Link {
    /// Records the arrival of an answer. Returns the bytes per second over the last round trip.
    pub(super) fn arrived(&mut self, now: Instant) -> f64 {
        let time = self.delay().unwrap_or(DELAY_UNKNOWN).max(BURST);
        let is_before = |at: Instant| now.saturating_duration_since(at) >= time;
        // The last arrival before that time stays: it is where counting begins.
        while self.arrivals.len() >= SAMPLES || self.arrivals.get(1).is_some_and(|(at, _)| is_before(*at)) {
            self.arrivals.pop_front();
        }
        let before = self.arrivals.front().copied();
        self.arrivals.push_back((now, self.delivered));
        before.map_or(0.0, |(at, delivered)| {
            let took = now.saturating_duration_since(at).max(time);
            (self.delivered - delivered) as f64 / took.as_secs_f64()
        })
    }

    pub(super) fn rate(&self) -> Option<f64> {
        self.rates.iter().map(|(_, rate)| *rate).max_by(f64::total_cmp)
    }

    pub(super) fn delay(&self) -> Option<Duration> {
        self.delays.iter().map(|(_, delay)| *delay).min()
    }

    pub(super) fn window(&self) -> f64 {
        match (self.rate(), self.delay()) {
            (Some(rate), Some(delay)) => {
                let least = if self.is_starting { WINDOW_FIRST } else { WINDOW_MIN };
                (2.0 * rate * delay.as_secs_f64()).clamp(least, WINDOW_MAX)
            }
            (None, _) | (_, None) => WINDOW_FIRST,
        }
    }
}

pub(super) fn push<T>(samples: &mut VecDeque<(Instant, T)>, now: Instant, age: Duration, sample: T) {
    while samples.len() >= SAMPLES
        || samples.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > age)
    {
        samples.pop_front();
    }
    samples.push_back((now, sample));
}
