//! `slipnet campaign storage`: tries to make the store answer wrongly, for minutes or hours.
//!
//! ```text
//!  chain (from a seed) ──▶ life: leader + follower, killed ──────▶ crash ─┐
//!        │            ──▶ a closed store, its files damaged ──▶ damage ─┼─▶ audit: every answer against the chain,
//!        │            ──▶ one file of it lost, cut or locked ──▶ losses ┤   roots by naive
//!        ▼            ──▶ commits until a small disk is full ──▶ full ──┘
//!     naive roots     ──▶ random operations beside a map ──▶ model
//! ```
//!
//! A failure names its seed and keeps its directory. The parts that are killed or damaged run in other processes: this
//! program, started again with a hidden command.

mod audit;
mod chain;
mod child;
mod crash;
mod damage;
mod full;
mod life;
mod losses;
mod model;
mod naive;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use rand::{Rng, SeedableRng, rngs::StdRng};
use slipnet::progress::Progress;
use slipstream_storage::CrashPoint;

use self::{
    crash::{CrashTarget, needs_new_store, random_moment, random_passing},
    damage::{AuditOptions, Victim},
    full::{SmallDisk, fill, free_bytes},
    life::LifeOptions,
    losses::{Losses, ReopenOptions},
    model::Backend,
};

/// The number of trials on copies of one store before a new store is made.
const COPIES_MAX: u32 = 100;

/// One trial of losses in this many keeps only half of the files.
const HALF_INTERVAL: u32 = 10;

/// A way to test the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Phase {
    /// Crashes at every named crash point.
    CrashPoints,
    /// Kills at random moments.
    Kills,
    /// Logs or tables with a truncated end.
    TornTails,
    /// Random bits of random files flipped.
    BitFlips,
    /// A disk that fills up.
    DiskFull,
    /// Random operations, compared with a map.
    Model,
    /// Files removed, emptied, truncated, renamed and locked, one at a time, or only half of them copied.
    Losses,
}

/// What to try, and how many times.
#[derive(Clone, Debug, Args)]
pub struct StorageCampaign {
    /// How many times a process crashes at each crash point. The rest is proportional: at 20 there are 1,000 random
    /// kills, 1,000 bit flips, 400 torn tails, 1,000 lost files, 20 fill points of a small disk, and 4 million
    /// operations beside a model.
    #[arg(long, default_value_t = 20)]
    pub runs: u32,
    /// Determines everything except the times of the kills. By default a new one, which is printed.
    #[arg(long)]
    pub seed: Option<u64>,
    /// The directory for stores, which are removed except after failures.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub dir: PathBuf,
    /// Try only these phases.
    #[arg(long, value_enum)]
    pub only: Vec<Phase>,
}

/// The number of trials of each phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Crashes at each crash point.
    pub per_crash_point: u32,
    /// Kills at random moments.
    pub kills: u32,
    /// Files whose end is truncated.
    pub torn_tails: u32,
    /// Files whose bits are flipped.
    pub bit_flips: u32,
    /// Trials with lost, truncated or locked files; one in ten keeps only half of the files.
    pub losses: u32,
    /// Fill points of a small disk.
    pub fill_points: u32,
    /// Operations beside the model, for each backend.
    pub operations: u64,
}

impl Counts {
    /// Returns the number of trials of each phase for `--runs`.
    pub fn of(runs: u32) -> Counts {
        Counts {
            per_crash_point: runs,
            kills: runs.saturating_mul(50),
            torn_tails: runs.saturating_mul(20),
            bit_flips: runs.saturating_mul(50),
            losses: runs.saturating_mul(50),
            fill_points: runs,
            operations: u64::from(runs) * 100_000,
        }
    }
}

/// The commands of a campaign's child processes.
#[derive(Clone, Debug, Subcommand)]
pub enum StorageChild {
    /// Commits, restores and follows until it is killed.
    Live(LifeOptions),
    /// Reads everything from a damaged store.
    Audit(AuditOptions),
    /// Starts a store that may lack files.
    Reopen(ReopenOptions),
}

impl StorageChild {
    /// Runs the command.
    ///
    /// # Errors
    /// If the store violates a guarantee.
    pub fn run(&self) -> Result<()> {
        match self {
            StorageChild::Live(options) => life::live(options),
            StorageChild::Audit(options) => say(&damage::audit_damaged(options)?),
            StorageChild::Reopen(options) => say(&losses::reopen(options)?),
        }
    }
}

fn say(outcome: &str) -> Result<()> {
    Ok(std::io::Write::write_all(&mut std::io::stdout(), outcome.as_bytes())?)
}

/// One line of the summary.
#[derive(Clone, Debug)]
pub struct Line {
    /// The phase of these trials.
    pub phase: Phase,
    /// The number of trials; none found anything.
    pub runs: u64,
    /// The outcomes, in words.
    pub note: String,
    /// The seconds that the phase took.
    pub seconds: f64,
}

/// The results of a campaign that found nothing.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The seed, which repeats the campaign.
    pub seed: u64,
    /// One line for each phase.
    pub lines: Vec<Line>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<14} {:>9} {:>8}  outcome", "tried", "runs", "seconds")?;
        for line in &self.lines {
            let name = line.phase.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
            writeln!(f, "{name:<14} {:>9} {:>8.1}  {}", line.runs, line.seconds, line.note)?;
        }
        write!(f, "no data was lost and no answer was wrong; seed {}", self.seed)
    }
}

/// Runs a campaign; `program` is the binary that has [`StorageChild`] as its command `campaign-child`.
///
/// # Errors
/// At the first wrong answer, with the seed and the directory that shows it.
pub fn run(options: &StorageCampaign, program: &Path, progress: Progress) -> Result<Summary> {
    run_counts(options, Counts::of(options.runs), program, progress)
}

/// Runs a campaign as [`run`] does, with `counts` instead of `options.runs`.
///
/// # Errors
/// As [`run`].
pub fn run_counts(
    options: &StorageCampaign,
    counts: Counts,
    program: &Path,
    progress: Progress,
) -> Result<Summary> {
    let seed = options.seed.unwrap_or_else(rand::random);
    progress.step(&format!("storage campaign, seed {seed}"));
    let campaign = Campaign { options, counts, program, progress, seed };
    let mut lines = Vec::new();
    for &phase in Phase::value_variants() {
        if !options.only.is_empty() && !options.only.contains(&phase) {
            continue;
        }
        progress.step(&format!("{phase:?}"));
        let start = Instant::now();
        let (runs, note) =
            campaign.phase(phase).with_context(|| format!("{phase:?} failed; repeat with --seed {seed}"))?;
        lines.push(Line { phase, runs, note, seconds: start.elapsed().as_secs_f64() });
    }
    Ok(Summary { seed, lines })
}

struct Campaign<'a> {
    options: &'a StorageCampaign,
    counts: Counts,
    program: &'a Path,
    progress: Progress,
    seed: u64,
}

impl Campaign<'_> {
    fn phase(&self, phase: Phase) -> Result<(u64, String)> {
        let counts = self.counts;
        // Each phase has its own random numbers, so that it can be repeated alone.
        let mut rng = StdRng::seed_from_u64(self.seed ^ (phase as u64) << 48);
        match phase {
            Phase::CrashPoints => self.crash_points(&mut rng, counts.per_crash_point),
            Phase::Kills => self.kills(&mut rng, counts.kills),
            Phase::TornTails => self.damage(&mut rng, counts.torn_tails, "torn", Victim::tear),
            Phase::BitFlips => self.damage(&mut rng, counts.bit_flips, "flipped", Victim::flip),
            Phase::Losses => self.losses(&mut rng, counts.losses),
            Phase::DiskFull => self.disk_full(&mut rng, counts.fill_points),
            Phase::Model => self.model(&mut rng, counts.operations),
        }
    }

    fn patient(&self, rng: &mut StdRng) -> Result<CrashTarget> {
        CrashTarget::new(self.program.to_owned(), &self.options.dir, rng.random())
    }

    fn crash_points(&self, rng: &mut StdRng, runs: u32) -> Result<(u64, String)> {
        let points: Vec<CrashPoint> = CrashPoint::all().collect();
        let total = points.len() as u64 * u64::from(runs);
        let mut task = self.progress.task("crash points", total);
        let mut patient = self.patient(rng)?;
        for (run, point) in (0..runs).flat_map(|_| points.iter().copied()).enumerate() {
            if needs_new_store(point) || patient.is_old() {
                patient = self.patient(rng)?;
            }
            task.update(run as u64, &point.to_string());
            let passing = random_passing(point, rng);
            if let Err(error) = patient.abort_at(point, passing) {
                let dir = patient.keep();
                return Err(error.context(format!("{point}, passing {passing}; kept as {}", dir.display())));
            }
        }
        Ok((total, format!("{} points, {runs} times each", points.len())))
    }

    fn kills(&self, rng: &mut StdRng, kills: u32) -> Result<(u64, String)> {
        let mut task = self.progress.task("random kills", kills.into());
        let mut patient = self.patient(rng)?;
        for kill in 0..kills {
            if patient.is_old() {
                patient = self.patient(rng)?;
            }
            task.update(kill.into(), "");
            let moment = random_moment(rng);
            if let Err(error) = patient.kill_after(moment) {
                let dir = patient.keep();
                return Err(error.context(format!("killed after {moment:?}; kept as {}", dir.display())));
            }
        }
        Ok((kills.into(), "every head and its state are intact".to_owned()))
    }

    fn damage<F>(&self, rng: &mut StdRng, times: u32, what: &str, damage: F) -> Result<(u64, String)>
    where
        F: Fn(&Victim, &mut StdRng) -> Result<damage::Outcome>,
    {
        let mut task = self.progress.task(what, times.into());
        let victim = |rng: &mut StdRng| Victim::new(self.program.to_owned(), &self.options.dir, rng.random());
        let mut current = victim(rng)?;
        let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
        for time in 0..times {
            if time > 0 && time.is_multiple_of(COPIES_MAX) {
                current = victim(rng)?;
            }
            task.update(time.into(), "");
            *outcomes.entry(format!("{:?}", damage(&current, rng)?)).or_default() += 1;
        }
        let note: Vec<String> =
            outcomes.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect();
        Ok((times.into(), note.join(", ")))
    }

    fn losses(&self, rng: &mut StdRng, times: u32) -> Result<(u64, String)> {
        let mut task = self.progress.task("lost files", times.into());
        let mut store = Losses::new(self.program.to_owned(), &self.options.dir, rng)?;
        let (mut outcomes, mut trial): (BTreeMap<_, u64>, usize) = (BTreeMap::new(), 0);
        for time in 0..times {
            task.update(time.into(), "");
            let outcome = if time % HALF_INTERVAL == 0 {
                store.halve(rng)?
            } else {
                if trial == store.trials() {
                    (store, trial) = (Losses::new(self.program.to_owned(), &self.options.dir, rng)?, 0);
                }
                trial += 1;
                store.lose(trial - 1)?
            };
            *outcomes.entry(outcome).or_default() += 1;
        }
        let note: Vec<String> =
            outcomes.iter().map(|(outcome, count)| format!("{outcome:?} {count}")).collect();
        Ok((times.into(), note.join(", ")))
    }

    fn disk_full(&self, rng: &mut StdRng, points: u32) -> Result<(u64, String)> {
        let Some(disk) = SmallDisk::mount(&self.options.dir)? else {
            let note =
                "skipped: this process may not mount a tmpfs (SLIPSTREAM_REQUIRE_TMPFS=1 makes this fail)";
            return Ok((0, note.to_owned()));
        };
        let mut task = self.progress.task("disk full", points.into());
        let mut heads = Vec::new();
        for point in 0..points {
            let free = free_bytes(point, points);
            task.update(point.into(), &format!("{free} bytes free"));
            let head = fill(&disk, rng.random(), free).with_context(|| format!("with {free} bytes free"))?;
            heads.push(head.to_string());
        }
        Ok((points.into(), format!("full at batches {}", heads.join(" "))))
    }

    fn model(&self, rng: &mut StdRng, operations: u64) -> Result<(u64, String)> {
        let mut notes = Vec::new();
        let mut total = 0;
        for backend in [Backend::Memory, Backend::Disk] {
            let mut task = self.progress.task("operations", operations);
            let dir = &self.options.dir;
            let done = model::run(backend, dir, rng.random(), operations, &mut |done| task.update(done, ""))?;
            total += done.operations;
            let (commits, restores, reopened) = (done.commits, done.restores, done.reopened);
            notes.push(format!(
                "{backend:?}: {commits} commits, {restores} restores, {reopened} times reopened"
            ));
        }
        Ok((total, notes.join("; ")))
    }
}
