//! [`SearchFigures`]: a search for the rate that a chain sustains, step by step.

use serde::{Deserialize, Serialize};

use crate::load::{Cause, Found, Saturation};

/// A search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchFigures {
    /// The name of its phase in the scenario.
    pub name: String,
    /// Transactions per second that the chain sustained; 0 if it sustained no step.
    pub sustained: u32,
    /// Whether a faster step failed; without it the generators or the time ended the search.
    pub has_limit: bool,
    /// In the order in which they were tried; one that fails is tried twice.
    pub steps: Vec<SearchStep>,
}

/// A step: a constant rate for some seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchStep {
    /// Transactions per second that were due.
    pub offered: f64,
    /// Transactions per second that were committed.
    pub achieved: f64,
    /// The median of the commit latency in ms, from when each was due; none if nothing was committed.
    pub p50_ms: Option<f64>,
    /// The 99 % quantile of the same.
    pub p99_ms: Option<f64>,
    /// Why the step does not count as sustained; none if it does.
    pub missed: Option<Cause>,
    /// Whether the generators were the limit: then the step says nothing of the chain.
    pub generators_limit: bool,
}

impl SearchFigures {
    /// Of the search of a phase.
    pub fn of(name: &str, saturation: &Saturation) -> SearchFigures {
        let (sustained, has_limit) = match saturation.found {
            Found::Sustained { rate, .. } => (rate, true),
            Found::Nothing { .. } => (0, true),
            Found::AtLeast { rate } => (rate, false),
        };
        let steps = saturation.judged().map(|(summary, step, missed)| SearchStep {
            offered: summary.offered_per_second,
            achieved: summary.achieved_per_second,
            p50_ms: step.commit_ms.map(|latency| latency.p50),
            p99_ms: step.commit_ms.map(|latency| latency.p99),
            missed,
            generators_limit: step.is_limited_by_generators,
        });
        SearchFigures { name: name.to_owned(), sustained, has_limit, steps: steps.collect() }
    }

    /// What it found, in words.
    pub(super) fn found(&self) -> String {
        match (self.sustained, self.has_limit) {
            (0, _) => "no step was sustained".to_owned(),
            (rate, true) => format!("{rate}/s sustained"),
            (rate, false) => format!("at least {rate}/s sustained"),
        }
    }
}

impl SearchStep {
    /// Whether it was sustained, or why not, in words.
    pub(super) fn verdict(&self) -> &'static str {
        if self.generators_limit {
            return "the generators were the limit";
        }
        match self.missed {
            None => "sustained",
            Some(Cause::Committed) => "too few were committed in time",
            Some(Cause::Latency) => "too late",
            Some(Cause::GivenUp) => "some were given up",
            Some(Cause::Backlog) => "what waits grows",
        }
    }
}
