//! [`SearchFigures`]: the steps of a search for the rate that a chain sustains.

use serde::{Deserialize, Serialize};

use crate::load::{Cause, Found, Saturation};

/// A search for the highest sustained rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchFigures {
    /// The name of its phase in the scenario.
    pub name: String,
    /// Transactions per second that the chain sustained; 0 if it sustained no step.
    pub sustained: u32,
    /// Whether a faster step failed; otherwise the generators or the time ended the search.
    pub has_limit: bool,
    /// The steps, in the order in which they were tried; a failed one is tried twice.
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
    /// The median of the commit latency in ms, from the due time; `None` if nothing was committed.
    pub p50_ms: Option<f64>,
    /// The 99th percentile of the same.
    pub p99_ms: Option<f64>,
    /// The condition that the step violates; `None` if it is sustained.
    pub missed: Option<Cause>,
    /// Whether the generators were the limit: then the step says nothing about the chain.
    pub generators_limit: bool,
}

impl SearchFigures {
    /// Makes the figures of a phase's search.
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

    /// Describes the result in words.
    pub(super) fn found(&self) -> String {
        match (self.sustained, self.has_limit) {
            (0, _) => "no step was sustained".to_owned(),
            (rate, true) => format!("{rate}/s sustained"),
            (rate, false) => format!("at least {rate}/s sustained"),
        }
    }
}

impl SearchStep {
    /// Describes in words whether the step was sustained, or why not.
    pub(super) fn verdict(&self) -> &'static str {
        if self.generators_limit {
            return "the generators were the limit";
        }
        match self.missed {
            None => "sustained",
            Some(Cause::Committed) => "too few were committed in time",
            Some(Cause::Latency) => "too late",
            Some(Cause::GivenUp) => "some were given up",
            Some(Cause::Backlog) => "the backlog grows",
        }
    }
}
