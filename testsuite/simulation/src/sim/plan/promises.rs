//! A world of promises: a node of mode `auto`, honest peers who keep different things, and liars of one kind who promise and do not send.

use std::num::{NonZeroU32, NonZeroU64};

use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use slipstream_executor::{ExecutorConfig, HintsMode};
use slipstream_storage::StorageConfig;
use slipstream_sync::{Mode, SyncConfig};
use slipstream_types::{BatchNumber, PublicKey};

use super::{
    super::{
        chain::BATCHES,
        lie::Lie,
        server::{Habit, Keeps, Server},
    },
    NodePlan, Plan, SECOND, WINDOW,
    servers::server,
};

/// Batches that are certified while the node catches up.
const GROWTH: u64 = 3;
/// Gaps that are worth a leap.
const GAP_MIN: u64 = 80;

pub(super) fn plan(rng: &mut StdRng) -> Plan {
    let certified = rng.random_range(GAP_MIN + 10..BATCHES - GROWTH);
    let head = if rng.random() { 0 } else { rng.random_range(1..=certified - GAP_MIN) };
    let servers = servers(rng);
    // A history that nobody keeps would leave a node that applies deltas nobody to ask.
    let history = servers[0].keeps.bodies == 0 && rng.random();
    let nodes = vec![node(BatchNumber::new(head), history, rng)];
    Plan {
        servers,
        nodes,
        loss: 0.0,
        partition: None,
        flap_interval: SECOND,
        certified: BatchNumber::new(certified),
        end: BatchNumber::new(certified + GROWTH),
        batch_interval: SECOND / 10,
        quiet_at: SECOND / 2,
    }
}

fn node(head: BatchNumber, history: bool, rng: &mut StdRng) -> NodePlan {
    NodePlan {
        id: PublicKey([200; 32]),
        sync: SyncConfig {
            mode: Mode::Auto,
            history,
            range_batches_max: NonZeroU32::new([2, 8][rng.random_range(0..2)]).expect("not zero"),
            request_deadline_ms: NonZeroU64::new(1_000).expect("not zero"),
            ..SyncConfig::default()
        },
        storage: StorageConfig {
            snapshot_interval_batches: 0,
            disk_free_min_mib: 0,
            ..StorageConfig::default()
        },
        executor: ExecutorConfig {
            prefetch_threads: 0,
            hints: HintsMode::Keys,
            // More would run in an order that no seed decides.
            threads: 1,
            ..ExecutorConfig::default()
        },
        head,
        waypoint: None,
        is_misled: false,
        // A slow machine loses much by a wrong choice. On a slower one a restore's end, which no price knows, takes longest.
        slowness: [20.0, 60.0, 100.0][rng.random_range(0..3)],
        is_steady: true,
        crashes: Vec::new(),
        cuts: 0,
        points: Vec::new(),
        prune_interval: None,
    }
}

/// Honest peers first; the first of them has a way to the head.
fn servers(rng: &mut StdRng) -> Vec<Server> {
    // A window of one batch keeps what nobody who is behind can use.
    let anchors = [
        Keeps::ALL,
        Keeps { snapshots: 0, ..Keeps::ALL },
        Keeps { snapshots: 0, deltas: 1, ..Keeps::ALL },
        Keeps { snapshots: 0, bodies: 1, receipts: 1, ..Keeps::ALL },
        Keeps { bodies: WINDOW, receipts: WINDOW, deltas: WINDOW, ..Keeps::ALL },
    ];
    let mut habits = vec![(Habit::Honest, anchors[rng.random_range(0..anchors.len())])];
    for _ in 0..rng.random_range(0..3) {
        habits.push((Habit::Honest, anchors[rng.random_range(0..anchors.len())]));
    }
    // One kind of liar: what a lie can cost once is what it costs the node to find them out.
    let lies = [
        Lie::Promises,
        Lie::Offer,
        Lie::SubtleOffer,
        Lie::Headers,
        Lie::HiddenRow,
        Lie::ChangedRow,
        Lie::Padded,
    ];
    let liar = match rng.random_range(0..6) {
        0 | 1 => Habit::Pretending,
        2 => Habit::Trickling,
        3 => Habit::Busy,
        4 => Habit::Stalling,
        _ => Habit::Lying(lies.choose(rng).copied().into_iter().collect()),
    };
    // Who vouches for another makes his promise count.
    for _ in 0..rng.random_range(1..5) {
        habits.push((liar.clone(), Keeps::ALL));
    }
    let habits = habits.into_iter().enumerate();
    // A liar under a new key would be another one.
    let server =
        |(index, (habit, keeps))| Server { lag: 0, renames: false, ..server(index, habit, keeps, rng) };
    habits.map(server).collect()
}
