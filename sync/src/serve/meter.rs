//! [`Meter`]: how many bytes and how much work one peer may take, so that no peer takes what the others need.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use slipstream_network::PeerId;
use tokio::time::Instant;

/// Peers that are counted before those with full buckets are forgotten. `network` bounds how many are connected.
const PEERS_KEPT: usize = 1024;

/// A rate, and how much may be taken at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Tokens per second.
    pub(super) rate: f64,
    /// Tokens in a full bucket.
    pub(super) burst: f64,
}

/// Token buckets of all peers, two for each: bytes, and microseconds of work.
pub(super) struct Meter {
    bytes: Allowance,
    work: Allowance,
    peers: Mutex<BTreeMap<PeerId, Account>>,
}

struct Account {
    at: Instant,
    bytes: f64,
    work: f64,
}

impl Meter {
    /// With the allowances of each peer.
    pub(super) fn new(bytes: Allowance, work: Allowance) -> Meter {
        Meter { bytes, work, peers: Mutex::default() }
    }

    /// How long a peer must wait before its next request. Zero while it has anything left: what an answer costs is known
    /// only once it is made, so it is taken then, and may leave a debt.
    pub(super) fn wait(&self, peer: PeerId, now: Instant) -> Duration {
        let mut peers = self.peers.lock();
        let Some(account) = peers.get_mut(&peer) else { return Duration::ZERO };
        self.refill(account, now);
        self.bytes.wait(account.bytes).max(self.work.wait(account.work))
    }

    /// Takes what an answer cost.
    pub(super) fn charge(&self, peer: PeerId, bytes: usize, work: Duration, now: Instant) {
        let mut peers = self.peers.lock();
        if peers.len() >= PEERS_KEPT && !peers.contains_key(&peer) {
            peers.retain(|_, account| {
                self.refill(account, now);
                account.bytes < self.bytes.burst || account.work < self.work.burst
            });
        }
        let account =
            peers.entry(peer).or_insert(Account { at: now, bytes: self.bytes.burst, work: self.work.burst });
        self.refill(account, now);
        account.bytes -= bytes as f64;
        account.work -= work.as_micros() as f64;
    }

    fn refill(&self, account: &mut Account, now: Instant) {
        let seconds = now.saturating_duration_since(account.at).as_secs_f64();
        account.at = account.at.max(now);
        account.bytes = (account.bytes + seconds * self.bytes.rate).min(self.bytes.burst);
        account.work = (account.work + seconds * self.work.rate).min(self.work.burst);
    }
}

impl Allowance {
    /// Until a debt is paid.
    fn wait(&self, level: f64) -> Duration {
        if level >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-level / self.rate).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: u8) -> PeerId {
        slipstream_types::PublicKey([id; 32])
    }

    fn meter() -> Meter {
        let bytes = Allowance { rate: 1_000.0, burst: 5_000.0 };
        Meter::new(bytes, Allowance { rate: 100_000.0, burst: 1_000_000.0 })
    }

    #[test]
    fn a_burst_is_free_and_a_debt_is_paid_at_the_rate() {
        let (meter, now) = (meter(), Instant::now());
        meter.charge(peer(1), 5_000, Duration::ZERO, now);
        assert_eq!(meter.wait(peer(1), now), Duration::ZERO);
        meter.charge(peer(1), 2_000, Duration::ZERO, now);
        assert_eq!(meter.wait(peer(1), now), Duration::from_secs(2));
        assert_eq!(meter.wait(peer(2), now), Duration::ZERO, "each pays for itself");
        assert_eq!(meter.wait(peer(1), now + Duration::from_secs(2)), Duration::ZERO);
        // However long it rests, it saves no more than one burst.
        let later = now + Duration::from_secs(3_600);
        meter.charge(peer(1), 6_000, Duration::ZERO, later);
        assert_eq!(meter.wait(peer(1), later), Duration::from_secs(1));
    }

    #[test]
    fn work_counts_beside_bytes() {
        let (meter, now) = (meter(), Instant::now());
        meter.charge(peer(1), 10, Duration::from_millis(1_200), now);
        assert_eq!(meter.wait(peer(1), now), Duration::from_secs(2));
    }

    #[test]
    fn rested_peers_are_forgotten_and_debtors_are_not() {
        let (meter, now) = (meter(), Instant::now());
        let id = |i: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&i.to_be_bytes());
            slipstream_types::PublicKey(bytes)
        };
        meter.charge(id(0), 1_000_000, Duration::ZERO, now);
        (1..PEERS_KEPT).for_each(|i| meter.charge(id(i), 1, Duration::ZERO, now));
        let later = now + Duration::from_secs(1);
        meter.charge(id(PEERS_KEPT), 1, Duration::ZERO, later);
        assert_eq!(meter.peers.lock().len(), 2);
        assert!(meter.wait(id(0), later) > Duration::from_secs(900));
    }
}
