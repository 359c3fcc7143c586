//! [`check`]: runs the searches and reports their results.

use std::{
    fmt,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model};

use crate::{Bounds, Options, search::Consensus};

/// A path to a state that must not exist.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// Name of the violated property.
    pub property: &'static str,
    /// The contradiction that violates it, in words.
    pub wrong: String,
    /// The path to the violation from the beginning: each message with its receiver and its sender.
    pub steps: Vec<String>,
}

/// The result of one search.
#[derive(Clone, Debug)]
pub struct SearchReport {
    /// The bounds of the search.
    pub bounds: Bounds,
    /// States that were reached, with repetitions.
    pub states: usize,
    /// Different states that were reached.
    pub unique: usize,
    /// Different states of single validators.
    pub node_states: usize,
    /// Transitions of the longest path.
    pub depth: usize,
    /// Duration of the search.
    pub took: Duration,
    /// Whether all states within the bounds were reached.
    pub is_exhaustive: bool,
    /// Number of checked states from which the chain made progress.
    pub lives: u64,
    /// The longest run until that progress, in milliseconds of virtual time.
    pub longest_ms: u64,
    /// The violations that the search found.
    pub found: Vec<Counterexample>,
}

/// The results of all searches.
#[derive(Clone, Debug)]
pub struct Report {
    /// One row for each search, in order.
    pub rows: Vec<SearchReport>,
}

impl Report {
    /// Whether the searches found no violation. States that a search did not reach stay unknown.
    pub fn is_clean(&self) -> bool {
        self.rows.iter().all(|row| row.found.is_empty())
    }

    /// Summarizes all searches in one line.
    pub fn summary(&self) -> String {
        let complete = self.rows.iter().filter(|row| row.is_exhaustive).count();
        let clean = if self.is_clean() { "nothing found" } else { "VIOLATED" };
        format!("{clean}: {complete} of {} searches exhaustive within their bounds", self.rows.len())
    }
}

/// Runs the searches of the options, one after the other, and passes each row to `each` as soon as it is done.
pub fn check(options: &Options, mut each: impl FnMut(&SearchReport)) -> Report {
    let begun = Instant::now();
    let mut share = 0;
    let mut rows = Vec::new();
    for (bounds, percent) in options.searches() {
        // The next search inherits the time that earlier searches left.
        share += percent;
        let limit = (options.limit * share / 100).saturating_sub(begun.elapsed());
        let until = HasDiscoveries::AnyFailures;
        let row = search(Consensus::new(bounds), limit, options.threads, SearchOrder::Depth, until);
        each(&row);
        rows.push(row);
    }
    Report { rows }
}

/// The order in which states are visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SearchOrder {
    /// Depth first, which takes little memory.
    Depth,
    /// Breadth first, which finds a short path.
    #[cfg(test)]
    Breadth,
}

pub(crate) fn search(
    model: Consensus,
    limit: Duration,
    threads: usize,
    order: SearchOrder,
    until: HasDiscoveries,
) -> SearchReport {
    let checker = model.checker().threads(threads.max(1)).finish_when(until);
    let checker: CheckerBuilder<Consensus> = checker.timeout(limit);
    let begun = Instant::now();
    match order {
        SearchOrder::Depth => row(checker.spawn_dfs().join(), begun, limit),
        #[cfg(test)]
        SearchOrder::Breadth => row(checker.spawn_bfs().join(), begun, limit),
    }
}

fn row(checker: impl Checker<Consensus>, begun: Instant, limit: Duration) -> SearchReport {
    let took = begun.elapsed();
    let model = checker.model();
    let mut found: Vec<_> = checker
        .discoveries()
        .into_iter()
        .map(|(property, path)| Counterexample {
            property,
            wrong: path.last_state().wrong.as_ref().map_or(property.into(), ToString::to_string),
            steps: path.into_actions().iter().map(ToString::to_string).collect(),
        })
        .collect();
    found.sort_by_key(|found| found.property);
    SearchReport {
        bounds: model.node_states.constants.bounds,
        states: checker.state_count(),
        unique: checker.unique_state_count(),
        node_states: model.node_states.len(),
        depth: checker.max_depth(),
        took,
        is_exhaustive: took < limit && found.is_empty(),
        lives: model.lives.tried.load(Ordering::Relaxed),
        longest_ms: model.lives.longest_ms.load(Ordering::Relaxed),
        found,
    }
}

impl fmt::Display for SearchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SearchReport { states, unique, node_states, depth, lives, longest_ms, .. } = self;
        let name = self.bounds.to_string();
        let (seconds, longest_s) = (self.took.as_secs_f64(), *longest_ms as f64 / 1e3);
        write!(
            f,
            "{name:<46} {unique:>9} states ({states} reached, {node_states} of single validators), depth {depth}, {seconds:.1} s, \
             {lives} lives of at most {longest_s:.1} s: "
        )?;
        for found in &self.found {
            writeln!(f, "VIOLATED: {}: {}", found.property, found.wrong)?;
            found.steps.iter().try_for_each(|step| writeln!(f, "    {step}"))?;
        }
        match (self.found.is_empty(), self.is_exhaustive) {
            (true, true) => f.write_str("nothing found, exhaustive"),
            (true, false) => f.write_str("nothing found, NOT exhaustive: the time ran out"),
            (false, _) => Ok(()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        f.write_str(&self.summary())
    }
}
