//! [`Links`]: how many bytes may be in flight to each peer, by what it delivers.
//!
//! A window is twice the bandwidth-delay product. The rate is the best of the last ten seconds, over an answer's time
//! or over the last round trip. The delay is the shortest answer of the last minute. While a window is full it grows
//! with every answer, because each then delivers more in the same time. So it doubles per round trip until the peer,
//! the link, or this node is the limit. Answers to few requests say nothing about the peer's capacity. Source: BBR
//! (Cardwell et al., 2016), applied to whole requests.

mod link;

use std::{collections::BTreeMap, time::Duration};

use slipstream_network::PeerId;
use tokio::time::Instant;

use self::link::{Link, Silence, push};

/// Window before anything is measured, in bytes.
const WINDOW_FIRST: f64 = 4e6;
/// A new connection needs time to show its capacity. In its first second, the window does not shrink below that of an
/// unmeasured one.
const STARTING: Duration = Duration::from_secs(1);
/// Up to this many long answers may overlap even beyond the window, so that the window of a distant peer can grow. At
/// its rate the peer must deliver them within the time below.
const REQUESTS_MIN: usize = 4;
const REQUESTS_MIN_SECONDS: f64 = 1.0;
/// A rate is forgotten after this.
const RATE_AGE: Duration = Duration::from_secs(10);
/// A delay is forgotten after this.
const DELAY_AGE: Duration = Duration::from_secs(60);
/// Presumed rate of an unmeasured peer, in bytes per second, for its requests.
pub(super) const RATE_UNKNOWN: f64 = 2e6;
/// Presumed rates for plans: a link of 100 Mbit/s, or of 1 Gbit/s to a peer that is [`NEAR`]. A small gap is over
/// before a rate is measured.
const RATE_FAR: f64 = 12.5e6;
const RATE_NEAR: f64 = 125e6;
/// A peer whose round trip is shorter than this is in the same building, or on the same machine.
const NEAR: Duration = Duration::from_millis(20);
/// Presumed delay of an unmeasured peer.
const DELAY_UNKNOWN: Duration = Duration::from_millis(200);
/// A peer that another one overtook counts as this much slower, twice as much each time in a row, until it delivers
/// again. Requests that are overtaken at the same moment have one cause, and count once.
const LATE_FIRST: Duration = Duration::from_millis(200);
const LATE_MAX: Duration = Duration::from_secs(10);
/// A peer's lateness is forgotten after this time, so that a peer that stalled once is asked again.
const LATE_AGE: Duration = Duration::from_secs(30);
/// If a peer answers nothing for longer than this, its rate counts as the requested bytes divided by the time beyond
/// this grace.
const OWED_GRACE: Duration = Duration::from_secs(1);

/// The links of all peers.
#[derive(Debug, Default)]
pub(super) struct Links(BTreeMap<PeerId, Link>);

/// The notes on a request, made when it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentRequest {
    pub(super) at: Instant,
    bytes: u64,
    delivered: u64,
    /// Whether at least half of the window was in flight.
    is_full: bool,
    /// Whether this node waits for the answer.
    is_owed: bool,
}

impl Links {
    /// Records a request of `bytes` expected bytes.
    pub(super) fn send(&mut self, peer: PeerId, now: Instant, bytes: u64) -> SentRequest {
        let link = self.0.entry(peer).or_default();
        link.in_flight += bytes;
        link.requests += 1;
        let is_full = 2.0 * link.in_flight as f64 >= link.window();
        SentRequest { at: now, bytes, delivered: link.delivered, is_full, is_owed: false }
    }

    /// Records that this node waits for a request of [`Links::send`].
    pub(super) fn owe(&mut self, peer: &PeerId, sent: &mut SentRequest, now: Instant) {
        let Some(link) = self.0.get_mut(peer) else { return };
        sent.is_owed = true;
        link.owing += 1;
        let before = link.owed.and_then(|owed| Some((now.checked_sub(owed.waited(now)?)?, owed.bytes)));
        let (since, bytes) = before.unwrap_or((now, 0));
        link.owed = Some(Silence { since, ended: None, bytes: bytes.max(link.in_flight) });
    }

    /// Records that a request ended without an answer.
    pub(super) fn failed(&mut self, peer: &PeerId, now: Instant) {
        if let Some(link) = self.0.get_mut(peer).filter(|link| link.owing == 0)
            && let Some(owed) = &mut link.owed
        {
            owed.ended = owed.ended.or(Some(now));
        }
    }

    /// Records that an answer came, checked or not.
    pub(super) fn came(&mut self, peer: &PeerId, now: Instant) {
        let Some(link) = self.0.get_mut(peer) else { return };
        link.owed = (link.owing > 0).then_some(Silence { since: now, ended: None, bytes: link.in_flight });
    }

    /// Cancels a request: nobody waits for its answer any more.
    pub(super) fn cancel(&mut self, peer: &PeerId, sent: &SentRequest, was_overdue: bool) {
        self.end(peer, sent, was_overdue);
        if let Some(link) = self.0.get_mut(peer).filter(|link| link.owing == 0) {
            link.owed = None;
        }
    }

    /// The highest rate that a peer's silence allows, in bytes per second. So the price of a way that rests on promises
    /// grows with the wait, until another way is cheaper.
    pub(super) fn rate_max(&self, peer: &PeerId, now: Instant) -> f64 {
        let owed = self.0.get(peer).and_then(|link| link.owed);
        let late = owed.and_then(|owed| Some((owed.waited(now)?.checked_sub(OWED_GRACE)?, owed.bytes)));
        match late {
            Some((late, bytes)) if !late.is_zero() => bytes as f64 / late.as_secs_f64(),
            _ => f64::INFINITY,
        }
    }

    /// Records that a request is over, with or without an answer.
    pub(super) fn end(&mut self, peer: &PeerId, sent: &SentRequest, was_overdue: bool) {
        let Some(link) = self.0.get_mut(peer) else { return };
        link.in_flight = link.in_flight.saturating_sub(sent.bytes);
        link.requests = link.requests.saturating_sub(1);
        link.owing = link.owing.saturating_sub(usize::from(sent.is_owed));
        link.overdue = link.overdue.saturating_sub(usize::from(was_overdue));
        if link.requests == 0 {
            // Resets the counts, so that an error of an estimate does not last.
            (link.in_flight, link.overdue) = (0, 0);
        }
    }

    /// Records an answer that passed its checks.
    pub(super) fn delivered(
        &mut self,
        peer: &PeerId,
        now: Instant,
        arrived: Instant,
        sent: &SentRequest,
        bytes: usize,
    ) {
        let Some(link) = self.0.get_mut(peer) else { return };
        let took = arrived.saturating_duration_since(sent.at).max(Duration::from_micros(100));
        link.overtaken = None;
        link.delivered += bytes as u64;
        link.is_starting = arrived.saturating_duration_since(*link.began.get_or_insert(arrived)) < STARTING;
        let rate = (link.delivered.saturating_sub(sent.delivered)) as f64 / took.as_secs_f64();
        // Early requests took long while the connection got up to speed; it delivers more now.
        let rate = rate.max(link.arrived(arrived));
        if sent.is_full || rate > link.rate().unwrap_or(RATE_UNKNOWN) {
            push(&mut link.rates, now, RATE_AGE, rate);
        }
        push(&mut link.delays, now, DELAY_AGE, took);
    }

    /// Records a short answer: it gives a peer's round trip before anything else about the peer is known.
    pub(super) fn round_trip(&mut self, peer: &PeerId, now: Instant, sent: &SentRequest) {
        if let Some(link) = self.0.get_mut(peer) {
            push(&mut link.delays, now, DELAY_AGE, now.saturating_duration_since(sent.at));
        }
    }

    /// Records that a request takes too long.
    pub(super) fn overdue(&mut self, peer: &PeerId) {
        if let Some(link) = self.0.get_mut(peer) {
            link.overdue += 1;
        }
    }

    /// Records that another peer was asked too, and answered first.
    pub(super) fn overtaken(&mut self, peer: &PeerId, now: Instant) {
        let Some(link) = self.0.get_mut(peer) else { return };
        let since = |last: Instant| now.saturating_duration_since(last);
        link.overtaken = match link.overtaken {
            Some((times, last)) if since(last) < LATE_FIRST => Some((times, last)),
            Some((times, last)) if since(last) < LATE_AGE => Some((times.saturating_add(1), now)),
            _ => Some((1, now)),
        };
    }

    /// The time added to a peer's expected answer times. So a peer that did well before and then holds answers back
    /// delays one or two requests, and not each.
    pub(super) fn lateness(&self, peer: &PeerId, now: Instant) -> Duration {
        let overtaken = self.0.get(peer).and_then(|link| link.overtaken);
        match overtaken.filter(|(_, last)| now.saturating_duration_since(*last) < LATE_AGE) {
            Some((times, _)) => LATE_FIRST.saturating_mul(2u32.saturating_pow(times - 1)).min(LATE_MAX),
            None => Duration::ZERO,
        }
    }

    /// Forgets peers that are gone and have no open request.
    pub(super) fn retain(&mut self, keep: impl Fn(&PeerId) -> bool) {
        self.0.retain(|peer, link| link.requests > 0 || keep(peer));
    }

    /// Whether another request of `bytes` bytes may go to a peer now. A peer with an overdue answer gets none.
    pub(super) fn has_room(&self, peer: &PeerId, bytes: u64) -> bool {
        match self.0.get(peer) {
            None => true,
            Some(link) if link.overdue > 0 => false,
            Some(link) => {
                let bytes = (link.in_flight + bytes) as f64;
                let seconds = bytes / link.rate().unwrap_or(RATE_UNKNOWN);
                let are_few = link.requests < REQUESTS_MIN && seconds <= REQUESTS_MIN_SECONDS;
                link.requests == 0 || are_few || bytes <= link.window()
            }
        }
    }

    /// Whether no request to a peer is in flight.
    pub(super) fn is_idle(&self, peer: &PeerId) -> bool {
        self.0.get(peer).is_none_or(|link| link.requests == 0)
    }

    /// Expected time from a request of `bytes` bytes to its answer, behind the requests in flight.
    pub(super) fn expected(&self, peer: &PeerId, bytes: u64) -> Duration {
        let Some(link) = self.0.get(peer) else {
            return DELAY_UNKNOWN + Duration::from_secs_f64(bytes as f64 / RATE_UNKNOWN);
        };
        // A near peer is asked for long answers at once. Its answer is late once an answer over such a link would be
        // here.
        let rate = link.rate().unwrap_or(if self.is_near(peer) { RATE_NEAR } else { RATE_UNKNOWN });
        let waiting = (link.in_flight + bytes) as f64 / rate.max(1e3);
        link.delay().unwrap_or(DELAY_UNKNOWN) + Duration::from_secs_f64(waiting.min(600.0))
    }

    /// The best measured rate of a peer, in bytes per second. In a peer's first second, its rate counts as at least the
    /// presumed one. Each of several simultaneous answers takes as long as all of them, so one alone says little.
    pub(super) fn rate(&self, peer: &PeerId, now: Instant) -> Option<f64> {
        let link = self.0.get(peer)?;
        let is_new = link.began.is_some_and(|began| now.saturating_duration_since(began) < STARTING);
        let least = if self.is_near(peer) { RATE_NEAR } else { RATE_UNKNOWN };
        link.rate().map(|rate| if is_new { rate.max(least) } else { rate })
    }

    /// The rate by which ranges are cut, in bytes per second: the measured one, or a low one for a far peer without
    /// measurements. A short first range arrives soon, and until then the stages cannot work side by side.
    pub(super) fn cut_rate(&self, peer: &PeerId) -> f64 {
        let unseen = if self.is_near(peer) { RATE_NEAR } else { RATE_UNKNOWN };
        self.0.get(peer).and_then(Link::rate).unwrap_or(unseen)
    }

    /// The rate that plans presume for an unmeasured peer, in bytes per second.
    pub(super) fn presumed(&self, peer: &PeerId) -> f64 {
        if self.is_near(peer) { RATE_NEAR } else { RATE_FAR }
    }

    fn is_near(&self, peer: &PeerId) -> bool {
        self.0.get(peer).and_then(Link::delay).is_some_and(|delay| delay < NEAR)
    }
}

#[cfg(test)]
mod tests;
