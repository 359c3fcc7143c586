//! [`write()`]: the files that run a devnet's plan beyond this machine. Nothing is started, and no network is used.
//!
//! ```text
//!  Plan ──▶ members (names, keys, whom each dials) ─┬─▶ compose: compose.yaml, a directory for each node
//!                                                   └─▶ kubernetes: values.yaml for the chart, keys.yaml, genesis.json
//! ```
//!
//! Where the plan has regions, a sidecar with `slipnet relay` runs beside each node, in its network. The node dials it on loopback,
//! and it relays to the other nodes by their names.

mod compose;
mod kubernetes;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};
use slipstream_types::{SecretKey, limits::VALIDATORS_MAX};

use crate::{
    accounts::{self, Account},
    devnet::{self, files},
    lab::Plan,
    manifest::Role,
    relay::Link,
};

/// The port for peers of every node, which has an address of its own.
const PEERS_PORT: u16 = 7400;
/// The API's port of every node.
const API_PORT: u16 = 8545;
/// The first port of a sidecar; the place of the node that a link leads to is added.
const LINK_PORT: u16 = 10_000;
/// A node takes 64 peers by default, and is one itself.
const NODES_MAX: u32 = 65;
/// The name of the project, and of the release.
const NAME: &str = "devnet";
/// Images, as packaging/container builds them.
const NODE_IMAGE: &str = "slipstream";
const TOOLS_IMAGE: &str = "slipnet";
/// What the load generator's job sends: transactions a second, and for how long. Its command line stands in the written file.
const LOAD_TPS: u32 = 500;
const LOAD_DURATION: &str = "60s";
/// Accounts that it sends from, at most.
const LOAD_ACCOUNTS_MAX: u32 = 200;

/// Where a devnet is to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Target {
    /// A Compose file, with a directory for each node.
    Compose,
    /// Values for the Helm chart in packaging/helm.
    Kubernetes,
}

/// A node of the plan.
struct Member {
    name: String,
    role: Role,
    key: SecretKey,
    /// Its place.
    index: usize,
    /// The places of those that it dials.
    peers: Vec<usize>,
}

/// Writes the files into the plan's directory, and says how they are used.
///
/// # Errors
/// If the plan has no directory or too many nodes, or a file cannot be written.
pub fn write(target: Target, plan: &Plan) -> Result<String> {
    let dir = plan.devnet.dir.as_deref().context("name the directory for the files with --dir")?;
    let members = members(plan)?;
    fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
    let accounts = Account::derive_many(&plan.devnet.seed, plan.devnet.accounts);
    let genesis = files::genesis(&plan.devnet.seed, plan.devnet.validators, &accounts);
    files::write_genesis(&genesis, files::Extras::of(&plan.devnet), dir)?;
    match target {
        Target::Compose => compose::write(dir, plan, &members),
        Target::Kubernetes => kubernetes::write(dir, plan, &members),
    }
}

fn members(plan: &Plan) -> Result<Vec<Member>> {
    let (validators, fullnodes) = (plan.devnet.validators, plan.devnet.fullnodes);
    ensure!(
        (1..=VALIDATORS_MAX).contains(&(validators as usize)),
        "a devnet has 1 to {VALIDATORS_MAX} validators, not {validators}"
    );
    let count = validators.saturating_add(fullnodes);
    ensure!(count <= NODES_MAX, "{count} nodes are too many for these files: at most {NODES_MAX}");
    ensure!(plan.devnet.accounts > 1, "a load needs at least two accounts: raise --accounts");
    let member = |place: u32| {
        let (role, name) = devnet::seat(place, validators);
        let index = place as usize;
        let dials = |other: &usize| devnet::dials(index, *other, validators as usize);
        let peers = (0..count as usize).filter(dials).collect();
        Member { name, role, key: accounts::node_key(&plan.devnet.seed, place), index, peers }
    };
    Ok((0..count).map(member).collect())
}

/// The entries of a node's `network.peers`, given under which name each node is reached.
fn peers(plan: &Plan, members: &[Member], member: &Member, host: impl Fn(&Member) -> String) -> Vec<String> {
    let entry = |index: &usize| {
        let peer = &members[*index];
        let address = match plan.regions.is_empty() {
            true => format!("{}:{PEERS_PORT}", host(peer)),
            false => link_address(peer).to_string(),
        };
        format!("{}@{address}", peer.key.public())
    };
    member.peers.iter().map(entry).collect()
}

/// Where a node's sidecar listens for what goes to this peer.
fn link_address(peer: &Member) -> std::net::SocketAddr {
    // The number of nodes is bounded far below the ports that are left.
    let port = LINK_PORT + u16::try_from(peer.index).unwrap_or(u16::MAX - LINK_PORT);
    ([127, 0, 0, 1], port).into()
}

/// The arguments of a node's sidecar; none if the plan has no regions.
fn sidecar(
    plan: &Plan,
    members: &[Member],
    member: &Member,
    host: impl Fn(&Member) -> String,
) -> Option<Vec<String>> {
    let region = plan.region(member.index)?;
    let mut arguments = vec!["relay".to_owned(), "--seed".to_owned(), plan.devnet.seed.clone()];
    for index in &member.peers {
        let peer = &members[*index];
        let shape = region.link(plan.region(peer.index)?);
        let link = Link { listen: link_address(peer), target: format!("{}:{PEERS_PORT}", host(peer)), shape };
        arguments.extend(["--link".to_owned(), link.to_string()]);
    }
    Some(arguments)
}

/// The arguments of the load generator. Commits are read from the first validator; the last fullnode, if there is one, is the follower.
fn load(plan: &Plan, members: &[Member], host: impl Fn(&Member) -> String) -> Vec<String> {
    let submit = members.iter().filter(|member| member.role == Role::Validator);
    let follower = members.last().filter(|member| member.role == Role::Fullnode);
    let apis = submit
        .chain(follower)
        .flat_map(|member| ["--api".to_owned(), format!("http://{}:{API_PORT}", host(member))]);
    let mut arguments = vec!["load".to_owned()];
    arguments.extend(apis);
    let accounts = plan.devnet.accounts.min(LOAD_ACCOUNTS_MAX);
    let rest = [
        ("--seed", plan.devnet.seed.clone()),
        ("--accounts", accounts.to_string()),
        ("--tps", LOAD_TPS.to_string()),
        ("--duration", LOAD_DURATION.to_owned()),
    ];
    arguments.extend(rest.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
    arguments
}

/// What the plan says of every node's configuration, and its peers.
fn config(plan: &Plan, peers: &[String]) -> Value {
    let options = &plan.devnet;
    let mut config = json!({
        "network": { "peers": peers },
        "storage": { "snapshot_interval_batches": options.snapshot_interval_batches },
        "sync": { "mode": options.sync_mode.name() },
        "log": { "filter": options.log_filter },
    });
    if !plan.regions.is_empty() {
        // What peers tell of lies behind the relays.
        config["network"]["outbound"] = json!(0);
    }
    if let Some(mib) = options.block_cache_mib {
        config["storage"]["block_cache_mib"] = json!(mib);
    }
    if let Some(states) = options.state_history {
        config["storage"]["state_history"] = json!(states);
    }
    config
}

/// A value as YAML, each string on one line: folded ones would be read alike, by programs alone.
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
    use crate::{devnet::DevnetOptions, relay::Region};

    fn plan(regions: &[Region]) -> Plan {
        let devnet = DevnetOptions { validators: 2, fullnodes: 2, ..DevnetOptions::default() };
        Plan { devnet, regions: regions.to_vec() }
    }

    /// Goal: nodes dial as those of a devnet on this machine do, directly or through their sidecars.
    #[test]
    fn peers_are_those_of_a_devnet() {
        let host = |member: &Member| member.name.clone();
        let plain = plan(&[]);
        let members = members(&plain).unwrap();
        let of = |plan: &Plan, index: usize| peers(plan, &members, &members[index], host);
        let key = |index: usize| members[index].key.public();
        assert_eq!(of(&plain, 0), [format!("{}@validator-1:7400", key(1))]);
        assert_eq!(of(&plain, 3).len(), 3);
        assert!(sidecar(&plain, &members, &members[0], host).is_none());

        let far = plan(&[Region::Eu, Region::Ap]);
        assert_eq!(of(&far, 0), [format!("{}@127.0.0.1:10001", key(1))]);
        let arguments = sidecar(&far, &members, &members[0], host).unwrap();
        assert_eq!(
            arguments,
            [
                "relay",
                "--seed",
                "slipnet",
                "--link",
                "127.0.0.1:10001=validator-1:7400,delay=80ms,jitter=1.6ms"
            ]
        );
        assert_eq!(config(&far, &[])["network"]["outbound"], 0);
    }

    #[test]
    fn a_plan_that_cannot_be_is_refused() {
        let refused = |plan: &Plan| write(Target::Compose, plan).unwrap_err().to_string();
        let mut plan = plan(&[]);
        assert!(refused(&plan).contains("--dir"));
        plan.devnet.dir = Some(PathBuf::from("/nonexistent"));
        plan.devnet.fullnodes = 100;
        assert!(refused(&plan).contains("102 nodes are too many"));
        plan.devnet.validators = 0;
        assert!(refused(&plan).contains("validators, not 0"));
    }
}
