//! The nodes' own figures, as series of a report.

use std::time::{Duration, Instant};

use slipnet::{
    devnet::{DevnetOptions, SyncMode},
    report::{CatchUp, Collector, RunReport},
};

use crate::common::{deadline, pair};

/// Goal: every field that the collector reads is in the real node's status. A node that is down is a gap instead of an
/// error. The curve of a fresh fullnode ends at the head.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_follows_nodes_through_a_kill() {
    let mut devnet = pair(DevnetOptions { batch_interval_ms: Some(50), ..DevnetOptions::default() }).await;
    devnet.node_mut(0).wait_head(40, deadline()).await.unwrap();
    let begin = Instant::now();
    let mut collector = Collector::new(begin, Duration::from_millis(50));
    for node in devnet.nodes() {
        collector.add(node.name(), node.rpc(), node.memory_peak());
    }
    let fresh = devnet.add_fullnode("fresh", SyncMode::Delta).await.unwrap();
    let node = &devnet.nodes()[fresh];
    collector.add("fresh", node.rpc(), node.memory_peak());
    let head = devnet.node_mut(0).wait_head(60, deadline()).await.unwrap().head.number;
    devnet.node_mut(fresh).wait_head(head, deadline()).await.unwrap();

    devnet.node_mut(1).kill();
    tokio::time::sleep(Duration::from_millis(500)).await;
    devnet.node_mut(1).start().unwrap();
    devnet.node_mut(1).wait_head(head, deadline()).await.unwrap();
    // A rate of CPU takes three of the node's own measurements, and four seconds.
    let looked = begin + Duration::from_secs(12);
    tokio::time::sleep_until(looked.into()).await;
    let nodes = collector.finish().await.unwrap();
    devnet.stop().await.unwrap();

    let names: Vec<_> = nodes.iter().map(|node| (node.name.as_str(), node.role.as_str())).collect();
    assert_eq!(names, [("validator-0", "validator"), ("fullnode-0", "fullnode"), ("fresh", "fullnode")]);
    for node in &nodes {
        for (what, series) in [("head", &node.head), ("memory", &node.memory), ("age", &node.head_age)] {
            assert!(series.points.len() > 5, "{what} of {}: {series:?}", node.name);
        }
        assert!(node.head.points.is_sorted_by_key(|(_, head)| *head as u64), "{}", node.name);
        assert!(node.memory.median().is_some_and(|mib| mib > 1.0), "{:?}", node.memory);
        // The kernel records the resident set's peak; a sample is only a moment of it.
        assert!(node.memory_peak_mib.is_some_and(|peak| peak > 1.0), "{:?}", node.memory_peak_mib);
    }
    let [validator, killed, fresh] = &nodes[..] else { panic!("three nodes") };
    // A busy machine may miss a sample of a running node.
    let unanswered = (validator.unanswered, killed.unanswered);
    assert!(unanswered.0 < unanswered.1, "a node that was down answered as the others: {unanswered:?}");
    assert!(killed.peers.iter().any(|peer| peer.series.max() > Some(0.0)), "{:?}", killed.peers);
    assert!(validator.cpu.max().is_some_and(|cores| cores > 0.0 && cores < 1_024.0), "{:?}", validator.cpu);
    let stages: Vec<_> = fresh.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert!(["fetch", "check", "commit"].iter().all(|stage| stages.contains(stage)), "{stages:?}");

    let curve = CatchUp::of(fresh, "delta", validator, 0);
    assert!(curve.seconds.is_some(), "{curve:?}");
    let report = RunReport { scenario: "test".into(), catch_up: vec![curve], nodes, ..RunReport::default() };
    assert!(report.to_markdown().contains("| fresh | delta |"));
}
