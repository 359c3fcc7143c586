//! [`Layer`]: the reads and writes of consecutive batches.

use std::collections::BTreeMap;

use alloy_primitives::{B256, Bytes, keccak256, map::HashMap};
use slipstream_types::{BatchHeader, BatchNumber, Delta, Digest, StateKey, StateValue};

use crate::{
    evm::{AnalysedCode, ReadSet},
    hot::HotCache,
};

/// Memory of a row in bytes: key and value, and the key once more in a table that is at least half full.
const ROW_BYTES: usize = 320;
/// Memory of an entry for code in bytes, without the code.
const CODE_BYTES: usize = 100;
/// Above this size a layer takes no more rows that were only read. Execution can read them again. Transactions that
/// merely read cold rows must not fill the memory of a node that executes many batches ahead. 32 blocks of mainnet
/// touch 10 MiB.
const READ_BYTES_MAX: usize = 16 << 20;

/// The reads and writes of one batch or several consecutive ones, with the values after the last batch. The layer has
/// all of the batches' writes, and up to 16 MiB of rows that the batches only read.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Digest of the header before the first batch.
    parent: Digest,
    /// Digests of the batches' headers, in order.
    digests: Vec<Digest>,
    /// Header of the last batch.
    header: BatchHeader,
    /// Rows in the order of their first access.
    rows: Vec<Row>,
    places: HashMap<StateKey, u32>,
    codes: BTreeMap<B256, AnalysedCode>,
    code_bytes: usize,
}

/// A row of a [`Layer`].
#[derive(Clone, Copy, Debug)]
struct Row {
    key: StateKey,
    value: Option<StateValue>,
    /// Index of the layer's last batch that touched the row, from 0.
    touched: u32,
}

impl Layer {
    /// Makes the layer of one batch. A caller that executed the batch passes its reads too; a caller that has only the
    /// delta passes `None`.
    pub fn of(header: &BatchHeader, touched: Option<&ReadSet>, delta: &Delta) -> Layer {
        let mut layer = Layer {
            parent: header.parent,
            digests: Vec::new(),
            header: header.clone(),
            rows: Vec::new(),
            places: HashMap::default(),
            codes: BTreeMap::new(),
            code_bytes: 0,
        };
        layer.put(header, touched, delta);
        layer
    }

    /// Adds the next batch.
    ///
    /// # Panics
    /// If the batch does not continue the layer's last one.
    pub fn extend(&mut self, header: &BatchHeader, touched: Option<&ReadSet>, delta: &Delta) {
        assert_eq!(header.parent, self.tip(), "batch {} does not continue the layer", header.number);
        self.put(header, touched, delta);
    }

    fn put(&mut self, header: &BatchHeader, touched: Option<&ReadSet>, delta: &Delta) {
        self.digests.push(header.digest());
        self.header.clone_from(header);
        if let Some(touched) = touched {
            self.put_read(touched);
        }
        delta.entries().iter().for_each(|entry| self.put_row(entry.key, entry.value));
        for code in delta.codes() {
            let analysed = || AnalysedCode::new(Bytes::copy_from_slice(code));
            self.put_code(keccak256(&code[..]), analysed);
        }
    }

    fn put_read(&mut self, touched: &ReadSet) {
        for (key, value) in &touched.rows {
            if self.bytes() < READ_BYTES_MAX || self.places.contains_key(key) {
                self.put_row(*key, *value);
            }
        }
        for (hash, code) in &touched.codes {
            if self.bytes() < READ_BYTES_MAX {
                self.put_code(*hash, || code.clone());
            }
        }
    }

    fn put_row(&mut self, key: StateKey, value: Option<StateValue>) {
        let row = Row { key, value, touched: self.digests.len() as u32 - 1 };
        let end = self.rows.len() as u32;
        match *self.places.entry(key).or_insert(end) {
            place if place == end => self.rows.push(row),
            place => self.rows[place as usize] = row,
        }
    }

    fn put_code(&mut self, hash: B256, code: impl FnOnce() -> AnalysedCode) {
        self.codes.entry(hash).or_insert_with(|| {
            let code = code();
            self.code_bytes += CODE_BYTES + code.memory_bytes();
            code
        });
    }

    /// The digest of the header before the layer's first batch.
    pub fn parent(&self) -> Digest {
        self.parent
    }

    /// The digest of the header of the layer's last batch.
    pub fn tip(&self) -> Digest {
        self.digests.last().copied().unwrap_or(self.parent)
    }

    /// The header of the layer's last batch.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// Number of batches in the layer; at least one.
    pub fn batches(&self) -> usize {
        self.digests.len()
    }

    /// Approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        self.rows.len() * ROW_BYTES + self.code_bytes
    }

    /// Whether the layer holds every change since the batch whose header has this digest, up to the layer's own last
    /// batch.
    pub(super) fn reaches(&self, digest: Digest) -> bool {
        self.parent == digest || self.digests.contains(&digest)
    }

    /// Advances a cache by the layer's batches. The cache may already hold the state after one of these batches.
    pub(crate) fn add_to(&self, cache: &mut HotCache) {
        let is_next = cache.at().is_some_and(|at| self.reaches(at));
        // Least recently used first.
        let mut places: Vec<u32> = (0..self.rows.len() as u32).collect();
        places.sort_by_key(|place| self.rows[*place as usize].touched);
        let rows = places.into_iter().map(|place| &self.rows[place as usize]);
        cache.advance(is_next, self.tip(), rows.map(|row| (row.key, row.value)), self.codes.iter());
    }

    pub(super) fn row(&self, key: &StateKey) -> Option<Option<StateValue>> {
        self.places.get(key).map(|place| self.rows[*place as usize].value)
    }

    pub(super) fn code(&self, hash: &Digest) -> Option<&AnalysedCode> {
        self.codes.get(&B256::from(*hash))
    }

    pub(super) fn header_digest(&self, number: BatchNumber) -> Option<Digest> {
        let behind = (number <= self.header.number).then(|| self.header.number.since(number))?;
        let place = (self.digests.len() as u64).checked_sub(behind + 1)?;
        self.digests.get(place as usize).copied()
    }
}
