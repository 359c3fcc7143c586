//! `slipnet bench auto`: the node's own choice beside each way that an operator can pin, in many situations.
//!
//! ```text
//!  Recipe ─ made once ─▶ Chain ─┬─ clone for each Supplier ─▶ servers in this process ◀─ a relay each ─▶ slipstream, by a Way
//!                               └─ clone of a node that stopped ────────────────────────────────────────▶    in turns
//!  Situation = chain, start, suppliers, busy threads, history        Runs ─▶ Measured ─▶ regret, ETA, history
//! ```

mod backfill;
mod chain;
mod figures;
mod follow;
mod measured;
mod situation;
mod supply;

use std::path::Path;

use anyhow::{Result, bail, ensure};

use self::{
    backfill::HeadCost,
    follow::{DEADLINE, Follower, Run, Way, rest},
    measured::Measured,
    situation::{FULL, FULL_RUN, LENGTHS, ONLY_NAMED, QUICK_RUN, Situation, Start},
    supply::{Busy, Supply},
};
use super::{BenchOptions, Report, harness::kept::WorkDir};
use slipnet::progress::Progress;

/// The part that compares a long chain with a short one.
const LENGTH: &str = "head_vs_chain_length";
/// The number of rounds of that part.
const LENGTH_ROUNDS: usize = 5;

/// The measurements to make.
struct Plan {
    is_quick: bool,
    situations: Vec<&'static Situation>,
    has_length: bool,
    has_backfill: bool,
}

/// The results.
#[derive(Default)]
struct Results {
    measured: Vec<Measured>,
    /// Seconds of `auto` on the long chain and on the short one, run by run.
    lengths: [Vec<f64>; 2],
    head_cost: HeadCost,
}

impl Plan {
    /// Returns everything of a full or a quick run, or only the named parts.
    fn new(quick: bool, only: &[String]) -> Result<Plan> {
        let usual: &[Situation] = if quick { &QUICK_RUN } else { &FULL_RUN };
        if only.is_empty() {
            let situations = usual.iter().collect();
            return Ok(Plan { is_quick: quick, situations, has_length: !quick, has_backfill: !quick });
        }
        let all = || FULL_RUN.iter().chain(&ONLY_NAMED).chain(&QUICK_RUN);
        let parts = [LENGTH, backfill::NAME];
        let is_known = |name: &&String| {
            parts.contains(&name.as_str()) || all().any(|situation| situation.name == name.as_str())
        };
        if let Some(unknown) = only.iter().find(|name| !is_known(name)) {
            let names: Vec<_> = all().map(|situation| situation.name).chain(parts).collect();
            bail!("there is no situation {unknown}; the situations are {}", names.join(", "));
        }
        let named = |name: &str| only.iter().any(|named| named == name);
        Ok(Plan {
            is_quick: quick,
            situations: all().filter(|situation| named(situation.name)).collect(),
            has_length: named(LENGTH),
            has_backfill: named(backfill::NAME),
        })
    }
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let plan = Plan::new(options.quick, &options.only)?;
    let place = WorkDir::of(options)?;
    let scratch = tempfile::Builder::new().prefix("slipnet-bench-").tempdir_in(place.dir())?;
    let bench = Bench { plan: &plan, place: place.dir(), scratch: scratch.path(), progress };
    let results = tokio::runtime::Handle::current().block_on(bench.run()).map_err(|error| {
        let dir = scratch.keep();
        error.context(format!("the bench failed; the nodes' files and logs are in {}", dir.display()))
    })?;
    Ok(figures::report(&results, plan.is_quick))
}

struct Bench<'a> {
    plan: &'a Plan,
    /// The directory that keeps the chains.
    place: &'a Path,
    /// The directory for clones and followers; on the file system of the chains, so that clones can hard-link their
    /// files.
    scratch: &'a Path,
    progress: Progress,
}

impl Bench<'_> {
    async fn run(&self) -> Result<Results> {
        let mut results = Results::default();
        for situation in &self.plan.situations {
            let measured = self.measure(situation).await?;
            self.progress.step(&measured.line());
            results.measured.push(measured);
        }
        if self.plan.has_length {
            results.lengths = self.lengths().await?;
        }
        if self.plan.has_backfill {
            let chain = FULL.make(self.place, self.progress)?;
            results.head_cost = backfill::measure(&chain, self.scratch, self.progress).await?;
        }
        Ok(results)
    }

    async fn measure(&self, situation: &'static Situation) -> Result<Measured> {
        let chain = situation.chain.make(self.place, self.progress)?;
        let dir = self.scratch.join(situation.name);
        let supply = Supply::of(situation.suppliers, &chain, &dir).await?;
        let stopped = dir.join("stopped");
        let stopped = match situation.start {
            Start::Stopped(behind) => {
                rest(&chain, behind, &stopped).await?;
                Some(&*stopped)
            }
            Start::Empty => None,
        };
        let follower =
            Follower { situation, chain: &chain, supply: &supply, stopped, dir: &dir.join("follower") };
        let busy = Busy::start(situation.busy_threads);
        let mut measured = Measured::new(situation);
        let mut round = 0;
        while round < measured.rounds(self.plan.is_quick) {
            for way in measured.turns(round) {
                let leash = measured.leash(way);
                self.progress.step(&format!("{}, {}, round {}", situation.name, way.name(), round + 1));
                let with_window = situation.history && way == Way::Auto && round == 0;
                measured.add(way, follower.run(way, leash, with_window).await?);
            }
            round += 1;
        }
        drop(busy);
        supply.close();
        std::fs::remove_dir_all(&dir)?;
        Ok(measured)
    }

    /// Returns the seconds of `auto` on a long chain and on a short one with the same state, measured in turns.
    async fn lengths(&self) -> Result<[Vec<f64>; 2]> {
        let mut made = Vec::new();
        for situation in &LENGTHS {
            let chain = situation.chain.make(self.place, self.progress)?;
            let dir = self.scratch.join(situation.name);
            let supply = Supply::of(situation.suppliers, &chain, &dir).await?;
            made.push((situation, chain, dir, supply));
        }
        let mut lengths = <[Vec<f64>; 2]>::default();
        for round in 0..LENGTH_ROUNDS {
            for ((situation, chain, dir, supply), seconds) in made.iter().zip(&mut lengths) {
                self.progress.step(&format!("{}, round {} of {LENGTH_ROUNDS}", situation.name, round + 1));
                let follower =
                    Follower { situation, chain, supply, stopped: None, dir: &dir.join("follower") };
                let run = follower.run(Way::Auto, DEADLINE, false).await?;
                let Run::Arrived(arrived) = run else {
                    bail!("auto did not reach the head of {} in time", situation.name);
                };
                seconds.push(arrived.seconds);
            }
        }
        for (.., supply) in made {
            supply.close();
        }
        ensure!(lengths.iter().all(|seconds| seconds.len() == LENGTH_ROUNDS), "a round is missing");
        Ok(lengths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_picks_its_situation_and_an_unknown_one_is_refused() {
        let plan = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            Plan::new(false, &only)
        };
        let named = plan(&["twenty_million", LENGTH]).unwrap();
        assert!(named.situations.len() == 1 && named.has_length && !named.has_backfill);
        let all = plan(&[]).unwrap();
        assert!(all.situations.len() >= 16 && all.has_length && all.has_backfill);
        let error = plan(&["nothing"]).err().unwrap().to_string();
        assert!(error.contains("nothing") && error.contains("gap.50"), "{error}");
    }
}
