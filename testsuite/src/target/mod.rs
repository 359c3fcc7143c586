//! The files that run a devnet beyond this machine. Nothing is started, and no network is used.
//!
//! ```text
//!  Plan ─▶ Blueprint (nodes, keys, whom each dials, a load) ─┬─▶ compose: compose.yaml, a directory for each node
//!                                                            └─▶ kubernetes: values.yaml for the chart, keys.yaml, genesis.json
//! ```
//!
//! Where links have a delay, loss or a bandwidth, a sidecar with `slipnet relay` runs beside each node, in its network
//! namespace. The node dials the sidecar on loopback, and the sidecar relays to the other nodes by their names.

mod arguments;
mod compose;
mod kubernetes;
mod plan;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};
use slipstream_types::{SecretKey, limits::VALIDATORS_MAX};

use self::arguments::{escaped, load, peers, sidecar};
use crate::{
    accounts::Account,
    devnet::{self, files},
    manifest::Role,
    plan::Plan,
    relay::Shape,
};

/// The peers' port of every node; each node has its own address.
const PEERS_PORT: u16 = 7400;
/// The API's port of every node.
const API_PORT: u16 = 8545;
/// The most nodes: one node, and the 64 peers that it accepts by default.
const NODES_MAX: usize = 65;
/// The name of the Compose project, and of the Helm release.
const NAME: &str = "devnet";
/// The images that packaging/container builds.
const NODE_IMAGE: &str = "slipstream";
const TOOLS_IMAGE: &str = "slipnet";
/// Where a devnet is to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Target {
    /// A Compose file, with a directory for each node.
    Compose,
    /// Values for the Helm chart in packaging/helm.
    Kubernetes,
}

/// What is written, for either target.
struct Blueprint {
    dir: PathBuf,
    /// The first port on this machine at which Compose publishes APIs.
    base_port: Option<u16>,
    seed: String,
    validators: u32,
    accounts: u32,
    extras: files::Extras,
    /// Validators first.
    members: Vec<Member>,
    load: Load,
}

/// A node.
struct Member {
    name: String,
    role: Role,
    key: SecretKey,
    region: Option<String>,
    /// The links to the peers that it dials.
    ways: Vec<Way>,
    /// node.yaml without paths, ports, the role and peers.
    config: Value,
}

/// The link to a peer.
struct Way {
    /// The peer's place among the members.
    to: usize,
    /// The shape that the sidecar gives the link; `None` if the node dials the peer directly.
    shape: Option<Shape>,
}

/// The load generator.
struct Load {
    /// The places of the nodes that take transactions. Commits are read from the first.
    submit: Vec<usize>,
    /// Arguments of `slipnet load`, without the nodes.
    arguments: Vec<String>,
}

/// Writes the files into the plan's directory. Returns a text that names them and says how they are used.
///
/// # Errors
/// If the plan has no directory or too many nodes, or a file cannot be written.
pub fn write(target: Target, plan: &Plan) -> Result<String> {
    let blueprint = plan::blueprint(plan)?;
    let Blueprint { dir, seed, validators, members, .. } = &blueprint;
    let count = members.len();
    ensure!(
        (1..=VALIDATORS_MAX).contains(&(*validators as usize)),
        "a devnet has 1 to {VALIDATORS_MAX} validators, not {validators}"
    );
    ensure!(count <= NODES_MAX, "{count} nodes are too many for these files: at most {NODES_MAX}");
    fs::create_dir_all(dir).with_context(|| format!("cannot create the directory {}", dir.display()))?;
    let accounts = Account::derive_many(seed, blueprint.accounts);
    let genesis = files::genesis(seed, *validators, &accounts);
    files::write_genesis(&genesis, blueprint.extras, dir)?;
    match target {
        Target::Compose => compose::write(&blueprint),
        Target::Kubernetes => kubernetes::write(&blueprint),
    }
}

/// Returns a node's configuration with its peers, and with the names of all nodes.
fn config(blueprint: &Blueprint, member: &Member, peers: &[String]) -> Value {
    let mut config = member.config.clone();
    config["network"]["peers"] = json!(peers);
    let names = blueprint.members.iter().map(|it| format!("{}={}", it.key.public(), it.name));
    config["network"]["names"] = names.collect();
    config
}

/// Formats a value as YAML, with each string on one line: only programs could read folded ones.
fn yaml(value: &Value) -> Result<String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    Ok(serde_saphyr::to_string_with_options(value, options)?)
}

/// Writes a value as YAML, below a comment.
fn write_yaml(path: &Path, comment: &str, value: &Value) -> Result<()> {
    let text = yaml(value).with_context(|| format!("cannot write {}", path.display()))?;
    let comment: String = comment.lines().map(|line| format!("# {line}\n")).collect();
    fs::write(path, comment + &text).with_context(|| format!("cannot write {}", path.display()))
}

/// Creates a node's directory with its key.
fn write_member(dir: &Path, member: &Member) -> Result<PathBuf> {
    let dir = dir.join(&member.name);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create the directory {}", dir.display()))?;
    devnet::write_key(&dir, &member.key)?;
    Ok(dir)
}
