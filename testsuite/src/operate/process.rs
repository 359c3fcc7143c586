//! [`Operated`]: the node's process, and its condition while orders last.

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

/// The time limit for a node to stop. Within it a node flushes its last commit, even on a loaded machine; then it is
/// killed.
const STOP_DEADLINE: Duration = Duration::from_secs(30);
/// The time limit for a process to load the library of faults.
const LOADED_DEADLINE: Duration = Duration::from_secs(10);
/// The time limit for a node whose disk was full to end: answers in progress, and its store.
const SETTLE_DEADLINE: Duration = Duration::from_secs(20);
/// The time limit for a waypoint: containers start in any order, and the chain's first batches take time.
const WAYPOINT_WITHIN: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(50);
/// The name of the configuration with attackers among the peers.
const AMONG: &str = "among.yaml";
/// The name of the file that the library reads.
const KNOBS: &str = "node";

/// The node, with its current condition.
pub(super) struct Operated {
    config: PathBuf,
    data: PathBuf,
    api: String,
    seed: String,
    old: OldData,
    /// The directory that all nodes share.
    shared: Option<PathBuf>,
    /// The API that gives the waypoint of its trust; `None` once it did.
    waypoint_from: Option<String>,
    /// The input of the program that lies in its place.
    seat: Value,
    /// That program, with the directory of its input and log.
    liar: Option<(Process, RunDir)>,
    /// The knobs, with the directory of their file; `None` if no order affects the disk's speed or the clock.
    knobs: Option<(Knobs, RunDir)>,
    environment: BTreeMap<String, String>,
    child: Option<Child>,
    state: State,
    /// The queue of validator changes that it submits.
    changes: obey::Turns,
    failures: Arc<Failures>,
}

impl Operated {
    /// Makes the node of a configuration, without starting it.
    pub(super) fn new(options: &OperateOptions, failures: Arc<Failures>) -> Result<Operated> {
        let OperateOptions { config, orders, seed, shared, waypoint_from, .. } = options;
        let loaded = slipstream_config::load(config, &Overrides::default())?.config;
        let mut api = loaded.api.listen;
        if api.ip().is_unspecified() {
            api.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        if orders.iter().any(|order| order.what == What::FullDisk) {
            disk::check_small(&loaded.data_dir)?;
            // Removes the filler that a killed program has left: its order may be over by now.
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

    /// Returns the address of its API, from this container.
    pub(super) fn api(&self) -> &str {
        &self.api
    }

    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// Makes the node dial these servers before its peers, from its next start on.
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
        // A liar that did not start does not replace the node.
        let is_replaced = self.liar.is_some();
        self.child.is_none() && !state.is_down && !state.is_paused && !state.is_full && !is_replaced
    }

    /// Whether the node stops in this state, to restore its old data.
    pub(super) fn puts_back(&self, state: &State) -> bool {
        !state.keeps_data && self.old.is_kept()
    }

    /// Whether the node needs [`Operated::ask_waypoint`] before it can start in this state.
    pub(super) fn lacks_waypoint(&self, state: &State) -> bool {
        self.starts_in(state) && self.waypoint_from.is_some()
    }

    /// Waits for the waypoint at which the node's trust starts. It may be cancelled and called again.
    ///
    /// # Errors
    /// If no waypoint comes in time, or the node's configuration cannot be written.
    pub(super) async fn ask_waypoint(&mut self) -> Result<()> {
        if let Some(from) = &self.waypoint_from {
            self.config = waypoint::config_of(&self.config, &self.data, from, WAYPOINT_WITHIN).await?;
            self.waypoint_from = None;
        }
        Ok(())
    }

    /// Starts, stops, pauses or resumes the node, and sets its disk and its clock. If it starts, it runs `program`. A
    /// node that is paused while it is down starts later; so does one whose disk is full, or that lacks its waypoint.
    pub(super) async fn become_as(&mut self, state: State, program: &Path) -> Result<()> {
        // A failure is not retried before the order ends.
        if state.is_full != self.state.is_full
            && let Err(error) = self.fill(state.is_full).await
        {
            self.failures.note("filling the node's disk, or freeing it,", &error);
            self.state.is_full = state.is_full;
        }
        if state.lie != self.state.lie {
            self.stop_or_note().await;
            // The next liar listens on the same address.
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
            // A failure is retried with the next order.
            match self.turn(state.flush_ms, state.clock_ms).await {
                Ok(()) => (self.state.flush_ms, self.state.clock_ms) = (state.flush_ms, state.clock_ms),
                Err(error) => self.failures.note("setting the node's disk and clock", &error),
            }
        }
        (self.state.is_down, self.state.is_paused) = (state.is_down, state.is_paused);
        Ok(())
    }

    /// Restores the node's data. A copy that cannot be restored is not tried again.
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

    /// Waits until the node, or the liar in its place, has ended by itself. Waits forever while neither runs, or if the
    /// node ended because its disk was full.
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

    /// Records that the node ended while its disk was full; it starts again once there is room.
    fn note_no_room(&mut self, status: ExitStatus) {
        output::note(&format!("the node ended for want of room: {status}"));
        self.child = None;
    }

    /// Fills the node's disk, or frees it. Then waits until the node ends, if it is about to, or continues.
    async fn fill(&mut self, is_full: bool) -> Result<()> {
        if is_full {
            disk::check_small(&self.data)?;
            tokio::task::block_in_place(|| disk::fill(&self.data))?;
        } else {
            disk::free(&self.data)?;
            // A node that does neither in this time is left as it is.
            let _ = tokio::time::timeout(SETTLE_DEADLINE, self.settle()).await;
        }
        self.state.is_full = is_full;
        Ok(())
    }

    /// Waits until a node with a full disk has ended, or has a new batch: a node that is about to end still runs.
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

    /// Asks the node to stop, and waits for it.
    ///
    /// # Errors
    /// If it ends badly, or has to be killed.
    pub(super) async fn stop(&mut self) -> Result<()> {
        self.signal(Signal::TERM);
        // A paused process would not receive SIGTERM.
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

    /// Stops the node. A failure is only recorded: the node has ended anyway, and the orders continue.
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
        // The node does not report to the judge.
        command.env_remove(JUDGE_SECRET);
        // The child has its own process group: ctrl-c reaches this program alone, which stops the node.
        command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        die_with_parent(command.as_std_mut());
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        // A child that was waited for has no id any more, so the id cannot have been reused.
        let id = self.child.as_ref().and_then(Child::id).and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = id.and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Sets the delay and the clock; retries until a process that has just started has loaded the library.
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
