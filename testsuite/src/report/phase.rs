//! [`PhaseFigures`]: the figures of a phase of load. They are the transactions due, sent and committed, the latency of
//! each kind of answer, and the audit of receipts and balances.

use serde::{Deserialize, Serialize};

use crate::load::{AuditFigures, Limit, LoadSummary, Percentiles, ReadWay};

/// A phase of load, or one step of a search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseFigures {
    /// The phase's name in the scenario.
    pub name: String,
    /// The kinds of transactions with their weights, and the rate at which they were due.
    pub what: String,
    /// Transactions per second that were due.
    pub offered: f64,
    /// Transactions per second that were sent by the end of the schedule.
    pub sent: f64,
    /// Committed transactions per second.
    pub committed: f64,
    /// Transactions per second that the generators sent to a sink beforehand.
    pub capacity: f64,
    /// What limited the rate: the generators or the nodes; `None` if the schedule did.
    pub limited_by: Option<Limit>,
    /// Transactions that no node accepted.
    pub given_up: u64,
    /// The latencies of commits, of each follower, and of the reads and announced heads at each node.
    pub latencies: Vec<LatencyFigures>,
    /// The audit of receipts and balances; `None` in reports of earlier releases.
    #[serde(default)]
    pub audit: Option<AuditFigures>,
}

/// A latency, counted from the due time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyFigures {
    /// What it measures: `commit`, `follow NODE`, `read NODE by HTTP`, `read NODE by WebSocket` or `newHeads NODE by
    /// WebSocket`.
    pub of: String,
    /// The percentiles in milliseconds; `None` if there were no samples.
    pub ms: Option<Percentiles>,
    /// Reads without an answer, or heads that no subscription announced.
    pub failed: u64,
}

impl PhaseFigures {
    /// Makes the figures of a run of the load with this name.
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

    /// Returns what limited the rate, in words.
    pub(super) fn limit(&self) -> &'static str {
        match self.limited_by {
            None => "the schedule",
            Some(Limit::Generators) => "the generators",
            Some(Limit::Node) => "the nodes",
        }
    }
}
