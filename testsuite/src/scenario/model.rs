//! [`Scenario`] as written in its file. `rules` checks the values; the engine defines their meaning.

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

/// A test of a chain: nodes, load, faults by time or by seed, and the criteria for passing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Lower-case words and digits joined by `-`, at most 48 bytes.
    pub name: String,
    /// What a pass shows, in a sentence.
    pub description: String,
    /// The seed of keys, load and the times of faults, at most 64 bytes.
    #[serde(default = "default_seed")]
    pub seed: String,
    /// The time from the first batch until criteria are judged, 5 s to 1 h; joins, phases and faults lie within.
    pub duration: Span,
    /// The nodes and the links between them.
    #[serde(default)]
    pub topology: Topology,
    /// The load, in phases that may overlap.
    #[serde(default)]
    pub workload: Vec<Phase>,
    /// What goes wrong.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// The conditions that must hold; a failed scenario names those that do not.
    pub criteria: Vec<Criterion>,
}

/// The nodes and the links between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Topology {
    /// The number of validators from the first batch on, 1 to 32: `validator-0`, `validator-1`, …
    pub validators: u32,
    /// Groups of further nodes; at most 64 nodes in all.
    pub groups: Vec<Group>,
    /// The number of funded accounts, 2 to 10,000.
    pub accounts: u32,
    /// `consensus.batch_interval_ms`, and the interval between empty batches, 20 to 60,000; the nodes' defaults if not
    /// given.
    pub batch_interval_ms: Option<u64>,
    /// Batches between two snapshots, 1 to 1,000,000.
    pub snapshot_interval_batches: u64,
    /// The time limit for a node to answer, 1 s to 10 min: for one that joins, for one that is there from the start,
    /// and for the validators with their first batch. The clock continues while nodes join.
    pub ready_within: Span,
    /// Keys of node.yaml by their full names, such as `storage.prune.bodies`, for all nodes.
    pub config: Config,
    /// Settings of individual nodes; later entries override earlier ones.
    pub settings: Vec<Settings>,
    /// The links between two regions. Nodes without a region have undelayed links to all.
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

/// Nodes of the same kind: `NAME` if there is one, otherwise `NAME-0`, `NAME-1`, …
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Formed like a scenario's name; no other group or node may have it.
    pub name: String,
    /// The number of nodes, 1 to 63.
    #[serde(default = "one")]
    pub count: u32,
    /// Whether the nodes only follow, or validate once the chain's validator set names them.
    #[serde(default)]
    pub part: Part,
    /// The sync mode; not for a candidate.
    #[serde(default)]
    pub mode: SyncMode,
    /// When the nodes start, with an empty disk; before the scenario's clock if not given.
    #[serde(default)]
    pub joins: Option<Span>,
    /// The nodes that they dial: names of nodes, or of groups before this one; all earlier nodes if not given.
    #[serde(default)]
    pub behind: Vec<String>,
    /// A lie of `lying_peers`, written with `-` for each `_`: servers with this lie come first in the nodes' list of
    /// peers.
    #[serde(default)]
    pub among: Option<String>,
    /// Whether trust starts at a waypoint, which a validator gives when the node starts, instead of at the genesis; not
    /// for a candidate.
    #[serde(default)]
    pub waypoint: bool,
}

/// The role of a group's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Follows.
    #[default]
    Fullnode,
    /// Follows until the chain's validator set names its key.
    Candidate,
}

/// Settings of individual nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Names of nodes or groups, `validators`, `fullnodes` or `all`.
    pub nodes: Vec<String>,
    /// Keys of node.yaml by their full names.
    #[serde(default)]
    pub config: Config,
    /// The region of these nodes: `eu`, `us`, `usw`, `ap`, `jp`, `au`, `sa`, or one that `links` names.
    #[serde(default)]
    pub region: Option<String>,
    /// The program that these nodes run: `current`, or a name that `--program NAME=PATH` gives.
    #[serde(default)]
    pub program: Option<String>,
    /// The size of a disk of each node's own, in memory, 128 to 4,096 MiB: for the fault `full_disk`. Needs the right
    /// to mount. An eighth of it becomes `storage.disk_free_min_mib`, unless `config` sets that.
    #[serde(default)]
    pub disk_mib: Option<u64>,
}

/// The link between two regions, in both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Two regions; the same one twice is the link between the nodes within it.
    pub between: [String; 2],
    /// How datagrams travel.
    #[serde(default)]
    pub shape: LinkShape,
}

impl Link {
    /// Whether it connects the same two regions as `other`.
    pub(super) fn is_beside(&self, other: &Link) -> bool {
        let ([one, another], [from, to]) = (&self.between, &other.between);
        (one, another) == (from, to) || (one, another) == (to, from)
    }
}

/// How datagrams travel between two nodes, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LinkShape {
    /// The one-way delay, at most 10 s.
    pub delay: Span,
    /// The maximum additional delay, drawn for each datagram, at most 10 s; datagrams stay in order.
    pub jitter: Span,
    /// The bandwidth in KiB per second; unlimited if not given.
    pub kib_per_second: Option<u64>,
    /// The share of lost datagrams, 0 to 1.
    pub loss: f64,
}

/// A phase of load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// The name in criteria and reports, formed like a scenario's name.
    pub name: String,
    /// When the phase begins.
    #[serde(default)]
    pub at: Span,
    /// How long transactions are sent, at least 1 s.
    #[serde(rename = "for")]
    pub lasts: Span,
    /// The rate of transactions.
    pub rate: PhaseRate,
    /// Kinds of transactions and their weights; `slipnet load --help` lists the kinds.
    #[serde(default = "transfers")]
    #[schemars(schema_with = "super::schema::mix")]
    pub mix: BTreeMap<String, u32>,
    /// The nodes that get the transactions: names of nodes or groups.
    #[serde(default = "validators")]
    pub to: Vec<String>,
    /// The node from which commits are read; it also gets transactions. The first of `to` if not given.
    #[serde(default)]
    pub read_from: Option<String>,
    /// The nodes at which the follow latency is measured: names of nodes or groups, or `fullnodes`.
    #[serde(default)]
    pub followers: Vec<String>,
    /// Reads per second, at the followers and at the node from which commits are read, half over HTTP and half over
    /// WebSocket.
    #[serde(default)]
    pub reads_per_second: u32,
    /// A directory of `NUMBER.rlp.gz`, for the kind `access-lists`; a relative path starts at the file's directory.
    #[serde(default)]
    pub access_lists: Option<String>,
}

/// Transactions per second over a phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PhaseRate {
    /// A constant rate.
    Constant(u32),
    /// A linear change of the rate.
    Ramp {
        /// The rate at the beginning.
        from: u32,
        /// The rate at the end.
        to: u32,
    },
    /// A base rate, with a peak at the end of each period.
    Burst {
        /// The rate between peaks.
        base: u32,
        /// The rate in a peak.
        peak: u32,
        /// The time from peak to peak.
        period: Span,
        /// The length of a peak; less than the period.
        peak_lasts: Span,
    },
    /// Doubles the rate until the chain no longer keeps up, then halves the gap; ends with the phase at the latest.
    Saturation {
        /// The first rate.
        from: u32,
        /// Seconds of each step, 2 to 60.
        step_seconds: u64,
    },
}

impl PhaseRate {
    /// Returns the load's rate; `None` for a search.
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

    /// Returns the highest rate that is known in advance, and the most transactions that it can mean over a duration.
    pub(super) fn bounds(self, lasts: Span) -> (u32, f64) {
        let seconds = lasts.seconds();
        match self {
            PhaseRate::Constant(rate) => (rate, f64::from(rate) * seconds),
            PhaseRate::Ramp { from, to } => (from.max(to), f64::from(from.max(to)) * seconds),
            PhaseRate::Burst { base, peak, .. } => (base.max(peak), f64::from(base.max(peak)) * seconds),
            // The transactions are signed separately for each step.
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
