//! [`Criterion`]: a condition that must hold for a scenario to pass. Pure functions judge it from a run's measurements.
//!
//! ```text
//!  RunReport (series of nodes and load, catch-up curves) ─┐
//!  Findings (audits at the end: roots, blame, alarms) ────┴─▶ judge ─▶ one CriterionResult for each criterion
//! ```
//!
//! Invariant: a criterion without a measurement fails. A phase without a figure, a node without a sample, and an
//! unknown name all fail their criterion, and the result says so.

mod findings;
mod judge;
mod liars;

use std::{collections::BTreeMap, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use findings::{Convictions, Findings, PhaseTotals, Quantiles, ReadTotals};
pub use judge::judge;
pub(super) use liars::counts_liars;

use super::{fault::PeerLie, names, span::Span};

/// A condition that must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Criterion {
    /// Committed transactions per second of a phase, from the first due time to the last commit; for a search, the rate
    /// that it found.
    Throughput {
        /// The phase.
        phase: String,
        /// Transactions per second.
        at_least: f64,
    },
    /// A percentile of a phase's commit latency, counted from when transactions were due. A transaction that is never
    /// committed counts as later than any other.
    Commit {
        /// The phase.
        phase: String,
        /// The percentile.
        percentile: Percentile,
        /// The limit.
        at_most: Span,
    },
    /// As `commit`, but until the phase's followers showed the batch: at the slowest follower.
    Follow {
        /// The phase.
        phase: String,
        /// The percentile.
        percentile: Percentile,
        /// The limit.
        at_most: Span,
    },
    /// A percentile of the latency of a phase's reads, at the slowest of the nodes that were read from; for a search,
    /// at the rate that it found. A read without an answer counts as slower than any other.
    Read {
        /// The phase; it must have `reads_per_second`.
        phase: String,
        /// The percentile.
        percentile: Percentile,
        /// The limit.
        at_most: Span,
        /// The transport; both if not given.
        #[serde(default)]
        way: Option<Way>,
    },
    /// A percentile of the delay of `newHeads` announcements, from when any node of the phase first showed the batch.
    /// It is that of the slowest node that was read from; for a search, at the rate that it found. A head that was
    /// never announced counts as later than any other.
    NewHeads {
        /// The phase; it must have `reads_per_second`.
        phase: String,
        /// The percentile.
        percentile: Percentile,
        /// The limit.
        at_most: Span,
    },
    /// Every transaction that nodes accepted is committed, none was given up, and all receipts and balances were
    /// compared and are right. Nobody else sent from the load's accounts. Transactions that a search gives up beyond
    /// the rate that it finds do not count.
    LoadComplete,
    /// Nodes that joined or came back were within two batches of the highest head in time, each time. A node that a
    /// fault might have drawn (`one_of`, `primary`) but did not is left out, unless that applies to all.
    CatchUp {
        /// Names of nodes or groups.
        nodes: Vec<String>,
        /// The limit.
        at_most: Span,
    },
    /// The age of the last batch, in the samples of each node that answered.
    HeadAge {
        /// Names of nodes or groups.
        #[serde(default = "everybody")]
        nodes: Vec<String>,
        /// The limit.
        at_most: Span,
        /// The share of the samples that must keep the limit, above 0 and at most 100.
        #[serde(default = "hundred")]
        percent: f64,
    },
    /// The longest time in which no node showed a new batch.
    NoProgress {
        /// The limit.
        at_most: Span,
    },
    /// The most memory that a node's processes used, as counted by the kernel, so that no peak is missed.
    Memory {
        /// Names of nodes or groups.
        #[serde(default = "everybody")]
        nodes: Vec<String>,
        /// The limit.
        mib_max: f64,
    },
    /// The first batch whose transactions a node still has.
    History {
        /// Names of nodes or groups.
        nodes: Vec<String>,
        /// The latest allowed value: the node keeps no less.
        #[serde(default)]
        from_at_most: Option<u64>,
        /// The earliest allowed value: the node keeps no more.
        #[serde(default)]
        from_at_least: Option<u64>,
    },
    /// The nodes that validate at the end, and all other nodes that no fault keeps down then, are in one epoch, at
    /// least this one.
    Epoch {
        /// The epoch's number; at most the number of faults that change the validators.
        at_least: u64,
    },
    /// All nodes that no fault keeps down have the same state at the end, at a batch that all have reached. There must
    /// be at least two.
    EqualRoots,
    /// No honest node banned another honest node, has proof against it, or paused it, unless the other was busy or a
    /// fault explains it.
    NobodyHonestBlamed,
    /// No node raised an alarm: no audit found a certified batch that execution does not reproduce.
    NoAlarm,
    /// Every other validator that was there from the start has proof that these validators lied.
    Convicted {
        /// Names of validators that a fault `lying_validator` affects, with a lie that leaves evidence.
        nodes: Vec<String>,
        /// The kinds of statements that each made twice, all of these; any kind if not given.
        #[serde(default)]
        of: Vec<Statement>,
    },
    /// Nodes banned each liar that a fault `lying_peers` gave them, in time.
    LiarsBanned {
        /// Names of nodes or groups that such a fault may affect; all nodes that were lied to if not given.
        #[serde(default)]
        nodes: Vec<String>,
        /// The limit, from when the operator gave the liar to the node.
        at_most: Span,
        /// A lie that can be proven. If not given, those that every node hears: `forged_heads`, `garbage_answers`,
        /// `foreign_genesis` and `unsigned_heads`.
        #[serde(default)]
        lie: Option<PeerLie>,
    },
}

/// A kind of statement that a validator may make once per view and batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Statement {
    /// As primary: the transactions of the batch.
    Orders,
    /// The outcome that enough validators computed.
    Prepares,
    /// The outcome that a quorum prepared.
    Commits,
}

impl Statement {
    /// The name in a node's status.
    pub(super) fn name(self) -> &'static str {
        match self {
            Statement::Orders => "orders",
            Statement::Prepares => "prepares",
            Statement::Commits => "commits",
        }
    }
}

/// A percentile of all samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Percentile {
    /// The median.
    P50,
    /// The 90th percentile.
    P90,
    /// The 95th percentile.
    P95,
    /// The 99th percentile.
    P99,
    /// The slowest sample.
    Max,
}

/// The transport of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// JSON-RPC over HTTP.
    Http,
    /// JSON-RPC over WebSocket.
    Websocket,
}

impl Percentile {
    /// Returns the percentile as a share from 0 to 1.
    fn share(self) -> f64 {
        match self {
            Percentile::P50 => 0.5,
            Percentile::P90 => 0.9,
            Percentile::P95 => 0.95,
            Percentile::P99 => 0.99,
            Percentile::Max => 1.0,
        }
    }
}

impl Criterion {
    /// Returns the name of the criterion and its subject. Another criterion of the scenario may have the same name.
    pub fn name(&self) -> String {
        let key = self.key();
        match self {
            Criterion::Throughput { phase, .. } => format!("{key} of {phase}"),
            Criterion::Read { phase, percentile, way: Some(way), .. } => {
                format!("{key} {percentile} of {phase} by {way}")
            }
            Criterion::Commit { phase, percentile, .. }
            | Criterion::Follow { phase, percentile, .. }
            | Criterion::NewHeads { phase, percentile, .. }
            | Criterion::Read { phase, percentile, .. } => format!("{key} {percentile} of {phase}"),
            _ => {
                let by = match self {
                    Criterion::LiarsBanned { lie: Some(lie), .. } => format!(" by {}", lie.name()),
                    _ => String::new(),
                };
                match self.nodes() {
                    [] => format!("{key}{by}"),
                    nodes => format!("{key} of {}{by}", nodes.join(", ")),
                }
            }
        }
    }

    /// Returns its name in the file.
    pub(super) fn key(&self) -> &'static str {
        match self {
            Criterion::Throughput { .. } => "throughput",
            Criterion::Commit { .. } => "commit",
            Criterion::Follow { .. } => "follow",
            Criterion::Read { .. } => "read",
            Criterion::NewHeads { .. } => "new_heads",
            Criterion::LoadComplete => "load_complete",
            Criterion::CatchUp { .. } => "catch_up",
            Criterion::HeadAge { .. } => "head_age",
            Criterion::NoProgress { .. } => "no_progress",
            Criterion::Memory { .. } => "memory",
            Criterion::History { .. } => "history",
            Criterion::Epoch { .. } => "epoch",
            Criterion::EqualRoots => "equal_roots",
            Criterion::NobodyHonestBlamed => "nobody_honest_blamed",
            Criterion::NoAlarm => "no_alarm",
            Criterion::Convicted { .. } => "convicted",
            Criterion::LiarsBanned { .. } => "liars_banned",
        }
    }

    /// Returns the phase that it is about, if any.
    pub(super) fn phase(&self) -> Option<&str> {
        match self {
            Criterion::Throughput { phase, .. }
            | Criterion::Commit { phase, .. }
            | Criterion::Follow { phase, .. }
            | Criterion::NewHeads { phase, .. }
            | Criterion::Read { phase, .. } => Some(phase),
            _ => None,
        }
    }

    /// Returns the names of nodes that it lists; empty if it lists none.
    pub(super) fn nodes(&self) -> &[String] {
        self.listed().unwrap_or_default()
    }

    /// Returns its list of nodes; `None` if the criterion has no such list.
    pub(super) fn listed(&self) -> Option<&[String]> {
        match self {
            Criterion::CatchUp { nodes, .. }
            | Criterion::HeadAge { nodes, .. }
            | Criterion::Memory { nodes, .. }
            | Criterion::Convicted { nodes, .. }
            | Criterion::LiarsBanned { nodes, .. }
            | Criterion::History { nodes, .. } => Some(nodes),
            _ => None,
        }
    }
}

/// Returns the names of criteria in reports, exit messages and twins. Repeated names get a number from the second one
/// on.
pub(super) fn names_of(criteria: &[Criterion]) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let name = |criterion: &Criterion| {
        let name = criterion.name();
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        match *count {
            1 => name,
            count => format!("{name} ({count})"),
        }
    };
    criteria.iter().map(name).collect()
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Http => "http",
            Way::Websocket => "websocket",
        })
    }
}

impl fmt::Display for Percentile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Percentile::P50 => "p50",
            Percentile::P90 => "p90",
            Percentile::P95 => "p95",
            Percentile::P99 => "p99",
            Percentile::Max => "max",
        })
    }
}

fn everybody() -> Vec<String> {
    vec![names::ALL.to_owned()]
}

fn hundred() -> f64 {
    100.0
}
