//! [`NodeProcess`]: a real `slipstream` fullnode in its own directory.

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;
use slipstream_network::PeerAddress;
use slipstream_types::SecretKey;

use slipnet::{
    accounts::node_key,
    cpu,
    devnet::{Process, binary, write_key},
    memory,
    rpc::Rpc,
};

/// The deadline for readiness: opening a chain's store reads its whole state; far above the expected time.
const READY_DEADLINE: Duration = Duration::from_secs(300);
/// An address without a listener: UDP's discard port.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9);
const READY_POLL: Duration = Duration::from_millis(2);

/// Returns the database in a node's directory, for benches that fill it before the node starts.
pub(crate) fn database(dir: &Path) -> PathBuf {
    dir.join("data/db")
}

/// The settings that differ between nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeOptions {
    /// `sync.mode`.
    pub(crate) mode: &'static str,
    /// Further keys of the `sync` section, as lines of YAML.
    pub(crate) sync: String,
    /// Keys of the `executor` section, as lines of YAML.
    pub(crate) executor: String,
    /// Further keys of the `storage` section, as lines of YAML.
    pub(crate) storage: String,
    /// Keys of the `consensus` section, as lines of YAML; not empty for a validator.
    pub(crate) consensus: String,
    /// `storage.snapshot_interval_batches`.
    pub(crate) snapshot_interval: u64,
    /// Further keys of the `network` section, as lines of YAML.
    pub(crate) network: &'static str,
    /// Peers to dial. A fullnode needs one; without a real peer, [`NOWHERE`] replaces it.
    pub(crate) peers: Vec<String>,
}

/// A running node; dropping it kills it.
pub(crate) struct NodeProcess {
    process: Process,
    rpc: Rpc,
    address: SocketAddr,
    id: String,
}

impl NodeProcess {
    /// Starts a fullnode in a directory that may already hold a database, and waits until it is ready.
    ///
    /// # Errors
    /// If the node does not become ready; the error has the end of its log.
    pub(crate) async fn start(
        dir: &Path,
        genesis: &Path,
        key: &SecretKey,
        options: &NodeOptions,
    ) -> Result<NodeProcess> {
        fs::create_dir_all(dir)?;
        write_key(dir, key)?;
        let config = dir.join("node.yaml");
        fs::write(&config, yaml(genesis, options)?)?;
        let log = dir.join("log");
        // The process appends to the log, so the ready line of an earlier process must not count.
        fs::write(&log, "")?;
        let config = config.to_str().context("the directory's name is not valid UTF-8")?;
        let mut process = Process::spawn(&binary()?, &["run", "--config", config], log.clone())?;
        let deadline = Instant::now() + READY_DEADLINE;
        loop {
            process.check_alive()?;
            if let Some(ready) = ready(&fs::read_to_string(&log).unwrap_or_default()) {
                let (api, id, address) = ready?;
                return Ok(NodeProcess { process, rpc: Rpc::new(&api)?, address, id });
            }
            if Instant::now() > deadline {
                bail!("the node in {} was not ready in time; its log is beside its files", dir.display());
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// Returns the address of the node's API.
    pub(crate) fn url(&self) -> &str {
        self.rpc.url()
    }

    /// Returns the address that peers dial.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the entry for this node in the `network.peers` of a node that reaches it at another address.
    pub(crate) fn peer_at(&self, address: SocketAddr) -> String {
        format!("{}@{address}", self.id)
    }

    /// Reads the node's `/v1/status`.
    pub(crate) async fn status(&self) -> Result<Value> {
        self.rpc.page("/v1/status").await
    }

    /// Returns the number of the node's last batch.
    pub(crate) async fn head(&self) -> Result<u64> {
        self.rpc.head().await
    }

    /// Sends the node a JSON-RPC request.
    pub(crate) async fn call(&self, method: &str, params: Value) -> Result<Value> {
        self.rpc.call(method, params).await
    }

    /// Returns an error, with the end of the log, if the node has exited by itself.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        self.process.check_alive()
    }

    /// Returns the node's CPU seconds so far.
    pub(crate) fn cpu_s(&self) -> Result<f64> {
        cpu::of_process(self.process.pid())
    }

    /// Returns the bytes that the node has read from the disk so far.
    pub(crate) fn disk_bytes(&self) -> Result<u64> {
        io_counter(self.process.pid(), "read_bytes")
    }

    /// Returns the node's peak memory so far, in MiB.
    pub(crate) fn peak_mib(&self) -> Result<f64> {
        memory::peak_mib(self.process.pid())
    }

    /// Asks the node to stop, and waits for its end.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.process.signal(Signal::TERM);
        self.process.wait_stopped().await
    }
}

/// Returns the kernel's count of a process' disk I/O, in bytes: `read_bytes` or `write_bytes`.
pub(crate) fn io_counter(pid: u32, name: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/io");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    Ok(value.with_context(|| format!("{path} has no {name}"))?.trim().parse()?)
}

/// Returns API address, key and network address from a log's ready line, if it has one by now.
fn ready(log: &str) -> Option<Result<(String, String, SocketAddr)>> {
    let line = log.lines().find(|line| line.starts_with("slipstream ready "))?;
    // The line may be incomplete: its last field is whole only once the newline is there.
    if !log[log.find(line)? + line.len()..].starts_with('\n') {
        return None;
    }
    let field = |name| line.split(' ').find_map(|field| field.strip_prefix(name));
    let parsed = || {
        let api = field("api=").context("no api= in the ready line")?;
        let (id, address) = field("network=")
            .and_then(|peer| peer.split_once('@'))
            .context("no network= in the ready line")?;
        Ok((api.to_owned(), id.to_owned(), address.parse()?))
    };
    Some(parsed())
}

fn yaml(genesis: &Path, options: &NodeOptions) -> Result<String> {
    let NodeOptions { mode, sync, executor, storage, consensus, snapshot_interval, network, peers } = options;
    let role = if consensus.is_empty() { "fullnode" } else { "validator" };
    let mut text = format!(
        "role: {role}\ngenesis: \"{}\"\nstorage:\n  snapshot_interval_batches: {snapshot_interval}\n{storage}\
         api:\n  listen: \"127.0.0.1:0\"\nsync:\n  mode: {mode}\n{sync}network:\n  listen: \"127.0.0.1:0\"\n  peers: [",
        genesis.display()
    );
    let nobody = PeerAddress { id: node_key("slipnet-bench-nobody", 0).public(), address: NOWHERE };
    let nobody = (peers.is_empty() && consensus.is_empty()).then(|| nobody.to_string());
    for peer in peers.iter().chain(&nobody) {
        write!(text, "\"{peer}\", ")?;
    }
    write!(text, "]\n{network}")?;
    if !executor.is_empty() {
        write!(text, "executor:\n{executor}")?;
    }
    if !consensus.is_empty() {
        write!(text, "consensus:\n{consensus}")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_line_counts_once_it_is_whole() {
        let line = "INFO x\nslipstream ready api=http://127.0.0.1:9 network=ab@127.0.0.1:7400";
        assert!(ready(line).is_none());
        let (api, id, address) = ready(&format!("{line}\nINFO y")).unwrap().unwrap();
        assert_eq!((api.as_str(), id.as_str(), address.port()), ("http://127.0.0.1:9", "ab", 7400));
        assert!(ready("slipstream ready api=http://x\n").unwrap().is_err());
    }
}
