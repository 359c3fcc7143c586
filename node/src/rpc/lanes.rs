//! The threads of calls. Each kind of work has a fixed number of its own, so that costly calls wait for each other and never make
//! the cheap ones wait.

use std::collections::BTreeMap;

use crate::{blocking::Blocking, turns::Turns, workers::Rank};

/// Most threads that the cheap calls take at once. They wait for the disk, which gains nothing from more at a time.
const READS_MAX: usize = 48;
/// Threads of calls that compute, beside one for each core, and further ones of such calls that turned out to be long and take
/// turns. These bound the answers, and the memories of the EVM, at a time. Each waiting call holds only what it could fill in a few
/// milliseconds.
const CALLS_BESIDE: usize = 2;
const CALLS_MAX: usize = 16;
const LONG_CALLS_MAX: usize = 28;
/// Threads of calls that search, each of which holds the receipts of a batch.
const SEARCHES_MAX: usize = 16;
const SEARCHES_MIN: usize = 4;
const LONG_SEARCHES_MAX: usize = 8;
/// Threads of traces, each of which holds as much as `api.trace_mib_max` says, and executes whole batches.
const TRACES_MAX: usize = 1;
const LONG_TRACES_MAX: usize = 1;
/// Threads of calls that turned out to open a large batch, or to make a long answer, and further ones that take turns. What they open at a
/// time is bounded by memory: see `batches`.
const BATCHES_MAX: usize = 2;
const LONG_BATCHES_MAX: usize = 4;
/// The same of transactions that come in: recovering one takes 30 microseconds, and consensus needs the cores.
const TRANSACTIONS_MAX: usize = 4;

/// Bytes of a filter that is read like others; one of a thousand topics has 68,000, takes a millisecond, and comes again and again.
const SHORT_FILTER_BYTES_MAX: usize = 8 << 10;

/// A kind of work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Lane {
    /// A few reads of memory or disk.
    Reads,
    /// Runs the EVM, or opens whole batches: some milliseconds to a second.
    Calls,
    /// Goes through the ledger, up to the budget of one search.
    Searches,
    /// Executes batches once more, up to the time and the memory of one trace.
    Traces,
    /// Opens one large batch, or makes a long answer. No method begins here: calls of other lanes come here when they find out.
    Batches,
    /// Recovers the sender of a transaction, mostly for nothing if the sender means ill.
    Transactions,
}

impl Lane {
    /// As docs/security.md has it.
    #[cfg(test)]
    pub(super) fn name(self) -> &'static str {
        match self {
            Lane::Reads => "reads",
            Lane::Calls => "calls",
            Lane::Searches => "searches",
            Lane::Traces => "traces",
            Lane::Batches => "batches",
            Lane::Transactions => "transactions",
        }
    }

    /// Lanes that compute or search stand back for the node's own work.
    fn rank(self) -> Rank {
        if self.is_cheap() { Rank::Own } else { Rank::Behind }
    }

    /// Whether its calls take so little that they need not queue with costly ones.
    pub(crate) fn is_cheap(self) -> bool {
        matches!(self, Lane::Reads | Lane::Transactions)
    }
}

/// Whether the parameters of a block ask for its transactions in full, whose senders are recovered one by one.
pub(super) fn names_every_transaction(params: &str) -> bool {
    params.trim_end_matches([']', ' ', '\t', '\r', '\n']).ends_with("true")
}

/// Whether the parameters hold a filter that takes long to read.
pub(super) fn has_long_filter(params: &str) -> bool {
    params.len() > SHORT_FILTER_BYTES_MAX
}

/// The places of all lanes.
pub(super) struct Lanes(BTreeMap<Lane, Blocking>);

impl Lanes {
    /// Reads wait for the disk, so there are more of them than cores.
    pub(super) fn new() -> Lanes {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Long work leaves a core to short work.
        let turns = Turns::new(cores.saturating_sub(1).max(1));
        let places = [
            (Lane::Reads, "rpc reads", ((2 * cores + 8).min(READS_MAX), 0)),
            (Lane::Calls, "rpc calls", ((cores + CALLS_BESIDE).min(CALLS_MAX), LONG_CALLS_MAX)),
            (Lane::Searches, "rpc searches", (cores.clamp(SEARCHES_MIN, SEARCHES_MAX), LONG_SEARCHES_MAX)),
            (Lane::Traces, "rpc traces", (TRACES_MAX, LONG_TRACES_MAX)),
            (Lane::Batches, "rpc batches", (BATCHES_MAX, LONG_BATCHES_MAX)),
            (Lane::Transactions, "rpc transactions", (cores.div_ceil(2).clamp(2, TRANSACTIONS_MAX), 0)),
        ];
        Lanes(
            places
                .into_iter()
                .map(|(lane, name, places)| {
                    (lane, Blocking::with_long(name, places, lane.rank(), turns.clone()))
                })
                .collect(),
        )
    }

    /// The threads of a lane.
    pub(super) fn of(&self, lane: Lane) -> &Blocking {
        &self.0[&lane]
    }
}
