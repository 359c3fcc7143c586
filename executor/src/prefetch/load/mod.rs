//! [`Load`]: the keys of one batch, each with its loading state.

mod claim;

use std::{
    collections::BTreeSet,
    sync::{
        OnceLock,
        atomic::{
            AtomicU8, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Instant,
};

use alloy_primitives::{
    Address, B256, Bytes,
    map::{AddressMap, B256Map, HashMap, hash_map::Entry},
};
use parking_lot::{Condvar, Mutex};
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::{Digest, StateKey, StateValue, state::Paths};

use self::claim::{Claim, CodeClaim};
use super::{Pace, PrefetchBackend, PrefetchRequest, shipped::Shipped};

/// Number of keys that are sorted in the order of the table, so that neighbours on disk are read together. Also the
/// maximum number of keys in a multi-get.
pub(super) const SORTED_KEYS: usize = 256;
/// Interval in keys between timed reads. Before a multi-get that begins at a multiple of this number, a single read is
/// timed. That is about one timed read per batch.
const TIMED: usize = 4_096;
/// Number of codes that are read at a time.
const CODES: usize = 16;
/// Maximum bytes of code that one batch's hints may load. A hint of 32 bytes names up to 64 KiB of code, so without a
/// limit hostile hints could fill the memory. Mainnet blocks execute 1-3 MB.
const CODE_BYTES_MAX: usize = 32 << 20;

/// States of a key. Only the thread that changed a key from queued to loading may read it.
const QUEUED: u8 = 0;
const LOADING: u8 = 1;
const FOUND: u8 = 2;
const ABSENT: u8 = 3;

/// A key's state, and its row once the row is known.
#[derive(Debug, Default)]
struct Cell {
    state: AtomicU8,
    row: OnceLock<Option<StateValue>>,
}

/// Code that a thread is reading or has read; unclaimed code has no entry.
#[derive(Clone, Debug)]
enum Code {
    Loading,
    Read(Option<Bytes>),
}

#[derive(Debug, Default)]
struct Codes {
    by_hash: B256Map<Code>,
    /// The next code to read is last. Some may have been read already.
    queued: Vec<Digest>,
    bytes: usize,
}

/// How a read was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// The row was loaded.
    Ready,
    /// The read waited for the thread that was loading the row.
    Waited,
    /// The read loaded the row itself, because no thread had begun to load it.
    Claimed,
    /// As [`Answer::Claimed`], for a key that was not wanted.
    Unwanted,
    /// The hint's value answered, because the row was not loaded yet.
    Shipped,
}

/// The read-ahead of one batch, from one state.
#[derive(Debug)]
pub(super) struct Load<R> {
    pub(super) reader: R,
    /// Keys in the order in which they are read.
    keys: Vec<StateKey>,
    cells: Vec<Cell>,
    accounts: AddressMap<u32>,
    slots: HashMap<(Address, B256), u32>,
    codes_of: BTreeSet<Address>,
    shipped: Shipped,
    /// Whether some reads are timed.
    is_timed: bool,
    /// Index of the next key to hand out.
    next: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    codes: Mutex<Codes>,
    /// Number of readers that wait for [`Load::progress`].
    waiting: AtomicUsize,
    progress: Condvar,
    turn: Mutex<()>,
}

impl<R: StateReader> Load<R> {
    pub(super) fn new(reader: R, wanted: PrefetchRequest) -> Load<R> {
        let (mut accounts, mut slots) = (AddressMap::default(), HashMap::default());
        let mut place = |key: &StateKey, index: usize| match key {
            StateKey::Account(address) => accounts.insert(*address, index as u32),
            StateKey::Slot(address, slot) => slots.insert((*address, *slot), index as u32),
        };
        let mut keys = wanted.keys;
        keys.retain(|key| place(key, 0).is_none());
        for chunk in keys.chunks_mut(SORTED_KEYS) {
            let mut paths = Paths::default();
            chunk.sort_by_cached_key(|key| paths.path(key));
        }
        for (index, key) in keys.iter().enumerate() {
            place(key, index);
        }
        let mut load = Load {
            reader,
            cells: keys.iter().map(|_| Cell::default()).collect(),
            keys,
            accounts,
            slots,
            codes_of: BTreeSet::new(),
            shipped: Shipped::default(),
            is_timed: !wanted.was_read,
            next: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            codes: Mutex::default(),
            waiting: AtomicUsize::new(0),
            progress: Condvar::new(),
            turn: Mutex::new(()),
        };
        load.shipped = Shipped::new(wanted.values, load.keys(), |key| load.place(key));
        let told = wanted.codes_of.iter().filter_map(|address| load.shipped_code(address));
        // The order is reversed, because codes are taken from the end.
        let mut queued: Vec<Digest> = wanted.codes.into_iter().chain(told).collect();
        queued.reverse();
        load.codes.get_mut().queued = queued;
        load.codes_of = wanted.codes_of.into_iter().collect();
        load
    }

    /// The hash of the code that an account has if its shipped row is right.
    fn shipped_code(&self, address: &Address) -> Option<Digest> {
        match self.shipped.value(self.place(&StateKey::Account(*address))?)? {
            Some(StateValue::Account(account)) => account.code_hash,
            _ => None,
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The index of a key, or `None` if it was not wanted.
    pub(super) fn place(&self, key: &StateKey) -> Option<usize> {
        let place = match key {
            StateKey::Account(address) => self.accounts.get(address),
            StateKey::Slot(address, slot) => self.slots.get(&(*address, *slot)),
        };
        place.map(|place| *place as usize)
    }

    /// Returns the row of a key. The row is loaded already, is shipped, arrives after a wait, or is read here.
    pub(super) fn row(&self, place: usize) -> Result<(Option<StateValue>, Answer), StorageError> {
        match self.shipped.answer(place, || self.is_read(place)) {
            Some(row) => Ok((row, Answer::Shipped)),
            None => self.own_row(place),
        }
    }

    fn is_read(&self, place: usize) -> bool {
        matches!(self.cells[place].state.load(SeqCst), FOUND | ABSENT)
    }

    /// As [`Load::row`], without shipped values.
    fn own_row(&self, place: usize) -> Result<(Option<StateValue>, Answer), StorageError> {
        let cell = &self.cells[place];
        let mut answer = Answer::Ready;
        loop {
            match cell.state.load(SeqCst) {
                FOUND | ABSENT => return Ok((cell.row.get().copied().flatten(), answer)),
                QUEUED if self.claim(place) => {
                    let claim = Claim::new(self, vec![place]);
                    let row = self.reader.row(&self.keys[place])?;
                    self.queue_codes(claim.places(), &[row]);
                    claim.publish(vec![row]);
                    return Ok((row, Answer::Claimed));
                }
                _ => {
                    self.wait(|| cell.state.load(SeqCst) == LOADING);
                    answer = Answer::Waited;
                }
            }
        }
    }

    /// Returns code as [`Load::row`] returns rows. Code that was not wanted is read here too, once.
    pub(super) fn code(&self, hash: &Digest) -> Result<(Option<Bytes>, Answer), StorageError> {
        let key = B256::from(*hash);
        let mut answer = Answer::Ready;
        loop {
            let mut codes = self.codes.lock();
            match codes.by_hash.get(&key) {
                Some(Code::Read(code)) => return Ok((code.clone(), answer)),
                Some(Code::Loading) => {
                    drop(codes);
                    self.wait(|| matches!(self.codes.lock().by_hash.get(&key), Some(Code::Loading)));
                    answer = Answer::Waited;
                }
                None => {
                    codes.by_hash.insert(key, Code::Loading);
                    let is_wanted = codes.queued.contains(hash);
                    drop(codes);
                    let claim = CodeClaim::new(self, vec![*hash]);
                    let code = self.reader.code(hash)?;
                    claim.publish(vec![code.clone()]);
                    return Ok((code, if is_wanted { Answer::Claimed } else { Answer::Unwanted }));
                }
            }
        }
    }

    /// Whether every row that a shipped value answered has been loaded.
    pub(super) fn is_confirmable(&self) -> bool {
        self.shipped.told().all(|(place, _)| self.is_read(place))
    }

    /// Returns the keys with wrong shipped answers. Reads the answered rows that no thread has begun to read, many at a
    /// time, and waits for the others.
    pub(super) fn confirm(&self) -> Result<Vec<StateKey>, StorageError> {
        let unread = self.shipped.told().map(|(place, _)| place).filter(|place| !self.is_read(*place));
        for places in unread.collect::<Vec<_>>().chunks(SORTED_KEYS) {
            self.read_places(places.iter().copied(), PrefetchBackend::MultiGet, None)?;
        }
        let mut wrong = Vec::new();
        for (place, told) in self.shipped.told() {
            if self.own_row(place)?.0 != told {
                wrong.push(self.keys[place]);
            }
        }
        Ok(wrong)
    }

    /// Stops answering with shipped values.
    pub(super) fn distrust(&self) {
        self.shipped.distrust();
    }

    /// Number of keys and codes whose read no thread has begun.
    pub(super) fn left(&self) -> usize {
        self.keys.len().saturating_sub(self.next.load(Relaxed)) + self.codes.lock().queued.len()
    }

    /// Reads at most `keys_max` more keys, or some code, and returns the number. Returns `None` if no read is left to
    /// begin.
    pub(super) fn read_some(
        &self,
        backend: PrefetchBackend,
        keys_max: usize,
        pace: Option<&Pace>,
    ) -> Result<Option<usize>, StorageError> {
        // With shipped values, execution waits only for code.
        if !self.shipped.is_empty()
            && let Some(codes) = self.read_codes()?
        {
            return Ok(Some(codes));
        }
        let first = self.next.fetch_add(keys_max, Relaxed);
        if first < self.keys.len() {
            let places = first..self.keys.len().min(first + keys_max);
            return Ok(Some(self.read_places(places, backend, pace)?));
        }
        self.next.store(self.keys.len(), Relaxed);
        self.read_codes()
    }

    /// Reads those of `places` that no thread has claimed, and returns their number.
    fn read_places(
        &self,
        places: impl Iterator<Item = usize>,
        backend: PrefetchBackend,
        pace: Option<&Pace>,
    ) -> Result<usize, StorageError> {
        let places: Vec<usize> = places.filter(|place| self.claim(*place)).collect();
        let Some(first) = places.first().copied() else { return Ok(0) };
        let count = places.len();
        let claim = Claim::new(self, places);
        let mut rows = Vec::with_capacity(count);
        let is_timed = self.is_timed && (backend == PrefetchBackend::Threads || first % TIMED == 0);
        if let Some(pace) = pace.filter(|_| is_timed) {
            let begin = Instant::now();
            rows.push(self.reader.row(&self.keys[first])?);
            pace.took(begin.elapsed());
        }
        let keys = claim.places()[rows.len()..].iter().map(|place| self.keys[*place]);
        match backend {
            PrefetchBackend::MultiGet => rows.extend(self.reader.rows(&keys.collect::<Vec<_>>())?),
            PrefetchBackend::Threads => {
                for key in keys {
                    rows.push(self.reader.row(&key)?);
                }
            }
        }
        self.queue_codes(claim.places(), &rows);
        claim.publish(rows);
        Ok(count)
    }

    /// Queues the wanted code of the accounts that were read.
    fn queue_codes(&self, places: &[usize], rows: &[Option<StateValue>]) {
        if self.codes_of.is_empty() {
            return;
        }
        let wanted = places.iter().zip(rows).filter_map(|(place, row)| match row {
            Some(StateValue::Account(account)) if self.codes_of.contains(self.keys[*place].address()) => {
                account.code_hash
            }
            _ => None,
        });
        self.codes.lock().queued.extend(wanted);
    }

    /// Reads some code and returns the number of codes; `None` if no read is left to begin.
    fn read_codes(&self) -> Result<Option<usize>, StorageError> {
        let mut hashes = Vec::new();
        {
            let mut codes = self.codes.lock();
            while hashes.len() < CODES && codes.bytes < CODE_BYTES_MAX {
                let Some(hash) = codes.queued.pop() else { break };
                if let Entry::Vacant(free) = codes.by_hash.entry(hash.into()) {
                    free.insert(Code::Loading);
                    // Until its length is known, code counts with the maximum length, so that all threads together stay
                    // below the limit.
                    codes.bytes += slipstream_types::limits::CODE_BYTES_MAX;
                    hashes.push(hash);
                }
            }
        }
        let count = hashes.len();
        if count == 0 {
            return Ok(None);
        }
        let claim = CodeClaim::new(self, hashes);
        let found = self.reader.codes(claim.hashes())?;
        let bytes: usize = found.iter().flatten().map(|code| code.len()).sum();
        let mut codes = self.codes.lock();
        codes.bytes -= claim.hashes().len() * slipstream_types::limits::CODE_BYTES_MAX - bytes;
        drop(codes);
        claim.publish(found);
        Ok(Some(count))
    }

    /// Number of keys with a row, of codes read, and of codes skipped.
    pub(super) fn tally(&self) -> (usize, usize, usize) {
        let found = self.cells.iter().filter(|cell| cell.state.load(Relaxed) == FOUND).count();
        let codes = self.codes.lock();
        let read = codes.by_hash.values().filter(|code| matches!(code, Code::Read(Some(_)))).count();
        let absent = codes.by_hash.values().filter(|code| matches!(code, Code::Read(None))).count();
        let unread: BTreeSet<&Digest> =
            codes.queued.iter().filter(|hash| !codes.by_hash.contains_key(&B256::from(**hash))).collect();
        (found, read, absent + unread.len())
    }

    fn claim(&self, place: usize) -> bool {
        self.cells[place].state.compare_exchange(QUEUED, LOADING, SeqCst, SeqCst).is_ok()
    }

    fn wait(&self, is_loading: impl Fn() -> bool) {
        // The waiter counts itself before checking, so a thread that publishes after the check sees the waiter.
        self.waiting.fetch_add(1, SeqCst);
        let mut turn = self.turn.lock();
        while is_loading() {
            self.progress.wait(&mut turn);
        }
        drop(turn);
        self.waiting.fetch_sub(1, SeqCst);
    }

    fn wake(&self) {
        if self.waiting.load(SeqCst) > 0 {
            // A waiter that has checked but does not sleep yet holds this lock.
            drop(self.turn.lock());
            self.progress.notify_all();
        }
    }
}
