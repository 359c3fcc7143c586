//! [`Turns`]: how long strangers from where had places of late, so that places go round where more want one than there are.
//!
//! Keys are free and a network of 24 or 48 bits is cheap, so neither of them earns a place by being new. What costs something is a
//! **block**, the least that a provider is given: whoever comes from one that had little gets a turn before one that had much, and within a
//! block networks take turns in the same way. Each turn is at least as long as the one before, so that places do not change hands all the
//! time, and those who wait are not sent away for ever.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use tokio::time::Instant;

/// What a place has to have been worth to its block before a newcomer's block has a better right to it.
pub(super) const TURN_MIN: Duration = Duration::from_secs(5);
/// The time after which what was had counts half.
const HALF_LIFE: Duration = Duration::from_secs(600);
/// Blocks and networks that are remembered, of each so many; those that had least are forgotten first, as if they had nothing.
const REMEMBERED_MAX: usize = 4_096;

/// Where a stranger comes from, as turns go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Home {
    /// An IPv4 network of 16 bits or an IPv6 network of 32.
    pub(super) block: IpAddr,
    /// As [`Origin::net`](crate::origin::Origin).
    pub(super) net: IpAddr,
}

impl Home {
    pub(super) fn of(net: IpAddr) -> Home {
        let block = match net {
            IpAddr::V4(net) => Ipv4Addr::from_bits(net.to_bits() >> 16 << 16).into(),
            IpAddr::V6(net) => Ipv6Addr::from_bits(net.to_bits() >> 96 << 96).into(),
        };
        Home { block, net }
    }
}

/// Seconds of places that homes had.
#[derive(Default)]
pub(super) struct Turns {
    blocks: Accounts,
    nets: Accounts,
}

impl Turns {
    /// Notes a place that somebody had.
    pub(super) fn had(&mut self, home: Home, since: Instant, now: Instant) {
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        self.blocks.add(home.block, seconds, now);
        self.nets.add(home.net, seconds, now);
    }

    /// What all homes had, with the places that are taken now, of each its home and since when.
    pub(super) fn tally(&self, taken: impl Iterator<Item = (Home, Instant)>, now: Instant) -> Tally<'_> {
        let mut tally = Tally { past: self, now, blocks: BTreeMap::new(), nets: BTreeMap::new() };
        for (home, since) in taken {
            let seconds = now.saturating_duration_since(since).as_secs_f64();
            *tally.blocks.entry(home.block).or_default() += seconds;
            *tally.nets.entry(home.net).or_default() += seconds;
        }
        tally
    }
}

/// What was had up to a moment.
pub(super) struct Tally<'a> {
    past: &'a Turns,
    now: Instant,
    /// Of the places that are taken.
    blocks: BTreeMap<IpAddr, f64>,
    nets: BTreeMap<IpAddr, f64>,
}

impl Tally<'_> {
    fn of_block(&self, home: Home) -> f64 {
        let present = self.blocks.get(&home.block).copied().unwrap_or_default();
        present + self.past.blocks.of(home.block, self.now)
    }

    fn of_net(&self, home: Home) -> f64 {
        let present = self.nets.get(&home.net).copied().unwrap_or_default();
        present + self.past.nets.of(home.net, self.now)
    }

    /// How a home stands among others: the greatest is the next to leave.
    pub(super) fn rank(&self, home: Home) -> (f64, f64) {
        (self.of_block(home), self.of_net(home))
    }

    /// Whether a place that one home has is a newcomer's turn: it had that much less.
    pub(super) fn is_turn_of(&self, newcomer: Home, leaving: Home) -> bool {
        let (less, more) = match newcomer.block == leaving.block {
            true => (self.of_net(newcomer), self.of_net(leaving)),
            false => (self.of_block(newcomer), self.of_block(leaving)),
        };
        more >= 2.0 * less + TURN_MIN.as_secs_f64()
    }
}

/// Seconds, and as of when.
#[derive(Default)]
struct Accounts(BTreeMap<IpAddr, (f64, Instant)>);

impl Accounts {
    fn of(&self, address: IpAddr, now: Instant) -> f64 {
        self.0.get(&address).map_or(0.0, |account| faded(*account, now))
    }

    fn add(&mut self, address: IpAddr, seconds: f64, now: Instant) {
        let seconds = self.of(address, now) + seconds;
        self.0.insert(address, (seconds, now));
        if self.0.len() > REMEMBERED_MAX {
            let mut all: Vec<f64> = self.0.values().map(|account| faded(*account, now)).collect();
            // Half of them at once, so that it is seldom.
            let (_, median, _) = all.select_nth_unstable_by(REMEMBERED_MAX / 2, f64::total_cmp);
            let median = *median;
            self.0.retain(|_, account| faded(*account, now) > median);
        }
    }
}

/// What is left of seconds that were counted at a moment.
fn faded((seconds, at): (f64, Instant), now: Instant) -> f64 {
    let halves = now.saturating_duration_since(at).as_secs_f64() / HALF_LIFE.as_secs_f64();
    seconds * (-halves).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(net: &str) -> Home {
        Home::of(net.parse().unwrap())
    }

    #[test]
    fn blocks_are_what_a_provider_is_given() {
        assert_eq!(home("203.0.113.0").block, home("203.0.7.0").block);
        assert_ne!(home("203.0.113.0").block, home("203.1.113.0").block);
        assert_eq!(home("2001:db8:1::").block, home("2001:db8:ffff::").block);
        assert_ne!(home("2001:db8:1::").block, home("2001:db9:1::").block);
    }

    /// Goal: a block's turn comes before that of one that had more, whatever networks these come from; within a block networks count.
    #[test]
    fn whoever_had_less_is_next() {
        let (start, mut turns) = (Instant::now(), Turns::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        turns.had(home("203.0.1.0"), at(0), at(100));
        let taken = [(home("203.0.2.0"), at(90)), (home("198.51.1.0"), at(60))];
        let tally = turns.tally(taken.into_iter(), at(100));
        assert!(
            tally.rank(home("203.0.2.0")) > tally.rank(home("198.51.1.0")),
            "its block had a hundred more"
        );
        assert!(tally.is_turn_of(home("192.0.1.0"), home("198.51.1.0")));
        assert!(tally.is_turn_of(home("198.51.2.0"), home("203.0.2.0")), "40 s and 110 s");
        assert!(!tally.is_turn_of(home("203.0.9.0"), home("198.51.1.0")), "a new network, no new block");
        assert!(
            tally.is_turn_of(home("203.0.9.0"), home("203.0.2.0"))
                && tally.is_turn_of(home("203.0.2.0"), home("203.0.1.0"))
        );
        let short = turns.tally([(home("192.0.1.0"), at(96))].into_iter(), at(100));
        assert!(!short.is_turn_of(home("192.1.1.0"), home("192.0.1.0")), "it has just come");
    }

    /// Goal: what was had is forgotten in time, and those who make up networks fill no memory.
    #[test]
    fn accounts_fade_and_are_bounded() {
        let (start, mut turns) = (Instant::now(), Turns::default());
        let later = start + Duration::from_secs(64);
        turns.had(home("203.0.1.0"), start, later);
        let halved = turns.tally(std::iter::empty(), later + HALF_LIFE).rank(home("203.0.1.0"));
        assert!((31.9..32.1).contains(&halved.0) && (31.9..32.1).contains(&halved.1), "{halved:?}");
        for n in 0..10_000u32 {
            turns.had(Home::of(Ipv4Addr::from_bits(n << 16).into()), later - Duration::from_secs(7), later);
        }
        assert!(turns.blocks.0.len() <= REMEMBERED_MAX && turns.nets.0.len() <= REMEMBERED_MAX);
        assert!(turns.blocks.of(home("203.0.1.0").block, later) > 60.0, "whoever had most stays known");
    }
}
