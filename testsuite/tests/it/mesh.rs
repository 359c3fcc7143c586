//! New batches reach fullnodes through the mesh, hop by hop, with every codec.

use std::time::Duration;

use slipnet::{
    devnet::{Devnet, DevnetOptions, Node, Status, SyncMode},
    load::{self, LoadOptions, Rate, Workload},
    progress::Progress,
};
use slipstream_coding::CodecKind;

use crate::common::{deadline, load_runs, room, until};

/// The number of fullnodes in a line.
const HOPS: usize = 3;
const ACCOUNTS: u32 = 100;

/// Returns a count of a node's mesh, from its status.
fn count(mesh: &serde_json::Value, of: &str) -> u64 {
    mesh[of].as_u64().unwrap()
}

/// Waits for more than `batches` batches through the mesh, and returns the node's status: on a slow machine the load's
/// were fewer.
async fn delivered(node: &Node, batches: u64) -> Status {
    until("batches come by the mesh", async || {
        let status = node.status().await.unwrap();
        let is_more = count(&status.mesh, "delivered") > batches;
        if is_more { Ok(status) } else { Err(format!("{}: {}", node.name(), status.mesh)) }
    })
    .await
}

/// The batches that reached a node in some period.
#[derive(Debug)]
struct Came {
    /// Those through the mesh.
    delivered: u64,
    /// Those through the mesh without a complete body.
    incomplete: u64,
    /// All of them, counted when they are committed.
    committed: u64,
    /// Those that were announced complete, counted when they are announced.
    announced: u64,
}

impl Came {
    /// Returns the counts since the node's start.
    fn of(status: &Status) -> Came {
        Came {
            delivered: count(&status.mesh, "delivered"),
            incomplete: count(&status.mesh, "incomplete"),
            committed: status.sync.batches,
            announced: status.sync.batches_announced,
        }
    }

    fn since(&self, before: &Came) -> Came {
        Came {
            delivered: self.delivered - before.delivered,
            incomplete: self.incomplete - before.incomplete,
            committed: self.committed - before.committed,
            announced: self.announced - before.announced,
        }
    }

    /// Whether nearly all came complete through the mesh.
    fn is_by_the_mesh(&self) -> bool {
        let fetched = self.committed.saturating_sub(self.announced);
        self.incomplete * 10 <= self.delivered && fetched * 10 <= self.delivered
    }
}

/// Sends a load through a devnet. Returns the batches that reached each of these nodes meanwhile.
async fn carried(devnet: &mut Devnet, nodes: &[usize], codec: &str) -> Vec<Came> {
    let mut before = Vec::new();
    for index in nodes {
        before.push(Came::of(&devnet.nodes()[*index].status().await.unwrap()));
    }
    let options = LoadOptions {
        workload: Workload::Transfers.into(),
        rate: Rate::constant(300),
        duration: Duration::from_secs(6),
        ..LoadOptions::for_manifest(&devnet.manifest().await.unwrap(), ACCOUNTS as usize).unwrap()
    };
    let report = load::run(&options, Progress::Quiet).await.unwrap();
    assert_eq!((report.committed, report.audit.figures.receipts_failed), (1_800, 0), "{codec}: {report}");
    let head = devnet.proposer().status().await.unwrap().head.number;
    let mut came = Vec::new();
    for (index, before) in nodes.iter().zip(&before) {
        devnet.node_mut(*index).wait_head(head, deadline()).await.unwrap();
        let status = delivered(&devnet.nodes()[*index], before.delivered + 20).await;
        came.push(Came::of(&status).since(before));
    }
    came
}

/// Goal: a devnet with each codec carries load. Fullnodes in a line of three hops get its batches through the mesh,
/// encoded as configured, and fetch hardly any.
#[tokio::test(flavor = "multi_thread")]
async fn batches_go_down_a_line_of_fullnodes() {
    let _room = room().await;
    for codec in CodecKind::ALL.iter().map(|codec| codec.name()) {
        let extra = format!("broadcast:\n  codec: {codec}\n  coded_bytes_min: 512\n");
        let options = DevnetOptions { validators: 2, accounts: ACCOUNTS, extra, ..DevnetOptions::default() };
        let mut devnet = Devnet::start(options).await.unwrap();
        let mut before = devnet.proposer().peer_address();
        let mut hops = Vec::new();
        for hop in 1..=HOPS {
            let name = format!("hop{hop}");
            let index = devnet.add_fullnode_behind(&name, SyncMode::Replay, &[before]).await.unwrap();
            let head = devnet.proposer().status().await.unwrap().head.number;
            devnet.node_mut(index).wait_head(head, deadline()).await.unwrap();
            before = devnet.nodes()[index].peer_address();
            hops.push(index);
        }
        let mut came = carried(&mut devnet, &hops, codec).await;
        // If the machine stalled for a moment, nodes fetch late batches, so the load is repeated.
        for _ in 0..2 {
            if !came.iter().all(Came::is_by_the_mesh) {
                came = carried(&mut devnet, &hops, codec).await;
            }
        }
        assert!(came.iter().all(Came::is_by_the_mesh), "{codec}: {came:?}");
        for hop in hops {
            let status = devnet.nodes()[hop].status().await.unwrap();
            let mesh = &status.mesh;
            let decoded: u64 = mesh["codecs"][codec]["decoded"]
                .as_array()
                .unwrap()
                .iter()
                .map(|n| n.as_u64().unwrap())
                .sum();
            assert!(decoded > 10, "{codec}, hop {hop}: {mesh}");
            let faults = ["banned", "muted", "liars"].map(|of| count(mesh, of));
            assert_eq!(faults, [0, 0, 0], "{codec}: {mesh}");
        }
        devnet.stop().await.unwrap();
    }
}

/// Goal: when half of the mesh's nodes are killed under load, the others continue. These request the parts in flight
/// from one another, and fetch hardly any batches.
#[tokio::test(flavor = "multi_thread")]
async fn the_other_half_goes_on() {
    let _room = room().await;
    let extra = "broadcast:\n  coded_bytes_min: 512\n".to_owned();
    let options = DevnetOptions { validators: 2, accounts: ACCOUNTS, extra, ..DevnetOptions::default() };
    let mut devnet = Devnet::start(options).await.unwrap();
    // Each is connected to two others, one of which will be killed.
    let validators: Vec<_> = devnet.nodes().iter().map(|node| node.peer_address()).collect();
    let mut rows = vec![validators];
    let mut fullnodes = Vec::new();
    for row in 1..=3 {
        let behind = rows[row - 1].clone();
        let mut addresses = Vec::new();
        for name in ["lives", "dies"] {
            let index =
                devnet.add_fullnode_behind(&format!("{name}{row}"), SyncMode::Replay, &behind).await.unwrap();
            addresses.push(devnet.nodes()[index].peer_address());
            fullnodes.push((name, index));
        }
        rows.push(addresses);
    }
    let load = |tps, seconds, manifest| LoadOptions {
        workload: Workload::Transfers.into(),
        rate: Rate::constant(tps),
        duration: Duration::from_secs(seconds),
        ..LoadOptions::for_manifest(&manifest, ACCOUNTS as usize).unwrap()
    };
    let options = load(300, 6, devnet.manifest().await.unwrap());
    let running = tokio::spawn(async move { load::run(&options, Progress::Quiet).await });
    load_runs(&devnet, devnet.proposer().rpc()).await;
    for (_, index) in fullnodes.iter().filter(|(name, _)| *name == "dies") {
        devnet.node_mut(*index).kill();
    }
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.committed, report.audit.figures.receipts_failed), (1_800, 0), "{report}");

    let head = devnet.proposer().status().await.unwrap().head.number;
    for (name, index) in fullnodes.into_iter().filter(|(name, _)| *name == "lives") {
        devnet.node_mut(index).wait_head(head, deadline()).await.unwrap();
        let mesh = delivered(&devnet.nodes()[index], 30).await.mesh;
        let mut is_whole = count(&mesh, "incomplete") * 10 <= count(&mesh, "delivered");
        // As above.
        for _ in 0..2 {
            if !is_whole {
                is_whole = carried(&mut devnet, &[index], name).await[0].is_by_the_mesh();
            }
        }
        assert!(is_whole, "{name}: {mesh}");
        assert_eq!(["banned", "muted", "liars"].map(|of| count(&mesh, of)), [0, 0, 0], "{mesh}");
    }
    devnet.stop().await.unwrap();
}
