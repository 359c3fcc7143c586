//! [`Turns`]: accounts of how long the homes of strangers have had places recently, so that scarce places rotate.
//!
//! Keys are free and a network of 24 or 48 bits is cheap, so a new key or network earns no place. A **block** costs
//! something: it is the smallest range that a provider gets. A newcomer whose block had places for a short time gets
//! its turn before one whose block had them for long. Within a block, networks take turns in the same way. Each turn is
//! at least as long as the one before. So places do not change hands all the time, and waiting peers get in eventually.

use std::{collections::BTreeMap, f64::consts::LN_2, net::IpAddr, time::Duration};

use tokio::time::Instant;

use crate::origin::block_of;

/// How long, beyond twice a newcomer's time, a home must have had places before one of them passes to the newcomer.
pub(super) const TURN_MIN: Duration = Duration::from_secs(5);
/// The same for a place whose peer is at work, which may be in the middle of a long task.
pub(super) const TURN_AT_WORK: Duration = Duration::from_secs(20);
/// Half-life of past stays.
const HALF_LIFE: Duration = Duration::from_secs(600);
/// Maximum number of blocks, and of networks, that are remembered. Those that had places for the shortest time are
/// forgotten first, as if they never had one.
const REMEMBERED_MAX: usize = 4_096;

/// The origin of a stranger, for turns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Home {
    /// The block, from [`block_of`].
    pub(super) block: IpAddr,
    /// The network, from [`Origin::net`](crate::origin::Origin).
    pub(super) net: IpAddr,
}

impl Home {
    pub(super) fn of(net: IpAddr) -> Home {
        Home { block: block_of(net), net }
    }
}

/// Seconds of places that homes had, each stay valued by [`worth`].
#[derive(Default)]
pub(super) struct Turns {
    blocks: Accounts,
    nets: Accounts,
}

impl Turns {
    /// Records a place that a peer of this home had.
    pub(super) fn had(&mut self, home: Home, since: Instant, now: Instant) {
        let seconds = worth(since, now);
        self.blocks.add(home.block, seconds, now);
        self.nets.add(home.net, seconds, now);
    }

    /// Adds the current places to the past ones. `taken` has for each place its home, its start, and whether it
    /// rotates.
    pub(super) fn tally(
        &self,
        taken: impl Iterator<Item = (Home, Instant, bool)>,
        now: Instant,
    ) -> Tally<'_> {
        let mut tally = Tally { past: self, now, blocks: BTreeMap::new(), nets: BTreeMap::new() };
        for (home, since, goes_round) in taken {
            let seconds = worth(since, now);
            tally.blocks.entry(home.block).or_default().add(seconds, goes_round);
            tally.nets.entry(home.net).or_default().add(seconds, goes_round);
        }
        tally
    }
}

/// The places that homes have had up to a moment.
pub(super) struct Tally<'a> {
    past: &'a Turns,
    now: Instant,
    /// Places in use now, by block.
    blocks: BTreeMap<IpAddr, CurrentUse>,
    nets: BTreeMap<IpAddr, CurrentUse>,
}

/// Seconds of the places in use now.
#[derive(Clone, Copy, Default)]
struct CurrentUse {
    all: f64,
    /// The worth of the places that rotate.
    round: f64,
}

impl CurrentUse {
    fn add(&mut self, seconds: f64, goes_round: bool) {
        self.all += seconds;
        self.round += if goes_round { seconds } else { 0.0 };
    }
}

impl Tally<'_> {
    fn of_block(&self, home: Home, part: fn(CurrentUse) -> f64) -> f64 {
        let present = self.blocks.get(&home.block).copied().unwrap_or_default();
        part(present) + self.past.blocks.of(home.block, self.now)
    }

    fn of_net(&self, home: Home, part: fn(CurrentUse) -> f64) -> f64 {
        let present = self.nets.get(&home.net).copied().unwrap_or_default();
        part(present) + self.past.nets.of(home.net, self.now)
    }

    /// The rank of a home: the greatest is the next to lose a place.
    pub(super) fn rank(&self, home: Home) -> (f64, f64) {
        (self.of_block(home, |it| it.all), self.of_net(home, |it| it.all))
    }

    /// Whether a place passes from one home to a newcomer: the home must have had at least twice the newcomer's seconds
    /// plus `turn`.
    pub(super) fn is_turn_of(&self, newcomer: Home, leaving: Home, turn: Duration) -> bool {
        let (less, more) = match newcomer.block == leaving.block {
            true => (self.of_net(newcomer, |it| it.round), self.of_net(leaving, |it| it.all)),
            false => (self.of_block(newcomer, |it| it.round), self.of_block(leaving, |it| it.all)),
        };
        more >= 2.0 * less + turn.as_secs_f64()
    }
}

/// Seconds, each decayed to the given time.
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
            // Drops half of them at once, so that it happens rarely.
            let (_, median, _) = all.select_nth_unstable_by(REMEMBERED_MAX / 2, f64::total_cmp);
            let median = *median;
            self.0.retain(|_, account| faded(*account, now) > median);
        }
    }
}

/// The worth of a stay: its seconds, which decay while it lasts. A short stay counts almost fully, and the longest
/// counts 866 seconds (the half-life divided by ln 2).
fn worth(since: Instant, now: Instant) -> f64 {
    let full = HALF_LIFE.as_secs_f64() / LN_2;
    full - faded((full, since), now)
}

/// The decayed value of seconds that were counted at a moment.
fn faded((seconds, at): (f64, Instant), now: Instant) -> f64 {
    let halves = now.saturating_duration_since(at).as_secs_f64() / HALF_LIFE.as_secs_f64();
    seconds * (-halves).exp2()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

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

    /// Goal: a block that had less gets its turn first, from any of its networks; within a block networks count.
    #[test]
    fn whoever_had_less_is_next() {
        let (start, mut turns) = (Instant::now(), Turns::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        turns.had(home("203.0.1.0"), at(0), at(100));
        let taken = [(home("203.0.2.0"), at(90), true), (home("198.51.1.0"), at(60), true)];
        let tally = turns.tally(taken.into_iter(), at(100));
        assert!(
            tally.rank(home("203.0.2.0")) > tally.rank(home("198.51.1.0")),
            "its block had a hundred more"
        );
        assert!(tally.is_turn_of(home("192.0.1.0"), home("198.51.1.0"), TURN_MIN));
        assert!(tally.is_turn_of(home("198.51.2.0"), home("203.0.2.0"), TURN_MIN), "40 s and 110 s");
        assert!(
            !tally.is_turn_of(home("203.0.9.0"), home("198.51.1.0"), TURN_MIN),
            "a new network, no new block"
        );
        assert!(
            tally.is_turn_of(home("203.0.9.0"), home("203.0.2.0"), TURN_MIN)
                && tally.is_turn_of(home("203.0.2.0"), home("203.0.1.0"), TURN_MIN)
        );
        let short = turns.tally([(home("192.0.1.0"), at(96), true)].into_iter(), at(100));
        assert!(!short.is_turn_of(home("192.1.1.0"), home("192.0.1.0"), TURN_MIN), "it has just come");
    }

    /// Goal: ten days count as much as the same time in pieces. So an owner that held a place for long and lost it gets
    /// a turn again within minutes. A current stay counts as it will when it ends.
    #[test]
    fn a_long_stay_fades_while_it_lasts() {
        let start = Instant::now();
        let (days, old) = (start + Duration::from_secs(864_000), home("203.0.1.0"));
        let (mut once, mut pieces) = (Turns::default(), Turns::default());
        once.had(old, start, days);
        for n in 0..8_640 {
            let at = |n: u64| start + Duration::from_secs(100 * n);
            pieces.had(old, at(n), at(n + 1));
        }
        let present = Turns::default();
        let present = present.tally([(old, start, true)].into_iter(), days).rank(old).0;
        for rank in [present, pieces.tally(std::iter::empty(), days).rank(old).0] {
            let ended = once.tally(std::iter::empty(), days).rank(old).0;
            assert!((ended - rank).abs() < 0.1 && ended < 900.0, "{ended} {rank}");
        }
        let (holder, wait) = (home("198.51.1.0"), |seconds| days + Duration::from_secs(seconds));
        let turn = |seconds| {
            let tally = once.tally([(holder, days, true)].into_iter(), wait(seconds));
            tally.is_turn_of(old, holder, TURN_MIN)
        };
        assert!(!turn(300) && turn(960), "where others came as it left");
    }

    /// Goal: past stays are forgotten over time, and invented networks do not fill the memory.
    #[test]
    fn accounts_fade_and_are_bounded() {
        let (start, mut turns) = (Instant::now(), Turns::default());
        let later = start + Duration::from_secs(64);
        turns.had(home("203.0.1.0"), start, later);
        let had = turns.blocks.of(home("203.0.1.0").block, later);
        let halved = turns.tally(std::iter::empty(), later + HALF_LIFE).rank(home("203.0.1.0"));
        let half = had / 2.0;
        assert!((60.0..64.1).contains(&had), "{had}");
        assert!((halved.0 - half).abs() < 0.1 && (halved.1 - half).abs() < 0.1, "{halved:?} of {had}");
        for n in 0..10_000u32 {
            turns.had(Home::of(Ipv4Addr::from_bits(n << 16).into()), later - Duration::from_secs(7), later);
        }
        assert!(turns.blocks.0.len() <= REMEMBERED_MAX && turns.nets.0.len() <= REMEMBERED_MAX);
        assert!(turns.blocks.of(home("203.0.1.0").block, later) > 60.0, "whoever had most stays known");
    }
}
