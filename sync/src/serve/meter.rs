//! [`Meter`]: how many bytes and how much work one peer may take, so that no peer takes what the others need.
//!
//! A request pays its presumed cost on admission; the real cost replaces that at its end. So of many simultaneous
//! requests not all pass as if each were the first. A separate purse pays for short answers: a peer that took much may
//! still ask where the head is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use slipstream_network::PeerId;
use tokio::time::Instant;

use super::{
    cost::{Cost, Kind},
    lane::Class,
};

/// Number of accounts beyond which the meter forgets those of disconnected peers, full purses first. Accounts of
/// connected peers are always kept: a peer that paid for what it took would otherwise begin anew as a stranger.
/// `network` bounds how many peers are connected.
const PEERS_KEPT: usize = 1_024;
/// A peer that has been connected for this long is no stranger any more.
const KNOWN_AFTER: Duration = Duration::from_secs(600);
/// Full purses in stock for new strangers; the stock refills at the rate of one peer. Without stock, a new key begins
/// with an empty purse: otherwise a change of the key would cancel every debt.
const STRANGERS: f64 = 16.0;
/// The purse for short answers is smaller by this factor.
const SMALL: f64 = 16.0;

/// A rate, and the most that may be taken at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Tokens earned per second.
    pub(super) rate: f64,
    /// Tokens in a full bucket.
    pub(super) burst: f64,
}

/// One purse's allowance: bytes, and microseconds of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowances {
    pub(super) bytes: Allowance,
    pub(super) work: Allowance,
}

/// Returns since when a peer is connected; `None` if it is not.
pub(super) type ConnectedSince = Box<dyn Fn(&PeerId) -> Option<Instant> + Send + Sync>;

/// The purses of all peers.
pub(super) struct Meter {
    large: Allowances,
    small: Allowances,
    /// The peers in this node's configuration.
    known: BTreeSet<PeerId>,
    connected_since: ConnectedSince,
    state: Mutex<State>,
}

struct State {
    peers: BTreeMap<PeerId, Account>,
    /// The stock from which new strangers get their first purse.
    strangers: Purse,
}

struct Account {
    large: Purse,
    small: Purse,
}

#[derive(Clone, Copy)]
struct Purse {
    at: Instant,
    bytes: f64,
    work: f64,
}

/// A request that was paid for. When the last reference to it is dropped, its real cost replaces its charge.
pub(super) struct Debit {
    meter: Arc<Meter>,
    peer: PeerId,
    kind: Kind,
    charged: Cost,
    spent: Mutex<Cost>,
}

impl Meter {
    /// A meter that grants each peer `large` for large answers. The peers in `known` are known from the start.
    pub(super) fn new(
        large: Allowances,
        known: BTreeSet<PeerId>,
        connected_since: ConnectedSince,
        now: Instant,
    ) -> Meter {
        let strangers = Purse::full(&large.times(STRANGERS), now);
        let state = Mutex::new(State { peers: BTreeMap::new(), strangers });
        Meter { large, small: large.times(1.0 / SMALL), known, connected_since, state }
    }

    /// Charges a request. Returns how long it must wait until its peer's debt is paid. If that is longer than
    /// `wait_max`, charges nothing and returns the wait as the error.
    pub(super) fn admit(
        self: &Arc<Self>,
        peer: PeerId,
        kind: Kind,
        cost: Cost,
        wait_max: Duration,
        now: Instant,
    ) -> Result<(Debit, Duration), Duration> {
        let mut state = self.state.lock();
        let allowances = self.allowances(kind);
        let purse = state.account(self, peer, now).purse(kind);
        purse.refill(allowances, now);
        let wait = purse.wait(allowances);
        if wait > wait_max {
            return Err(wait);
        }
        purse.take(cost);
        let debit = Debit { meter: Arc::clone(self), peer, kind, charged: cost, spent: Mutex::default() };
        Ok((debit, wait))
    }

    /// Whether a peer is known, or a stranger.
    pub(super) fn class(&self, peer: &PeerId, now: Instant) -> Class {
        let is_old = |since: Instant| now.saturating_duration_since(since) >= KNOWN_AFTER;
        match self.known.contains(peer) || (self.connected_since)(peer).is_some_and(is_old) {
            true => Class::Known,
            false => Class::Stranger,
        }
    }

    fn allowances(&self, kind: Kind) -> &Allowances {
        match kind {
            Kind::Cheap => &self.small,
            Kind::Disk => &self.large,
        }
    }

    fn settle(&self, debit: &Debit, now: Instant) {
        let mut state = self.state.lock();
        let Some(account) = state.peers.get_mut(&debit.peer) else { return };
        let (allowances, purse) = (self.allowances(debit.kind), account.purse(debit.kind));
        purse.refill(allowances, now);
        purse.give_back(debit.charged);
        purse.take(*debit.spent.lock());
        purse.refill(allowances, now);
    }
}

impl State {
    fn account(&mut self, meter: &Meter, peer: PeerId, now: Instant) -> &mut Account {
        if self.peers.len() >= PEERS_KEPT && !self.peers.contains_key(&peer) {
            self.forget(meter, now);
        }
        let strangers = &mut self.strangers;
        self.peers.entry(peer).or_insert_with(|| {
            let full = Purse::full(&meter.large, now);
            let large = match meter.known.contains(&peer) {
                true => full,
                false => strangers.hand_out(&meter.large, now),
            };
            Account { large, small: Purse::full(&meter.small, now) }
        })
    }

    /// Forgets disconnected peers: those free of debt first, and then the debtor that owes least.
    fn forget(&mut self, meter: &Meter, now: Instant) {
        let is_connected = |peer: &PeerId| (meter.connected_since)(peer).is_some();
        self.peers.retain(|peer, account| {
            account.large.refill(&meter.large, now);
            let is_full = account.large.bytes >= meter.large.bytes.burst
                && account.large.work >= meter.large.work.burst;
            !is_full || is_connected(peer)
        });
        if self.peers.len() >= PEERS_KEPT {
            let gone = self.peers.iter().filter(|(peer, _)| !is_connected(peer));
            let least = gone.min_by_key(|(_, account)| account.large.wait(&meter.large));
            least.map(|(peer, _)| *peer).map(|peer| self.peers.remove(&peer));
        }
    }
}

impl Account {
    fn purse(&mut self, kind: Kind) -> &mut Purse {
        match kind {
            Kind::Cheap => &mut self.small,
            Kind::Disk => &mut self.large,
        }
    }
}

impl Purse {
    fn full(allowances: &Allowances, now: Instant) -> Purse {
        Purse { at: now, bytes: allowances.bytes.burst, work: allowances.work.burst }
    }

    /// The first purse of a newcomer: a full one, or less.
    fn hand_out(&mut self, full: &Allowances, now: Instant) -> Purse {
        let all = full.times(STRANGERS);
        // The stock refills at the rate of one peer, not of all.
        let all = Allowances {
            bytes: Allowance { rate: full.bytes.rate, ..all.bytes },
            work: Allowance { rate: full.work.rate, ..all.work },
        };
        self.refill(&all, now);
        let handed = Purse {
            at: now,
            bytes: self.bytes.clamp(0.0, full.bytes.burst),
            work: self.work.clamp(0.0, full.work.burst),
        };
        self.bytes -= handed.bytes;
        self.work -= handed.work;
        handed
    }

    fn refill(&mut self, allowances: &Allowances, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.bytes = (self.bytes + seconds * allowances.bytes.rate).min(allowances.bytes.burst);
        self.work = (self.work + seconds * allowances.work.rate).min(allowances.work.burst);
    }

    /// Time until a debt is paid; zero while anything is left.
    fn wait(&self, allowances: &Allowances) -> Duration {
        allowances.bytes.wait(self.bytes).max(allowances.work.wait(self.work))
    }

    fn take(&mut self, cost: Cost) {
        self.bytes -= cost.bytes as f64;
        self.work -= cost.work.as_micros() as f64;
    }

    fn give_back(&mut self, cost: Cost) {
        self.bytes += cost.bytes as f64;
        self.work += cost.work.as_micros() as f64;
    }
}

impl Allowances {
    fn times(&self, factor: f64) -> Allowances {
        let times = |it: &Allowance| Allowance { rate: it.rate * factor, burst: it.burst * factor };
        Allowances { bytes: times(&self.bytes), work: times(&self.work) }
    }
}

impl Allowance {
    fn wait(&self, level: f64) -> Duration {
        if level >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-level / self.rate).unwrap_or(Duration::MAX)
    }
}

impl Debit {
    /// Adds to the real cost of the request.
    pub(super) fn spend(&self, cost: Cost) {
        let mut spent = self.spent.lock();
        spent.bytes += cost.bytes;
        spent.work += cost.work;
    }
}

impl Drop for Debit {
    fn drop(&mut self) {
        self.meter.settle(self, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: u16) -> PeerId {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&id.to_be_bytes());
        slipstream_types::PublicKey(bytes)
    }

    fn meter() -> Arc<Meter> {
        meter_of(|_| None)
    }

    fn meter_of(connected_since: impl Fn(&PeerId) -> Option<Instant> + Send + Sync + 'static) -> Arc<Meter> {
        let bytes = Allowance { rate: 1_000.0, burst: 5_000.0 };
        let work = Allowance { rate: 100_000.0, burst: 1_000_000.0 };
        let known = BTreeSet::from([peer(9_999)]);
        Arc::new(Meter::new(Allowances { bytes, work }, known, Box::new(connected_since), Instant::now()))
    }

    fn bytes(bytes: u64) -> Cost {
        Cost { bytes, work: Duration::ZERO }
    }

    /// Charges a request that may wait for a second, and spends its cost. Returns how long it must wait.
    fn take(meter: &Arc<Meter>, id: u16, cost: Cost) -> Result<Duration, Duration> {
        let admitted = meter.admit(peer(id), Kind::Disk, cost, Duration::from_secs(1), Instant::now());
        admitted.map(|(debit, wait)| {
            debit.spend(cost);
            wait
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_free_and_a_debt_is_paid_at_the_rate() {
        let meter = meter();
        assert_eq!(take(&meter, 1, bytes(5_000)), Ok(Duration::ZERO));
        assert_eq!(take(&meter, 1, bytes(2_000)), Ok(Duration::ZERO));
        assert_eq!(take(&meter, 1, bytes(1)), Err(Duration::from_secs(2)));
        assert_eq!(take(&meter, 2, bytes(1)), Ok(Duration::ZERO), "each pays for itself");
        tokio::time::advance(Duration::from_millis(1_500)).await;
        assert_eq!(take(&meter, 1, bytes(500)), Ok(Duration::from_millis(500)));
        // However long it rests, it saves no more than one burst.
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert_eq!(take(&meter, 1, bytes(6_000)), Ok(Duration::ZERO));
        assert_eq!(take(&meter, 1, bytes(1)), Ok(Duration::from_secs(1)));
    }

    /// Goal: simultaneous requests pay before their work is done, and unspent payments are given back.
    #[tokio::test(start_paused = true)]
    async fn a_request_is_paid_for_before_it_is_worked_on() {
        let meter = meter();
        let admit = || meter.admit(peer(1), Kind::Disk, bytes(1_000), Duration::from_secs(1), Instant::now());
        let admitted: Vec<_> = (0..64).filter_map(|_| admit().ok()).collect();
        assert_eq!(admitted.len(), 7, "a burst, and what one second brings");
        assert!(admit().is_err());
        drop(admitted);
        assert_eq!(admit().map(|(_, wait)| wait).ok(), Some(Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn work_counts_beside_bytes_and_short_answers_for_themselves() {
        let meter = meter();
        let work = Cost { bytes: 10, work: Duration::from_millis(1_200) };
        assert_eq!(take(&meter, 1, work), Ok(Duration::ZERO));
        assert_eq!(take(&meter, 1, bytes(1)), Err(Duration::from_secs(2)));
        let short = meter.admit(peer(1), Kind::Cheap, bytes(100), Duration::ZERO, Instant::now());
        assert_eq!(short.map(|(_, wait)| wait).ok(), Some(Duration::ZERO));
    }

    /// Goal: changing the key pays no debts.
    #[tokio::test(start_paused = true)]
    async fn fresh_keys_share_what_strangers_begin_with() {
        let meter = meter();
        let taken = |from: u16| {
            let of =
                |id| (0..64).take_while(|_| take(&meter, id, bytes(1_000)) == Ok(Duration::ZERO)).count();
            (from..from + 100).map(of).sum::<usize>()
        };
        // Each key gets one request on credit, whatever it has.
        let most = (STRANGERS as usize + 1) * 6 + 100;
        let first = taken(0);
        assert!((STRANGERS as usize * 5..most).contains(&first), "{first}");
        let second = taken(100);
        assert!(second <= 100, "{second}");
        assert_eq!(take(&meter, 9_999, bytes(5_000)), Ok(Duration::ZERO), "who is configured has its own");
    }

    /// Goal: whether a peer is a stranger follows from how long its connection stands, not from a question that it
    /// asked long ago.
    #[tokio::test(start_paused = true)]
    async fn a_class_comes_from_how_long_a_connection_stands() {
        let start = Instant::now();
        let meter = meter_of(move |id| (*id == peer(2)).then_some(start));
        take(&meter, 1, bytes(1)).unwrap();
        let classes = || [1, 2, 9_999].map(|id| meter.class(&peer(id), Instant::now()));
        assert_eq!(classes(), [Class::Stranger, Class::Stranger, Class::Known]);
        tokio::time::advance(KNOWN_AFTER).await;
        assert_eq!(classes(), [Class::Stranger, Class::Known, Class::Known]);
    }

    /// Goal: a flood of keys does not evict the account of a connected peer, which would begin anew without a purse.
    #[tokio::test(start_paused = true)]
    async fn accounts_of_connected_peers_are_kept() {
        let start = Instant::now();
        let meter = meter_of(move |id| (*id == peer(9_000)).then_some(start));
        take(&meter, 9_000, bytes(1)).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        (0..2 * PEERS_KEPT as u16).for_each(|id| _ = take(&meter, id, bytes(1)));
        let more = || take(&meter, 9_000, bytes(2_500));
        assert_eq!([more(), more(), more()], [Ok(Duration::ZERO); 3], "it has its own purse");
        assert!(meter.state.lock().peers.len() <= PEERS_KEPT + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn rested_peers_are_forgotten_and_debtors_are_not() {
        let meter = meter();
        take(&meter, 0, bytes(1_000_000)).unwrap();
        (1..3 * PEERS_KEPT as u16).for_each(|id| _ = take(&meter, id, bytes(1)));
        assert!(meter.state.lock().peers.len() <= PEERS_KEPT);
        assert!(take(&meter, 0, bytes(1)).unwrap_err() > Duration::from_secs(900));
    }
}
