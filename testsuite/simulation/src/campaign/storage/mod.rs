//! `slipnet campaign storage`: tries to make storage lie, for minutes or hours.
//!
//! ```text
//!  chain (from a seed) ──▶ life: leader + follower, killed ──────▶ crash ─┐
//!        │            ──▶ a closed store, its files damaged ──▶ damage ─┼─▶ audit: every answer against the chain,
//!        │            ──▶ one file of it lost, cut or locked ──▶ losses ┤   roots by naive
//!        ▼            ──▶ commits until a small disk is full ──▶ full ──┘
//!     naive roots     ──▶ random operations beside a map ──▶ model
//! ```
//!
//! A failure names its seed and keeps its directory. Other processes run the parts that are killed or damaged: the program itself,
//! started again with a hidden command.

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
    crash::{Patient, needs_new_store, random_moment, random_passing},
    damage::{AuditOptions, Victim},
    full::{SmallDisk, fill, free_bytes},
    life::LifeOptions,
    losses::{Losses, ReopenOptions},
    model::Backend,
};

/// Damages done to copies of one store before another one is made.
const COPIES_MAX: u32 = 100;

/// One in this number of lost files is half a store.
const HALF_INTERVAL: u32 = 10;

/// One way to try the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Phase {
    /// Dies at every named crash point.
    CrashPoints,
    /// Killed at random moments.
    Kills,
    /// The end of a log or of a table is missing.
    TornTails,
    /// Random bits of random files are flipped.
    BitFlips,
    /// The disk fills up.
    DiskFull,
    /// Random operations beside a map.
    Model,
    /// Files are removed, emptied, cut, renamed and locked, one at a time, or half of them is copied.
    Losses,
}

/// What to try, and how often.
#[derive(Clone, Debug, Args)]
pub struct StorageCampaign {
    /// How often a process dies at each crash point. The rest grows with it: at 20 there are 1,000 random kills, 1,000 bit
    /// flips, 400 torn tails, 1,000 lost files, 20 fill points of a small disk, and 4 million operations beside a model.
    #[arg(long, default_value_t = 20)]
    pub runs: u32,
    /// Decides everything but the moments of the kills. Without it: a new one, which is printed.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Where stores are made and, but for failures, removed.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub dir: PathBuf,
    /// Try only these.
    #[arg(long, value_enum)]
    pub only: Vec<Phase>,
}

/// How often each phase tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Deaths at each crash point.
    pub per_crash_point: u32,
    /// Deaths at random moments.
    pub kills: u32,
    /// Files whose end is cut off.
    pub torn_tails: u32,
    /// Files whose bits are flipped.
    pub bit_flips: u32,
    /// Files that are lost, cut or locked; one in ten is half a store.
    pub losses: u32,
    /// Fill points of a small disk.
    pub fill_points: u32,
    /// Operations beside the model, on each backend.
    pub operations: u64,
}

impl Counts {
    /// The number of trials of each phase for `--runs`.
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

/// What the processes do that a campaign starts.
#[derive(Clone, Debug, Subcommand)]
pub enum StorageChild {
    /// Commits, restores and follows until it is killed.
    Live(LifeOptions),
    /// Asks a damaged store everything.
    Audit(AuditOptions),
    /// Starts a store that may lack files.
    Reopen(ReopenOptions),
}

impl StorageChild {
    /// Does it.
    ///
    /// # Errors
    /// If the store breaks its promises.
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
    /// How often, all of it well.
    pub runs: u64,
    /// How it ended, in words.
    pub note: String,
    /// Seconds that it took.
    pub seconds: f64,
}

/// The trials of a campaign that found nothing.
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
        write!(f, "nothing was lost and nothing wrong was answered; seed {}", self.seed)
    }
}

/// Runs a campaign; `program` is the binary that has [`StorageChild`] as its command `campaign-child`.
///
/// # Errors
/// At the first lie, with the seed and the directory that shows it.
pub fn run(options: &StorageCampaign, program: &Path, progress: Progress) -> Result<Summary> {
    run_counts(options, Counts::of(options.runs), program, progress)
}

/// As [`run`], with counts of its own instead of `options.runs`.
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
        // Each phase has its own numbers, so that it can be repeated alone.
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

    fn patient(&self, rng: &mut StdRng) -> Result<Patient> {
        Patient::new(self.program.to_owned(), &self.options.dir, rng.random())
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
        Ok((kills.into(), "every head and its state are whole".to_owned()))
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
