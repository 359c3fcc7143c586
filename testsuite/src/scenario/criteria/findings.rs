//! [`Findings`]: the measurements of a run that criteria need in addition to its report.

use std::collections::{BTreeMap, BTreeSet};

use super::{Percentile, Way};
use crate::report::AuditFigures;

/// Who has proof against whom: by accuser, then by convicted validator, the kinds of double statements.
pub type Convictions = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// The answers to a phase's reads over one transport, or its heads announced by subscriptions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadTotals {
    /// The slowest of all nodes that were read from, for each percentile separately; `None` if nothing was due.
    pub ms: Option<Quantiles>,
    /// The share that never arrived, at the node where it is largest.
    pub failed_share: f64,
}

/// A latency's percentiles, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The slowest sample.
    pub max: f64,
}

impl ReadTotals {
    /// Returns the worse of both, field by field.
    pub(in crate::scenario) fn worse(self, other: ReadTotals) -> ReadTotals {
        ReadTotals {
            ms: self.ms.into_iter().chain(other.ms).reduce(Quantiles::worse),
            failed_share: self.failed_share.max(other.failed_share),
        }
    }
}

impl Quantiles {
    /// Returns the larger value of each percentile.
    pub(in crate::scenario) fn worse(self, other: Quantiles) -> Quantiles {
        Quantiles {
            p50: self.p50.max(other.p50),
            p90: self.p90.max(other.p90),
            p95: self.p95.max(other.p95),
            p99: self.p99.max(other.p99),
            max: self.max.max(other.max),
        }
    }

    pub(super) fn of(&self, percentile: Percentile) -> f64 {
        match percentile {
            Percentile::P50 => self.p50,
            Percentile::P90 => self.p90,
            Percentile::P95 => self.p95,
            Percentile::P99 => self.p99,
            Percentile::Max => self.max,
        }
    }
}

/// The result of a phase.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseTotals {
    /// The phase's name.
    pub name: String,
    /// Transactions that nodes accepted.
    pub accepted: u64,
    /// Transactions that no node accepted; 0 for a search, which goes beyond the chain's limit on purpose.
    pub given_up: u64,
    /// Transactions that were committed.
    pub committed: u64,
    /// Committed transactions per second.
    pub committed_per_second: f64,
    /// Receipts and balances compared, and the deviations found.
    pub audit: AuditFigures,
    /// The commit latency; `None` if nothing was committed.
    pub commit_ms: Option<Quantiles>,
    /// The latency at the slowest follower, for each percentile separately; `None` without followers.
    pub follow_ms: Option<Quantiles>,
    /// The reads, by transport.
    pub reads: BTreeMap<Way, ReadTotals>,
    /// The heads announced by subscriptions, with the share of missed ones.
    pub new_heads: ReadTotals,
    /// The share of due transactions that were never seen committed.
    pub commit_missing_share: f64,
    /// The share of due transactions that a follower never showed, at the follower where it is largest.
    pub follow_missing_share: f64,
    /// Whether the load's generators were the limit: then its figures say nothing about the nodes.
    pub is_limited_by_generators: bool,
}

/// The results of the audit at the end of a run, and of monitors during the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// The phases that have ended.
    pub phases: Vec<PhaseTotals>,
    /// The batch at which all states were compared; `None` if no node reached it.
    pub compared_at: Option<u64>,
    /// The number of nodes with the same state there.
    pub compared: usize,
    /// Nodes whose state there differs from the first validator's, and nodes that did not reach it.
    pub apart: Vec<String>,
    /// Accusations of honest nodes against honest nodes, in words.
    pub blamed: Vec<String>,
    /// Alarms, in words.
    pub alarms: Vec<String>,
    /// Nodes that never reported their accusations.
    pub unseen: Vec<String>,
    /// Proofs of lies, by accuser.
    pub convictions: Convictions,
    /// Nodes that a fault keeps down at the end.
    pub held: BTreeSet<String>,
    /// The first batch whose transactions a node serves, by the node's name.
    pub history: BTreeMap<String, u64>,
    /// The epoch of each node that answered at the end, by the node's name.
    pub epochs: BTreeMap<String, u64>,
}
