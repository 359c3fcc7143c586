//! Validators come and go under load, and all nodes follow.

use std::{
    os::unix::fs::PermissionsExt,
    process::{Command, Output},
    time::Duration,
};

use slipnet::{
    devnet::{Devnet, DevnetOptions, Status, SyncMode, binary},
    load::{self, LoadOptions, Rate, Workload},
    progress::Progress,
};

use crate::common::{agree, agreed, deadline, load_runs, room, succeed, until};

/// Runs `slipstream validators` at a node, with the owner's key if it sends a transaction.
fn validators(devnet: &Devnet, node: usize, arguments: &[&str], key: Option<&str>) -> Output {
    let api = devnet.nodes()[node].rpc().url().to_owned();
    let mut command = Command::new(binary().unwrap());
    command.arg("validators").args(arguments).args(["--rpc", &api]);
    if let Some(file) = key {
        command.args(["--key-file", file]);
    }
    command.output().unwrap()
}

/// Waits until the statuses of all these nodes satisfy `is_so`.
async fn wait(devnet: &Devnet, nodes: &[usize], what: &str, is_so: impl Fn(usize, &Status) -> bool) {
    for index in nodes {
        let node = &devnet.nodes()[*index];
        until(what, async || {
            let status = node.status().await;
            let is_so = status.as_ref().is_ok_and(|status| is_so(*index, status));
            is_so.then_some(()).ok_or_else(|| format!("{} has {status:#?}", node.name()))
        })
        .await;
    }
}

/// Goal: under load a validator is added and the proposer removed, by transactions. The new one votes and the removed
/// one follows, both without a restart. Fullnodes follow across both changes: one in each mode, one from a snapshot
/// before them and one from a waypoint after them.
#[tokio::test(flavor = "multi_thread")]
async fn a_validator_is_added_and_the_proposer_removed_under_load() {
    let _room = room().await;
    let options = DevnetOptions {
        accounts: 30,
        snapshot_interval_batches: 10,
        batch_interval_ms: Some(100),
        ..DevnetOptions::default()
    };
    let mut devnet = Devnet::start(options).await.unwrap();
    let key_file = devnet.dir().join("owner.key");
    let owner = devnet.owner();
    std::fs::write(&key_file, owner.key_hex()).unwrap();
    std::fs::set_permissions(&key_file, PermissionsExt::from_mode(0o600)).unwrap();
    let key_file = key_file.to_str().unwrap().to_owned();

    let candidate = devnet.add_candidate("candidate").await.unwrap();
    let mut all: Vec<usize> = (0..=candidate).collect();
    devnet.node_mut(0).wait_head(40, deadline()).await.unwrap();
    for (name, mode) in
        [("replays", SyncMode::Replay), ("applies", SyncMode::Delta), ("restores", SyncMode::Snapshot)]
    {
        all.push(devnet.add_fullnode(name, mode).await.unwrap());
    }
    wait(&devnet, &all, "follows in epoch 0", |_, status| {
        status.head.number >= 12 && status.epoch.number == 0
    })
    .await;
    // A node that hears of batches before a second peer offers a snapshot follows without one.
    let mut restorer = devnet.nodes()[all[all.len() - 1]].status().await.unwrap();
    for attempt in 1..8 {
        if restorer.sync.snapshot.is_some() {
            break;
        }
        let index = devnet.add_fullnode(&format!("restores-{attempt}"), SyncMode::Snapshot).await.unwrap();
        all.push(index);
        wait(&devnet, &[index], "follows in epoch 0", |_, status| status.head.number >= 12).await;
        restorer = devnet.nodes()[index].status().await.unwrap();
    }
    assert!(restorer.sync.snapshot.is_some(), "it began with a snapshot of epoch 0");

    // The transactions go to nodes that keep their role, and are read from one.
    let rpc = |index: usize| devnet.nodes()[index].rpc().clone();
    let load = LoadOptions {
        workload: Workload::Transfers.into(),
        rate: Rate::constant(50),
        duration: Duration::from_secs(12),
        accounts: devnet.accounts().to_vec(),
        submit: vec![rpc(1), rpc(2), rpc(3)],
        followers: vec![("fullnode".to_owned(), rpc(candidate + 1))],
        ..LoadOptions::default()
    };
    let load = tokio::spawn(async move { load::run(&load, Progress::Quiet).await });
    load_runs(&devnet, devnet.nodes()[1].rpc()).await;

    let id = |index: usize| devnet.nodes()[index].peer_address().split('@').next().unwrap().to_owned();
    let (new, old) = (id(candidate), id(0));
    let validating: Vec<String> = (1..=candidate).map(id).collect();
    let fees = "0x00000000000000000000000000000000000000fe";
    let refused = validators(&devnet, 1, &["remove", &old], Some(&key_file));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("too few validators"), "{text}");
    let text = succeed(&validators(&devnet, 1, &["add", &new, "--fee-recipient", fees], Some(&key_file)));
    assert!(text.contains("ends the epoch: the change takes effect from batch"), "{text}");
    wait(&devnet, &all, "epoch 1", |index, status| {
        status.epoch.number == 1
            && status.epoch.validators.contains(&new)
            && status.consensus.is_some() == (index <= candidate)
    })
    .await;

    succeed(&validators(&devnet, candidate, &["remove", &old], Some(&key_file)));
    wait(&devnet, &all, "epoch 2", |index, status| {
        status.epoch.number == 2
            && status.epoch.validators.len() == 4
            && status.consensus.is_some() == (1..=candidate).contains(&index)
    })
    .await;
    let listed = succeed(&validators(&devnet, 0, &["list"], None));
    assert!(listed.contains("none pending") && listed.contains(&new) && !listed.contains(&old), "{listed}");

    let waypoint = devnet.nodes()[1].status().await.unwrap().waypoint.unwrap();
    all.push(devnet.add_fullnode_by_waypoint("trusts", SyncMode::Auto, &waypoint).await.unwrap());
    let report = load.await.unwrap().unwrap();
    assert_eq!((report.sent, report.committed), (600, 600), "{report}");
    assert_eq!(report.audit.figures.receipts_failed, 0, "{report}");

    let head = devnet.nodes()[candidate].status().await.unwrap().head.number + 5;
    wait(&devnet, &all, "the end", |_, status| status.head.number >= head && status.epoch.number == 2).await;
    agree(&mut devnet, all, head).await;
    // The reader learns of both changes by itself. Former validators and followers do not count.
    let params = r#"["0x7777777777777777777777777777777777777777","latest"]"#;
    let answer = agreed(&devnet, &["--json", "eth_getBalance", params]);
    let read: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let agreed: Vec<&str> =
        read["validators"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    // Three of the four current validators, whichever answered first.
    assert!(agreed.len() >= 3 && agreed.iter().all(|id| validating.iter().any(|it| it == id)), "{answer}");
    assert!(read["result"].as_str().unwrap().starts_with("0x"), "{answer}");
    devnet.stop().await.unwrap();
}
