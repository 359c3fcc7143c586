//! [`PhaseFigures`]: what a stretch of load came to: what was due, what left, what was committed, how late each kind of answer was, and
//! what the audit of receipts and balances found.

use serde::{Deserialize, Serialize};

use crate::load::{Audit, Limit, LoadSummary, Percentiles, ReadWay};

/// A stretch of load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseFigures {
    /// Its name in the scenario.
    pub name: String,
    /// Kinds of transactions and their weights, and how fast they were due.
    pub what: String,
    /// Transactions per second that were due.
    pub offered: f64,
    /// Transactions per second that left the generators by the end of the schedule.
    pub sent: f64,
    /// Committed transactions per second.
    pub committed: f64,
    /// Transactions per second that the generators proved to a sink before.
    pub capacity: f64,
    /// Who set the rate: the generators or the nodes; none if it was the schedule.
    pub limited_by: Option<Limit>,
    /// Transactions that no node took.
    pub given_up: u64,
    /// Of commits, of each follower, and of the reads and the told heads at each node.
    pub latencies: Vec<LatencyFigures>,
    /// Receipts and balances; none in a report of an earlier release.
    #[serde(default)]
    pub audit: Option<AuditFigures>,
}

/// How late something was, from when it was due.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyFigures {
    /// What: `commit`, `follow NODE`, `read NODE by HTTP`, `read NODE by WebSocket` or `newHeads NODE by WebSocket`.
    pub of: String,
    /// In milliseconds; none if nothing came.
    pub ms: Option<Percentiles>,
    /// Reads without an answer, and heads that no subscription told.
    pub failed: u64,
}

/// What was compared of a stretch of load, to the last unit, and what of it is not as it must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditFigures {
    /// Receipts that were compared with what was sent.
    pub receipts: u64,
    /// Of them, those of failed transactions.
    pub receipts_failed: u64,
    /// Receipts that are not what the transaction asked for.
    pub receipts_wrong: u64,
    /// Transactions that are in two batches, or twice in one.
    pub duplicates: u64,
    /// Accepted transactions that no batch has.
    pub lost: u64,
    /// Transactions of the load's accounts that the load did not send.
    pub foreign: u64,
    /// Balances, nonces and slots that were compared with what the receipts add up to.
    pub balances: u64,
    /// Of them, those that differ.
    pub balances_wrong: u64,
}

impl AuditFigures {
    /// Of the audit of a load.
    pub fn of(audit: &Audit) -> AuditFigures {
        AuditFigures {
            receipts: audit.receipts,
            receipts_failed: audit.receipts_failed,
            receipts_wrong: audit.receipts_wrong,
            duplicates: audit.duplicates,
            lost: audit.lost,
            foreign: audit.foreign,
            balances: audit.balances,
            balances_wrong: audit.balances_wrong,
        }
    }

    /// Takes in those of another load.
    pub fn add(&mut self, other: AuditFigures) {
        self.receipts += other.receipts;
        self.receipts_failed += other.receipts_failed;
        self.receipts_wrong += other.receipts_wrong;
        self.duplicates += other.duplicates;
        self.lost += other.lost;
        self.foreign += other.foreign;
        self.balances += other.balances;
        self.balances_wrong += other.balances_wrong;
    }

    /// What is not as it must be, in words; nothing if all is.
    pub fn wrong(&self) -> Vec<String> {
        let counts = [
            (self.receipts_failed, "failed"),
            (self.receipts_wrong, "with wrong receipts"),
            (self.duplicates, "twice"),
            (self.lost, "lost"),
            (self.foreign, "foreign"),
            (self.balances_wrong, "wrong balances"),
        ];
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
    }
}

impl PhaseFigures {
    /// Of a run of the load under this name.
    pub fn of(name: &str, summary: &LoadSummary) -> PhaseFigures {
        let mut latencies =
            vec![LatencyFigures { of: "commit".to_owned(), ms: summary.commit_ms, failed: 0 }];
        let follow = summary.follow_ms.iter();
        latencies.extend(follow.map(|(node, ms)| LatencyFigures {
            of: format!("follow {node}"),
            ms: *ms,
            failed: 0,
        }));
        latencies.extend(summary.reads.iter().map(|reads| {
            let way = match reads.way {
                ReadWay::Http => "HTTP",
                ReadWay::WebSocket => "WebSocket",
            };
            LatencyFigures {
                of: format!("read {} by {way}", reads.node),
                ms: reads.read_ms,
                failed: reads.failed,
            }
        }));
        latencies.extend(summary.news.iter().map(|news| LatencyFigures {
            of: format!("newHeads {} by WebSocket", news.node),
            ms: news.news_ms,
            failed: news.missed,
        }));
        PhaseFigures {
            name: name.to_owned(),
            what: format!("{}, {}", summary.workload, summary.rate),
            offered: summary.offered_per_second,
            sent: summary.sent_per_second,
            committed: summary.achieved_per_second,
            capacity: summary.capacity_per_second,
            limited_by: summary.limited_by,
            given_up: summary.given_up,
            latencies,
            audit: Some(AuditFigures::of(&summary.audit)),
        }
    }

    /// Who set the rate, in a word.
    pub(super) fn limit(&self) -> &'static str {
        match self.limited_by {
            None => "the schedule",
            Some(Limit::Generators) => "the generators",
            Some(Limit::Node) => "the nodes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each figure of an audit is in the report as itself, and several loads add up.
    #[test]
    fn an_audit_is_told_whole() {
        let audit = Audit {
            receipts: 1,
            receipts_failed: 2,
            receipts_wrong: 3,
            duplicates: 4,
            lost: 5,
            foreign: 6,
            balances: 7,
            balances_wrong: 8,
            differences: Vec::new(),
        };
        let mut sum = AuditFigures::of(&audit);
        assert_eq!(
            sum.wrong(),
            ["2 failed", "3 with wrong receipts", "4 twice", "5 lost", "6 foreign", "8 wrong balances"]
        );
        sum.add(sum);
        let wanted = AuditFigures {
            receipts: 2,
            receipts_failed: 4,
            receipts_wrong: 6,
            duplicates: 8,
            lost: 10,
            foreign: 12,
            balances: 14,
            balances_wrong: 16,
        };
        assert_eq!(sum, wanted);
        let right = AuditFigures { receipts: 9, balances: 9, ..AuditFigures::default() };
        assert!(right.wrong().is_empty());
    }
}
