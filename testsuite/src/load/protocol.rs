//! The protocol between a load and its generators: one JSON object per line, over the generator's standard input and
//! output.
//!
//! ```text
//!  load                              generator (a process of its own)
//!    │── Job ─────────────────────────▶│ signs its part, writes the hashes to a file
//!    │◀───────────────────── Signed ───│
//!    │── Prove ───────────────────────▶│ sends it to the sink as fast as it can, all generators at once
//!    │◀───────────────────── Proved ───│
//!    │── Begin { at_ns } ─────────────▶│ sends when each transaction is due
//!    │◀──────────────────── Progress ──│ ten times a second
//!    │── Stop ────────────────────────▶│
//!    │◀──────────────────────── Done ──│ and ends
//! ```
//!
//! A generator ends when its standard input closes: the load has ended.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{
    percentiles::Latencies, plan::PlanOptions, question::Contract, setup::ChainFacts, stretches::Stretches,
};

/// The longest line. A job of 10,000 accounts has one megabyte. The final message of a generator that had to sign all
/// two million transactions again lists each with its new hash, in 80 bytes.
pub(super) const LINE_BYTES_MAX: usize = 256 << 20;

/// A message from the load to a generator.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum GeneratorCommand {
    /// The generator's job; always the first message.
    Job(Box<Job>),
    /// Sends to the sink for this long.
    Prove { ms: u64 },
    /// Sends by the schedule; the first transaction is due at this time of [`monotonic_ns`].
    Begin { at_ns: u64 },
    /// Reports, and ends.
    Stop,
}

/// A generator's part of a load.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// Its index among the generators.
    pub(super) worker: usize,
    /// The number of generators.
    pub(super) workers: usize,
    /// Connections of each generator; each has at most one batch in flight.
    pub(super) connections: usize,
    pub(super) chain: ChainFacts,
    /// The secret keys of all accounts.
    pub(super) accounts: Vec<String>,
    /// The accounts' next nonces.
    pub(super) nonces: Vec<u64>,
    pub(super) plan: PlanOptions,
    /// The APIs that accept transactions.
    pub(super) submit: Vec<String>,
    /// The API of the sink, which answers at once.
    pub(super) sink: String,
    pub(super) reads: Option<ReadJob>,
    /// The file for the hashes, 32 bytes each, in the order of the generator's transactions.
    pub(super) hashes_file: PathBuf,
}

/// The reads that accompany the writes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ReadJob {
    /// The names and APIs of the nodes.
    pub(super) nodes: Vec<(String, String)>,
    /// Reads per second at each node, half of them over WebSocket.
    pub(super) per_second: u32,
    /// A contract of the workload, if it has one.
    pub(super) contract: Option<Contract>,
}

/// A message from a generator to the load.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum GeneratorReport {
    /// All transactions are signed.
    Signed { count: u64 },
    /// The transactions per second that it can send to the sink.
    Proved { per_second: f64 },
    /// The progress so far.
    Progress(Tally),
    /// All transactions are sent or given up.
    Done(Box<Outcome>),
    /// The generator cannot go on.
    Failed { reason: String },
}

/// Cumulative counts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Transactions that were sent at least once.
    pub(super) sent: u64,
    pub(super) accepted: u64,
    pub(super) given_up: u64,
    /// Whether every transaction of the generator was accepted or given up.
    pub(super) is_settled: bool,
}

impl Tally {
    /// Adds the tally of another lane or generator of the same run.
    pub(super) fn add(&mut self, other: Tally) {
        self.sent += other.sent;
        self.accepted += other.accepted;
        self.given_up += other.given_up;
        self.is_settled &= other.is_settled;
    }
}

/// The outcome of a generator's transactions at the nodes' APIs, and the generator's own timeliness.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) tally: Tally,
    pub(super) plugged: u64,
    pub(super) resent: u64,
    pub(super) displaced: u64,
    /// Refusals by reason; a resent transaction may be refused again.
    pub(super) refused: BTreeMap<String, u64>,
    /// The delay from the time at which a transaction could have left to the time at which it did: the generator's own
    /// fault.
    pub(super) own: Latencies,
    /// The delay from the due time until a node had answered the previous batch: caused by the node.
    pub(super) blocked: Latencies,
    /// Transactions that were signed again with another nonce: the plan's index and the new hash.
    pub(super) replaced: Vec<(u32, B256)>,
    /// Hashes of transactions that only plug a nonce.
    pub(super) plugs: Vec<B256>,
    /// Plan indices of transactions that were given up although a node may have accepted them.
    pub(super) in_doubt: Vec<u32>,
    pub(super) reads: Vec<ReadOutcome>,
}

impl Outcome {
    /// Adds the outcome of another lane or generator.
    pub(super) fn add(&mut self, other: Outcome) {
        self.tally.add(other.tally);
        self.plugged += other.plugged;
        self.resent += other.resent;
        self.displaced += other.displaced;
        for (reason, count) in other.refused {
            *self.refused.entry(reason).or_default() += count;
        }
        self.own.add(&other.own);
        self.blocked.add(&other.blocked);
        self.replaced.extend(other.replaced);
        self.plugs.extend(other.plugs);
        self.in_doubt.extend(other.in_doubt);
        self.add_reads(other.reads);
    }

    /// Merges the readers' outcomes by node and transport. An hour of reads has a long curve, and one line must hold
    /// all outcomes.
    pub(super) fn add_reads(&mut self, reads: Vec<ReadOutcome>) {
        for read in reads {
            match self.reads.iter_mut().find(|known| known.node == read.node && known.way == read.way) {
                Some(known) => known.add(&read),
                None => self.reads.push(read),
            }
        }
    }
}

/// The transport of a read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadWay {
    /// JSON-RPC over HTTP.
    Http,
    /// JSON-RPC over WebSocket.
    WebSocket,
}

/// The reads at one node over one transport.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ReadOutcome {
    pub(super) node: String,
    pub(super) way: ReadWay,
    /// Latencies from the due time to the answer; at least ten seconds for a missing answer.
    pub(super) latencies: Latencies,
    /// The same by the time at which each read was due.
    pub(super) stretches: Stretches,
    /// Reads without an answer, or with an error.
    pub(super) failed: u64,
    /// The delay from when a read could have left to when it did: the generator's own fault, as for transactions.
    pub(super) own: Latencies,
}

impl ReadOutcome {
    fn add(&mut self, other: &ReadOutcome) {
        self.latencies.add(&other.latencies);
        self.stretches.add(&other.stretches);
        self.failed += other.failed;
        self.own.add(&other.own);
    }
}

/// Returns the nanoseconds of the machine's monotonic clock, which all its processes share.
pub(super) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + nanos.unwrap_or(0)
}

/// Returns the instant of a time of [`monotonic_ns`], which may be in the past.
pub(super) fn instant_of(at_ns: u64) -> Instant {
    let (now, now_ns) = (Instant::now(), monotonic_ns());
    match at_ns.checked_sub(now_ns) {
        Some(ahead) => now + Duration::from_nanos(ahead),
        None => now.checked_sub(Duration::from_nanos(now_ns - at_ns)).unwrap_or(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_the_same_by_both_clocks() {
        let ahead = Duration::from_millis(1);
        // A process that is preempted between reading the two clocks sees them differ.
        let is_same = (0..100).any(|_| {
            let before = Instant::now();
            let at = instant_of(monotonic_ns() + 1_000_000);
            (before + ahead / 2..=Instant::now() + ahead).contains(&at)
        });
        assert!(is_same);
        assert!(instant_of(monotonic_ns() - 1) <= Instant::now());
    }

    /// Goal: the last message of the largest run's generator fits a line, even if all nonces changed.
    #[test]
    fn a_line_holds_every_transaction_signed_again() {
        let replaced = vec![(super::super::TRANSACTIONS_MAX as u32 - 1, B256::repeat_byte(0xab)); 1_000];
        let outcome = Outcome { replaced, ..Outcome::default() };
        let line = serde_json::to_string(&GeneratorReport::Done(Box::new(outcome))).unwrap();
        assert!(line.len() * (super::super::TRANSACTIONS_MAX as usize / 1_000) < LINE_BYTES_MAX);
    }

    #[test]
    fn outcomes_of_generators_add_up_per_node_and_way() {
        let read = |node: &str, way, failed| ReadOutcome {
            node: node.to_owned(),
            way,
            latencies: Latencies::default(),
            stretches: Stretches::of(Duration::from_secs(1)),
            failed,
            own: Latencies::default(),
        };
        let settled = Tally { sent: 1, accepted: 1, given_up: 0, is_settled: true };
        let mut sum =
            Outcome { tally: settled, reads: vec![read("a", ReadWay::Http, 1)], ..Outcome::default() };
        let other = Outcome {
            tally: Tally { is_settled: false, ..settled },
            reads: vec![read("a", ReadWay::Http, 2), read("a", ReadWay::WebSocket, 4)],
            refused: BTreeMap::from([("full".to_owned(), 3)]),
            ..Outcome::default()
        };
        sum.add(serde_json::from_str(&serde_json::to_string(&other).unwrap()).unwrap());
        assert_eq!(sum.reads.iter().map(|read| read.failed).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((sum.tally.sent, sum.tally.is_settled, sum.refused["full"]), (2, false, 3));
        sum.add_reads(vec![read("a", ReadWay::Http, 5), read("b", ReadWay::Http, 6)]);
        assert_eq!(sum.reads.iter().map(|read| read.failed).collect::<Vec<_>>(), [8, 4, 6]);
    }
}
