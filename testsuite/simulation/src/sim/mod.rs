//! `slipnet sim`: the sync daemon that ships, on machines that crash, among peers that lie, stall, prune, come and go.
//!
//! ```text
//!  seed ─▶ Plan (who, what goes wrong, when) ─▶ World: Engine + Worker + Store per node, servers, links, one queue of events
//!                                                 └─▶ oracles after every step ─▶ trace hash, or the seed and what is wrong
//! ```
//!
//! A run is one thread with its own clock: the same seed gives the same trace hash. See docs/simulation.md.

pub mod broadcast;
mod chain;
pub mod explain;
mod fault;
mod happen;
mod jobs;
mod lie;
mod link;
mod node;
mod oracle;
mod pace;
mod plan;
mod planted;
mod queue;
mod server;
mod trace;
mod traffic;
pub mod validators;
mod world;

use std::{
    fmt,
    ops::Range,
    panic::AssertUnwindSafe,
    str::FromStr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, ValueEnum as _};
use slipnet::progress::Progress;
use slipstream_sync::Planted;

use self::{chain::Chain, fault::Fired, world::World};
pub use self::{
    fault::{Coverage, Fault, SHARE_MIN},
    plan::Scenario,
};

/// The number of runs below which a campaign does not check the shares of faults.
const COVERED_RUNS_MIN: u64 = 200;

/// What to simulate.
#[derive(Clone, Debug, Args)]
pub struct SimOptions {
    /// Seeds to run: `A..B` (without B), or one seed.
    #[arg(long, default_value = "0..200")]
    pub seeds: Seeds,
    /// The faults to inject. Without it the seed picks, and every kind of fault must occur often enough.
    #[arg(long, value_enum)]
    pub scenario: Option<Scenario>,
    /// Print every event to standard error.
    #[arg(long)]
    pub verbose: bool,
    /// Disable one defence, by its name: some run must then fail.
    #[arg(long, hide = true)]
    pub planted: Option<Planted>,
}

/// The seeds to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seeds(pub Range<u64>);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seeds, String> {
        let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a seed"));
        let seeds = match text.split_once("..") {
            Some((first, end)) => number(first)?..number(end)?,
            None => {
                let seed: u64 = number(text)?;
                seed..seed.checked_add(1).ok_or("the largest seed cannot be simulated")?
            }
        };
        if seeds.is_empty() { Err(format!("the range {text} is empty")) } else { Ok(Seeds(seeds)) }
    }
}

/// The result of a run without failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunResult {
    /// The hash of all events.
    pub trace: [u8; 32],
    /// The virtual time of the run.
    pub took: Duration,
    fired: Fired,
}

/// Runs one seed.
///
/// # Errors
/// If an oracle found a fault; the error names seed and scenario.
pub fn run_seed(
    seed: u64,
    scenario: Option<Scenario>,
    planted: Option<Planted>,
    verbose: bool,
) -> Result<RunResult> {
    let scenario = scenario.unwrap_or_else(|| Scenario::of(seed));
    // One thread does all work of a run, so that nothing depends on how threads are scheduled.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let run = || -> Result<RunResult> {
        let (done, outcome) = World::new(scenario, seed, planted, verbose)?.run();
        done.map(|()| RunResult { trace: outcome.trace, took: outcome.took, fired: outcome.fired })
    };
    pool.install(run).with_context(|| {
        let name = scenario.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        format!(
            "seed {seed} of scenario {scenario:?} failed; `slipnet explain {seed} --scenario {name}` shows what happened"
        )
    })
}

/// The report of a campaign that found nothing.
#[derive(Clone, Debug)]
pub struct SimReport {
    /// The number of runs.
    pub runs: u64,
    /// The real time of all runs, in seconds.
    pub seconds: f64,
    /// Virtual time of all runs.
    pub simulated: Duration,
    /// The hash over the traces of all runs, in the order of their seeds.
    pub trace: String,
    /// The faults that occurred, by kind.
    pub coverage: Coverage,
}

impl fmt::Display for SimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SimReport { runs, seconds, simulated, trace, coverage } = self;
        let simulated = simulated.as_secs_f64();
        writeln!(
            f,
            "{runs} runs, {simulated:.0} s simulated in {seconds:.1} s, nothing found; trace {trace}"
        )?;
        write!(f, "{coverage}")
    }
}

/// Runs the seeds, on as many threads as the machine has.
///
/// # Errors
/// The first failure by seed, with the command that repeats it; or that a kind of fault occurred too rarely.
pub fn run(options: &SimOptions, progress: Progress) -> Result<SimReport> {
    let began = Instant::now();
    // The ledger is made before the threads start. Otherwise the threads would wait for each other.
    Chain::canonical();
    Chain::forged();
    let ran = campaign(&options.seeds, options.verbose, progress, |seed| {
        run_seed(seed, options.scenario, options.planted, options.verbose)
    })?;
    let mut coverage = Coverage::default();
    ran.iter().for_each(|ran| coverage.add(&ran.fired));
    let (runs, simulated) = (ran.len() as u64, ran.iter().map(|ran| ran.took).sum());
    let trace = digest_of(ran.iter().map(|ran| &ran.trace));
    let missing = coverage.missing();
    let counts = options.scenario.is_none() && runs >= COVERED_RUNS_MIN;
    ensure!(
        !counts || missing.is_empty(),
        "{missing:?} occurred too rarely: at a share of {:.0} % of the runs, chance does not explain this:\n{coverage}",
        SHARE_MIN * 100.0
    );
    Ok(SimReport { runs, seconds: began.elapsed().as_secs_f64(), simulated, trace, coverage })
}

/// Runs each of the seeds, on as many threads as the machine has, and returns the results in their order.
///
/// # Errors
/// The first failure by seed.
fn campaign<T: Send>(
    seeds: &Seeds,
    verbose: bool,
    progress: Progress,
    run_seed: impl Fn(u64) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let seeds = seeds.0.clone();
    let task = Mutex::new((0, progress.task("simulation", seeds.end - seeds.start)));
    let next = AtomicU64::new(seeds.start);
    let results = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let ran = std::panic::catch_unwind(AssertUnwindSafe(|| run_seed(seed)))
                .unwrap_or_else(|_| Err(anyhow!("seed {seed} panicked: its message is above")));
            if ran.is_err() {
                // Runs that have begun still finish, so that the lowest failing seed is known.
                next.store(seeds.end, Ordering::Relaxed);
            }
            {
                let (runs, task) = &mut *task.lock().unwrap_or_else(PoisonError::into_inner);
                *runs += 1;
                task.update(*runs, "");
            }
            results.lock().unwrap_or_else(PoisonError::into_inner).push((seed, ran));
        }
    };
    let threads = if verbose { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(seed, _)| *seed);
    results.into_iter().map(|(_, ran)| ran).collect()
}

/// Returns one digest over the traces.
fn digest_of<'a>(traces: impl Iterator<Item = &'a [u8; 32]>) -> String {
    let mut digest = sha2::Sha256::default();
    traces.for_each(|trace| sha2::Digest::update(&mut digest, trace));
    hex::encode(sha2::Digest::finalize(digest))
}
