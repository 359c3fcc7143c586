//! Converts a devnet's plan to the [`Blueprint`] of its files.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Blueprint, Load, Member, Way, files};
use crate::{accounts, devnet, manifest::Role, plan::Plan};

/// The transactions per second and the duration of the load generator's job. Its command line is in the written file.
const LOAD_TPS: u32 = 500;
const LOAD_DURATION: &str = "60s";
/// The most accounts from which the load generator sends.
const LOAD_ACCOUNTS_MAX: u32 = 200;

pub(super) fn blueprint(plan: &Plan) -> Result<Blueprint> {
    let options = &plan.devnet;
    let dir = options.dir.clone().context("name the directory for the files with --dir")?;
    ensure!(options.accounts > 1, "a load needs at least two accounts: raise --accounts");
    // This avoids making a key for each of four billion nodes: the count is checked again later.
    let count = options.validators.saturating_add(options.fullnodes);
    ensure!(
        count as usize <= super::NODES_MAX,
        "{count} nodes are too many for these files: at most {}",
        super::NODES_MAX
    );
    let members: Vec<Member> = (0..count).map(|place| member(plan, place, count)).collect();
    Ok(Blueprint {
        dir,
        base_port: options.base_port,
        seed: options.seed.clone(),
        validators: options.validators,
        accounts: options.accounts,
        extras: files::Extras::of(options),
        load: load(plan, &members),
        members,
    })
}

fn member(plan: &Plan, place: u32, count: u32) -> Member {
    let validators = plan.devnet.validators;
    let (role, name) = devnet::seat(place, validators);
    let index = place as usize;
    let region = plan.region(index);
    let dialled = (0..count as usize).filter(|other| devnet::dials(index, *other, validators as usize));
    let ways = dialled.map(|to| Way { to, shape: plan.shape(index, to) }).collect();
    Member {
        name,
        role,
        key: accounts::node_key(&plan.devnet.seed, place),
        region: region.map(|region| region.name().to_owned()),
        ways,
        config: config(plan),
    }
}

/// Commits are read from the first validator; the last fullnode, if there is one, is the follower.
fn load(plan: &Plan, members: &[Member]) -> Load {
    let mut submit: Vec<usize> = (0..plan.devnet.validators as usize).collect();
    submit.extend(members.len().checked_sub(1).filter(|last| members[*last].role == Role::Fullnode));
    let accounts = plan.devnet.accounts.min(LOAD_ACCOUNTS_MAX);
    let arguments = [
        ("--seed", plan.devnet.seed.clone()),
        ("--accounts", accounts.to_string()),
        ("--tps", LOAD_TPS.to_string()),
        ("--duration", LOAD_DURATION.to_owned()),
    ];
    let arguments = arguments.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
    Load { submit, arguments }
}

/// Returns the plan's part of every node's configuration.
fn config(plan: &Plan) -> Value {
    let options = &plan.devnet;
    let mut config = json!({
        "network": {},
        "storage": { "snapshot_interval_batches": options.snapshot_interval_batches },
        "sync": { "mode": options.sync_mode.name() },
        "log": { "filter": options.log_filter },
    });
    if plan.has_relays() {
        // Announced addresses bypass the relays.
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

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU64, path::PathBuf};

    use super::*;
    use crate::{
        devnet::DevnetOptions,
        relay::{Limits, Region},
        target::{Target, peers, sidecar, write},
    };

    fn plan(regions: &[Region]) -> Plan {
        let devnet = DevnetOptions {
            validators: 2,
            fullnodes: 2,
            dir: Some(PathBuf::from("/nonexistent")),
            ..DevnetOptions::default()
        };
        Plan { devnet, regions: regions.to_vec(), limits: Limits::default() }
    }

    /// Goal: nodes dial the same peers as in a devnet on this machine, directly or through their sidecars.
    #[test]
    fn peers_are_those_of_a_devnet() {
        let host = |member: &Member| member.name.clone();
        let of = |blueprint: &Blueprint, index: usize| peers(blueprint, &blueprint.members[index], host);
        let plain = blueprint(&plan(&[])).unwrap();
        let key = |index: usize| plain.members[index].key.public();
        assert_eq!(of(&plain, 0), [format!("{}@validator-1:7400", key(1))]);
        assert_eq!(of(&plain, 3).len(), 3);
        assert!(sidecar(&plain, &plain.members[0], host).is_none());
        assert_eq!(plain.load.submit, [0, 1, 3]);

        let far = blueprint(&plan(&[Region::Eu, Region::Ap])).unwrap();
        assert_eq!(of(&far, 0), [format!("{}@127.0.0.1:10001", key(1))]);
        let arguments = sidecar(&far, &far.members[0], host).unwrap();
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
        assert_eq!(far.members[0].config["network"]["outbound"], 0);
    }

    /// Goal: the limits of links reach the sidecars, with regions and without.
    #[test]
    fn limits_go_to_the_sidecars() {
        let host = |member: &Member| member.name.clone();
        let limits = Limits { loss: 0.005, kib_per_second: NonZeroU64::new(4) };
        for (regions, said) in [
            (&[][..], "127.0.0.1:10001=validator-1:7400,bandwidth=4096,loss=0.005"),
            (
                &[Region::Eu, Region::Ap][..],
                "127.0.0.1:10001=validator-1:7400,delay=80ms,jitter=1.6ms,bandwidth=4096,loss=0.005",
            ),
        ] {
            let blueprint = blueprint(&Plan { limits, ..plan(regions) }).unwrap();
            let arguments = sidecar(&blueprint, &blueprint.members[0], host).unwrap();
            assert_eq!(arguments[3..], ["--link", said]);
            assert_eq!(blueprint.members[0].config["network"]["outbound"], 0);
        }
    }

    #[test]
    fn a_plan_that_cannot_be_is_refused() {
        let refused = |plan: &Plan| write(Target::Compose, plan).unwrap_err().to_string();
        let mut plan = plan(&[]);
        plan.devnet.dir = None;
        assert!(refused(&plan).contains("--dir"));
        plan.devnet.dir = Some(PathBuf::from("/nonexistent"));
        plan.devnet.fullnodes = 100;
        assert!(refused(&plan).contains("102 nodes are too many"));
        plan.devnet.fullnodes = 2;
        plan.devnet.validators = 0;
        assert!(refused(&plan).contains("validators, not 0"));
    }
}
