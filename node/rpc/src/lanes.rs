//! The threads of calls. Each kind of work has its own fixed number of threads. So costly calls wait for each other and
//! never delay the cheap ones.

use std::collections::BTreeMap;

use slipstream_fair::{Blocking, Rank, Turns};

/// Maximum number of threads that cheap calls take at once. These calls wait for the disk, which gains nothing from
/// more parallelism.
const READS_MAX: usize = 48;
/// Threads of calls that compute: one for each core and `CALLS_BESIDE` more, at most `CALLS_MAX`. Calls that turn out
/// to be long take turns on `LONG_CALLS_MAX` extra threads. These numbers bound the answers and EVM memories that exist
/// at once. Each waiting call holds only what it could fill in a few milliseconds.
const CALLS_BESIDE: usize = 2;
const CALLS_MAX: usize = 16;
const LONG_CALLS_MAX: usize = 28;
/// Threads of calls that search; each call holds the receipts of one batch.
const SEARCHES_MAX: usize = 16;
const SEARCHES_MIN: usize = 4;
const LONG_SEARCHES_MAX: usize = 8;
/// Threads of traces. Each trace holds up to `api.trace_mib_max` of memory and executes whole batches.
const TRACES_MAX: usize = 1;
const LONG_TRACES_MAX: usize = 1;
/// Threads of calls that turn out to open a large batch or to build a long answer, and extra threads that take turns. A
/// memory budget bounds the data that these calls open at once: see `batches`.
const BATCHES_MAX: usize = 2;
const LONG_BATCHES_MAX: usize = 4;
/// Threads that check incoming transactions: one sender recovery takes 30 microseconds, and consensus needs the cores.
const TRANSACTIONS_MAX: usize = 4;

/// Maximum bytes of a filter that is read as cheap work. A filter of a thousand topics has 68,000 bytes, takes a
/// millisecond to read, and recurs often.
const SHORT_FILTER_BYTES_MAX: usize = 8 << 10;

/// A kind of work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lane {
    /// A few reads of memory or disk.
    Reads,
    /// Runs the EVM, or opens whole batches: some milliseconds to a second.
    Calls,
    /// Scans the ledger, up to the budget of one search.
    Searches,
    /// Re-executes batches, up to the time and memory limits of one trace.
    Traces,
    /// Opens one large batch, or builds a long answer. No method starts here: calls of other lanes move here when they
    /// find that they must.
    Batches,
    /// Recovers the sender of a transaction, mostly in vain if the sender is malicious.
    Transactions,
}

impl Lane {
    /// The lane's name in docs/security.md.
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

    /// Lanes that compute or search yield to the node's own work.
    fn rank(self) -> Rank {
        if self.is_cheap() { Rank::Own } else { Rank::Behind }
    }

    /// Whether its calls are so short that they need not queue behind costly ones.
    pub(crate) fn is_cheap(self) -> bool {
        matches!(self, Lane::Reads | Lane::Transactions)
    }
}

/// Whether the parameters request a block with all its transactions, whose senders are recovered one by one.
pub(super) fn names_every_transaction(params: &str) -> bool {
    params.trim_end_matches([']', ' ', '\t', '\r', '\n']).ends_with("true")
}

/// Whether the parameters hold a filter that takes long to read.
pub(super) fn has_long_filter(params: &str) -> bool {
    params.len() > SHORT_FILTER_BYTES_MAX
}

/// The threads of all lanes.
pub(super) struct Lanes(BTreeMap<Lane, Blocking>);

impl Lanes {
    /// Creates the lanes. Reads wait for the disk, so they have more threads than cores.
    pub(super) fn new() -> Lanes {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Long work leaves one core to short work.
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
