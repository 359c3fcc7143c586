//! [`Plan`]: a seed's version of a scenario: the participants, their behaviour, and the faults with their times.

mod nodes;
mod promises;
mod servers;

use clap::ValueEnum;
use rand::{Rng, SeedableRng, rngs::StdRng};
use slipstream_executor::ExecutorConfig;
use slipstream_network::PeerId;
use slipstream_storage::{CrashPoint, StorageConfig};
use slipstream_sync::SyncConfig;
use slipstream_types::{BatchNumber, Waypoint};

use self::{nodes::node, servers::servers};
use super::{
    chain::{BATCHES, SNAPSHOT_INTERVAL},
    queue::Moment,
    server::Server,
};

/// The kind of faults in a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub enum Scenario {
    /// No faults, only distance: the ledger grows, and some peers are far away.
    Calm,
    /// Messages are lost or late, and the network splits for a while.
    Lossy,
    /// Peers that lie in every way.
    Liars,
    /// Peers that never answer, or only just before the deadline.
    Stallers,
    /// Peers that show the same forged ledger outnumber the honest ones.
    Collusion,
    /// Nodes die at every point of their store and at random moments.
    Crash,
    /// Peers and nodes prune, and snapshots vanish while they are restored.
    Pruning,
    /// Connections come and go.
    Flapping,
    /// Nodes begin from snapshots, and some peers lie about those.
    Snapshot,
    /// Peers whose messages are all true, and which waste time.
    Siege,
    /// Any of these together.
    Everything,
    /// Peers promise what they do not send, to a node of mode `auto`. Its deadline derives from the best way among
    /// honest peers.
    Promises,
}

impl Scenario {
    /// Returns a seed's scenario if none is given. Every other seed has everything. Snapshots come more often than the
    /// rest, because their faults need the most coincidences. Promises are left out: each of their runs is five worlds.
    pub fn of(seed: u64) -> Scenario {
        let snapshots = [Scenario::Snapshot; 5];
        let mut named = [Scenario::value_variants(), &snapshots].concat();
        named.retain(|scenario| *scenario != Scenario::Promises);
        match seed % 2 {
            0 => Scenario::Everything,
            _ => named[(seed / 2) as usize % named.len()],
        }
    }
}

/// A node that follows, before the world begins.
#[derive(Clone, Debug)]
pub(super) struct NodePlan {
    pub(super) id: PeerId,
    pub(super) sync: SyncConfig,
    pub(super) storage: StorageConfig,
    pub(super) executor: ExecutorConfig,
    /// The node's head when the world begins.
    pub(super) head: BatchNumber,
    pub(super) waypoint: Option<Waypoint>,
    /// Whether the waypoint is of another ledger: the node must refuse to pass it.
    pub(super) is_misled: bool,
    /// The time that the node's work takes, as a multiple of a fast machine's.
    pub(super) slowness: f64,
    /// Whether equal work always takes equal time.
    pub(super) is_steady: bool,
    /// The times at which the node crashes.
    pub(super) crashes: Vec<Moment>,
    /// How many times the node's power fails right after a commit.
    pub(super) cuts: u32,
    /// The crash point of the node's store in each life, and the pass at which the point fires.
    pub(super) points: Vec<(CrashPoint, u64)>,
    /// The time between two rounds of pruning; `None` if the node keeps all.
    pub(super) prune_interval: Option<Moment>,
}

/// A whole world before it begins.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) servers: Vec<Server>,
    pub(super) nodes: Vec<NodePlan>,
    /// The probability that a message is lost when it is first sent.
    pub(super) loss: f64,
    /// The start and the end of the network's split.
    pub(super) partition: Option<(Moment, Moment)>,
    /// The approximate time between two disconnections of a flapping peer.
    pub(super) flap_interval: Moment,
    /// The certified head when the world begins.
    pub(super) certified: BatchNumber,
    pub(super) end: BatchNumber,
    /// The time between two batches.
    pub(super) batch_interval: Moment,
    /// When new faults and new batches stop.
    pub(super) quiet_at: Moment,
}

/// The faults that are enabled in a world.
struct Troubles {
    lossy: bool,
    liars: bool,
    stallers: bool,
    colluders: bool,
    crashes: bool,
    pruning: bool,
    flapping: bool,
    snapshots: bool,
    siege: bool,
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
            siege: has(Scenario::Siege),
        }
    }
}

const SECOND: Moment = 1_000_000;
/// A window that covers the oldest snapshot that a server of [`Keeps`](super::server::Keeps) offers.
const WINDOW: u64 = 5 * SNAPSHOT_INTERVAL;
impl Plan {
    pub(super) fn draw(scenario: Scenario, rng: &mut StdRng) -> Plan {
        if scenario == Scenario::Promises {
            return promises::plan(rng);
        }
        let troubles = Troubles::draw(scenario, rng);
        let quiet_at = rng.random_range(4 * SECOND..10 * SECOND);
        // The ledger grows fast where snapshots must vanish while they are restored.
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
            certified: BatchNumber::new(certified),
            end: BatchNumber::new(end),
            batch_interval: quiet_at / (end - certified + 1),
            quiet_at,
        }
    }
}

/// Returns the only source of a world's randomness.
pub(super) fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}
