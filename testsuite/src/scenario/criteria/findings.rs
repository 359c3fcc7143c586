//! [`Findings`]: what a run measured beside its report, for criteria to be judged by.

use std::collections::{BTreeMap, BTreeSet};

use super::{Percentile, Way};
use crate::report::AuditFigures;

/// What each validator has proof of: whom it convicts, and of what kinds of statements.
pub type Convictions = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// The answers of a phase that travelled one way, or the heads that were told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadTotals {
    /// The slowest of all nodes that were read, each percentile by itself; none if nothing was due.
    pub ms: Option<Quantiles>,
    /// The share that never came, at the node where it is largest.
    pub failed_share: f64,
}

/// A latency's percentiles, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// Half of all are faster.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 95 %.
    pub p95: f64,
    /// 99 %.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

impl ReadTotals {
    /// Of both, what is worse.
    pub(in crate::scenario) fn worse(self, other: ReadTotals) -> ReadTotals {
        ReadTotals {
            ms: self.ms.into_iter().chain(other.ms).reduce(Quantiles::worse),
            failed_share: self.failed_share.max(other.failed_share),
        }
    }
}

impl Quantiles {
    /// The larger value of each percentile.
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

/// What became of a phase.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseTotals {
    /// Its name.
    pub name: String,
    /// Transactions that nodes took.
    pub accepted: u64,
    /// Transactions that no node took; of a search none, which finds out by them what is too much.
    pub given_up: u64,
    /// Transactions in batches.
    pub committed: u64,
    /// Per second.
    pub committed_per_second: f64,
    /// Receipts and balances that were compared, and what of them is not as it must be.
    pub audit: AuditFigures,
    /// None if nothing was committed.
    pub commit_ms: Option<Quantiles>,
    /// At the slowest follower, each percentile by itself; none without one.
    pub follow_ms: Option<Quantiles>,
    /// The reads, by how they travelled.
    pub reads: BTreeMap<Way, ReadTotals>,
    /// The heads that subscriptions told, and the share that one never told.
    pub new_heads: ReadTotals,
    /// Of what was due the share that was never seen committed.
    pub commit_missing_share: f64,
    /// Of what was due the share that a follower never showed, at the one where it is largest.
    pub follow_missing_share: f64,
    /// Whether the generators of the load were the limit: then its figures say nothing of the nodes.
    pub is_limited_by_generators: bool,
}

/// What an audit at the end of a run found, and what was watched for all its time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// The phases that ended.
    pub phases: Vec<PhaseTotals>,
    /// The batch at which all states were compared; none if no node reached it.
    pub compared_at: Option<u64>,
    /// Nodes that have one state there.
    pub compared: usize,
    /// Nodes whose state differs from the first validator's there, and nodes that did not reach it.
    pub apart: Vec<String>,
    /// What honest nodes held against honest ones, in words.
    pub blamed: Vec<String>,
    /// Alarms, in words.
    pub alarms: Vec<String>,
    /// Nodes that never told what they hold against others.
    pub unseen: Vec<String>,
    /// Proofs of lies, by whoever has them.
    pub convictions: Convictions,
    /// Nodes that a fault holds down at the end.
    pub held: BTreeSet<String>,
    /// The first batch whose transactions a node answers for, by its name.
    pub history: BTreeMap<String, u64>,
    /// The epoch of each node that answered at the end, by its name.
    pub epochs: BTreeMap<String, u64>,
}
