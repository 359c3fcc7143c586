//! [`Criterion`]: what must hold for a scenario to pass, judged by pure functions over what a run measured.
//!
//! ```text
//!  RunReport (series of nodes and load, catch-up curves) ─┐
//!  Findings (audits at the end: roots, blame, alarms) ────┴─▶ judge ─▶ one CriterionResult for each criterion
//! ```
//!
//! Invariant: a criterion without a measurement fails. A phase without a figure, a node without a sample, and an unknown name fail
//! their criterion, and the result says so.

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

/// What must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Criterion {
    /// Committed transactions per second of a phase, from the first due time to the last commit; of a search the rate that it found.
    Throughput {
        /// The phase.
        phase: String,
        /// Transactions per second.
        at_least: f64,
    },
    /// A percentile of the commit latency of a phase, from when transactions were due. One that is never committed is later than any.
    Commit {
        /// The phase.
        phase: String,
        /// Which one.
        percentile: Percentile,
        /// The limit.
        at_most: Span,
    },
    /// As `commit`, until the phase's followers showed the batch: at the slowest of them.
    Follow {
        /// The phase.
        phase: String,
        /// Which one.
        percentile: Percentile,
        /// The limit.
        at_most: Span,
    },
    /// A percentile of the latency of a phase's reads, at the slowest of the nodes that were read; of a search at the rate that it found. A
    /// read without an answer is slower than any.
    Read {
        /// The phase; it has `reads_per_second`.
        phase: String,
        /// Which one.
        percentile: Percentile,
        /// The limit.
        at_most: Span,
        /// How they travel; without it both ways.
        #[serde(default)]
        way: Option<Way>,
    },
    /// A percentile of how late the subscriptions to `newHeads` told heads, from when any node of the phase first showed the batch: at the
    /// slowest of the nodes that were read; of a search at the rate that it found. A head that was never told is later than any.
    NewHeads {
        /// The phase; it has `reads_per_second`.
        phase: String,
        /// Which one.
        percentile: Percentile,
        /// The limit.
        at_most: Span,
    },
    /// Everything that nodes took is committed, nothing was given up, all receipts and balances were compared and are right, and nobody
    /// else sent from the load's accounts. What a search gives up beyond the rate that it finds does not count.
    LoadComplete,
    /// Nodes that joined or came back were within two batches of the highest head in time, each time. A node that a fault may have drawn
    /// (`one_of`, `primary`) and did not is left out, unless it is so with all.
    CatchUp {
        /// Names of nodes or groups.
        nodes: Vec<String>,
        /// The limit.
        at_most: Span,
    },
    /// The age of the last batch, of each sample of each node that answered.
    HeadAge {
        /// Names of nodes or groups.
        #[serde(default = "everybody")]
        nodes: Vec<String>,
        /// The limit.
        at_most: Span,
        /// Share of the samples that must keep it, above 0 and at most 100.
        #[serde(default = "hundred")]
        percent: f64,
    },
    /// The longest time in which no node showed a new batch.
    NoProgress {
        /// The limit.
        at_most: Span,
    },
    /// The most memory that a node's processes took from their beginning, as the kernel counted it: no sample misses it.
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
        /// The node keeps no less.
        #[serde(default)]
        from_at_most: Option<u64>,
        /// The node keeps no more.
        #[serde(default)]
        from_at_least: Option<u64>,
    },
    /// Those that validate at the end, and all others that no fault holds down then, are in one epoch, at least this one.
    Epoch {
        /// Its number, at most as many as faults change the validators.
        at_least: u64,
    },
    /// All nodes that no fault holds down have the same state at the end, at a batch that all reached; there are two at least.
    EqualRoots,
    /// No honest node banned another honest one, has proof against it, or paused it, unless it was busy or a fault explains that then.
    NobodyHonestBlamed,
    /// No node raised an alarm: no audit found a certified batch that execution does not give.
    NoAlarm,
    /// Each other validator that was there from the start has proof that these lied.
    Convicted {
        /// Names of validators that a fault `lying_validator` meets, with a lie that leaves evidence.
        nodes: Vec<String>,
        /// What each said twice, all of these; without it anything.
        #[serde(default)]
        of: Vec<Statement>,
    },
    /// Nodes banned each liar that a fault `lying_peers` gave them, in time.
    LiarsBanned {
        /// Names of nodes or groups that such a fault may meet; without it all that were lied to.
        #[serde(default)]
        nodes: Vec<String>,
        /// The limit, from when the operator gave the liar to the node.
        at_most: Span,
        /// One that can be proven; without it those that every node hears: `forged_heads`, `garbage_answers`, `foreign_genesis` and
        /// `unsigned_heads`.
        #[serde(default)]
        lie: Option<PeerLie>,
    },
}

/// What a validator may say once in a view of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Statement {
    /// As primary, which transactions the batch has.
    Orders,
    /// Which outcome enough validators came to.
    Prepares,
    /// Which outcome a quorum prepared.
    Commits,
}

impl Statement {
    /// As nodes' status writes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Statement::Orders => "orders",
            Statement::Prepares => "prepares",
            Statement::Commits => "commits",
        }
    }
}

/// A share of all samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Percentile {
    /// Half of all are faster.
    P50,
    /// 90 %.
    P90,
    /// 95 %.
    P95,
    /// 99 %.
    P99,
    /// The slowest.
    Max,
}

/// How a read travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// JSON-RPC over HTTP.
    Http,
    /// JSON-RPC over WebSocket.
    Websocket,
}

impl Percentile {
    /// The share of all that are at most as slow.
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
    /// Of the criterion, and of what it is about. Another one of the scenario may have the same.
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

    /// Its name in the file.
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

    /// The phase that it is about, if it is about one.
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

    /// The names of nodes that it is written with; empty of one that is about no nodes of its own.
    pub(super) fn nodes(&self) -> &[String] {
        self.listed().unwrap_or_default()
    }

    /// The list of nodes that it has; none of one that is about no nodes of its own.
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

/// The names of criteria as reports, exit messages and twins have them: of several of one name all but the first have a number.
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
