//! [`Plan`]: what a seed makes of a scenario: who takes part, how they behave, and what goes wrong when.

use std::num::{NonZeroU32, NonZeroU64};

use clap::ValueEnum;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use slipstream_executor::{ExecutorConfig, HintsMode};
use slipstream_network::PeerId;
use slipstream_storage::{CrashPoint, PruneConfig, Step, StorageConfig};
use slipstream_sync::{Mode, SyncConfig};
use slipstream_types::{BatchNumber, Digest, PublicKey, Waypoint};

use super::{
    chain::{BATCHES, Chain, SNAPSHOT_INTERVAL},
    lie::Lie,
    queue::Moment,
    server::{Habit, Keeps, Server},
};

/// What goes wrong in a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub enum Scenario {
    /// Nothing but distance: the ledger grows, some peers are far away.
    Calm,
    /// Messages are lost and late, the network falls apart for a while.
    Lossy,
    /// Peers that lie in every way.
    Liars,
    /// Peers that never answer, or just before the deadline.
    Stallers,
    /// More peers than are honest show the same forged ledger.
    Collusion,
    /// Nodes die at every point of their store and at random moments.
    Crash,
    /// Peers and nodes forget what they had, and snapshots go while they are restored.
    Pruning,
    /// Connections come and go.
    Flapping,
    /// Nodes begin from snapshots, and some peers lie about those.
    Snapshot,
    /// Any of it at once.
    Everything,
}

impl Scenario {
    /// What a seed is tried with if nobody says: every other one with everything, and snapshots more often than the rest: what can
    /// go wrong with them needs most to come together.
    pub fn of(seed: u64) -> Scenario {
        let snapshots = [Scenario::Snapshot; 5];
        let named = [Scenario::value_variants(), &snapshots].concat();
        match seed % 2 {
            0 => Scenario::Everything,
            _ => named[(seed / 2) as usize % named.len()],
        }
    }
}

/// A node that follows.
#[derive(Clone, Debug)]
pub(super) struct NodePlan {
    pub(super) id: PeerId,
    pub(super) sync: SyncConfig,
    pub(super) storage: StorageConfig,
    pub(super) executor: ExecutorConfig,
    /// The batch that it has when the world begins.
    pub(super) head: BatchNumber,
    pub(super) waypoint: Option<Waypoint>,
    /// The waypoint is of another ledger: the node must refuse to pass it.
    pub(super) is_misled: bool,
    /// How long its work takes, as a multiple of a good machine's.
    pub(super) slowness: f64,
    /// Moments at which it dies.
    pub(super) crashes: Vec<Moment>,
    /// Where its store fails, life by life: at which passing.
    pub(super) points: Vec<(CrashPoint, u64)>,
    /// Between two rounds of pruning; never if it keeps all.
    pub(super) prune_interval: Option<Moment>,
}

/// A whole world before it begins.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) servers: Vec<Server>,
    pub(super) nodes: Vec<NodePlan>,
    /// Share of the messages that are lost on their first way.
    pub(super) loss: f64,
    /// From when to when the network is apart.
    pub(super) partition: Option<(Moment, Moment)>,
    /// Between two ends of a flapping peer's connections, about.
    pub(super) flap_interval: Moment,
    /// Certified when the world begins, and at its end.
    pub(super) certified: BatchNumber,
    pub(super) end: BatchNumber,
    /// Between two batches.
    pub(super) batch_interval: Moment,
    /// From then on nothing new goes wrong, and no batch comes.
    pub(super) quiet_at: Moment,
}

/// Which troubles a world has.
struct Troubles {
    lossy: bool,
    liars: bool,
    stallers: bool,
    colluders: bool,
    crashes: bool,
    pruning: bool,
    flapping: bool,
    snapshots: bool,
}

impl Troubles {
    fn draw(scenario: Scenario, rng: &mut StdRng) -> Troubles {
        let forgets = rng.random_bool(0.75);
        let mut has = |named| match scenario {
            Scenario::Everything => rng.random_bool(if named == Scenario::Liars { 0.8 } else { 0.5 }),
            scenario => scenario == named,
        };
        Troubles {
            lossy: has(Scenario::Lossy),
            liars: has(Scenario::Liars),
            stallers: has(Scenario::Stallers),
            colluders: has(Scenario::Collusion),
            crashes: has(Scenario::Crash),
            pruning: has(Scenario::Pruning) || (scenario == Scenario::Snapshot && forgets),
            flapping: has(Scenario::Flapping),
            snapshots: has(Scenario::Snapshot),
        }
    }
}

const SECOND: Moment = 1_000_000;
/// A window that covers the oldest snapshot that a server of [`Keeps`] offers.
const WINDOW: u64 = 5 * SNAPSHOT_INTERVAL;
/// Where a store that only follows and restores can die.
const STEPS: [Step; 12] = [
    Step::Open,
    Step::Commit,
    Step::PutRecord,
    Step::Reclaim,
    Step::RestoreStart,
    Step::RestoreSeal,
    Step::RestoreRows,
    Step::RestoreChunk,
    Step::RestoreCode,
    Step::RestoreFinish,
    Step::MakeSnapshot,
    Step::PruneRecord,
];

impl Plan {
    pub(super) fn draw(scenario: Scenario, rng: &mut StdRng) -> Plan {
        let troubles = Troubles::draw(scenario, rng);
        let quiet_at = rng.random_range(4 * SECOND..10 * SECOND);
        // Where snapshots are to go while they are restored, the ledger grows fast.
        let (latest, least) = if troubles.snapshots { (60, 40) } else { (100, 4) };
        let certified = rng.random_range(3..latest);
        let end = BATCHES.min(certified + rng.random_range(least..60));
        let servers = servers(&troubles, rng);
        let count = [1, 1, 1, 2, 3][rng.random_range(0..5)];
        let nodes = (0..count).map(|index| node(index, &troubles, certified, quiet_at, rng)).collect();
        let apart = rng.random_range(SECOND..quiet_at / 2);
        Plan {
            servers,
            nodes,
            loss: if troubles.lossy { rng.random_range(0.01..0.15) } else { 0.0 },
            partition: (troubles.lossy && rng.random_bool(0.7)).then_some((apart, quiet_at)),
            flap_interval: rng.random_range(SECOND / 4..2 * SECOND),
            certified: BatchNumber(certified),
            end: BatchNumber(end),
            batch_interval: quiet_at / (end - certified + 1),
            quiet_at,
        }
    }
}

/// The first server is honest, always there, and has what every node of the world needs.
fn servers(troubles: &Troubles, rng: &mut StdRng) -> Vec<Server> {
    let anchor = match troubles.pruning {
        true => {
            let snapshots = if troubles.snapshots { 1 } else { rng.random_range(1..4) };
            Keeps { bodies: WINDOW, receipts: WINDOW, deltas: WINDOW, snapshots }
        }
        false => Keeps::ALL,
    };
    let mut habits = vec![(Habit::Honest, anchor)];
    let mut more = |habit: Habit, count: usize, rng: &mut StdRng| {
        for _ in 0..count {
            habits.push((habit.clone(), keeps(troubles, rng)));
        }
    };
    let most = if troubles.snapshots { 2 } else { 3 };
    more(Habit::Honest, rng.random_range(0..most), rng);
    if troubles.flapping {
        more(Habit::Flapping, rng.random_range(1..3), rng);
    }
    if troubles.stallers {
        more(Habit::Stalling, rng.random_range(0..3), rng);
        more(Habit::Dripping, rng.random_range(1..3), rng);
    }
    if troubles.liars {
        for about in Lie::GROUPS {
            let count = rng.random_range(1..4);
            let lies = about.choose_multiple(rng, count).copied().collect();
            more(Habit::Lying(lies), usize::from(rng.random_bool(0.8)), rng);
        }
    }
    if troubles.snapshots {
        // One lie each: who is found out has no chance to tell another. Code, siblings and range deltas are asked for seldom.
        let rare = [Lie::Code, Lie::Code, Lie::Siblings, Lie::NetChange, Lie::NetChange, Lie::Offer];
        for lie in rare.into_iter().chain([Lie::HiddenRow, Lie::ChangedRow]) {
            more(Habit::Lying(vec![lie]), rng.random_range(1..3), rng);
        }
        let lies: Vec<Lie> = Lie::ABOUT_SNAPSHOTS.choose_multiple(rng, 4).copied().collect();
        lies.into_iter().for_each(|lie| more(Habit::Lying(vec![lie]), 1, rng));
    }
    if troubles.colluders {
        let summaries = rng.random();
        let honest = habits.len();
        for _ in 0..=honest {
            habits.push((Habit::Colluding { summaries }, Keeps::ALL));
        }
    }
    let lag = |habit: &Habit, rng: &mut StdRng| match habit {
        Habit::Honest if rng.random_ratio(1, 5) => rng.random_range(1..8),
        _ => 0,
    };
    let server = |(index, (habit, keeps)): (usize, (Habit, Keeps))| {
        let lag = if index == 0 { 0 } else { lag(&habit, rng) };
        Server { id: PublicKey([index as u8 + 1; 32]), habit, keeps, lag }
    };
    habits.into_iter().enumerate().map(server).collect()
}

fn keeps(troubles: &Troubles, rng: &mut StdRng) -> Keeps {
    let mut window = || match rng.random_range(0..3) {
        0 if troubles.pruning => rng.random_range(3..WINDOW),
        1 if troubles.pruning => WINDOW,
        _ => 0,
    };
    let (bodies, receipts, deltas) = (window(), window(), window());
    let least = usize::from(troubles.snapshots);
    Keeps { bodies, receipts, deltas, snapshots: rng.random_range(least..4) }
}

fn node(index: u8, troubles: &Troubles, certified: u64, quiet_at: Moment, rng: &mut StdRng) -> NodePlan {
    let modes: &[Mode] = match (troubles.pruning, troubles.snapshots) {
        // What nobody keeps any more can only be passed by a snapshot.
        (true, _) => &[Mode::Auto, Mode::Snapshot, Mode::RangeDelta, Mode::RangeDelta],
        (_, true) => &[Mode::Snapshot, Mode::Snapshot, Mode::RangeDelta, Mode::RangeDelta, Mode::Auto],
        _ if troubles.liars => &[Mode::Auto, Mode::Replay, Mode::Delta, Mode::Delta, Mode::Delta],
        _ => &[Mode::Auto, Mode::Auto, Mode::Replay, Mode::Delta, Mode::Snapshot, Mode::RangeDelta],
    };
    let mode = modes[rng.random_range(0..modes.len())];
    let sync = SyncConfig {
        mode,
        history: rng.random_bool(0.6),
        range_batches_max: NonZeroU32::new([2, 8, 32, 256][rng.random_range(0..4)]).expect("not zero"),
        request_deadline_ms: NonZeroU64::new([1_000, 2_500, 5_000][rng.random_range(0..3)])
            .expect("not zero"),
        audit: if rng.random_bool(0.3) { 0.3 } else { 0.0 },
        ..SyncConfig::default()
    };
    let keeps_all = !troubles.pruning || rng.random();
    let window = if keeps_all { 0 } else { rng.random_range(5..40) };
    let storage = StorageConfig {
        snapshot_interval_batches: if rng.random() { SNAPSHOT_INTERVAL } else { 0 },
        snapshots_kept: 2,
        transaction_index: rng.random(),
        prune: PruneConfig { bodies: window, receipts: window, deltas: window, hints: window },
        disk_free_min_mib: 0,
        ..StorageConfig::default()
    };
    let hints = match rng.random::<f64>() {
        ..0.2 => HintsMode::Conflicts,
        ..0.5 => HintsMode::Values,
        ..0.8 => HintsMode::Keys,
        _ => HintsMode::Off,
    };
    let is_pinned = !troubles.pruning && matches!(mode, Mode::Replay | Mode::Delta);
    let head = if rng.random_bool(0.3) && !troubles.snapshots { rng.random_range(1..=certified) } else { 0 };
    let named = rng.random_range(head..=certified).max(1);
    // Whatever way a node takes, it has to pass the waypoint.
    let is_misled = named > head && rng.random_bool(if is_pinned { 0.4 } else { 0.1 });
    let is_told = is_misled || rng.random_bool(0.2);
    let waypoint = is_told.then(|| waypoint(BatchNumber(named), is_misled));
    let (mut crashes, mut points) = (Vec::new(), Vec::new());
    if troubles.crashes {
        // The first seconds are those of restores and of the most commits.
        let end = |rng: &mut StdRng| if rng.random() { 2 * SECOND } else { quiet_at };
        crashes.extend((0..rng.random_range(1..4)).map(|_| {
            let end = end(rng);
            rng.random_range(SECOND / 20..end)
        }));
        points.extend((0..rng.random_range(1..4)).map(|_| point(rng)));
    }
    NodePlan {
        id: PublicKey([200 + index; 32]),
        sync,
        storage,
        executor: ExecutorConfig {
            prefetch_threads: 0,
            hints,
            // More would run in an order that no seed decides.
            threads: 1,
            hot_cache_mib: rng.random_range(0..2),
            ..ExecutorConfig::default()
        },
        head: BatchNumber(head),
        waypoint,
        is_misled,
        // A slow restore is one whose snapshot is gone before its end.
        slowness: if troubles.snapshots { [4.0, 60.0, 200.0] } else { [1.0, 4.0, 20.0] }
            [rng.random_range(0..3)],
        crashes,
        points,
        prune_interval: (!keeps_all).then(|| rng.random_range(SECOND / 5..2 * SECOND)),
    }
}

fn waypoint(number: BatchNumber, is_wrong: bool) -> Waypoint {
    let certificate = Chain::canonical().batch(number).map(|made| &made.certificate);
    let mut info = certificate.expect("waypoints are drawn from the ledger").info.clone();
    if is_wrong {
        info.accumulator_root = Digest([9; 32]);
    }
    Waypoint::of(&info)
}

fn point(rng: &mut StdRng) -> (CrashPoint, u64) {
    let step = STEPS[rng.random_range(0..STEPS.len())];
    // What happens once in a life happens at its first passing.
    let passing = match step {
        Step::Commit | Step::RestoreSeal | Step::RestoreRows | Step::RestoreChunk => rng.random_range(1..8),
        _ => 1,
    };
    let point = if rng.random() { CrashPoint::Before(step) } else { CrashPoint::After(step) };
    (point, passing)
}

/// What decides a world, and nothing else does.
pub(super) fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}
