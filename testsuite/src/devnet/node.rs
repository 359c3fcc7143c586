//! One node of a devnet: its directory, its process and its API.

use std::{
    collections::BTreeMap,
    fs::File,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::{Value, json};
use slipstream_types::SecretKey;

use super::{
    end::NodeEnd,
    files::{self, Settings},
    options::NodeOptions,
    peak::MemoryPeak,
    ports::Ports,
    process::{self, Process},
    status::Status,
};
use crate::{
    accounts,
    file_lock::FileLock,
    file_names,
    manifest::{ManifestNode, Role},
    rpc::Rpc,
};

const POLL: Duration = Duration::from_millis(25);

/// A node and, while it runs, its process.
pub struct Node {
    name: String,
    role: Role,
    key: SecretKey,
    dir: PathBuf,
    binary: PathBuf,
    /// The address on which it listens for peers and from which it dials.
    network_host: Ipv4Addr,
    network_port: u16,
    api_port: u16,
    rpc: Rpc,
    /// `KEY=VALUE` for `slipstream run --set`.
    overrides: Vec<String>,
    /// Environment variables in addition to those of this process.
    environment: BTreeMap<String, String>,
    process: Option<Process>,
    /// The peak memory over all of its processes.
    peak: MemoryPeak,
}

impl Node {
    pub(super) fn new(
        seed: &str,
        index: u32,
        name: String,
        role: Role,
        devnet: &Path,
        ports: &mut Ports,
        binary: &Path,
    ) -> Result<Node> {
        let dir = devnet.join(&name);
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create the directory {}", dir.display()))?;
        // If the user gave a base port, the devnet moves there. Otherwise a node keeps its ports.
        let kept = if ports.search() { files::kept_ports(&dir)? } else { None };
        let chosen = match kept {
            Some((network, api)) => ports.claim(network).and_then(|network| Ok((network, ports.claim(api)?))),
            None => ports.take().and_then(|network| Ok((network, ports.take()?))),
        };
        let (network_port, api_port) = chosen.with_context(|| format!("the ports of {name}"))?;
        let key = accounts::node_key(seed, index);
        let rpc = Rpc::new(&format!("http://127.0.0.1:{api_port}"))?;
        Ok(Node {
            name,
            role,
            key,
            dir,
            binary: binary.to_owned(),
            network_host: Ipv4Addr::LOCALHOST,
            network_port,
            api_port,
            rpc,
            overrides: Vec::new(),
            environment: BTreeMap::new(),
            process: None,
            peak: MemoryPeak::default(),
        })
    }

    /// Applies the options that are specific to this node.
    pub(super) fn with(self, own: Option<NodeOptions>) -> Node {
        match own {
            None => self,
            Some(NodeOptions { program, overrides, environment }) => {
                let binary = program.unwrap_or(self.binary);
                Node { binary, overrides, environment, ..self }
            }
        }
    }

    /// Moves the node to another address of this machine. Its peers take it for a stranger from elsewhere.
    pub(super) fn at(self, network_host: Ipv4Addr) -> Node {
        Node { network_host, ..self }
    }

    /// Its name, which is also its directory's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is a validator or a fullnode.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The directory of its configuration, data and log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A client of its API, on loopback.
    pub fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    /// The id of its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Its entry in another node's `network.peers`.
    pub fn peer_address(&self) -> String {
        format!("{}@{}", self.key.public(), self.network_address())
    }

    fn network_address(&self) -> SocketAddr {
        SocketAddr::from((self.network_host, self.network_port))
    }

    pub(super) fn manifest(&self) -> ManifestNode {
        ManifestNode {
            name: self.name.clone(),
            role: self.role,
            peer_id: self.key.public().to_string(),
            pid: self.pid().unwrap_or_default(),
            api: self.rpc.url().to_owned(),
            network: self.network_address().to_string(),
            dir: self.dir.clone(),
        }
    }

    pub(super) fn has_data(&self) -> bool {
        std::fs::read_dir(self.data()).is_ok_and(|mut entries| entries.next().is_some())
    }

    pub(super) fn configure(&self, settings: &Settings<'_>) -> Result<()> {
        files::write_node(&self.dir, self.role, &self.key, self.network_address(), self.api_port, settings)
    }

    /// Starts the process.
    pub fn start(&mut self) -> Result<()> {
        let config = self.config();
        let config = config.to_str().context("the directory's name is not valid UTF-8")?;
        let mut arguments = vec!["run", "--config", config];
        for set in &self.overrides {
            arguments.extend(["--set", set]);
        }
        let process = Process::spawn_in(&self.binary, &arguments, &self.environment, self.log());
        let process = process.with_context(|| self.name.clone())?;
        self.peak.begin(process.pid());
        self.process = Some(process);
        Ok(())
    }

    /// Sets the program that it runs from the next start on.
    pub fn set_program(&mut self, program: PathBuf) {
        self.binary = program;
    }

    /// Sends a signal to its process. Does nothing when it does not run.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.join(file_names::DATA)
    }

    /// The path of its configuration, node.yaml.
    pub fn config(&self) -> PathBuf {
        self.dir.join(file_names::CONFIG)
    }

    /// Kills the node (`kill -9`) and removes its data. The data directory itself stays: it may be a mount point.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn wipe(&mut self) -> Result<()> {
        self.kill();
        clear(&self.data())
    }

    /// Kills the node (`kill -9`). Does nothing when it does not run.
    pub fn kill(&mut self) {
        self.peak.end();
        self.process = None;
    }

    /// Asks the process to stop and waits for it.
    pub async fn stop(&mut self) -> Result<()> {
        self.ask_to_stop();
        self.wait_stopped().await
    }

    pub(super) fn ask_to_stop(&self) {
        self.peak.look();
        if let Some(process) = &self.process {
            process.signal(Signal::TERM);
            // A paused process would not receive SIGTERM.
            process.signal(Signal::CONT);
        }
    }

    /// Returns how its process ended by itself, on the first call after that end.
    pub(super) fn take_ended(&mut self) -> Result<Option<NodeEnd>> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let Some(status) = process.ended()? else { return Ok(None) };
        let end = NodeEnd {
            name: self.name.clone(),
            status,
            last_words: process.log_end(),
            command: format!("{} run --config {}", self.binary.display(), self.config().display()),
        };
        self.peak.end();
        self.process = None;
        Ok(Some(end))
    }

    /// Whether a process runs the node that is no child of this devnet.
    pub(super) fn runs_by_hand(&self) -> bool {
        let lock = File::open(self.data().join(file_names::LOCK));
        self.process.is_none() && matches!(lock.map(FileLock::shared), Ok(Ok(None)))
    }

    pub(super) async fn wait_stopped(&mut self) -> Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        let stopped = process.wait_stopped().await;
        self.peak.end();
        stopped.with_context(|| self.name.clone())
    }

    /// Returns an error if the process has ended by itself.
    pub fn check_alive(&mut self) -> Result<()> {
        match &mut self.process {
            Some(process) => process.check_alive().with_context(|| self.name.clone()),
            None => Ok(()),
        }
    }

    /// Its `/v1/status`.
    pub async fn status(&self) -> Result<Status> {
        let page = self.rpc.page("/v1/status").await?;
        serde_json::from_value(page).with_context(|| format!("the /v1/status of {}", self.name))
    }

    /// Returns the state root after a batch, from JSON-RPC.
    pub async fn state_root(&self, number: u64) -> Result<B256> {
        let block: Value =
            self.rpc.call("eth_getBlockByNumber", json!([format!("{number:#x}"), false])).await?;
        let root = block["stateRoot"].as_str().and_then(|root| root.parse().ok());
        root.with_context(|| format!("{} has no batch {number}", self.name))
    }

    /// Waits until its API answers.
    pub async fn wait_ready(&mut self, deadline: Instant) -> Result<()> {
        self.wait_head(0, deadline).await.map(drop)
    }

    /// Waits until its head is at least `number`, and returns its status at that time.
    pub async fn wait_head(&mut self, number: u64, deadline: Instant) -> Result<Status> {
        loop {
            self.check_alive()?;
            let last = match self.status().await {
                Ok(status) if status.head.number >= number => return Ok(status),
                Ok(status) => format!("its head is batch {}", status.head.number),
                Err(error) => format!("{error:#}"),
            };
            if Instant::now() > deadline {
                bail!("{} did not reach batch {number} in time: {last}. {}", self.name, self.log_end());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The most memory that its processes used.
    pub fn memory_peak(&self) -> &MemoryPeak {
        &self.peak
    }

    /// The path of its log: the output of its processes.
    pub fn log(&self) -> PathBuf {
        self.dir.join(file_names::LOG)
    }

    /// Returns the end of its log and the log's path, as a sentence for an error.
    pub(crate) fn log_end(&self) -> String {
        let log = self.log();
        format!("The end of its log, {}:\n{}", log.display(), process::log_end(&log))
    }
}

/// Removes the contents of a directory, if it exists.
fn clear(dir: &Path) -> Result<()> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("cannot read {}", dir.display()))?,
    };
    for entry in entries {
        let path = entry?.path();
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}
