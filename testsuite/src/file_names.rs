//! The names of the files in a devnet's directory and in each node's.

/// The chain's genesis, in the devnet's directory.
pub(crate) const GENESIS: &str = "genesis.json";
/// A node's configuration.
pub(crate) const CONFIG: &str = "node.yaml";
/// A node's secret key.
pub(crate) const KEY: &str = "node.key";
/// A node's data directory.
pub(crate) const DATA: &str = "data";
/// A file in the data directory, locked by the process that uses the directory.
pub(crate) const LOCK: &str = "LOCK";
/// A file in the data directory, with which a fault fills the disk. It holds no data.
pub(crate) const FILLER: &str = "filler";
/// What a node prints.
pub(crate) const LOG: &str = "log";
