//! [`Case`]: one batch, its outcome, and its execution time.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use slipstream_executor::{BatchEnv, Outcome, Transaction, Workers, execute, execute_parallel};
use slipstream_storage::MemoryState;
use slipstream_types::Conflicts;

/// A batch with its state and its exact conflicts.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) env: BatchEnv,
    pub(super) transactions: Vec<Transaction>,
    pub(super) conflicts: Conflicts,
    state: MemoryState,
    outcome: Outcome,
}

impl Case {
    /// Executes a batch once; `gas_used` is its known gas.
    pub(super) fn new(
        name: String,
        state: MemoryState,
        env: BatchEnv,
        transactions: Vec<Transaction>,
        gas_used: Option<u64>,
    ) -> Result<Case> {
        let outcome =
            execute(&state, &env, &transactions).with_context(|| format!("cannot execute {name}"))?;
        let known = gas_used.is_none_or(|gas_used| gas_used == outcome.gas_used);
        ensure!(known, "{name} uses {} gas here, not {gas_used:?}", outcome.gas_used);
        let conflicts = outcome.conflicts();
        Ok(Case { name, env, transactions, conflicts, state, outcome })
    }

    /// Returns the speed-ups of several threads over one. One thread and several threads take turns to go first. One
    /// extra run does not count. The outcomes are compared.
    pub(super) fn speedups(&self, graph: &Conflicts, workers: &Workers, runs: usize) -> Result<Vec<f64>> {
        let one = || Ok(execute(&self.state, &self.env, &self.transactions)?);
        let several = || Ok(execute_parallel(&self.state, &self.env, &self.transactions, graph, workers)?.0);
        let mut speedups = Vec::with_capacity(runs);
        for run in 0..=runs {
            let (one_s, several_s) = if run % 2 == 0 {
                let one_s = self.time(one)?;
                (one_s, self.time(several)?)
            } else {
                let several_s = self.time(several)?;
                (self.time(one)?, several_s)
            };
            if run > 0 {
                speedups.push(one_s / several_s);
            }
        }
        Ok(speedups)
    }

    /// Returns the gain from two independent threads, each of which executes the whole batch. Two cores that share
    /// execution units, or a machine, do less than twice as much.
    pub(super) fn floors(&self, runs: usize) -> Result<Vec<f64>> {
        let one = || Ok(execute(&self.state, &self.env, &self.transactions)?);
        let floor = |_| {
            let one_s = self.time(one)?;
            let start = Instant::now();
            let (first, second) = rayon::join(one, one);
            let both_s = start.elapsed().as_secs_f64();
            ensure!(first? == second?, "{}: the outcomes differ", self.name);
            Ok(2.0 * one_s / both_s)
        };
        (0..runs).map(floor).collect()
    }

    fn time(&self, execute: impl Fn() -> Result<Outcome>) -> Result<f64> {
        let start = Instant::now();
        let outcome = execute()?;
        let seconds = start.elapsed().as_secs_f64();
        ensure!(outcome == self.outcome, "{}: the outcomes differ", self.name);
        Ok(seconds)
    }

    /// Returns the cost of making the graph, as a share of executing.
    pub(super) fn maker_costs(&self, runs: usize) -> Result<Vec<f64>> {
        let mut costs = Vec::with_capacity(runs);
        for _ in 0..runs {
            let start = Instant::now();
            let outcome = execute(&self.state, &self.env, &self.transactions)?;
            let execute_s = start.elapsed().as_secs_f64();
            let start = Instant::now();
            let graph = outcome.conflicts();
            let graph_s = start.elapsed().as_secs_f64();
            ensure!(graph == self.conflicts, "{}: the graphs differ", self.name);
            costs.push(graph_s / execute_s);
        }
        Ok(costs)
    }

    /// Returns the exact conflicts without a share of their edges, in percent.
    pub(super) fn without_edges(&self, percent: u32) -> Conflicts {
        let mut random = SmallRng::seed_from_u64(self.env.number);
        let mut graph = self.conflicts.clone();
        for predecessors in &mut graph.predecessors {
            predecessors.retain(|_| random.random_range(0..100) >= percent);
        }
        graph
    }

    /// Returns the exact conflicts with one more edge for a share of the transactions, in percent.
    pub(super) fn with_edges(&self, percent: u32) -> Conflicts {
        let mut random = SmallRng::seed_from_u64(self.env.number);
        let mut graph = self.conflicts.clone();
        for (index, predecessors) in graph.predecessors.iter_mut().enumerate().skip(1) {
            let other = random.random_range(0..index) as u32;
            if random.random_range(0..100) < percent && !predecessors.contains(&other) {
                predecessors.push(other);
                predecessors.sort_unstable();
            }
        }
        graph
    }
}
