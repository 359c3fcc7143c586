//! [`PhaseFigures`]: what a stretch of load came to: what was due, what left, what was committed, how late each kind of answer was, and
//! what the audit of receipts and balances found.

use serde::{Deserialize, Serialize};

use crate::load::{AuditFigures, Limit, LoadSummary, Percentiles, ReadWay};

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
            audit: Some(summary.audit.figures),
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
