//! Searches the ledger for logs, from a position on, within a budget. The logs are in order, and the result says how
//! far the search got.

use alloy_primitives::B256;
use alloy_rpc_types_eth::{Filter, Log};
use slipstream_fair::Leash;
use slipstream_storage::Store;
use slipstream_types::{BatchNumber, BlobKind};

use super::{
    bloom::{self, Entry},
    index::{LogIndex, Section, batches_of, section_of},
};
use crate::{
    batches::{BatchParts, Batches, Reader},
    errors::RpcError,
    transactions::to_log,
};

/// The cost of opening a batch, besides its receipts' bytes.
const OPENING_BYTES: usize = 16 << 10;
/// The cost of reading a section's filters, and the divisor for their bytes. Filters are only probed, at an eighth of
/// the cost of decoding.
const SECTION_COST_BYTES: usize = 1 << 10;
const LOOKED_AT_SHARE: usize = 8;
/// The costs of probing one batch's filter for one value, and of reading one header.
const PROBE_COST_BYTES: usize = 2;
const HEADER_COST_BYTES: usize = 1 << 10;

/// The bounds of a search and of its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Uncompressed bytes of the receipts and transactions that are opened: about a second's work.
    pub(crate) work_bytes: usize,
    /// Maximum number of logs that are returned.
    pub(crate) logs: usize,
    /// Maximum bytes of their data; the answer has twice as many, because it is hexadecimal.
    pub(crate) data_bytes: usize,
}

impl Budget {
    /// The budget of one call.
    pub(crate) const CALL: Budget = Budget { work_bytes: 256 << 20, logs: 10_000, data_bytes: 4 << 20 };
}

/// The conditions on a log.
#[derive(Clone, Debug)]
pub(crate) struct Criteria {
    filter: Filter,
    /// The entries of each constrained position: a log must have one of them.
    entries: Vec<Vec<Entry>>,
}

impl Criteria {
    /// The criteria of a filter whose lists are bounded: see [`super::Wanted`].
    pub(crate) fn new(filter: Filter) -> Criteria {
        let mut entries = vec![filter.address.iter().map(Entry::address).collect::<Vec<_>>()];
        for (index, topics) in filter.topics.iter().enumerate() {
            entries.push(topics.iter().map(|topic| Entry::topic(index, topic)).collect());
        }
        entries.retain(|values| !values.is_empty());
        Criteria { filter, entries }
    }

    pub(crate) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// The number of addresses and topics to look up.
    pub(crate) fn values(&self) -> usize {
        self.entries.iter().map(Vec::len).sum()
    }

    /// The approximate memory of the criteria, for callers that store them.
    pub(crate) fn bytes(&self) -> usize {
        256 + 64 * self.values()
    }

    /// Whether a batch with this filter may have a matching log. An empty filter means no logs at all.
    pub(crate) fn may_match(&self, bloom: &[u8]) -> bool {
        let held = |values: &Vec<Entry>| values.iter().any(|entry| bloom::may_hold(bloom, *entry));
        !bloom.is_empty() && self.entries.iter().all(held)
    }

    fn matches(&self, log: &slipstream_types::Log) -> bool {
        let topics = || log.topics.iter().map(|topic| B256::from(*topic)).collect::<Vec<_>>();
        self.filter.matches_address(log.address) && self.filter.matches_topics(&topics())
    }
}

/// A position between logs: after the first `logs` logs of a batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LogPosition {
    pub(crate) batch: BatchNumber,
    pub(crate) logs: u64,
}

impl LogPosition {
    pub(crate) fn before(batch: BatchNumber) -> LogPosition {
        LogPosition { batch, logs: 0 }
    }
}

/// Why a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SearchEnd {
    /// The whole requested range was searched.
    Reached,
    /// The next log would exceed the limit on logs or bytes. It follows this position.
    Results(LogPosition),
    /// The work budget ran out before this batch.
    Work(BatchNumber),
}

/// The logs that were found, in ledger order.
#[derive(Debug)]
pub(crate) struct FoundLogs {
    pub(crate) logs: Vec<Log>,
    pub(crate) end: SearchEnd,
}

/// The parameters of a search.
pub(crate) struct Search<'a> {
    pub(super) store: &'a Store,
    pub(super) batches: &'a Batches,
    pub(super) index: &'a LogIndex,
    pub(super) criteria: &'a Criteria,
    /// Cut when nobody waits for the answer any more.
    pub(super) leash: &'a Leash,
}

/// The progress of a search.
struct Progress {
    budget: Budget,
    logs: Vec<Log>,
    work_bytes: usize,
    data_bytes: usize,
}

impl Progress {
    fn work(&mut self, bytes: usize) -> bool {
        self.work_bytes += bytes;
        self.work_bytes <= self.budget.work_bytes
    }

    /// Adds a log if it fits. The first log always fits, however long it is, so that a resumed search makes progress.
    fn take(&mut self, log: Log) -> bool {
        let bytes = log.inner.data.data.len();
        let fits = self.logs.len() < self.budget.logs && self.data_bytes + bytes <= self.budget.data_bytes;
        if fits || self.logs.is_empty() {
            self.data_bytes += bytes;
            self.logs.push(log);
            return true;
        }
        false
    }
}

impl Search<'_> {
    /// Searches from a position to the end of batch `to`.
    pub(crate) fn run(
        &self,
        from: LogPosition,
        to: BatchNumber,
        budget: Budget,
    ) -> Result<FoundLogs, RpcError> {
        let mut progress = Progress { budget, logs: Vec::new(), work_bytes: 0, data_bytes: 0 };
        let mut end = SearchEnd::Reached;
        if from.batch <= to {
            for section in section_of(from.batch)..=section_of(to) {
                end = self.section(section, from, to, &mut progress)?;
                if end != SearchEnd::Reached {
                    break;
                }
            }
        }
        Ok(FoundLogs { logs: progress.logs, end })
    }

    fn section(
        &self,
        number: u64,
        from: LogPosition,
        to: BatchNumber,
        progress: &mut Progress,
    ) -> Result<SearchEnd, RpcError> {
        let all = batches_of(number);
        let (first, last) = ((*all.start()).max(from.batch), (*all.end()).min(to));
        let section = self.index.section(number)?;
        let values = self.criteria.values();
        let probes = PROBE_COST_BYTES * values * (last.since(first) + 1) as usize;
        if !progress.work(SECTION_COST_BYTES + section.bytes() / LOOKED_AT_SHARE + probes) {
            return Ok(SearchEnd::Work(first));
        }
        for number in first.through(last) {
            if self.leash.is_cut() {
                return Err(RpcError::NobodyWaits);
            }
            if !self.may_match(&section, number) {
                continue;
            }
            let skipped = if number == from.batch { from.logs } else { 0 };
            let end = self.batch(number, skipped, progress)?;
            if end != SearchEnd::Reached {
                return Ok(end);
            }
        }
        Ok(SearchEnd::Reached)
    }

    fn may_match(&self, section: &Section, number: BatchNumber) -> bool {
        section.bloom(number).is_none_or(|bloom| self.criteria.may_match(bloom))
    }

    /// Examines each log of a batch; its transactions are read only if there is a log to return.
    fn batch(
        &self,
        number: BatchNumber,
        skipped: u64,
        progress: &mut Progress,
    ) -> Result<SearchEnd, RpcError> {
        let batch = match self.batches.recent(number)? {
            Some(batch) => batch,
            None => {
                if !progress.work(HEADER_COST_BYTES) {
                    return Ok(SearchEnd::Work(number));
                }
                let reader = Reader::passing(self.leash);
                let batch = self.batches.get(number, BatchParts::Receipts, reader)?;
                let mut batch = batch.ok_or_else(|| self.not_stored(number))?;
                if batch.is_empty() {
                    return Ok(SearchEnd::Reached);
                }
                let receipts = batch.receipts().map_err(|_| self.not_stored(number))?;
                if !progress.work(OPENING_BYTES + batch.receipts_bytes()) {
                    return Ok(SearchEnd::Work(number));
                }
                let mut logs = receipts.receipts.iter().flat_map(|receipt| &receipt.logs);
                if !logs.any(|log| self.criteria.matches(log)) {
                    return Ok(SearchEnd::Reached);
                }
                if !progress.work(batch.header.tx_bytes as usize) {
                    return Ok(SearchEnd::Work(number));
                }
                self.batches.open_body(&mut batch, reader)?;
                batch
            }
        };
        for (index, receipt) in batch.receipts()?.receipts.iter().enumerate() {
            for (log, at) in receipt.logs.iter().zip(batch.before(index).1..) {
                if at >= skipped && self.criteria.matches(log) {
                    batch.body()?;
                    if !progress.take(to_log(&batch, index, log, at)) {
                        return Ok(SearchEnd::Results(LogPosition { batch: number, logs: at }));
                    }
                }
            }
        }
        Ok(SearchEnd::Reached)
    }

    fn not_stored(&self, number: BatchNumber) -> RpcError {
        match self.batches.missing("logs", number) {
            RpcError::NotStored { number, .. } => {
                let kept_from = self.store.lowest(BlobKind::Receipts).ok().flatten();
                RpcError::LogsNotStored { number, kept_from }
            }
            yet => yet,
        }
    }
}
