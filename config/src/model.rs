//! [`NodeConfig`] and the sections that no other crate owns.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::{NonZeroU64, NonZeroUsize},
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

/// What a node does for its chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Executes, votes and certifies; its key stands in the chain's validator set.
    Validator,
    /// Follows certified batches, serves them and answers clients.
    Fullnode,
}

impl Role {
    /// As it stands in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Role::Validator => "validator",
            Role::Fullnode => "fullnode",
        }
    }
}

/// Everything that one node is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Validator or fullnode. There is no default: the two need different things.
    pub role: Role,
    /// Where the database and the lock file live. Default: `data`, beside the configuration file.
    #[serde(default = "default_data_dir")]
    pub data_dir: PathBuf,
    /// The chain's genesis file (JSON).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub genesis: Option<PathBuf>,
    /// A ledger position that the operator trusts, instead of or beside the genesis file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waypoint: Option<Waypoint>,
    /// The chain's schedule of forks (JSON). None if the rules are those of the genesis for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<PathBuf>,
    /// The node's ed25519 seed in hexadecimal. Default: `node.key`, beside the configuration file.
    #[serde(default = "default_key_file")]
    pub key_file: PathBuf,
    /// Peers and limits towards them.
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
    /// What is written to standard error.
    #[serde(default)]
    pub log: LogConfig,
}

fn default_data_dir() -> PathBuf {
    "data".into()
}

fn default_key_file() -> PathBuf {
    "node.key".into()
}

/// The HTTP side: JSON-RPC at `POST /`, `/v1/status`, `/metrics` and `/health`, all on one port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiConfig {
    /// Where to listen. Default: loopback, because nothing here asks who is calling.
    pub listen: SocketAddr,
    /// Longest request body. Default: 2 MiB, a batch of a hundred ordinary transactions or several of the largest.
    pub max_body_bytes: usize,
    /// JSON-RPC requests at a time; more are refused. Of connections there may be 16 more, and the one that has asked for nothing for
    /// longest makes way for a new one. Default: 256, which leaves most open files to the database.
    pub max_connections: NonZeroUsize,
    /// Connections of one address at a time, an IPv6 /64 being one; not of 127.0.0.1, ::1 or `trusted_addresses`. Default: 64, a quarter of
    /// `max_connections`: more than a wallet, a page or an indexer opens.
    pub max_connections_per_address: NonZeroUsize,
    /// Addresses of the operator's own proxies and monitors. Like 127.0.0.1 and ::1 they have no bound of their own, and strangers leave them
    /// connections, calls and room for answers. Default: none.
    pub trusted_addresses: Vec<IpAddr>,
    /// Longest time that an `eth_call`, or another method that runs calls, may take. Default: 5000, as in geth.
    pub call_time_max_ms: NonZeroU64,
    /// Longest time that a `debug_trace…` or `trace_…` may take; it executes batches once more. Default: 10000, of the 25 s that a request has.
    pub trace_time_max_ms: NonZeroU64,
    /// Memory that one such request may fill with what it traces, its answer included, in MiB. Default: 64, of which an answer of 25 MB is made;
    /// two are made at a time.
    pub trace_mib_max: NonZeroU64,
    /// Whether web pages of any origin may call. Default: no.
    pub cors: bool,
    /// Names under which the node may be called beside IP addresses and `localhost`, without port; `*` for all. Default: none, so that
    /// no web page can have its own name resolve to this node and call it.
    pub allowed_hosts: Vec<String>,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8545).into(),
            max_body_bytes: 2 << 20,
            max_connections: NonZeroUsize::new(256).expect("256 is not zero"),
            max_connections_per_address: NonZeroUsize::new(64).expect("64 is not zero"),
            trusted_addresses: Vec::new(),
            call_time_max_ms: NonZeroU64::new(5_000).expect("5,000 is not zero"),
            trace_time_max_ms: NonZeroU64::new(10_000).expect("10,000 is not zero"),
            trace_mib_max: NonZeroU64::new(64).expect("64 is not zero"),
            cors: false,
            allowed_hosts: Vec::new(),
        }
    }
}

/// Logging.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Levels by module, as `tracing-subscriber` reads them. Default: `info`. The environment's `RUST_LOG` overrides it.
    pub filter: String,
    /// How lines look. Default: `text`.
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { filter: "info".into(), format: LogFormat::Text }
    }
}

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for collectors.
    Json,
}
