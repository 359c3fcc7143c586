//! [`NodeConfig`] and the sections that no other crate owns.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};
use slipstream_broadcast::BroadcastConfig;
use slipstream_consensus::ConsensusConfig;
use slipstream_executor::ExecutorConfig;
use slipstream_network::NetworkConfig;
use slipstream_storage::StorageConfig;
use slipstream_sync::SyncConfig;
use slipstream_types::Waypoint;

use crate::Preset;

/// What a node does for its chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Executes, votes and certifies; the chain's validator set names its key.
    Validator,
    /// Follows certified batches, serves them and answers clients.
    Fullnode,
}

impl Role {
    /// Returns the name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Role::Validator => "validator",
            Role::Fullnode => "fullnode",
        }
    }
}

/// The whole configuration of one node.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// `validator`: executes, votes and certifies in the epochs whose set names its key, and follows in the others; on
    /// a chain whose validators never change, the genesis must name its key. `fullnode`: follows, serves and answers
    /// clients.
    #[serde(default = "unsaid_role")]
    pub role: Role,
    /// `validator`, `fullnode`, `archive` or `light`: values for this kind of node, [which the file
    /// overrides](#presets).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Database (`db`), users' transactions (`transactions.journal`), lock file (`LOCK`), the operator's token
    /// (`operator.token`) and orders on peers (`operator.peers.json`), the node's own bans (`node.bans.json`), and
    /// notes of the last failure (`last_failure.txt`, `last_panic.txt`). Created at the first start, after all other
    /// checks.
    #[serde(default = "default_data_dir")]
    pub data_dir: PathBuf,
    /// The chain's genesis file (JSON). A validator needs it; a fullnode needs it or a waypoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub genesis: Option<PathBuf>,
    /// `NUMBER:0xHASH`, a certified position that you trust, as `slipstream status` prints it. For a fullnode it is
    /// enough by itself: the node fetches the genesis from peers, and the waypoint proves it. The ledger must pass
    /// through the waypoint, by batches or by a snapshot's proof; otherwise the node stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub waypoint: Option<Waypoint>,
    /// The chain's [schedule of forks](#the-schedule-of-forks) (JSON). Without one, the rules of the genesis never change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<PathBuf>,
    /// The node's ed25519 seed, 64 hexadecimal digits, mode 0600. Its public key is the node's identity as a peer and
    /// as a validator. Never use the same key on two nodes.
    #[serde(default = "default_key_file")]
    pub key_file: PathBuf,
    /// Peers, and limits for them.
    #[serde(default)]
    pub network: NetworkConfig,
    /// How new batches spread.
    #[serde(default)]
    pub broadcast: BroadcastConfig,
    /// The database.
    #[serde(default)]
    pub storage: StorageConfig,
    /// The EVM and prefetching.
    #[serde(default)]
    pub executor: ExecutorConfig,
    /// Following the chain.
    #[serde(default)]
    pub sync: SyncConfig,
    /// Batching, voting and the transaction pool.
    #[serde(default)]
    pub consensus: ConsensusConfig,
    /// JSON-RPC, status and metrics.
    #[serde(default)]
    pub api: ApiConfig,
    /// Output to standard error, and to a file.
    #[serde(default)]
    pub log: LogConfig,
}

impl Default for NodeConfig {
    /// Every key's default, for a fullnode.
    fn default() -> Self {
        NodeConfig {
            role: unsaid_role(),
            preset: None,
            data_dir: default_data_dir(),
            genesis: None,
            waypoint: None,
            schedule: None,
            key_file: default_key_file(),
            network: NetworkConfig::default(),
            broadcast: BroadcastConfig::default(),
            storage: StorageConfig::default(),
            executor: ExecutorConfig::default(),
            sync: SyncConfig::default(),
            consensus: ConsensusConfig::default(),
            api: ApiConfig::default(),
            log: LogConfig::default(),
        }
    }
}

impl NodeConfig {
    /// Returns every path in the configuration, with its key.
    pub fn paths_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut PathBuf)> {
        let always = [("data_dir", &mut self.data_dir), ("key_file", &mut self.key_file)];
        let genesis = self.genesis.as_mut().map(|path| ("genesis", path));
        let schedule = self.schedule.as_mut().map(|path| ("schedule", path));
        let log = self.log.file.path.as_mut().map(|path| ("log.file.path", path));
        always.into_iter().chain(genesis).chain(schedule).chain(log)
    }
}

/// A layer may leave the role out; [`crate::load`] refuses a configuration where every layer does.
fn unsaid_role() -> Role {
    Role::Fullnode
}

fn default_data_dir() -> PathBuf {
    "data".into()
}

fn default_key_file() -> PathBuf {
    "node.key".into()
}

/// The HTTP side: JSON-RPC at `POST /` and over WebSocket, `/v1/status`, `/metrics` and `/health`, all on one port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApiConfig {
    /// The API does not authenticate callers, so the default is loopback. Put a proxy in front of it to open it to
    /// others.
    pub listen: SocketAddr,
    /// Longest request, in bytes: enough for all state that one call may override, or for many of the largest
    /// transactions. At least 263168; otherwise the largest transaction does not fit. The default is geth's.
    pub max_body_bytes: usize,
    /// JSON-RPC requests at a time that are processed, wait for processing, or have their answer read; more are refused
    /// with status 503. At most three quarters may be calls that compute, search, wait for receipts, or come in an
    /// array of more than 32; at most a quarter may wait for receipts. So short calls find places however many long
    /// ones exist. 16 more connections are allowed, so that `/health` and `/metrics` still answer. When all are taken,
    /// a new connection displaces the longest idle one, then one that is still sending its request; of equally idle
    /// ones, one of the address that has the most; then a call that has not begun, of an address that has more. If none
    /// can be closed, at most 64 newcomers wait for 5 seconds. The default leaves most open files to the database.
    pub max_connections: NonZeroUsize,
    /// Connections of one address at a time; an IPv6 /64 is one address. A further connection displaces the address's
    /// own longest idle one, or is closed. 127.0.0.1, ::1 and `trusted_addresses` have no such bound. The default, a
    /// quarter of `max_connections`, is more than a wallet, a page or an indexer opens.
    pub max_connections_per_address: NonZeroUsize,
    /// IP addresses of the operator's own proxies and monitors. Like 127.0.0.1 and ::1 they have no bound per address,
    /// and strangers leave them 8 connections, an eighth of the calls and an eighth of the memory for long answers. All
    /// requests through a proxy count as one caller: the proxy must limit each of its callers.
    pub trusted_addresses: Vec<IpAddr>,
    /// Longest time that an `eth_call`, `eth_estimateGas`, `eth_createAccessList` or `eth_simulateV1` may run, like
    /// geth's `--rpc.evmtimeout`.
    pub call_time_max_ms: NonZeroU64,
    /// Longest time that an `eth_sendRawTransactionSync` waits for its receipt. A request without a time, or with one
    /// that is not allowed, waits for 2 seconds, or for this time if it is shorter. The default is geth's.
    pub send_sync_time_max_ms: NonZeroU64,
    /// Longest time that a `debug_trace…` or `trace_…` may run, of the 25 seconds that a request has. It executes one
    /// batch or several once more, slower than the first time.
    pub trace_time_max_ms: NonZeroU64,
    /// Memory that one such request may use, in MiB: the tracer's data, the answer and its text. The longest answer, 25
    /// MB, fits. Two run at a time.
    pub trace_mib_max: NonZeroU64,
    /// Whether web pages of any origin may call the node, and open WebSockets. A page must still use a host name that
    /// `allowed_hosts` permits.
    pub cors: bool,
    /// Host names under which the node may be called, in addition to IP addresses and `localhost`, such as
    /// `node1.example`, without port; `"*"` allows all. Requests for other names get status 403, on every path:
    /// otherwise any web page could make its own name resolve to this node, even on loopback, and call it. A proxy, or
    /// Prometheus, that calls the node by a name needs that name here.
    pub allowed_hosts: Vec<String>,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8545).into(),
            max_body_bytes: 5 << 20,
            max_connections: NonZeroUsize::new(256).expect("256 is not zero"),
            max_connections_per_address: NonZeroUsize::new(64).expect("64 is not zero"),
            trusted_addresses: Vec::new(),
            call_time_max_ms: NonZeroU64::new(5_000).expect("5,000 is not zero"),
            send_sync_time_max_ms: NonZeroU64::new(20_000).expect("20,000 is not zero"),
            trace_time_max_ms: NonZeroU64::new(10_000).expect("10,000 is not zero"),
            trace_mib_max: NonZeroU64::new(64).expect("64 is not zero"),
            cors: false,
            allowed_hosts: Vec::new(),
        }
    }
}

/// Logging.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Levels by module, for example `info,slipstream_sync=debug`. The environment variable `RUST_LOG` overrides it; both are
    /// checked.
    pub filter: String,
    /// `text` for people, `json` for collectors: one object per line.
    pub format: LogFormat,
    /// A file that gets the same lines as standard error.
    pub file: LogFileConfig,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { filter: "info".into(), format: LogFormat::Text, file: LogFileConfig::default() }
    }
}

/// A log file and its earlier files, which take at most `mib_max` times (`files_kept` plus one).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogFileConfig {
    /// A file that gets the same lines as standard error, in an existing directory; earlier files are beside it, as
    /// `PATH.1`, `PATH.2` and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Size at which a new file begins, in MiB. A week of a healthy node at `info` fits.
    pub mib_max: NonZeroU32,
    /// Number of earlier files that are kept; 0 keeps none. All files take at most `mib_max` times (`files_kept` plus
    /// one).
    pub files_kept: u32,
}

impl Default for LogFileConfig {
    fn default() -> Self {
        Self { path: None, mib_max: NonZeroU32::new(64).expect("64 is not zero"), files_kept: 4 }
    }
}

/// The format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line, for collectors.
    Json,
}
