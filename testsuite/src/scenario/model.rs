//! [`Scenario`] as it stands in its file. What a value may be is checked by `rules`; what it means is the engine's.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{criteria::Criterion, fault::Fault, span::Span};
use crate::{
    accounts::DEFAULT_SEED,
    devnet::{READY_DEADLINE, SyncMode},
    load::Rate,
};

/// What a team wants to know of its chain: nodes, load, faults by time or by seed, and when it counts as passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Lower-case words and digits joined by `-`, at most 48 bytes.
    pub name: String,
    /// What passing it shows, in a sentence.
    pub description: String,
    /// Keys, load and the times of faults come from it, at most 64 bytes.
    #[serde(default = "default_seed")]
    pub seed: String,
    /// From the first batch until criteria are judged, 5 s to 1 h; joins, phases and faults lie within.
    pub duration: Span,
    /// The nodes and what is between them.
    #[serde(default)]
    pub topology: Topology,
    /// The load, in phases that may overlap.
    #[serde(default)]
    pub workload: Vec<Phase>,
    /// What goes wrong.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// What must hold; the scenario fails by the names of those that do not.
    pub criteria: Vec<Criterion>,
}

/// The nodes and what is between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Topology {
    /// Nodes that certify from the first batch on, 1 to 32: `validator-0`, `validator-1`, …
    pub validators: u32,
    /// Groups of further nodes; at most 64 nodes in all.
    pub groups: Vec<Group>,
    /// Funded accounts, 2 to 10,000.
    pub accounts: u32,
    /// `consensus.batch_interval_ms`, and the same between empty batches, 20 to 60,000; without it the nodes' defaults.
    pub batch_interval_ms: Option<u64>,
    /// Batches between two snapshots, 1 to 1,000,000.
    pub snapshot_interval_batches: u64,
    /// How long a node may take until it answers, 1 s to 10 min: one that joins, one that is there from the start, and the validators with
    /// their first batch. The clock goes on while nodes join.
    pub ready_within: Span,
    /// Keys of node.yaml by their full names, such as `storage.prune.bodies`, for all nodes.
    pub config: Config,
    /// What differs for some nodes; later entries are above earlier ones.
    pub settings: Vec<Settings>,
    /// What is between two regions. Nodes without a region are beside everybody.
    pub links: Vec<Link>,
}

/// Keys of node.yaml by their full names, and their values.
pub type Config = BTreeMap<String, Value>;

impl Default for Topology {
    fn default() -> Self {
        Self {
            validators: 4,
            groups: Vec::new(),
            accounts: 200,
            batch_interval_ms: None,
            snapshot_interval_batches: 50,
            ready_within: Span::from_secs(READY_DEADLINE.as_secs()),
            config: Config::new(),
            settings: Vec::new(),
            links: Vec::new(),
        }
    }
}

/// Nodes that are alike: `NAME` if it is one, else `NAME-0`, `NAME-1`, …
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// As the name of a scenario; no other group or node has it.
    pub name: String,
    /// Nodes, 1 to 63.
    #[serde(default = "one")]
    pub count: u32,
    /// Whether it only follows, or validates once the chain's set names it.
    #[serde(default)]
    pub part: Part,
    /// How it catches up; not of a candidate.
    #[serde(default)]
    pub mode: SyncMode,
    /// When it starts, with an empty disk; without it before the clock of the scenario does.
    #[serde(default)]
    pub joins: Option<Span>,
    /// Whom it dials: names of nodes or of groups before it; without them everybody before it.
    #[serde(default)]
    pub behind: Vec<String>,
    /// A lie of `lying_peers` with `-` for each `_`: servers that tell it stand before those in its list of peers.
    #[serde(default)]
    pub among: Option<String>,
    /// Whether trust starts at a waypoint that a validator tells when the node starts, instead of at the genesis; not of a candidate.
    #[serde(default)]
    pub waypoint: bool,
}

/// What a group's nodes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Follows.
    #[default]
    Fullnode,
    /// Follows until the chain's set names its key.
    Candidate,
}

/// What differs for some nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Names of nodes or groups, `validators`, `fullnodes` or `all`.
    pub nodes: Vec<String>,
    /// Keys of node.yaml by their full names.
    #[serde(default)]
    pub config: Config,
    /// Where they are: `eu`, `us`, `usw`, `ap`, `jp`, `au`, `sa`, or a region that `links` name.
    #[serde(default)]
    pub region: Option<String>,
    /// The program that they run: `current`, or a name that `--program NAME=PATH` gives.
    #[serde(default)]
    pub program: Option<String>,
    /// MiB of a disk of their own, in memory, 128 to 4,096: for the fault `full_disk`. Takes the right to mount. An eighth of it is their
    /// `storage.disk_free_min_mib`, unless `config` says otherwise.
    #[serde(default)]
    pub disk_mib: Option<u64>,
}

/// What is between two regions, in both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Two regions; the same one twice is what is between its own nodes.
    pub between: [String; 2],
    /// How datagrams travel.
    #[serde(default)]
    pub shape: LinkShape,
}

impl Link {
    /// Whether it is between the same two regions as another one.
    pub(super) fn is_beside(&self, other: &Link) -> bool {
        let ([one, another], [from, to]) = (&self.between, &other.between);
        (one, another) == (from, to) || (one, another) == (to, from)
    }
}

/// How datagrams travel between two nodes, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LinkShape {
    /// One way, at most 10 s.
    pub delay: Span,
    /// Up to so much more, drawn for each datagram; they stay in order. At most 10 s.
    pub jitter: Span,
    /// KiB per second; without it as much as comes.
    pub kib_per_second: Option<u64>,
    /// Share that is lost, 0 to 1.
    pub loss: f64,
}

/// A stretch of load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// For criteria and reports; as the name of a scenario.
    pub name: String,
    /// When it begins.
    #[serde(default)]
    pub at: Span,
    /// How long transactions leave, at least 1 s.
    #[serde(rename = "for")]
    pub lasts: Span,
    /// How many leave.
    pub rate: PhaseRate,
    /// Kinds of transactions and their weights; `slipnet load --help` lists the kinds.
    #[serde(default = "transfers")]
    #[schemars(schema_with = "super::schema::mix")]
    pub mix: BTreeMap<String, u32>,
    /// The nodes that take the transactions: names of nodes or groups.
    #[serde(default = "validators")]
    pub to: Vec<String>,
    /// The node that commits are read from; it takes transactions too. Without it the first of `to`.
    #[serde(default)]
    pub read_from: Option<String>,
    /// The nodes at which the follow latency is read: names of nodes or groups, or `fullnodes`.
    #[serde(default)]
    pub followers: Vec<String>,
    /// Reads per second, at the followers and at the node that commits are read from, half by HTTP and half by WebSocket.
    #[serde(default)]
    pub reads_per_second: u32,
    /// A directory of `NUMBER.rlp.gz`, for the kind `access-lists`; a relative one is beside the file.
    #[serde(default)]
    pub access_lists: Option<String>,
}

/// Transactions per second over a phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PhaseRate {
    /// The same all the time.
    Constant(u32),
    /// In a straight line.
    Ramp {
        /// At the beginning.
        from: u32,
        /// At the end.
        to: u32,
    },
    /// A base rate, and at the end of each period a peak.
    Burst {
        /// Between peaks.
        base: u32,
        /// In a peak.
        peak: u32,
        /// From peak to peak.
        period: Span,
        /// Of a peak, below the period.
        peak_lasts: Span,
    },
    /// Doubles until the chain no longer keeps up, then halves the gap; ends with the phase at the latest.
    Saturation {
        /// The first rate.
        from: u32,
        /// Seconds of each step, 2 to 60.
        step_seconds: u64,
    },
}

impl PhaseRate {
    /// As a load knows it; none of a search.
    pub(super) fn known(self) -> Option<Rate> {
        match self {
            PhaseRate::Constant(per_second) => Some(Rate::Constant { per_second }),
            PhaseRate::Ramp { from, to } => Some(Rate::Ramp { from, to }),
            PhaseRate::Burst { base, peak, period, peak_lasts } => {
                Some(Rate::Burst { base, peak, period_ms: period.ms(), peak_ms: peak_lasts.ms() })
            }
            PhaseRate::Saturation { .. } => None,
        }
    }

    /// The fastest rate that is known beforehand, and the most transactions that it can mean over a time.
    pub(super) fn bounds(self, lasts: Span) -> (u32, f64) {
        let seconds = lasts.seconds();
        match self {
            PhaseRate::Constant(rate) => (rate, f64::from(rate) * seconds),
            PhaseRate::Ramp { from, to } => (from.max(to), f64::from(from.max(to)) * seconds),
            PhaseRate::Burst { base, peak, .. } => (base.max(peak), f64::from(base.max(peak)) * seconds),
            // Steps are signed one by one.
            PhaseRate::Saturation { from, step_seconds } => (from, f64::from(from) * step_seconds as f64),
        }
    }
}

fn default_seed() -> String {
    DEFAULT_SEED.to_owned()
}

fn one() -> u32 {
    1
}

fn transfers() -> BTreeMap<String, u32> {
    BTreeMap::from([("transfers".to_owned(), 1)])
}

fn validators() -> Vec<String> {
    vec![super::names::VALIDATORS.to_owned()]
}
