//! The files that run a devnet's plan, or a scenario, beyond this machine. Nothing is started, and no network is used.
//!
//! ```text
//!  Plan ─────▶┐
//!             ├▶ Blueprint (nodes, keys, whom each dials, loads) ─┬─▶ compose: compose.yaml, a directory for each node
//!  Scenario ─▶┘                                                   └─▶ kubernetes: values.yaml for the chart, keys.yaml, genesis.json
//! ```
//!
//! A scenario's loads bring their figures to one more container, `slipnet judge`, which watches the nodes and judges the criteria. Nodes to
//! which something is done tell it whether that could be done.
//!
//! Where there is something between nodes, a sidecar with `slipnet relay` runs beside each of them, in its network. The node dials it on
//! loopback, and it relays to the other nodes by their names. A node to which something is done runs below `slipnet operate`, which does it.
//! What no file can do is told.

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

/// The port for peers of every node, which has an address of its own.
const PEERS_PORT: u16 = 7400;
/// The API's port of every node.
const API_PORT: u16 = 8545;
/// A node takes 64 peers by default, and is one itself.
const NODES_MAX: usize = 65;
/// The mode of files that their owner alone can read.
const PRIVATE: u32 = 0o600;
/// The name of the project, and of the release.
const NAME: &str = "devnet";
/// Images, as packaging/container builds them.
const NODE_IMAGE: &str = "slipstream";
const TOOLS_IMAGE: &str = "slipnet";
/// The variable with the start that loads and relays have in common, in seconds since 1970.
const START: &str = "SLIPNET_START";
/// The container that judges a scenario's criteria, and where loads and nodes bring what they have to tell.
const JUDGE: &str = "judge";
const JUDGE_PORT: u16 = 9100;
/// The scenario that it judges, as it reads it.
const SCENARIO: &str = "scenario.yaml";
/// Where a directory is that all nodes share.
pub(crate) const SHARED: &str = "/devnet/shared";
/// Where a load has its access lists.
const ACCESS_LISTS: &str = "/access-lists";
/// Where its report goes.
const REPORT: &str = "report";

/// Where a devnet is to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Target {
    /// A Compose file, with a directory for each node.
    Compose,
    /// Values for the Helm chart in packaging/helm.
    Kubernetes,
}

impl Target {
    /// Whether loads have access lists that are in a directory of this machine.
    pub(crate) fn has_lists(self) -> bool {
        self == Target::Compose
    }
}

/// What was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// Which files, and how they are used.
    pub usage: String,
    /// What was left out; it stands in the files too.
    pub notes: Vec<String>,
}

/// What is written, whatever it was made from.
pub(crate) struct Blueprint {
    pub(crate) dir: PathBuf,
    /// The first port on this machine at which Compose publishes APIs.
    pub(crate) base_port: Option<u16>,
    pub(crate) seed: String,
    pub(crate) validators: u32,
    pub(crate) accounts: u32,
    /// Those behind this many are attackers'.
    pub(crate) attackers_from: u32,
    pub(crate) extras: files::Extras,
    /// Validators first.
    pub(crate) members: Vec<Member>,
    pub(crate) jobs: Vec<Job>,
    /// Whether loads and relays have a start in common.
    pub(crate) is_timed: bool,
    /// Where a directory is that all nodes share, if they do.
    pub(crate) shared: Option<&'static str>,
    /// The scenario whose criteria are judged, as YAML; none of a devnet.
    pub(crate) judged: Option<String>,
    /// What the files do not do, a line for each.
    pub(crate) left_out: Vec<String>,
}

/// A node.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) key: SecretKey,
    pub(crate) region: Option<String>,
    /// Those that it dials.
    pub(crate) ways: Vec<Way>,
    /// Of its links, by where they listen.
    pub(crate) changes: Vec<Change>,
    /// What is done to it.
    pub(crate) orders: Vec<Order>,
    /// The attack whose servers stand before its peers; the first validator is known to them.
    pub(crate) among: Option<String>,
    /// The place of the node that tells it where its trust starts, in place of the genesis.
    pub(crate) waypoint_from: Option<usize>,
    /// The name of the program that it starts with, if that is another one than the current.
    pub(crate) program: Option<String>,
    /// MiB of the disk in memory that it has for itself; without it, as much as there is.
    pub(crate) disk_mib: Option<u64>,
    /// node.yaml without paths, ports, the role and peers.
    pub(crate) config: Value,
}

impl Member {
    /// Whether `slipnet operate` runs it: something is done to it, it asks for a waypoint, or it starts as another program.
    pub(crate) fn is_operated(&self) -> bool {
        !self.orders.is_empty() || self.waypoint_from.is_some() || self.program.is_some()
    }

    /// Whether programs of others run beside it.
    pub(crate) fn has_attackers(&self) -> bool {
        self.among.is_some() || self.orders.iter().any(|order| order.what.has_attackers())
    }
}

/// The way to a peer.
pub(crate) struct Way {
    /// The peer's place.
    pub(crate) to: usize,
    /// What its sidecar does; without it, it is dialled directly.
    pub(crate) shape: Option<Shape>,
}

/// A load.
pub(crate) struct Job {
    pub(crate) name: String,
    /// The phase of the scenario that it is, for the judge.
    pub(crate) phase: Option<String>,
    /// The places of those that take transactions. Commits are read from the first.
    pub(crate) submit: Vec<usize>,
    /// The places of those whose follow latency is read; the last of `submit` if there is none.
    pub(crate) followers: Vec<usize>,
    /// The directory of its access lists, on this machine.
    pub(crate) access_lists: Option<PathBuf>,
    /// Of `slipnet load`, without the nodes and the start.
    pub(crate) arguments: Vec<String>,
}

/// Writes the files into the plan's directory, and says how they are used.
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

/// What the files' readers have to know beside them.
fn notes(blueprint: &Blueprint) -> Vec<String> {
    let title = (!blueprint.left_out.is_empty()).then(|| "Left out of these files:".to_owned());
    title.into_iter().chain(blueprint.left_out.iter().cloned()).collect()
}

/// A comment and notes below it.
fn comment(text: &str, notes: &[String]) -> String {
    notes.iter().fold(text.to_owned(), |text, note| text + "\n" + note)
}

/// A node's configuration with its peers, and with the names of all nodes.
fn config(blueprint: &Blueprint, member: &Member, peers: &[String]) -> Value {
    let mut config = member.config.clone();
    config["network"]["peers"] = json!(peers);
    let names = blueprint.members.iter().map(|it| format!("{}={}", it.key.public(), it.name));
    config["network"]["names"] = names.collect();
    config
}

/// A value as YAML, each string on one line: folded ones would be read alike, by programs alone.
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

/// Writes a file that its owner alone can read, as keys are, also where others could read the one before.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    let file = File::options().create(true).truncate(true).write(true).mode(PRIVATE).open(path);
    let written = file.and_then(|mut file| {
        file.set_permissions(Permissions::from_mode(PRIVATE))?;
        file.write_all(text.as_bytes())
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// A node's directory, with its key.
fn write_member(dir: &Path, member: &Member) -> Result<PathBuf> {
    let dir = dir.join(&member.name);
    fs::create_dir_all(&dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
    devnet::write_key(&dir, &member.key)?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: keys that are written over a file that everybody could read are their owner's alone.
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
