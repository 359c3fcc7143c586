//! [`Assault`]: attackers of the siege, which run as a separate process.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    accounts::Account,
    devnet::Process,
    rpc::{Rpc, quantity},
    scenario::{fault::What, model::Scenario},
};

/// The program with the attacks.
const PROGRAM: &str = "slipnet-simulation";
/// The attackers' own accounts, after those of the load.
pub(crate) const ACCOUNTS: u32 = 320;
/// The time limit for attackers to become ready, including presigning floods.
const READY_DEADLINE: Duration = Duration::from_secs(60);
/// How long a victim is asked for its chain: one that is already under attack answers late, or not every time.
const ASKED_FOR: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// Checks that the attackers' program exists, if the scenario needs it, and has its attacks.
///
/// # Errors
/// If the program or an attack is missing. Without this check, the run would fail only when the attack begins.
pub(super) async fn check(scenario: &Scenario) -> Result<()> {
    let mut wanted: BTreeSet<&str> =
        scenario.topology.groups.iter().filter_map(|group| group.among.as_deref()).collect();
    let mut lies = false;
    for fault in &scenario.faults {
        match &fault.what {
            What::Attack { name, .. } => {
                wanted.insert(name);
            }
            What::LyingPeers { lie, .. } => {
                wanted.insert(lie.of_program());
            }
            What::LyingValidator { lie, .. } => lies |= lie.of_program().is_some(),
            _ => {}
        }
    }
    if wanted.is_empty() && !lies {
        return Ok(());
    }
    let program = program()?;
    let mut command = Command::new(&program);
    let listed =
        command.args(["campaign", "siege", "--list"]).stdin(Stdio::null()).kill_on_drop(true).output();
    let listed = listed.await.with_context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8_lossy(&listed.stdout);
    let known: BTreeSet<&str> =
        text.lines().filter_map(|line| line.trim_start_matches('*').split_whitespace().next()).collect();
    for name in wanted {
        ensure!(
            known.contains(name),
            "there is no attack `{name}`: `slipnet campaign siege --list` lists all"
        );
    }
    Ok(())
}

/// The input of attackers. It contains no secrets.
pub(crate) struct Aim<'a> {
    /// The API of the victim.
    pub(crate) rpc: &'a Rpc,
    /// The victim's entry of `network.peers`.
    pub(crate) peer: String,
    /// The same for the node that the victim follows; liars get true data from it.
    pub(crate) upstream: String,
    /// The public key of the node that joins next.
    pub(crate) joiner: String,
    pub(crate) accounts: &'a [Account],
    /// The number of liars, and the index of the first among those of the run. If `None`, the attack decides.
    pub(crate) liars: Option<(u32, usize)>,
}

/// Running attackers. Dropping them ends them.
pub(crate) struct Assault {
    process: Process,
    /// The `network.peers` entries of attackers that listen.
    pub(crate) servers: Vec<String>,
    /// Whether a fault took their victim down while they attacked: some attacks end because of that.
    lost_victim: bool,
}

impl Assault {
    /// Starts the attackers and waits until their attack is under way. Its files go into `dir`, named after the attack
    /// and `tag`.
    ///
    /// # Errors
    /// If there is no such attack, or its process ends.
    pub(crate) async fn start(name: &str, tag: &str, aim: Aim<'_>, dir: &Path) -> Result<Assault> {
        let program = program()?;
        let file = dir.join(format!("attack-{name}-{tag}.json"));
        let log = file.with_extension("log");
        let target = asked(&aim).await.context("the victim does not answer questions about the chain")?;
        fs::write(&file, target.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
        let file = file.to_str().context("the directory's name is not valid UTF-8")?;
        let arguments = ["campaign-child", "siege-attacker", "--name", name, "--target", file];
        let mut process = Process::spawn(&program, &arguments, log.clone())?;
        let servers = ready(&mut process, &log, &format!("the attack {name}")).await?;
        Ok(Assault { process, servers: serde_json::from_str(&servers)?, lost_victim: false })
    }

    /// Checks that the attackers still attack.
    ///
    /// # Errors
    /// If they ended by themselves: then the scenario lacks its attack.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.process.check_alive().context("the attackers ended by themselves")
    }

    /// Records that a fault takes the attackers' victim down. This does not excuse attackers that had ended before.
    pub(crate) fn lose_victim(&mut self) {
        self.lost_victim |= self.check().is_ok();
    }

    /// Ends the attackers.
    ///
    /// # Errors
    /// As [`Assault::check`], unless a fault took their victim down.
    pub(crate) fn end(mut self) -> Result<()> {
        match self.check() {
            Err(_) if self.lost_victim => Ok(()),
            checked => checked,
        }
    }
}

/// Waits until a process logs a line that it is ready, and returns the rest of that line.
///
/// # Errors
/// If the process ends, or is not ready in time.
pub(super) async fn ready(process: &mut Process, log: &Path, what: &str) -> Result<String> {
    let deadline = Instant::now() + READY_DEADLINE;
    loop {
        process.check_alive().with_context(|| what.to_owned())?;
        let text = fs::read_to_string(log).unwrap_or_default();
        // Only whole lines count: the process may be writing one.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        if let Some(said) = whole.lines().find_map(|line| line.strip_prefix("ready ")) {
            return Ok(said.to_owned());
        }
        if Instant::now() > deadline {
            bail!("{what} was not ready in time; its log is {}", log.display());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Returns the path of the attackers' program, which cargo puts beside this one; a test program lies one directory
/// deeper.
pub(crate) fn program() -> Result<PathBuf> {
    let this = std::env::current_exe().context("this program's path is unknown")?;
    let mut places = this.ancestors().skip(1).take(2).map(|dir| dir.join(PROGRAM));
    places.find(|path| path.is_file()).with_context(|| {
        format!(
            "the program {PROGRAM}, which has the attackers, is not beside {}: `./x build` makes it",
            this.display()
        )
    })
}

/// Asks for the target repeatedly, for [`ASKED_FOR`].
async fn asked(aim: &Aim<'_>) -> Result<Value> {
    let deadline = Instant::now() + ASKED_FOR;
    loop {
        match target(aim).await {
            Err(_) if Instant::now() < deadline => tokio::time::sleep(POLL).await,
            target => return target,
        }
    }
}

/// Makes the file that the attackers read; see the siege's `Target`.
async fn target(aim: &Aim<'_>) -> Result<Value> {
    let rpc = aim.rpc;
    let chain_id = quantity(&rpc.call("eth_chainId", json!([])).await?)?;
    let block: Value = rpc.call("eth_getBlockByNumber", json!(["latest", false])).await?;
    let head = quantity(&block["number"])?;
    let keys: Vec<String> = aim.accounts.iter().map(Account::key_hex).collect();
    let liars = aim.liars.map(|(count, first)| json!({ "count": count, "first": first }));
    Ok(json!({
        "api": rpc.url().trim_start_matches("http://"),
        "peer": aim.peer,
        "upstream": aim.upstream,
        "joiner": aim.joiner,
        // All nodes of a devnet have this address.
        "neighbour": "127.0.0.1",
        "chain_id": chain_id,
        "base_fee_wei": quantity(&block["baseFeePerGas"])?,
        "accounts": keys,
        "heavy_batch": head,
        "head": head,
        "liars": liars,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: attackers may end after a fault has taken their victim down, and only then.
    #[test]
    fn attackers_without_a_victim_may_end() {
        let dir = tempfile::tempdir().unwrap();
        let attack = || {
            let process = Process::spawn(Path::new("/bin/sleep"), &["100"], dir.path().join("log")).unwrap();
            Assault { process, servers: Vec::new(), lost_victim: false }
        };
        attack().end().unwrap();
        let mut ended = attack();
        ended.process.kill();
        ended.lose_victim();
        assert!(ended.end().is_err(), "it had ended before");
        let mut lost = attack();
        lost.lose_victim();
        lost.process.kill();
        lost.end().unwrap();
    }
}
