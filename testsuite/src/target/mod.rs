//! The files that run a devnet's plan, or a scenario, beyond this machine. Nothing is started, and no network is used.
//!
//! ```text
//!  Plan ─────▶┐
//!             ├▶ Blueprint (nodes, keys, whom each dials, loads) ─┬─▶ compose: compose.yaml, a directory for each node
//!  Scenario ─▶┘                                                   └─▶ kubernetes: values.yaml for the chart, keys.yaml, genesis.json
//! ```
//!
//! A scenario's loads deliver their figures to one more container, `slipnet judge`, which watches the nodes and judges
//! the criteria. Nodes with orders report to it whether the orders were carried out.
//!
//! If nodes have relays, a sidecar with `slipnet relay` runs beside each of them, in its network. The node dials the
//! sidecar on loopback, and it relays to the other nodes by name. A node with orders runs under `slipnet operate`,
//! which carries them out. Whatever the files cannot do is reported.

mod arguments;
mod compose;
mod kubernetes;
mod plan;
mod programs;

use std::{
    fs::{self, File, Permissions},
    io::Write as _,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};
use slipstream_types::{SecretKey, limits::VALIDATORS_MAX};

pub(crate) use self::arguments::link_address;
use self::arguments::{escaped, judge, load, operator, peers, sidecar};
use crate::{
    accounts::Account,
    devnet::{self, files},
    lab::Plan,
    manifest::Role,
    operate::{ORDERS_MAX, Order, check_copies},
    relay::{CHANGES_MAX, Change, Shape},
};

/// The peers' port of every node; each node has its own address.
const PEERS_PORT: u16 = 7400;
/// The API's port of every node.
const API_PORT: u16 = 8545;
/// The most nodes: one node, and the 64 peers that it accepts by default.
const NODES_MAX: usize = 65;
/// The mode of files that only their owner can read.
const PRIVATE: u32 = 0o600;
/// The name of the Compose project, and of the Helm release.
const NAME: &str = "devnet";
/// The images that packaging/container builds.
const NODE_IMAGE: &str = "slipstream";
const TOOLS_IMAGE: &str = "slipnet";
/// The variable with the common start of loads and relays, in seconds since 1970.
const START: &str = "SLIPNET_START";
/// The container that judges a scenario's criteria, and its port for deliveries.
const JUDGE: &str = "judge";
const JUDGE_PORT: u16 = 9100;
/// The file name of the judge's scenario.
const SCENARIO: &str = "scenario.yaml";
/// The path of the directory that all nodes share.
pub(crate) const SHARED: &str = "/devnet/shared";
/// The path of a load's access lists.
const ACCESS_LISTS: &str = "/access-lists";
/// The directory of the judge's report.
const REPORT: &str = "report";

/// The environment in which a devnet should run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Target {
    /// A Compose file, with a directory for each node.
    Compose,
    /// Values for the Helm chart in packaging/helm.
    Kubernetes,
}

impl Target {
    /// Whether loads have access lists from a directory of this machine.
    pub(crate) fn has_lists(self) -> bool {
        self == Target::Compose
    }
}

/// The result of writing files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// The files, and how to use them.
    pub usage: String,
    /// Notes on what was left out, which are also in the files.
    pub notes: Vec<String>,
}

/// The input of a target, made from a plan or a scenario.
pub(crate) struct Blueprint {
    pub(crate) dir: PathBuf,
    /// The first port on this machine at which Compose publishes APIs.
    pub(crate) base_port: Option<u16>,
    pub(crate) seed: String,
    pub(crate) validators: u32,
    pub(crate) accounts: u32,
    /// The index of the first account of attackers.
    pub(crate) attackers_from: u32,
    pub(crate) extras: files::Extras,
    /// The nodes, validators first.
    pub(crate) members: Vec<Member>,
    pub(crate) jobs: Vec<Job>,
    /// Whether loads and relays have a common start.
    pub(crate) is_timed: bool,
    /// The path of the directory that all nodes share, if they do.
    pub(crate) shared: Option<&'static str>,
    /// The scenario whose criteria are judged, as YAML; `None` for a devnet.
    pub(crate) judged: Option<String>,
    /// Descriptions of what the files cannot do, one per line.
    pub(crate) left_out: Vec<String>,
}

/// A node.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) key: SecretKey,
    pub(crate) region: Option<String>,
    /// The nodes that it dials.
    pub(crate) ways: Vec<Way>,
    /// The changes of its links, by listening address.
    pub(crate) changes: Vec<Change>,
    /// The orders for it.
    pub(crate) orders: Vec<Order>,
    /// The attack whose servers come first in its peers; they know the first validator's API.
    pub(crate) among: Option<String>,
    /// The place of the node that gives it a waypoint, which replaces the genesis as the start of trust.
    pub(crate) waypoint_from: Option<usize>,
    /// The name of the program with which it starts, if not the current one.
    pub(crate) program: Option<String>,
    /// The MiB of its own in-memory disk; unlimited if `None`.
    pub(crate) disk_mib: Option<u64>,
    /// Its node.yaml without paths, ports, the role and peers.
    pub(crate) config: Value,
}

impl Member {
    /// Whether `slipnet operate` runs it: it has orders, needs a waypoint, or starts with another program.
    pub(crate) fn is_operated(&self) -> bool {
        !self.orders.is_empty() || self.waypoint_from.is_some() || self.program.is_some()
    }

    /// Whether attackers run beside it.
    pub(crate) fn has_attackers(&self) -> bool {
        self.among.is_some() || self.orders.iter().any(|order| order.what.has_attackers())
    }
}

/// The route to a peer.
pub(crate) struct Way {
    /// The peer's place.
    pub(crate) to: usize,
    /// The shape of its sidecar's link; `None` dials the peer directly.
    pub(crate) shape: Option<Shape>,
}

/// A load, which runs in its own container.
pub(crate) struct Job {
    pub(crate) name: String,
    /// Its phase in the scenario, for the judge.
    pub(crate) phase: Option<String>,
    /// The places of the nodes that get transactions. Commits are read from the first.
    pub(crate) submit: Vec<usize>,
    /// The places of the nodes whose follow latency is measured; if empty, the last of `submit`.
    pub(crate) followers: Vec<usize>,
    /// The directory of its access lists, on this machine.
    pub(crate) access_lists: Option<PathBuf>,
    /// The arguments of `slipnet load`, without the nodes and the start.
    pub(crate) arguments: Vec<String>,
}

/// Writes the files into the plan's directory, and returns how to use them.
///
/// # Errors
/// If the plan has no directory or too many nodes, or a file cannot be written.
pub fn write(target: Target, plan: &Plan) -> Result<String> {
    Ok(write_blueprint(target, &plan::blueprint(plan)?)?.usage)
}

/// Writes the files into the blueprint's directory.
///
/// # Errors
/// If there are too many nodes or changes, two names are the same, or a file cannot be written.
pub(crate) fn write_blueprint(target: Target, blueprint: &Blueprint) -> Result<Written> {
    let Blueprint { dir, seed, validators, members, .. } = blueprint;
    let count = members.len();
    ensure!(
        (1..=VALIDATORS_MAX).contains(&(*validators as usize)),
        "a devnet has 1 to {VALIDATORS_MAX} validators, not {validators}"
    );
    ensure!(count <= NODES_MAX, "{count} nodes are too many for these files: at most {NODES_MAX}");
    for Member { name, changes, orders, .. } in members {
        let count = changes.len();
        ensure!(
            count <= CHANGES_MAX,
            "the links of {name} change {count} times: at most {CHANGES_MAX} times"
        );
        let count = orders.len();
        ensure!(count <= ORDERS_MAX, "{count} faults meet {name}: at most {ORDERS_MAX} may");
        check_copies(orders).with_context(|| format!("the old data of {name}"))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
    let accounts = Account::derive_many(seed, blueprint.accounts);
    let genesis = files::genesis(seed, *validators, &accounts);
    files::write_genesis(&genesis, blueprint.extras, dir)?;
    programs::write(blueprint)?;
    match target {
        Target::Compose => compose::write(blueprint),
        Target::Kubernetes => kubernetes::write(blueprint),
    }
}

/// Returns the notes for the files' readers.
fn notes(blueprint: &Blueprint) -> Vec<String> {
    let title = (!blueprint.left_out.is_empty()).then(|| "Left out of these files:".to_owned());
    title.into_iter().chain(blueprint.left_out.iter().cloned()).collect()
}

/// Joins a comment and the notes below it.
fn comment(text: &str, notes: &[String]) -> String {
    notes.iter().fold(text.to_owned(), |text, note| text + "\n" + note)
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
pub(crate) fn yaml(value: &Value) -> Result<String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    Ok(serde_saphyr::to_string_with_options(value, options)?)
}

/// Writes a value as YAML, below a comment.
fn write_yaml(path: &Path, comment: &str, value: &Value) -> Result<()> {
    let text = yaml(value).with_context(|| format!("cannot write {}", path.display()))?;
    let comment: String = comment.lines().map(|line| format!("# {line}\n")).collect();
    fs::write(path, comment + &text).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file that only its owner can read, such as a key, even if an existing file was readable by others.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    let file = File::options().create(true).truncate(true).write(true).mode(PRIVATE).open(path);
    let written = file.and_then(|mut file| {
        file.set_permissions(Permissions::from_mode(PRIVATE))?;
        file.write_all(text.as_bytes())
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Creates a node's directory with its key.
fn write_member(dir: &Path, member: &Member) -> Result<PathBuf> {
    let dir = dir.join(&member.name);
    fs::create_dir_all(&dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
    devnet::write_key(&dir, &member.key)?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a key that replaces a world-readable file is readable by its owner alone.
    #[test]
    fn keys_are_private_whatever_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(files::KEY);
        fs::write(&path, "longer than the key that comes, which is cut off").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        write_private(&path, "a key").unwrap();
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(), fs::read_to_string(&path).unwrap().as_str()), (PRIVATE, "a key"));
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        devnet::write_key(dir.path(), &SecretKey::from_seed([7; 32])).unwrap();
        assert_eq!(mode(), PRIVATE);
    }
}
