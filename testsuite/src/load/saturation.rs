//! [`Search`]: finds the rate that a chain sustains. Sans-I/O: it proposes the next rate, and takes the result of the
//! step.
//!
//! A step is sustained if all of these hold ([`Rule`]):
//! 1. at least 98 % of what the step offered was committed within the step and its grace;
//! 2. the 99th percentile of commit latency, counted from the due time, is below the limit;
//! 3. nothing was given up;
//! 4. the backlog at the end is no larger than the latency limit explains, so it does not grow.
//!
//! If the generators were the limit, a step says nothing about the chain: it is tried once more, and then the search
//! ends there.
//!
//! ```text
//!  start ──▶ double while sustained ──▶ halve the gap between the best and the worst ──▶ gap below 5 %: found
//!                 │ a step that fails is tried once more: one pause of the machine is no limit of the chain
//! ```

use serde::{Deserialize, Serialize};

use super::percentiles::Percentiles;

/// The search ends when the best rate is within this share of the lowest failed rate.
const RESOLUTION: f64 = 0.05;
/// The most steps of one search. Doubling from 1 to a million takes 20, halving to 5 % takes five more, and each may
/// run twice.
const STEPS_MAX: usize = 60;

/// When a step counts as sustained.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Rule {
    /// The least share of the offered transactions that must be committed in time.
    pub committed_share_min: f64,
    /// The highest 99th percentile of commit latency, in milliseconds.
    pub p99_ms_max: f64,
}

impl Default for Rule {
    /// Two seconds: what a person still calls fast.
    fn default() -> Self {
        Self { committed_share_min: 0.98, p99_ms_max: 2_000.0 }
    }
}

/// The result of one step.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Step {
    /// The requested rate per second.
    pub rate: u32,
    /// Transactions that were due.
    pub offered: u64,
    /// The offered transactions that were committed.
    pub committed: u64,
    /// The offered transactions that no node accepted.
    pub given_up: u64,
    /// Transactions that were accepted but not yet committed when the last one was due.
    pub backlog: u64,
    /// Latencies from the due time to the commit.
    pub commit_ms: Option<Percentiles>,
    /// Whether the generators, and not the chain, set the rate.
    pub is_limited_by_generators: bool,
}

/// Why a step was not sustained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Too few transactions were committed.
    Committed,
    /// Commits took too long.
    Latency,
    /// Nodes refused some transactions for good.
    GivenUp,
    /// The backlog grew.
    Backlog,
}

impl Rule {
    /// Returns the first condition that a step violates; `None` if it is sustained.
    pub fn missed(&self, step: &Step) -> Option<Cause> {
        if step.given_up > 0 {
            return Some(Cause::GivenUp);
        }
        if (step.committed as f64) < step.offered as f64 * self.committed_share_min {
            return Some(Cause::Committed);
        }
        if step.commit_ms.is_none_or(|latency| latency.p99 > self.p99_ms_max) {
            return Some(Cause::Latency);
        }
        // Little's law: at this rate, transactions that wait no longer than the limit are at most this many.
        let waiting_max = f64::from(step.rate) * self.p99_ms_max / 1_000.0;
        (step.backlog as f64 > waiting_max).then_some(Cause::Backlog)
    }
}

/// The result of a search.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// The chain sustains this rate, but not the next one tried.
    Sustained {
        /// The sustained rate per second.
        rate: u32,
        /// The lowest rate that failed, per second.
        failed: u32,
        /// The condition violated there.
        cause: Cause,
    },
    /// Not even the lowest rate was sustained.
    Nothing {
        /// The lowest rate per second.
        lowest: u32,
        /// The condition violated there.
        cause: Cause,
    },
    /// The search ended early because of the generators, the rate bound or the time limit. The chain sustains at least
    /// this rate.
    AtLeast {
        /// The rate per second; 0 if no step was sustained.
        rate: u32,
    },
}

/// A search under way.
#[derive(Clone, Debug)]
pub struct Search {
    rule: Rule,
    /// The next rate to try.
    next: u32,
    rate_max: u32,
    best: Option<u32>,
    worst: Option<(u32, Cause)>,
    /// Whether the next step repeats one that failed.
    is_repeat: bool,
    steps: Vec<Step>,
    found: Option<Found>,
}

impl Search {
    /// Starts at a rate; never exceeds `rate_max`, which the generators have proved.
    pub fn new(rule: Rule, start: u32, rate_max: u32) -> Search {
        let rate_max = rate_max.max(1);
        let next = start.clamp(1, rate_max);
        Search {
            rule,
            next,
            rate_max,
            best: None,
            worst: None,
            is_repeat: false,
            steps: Vec::new(),
            found: None,
        }
    }

    /// Returns the next rate to try; `None` once the search has ended.
    pub fn poll_rate(&self) -> Option<u32> {
        self.found.is_none().then_some(self.next)
    }

    /// Processes the result of the rate from [`Search::poll_rate`].
    pub fn handle_step(&mut self, step: Step) {
        if self.found.is_some() {
            return;
        }
        self.steps.push(step);
        let may_repeat = !std::mem::replace(&mut self.is_repeat, true);
        if step.is_limited_by_generators && may_repeat {
            return;
        }
        if step.is_limited_by_generators || self.steps.len() >= STEPS_MAX {
            self.found = Some(self.known());
            return;
        }
        match self.rule.missed(&step) {
            Some(_) if may_repeat => return,
            Some(cause) => self.worst = Some((step.rate, cause)),
            None => self.best = Some(step.rate),
        }
        self.is_repeat = false;
        self.choose();
    }

    /// Returns the result if the search ends now, before the gap is small.
    fn known(&self) -> Found {
        match (self.best, self.worst) {
            (Some(rate), Some((failed, cause))) => Found::Sustained { rate, failed, cause },
            (None, Some((lowest, cause))) => Found::Nothing { lowest, cause },
            (best, None) => Found::AtLeast { rate: best.unwrap_or(0) },
        }
    }

    /// Chooses the next rate, or ends the search.
    fn choose(&mut self) {
        match (self.best, self.worst) {
            (None, None) => {}
            (Some(best), None) if best >= self.rate_max => self.found = Some(Found::AtLeast { rate: best }),
            (Some(best), None) => self.next = best.saturating_mul(2).min(self.rate_max),
            (None, Some((1, cause))) => self.found = Some(Found::Nothing { lowest: 1, cause }),
            (None, Some((worst, _))) => self.next = worst / 2,
            (Some(best), Some((worst, cause))) => {
                let gap = worst.saturating_sub(best);
                if gap <= 1 || f64::from(gap) <= f64::from(worst) * RESOLUTION {
                    self.found = Some(Found::Sustained { rate: best, failed: worst, cause });
                } else {
                    self.next = best + gap / 2;
                }
            }
        }
    }

    /// Ends the search early: the chain sustains at least the best rate so far.
    pub fn end(&mut self) {
        self.found.get_or_insert(Found::AtLeast { rate: self.best.unwrap_or(0) });
    }

    /// Returns the result; `None` while the search goes on.
    pub fn found(&self) -> Option<Found> {
        self.found
    }

    /// Returns all steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn latency(p99: f64) -> Option<Percentiles> {
        Some(Percentiles { count: 1, p50: 1.0, p90: p99, p95: p99, p99, max: p99 })
    }

    fn good(rate: u32) -> Step {
        let offered = u64::from(rate) * 10;
        Step {
            rate,
            offered,
            committed: offered,
            given_up: 0,
            backlog: 0,
            commit_ms: latency(100.0),
            is_limited_by_generators: false,
        }
    }

    fn bad(rate: u32) -> Step {
        Step { commit_ms: latency(9_000.0), ..good(rate) }
    }

    /// Runs a search against a chain that sustains `limit`.
    fn search(start: u32, rate_max: u32, limit: u32) -> Search {
        let mut search = Search::new(Rule::default(), start, rate_max);
        while let Some(rate) = search.poll_rate() {
            search.handle_step(if rate <= limit { good(rate) } else { bad(rate) });
        }
        search
    }

    #[test]
    fn each_condition_of_the_rule_can_fail_alone() {
        let rule = Rule::default();
        let step = good(100);
        assert_eq!(rule.missed(&step), None);
        assert_eq!(rule.missed(&Step { committed: 979, ..step }), Some(Cause::Committed));
        assert_eq!(rule.missed(&Step { committed: 980, ..step }), None);
        assert_eq!(rule.missed(&bad(100)), Some(Cause::Latency));
        assert_eq!(rule.missed(&Step { commit_ms: None, ..step }), Some(Cause::Latency));
        assert_eq!(rule.missed(&Step { given_up: 1, ..step }), Some(Cause::GivenUp));
        assert_eq!(rule.missed(&Step { backlog: 201, ..step }), Some(Cause::Backlog));
        assert_eq!(rule.missed(&Step { backlog: 200, ..step }), None);
    }

    #[test]
    fn one_bad_step_is_tried_again() {
        let mut search = Search::new(Rule::default(), 100, 1_000);
        search.handle_step(bad(100));
        assert_eq!(search.poll_rate(), Some(100));
        search.handle_step(good(100));
        assert_eq!(search.poll_rate(), Some(200));
    }

    #[test]
    fn the_generators_end_a_search() {
        let mut search = Search::new(Rule::default(), 100, 10_000);
        search.handle_step(good(100));
        let limited = |rate| Step { is_limited_by_generators: true, ..bad(rate) };
        search.handle_step(limited(200));
        assert_eq!(search.poll_rate(), Some(200), "one pause of the machine is no limit of the generators");
        search.handle_step(limited(200));
        assert_eq!((search.found(), search.poll_rate()), (Some(Found::AtLeast { rate: 100 }), None));
        assert_eq!(self::search(100, 1_000, 5_000).found(), Some(Found::AtLeast { rate: 1_000 }));
        // A failed rate is not forgotten.
        let mut search = Search::new(Rule::default(), 100, 10_000);
        for step in [good(100), bad(200), bad(200), limited(150), limited(150)] {
            search.handle_step(step);
        }
        let sustained = Found::Sustained { rate: 100, failed: 200, cause: Cause::Latency };
        assert_eq!(search.found(), Some(sustained));
    }

    /// Goal: a search that runs out of time reports what it has sustained; one that had found the limit keeps its
    /// result.
    #[test]
    fn the_time_ends_a_search() {
        let mut search = Search::new(Rule::default(), 100, 10_000);
        search.handle_step(good(100));
        search.end();
        assert_eq!((search.found(), search.poll_rate()), (Some(Found::AtLeast { rate: 100 }), None));
        let mut search = self::search(64, 1_000, 0);
        let found = search.found();
        search.end();
        assert_eq!(search.found(), found);
    }

    #[test]
    fn a_chain_that_sustains_nothing_is_said_so() {
        let found = search(64, 1_000, 0).found();
        assert_eq!(found, Some(Found::Nothing { lowest: 1, cause: Cause::Latency }));
    }

    proptest! {
        /// Goal: wherever the limit is, the search ends, its result is sustained, and it is close to the limit.
        #[test]
        fn the_limit_is_found(start in 1..10_000u32, limit in 1..50_000u32) {
            let search = search(start, 100_000, limit);
            let Some(Found::Sustained { rate, failed, .. }) = search.found() else {
                return Err(TestCaseError::fail(format!("{:?}", search.found())));
            };
            prop_assert!(rate <= limit && limit < failed, "{rate} {failed}");
            prop_assert!(failed - rate <= 1 || f64::from(failed - rate) <= f64::from(failed) * RESOLUTION);
            prop_assert!(search.steps().len() < STEPS_MAX);
        }
    }
}
