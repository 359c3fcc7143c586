//! [`Repair`]: repairs a state with some wrong rows. It compares subtrees with peers' and fetches only the
//! differences.
//!
//! ```text
//!   server: snapshot + deltas after it ─▶ StateAt ─▶ OpenedSubtree: a subtree some levels down, each part a preimage
//!   client: rows on disk ─▶ tree ─▶ differs from the header's root? ─▶ WantedSubtree ─▶ OpenedSubtree, proved by its hash ─▶ …
//!                                                                                └▶ rows ─▶ one write, root compared before it
//! ```
//!
//! The repaired state is the head's: a quorum signed the accumulator with the head's header, and the header names the
//! root. That root commits to every known hash, so a false answer convicts its sender by itself. The tree is rebuilt
//! from the rows on disk, and nothing in memory is trusted. All changes wait for one write at the end: a kill leaves
//! the state as wrong as before, and the repair starts over.

mod local;
mod opened;
mod repaired;
mod state_at;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path as FilePath,
    sync::Arc,
};

use slipstream_types::{BatchHeader, Digest, Path, PublicKey, StateKey, StateValue, keccak256, tree::Leaf};

use self::{local::LocalRows, opened::ProvenPart, repaired::drop_snapshots};
use crate::{
    backend::{Backend, Column, Rows, WriteBatch, rocks::RocksBackend},
    chunk,
    config::StorageConfig,
    directory,
    error::{RepairError, StorageError},
    ledger::record_write,
    past_states,
    place::PathPrefix,
    schema,
    shared::Head,
    span::Span,
    spans::Spans,
    state::{Tree, Update, load::grow_tree_from},
};
pub use opened::{LEVELS_MAX, OpenedSubtree, SubtreePart};
pub use repaired::{KEYS_LISTED_MAX, RepairSummary};
pub use state_at::StateAt;

/// Maximum bytes of rows held until the end: some million rows. A state with more damage is cheaper to replace by a snapshot.
const CHANGES_BYTES_MAX: u64 = 256 << 20;
/// Bytes of memory that a change takes beside its row.
const CHANGE_BYTES: u64 = 128;

/// A store that is being repaired: opened without its tree, for one thread. Dropping it changes nothing.
pub struct Repair {
    backend: Arc<dyn Backend>,
    head: Head,
    column: Column,
    rows: Arc<LocalRows>,
    /// The tree of the rows on disk.
    tree: Tree,
    /// Subtrees that differ and are still to be opened. The last one is opened next, so few wait at a time.
    differing: Vec<WantedSubtree>,
    /// Number of subtrees that were handed out.
    open: usize,
    changes: BTreeMap<Path, Change>,
    changes_bytes: u64,
    /// `None` until all rows are known.
    missing_codes: Option<BTreeSet<Digest>>,
    codes: Vec<Vec<u8>>,
}

/// A subtree that differs from the certified state, with the hash that it should have. Only a repair makes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WantedSubtree {
    place: PathPrefix,
    hash: Digest,
    /// The peer that gave this hash although it had room to open the subtree. It thereby claims that the hash is a
    /// leaf's.
    leaf_of: Option<PublicKey>,
}

/// The repair of one row.
struct Change {
    /// The row to store, or `None` to remove it.
    row: Option<Vec<u8>>,
    /// The row's key, or `None` if the removed row does not show it.
    key: Option<StateKey>,
}

impl WantedSubtree {
    /// Returns the place of the subtree.
    pub fn place(&self) -> PathPrefix {
        self.place
    }
}

impl fmt::Debug for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, waiting) = (self.head.header.number, self.differing.len());
        write!(f, "Repair of batch {number}, {waiting} subtrees differ, {} rows changed", self.changes.len())
    }
}

impl Repair {
    /// Opens a store that no other process holds, and compares its rows with the root in the head's header. Reads the
    /// whole state, which takes seconds to minutes.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`]; [`StorageError::Corrupt`] if more than the state is damaged, or if the disk
    /// cannot give the rows at all; and the errors of [`crate::Store::open`].
    pub fn open(config: &StorageConfig, dir: &FilePath) -> Result<Repair, StorageError> {
        let content = directory::expect(dir)?;
        let backend = Arc::new(RocksBackend::open(config, dir, content)?);
        Self::with_backend(config, backend)
    }

    pub(crate) fn with_backend(
        config: &StorageConfig,
        backend: Arc<dyn Backend>,
    ) -> Result<Repair, StorageError> {
        let reader = backend.snapshot();
        let (record, head) = Head::load(&*reader)?.ok_or(StorageError::NotInitialized)?;
        let column = record.active.column();
        let rows = LocalRows::new(reader, column);
        let memory_mib = config.tree_memory_mib;
        let tree = grow_tree_from(Tree::default(), rows.clone(), memory_mib, &Spans::divided(0))?;
        let mut repair = Repair {
            backend,
            head,
            column,
            rows,
            tree,
            differing: Vec::new(),
            open: 0,
            changes: BTreeMap::new(),
            changes_bytes: 0,
            missing_codes: None,
            codes: Vec::new(),
        };
        match repair.head.header.state_root {
            Digest::ZERO => _ = repair.remove_within(PathPrefix::ROOT.span(), None)?,
            root => repair.compare(PathPrefix::ROOT, root, None)?,
        }
        Ok(repair)
    }

    /// Returns the header of the batch whose state is repaired.
    pub fn header(&self) -> &BatchHeader {
        &self.head.header
    }

    /// Takes up to `max` subtrees that differ. Pass each to [`Repair::add`], or back to [`Repair::want_again`].
    pub fn take_wanted(&mut self, max: usize) -> Vec<WantedSubtree> {
        let taken = self.differing.split_off(self.differing.len().saturating_sub(max));
        self.open += taken.len();
        taken
    }

    /// Takes back subtrees that nobody answered.
    pub fn want_again(&mut self, wanted: impl IntoIterator<Item = WantedSubtree>) {
        let before = self.differing.len();
        self.differing.extend(wanted);
        self.open -= self.differing.len() - before;
    }

    /// Adds a subtree that `supplier` opened down to the levels that were asked for. Returns the peer that opened too
    /// little, if this answer exposes one. That peer gave the hash of this subtree as if it were a leaf's.
    ///
    /// # Errors
    /// [`RepairError::Malformed`] and [`RepairError::WrongHash`] for a false subtree, which is its sender's fault.
    /// Nothing of it is kept, and the caller asks another peer. Otherwise [`RepairError::TooMuch`], or errors of the
    /// disk.
    pub fn add(
        &mut self,
        wanted: &WantedSubtree,
        opened: &OpenedSubtree,
        levels: u8,
        supplier: PublicKey,
    ) -> Result<Option<PublicKey>, StorageError> {
        for proved in opened.prove(wanted.place, wanted.hash, levels)? {
            match proved {
                ProvenPart::Subtree { place, hash, is_early } => {
                    self.compare(place, hash, is_early.then_some(supplier))?;
                }
                ProvenPart::Row(place, leaf, key, value) => {
                    let is_there = self.remove_within(place.span(), Some(leaf))?;
                    if !is_there {
                        let row = schema::encode_row(&key, &value);
                        self.change(leaf.path, Change { row: Some(row), key: Some(key) })?;
                    }
                }
                ProvenPart::Run(place, below) => {
                    let mut outside = Spans::default();
                    outside.insert(place.span());
                    outside.remove(below.span());
                    for span in outside.iter() {
                        self.remove_within(span, None)?;
                    }
                }
            }
        }
        self.open -= 1;
        Ok(wanted.leaf_of.filter(|_| !matches!(opened.parts(), [SubtreePart::Row(..)])))
    }

    /// Returns up to `max` hashes of code that accounts name but that is missing or damaged in the store. These hashes
    /// are known once no subtree differs.
    ///
    /// # Errors
    /// [`RepairError::Incomplete`] before that; or errors of the disk.
    pub fn missing_codes(&mut self, max: usize) -> Result<Vec<Digest>, StorageError> {
        self.check_rows()?;
        if self.missing_codes.is_none() {
            self.missing_codes = Some(self.find_missing_codes()?);
        }
        Ok(self.missing_codes.iter().flatten().take(max).copied().collect())
    }

    /// Adds the code of a hash. Code that is no longer missing is ignored.
    ///
    /// # Errors
    /// [`RepairError::WrongCode`], [`RepairError::TooMuch`].
    pub fn add_code(&mut self, hash: &Digest, code: &[u8]) -> Result<(), StorageError> {
        let found = Digest::from(keccak256(code));
        if found != *hash {
            return Err(RepairError::WrongCode { expected: *hash, found }.into());
        }
        if !self.missing_codes.as_mut().is_some_and(|missing| missing.remove(hash)) {
            return Ok(());
        }
        self.codes.push(code.to_vec());
        self.hold(code.len() as u64)
    }

    /// As [`Repair::finish_with`], without a record.
    ///
    /// # Errors
    /// Those of [`Repair::finish_with`].
    pub fn finish(self) -> Result<RepairSummary, StorageError> {
        self.finish_with(|_| Ok::<_, StorageError>(None))
    }

    /// Writes all repairs in one durable write, together with a record of them. Refuses while parts are missing, or
    /// if the state does not have the header's root. If any row changed, drops the snapshots, because they were taken
    /// of wrong rows.
    ///
    /// # Errors
    /// [`RepairError::Incomplete`], [`StorageError::StateRootMismatch`], errors of `record`, or errors of the disk.
    /// Either nothing was written, or everything.
    pub fn finish_with<E: From<StorageError>>(
        mut self,
        record: impl FnOnce(&RepairSummary) -> Result<Option<(&'static str, Vec<u8>)>, E>,
    ) -> Result<RepairSummary, E> {
        self.check_complete()?;
        let repaired = self.changes.values().fold(RepairSummary::default(), RepairSummary::with);
        let repaired = RepairSummary { codes: self.codes.len() as u64, ..repaired };
        let record = record(&repaired)?;
        if repaired.is_nothing() && record.is_none() {
            return Ok(repaired);
        }
        let mut writes =
            record.map_or(Ok(WriteBatch::default()), |(key, value)| record_write(key, &value))?;
        let mut rows = Rows::with_capacity(self.changes.len());
        for (path, change) in self.changes {
            rows.push(path, change.row.map(|row| move |bytes: &mut Vec<u8>| bytes.extend_from_slice(&row)));
        }
        writes.rows(self.column, rows);
        if repaired.rows_put + repaired.rows_removed > 0 {
            // The past states were derived from wrong rows.
            past_states::forget(&mut writes, self.head.header.number);
        }
        for code in &self.codes {
            writes.put(Column::Codes, keccak256(code).0, code.as_slice());
        }
        self.backend.write(writes, true)?;
        if !repaired.is_nothing() {
            drop_snapshots(&*self.backend, self.head.header.number);
        }
        Ok(repaired)
    }

    fn check_complete(&mut self) -> Result<(), StorageError> {
        let (number, expected) = (self.head.header.number, self.head.header.state_root);
        let codes = self.missing_codes(usize::MAX)?.len();
        if codes > 0 {
            return Err(RepairError::Incomplete { number, places: 0, codes }.into());
        }
        let hash = |change: &Change| change.row.as_deref().map(StateValue::row_hash);
        let updates: Vec<Update> = self.changes.iter().map(|(path, change)| (*path, hash(change))).collect();
        let found = std::mem::take(&mut self.tree).apply(&updates)?.root();
        if found == expected {
            Ok(())
        } else {
            Err(StorageError::StateRootMismatch { number, expected, found })
        }
    }

    /// Records a place as differing if its subtree does not have the hash.
    fn compare(
        &mut self,
        place: PathPrefix,
        hash: Digest,
        leaf_of: Option<PublicKey>,
    ) -> Result<(), StorageError> {
        if self.local_hash(place)? != hash {
            self.differing.push(WantedSubtree { place, hash, leaf_of });
        }
        Ok(())
    }

    fn local_hash(&self, place: PathPrefix) -> Result<Digest, StorageError> {
        Ok(self.tree.subtree(place.path(), place.bits())?.hash())
    }

    /// Removes the rows of a span except `kept`. Returns whether the kept row is there.
    fn remove_within(&mut self, span: Span, kept: Option<Leaf>) -> Result<bool, StorageError> {
        let rows = self.rows.clone();
        let mut is_there = false;
        rows.each(span, |path, row| {
            let leaf = Leaf { path, value_hash: StateValue::row_hash(row) };
            if kept.is_some_and(|kept| kept.path == path) {
                is_there = kept == Some(leaf);
                return Ok(());
            }
            let key = schema::decode_row(row).ok().map(|(key, _)| key);
            self.change(path, Change { row: None, key })
        })?;
        Ok(is_there)
    }

    fn change(&mut self, path: Path, change: Change) -> Result<(), StorageError> {
        self.hold(CHANGE_BYTES + change.row.as_ref().map_or(0, |row| row.len() as u64))?;
        self.changes.insert(path, change);
        Ok(())
    }

    fn hold(&mut self, bytes: u64) -> Result<(), StorageError> {
        self.changes_bytes += bytes;
        if self.changes_bytes > CHANGES_BYTES_MAX {
            let number = self.head.header.number;
            return Err(RepairError::TooMuch { number, max: CHANGES_BYTES_MAX }.into());
        }
        Ok(())
    }

    fn check_rows(&self) -> Result<(), RepairError> {
        let (number, places) = (self.head.header.number, self.differing.len() + self.open);
        if places > 0 { Err(RepairError::Incomplete { number, places, codes: 0 }) } else { Ok(()) }
    }

    /// Returns the hashes of bad code that accounts name after the repair. Codes that only wrong rows name do not
    /// count.
    fn find_missing_codes(&self) -> Result<BTreeSet<Digest>, StorageError> {
        let put = self.changes.values().filter_map(|change| chunk::code_hash(change.row.as_deref()?));
        let put: BTreeSet<Digest> = put.collect();
        let mut missing = local::bad_codes(&*self.backend, &put)?;
        let suspects = local::bad_codes(&*self.backend, &self.rows.codes())?;
        let suspects: BTreeSet<Digest> = suspects.difference(&missing).copied().collect();
        if !suspects.is_empty() {
            self.rows.each(PathPrefix::ROOT.span(), |path, row| {
                let code = chunk::code_hash(row).filter(|hash| suspects.contains(hash));
                missing.extend(code.filter(|_| !self.changes.contains_key(&path)));
                Ok(())
            })?;
        }
        Ok(missing)
    }
}
