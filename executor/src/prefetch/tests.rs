use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, Bytes, U256};
use parking_lot::{Condvar, Mutex};
use slipstream_storage::{MemoryState, StateReader, StorageError};
use slipstream_types::{AccountValue, BatchNumber, Digest, StateKey, StateValue};

use super::*;

/// Counts the rows that are read, and blocks multi-row reads until it is opened.
#[derive(Clone)]
struct Gate(Arc<Inside>);

struct Inside {
    state: MemoryState,
    rows: AtomicUsize,
    arrived: AtomicUsize,
    is_open: Mutex<bool>,
    opened: Condvar,
    fails: bool,
}

impl Gate {
    fn new(state: MemoryState, is_open: bool, fails: bool) -> Gate {
        Gate(Arc::new(Inside {
            state,
            rows: AtomicUsize::new(0),
            arrived: AtomicUsize::new(0),
            is_open: Mutex::new(is_open),
            opened: Condvar::new(),
            fails,
        }))
    }

    fn open(&self) {
        *self.0.is_open.lock() = true;
        self.0.opened.notify_all();
    }

    fn rows_read(&self) -> usize {
        self.0.rows.load(SeqCst)
    }

    fn arrived(&self) -> usize {
        self.0.arrived.load(SeqCst)
    }
}

impl StateReader for Gate {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        self.0.rows.fetch_add(1, SeqCst);
        self.0.state.account(address)
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        self.0.rows.fetch_add(1, SeqCst);
        self.0.state.slot(address, slot)
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.0.state.code(hash)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.0.state.header_digest(number)
    }

    fn rows(&self, keys: &[StateKey]) -> Result<Vec<Option<StateValue>>, StorageError> {
        self.0.arrived.fetch_add(1, SeqCst);
        let mut is_open = self.0.is_open.lock();
        while !*is_open {
            self.0.opened.wait(&mut is_open);
        }
        drop(is_open);
        if self.0.fails {
            return Err(StorageError::NotInitialized);
        }
        keys.iter().map(|key| self.row(key)).collect()
    }
}

const CONTRACT: Address = Address::repeat_byte(7);

fn slot(index: u64) -> B256 {
    B256::from(U256::from(index))
}

/// Slots 1 to `count` have rows.
fn state(count: u64) -> MemoryState {
    let mut state = MemoryState::default();
    for index in 1..=count {
        state.insert(StateKey::Slot(CONTRACT, slot(index)), StateValue::Slot(U256::from(index)));
    }
    state
}

fn wanted(slots: std::ops::Range<u64>) -> PrefetchRequest {
    PrefetchRequest {
        keys: slots.map(|index| StateKey::Slot(CONTRACT, slot(index))).collect(),
        ..PrefetchRequest::default()
    }
}

fn prefetcher(limits: PrefetchLimits) -> Prefetcher {
    Prefetcher::new(PrefetchLimits { backend: Some(PrefetchBackend::MultiGet), ..limits }).unwrap()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::yield_now();
    }
}

/// Goal: with both back ends, the first thread that needs a key reads it, and no other thread reads the key again.
#[test]
fn every_key_is_read_once() {
    for backend in [PrefetchBackend::Threads, PrefetchBackend::MultiGet] {
        let gate = Gate::new(state(3_000), true, false);
        let limits = PrefetchLimits { threads: 4, backend: Some(backend), ..PrefetchLimits::default() };
        let prefetcher = Prefetcher::new(limits).unwrap();
        // Slot 0 has no row, and every key is named twice.
        let mut twice = wanted(0..3_000);
        twice.keys.extend(wanted(0..3_000).keys);
        let warm = prefetcher.read_ahead(BatchNumber::new(1), gate.clone(), twice);
        for index in (0..3_000).rev().chain(0..3_000) {
            assert_eq!(warm.slot(&CONTRACT, &slot(index)).unwrap(), U256::from(index));
        }
        assert_eq!(gate.rows_read(), 3_000);
        let stats = warm.stats();
        assert_eq!((stats.hits, stats.misses), (6_000, 0));
        assert_eq!((warm.prefetched().keys, warm.prefetched().found), (3_000, 2_999));
        warm.slot(&CONTRACT, &slot(3_000)).unwrap();
        assert_eq!((warm.stats().misses, gate.rows_read()), (1, 3_001));
    }
}

/// Goal: execution waits for a read in flight, and itself reads a key that is only queued.
#[test]
fn what_loads_is_waited_for_and_what_is_queued_is_claimed() {
    let gate = Gate::new(state(600), false, false);
    let prefetcher = prefetcher(PrefetchLimits { threads: 1, ..PrefetchLimits::default() });
    let warm = prefetcher.read_ahead(BatchNumber::new(1), gate.clone(), wanted(1..601));
    until("the first chunk is begun", || gate.arrived() == 1);
    // The second chunk cannot have begun: the only thread is held up in the first.
    assert_eq!(warm.slot(&CONTRACT, &slot(600)).unwrap(), U256::from(600));
    assert_eq!((warm.stats().claimed, warm.stats().waited), (1, 0));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| warm.slot(&CONTRACT, &slot(1)).unwrap());
        assert!(!waiter.is_finished());
        gate.open();
        assert_eq!(waiter.join().unwrap(), U256::from(1));
    });
    until("all is read", || warm.prefetched().found == 600);
    assert_eq!(gate.rows_read(), 600);
}

/// Goal: execution does not wait for a read in flight if hints ship the value. Confirming waits, and finds the wrong
/// values. A key that was answered keeps its answer until the values are distrusted.
#[test]
fn what_is_told_is_confirmed_later() {
    let gate = Gate::new(state(600), false, false);
    let prefetcher = prefetcher(PrefetchLimits { threads: 1, ..PrefetchLimits::default() });
    let value = |index: u64| (index > 0).then_some(StateValue::Slot(U256::from(index)));
    let mut values: Vec<_> =
        (0..601).map(|index| (StateKey::Slot(CONTRACT, slot(index)), value(index))).collect();
    (values[3].1, values[500].1, values[600].1) = (value(4), None, value(1));
    let warm = prefetcher.read_ahead(
        BatchNumber::new(1),
        gate.clone(),
        PrefetchRequest { values, ..wanted(0..601) },
    );
    until("the first chunk is begun", || gate.arrived() == 1);
    let read = |index: u64| warm.slot(&CONTRACT, &slot(index)).unwrap();
    // The last one is wrong too, and nothing reads it.
    for index in (0..600).filter(|index| ![3, 500].contains(index)) {
        assert_eq!(read(index), U256::from(index));
    }
    assert_eq!((read(3), read(500)), (U256::from(4), U256::ZERO));
    assert_eq!((warm.stats().hits, warm.stats().shipped, warm.stats().waited), (600, 600, 0));
    assert!(!warm.is_confirmable());
    std::thread::scope(|scope| {
        let confirmer = scope.spawn(|| warm.confirm().unwrap());
        assert!(!confirmer.is_finished());
        gate.open();
        let mut wrong = confirmer.join().unwrap();
        wrong.sort_unstable();
        assert_eq!(wrong, [3, 500].map(|index| StateKey::Slot(CONTRACT, slot(index))));
    });
    assert!(warm.is_confirmable());
    assert_eq!((read(3), read(500)), (U256::from(4), U256::ZERO), "one answer for each key");
    warm.distrust();
    assert_eq!((read(3), read(500), read(600)), (U256::from(3), U256::from(500), U256::from(600)));
    assert_eq!(warm.confirm().unwrap(), []);
    until("all is read", || gate.rows_read() == 601);
}

/// Goal: once the store's row is read, the hint's value is no longer used.
#[test]
fn what_is_read_is_not_taken_from_hints() {
    let values = vec![(StateKey::Slot(CONTRACT, slot(1)), None)];
    let warm = WarmState::complete(state(9), PrefetchRequest { values, ..wanted(1..10) }).unwrap();
    assert_eq!(warm.slot(&CONTRACT, &slot(1)).unwrap(), U256::from(1));
    assert_eq!((warm.stats().shipped, warm.confirm().unwrap()), (0, vec![]));
}

/// Goal: code is read through the shipped row of its account, before any row, since execution waits for nothing else.
#[test]
fn code_is_read_through_what_is_told_of_its_account() {
    let mut state = state(0);
    let hash = state.insert_code(Bytes::from_static(&[0x60, 0x00]));
    let row = StateValue::Account(AccountValue { code_hash: Some(hash), ..AccountValue::default() });
    let gate = Gate::new(state, false, false);
    let prefetcher = prefetcher(PrefetchLimits { threads: 1, ..PrefetchLimits::default() });
    let key = StateKey::Account(CONTRACT);
    let (keys, values) = (vec![key], vec![(key, Some(row))]);
    let wanted = PrefetchRequest { keys, values, codes_of: vec![CONTRACT], ..PrefetchRequest::default() };
    let warm = prefetcher.read_ahead(BatchNumber::new(1), gate.clone(), wanted);
    until("the row is waited for", || gate.arrived() == 1);
    assert_eq!(warm.prefetched().codes, 1);
    gate.open();
    assert_eq!(warm.code(&hash).unwrap().unwrap().len(), 2);
}

/// Goal: batches beyond the limits are not read ahead until earlier batches are done.
#[test]
fn reading_ahead_is_limited_in_batches_and_bytes() {
    let few = PrefetchLimits { readahead_batches: 1, ..PrefetchLimits::default() };
    let small = PrefetchLimits { readahead_bytes: 1, ..PrefetchLimits::default() };
    for (limits, ahead) in [(few, 2), (small, 1)] {
        let gate = Gate::new(state(100), true, false);
        let prefetcher = prefetcher(limits);
        let begin = |number| prefetcher.read_ahead(BatchNumber::new(number), gate.clone(), wanted(1..101));
        let mut warm: Vec<_> = [1, 2, 3].map(begin).into();
        for done in 0..3 {
            let open = (ahead).min(3 - done);
            until("the first ones are read", || {
                warm[..open].iter().all(|warm| warm.prefetched().found == 100)
            });
            std::thread::yield_now();
            assert!(warm[open..].iter().all(|warm| warm.prefetched().found == 0));
            warm.remove(0);
        }
    }
}

/// Goal: a failed read leaves its keys queued, so that execution gets the error, and no reader waits for ever.
#[test]
fn a_failed_read_is_left_to_execution() {
    let gate = Gate::new(state(10), true, true);
    let prefetcher = prefetcher(PrefetchLimits::default());
    let warm = prefetcher.read_ahead(BatchNumber::new(1), gate.clone(), wanted(1..11));
    until("reading was tried", || gate.arrived() == 1);
    // Single rows do not fail.
    assert_eq!(warm.slot(&CONTRACT, &slot(5)).unwrap(), U256::from(5));
    assert!(WarmState::complete(gate, wanted(1..11)).is_err());
}

/// Goal: code is found through the account's row, and read once.
#[test]
fn code_is_read_through_its_account() {
    let mut state = state(0);
    let hash = state.insert_code(Bytes::from_static(&[0x60, 0x00]));
    let account = AccountValue { code_hash: Some(hash), ..AccountValue::default() };
    state.insert(StateKey::Account(CONTRACT), StateValue::Account(account));
    let keys = vec![StateKey::Account(CONTRACT)];
    let warm = WarmState::complete(
        state,
        PrefetchRequest { keys, codes_of: vec![CONTRACT], ..PrefetchRequest::default() },
    )
    .unwrap();
    assert_eq!(warm.prefetched().codes, 1);
    assert_eq!(warm.code(&hash).unwrap().unwrap().len(), 2);
    assert_eq!(warm.code(&Digest([9; 32])).unwrap(), None);
    assert_eq!((warm.stats().hits, warm.stats().misses), (1, 1));
}
