//! The filters of all batches, in sections, built from the stored receipts whatever their source.
//!
//! ```text
//!  commit ─▶ head moves ─▶ fill: receipts ─▶ bloom ─▶ the open section, in memory ─ 64 batches ─▶ a record of the store
//! ```
//!
//! A section is a record that can be rebuilt. A crash loses the last sections; the next start finds the first missing
//! section and continues there. So a store of an earlier release gets its sections in the background. If a filter is
//! missing, the search opens the batch. The index removes filters of pruned batches section by section, and adds those
//! of a backfill from the newest section down.

use std::{ops::RangeInclusive, sync::Arc};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use slipstream_fair::{Rank, Workers, step_back};
use slipstream_storage::Store;
use slipstream_types::{
    BatchNumber, BlobKind, Receipts,
    bounded::{BoundedBytes, BoundedVec},
    codec,
};
use tokio_util::sync::CancellationToken;

use super::bloom::{self, BYTES_MAX};
use crate::errors::RpcError;

/// Batches per section: enough that a search reads few records, few enough that a search at the head reads little.
pub(super) const SECTION_BATCHES: u64 = 64;
/// An upper bound on the largest section's encoding.
const SECTION_BYTES_MAX: usize = SECTION_BATCHES as usize * (BYTES_MAX + 4) + 1;
/// The name of the record with a section's number. All sections from that one up to the open one are built.
const MADE_FROM: &str = "log_blooms_from";
/// Sections of a backfill that are built before the index returns to the head.
const SECTIONS_BELOW_MAX: u64 = 4;
/// Sections are removed in groups of at least this size: each removal slows every later read a little until it is
/// compacted.
const REMOVED_SECTIONS_MIN: u64 = 16;

/// One batch's filter; `None` if its receipts were missing when the section was built.
pub(super) type BatchBloom = Option<BoundedBytes<BYTES_MAX>>;

/// The filters of [`SECTION_BATCHES`] consecutive batches; the open section holds those built so far.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Section {
    blooms: BoundedVec<BatchBloom, { SECTION_BATCHES as usize }>,
}

impl Section {
    pub(super) fn new(blooms: Vec<BatchBloom>) -> Section {
        Section { blooms: BoundedVec::new(blooms).expect("a section is ended when it is full") }
    }

    /// The filter of a batch in this section, if known.
    pub(super) fn bloom(&self, number: BatchNumber) -> Option<&[u8]> {
        let bloom = self.blooms.get((number.get() % SECTION_BATCHES) as usize)?;
        bloom.as_ref().map(|bytes| &bytes[..])
    }

    /// The cost of reading the section, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.blooms.iter().flatten().map(|bytes| bytes.len()).sum()
    }
}

/// The section that is being filled.
#[derive(Default)]
struct OpenSection {
    /// The section's number; `None` until the first turn has found where to begin.
    number: Option<u64>,
    blooms: Vec<BatchBloom>,
    /// All sections from this one on are built.
    made_from: u64,
    /// Sections below this one are removed.
    kept_from: u64,
}

/// The index of logs, as the module describes.
pub struct LogIndex {
    store: Store,
    open: Mutex<OpenSection>,
}

/// The first and the last record name of the sections that contain batches after `number`.
pub fn records_behind(number: BatchNumber) -> (String, String) {
    (name(section_of(number.next())), name(u64::MAX))
}

fn name(section: u64) -> String {
    format!("log_blooms/{section:016x}")
}

/// The section that holds a batch.
pub(super) fn section_of(number: BatchNumber) -> u64 {
    number.get() / SECTION_BATCHES
}

/// The first section whose receipts are all stored, given the lowest stored batch. The genesis needs no receipts.
fn first_whole(lowest: BatchNumber) -> u64 {
    if lowest.get() <= 1 { 0 } else { lowest.get().div_ceil(SECTION_BATCHES) }
}

/// The batches of a section.
pub(super) fn batches_of(section: u64) -> RangeInclusive<BatchNumber> {
    let first = BatchNumber::new(section * SECTION_BATCHES);
    first..=first.after(SECTION_BATCHES - 1)
}

impl LogIndex {
    /// The index of the logs of this store.
    pub fn new(store: Store) -> LogIndex {
        LogIndex { store, open: Mutex::default() }
    }

    /// Keeps up with the head until `shutdown`. A nearly full disk ends a turn, not the task: searches open batches
    /// whose filters are missing.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut head = self.store.watch_head();
        let workers = Workers::new("log index", 1, Rank::Behind);
        while !shutdown.is_cancelled() {
            let (index, stop) = (self.clone(), shutdown.clone());
            match workers.run(move || index.fill(&stop)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "cannot make log filters; searches take longer")
                }
                Err(error) => tracing::error!(%error, "making log filters failed; searches take longer"),
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = head.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Builds the missing filters up to the head, and removes those of pruned batches.
    pub(super) fn fill(&self, stop: &CancellationToken) -> Result<(), RpcError> {
        let Some(lowest) = self.store.lowest(BlobKind::Receipts)? else { return Ok(()) };
        let head = self.store.head()?.header.number;
        self.remove_pruned()?;
        let mut next = self.begin(lowest, head)?;
        if head.since(next) > SECTION_BATCHES {
            step_back();
        }
        while next <= head && !stop.is_cancelled() {
            let bloom = self.make(next)?;
            self.add(next, bloom)?;
            next = next.next();
        }
        self.fill_below(first_whole(lowest), stop)
    }

    /// Builds some of the sections that a backfill completed, from the newest down. Sections that were built before a
    /// snapshot or range delta skipped batches already exist.
    fn fill_below(&self, first: u64, stop: &CancellationToken) -> Result<(), RpcError> {
        let mut made = 0;
        while made < SECTIONS_BELOW_MAX && !stop.is_cancelled() {
            let Some(number) = self.open.lock().made_from.checked_sub(1).filter(|number| *number >= first)
            else {
                return Ok(());
            };
            if self.store.record(&name(number))?.is_none() {
                let (first, last) = batches_of(number).into_inner();
                let blooms =
                    first.through(last).map(|batch| self.make(batch)).collect::<Result<_, RpcError>>()?;
                self.put(number, blooms)?;
                made += 1;
            }
            self.put_made_from(number)?;
        }
        Ok(())
    }

    fn put_made_from(&self, number: u64) -> Result<(), RpcError> {
        self.store.put_derived_record(MADE_FROM, &number.to_be_bytes())?;
        self.open.lock().made_from = number;
        Ok(())
    }

    fn put(&self, number: u64, blooms: Vec<BatchBloom>) -> Result<(), RpcError> {
        let bytes = codec::encode("log filters", &Section::new(blooms))?;
        Ok(self.store.put_derived_record(&name(number), &bytes)?)
    }

    /// Opens the section after the last one with a record, among those whose receipts are all stored. Returns the first
    /// batch without a filter.
    fn begin(&self, lowest: BatchNumber, head: BatchNumber) -> Result<BatchNumber, RpcError> {
        let first = first_whole(lowest);
        let opened = self.open.lock().number.filter(|number| *number >= first);
        let number = match opened {
            Some(number) => number,
            None => {
                let mut missing = section_of(head).max(first);
                while missing > first && self.store.record(&name(missing - 1))?.is_none() {
                    missing -= 1;
                }
                // The index has no section to continue from. The sections below are older than a snapshot or range
                // delta that skipped batches, or they are pruned.
                let from = self.store.record(MADE_FROM)?.filter(|_| missing > first);
                let from = from.and_then(|bytes| Some(u64::from_be_bytes(bytes.try_into().ok()?)));
                {
                    let mut open = self.open.lock();
                    *open = OpenSection {
                        number: Some(missing),
                        kept_from: open.kept_from,
                        ..OpenSection::default()
                    };
                }
                self.put_made_from(from.unwrap_or(first))?;
                missing
            }
        };
        Ok(BatchNumber::new(number * SECTION_BATCHES + self.open.lock().blooms.len() as u64))
    }

    fn make(&self, number: BatchNumber) -> Result<BatchBloom, RpcError> {
        match stored_receipts(&self.store, number) {
            Ok(receipts) => Ok(receipts.and_then(|receipts| BoundedBytes::new(bloom::of(&receipts)).ok())),
            // A search in that section reports the damage.
            Err(RpcError::Codec(error)) => {
                tracing::warn!(%error, batch = %number, "receipts cannot be read: run `slipstream db check`");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn add(&self, number: BatchNumber, bloom: BatchBloom) -> Result<(), RpcError> {
        let mut open = self.open.lock();
        open.blooms.push(bloom);
        if open.blooms.len() as u64 == SECTION_BATCHES {
            // If there is no disk space for the record, the section is rebuilt once there is.
            let blooms = std::mem::take(&mut open.blooms);
            self.put(section_of(number), blooms)?;
            open.number = Some(section_of(number) + 1);
        }
        Ok(())
    }

    fn remove_pruned(&self) -> Result<(), RpcError> {
        let end = section_of(self.store.floor(BlobKind::Receipts));
        let mut open = self.open.lock();
        if end >= open.kept_from + REMOVED_SECTIONS_MIN {
            self.store.remove_records(&name(open.kept_from), &name(end - 1))?;
            open.kept_from = end;
        }
        Ok(())
    }

    /// Returns a section, or as much of it as exists.
    pub(super) fn section(&self, number: u64) -> Result<Section, RpcError> {
        {
            let open = self.open.lock();
            if open.number == Some(number) {
                return Ok(Section::new(open.blooms.clone()));
            }
        }
        let Some(bytes) = self.store.record(&name(number))? else { return Ok(Section::default()) };
        Ok(codec::decode("log filters", &bytes, SECTION_BYTES_MAX).unwrap_or_else(|error| {
            tracing::warn!(%error, section = number, "cannot read log filters; the search opens their batches");
            Section::default()
        }))
    }
}

/// Returns the receipts of a batch, if they are stored; an empty batch needs none.
pub(super) fn stored_receipts(store: &Store, number: BatchNumber) -> Result<Option<Receipts>, RpcError> {
    match store.header(number)? {
        None => Ok(None),
        Some(header) if header.tx_count == 0 => Ok(Some(Receipts::default())),
        Some(_) => {
            let blob = store.blob(BlobKind::Receipts, number)?;
            Ok(blob.map(|blob| blob.open(BlobKind::Receipts)).transpose()?)
        }
    }
}
