//! [`Measured`]: the runs of a situation, which way runs next, and for how long.

use std::time::Duration;

use super::{
    follow::{Arrived, DEADLINE, Run, Way},
    situation::{Situation, Start},
};
use crate::{Figure, harness::ratios};
use slipnet::report::number;

/// A pinned way is cut off at this multiple of the best way's time, but at least [`LEASH_MIN`] after that time.
const PINNED_LEASH: f64 = 3.0;
const LEASH_MIN: Duration = Duration::from_secs(2);
/// `auto` has a longer leash, so that a large regret is still measured.
const AUTO_LEASH: f64 = 10.0;
const AUTO_LEASH_MIN: Duration = Duration::from_secs(20);
/// After the first round, a way runs again only if it took at most this multiple of the best way's time.
const CONTENDER: f64 = 1.5;
/// The number of rounds, by the seconds of the best way: short runs are noisier, so they get more rounds.
const ROUNDS: [(f64, usize); 3] = [(2.0, 4), (10.0, 3), (f64::INFINITY, 2)];

/// All runs of a situation.
pub(super) struct Measured {
    pub(super) situation: &'static Situation,
    /// The runs of each of [`Way::ALL`].
    runs: [Vec<Run>; Way::ALL.len()],
}

impl Measured {
    pub(super) fn new(situation: &'static Situation) -> Measured {
        Measured { situation, runs: Default::default() }
    }

    pub(super) fn add(&mut self, way: Way, run: Run) {
        self.runs[place(way)].push(run);
    }

    fn of(&self, way: Way) -> &[Run] {
        &self.runs[place(way)]
    }

    /// Returns the runs of a way, if all of them arrived.
    fn arrived(&self, way: Way) -> Option<Vec<&Arrived>> {
        let all: Option<Vec<_>> = self.of(way).iter().map(Run::arrived).collect();
        all.filter(|all| !all.is_empty())
    }

    fn seconds(&self, way: Way) -> Option<Vec<f64>> {
        Some(self.arrived(way)?.iter().map(|arrived| arrived.seconds).collect())
    }

    pub(super) fn median_seconds(&self, way: Way) -> Option<f64> {
        Some(Figure::new("seconds", "s", self.seconds(way)?).value())
    }

    /// Returns the pinned way with the smallest median.
    pub(super) fn best(&self) -> Option<(Way, f64)> {
        let medians = Way::PINNED.into_iter().filter_map(|way| Some((way, self.median_seconds(way)?)));
        medians.min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// Returns the total number of rounds.
    pub(super) fn rounds(&self, is_quick: bool) -> usize {
        if is_quick {
            return 1;
        }
        let best = self.best().map_or(f64::INFINITY, |(_, seconds)| seconds);
        ROUNDS.iter().find(|(most, _)| best <= *most).map_or(1, |(_, rounds)| *rounds)
    }

    /// Returns the ways that run in a round, counted from 0. In the first round the usually fast ways come first, so
    /// that the others are cut off early. In later rounds the order rotates.
    pub(super) fn turns(&self, round: usize) -> Vec<Way> {
        if round == 0 {
            let mut turns = Way::ALL.to_vec();
            if matches!(self.situation.start, Start::Stopped(_)) {
                turns[..Way::PINNED.len()].rotate_left(1);
            }
            return turns;
        }
        let best = self.best().map_or(f64::INFINITY, |(_, seconds)| seconds);
        let contends = |way: &Way| {
            let seconds = self.median_seconds(*way);
            seconds.is_some_and(|seconds| *way == Way::Auto || seconds <= CONTENDER * best)
        };
        let mut turns: Vec<Way> = Way::ALL.iter().copied().filter(contends).collect();
        // Without `auto` a comparison is impossible.
        if !turns.contains(&Way::Auto) {
            turns.clear();
        }
        let len = turns.len();
        turns.rotate_left(round % len.max(1));
        turns
    }

    /// Returns the longest time that a way may take.
    pub(super) fn leash(&self, way: Way) -> Duration {
        let (multiple, least) = match way {
            Way::Auto => (AUTO_LEASH, AUTO_LEASH_MIN),
            _ => (PINNED_LEASH, LEASH_MIN),
        };
        let Some((_, best)) = self.best() else { return DEADLINE };
        let best = Duration::from_secs_f64(best);
        best.mul_f64(multiple).max(best + least).min(DEADLINE)
    }

    /// Returns the seconds of `auto` over those of the best pinned way, run by run. A run that was cut off counts with
    /// the seconds until the cut.
    pub(super) fn regret(&self) -> Option<Vec<f64>> {
        let (way, median) = self.best()?;
        let best = self.seconds(way)?;
        match self.seconds(Way::Auto) {
            Some(auto) => Some(ratios(&auto, &best)),
            None => self.of(Way::Auto).iter().find_map(|run| match run {
                Run::Cut(seconds) => Some(vec![seconds / median]),
                Run::Stuck => Some(vec![DEADLINE.as_secs_f64() / median]),
                Run::Arrived(_) => None,
            }),
        }
    }

    /// Returns the seconds until `auto` had a complete history; `None` if `auto` fetches no history, or the history was
    /// never complete.
    pub(super) fn window_seconds(&self) -> Option<f64> {
        self.arrived(Way::Auto)?.iter().find_map(|arrived| arrived.window_seconds)
    }

    /// Returns the errors of the ETAs of `auto`, run by run, if `auto` takes longer than `least` seconds.
    pub(super) fn eta_errors(&self, least: f64) -> Option<Vec<f64>> {
        self.median_seconds(Way::Auto).filter(|seconds| *seconds > least)?;
        let errors: Vec<f64> = self.arrived(Way::Auto)?.iter().filter_map(|run| run.eta_error()).collect();
        (!errors.is_empty()).then_some(errors)
    }

    /// Returns the figures of this situation. A way that was cut off has none, but [`Measured::line`] shows it.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let name = self.situation.name;
        let ways = Way::ALL.iter().copied().filter_map(|way| {
            Some(Figure::new(format!("seconds.{name}.{}", way.name()), "s", self.seconds(way)?))
        });
        let mut figures: Vec<Figure> = ways.collect();
        figures.extend(self.regret().map(|ratios| Figure::new(format!("regret.{name}"), "ratio", ratios)));
        let window = self.window_seconds();
        figures
            .extend(window.map(|seconds| Figure::new(format!("window_seconds.{name}"), "s", vec![seconds])));
        figures
    }

    /// Returns the situation in one line: the seconds of each way, the regret, and the seconds until a complete
    /// history.
    pub(super) fn line(&self) -> String {
        let seconds = |way: Way| match (self.median_seconds(way), self.of(way).last()) {
            (Some(seconds), _) => number(seconds),
            (None, Some(Run::Cut(seconds))) => format!("> {seconds:.0}"),
            (None, Some(Run::Stuck)) => "stuck".to_owned(),
            (None, _) => "-".to_owned(),
        };
        let ways: Vec<String> =
            Way::ALL.iter().map(|&way| format!("{} {:>6}", way.name(), seconds(way))).collect();
        let regret = self.regret().map(|ratios| Figure::new("regret", "ratio", ratios).value());
        let is_more = self.seconds(Way::Auto).is_none();
        let regret = regret.map_or("-".to_owned(), |regret| {
            format!("{}{}", if is_more { "> " } else { "" }, number(regret))
        });
        let window = match self.situation.history {
            true => self.window_seconds().map_or("none".to_owned(), number),
            false => "not wanted".to_owned(),
        };
        format!("{:<22} {}, regret {regret}, history {window}", self.situation.name, ways.join(", "))
    }
}

fn place(way: Way) -> usize {
    Way::ALL.iter().position(|other| *other == way).expect("one of all ways")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::auto::situation::QUICK_RUN;

    /// Returns runs of the first situation of a quick run, by each way's seconds; those above 100 were cut off.
    pub(in super::super) fn measured(ways: [&[f64]; 5]) -> Measured {
        let mut measured = Measured::new(&QUICK_RUN[0]);
        for (way, seconds) in Way::ALL.iter().copied().zip(ways) {
            for &seconds in seconds {
                let arrived =
                    Arrived { seconds, eta_seconds: Some(seconds - 7.0), window_seconds: Some(9.0) };
                measured.add(way, if seconds > 100.0 { Run::Cut(seconds) } else { Run::Arrived(arrived) });
            }
        }
        measured
    }

    /// Goal: `auto` is compared with the best way that arrived, run by run.
    #[test]
    fn regret_is_against_the_best_way_that_arrived() {
        let all = measured([&[101.0], &[4.0, 5.0], &[2.0, 4.0], &[30.0], &[3.0, 4.0]]);
        assert_eq!(all.best(), Some((Way::Delta, 3.0)));
        assert_eq!(all.regret(), Some(vec![1.5, 1.0]));
        let cut = measured([&[2.0], &[], &[], &[], &[120.0]]);
        assert_eq!(cut.regret(), Some(vec![60.0]));
        assert!(cut.line().contains("auto  > 120, regret > 60.00"), "{}", cut.line());
        assert_eq!(measured([&[101.0], &[], &[], &[], &[1.0]]).regret(), None);
    }

    /// Goal: after the first round, only `auto` and the ways that may still be the best take turns.
    #[test]
    fn contenders_take_turns() {
        let all = measured([&[2.0], &[101.0], &[2.9], &[3.1], &[8.0]]);
        assert_eq!(all.turns(0), Way::ALL);
        let stopped = QUICK_RUN.iter().find(|situation| situation.start != Start::Empty).unwrap();
        let turns = Measured::new(stopped).turns(0);
        assert_eq!((turns[0], turns[3], turns[4]), (Way::RangeDelta, Way::Snapshot, Way::Auto));
        assert_eq!(all.turns(1), [Way::Delta, Way::Auto, Way::Snapshot]);
        assert_eq!(all.turns(3), [Way::Snapshot, Way::Delta, Way::Auto]);
        assert!(measured([&[2.0], &[], &[], &[], &[101.0]]).turns(1).is_empty());
        assert_eq!(
            (all.rounds(false), all.rounds(true), measured([&[60.0], &[], &[], &[], &[1.0]]).rounds(false)),
            (4, 1, 2)
        );
    }

    /// Goal: slow ways are cut off early, and a way that runs before all others has the full time.
    #[test]
    fn a_leash_is_a_multiple_of_the_best() {
        let seconds = Duration::from_secs;
        assert_eq!(measured([&[]; 5]).leash(Way::Snapshot), DEADLINE);
        let one = measured([&[1.0], &[], &[], &[], &[]]);
        assert_eq!((one.leash(Way::Replay), one.leash(Way::Auto)), (seconds(3), seconds(21)));
        let ten = measured([&[10.0], &[], &[], &[], &[]]);
        assert_eq!((ten.leash(Way::Replay), ten.leash(Way::Auto)), (seconds(30), seconds(100)));
    }

    #[test]
    fn etas_count_where_a_run_is_long() {
        let all = measured([&[2.0], &[], &[], &[], &[15.0, 25.0]]);
        // Ten seconds were left at an ETA of eight, and twenty at one of eighteen.
        let errors = all.eta_errors(10.0).unwrap();
        assert!((errors[0] - 0.2).abs() < 1e-9 && (errors[1] - 0.1).abs() < 1e-9, "{errors:?}");
        assert_eq!(all.eta_errors(30.0), None);
    }
}
