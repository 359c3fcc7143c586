//! A fullnode whose rows are corrupt on disk.

use std::{fs, path::Path, time::Duration};

use slipnet::{
    devnet::{Devnet, DevnetOptions, SyncMode},
    load::{self, LoadOptions, Rate, Workload},
    progress::Progress,
};
use slipstream_storage::{StorageConfig, plain_database};

use crate::common::{agree, deadline, until};

/// The number of corrupted rows.
const WRONG: usize = 12;

/// Changes every fourth row of a stopped node's state, and removes the row after it.
fn spoil(node: &Path) {
    let database = plain_database(&StorageConfig::default(), &node.join("data/db")).unwrap();
    let rows = database.cf_handle("state_a").unwrap();
    let mut all = database.raw_iterator_cf(rows);
    let mut found = Vec::new();
    all.seek_to_first();
    while let Some((key, row)) = all.item() {
        found.push((key.to_vec(), row.to_vec()));
        all.next();
    }
    drop(all);
    assert!(found.len() >= 2 * WRONG, "the state has only {} rows", found.len());
    for (at, (key, mut row)) in found.into_iter().enumerate().take(2 * WRONG).filter(|(at, _)| at % 4 < 2) {
        match at % 4 {
            0 => {
                *row.last_mut().unwrap() ^= 1;
                database.put_cf(rows, key, row).unwrap();
            }
            _ => database.delete_cf(rows, key).unwrap(),
        }
    }
}

/// Goal: a node that starts with damaged rows repairs them, with data from its peers, and follows.
#[tokio::test(flavor = "multi_thread")]
async fn a_fullnode_with_wrong_rows_repairs_itself_and_follows() {
    let options = DevnetOptions { validators: 1, accounts: 40, ..DevnetOptions::default() };
    let mut devnet = Devnet::start(options).await.unwrap();
    let manifest = devnet.manifest().await.unwrap();
    let index = devnet.add_fullnode("damaged", SyncMode::Replay).await.unwrap();
    let load = LoadOptions {
        workload: Workload::Erc20.into(),
        rate: Rate::constant(40),
        duration: Duration::from_secs(3),
        ..LoadOptions::for_manifest(&manifest, 40).unwrap()
    };
    let before = load::run(&load, Progress::Quiet).await.unwrap();
    let node = devnet.node_mut(index);
    node.wait_head(before.head, deadline()).await.unwrap();
    node.stop().await.unwrap();
    spoil(node.dir());
    node.start().unwrap();
    node.wait_ready(deadline()).await.unwrap();
    let repair = node.status().await.unwrap().sync.repair.expect("the node tells of its repair");
    let count = |name: &str| repair[name].as_u64().unwrap();
    assert_eq!(count("rows_put") + count("rows_removed"), WRONG as u64, "{repair}");
    assert!(count("bytes") > 0, "{repair}");
    // The log is written asynchronously.
    let log = node.log();
    until("the log tells of the repair", async || {
        let text = fs::read_to_string(&log).unwrap();
        text.contains("compared the state with peers: it is right now").then_some(()).ok_or(text)
    })
    .await;

    let after = load::run(&load, Progress::Quiet).await.unwrap();
    agree(&mut devnet, [0, index], after.head).await;
    devnet.stop().await.unwrap();
}
