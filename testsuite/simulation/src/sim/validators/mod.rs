//! `slipnet sim validators`: the whole validators that ship, over a lossy and slow network, on machines that crash,
//! with one Byzantine validator.
//!
//! ```text
//!  seed ─▶ Plan ─▶ World: machines ── seat: Driver + Core + Pool + Session ─┐
//!                    │               └ follow: sync's Engine + Worker ───────┼─▶ Port ─▶ links: delay, loss, partition; a traitor's twist
//!                    │                 both on a Store on a MemoryDisk ──────┘     └─▶ Oracle: every message, batch and start
//!                    └─▶ trace hash, or the seed and what is wrong
//! ```
//!
//! A run is one thread with its own runtime. Its clock stands still while any work is ready, so the same seed gives the
//! same trace hash. See docs/simulation.md.

mod fault;
mod follow;
mod load;
mod machine;
mod oracle;
mod plan;
mod port;
mod seat;
mod slow;
mod statements;
mod think;
mod traitor;
mod world;

use std::{fmt, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::Args;
use slipnet::progress::Progress;
use slipstream_consensus::simulated::{Defences, Planted};

pub use self::fault::{Table, WorldFault};
use self::{
    fault::Troubles,
    world::{Outcome, World},
};
use super::{COVERED_RUNS_MIN, SHARE_MIN, Seeds, campaign, digest_of, explain::Explained};

/// What to simulate.
#[derive(Clone, Debug, Args)]
pub struct ValidatorsOptions {
    /// Seeds to run: `A..B` (without B), or one seed.
    #[arg(long, default_value = "0..200")]
    pub seeds: Seeds,
    /// Print every event to standard error.
    #[arg(long)]
    pub verbose: bool,
    /// Disable one defence, by its name: some run must then fail.
    #[arg(long, hide = true)]
    pub planted: Option<Planted>,
}

/// The result of a run without failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunResult {
    /// The hash of all events.
    pub trace: [u8; 32],
    /// The virtual time of the run.
    pub took: Duration,
    /// Batches of the run's ledger.
    pub batches: u64,
    /// The virtual time from the last fault until all machines had recovered.
    pub recovered: Duration,
    troubles: Troubles,
}

/// Runs one seed.
///
/// # Errors
/// If an oracle found a fault; the error names the seed.
pub fn run_seed(seed: u64, planted: Option<Planted>, verbose: bool) -> Result<RunResult> {
    let defences = Defences::without(planted)?;
    // One thread does all work of a run, so that nothing depends on how threads are scheduled.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let run = || -> Result<RunResult> {
        defences.plant();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let outcome = runtime.block_on(async {
            let world = World::new(plan::rng(seed), defences, verbose)?;
            world.run().await
        })?;
        let Outcome { trace, troubles, took, batches, recovered } = outcome;
        Ok(RunResult { trace, took, batches, recovered, troubles })
    };
    pool.install(run).with_context(|| {
        format!("seed {seed} failed; `slipnet explain {seed} --validators` shows what happened")
    })
}

/// Runs one seed again and records what a person needs to understand it.
///
/// # Errors
/// If the world cannot be built.
pub fn explain(seed: u64, planted: Option<Planted>) -> Result<Explained> {
    let defences = Defences::without(planted)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    pool.install(|| -> Result<Explained> {
        defences.plant();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        runtime.block_on(async {
            let world = World::new(plan::rng(seed), defences, false)?;
            world.record();
            let done = world.clone().run().await;
            anyhow::Ok(Explained {
                title: format!("seed {seed}, validators"),
                failure: done.err().map(|error| format!("{error:#}")),
                took: world.elapsed(),
                cast: world.cast(),
                stands: world.stands(),
                recording: world.take_recording().unwrap_or_default(),
            })
        })
    })
}

/// The report of a campaign that found nothing.
#[derive(Clone, Debug)]
pub struct ValidatorsReport {
    /// The number of runs.
    pub runs: u64,
    /// The real time of all runs, in seconds.
    pub seconds: f64,
    /// Virtual time of all runs.
    pub simulated: Duration,
    /// Batches of all runs.
    pub batches: u64,
    /// The longest time from the last fault until all machines had recovered, and its seed.
    pub slowest: (Duration, u64),
    /// The hash over the traces of all runs, in the order of their seeds.
    pub trace: String,
    /// The faults that occurred, by kind.
    pub table: Table,
}

impl fmt::Display for ValidatorsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ValidatorsReport { runs, seconds, simulated, batches, slowest, trace, table } = self;
        let (simulated, recovered) = (simulated.as_secs_f64(), slowest.0.as_secs_f64());
        writeln!(
            f,
            "{runs} runs of {batches} batches, {simulated:.0} s simulated in {seconds:.1} s, nothing found; trace {trace}"
        )?;
        writeln!(f, "the slowest world recovered {recovered:.1} s after its last fault: seed {}", slowest.1)?;
        write!(f, "{table}")
    }
}

/// Runs the seeds, on as many threads as the machine has.
///
/// # Errors
/// The first failure by seed, with the command that repeats it; or that a kind of fault occurred too rarely.
pub fn run(options: &ValidatorsOptions, progress: Progress) -> Result<ValidatorsReport> {
    load::accounts();
    let began = std::time::Instant::now();
    let ran = campaign(&options.seeds, options.verbose, progress, |seed| {
        run_seed(seed, options.planted, options.verbose)
    })?;
    let mut table = Table::default();
    ran.iter().for_each(|ran| table.add(&ran.troubles));
    let missing = table.missing();
    let runs = ran.len() as u64;
    let slowest = ran.iter().map(|ran| ran.recovered).zip(options.seeds.0.clone()).max();
    ensure!(
        runs < COVERED_RUNS_MIN || missing.is_empty(),
        "{missing:?} occurred too rarely: at a share of {:.0} % of the runs, chance does not explain this:\n{table}",
        SHARE_MIN * 100.0
    );
    Ok(ValidatorsReport {
        runs,
        seconds: began.elapsed().as_secs_f64(),
        simulated: ran.iter().map(|ran| ran.took).sum(),
        batches: ran.iter().map(|ran| ran.batches).sum(),
        slowest: slowest.unwrap_or_default(),
        trace: digest_of(ran.iter().map(|ran| &ran.trace)),
        table,
    })
}
