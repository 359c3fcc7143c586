//! [`AttackerOptions`]: the attackers' process, which is separate so that its memory and CPU time do not count as the
//! victim's.
//!
//! It reports to the campaign in lines on standard output: `ready [peer, …]` once, then `tally TRIED DONE` twice a
//! second.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use slipnet::{cpu, devnet::Process, output::print_line};

use super::attack::{self, AttackContext, Tally, Target};

/// The time until an attack begins, for example for signing floods in advance.
const READY_DEADLINE: Duration = Duration::from_secs(60);
const TALLY_INTERVAL: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(20);
/// The niceness of the attackers: in reality they would be many machines, while here they share one with the victim.
const NICENESS: i32 = 10;

/// Attacks until it is killed.
#[derive(Clone, Debug, Args)]
pub struct AttackerOptions {
    /// The attack, by its name in `slipnet campaign siege --list`.
    #[arg(long)]
    name: String,
    /// The facts about the victim: a JSON file.
    #[arg(long)]
    target: PathBuf,
}

impl AttackerOptions {
    /// Attacks.
    ///
    /// # Errors
    /// If the attackers fail for a reason other than the victim.
    pub async fn run(&self) -> Result<()> {
        rustix::process::nice(NICENESS).context("cannot lower the attackers' priority")?;
        let text = fs::read_to_string(&self.target)
            .with_context(|| format!("cannot read {}", self.target.display()))?;
        let target: Arc<Target> = Arc::new(serde_json::from_str(&text)?);
        let (ready, mut is_ready) = tokio::sync::mpsc::channel(1);
        let tally = Arc::new(Tally::default());
        let field = AttackContext { target, tally: tally.clone(), ready };
        let attack = attack::named(&self.name)?.start(field);
        let report = async {
            if let Some(servers) = is_ready.recv().await {
                print_line(&format!("ready {}", serde_json::to_string(&servers)?))?;
            }
            let mut ticks = tokio::time::interval(TALLY_INTERVAL);
            loop {
                ticks.tick().await;
                let (tried, done) = tally.counts();
                print_line(&format!("tally {tried} {done}"))?;
            }
        };
        tokio::select! {
            ended = attack => ended.with_context(|| self.name.clone()),
            failed = report => failed,
        }
    }
}

/// The running process of an attack; dropping it kills it.
pub(super) struct Attackers {
    process: Process,
    log: PathBuf,
    /// Entries of `network.peers` of the attackers that listen.
    pub(super) servers: Vec<String>,
}

impl Attackers {
    /// Starts the process and waits until the attack has begun.
    pub(super) async fn start(program: &Path, name: &str, target: &Target, dir: &Path) -> Result<Attackers> {
        let (file, log) = (dir.join(format!("{name}.json")), dir.join(format!("{name}.log")));
        fs::write(&file, serde_json::to_string_pretty(target)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
        let file = file.to_str().context("the directory's name is not valid UTF-8")?;
        let arguments = ["campaign-child", "siege-attacker", "--name", name, "--target", file];
        let mut process = Process::spawn(program, &arguments, log.clone())?;
        let deadline = Instant::now() + READY_DEADLINE;
        loop {
            process.check_alive()?;
            let text = fs::read_to_string(&log).unwrap_or_default();
            if let Some(servers) = whole_lines(&text).find_map(|line| line.strip_prefix("ready ")) {
                let servers = serde_json::from_str(servers)?;
                return Ok(Attackers { process, log, servers });
            }
            if Instant::now() > deadline {
                bail!("the attackers of {name} were not ready in time; their log is {}", log.display());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns the attackers' CPU seconds so far.
    pub(super) fn cpu_s(&self) -> f64 {
        cpu::of_process(self.process.pid()).unwrap_or_default()
    }

    /// Returns the number of attempts and of successful ones, at most [`TALLY_INTERVAL`] old.
    pub(super) fn tally(&self) -> (u64, u64) {
        tally(&fs::read_to_string(&self.log).unwrap_or_default())
    }

    /// Kills the process; returns its last tally.
    pub(super) fn end(mut self) -> Result<(u64, u64)> {
        self.process.check_alive().context("the attackers ended by themselves")?;
        self.process.kill();
        Ok(self.tally())
    }
}

/// Returns the complete lines.
fn whole_lines(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    text.rsplit_once('\n').map_or("", |(whole, _)| whole).lines()
}

fn tally(log: &str) -> (u64, u64) {
    let last = whole_lines(log).rev().find_map(|line| {
        let (tried, done) = line.strip_prefix("tally ")?.split_once(' ')?;
        Some((tried.parse().ok()?, done.parse().ok()?))
    });
    last.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_tally_counts() {
        assert_eq!(tally("ready []\ntally 1 0\ntally 25 3\ntally 9"), (25, 3));
        assert_eq!(tally(""), (0, 0));
    }
}
