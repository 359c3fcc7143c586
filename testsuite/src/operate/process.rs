//! [`Operated`]: the process of the node, and what it is like while orders last.

mod obey;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use slipstream_config::{NodeConfig, Overrides};
use tokio::process::{Child, Command};

use super::{
    OperateOptions, failures::Failures, old::OldData, order::What, rewritten, state::State, waypoint,
};
use crate::{
    devnet::{Process, die_with_parent},
    leftovers::RunDir,
    load::JUDGE_SECRET,
    output,
    rpc::Rpc,
    scenario::{Knobs, assault, disk, preload_environment},
    target::write_private,
};

/// A node flushes its last commit within this time, on a loaded machine too; after it the process is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(30);
/// How long a process may take until the library of faults in it has said that it is there.
const LOADED_DEADLINE: Duration = Duration::from_secs(10);
/// What a node whose disk was full takes to end: answers that are under way, and its store.
const SETTLE_DEADLINE: Duration = Duration::from_secs(20);
/// Containers start in any order, and the chain's first batches take their time.
const WAYPOINT_WITHIN: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(50);
/// The configuration with attackers among the peers.
const AMONG: &str = "among.yaml";
/// What the file is called that the library reads.
const KNOBS: &str = "node";

/// A node that is run, and what it is like now.
pub(super) struct Operated {
    config: PathBuf,
    data: PathBuf,
    api: String,
    seed: String,
    old: OldData,
    /// The directory that all nodes share.
    shared: Option<PathBuf>,
    /// Who tells where its trust starts; none once it did.
    waypoint_from: Option<String>,
    /// What the program is told that lies in its place.
    seat: Value,
    /// That program, with the directory of its orders and its log.
    liar: Option<(Process, RunDir)>,
    /// With the directory of their file; none if no order is about its disk's speed or its clock.
    knobs: Option<(Knobs, RunDir)>,
    environment: BTreeMap<String, String>,
    child: Option<Child>,
    state: State,
    /// Changes of the validators that it brings.
    changes: obey::Turns,
    failures: Arc<Failures>,
}

impl Operated {
    /// The node of a configuration, which does not run yet.
    pub(super) fn new(options: &OperateOptions, failures: Arc<Failures>) -> Result<Operated> {
        let OperateOptions { config, orders, seed, shared, waypoint_from, .. } = options;
        let loaded = slipstream_config::load(config, &Overrides::default())?.config;
        let mut api = loaded.api.listen;
        if api.ip().is_unspecified() {
            api.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        if orders.iter().any(|order| order.what == What::FullDisk) {
            disk::check_small(&loaded.data_dir)?;
            // What filled it when this program was killed: the order may be over by now.
            disk::free(&loaded.data_dir)?;
        }
        let needs = orders.iter().any(|order| matches!(order.what, What::SlowDisk(_) | What::ClockJump(_)));
        let (knobs, environment) = if needs {
            let dir = RunDir::new("operate-")?;
            let environment = preload_environment(dir.path(), KNOBS)?;
            (Some((Knobs::make(dir.path(), KNOBS)?, dir)), environment)
        } else {
            (None, BTreeMap::new())
        };
        let NodeConfig { network, genesis, key_file, .. } = &loaded;
        Ok(Operated {
            seat: json!({
                "key_file": key_file.display().to_string(),
                "listen": network.listen,
                "peers": network.peers.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "genesis": genesis.as_ref().map(|genesis| genesis.display().to_string()),
            }),
            liar: None,
            waypoint_from: waypoint_from.clone(),
            config: config.clone(),
            old: OldData::of(&loaded.data_dir, options.start)?,
            data: loaded.data_dir,
            api: format!("http://{api}"),
            seed: seed.clone(),
            shared: shared.clone(),
            knobs,
            environment,
            child: None,
            state: State { is_down: true, ..State::default() },
            changes: obey::Turns::default(),
            failures,
        })
    }

    /// Where its API is, seen from here.
    pub(super) fn api(&self) -> &str {
        &self.api
    }

    /// Where it keeps what it has.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// Has the node dial these before its peers, from its next start on.
    ///
    /// # Errors
    /// If its configuration cannot be read or written.
    pub(super) fn dial_first(&mut self, servers: &[String]) -> Result<()> {
        self.config = rewritten::rewrite(&self.config, &self.data, AMONG, |config| {
            let peers = config.get("network").and_then(|network| network["peers"].as_array());
            let peers: Vec<Value> = peers.into_iter().flatten().cloned().collect();
            let first = servers.iter().map(|server| json!(server));
            config.entry("network").or_insert_with(|| json!({}))["peers"] = first.chain(peers).collect();
        })?;
        Ok(())
    }

    fn starts_in(&self, state: &State) -> bool {
        // A liar that did not start has not taken the node's place.
        let is_replaced = self.liar.is_some();
        self.child.is_none() && !state.is_down && !state.is_paused && !state.is_full && !is_replaced
    }

    /// Whether the node ends in this state, for its old data to come back.
    pub(super) fn puts_back(&self, state: &State) -> bool {
        !state.keeps_data && self.old.is_kept()
    }

    /// Whether this state waits for [`Operated::ask_waypoint`], before the node can start in it.
    pub(super) fn lacks_waypoint(&self, state: &State) -> bool {
        self.starts_in(state) && self.waypoint_from.is_some()
    }

    /// Waits for the waypoint at which the node's trust starts. Whoever gives up may ask again.
    ///
    /// # Errors
    /// If nobody tells one in time, or the node's configuration cannot be written.
    pub(super) async fn ask_waypoint(&mut self) -> Result<()> {
        if let Some(from) = &self.waypoint_from {
            self.config = waypoint::config_of(&self.config, &self.data, from, WAYPOINT_WITHIN).await?;
            self.waypoint_from = None;
        }
        Ok(())
    }

    /// Starts, stops, pauses or wakes the node, and sets its disk and its clock. One that is paused while it is down starts later; so does
    /// one whose disk is full, or that lacks its waypoint. If it starts, it is as this program.
    pub(super) async fn become_as(&mut self, state: State, program: &Path) -> Result<()> {
        // What failed is not tried again before the order ends.
        if state.is_full != self.state.is_full
            && let Err(error) = self.fill(state.is_full).await
        {
            self.failures.note("filling the node's disk, or freeing it,", &error);
            self.state.is_full = state.is_full;
        }
        if state.lie != self.state.lie {
            self.stop_or_note().await;
            // Its successor listens at the same address.
            self.liar = None;
            match state.lie.map(|lie| self.lie(lie)).transpose() {
                Ok(liar) => self.liar = liar,
                Err(error) => self.failures.note("starting the liar in the node's place", &error),
            }
            self.state.lie = state.lie;
        }
        if self.puts_back(&state) {
            self.put_back().await;
        }
        if state.is_down {
            self.kill().await?;
        } else if self.starts_in(&state) && self.waypoint_from.is_none() {
            self.start(program)?;
        }
        if state.is_paused != self.state.is_paused {
            self.signal(if state.is_paused { Signal::STOP } else { Signal::CONT });
        }
        let is_set = (state.flush_ms, state.clock_ms) == (self.state.flush_ms, self.state.clock_ms);
        if self.child.is_some() && !is_set {
            // What failed is tried again with the next order.
            match self.turn(state.flush_ms, state.clock_ms).await {
                Ok(()) => (self.state.flush_ms, self.state.clock_ms) = (state.flush_ms, state.clock_ms),
                Err(error) => self.failures.note("setting the node's disk and clock", &error),
            }
        }
        (self.state.is_down, self.state.is_paused) = (state.is_down, state.is_paused);
        Ok(())
    }

    /// Puts the node's data back to what they were. A copy that cannot be put back is not tried again.
    async fn put_back(&mut self) {
        self.stop_or_note().await;
        let done = tokio::task::block_in_place(|| self.old.put_back());
        if let Err(error) = done.or_else(|error| self.old.forget().and(Err(error))) {
            self.failures.note("putting the node's data back", &error);
        }
    }

    /// Starts the program that lies with the node's key, at its address.
    fn lie(&self, lie: &str) -> Result<(Process, RunDir)> {
        ensure!(!self.seat["genesis"].is_null(), "a liar needs the chain's genesis: name it in node.yaml");
        let dir = RunDir::new("liar-")?;
        let (file, log) = (dir.path().join("orders.json"), dir.path().join("log"));
        write_private(&file, &self.seat.to_string())?;
        let file = file.display().to_string();
        let arguments = ["campaign-child", "lying-validator", "--lie", lie, "--orders", &file];
        Ok((Process::spawn(&assault::program()?, &arguments, log)?, dir))
    }

    /// Waits until the node, or the liar in its place, has ended by itself; for ever while none runs, or the node ended for want of room.
    pub(super) async fn ended(&mut self) -> Result<ExitStatus> {
        while let Some((liar, _)) = &mut self.liar {
            liar.check_alive().context("the liar in the node's place")?;
            tokio::time::sleep(POLL).await;
        }
        if let Some(child) = &mut self.child {
            let status = child.wait().await?;
            if !self.state.is_full {
                return Ok(status);
            }
            self.note_no_room(status);
        }
        std::future::pending().await
    }

    /// A node may end while its disk is full; it starts again once there is room.
    fn note_no_room(&mut self, status: ExitStatus) {
        output::note(&format!("the node ended for want of room: {status}"));
        self.child = None;
    }

    /// Takes all room on the node's disk, or gives it back. Then the node ends, if it is about to, or goes on.
    async fn fill(&mut self, is_full: bool) -> Result<()> {
        if is_full {
            disk::check_small(&self.data)?;
            tokio::task::block_in_place(|| disk::fill(&self.data))?;
        } else {
            disk::free(&self.data)?;
            // One that does neither in this time is let go as it is.
            let _ = tokio::time::timeout(SETTLE_DEADLINE, self.settle()).await;
        }
        self.state.is_full = is_full;
        Ok(())
    }

    /// Waits until a node that had no room has ended, or has a batch more: while it is ending it still runs.
    async fn settle(&mut self) -> Result<()> {
        let (rpc, mut before) = (Rpc::new(&self.api)?, None);
        while let Some(child) = &mut self.child {
            if let Some(status) = child.try_wait()? {
                self.note_no_room(status);
                break;
            }
            let head = rpc.head().await.ok();
            if before.is_some_and(|before| head > Some(before)) {
                break;
            }
            before = before.or(head);
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Asks the node to end, and waits for it.
    ///
    /// # Errors
    /// If it ends badly, or has to be killed.
    pub(super) async fn stop(&mut self) -> Result<()> {
        self.signal(Signal::TERM);
        // A paused process would not hear it.
        self.signal(Signal::CONT);
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let Ok(status) = tokio::time::timeout(STOP_DEADLINE, child.wait()).await else {
            child.kill().await?;
            bail!("the node did not stop within {} s of SIGTERM and was killed", STOP_DEADLINE.as_secs());
        };
        let status = status?;
        let is_good = status.success() || status.signal() == Some(Signal::TERM.as_raw());
        ensure!(is_good, "the node stopped badly: {status}");
        Ok(())
    }

    /// A node that stops badly is gone all the same, and the orders go on.
    async fn stop_or_note(&mut self) {
        if let Err(error) = self.stop().await {
            self.failures.note("stopping the node", &error);
        }
    }

    async fn kill(&mut self) -> Result<()> {
        match self.child.take() {
            Some(mut child) => child.kill().await.context("cannot kill the node"),
            None => Ok(()),
        }
    }

    fn start(&mut self, program: &Path) -> Result<()> {
        let mut command = Command::new(program);
        command.arg("run").arg("--config").arg(&self.config).envs(&self.environment);
        // The node has nothing to tell the judge.
        command.env_remove(JUDGE_SECRET);
        // A group of its own: ctrl-c reaches this program alone, which stops the node.
        command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        die_with_parent(command.as_std_mut());
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        // A child that was waited for has no id any more, so that its id cannot be somebody else's by now.
        let id = self.child.as_ref().and_then(Child::id).and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = id.and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// A process that has just started says after a moment that it has the library.
    async fn turn(&self, flush_ms: u64, clock_ms: i64) -> Result<()> {
        let Some((knobs, _)) = &self.knobs else { return Ok(()) };
        let set = || knobs.slow_down(flush_ms).and_then(|()| knobs.jump(clock_ms));
        let deadline = Instant::now() + LOADED_DEADLINE;
        while set().is_err() && Instant::now() < deadline {
            tokio::time::sleep(POLL).await;
        }
        set()
    }
}
