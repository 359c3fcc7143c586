//! `slipnet campaign siege`: real attackers against a real node under honest load.
//!
//! ```text
//!  stage: validator ◀─ victim ◀─ follower      honest: wallet, reader, the follower's lag, all the time
//!                        ▲
//!  attackers: one process per attack, with their own addresses (127.63.0.0 and up), over QUIC and HTTP
//!
//!  quiet ─▶ attack, attack, … of one surface ─▶ quiet ─▶ the next surface ─▶ … ─▶ table, JSON       each with a fresh victim
//! ```
//!
//! Invariants:
//! * Every wait counts: one that does not end counts with its time so far.
//! * The node survives an attack if it is at the head afterwards, and honest nodes do not blame each other. Every
//!   transfer that it acknowledged must have a receipt on the follower. Latency and memory are targets, which may be
//!   missed.
//! * Each attack meets a freshly started victim, whose memory and queues are free of the previous attack.
//! * Attackers are paced: an attack counts by its cost to the node, not by the attackers' share of two cores.

mod attack;
mod attacker;
mod blame;
mod bomb;
mod calls;
mod gossip;
mod honest;
mod http;
mod meter;
mod outcome;
mod pool;
mod quic;
mod relay;
mod round;
mod sockets;
mod stage;
mod streams;
mod sync_server;
mod wire;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::Args;
use slipnet::{leftovers::RunDir, progress::Progress, quantiles::quantile};

pub use attacker::AttackerOptions;
pub use outcome::Summary;

use self::{
    attack::{Attack, AttackSurface},
    honest::{Honest, User},
    outcome::{Machine, Outcome, Waits},
    round::Round,
    stage::{Ballast, Stage},
};

/// What to try, and where to write the results.
#[derive(Clone, Debug, Default, Args)]
pub struct SiegeCampaign {
    /// Also write the figures to this file.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// A quick look, in two to three minutes: fewer and shorter attacks. Quote only the figures of a full run.
    #[arg(long)]
    pub quick: bool,
    /// Run only these attacks, whether quick or not; see --list.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub only: Vec<String>,
    /// List the attacks and exit.
    #[arg(long)]
    pub list: bool,
    /// Keep the nodes' files and logs.
    #[arg(long)]
    pub keep: bool,
}

/// The durations of a campaign's parts.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    ballast: Ballast,
    /// A measurement without an attack.
    quiet: Duration,
    /// Whether a measurement without an attack follows each surface, and not only the last one.
    alternates: bool,
    /// An attack: long enough that the slowest hundredth of the waits has more than one or two waits.
    attack: Duration,
    /// The time for victim and follower to reach the head, and for transfers to get their receipts.
    recover: Duration,
    /// The time for a joining node to reach the head.
    join: Duration,
}

impl Pace {
    /// For figures that are quoted.
    pub const FULL: Pace = Pace {
        ballast: Ballast { heavy: 200, logs: 12, batches: 130, epochs: 70 },
        quiet: Duration::from_secs(10),
        alternates: true,
        attack: Duration::from_secs(10),
        recover: Duration::from_secs(20),
        join: Duration::from_secs(40),
    };
    /// For a quick look.
    pub const QUICK: Pace = Pace {
        ballast: Ballast { heavy: 150, logs: 2, batches: 130, epochs: 70 },
        quiet: Duration::from_secs(3),
        alternates: false,
        attack: Duration::from_secs(2),
        recover: Duration::from_secs(10),
        join: Duration::from_secs(12),
    };
    /// For tests: shows that everything works, and measures nothing.
    pub const BRIEF: Pace = Pace {
        ballast: Ballast { heavy: 3, logs: 1, batches: 3, epochs: 2 },
        quiet: Duration::from_millis(1_500),
        alternates: false,
        attack: Duration::from_secs(6),
        recover: Duration::from_secs(120),
        join: Duration::from_secs(120),
    };
}

/// The number of failed attempts to start an attack, after which the campaign gives up: the cause is elsewhere.
const UNTRIED_MAX: usize = 3;

/// Lists the attacks, for people.
pub fn list() -> String {
    let mut text = String::from("  * also runs with --quick\n");
    for attack in attack::all() {
        let info = attack.info();
        let quick = if info.quick { "*" } else { " " };
        let (name, surface, about) = (info.name, info.surface.name(), info.about);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{quick} {name:<22} {surface:<7} {about}");
    }
    text
}

/// Runs a campaign; `program` is the binary that has [`AttackerOptions`] as `campaign-child siege-attacker`.
///
/// # Errors
/// If the stage cannot be set up, or an attacker fails for its own reasons. An attack's effect on the node is no error:
/// see [`Summary::lost_to`].
pub async fn run(options: &SiegeCampaign, program: &Path, progress: Progress) -> Result<Summary> {
    let pace = if options.quick { Pace::QUICK } else { Pace::FULL };
    run_at(options, &pace, program, progress).await
}

/// Runs a campaign as [`run`] does, at the given pace.
///
/// # Errors
/// As [`run`].
pub async fn run_at(
    options: &SiegeCampaign,
    pace: &Pace,
    program: &Path,
    progress: Progress,
) -> Result<Summary> {
    let attacks = chosen(options)?;
    let dir = RunDir::new("siege-")?;
    progress.step("starting a validator, the victim and its follower");
    let mut stage = Stage::open(dir.path(), pace.ballast).await?;
    let honest = Honest::start(&stage).await?;
    let result = wage(&mut stage, &honest, &attacks, pace, program, progress).await;
    honest.end().await;
    if options.keep || result.is_err() {
        let _ = dir.keep();
        progress.step(&format!("files and logs stay in {}", stage.keep().display()));
    }
    let closed = stage.close().await;
    let summary = result?;
    if let Err(error) = closed {
        // A victim that did not survive is already in the outcomes.
        progress.step(&format!("a node did not stop cleanly: {error:#}"));
    }
    if let Some(path) = &options.json {
        summary.report().write_json(path, options.quick)?;
    }
    Ok(summary)
}

fn chosen(options: &SiegeCampaign) -> Result<Vec<&'static dyn Attack>> {
    if !options.only.is_empty() {
        return options.only.iter().map(|name| attack::named(name)).collect();
    }
    let all = attack::all().into_iter();
    Ok(all.filter(|attack| !options.quick || attack.info().quick).collect())
}

/// Runs the attacks, surface by surface, and measures the quiet node before and after each surface.
async fn wage(
    stage: &mut Stage,
    honest: &Honest,
    attacks: &[&'static dyn Attack],
    pace: &Pace,
    program: &Path,
    progress: Progress,
) -> Result<Summary> {
    let mut task = progress.task("attacks", attacks.len() as u64);
    let mut summary = Summary::new(look(stage, honest, pace, progress).await?);
    if attacks.iter().any(|attack| attack.info().joins.is_some()) {
        summary.join_s = round::join_quietly(stage, pace, progress).await?;
    }
    let mut tried = 0;
    for &surface in AttackSurface::ALL {
        let group: Vec<_> = attacks.iter().filter(|attack| attack.info().surface == surface).collect();
        for attack in &group {
            let info = attack.info();
            task.update(tried, info.name);
            tried += 1;
            let round = Round { info, pace, program };
            match round.run(stage, honest).await {
                Ok(outcome) => {
                    progress.step(&told(&outcome));
                    summary.outcomes.push(outcome);
                }
                Err(error) => {
                    progress.step(&format!("{} could not be tried: {error:#}", info.name));
                    summary.untried.push((info.name, format!("{error:#}")));
                    ensure!(
                        summary.untried.len() < UNTRIED_MAX,
                        "{UNTRIED_MAX} attacks could not be tried; the last error: {error:#}"
                    );
                }
            }
        }
        let is_last = tried == attacks.len() as u64;
        if !group.is_empty() && (pace.alternates || is_last) {
            summary.add_quiet(look(stage, honest, pace, progress).await?);
        }
    }
    Ok(summary)
}

/// Measures the honest users without an attack, at a victim as fresh as under attacks.
async fn look(
    stage: &mut Stage,
    honest: &Honest,
    pace: &Pace,
    progress: Progress,
) -> Result<(Waits, Machine)> {
    progress.step("without an attack");
    stage.renew(&honest.wallet).await?;
    let begin = Instant::now();
    tokio::time::sleep(pace.quiet).await;
    let window = (begin, Instant::now());
    // The last waits end within a batch or two.
    tokio::time::sleep(Duration::from_millis(500)).await;
    Ok((User::ALL.map(|user| honest.waits(user, window)), honest.machine(window)))
}

/// Returns a line of progress about an outcome.
fn told(outcome: &Outcome) -> String {
    let verdict = if outcome.survived() { "survived".to_owned() } else { outcome.failures().join("; ") };
    let p99 = |user: User| quantile(&outcome.waits[user as usize], 0.99).unwrap_or_default();
    let [wallet, reader, follower] = User::ALL.map(p99);
    format!(
        "{}: {verdict}; p99 wallet {wallet:.0} ms, reader {reader:.0} ms, follower {follower:.0} ms; {:.0} MiB; {} tries",
        outcome.info.name, outcome.memory_mib, outcome.tally.0
    )
}
