//! A world of promises: a node of mode `auto`, honest peers that keep different things, and liars of one kind that
//! promise and do not send.

use std::num::{NonZeroU32, NonZeroU64};

use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use slipnet::scenario::fault::PeerLie;
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
/// The shortest gap that is worth a leap.
const GAP_MIN: u64 = 80;

pub(super) fn plan(rng: &mut StdRng) -> Plan {
    let certified = rng.random_range(GAP_MIN + 10..BATCHES - GROWTH);
    let head = if rng.random() { 0 } else { rng.random_range(1..=certified - GAP_MIN) };
    let servers = servers(rng);
    // If no peer kept the history, a node that applies deltas could not fetch it.
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
            // With more threads, the scheduler and not the seed would decide the order.
            threads: 1,
            ..ExecutorConfig::default()
        },
        head,
        waypoint: None,
        is_misled: false,
        // A wrong choice costs a slow machine much. On a still slower machine the end of a restore, which no price
        // includes, would dominate.
        slowness: [20.0, 60.0, 100.0][rng.random_range(0..3)],
        is_steady: true,
        crashes: Vec::new(),
        cuts: 0,
        points: Vec::new(),
        prune_interval: None,
    }
}

/// Draws the servers: honest peers first, the first of which can bring a node to the head.
fn servers(rng: &mut StdRng) -> Vec<Server> {
    // A window of one batch is useless to a node that is behind.
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
    // One kind of liar, so that one lie's cost is the cost of finding out that kind.
    let lies = [
        PeerLie::EmptyPromises,
        PeerLie::FalseOffers,
        PeerLie::SubtleOffers,
        PeerLie::ChangedAncestry,
        PeerLie::HiddenRows,
        PeerLie::ChangedRows,
        PeerLie::PaddedRangeDeltas,
    ];
    let liar = match rng.random_range(0..6) {
        0 | 1 => Habit::Pretending,
        2 => Habit::Trickling,
        3 => Habit::Busy,
        4 => Habit::Stalling,
        _ => Habit::Lying(lies.choose(rng).copied().map(Lie::Peer).into_iter().collect()),
    };
    // A promise counts for more if other peers repeat it.
    for _ in 0..rng.random_range(1..5) {
        habits.push((liar.clone(), Keeps::ALL));
    }
    let habits = habits.into_iter().enumerate();
    // A renamed liar would count as another one.
    let server =
        |(index, (habit, keeps))| Server { lag: 0, renames: false, ..server(index, habit, keeps, rng) };
    habits.map(server).collect()
}
