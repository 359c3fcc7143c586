//! New batches reach fullnodes through the mesh, hop by hop, with every codec.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::time::{Duration, Instant};

use slipnet::{
    devnet::{Devnet, DevnetOptions, SyncMode},
    load::{self, LoadOptions, Workload},
    progress::Progress,
};

/// Fullnodes behind each other.
const HOPS: usize = 3;
const ACCOUNTS: u32 = 100;

/// Goal: a devnet with each codec carries load; fullnodes in a line of three hops get its batches by the mesh, coded as the
/// configuration says, and fetch next to none.
#[tokio::test(flavor = "multi_thread")]
async fn batches_go_down_a_line_of_fullnodes() {
    for codec in ["gossip", "reed_solomon", "rlnc"] {
        let extra = format!("broadcast:\n  codec: {codec}\n  coded_bytes_min: 2048\n");
        let options = DevnetOptions { validators: 2, accounts: ACCOUNTS, extra, ..DevnetOptions::default() };
        let mut devnet = Devnet::start(options).await.unwrap();
        let mut before = devnet.proposer().peer_address();
        let mut hops = Vec::new();
        for hop in 1..=HOPS {
            let name = format!("hop{hop}");
            let index = devnet.add_fullnode_behind(&name, SyncMode::Replay, &[before]).await.unwrap();
            let head = devnet.proposer().status().await.unwrap().head.number;
            let deadline = Instant::now() + Duration::from_secs(20);
            devnet.node_mut(index).wait_head(head, deadline).await.unwrap();
            before = devnet.nodes()[index].peer_address();
            hops.push(index);
        }
        let options = LoadOptions {
            workload: Workload::Transfers,
            tps: 400,
            duration: Duration::from_secs(4),
            ..LoadOptions::for_manifest(&devnet.manifest().await.unwrap(), ACCOUNTS as usize).unwrap()
        };
        let report = load::run(&options, Progress::Quiet).await.unwrap();
        assert_eq!((report.committed, report.receipts_failed), (1_600, 0), "{codec}: {report}");

        let head = devnet.proposer().status().await.unwrap().head.number;
        for hop in hops {
            let deadline = Instant::now() + Duration::from_secs(20);
            let status = devnet.node_mut(hop).wait_head(head, deadline).await.unwrap();
            let mesh = &status.mesh;
            let count = |of: &str| mesh[of].as_u64().unwrap();
            let (delivered, incomplete) = (count("delivered"), count("incomplete"));
            assert!(delivered > 20 && incomplete * 20 <= delivered, "{codec}, hop {hop}: {mesh}");
            let decoded: u64 = mesh["codecs"][codec]["decoded"]
                .as_array()
                .unwrap()
                .iter()
                .map(|n| n.as_u64().unwrap())
                .sum();
            assert!(decoded > 10, "{codec}, hop {hop}: {mesh}");
            assert_eq!((count("banned"), count("muted"), count("liars")), (0, 0, 0), "{codec}: {mesh}");
        }
        devnet.stop().await.unwrap();
    }
}
