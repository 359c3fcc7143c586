//! Fullnodes that are killed again and again.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};
use slipnet::{
    devnet::{Devnet, DevnetOptions, SyncMode},
    load::{self, LoadOptions, Rate, Workload},
    progress::Progress,
};

use crate::common::agree;

const KILLS: usize = 20;
/// The least kills of a node that has answered: kills during a start alone show nothing about what is kept.
const ANSWERED_MIN: usize = 5;
/// The seed of kill times; `SLIPSTREAM_SEED` sets another.
const SEED: u64 = 7;

/// Goal: with kill -9 at 20 random moments while the chain grows, some of them during start-up, a fullnode resumes each
/// time from its last state. The fullnode ends at the validator's state, whether it executes batches or applies their
/// deltas.
#[tokio::test(flavor = "multi_thread")]
async fn killed_fullnodes_resume_and_end_at_the_same_state() {
    let options = DevnetOptions { validators: 1, accounts: 20, ..DevnetOptions::default() };
    let mut devnet = Devnet::start(options).await.unwrap();
    let manifest = devnet.manifest().await.unwrap();
    let fullnodes = [
        devnet.add_fullnode("replay", SyncMode::Replay).await.unwrap(),
        devnet.add_fullnode("delta", SyncMode::Delta).await.unwrap(),
    ];
    let options = LoadOptions {
        workload: Workload::Erc20.into(),
        rate: Rate::constant(50),
        duration: Duration::from_secs(15),
        ..LoadOptions::for_manifest(&manifest, 20).unwrap()
    };
    let load = tokio::spawn(async move { load::run(&options, Progress::Quiet).await });

    let seed = std::env::var("SLIPSTREAM_SEED").map_or(SEED, |seed| seed.parse().unwrap());
    let mut random = StdRng::seed_from_u64(seed);
    let mut heads = [0; 2];
    let (mut kill, mut answered) = (0, [0; 2]);
    while kill < KILLS || answered.iter().any(|answered| *answered < ANSWERED_MIN) {
        assert!(kill < 10 * KILLS, "the fullnodes answered {answered:?} times");
        // If the nodes start slowly on a machine, they get more time.
        let turns = 1 + kill as u32 / KILLS as u32;
        tokio::time::sleep(turns * Duration::from_millis(random.random_range(20..900))).await;
        for ((fullnode, head), answered) in fullnodes.into_iter().zip(&mut heads).zip(&mut answered) {
            let node = devnet.node_mut(fullnode);
            node.check_alive().unwrap_or_else(|error| panic!("before kill {kill} (seed {seed}): {error:#}"));
            // Some nodes are up too briefly to answer; one that answers must have kept everything.
            if let Ok(status) = node.status().await {
                let found = status.head.number;
                assert!(
                    found >= *head,
                    "{} fell from batch {head} to {found}, kill {kill}, seed {seed}",
                    node.name()
                );
                *head = found;
                *answered += 1;
            }
            node.kill();
            node.start().unwrap();
        }
        kill += 1;
    }
    let report = load.await.unwrap().unwrap();
    assert_eq!((report.committed, report.audit.figures.receipts_failed), (750, 0), "{report}");
    println!("{kill} kills, {answered:?} of them of a node that answered, seed {seed}");
    let [replay, delta] = fullnodes;
    agree(&mut devnet, [0, replay, delta], report.head).await;
    devnet.stop().await.unwrap();
}
