//! [`Service`]: whether a peer delivers what it claims to serve, or is busy whenever a request asks for that.
//!
//! An honest server may be busy, which is neither a failure nor a reason for a ban. But a peer that offers something
//! and is always busy costs a turn each time. So it rests longer each time, and ranks by how often it delivered. Once
//! it delivers, most of that is forgotten at once.

use std::time::Duration;

use tokio::time::Instant;

/// A kind of offer that peers make. Each kind is judged apart: delivering cheap things does not excuse refusing
/// expensive ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServiceKind {
    /// Ranges of batches, and headers.
    Batches,
    /// Parts of snapshots and of range deltas.
    Snapshots,
}

/// Up to this many refusals in a row, a peer rests only as long as it wants.
const FREE: u32 = 2;
/// Rest after the next refusal; each further one doubles it.
const REST_FIRST: Duration = Duration::from_secs(1);
/// Longest rest: an honest server that recovers is asked again within it.
const REST_MAX: Duration = Duration::from_secs(30);
/// Half-life of a refusal.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// Maximum number of refusals remembered, so that answers can still make up for them.
const REFUSED_MAX: f64 = 16.0;

/// The service of one peer.
#[derive(Clone, Debug)]
pub(super) struct Service([ServiceRecord; 2]);

/// How a peer kept its promises for one kind.
#[derive(Clone, Debug)]
struct ServiceRecord {
    /// The time to which the counts are decayed.
    at: Instant,
    delivered: f64,
    refused: f64,
    in_row: u32,
}

impl Service {
    pub(super) fn new(at: Instant) -> Service {
        Service([(); 2].map(|()| ServiceRecord { at, delivered: 0.0, refused: 0.0, in_row: 0 }))
    }

    /// Counts an answer that passed its checks.
    pub(super) fn delivered(&mut self, kind: ServiceKind, now: Instant) {
        let kept = &mut self.0[kind as usize];
        kept.decay(now);
        kept.delivered += 1.0;
        kept.refused /= 2.0;
        kept.in_row = 0;
    }

    /// Counts a refusal as busy. Returns how long the peer rests: as long as it wants, or longer.
    pub(super) fn refused(&mut self, kind: ServiceKind, now: Instant, wanted: Duration) -> Duration {
        let kept = &mut self.0[kind as usize];
        kept.decay(now);
        kept.refused = (kept.refused + 1.0).min(REFUSED_MAX);
        kept.in_row = kept.in_row.saturating_add(1);
        let rest = match kept.in_row.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(doubled) => REST_FIRST.saturating_mul(2u32.saturating_pow(doubled.min(8))).min(REST_MAX),
        };
        rest.max(wanted)
    }

    /// The share of requests that the peer answered, for the kind of offer with the lower share; 1 while unknown.
    pub(super) fn share(&self, now: Instant) -> f64 {
        self.0.iter().map(|kept| kept.share(now)).fold(1.0, f64::min)
    }
}

impl ServiceRecord {
    fn share(&self, now: Instant) -> f64 {
        let fade = self.fade(now);
        (self.delivered * fade + 1.0) / ((self.delivered + self.refused) * fade + 1.0)
    }

    fn fade(&self, now: Instant) -> f64 {
        0.5f64.powf(now.saturating_duration_since(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64())
    }

    fn decay(&mut self, now: Instant) {
        let fade = self.fade(now);
        (self.delivered, self.refused) = (self.delivered * fade, self.refused * fade);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Duration = Duration::from_millis(500);

    /// Goal: a peer that is always busy with what it offers rests longer and longer, and counts less, whatever else it
    /// delivers.
    #[test]
    fn a_peer_that_never_delivers_what_it_offers_rests() {
        let mut now = Instant::now();
        let mut service = Service::new(now);
        let mut rests = Vec::new();
        for _ in 0..10 {
            service.delivered(ServiceKind::Batches, now);
            let rest = service.refused(ServiceKind::Snapshots, now, WANTED);
            rests.push(rest.as_millis());
            now += rest;
        }
        assert_eq!(rests, [500, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
        assert!(service.share(now) < 0.25, "{}", service.share(now));
    }

    /// Goal: an honest server that had no time is back as soon as it answers.
    #[test]
    fn one_answer_makes_up_for_most_of_it() {
        let mut now = Instant::now();
        let mut service = Service::new(now);
        for _ in 0..20 {
            now += service.refused(ServiceKind::Batches, now, WANTED);
        }
        (0..3).for_each(|_| service.delivered(ServiceKind::Batches, now));
        assert!(service.share(now) > 0.6, "{}", service.share(now));
        assert_eq!(service.refused(ServiceKind::Batches, now, WANTED), WANTED);
        assert!(service.share(now + 10 * HALF_LIFE) > 0.95, "and time does the rest");
    }
}
