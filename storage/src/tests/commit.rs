use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use slipstream_types::{CodecError, Path};

use super::*;
use crate::{
    StorageError,
    backend::{
        Checkpoints, Column, Direction, NumberedReader, Reader, SortedFile, Upkeep, Visit, WriteBatch,
    },
};

#[test]
fn genesis_is_batch_0_and_only_one_fits() {
    let mut fixture = Fixture::new(&config(), true);
    let store = fixture.store().clone();
    assert!(!store.is_initialized());
    assert!(matches!(store.head(), Err(StorageError::NotInitialized)));
    assert!(matches!(store.view(), Err(StorageError::NotInitialized)));
    store.initialize(&genesis()).unwrap();
    drop(store);
    fixture.reopen();
    let store = fixture.store();
    store.initialize(&genesis()).unwrap();
    let other = Genesis { timestamp_ms: 2_000, ..genesis() };
    let error = store.initialize(&other).unwrap_err();
    assert!(
        matches!(error, StorageError::WrongGenesis { given, .. } if given == other.header().unwrap().digest())
    );
    assert_eq!(store.genesis().unwrap(), genesis());
    assert_eq!(store.head().unwrap().header, genesis().header().unwrap());
    assert_eq!(store.lowest(BlobKind::Body).unwrap(), None);
    let view = store.view().unwrap();
    assert_eq!(view.slot(&address(0xcc), &B256::repeat_byte(1)).unwrap(), U256::from(5));
    let hash = view.account(&address(0xcc)).unwrap().unwrap().code_hash.unwrap();
    assert_eq!(view.code(&hash).unwrap().unwrap()[..], [0x60, 0x00]);
}

#[test]
fn what_does_not_continue_the_head_leaves_nothing() {
    on_both(&config(), |fixture| {
        let store = fixture.store();
        let mut ledger = Ledger::new();
        let first = ledger.commit(store, &[(account_key(1), account(1))]);
        let good = ledger.make(&[(account_key(2), account(2))], Vec::new());

        let refuse = |made: &Made, expected: fn(&StorageError) -> bool| {
            let error = store.commit(made.batch(), None).unwrap_err();
            assert!(expected(&error), "{error}");
            assert_eq!(store.head().unwrap().header, ledger.head);
            let next = ledger.head.number.next();
            assert_eq!(store.header(next).unwrap(), None);
            assert_eq!(store.blob(BlobKind::Body, next).unwrap(), None);
            assert_eq!(store.view().unwrap().account(&address(2)).unwrap(), None);
        };
        refuse(&first, |error| matches!(error, StorageError::NotNext { .. }));
        let mut skipping = good.clone();
        skipping.header.number = BatchNumber::new(3);
        refuse(&skipping, |error| matches!(error, StorageError::NotNext { .. }));
        let mut orphan = good.clone();
        orphan.header.parent = Digest::ZERO;
        refuse(&orphan, |error| matches!(error, StorageError::WrongParent { .. }));
        let mut wrong_root = good.clone();
        wrong_root.header.state_root = Digest::ZERO;
        refuse(&wrong_root, |error| matches!(error, StorageError::StateRootMismatch { .. }));
        for wrong in [
            certify(&good.header, Digest::ZERO),
            certify(&wrong_root.header, good.certificate.info.accumulator_root),
            first.certificate.clone(),
        ] {
            let made = Made { certificate: wrong, ..good.clone() };
            refuse(&made, |error| matches!(error, StorageError::WrongCertificate { .. }));
        }
        let swapped = Made { body: good.receipts.clone(), ..good.clone() };
        refuse(&swapped, |error| matches!(error, StorageError::Codec(CodecError::Invalid { .. })));
        let contract =
            AccountValue { code_hash: Some(Digest::from(keccak256([1]))), ..AccountValue::default() };
        let contract = [(account_key(2), Some(StateValue::Account(contract)))];
        refuse(&ledger.make(&contract, Vec::new()), |error| {
            matches!(error, StorageError::UnknownCode { .. })
        });

        store.commit(ledger.make(&contract, vec![vec![1]]).batch(), None).unwrap();
        let code = store.view().unwrap().code(&Digest::from(keccak256([1]))).unwrap();
        assert_eq!(code.unwrap()[..], [1]);
    });
}

#[test]
fn speculation_predicts_the_root_and_a_stale_one_is_ignored() {
    on_both(&config(), |fixture| {
        let store = fixture.store();
        let mut ledger = Ledger::new();
        let stale = store.speculate(&ledger.make(&[(account_key(9), account(9))], Vec::new()).delta).unwrap();
        for n in 1..5 {
            let made = ledger
                .make(&[(account_key(n), account(5)), (slot_key(0xcc, 1), slot(u64::from(n) - 1))], vec![]);
            let speculation = store.speculate(&made.delta).unwrap();
            assert_eq!(speculation.root(), made.header.state_root);
            assert_eq!(store.head().unwrap().header, ledger.head, "speculating writes nothing");
            store.commit(made.batch(), Some(speculation)).unwrap();
            ledger.advance(&made);
        }
        let made = ledger.make(&[(account_key(1), None)], Vec::new());
        store.commit(made.batch(), Some(stale)).unwrap();
        assert_eq!(store.view().unwrap().account(&address(9)).unwrap(), None);
        assert_eq!(store.view().unwrap().account(&address(1)).unwrap(), None);
    });
}

#[test]
fn a_run_of_deltas_has_the_root_of_its_last() {
    on_both(&config(), |fixture| {
        let store = fixture.store();
        let mut ledger = Ledger::new();
        let first = ledger.make(&[(account_key(1), account(1)), (slot_key(0xcc, 1), slot(9))], Vec::new());
        ledger.advance(&first);
        let second = ledger.make(&[(account_key(1), None), (account_key(2), account(2))], Vec::new());
        let root = store.speculate_run(&[&first.delta, &second.delta]).unwrap();
        assert_eq!(root, second.header.state_root);
        let head = store.head().unwrap().header;
        assert_eq!(store.speculate_run(&[]).unwrap(), head.state_root, "speculating changes nothing");
        assert_eq!(store.subtree(&Path::MIN, 0).unwrap().hash(), head.state_root);
    });
}

/// A state three times as large as its tree may be, through commit, refusal, speculation and reopening, to snapshots
/// of older versions.
#[test]
fn a_small_tree_memory_changes_no_root_and_no_proof() {
    let config = StorageConfig { tree_memory_mib: 1, snapshot_interval_batches: 2, ..config() };
    let key = |i: u64| StateKey::Slot(address((i % 200) as u8), B256::from(U256::from(i)));
    on_both(&config, |mut fixture| {
        let mut ledger = Ledger::new();
        ledger.commit(fixture.store(), &(0..25_000).map(|i| (key(i), slot(i + 1))).collect::<Vec<_>>());
        for round in 0..4 {
            let changes: Vec<_> =
                (0..100).map(|i| (key(i * 251 + round * 17), slot(i % 5 * (round + 7)))).collect();
            let store = fixture.store();
            let made = ledger.make(&changes, Vec::new());
            let mut wrong = made.clone();
            wrong.header.state_root = Digest::ZERO;
            let error = store.commit(wrong.batch(), None).unwrap_err();
            assert!(matches!(error, StorageError::StateRootMismatch { .. }), "{error}");
            assert_eq!(store.speculate(&made.delta).unwrap().root(), made.header.state_root);
            store.commit(made.batch(), None).unwrap();
            ledger.advance(&made);
            if round == 1 {
                fixture.reopen();
            }
        }
        let snapshots = fixture.store().snapshots();
        assert!(!snapshots.is_empty());
        for info in snapshots {
            let snapshot = fixture.store().snapshot(info.number).unwrap().unwrap();
            for first in [0, 0x33, 0xfe].map(|byte| Path([byte; 32])) {
                snapshot.chunk(first, 10_000).unwrap().verify(info.state_root).unwrap();
            }
        }
    });
}

#[test]
fn parts_are_found_and_the_lowest_without_gap_is_known() {
    on_both(&config(), |mut fixture| {
        let mut ledger = Ledger::new();
        ledger.commit_up_to(fixture.store(), 3);
        let without_body = ledger.make(&[], Vec::new());
        let mut batch = without_body.batch();
        (batch.body, batch.certificate, batch.transaction_hashes) = (None, None, &[]);
        fixture.store().commit(batch, None).unwrap();
        ledger.advance(&without_body);
        assert_eq!(fixture.store().lowest(BlobKind::Body).unwrap(), None);
        ledger.commit_up_to(fixture.store(), 6);
        fixture.reopen();
        let store = fixture.store();
        assert_eq!(store.lowest(BlobKind::Body).unwrap(), Some(BatchNumber::new(5)));
        assert_eq!(store.lowest(BlobKind::Receipts).unwrap(), Some(BatchNumber::new(1)));
        assert_eq!(store.blob(BlobKind::Body, BatchNumber::new(4)).unwrap(), None);

        let headers = store.headers(BatchNumber::new(2), 3).unwrap();
        assert_eq!(headers.iter().map(|header| header.number.get()).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(store.headers(BatchNumber::new(5), 100).unwrap().len(), 2);
        assert!(store.headers(BatchNumber::new(7), 100).unwrap().is_empty());
        assert_eq!(store.find_header(&headers[0].digest()).unwrap(), Some(BatchNumber::new(2)));
        assert_eq!(
            store.transaction_places(&transaction_hash(BatchNumber::new(3), 1)).unwrap(),
            [(BatchNumber::new(3), 1)]
        );
        assert_eq!(store.transaction_places(&transaction_hash(BatchNumber::new(4), 1)).unwrap(), []);

        let digests: Vec<_> = headers.iter().map(BatchHeader::digest).collect();
        let proof = store.header_range_proof(7, BatchNumber::new(2), 3).unwrap();
        proof.verify(ledger.accumulator.root(), 7, 2, &digests).unwrap();
        assert!(matches!(
            store.header_range_proof(9, BatchNumber::new(2), 3),
            Err(StorageError::Accumulator(_))
        ));

        let number =
            |certificate: Option<Certificate>| certificate.map(|certificate| certificate.info.number.get());
        assert_eq!(number(store.certificate(BatchNumber::new(4)).unwrap()), None);
        assert_eq!(number(store.certificate_at_or_before(BatchNumber::new(4)).unwrap()), Some(3));
        assert_eq!(number(store.latest_certificate().unwrap()), Some(6));
        store.put_certificate(&without_body.certificate).unwrap();
        assert_eq!(number(store.certificate(BatchNumber::new(4)).unwrap()), Some(4));
        let next = ledger.make(&[], Vec::new());
        for wrong in [certify(&without_body.header, Digest::ZERO), next.certificate] {
            assert!(matches!(store.put_certificate(&wrong), Err(StorageError::WrongCertificate { .. })));
        }
    });
}

#[test]
fn records_last_and_are_bounded() {
    on_both(&config(), |mut fixture| {
        assert_eq!(fixture.store().record("consensus/vote").unwrap(), None);
        fixture.store().put_record("consensus/vote", b"one").unwrap();
        fixture.store().put_record("consensus/vote", b"two").unwrap();
        fixture.reopen();
        assert_eq!(fixture.store().record("consensus/vote").unwrap().unwrap(), b"two");
        let long = fixture.store().put_record(&"x".repeat(300), b"");
        assert!(matches!(long, Err(StorageError::RecordTooLong { len: 300, .. })));
    });
}

#[test]
fn derived_records_are_set_and_removed_by_range() {
    on_both(&config(), |mut fixture| {
        for name in ["derived/1", "derived/2", "derived/3", "other"] {
            fixture.store().put_derived_record(name, b"made").unwrap();
        }
        let named = fixture.store().records("derived/2", "derived/9").unwrap();
        assert_eq!(named, ["derived/2", "derived/3"].map(|name| (name.to_owned(), b"made".to_vec())));
        fixture.store().remove_records("derived/1", "derived/2").unwrap();
        fixture.reopen();
        let kept = ["derived/1", "derived/2", "derived/3", "other"]
            .map(|name| fixture.store().record(name).unwrap().is_some());
        assert_eq!(kept, [false, false, true, true]);
        let long = fixture.store().put_derived_record(&"x".repeat(300), b"");
        assert!(matches!(long, Err(StorageError::RecordTooLong { len: 300, .. })));
    });
}

#[test]
fn the_head_is_watched() {
    on_both(&config(), |fixture| {
        let mut head = fixture.store().watch_head();
        head.mark_unchanged();
        Ledger::new().commit_up_to(fixture.store(), 2);
        assert!(head.has_changed().unwrap());
        assert_eq!(*head.borrow_and_update(), BatchNumber::new(2));
    });
}

#[test]
fn a_newer_a_foreign_and_a_locked_directory_are_refused() {
    let mut fixture = Fixture::initialized(&config(), true);
    let locked = Store::open(&config(), fixture.dir()).err().unwrap();
    assert!(matches!(locked, StorageError::Locked { .. }), "{locked}");
    assert!(locked.is_retryable());
    fixture.store = None;
    let format = fixture.dir().join("FORMAT");
    std::fs::write(&format, "slipstream storage format 2\n").unwrap();
    let newer = Store::open(&config(), fixture.dir()).err().unwrap();
    assert!(matches!(newer, StorageError::NewerFormat { found: 2, supported: 1, .. }), "{newer}");
    for damage in ["slipstream storage format x", "something else"] {
        std::fs::write(&format, damage).unwrap();
        assert!(matches!(Store::open(&config(), fixture.dir()), Err(StorageError::Corrupt { .. })));
    }
    std::fs::remove_file(&format).unwrap();
    assert!(matches!(Store::open(&config(), fixture.dir()), Err(StorageError::Corrupt { .. })));
}

#[test]
fn damaged_rows_are_found_when_the_store_opens() {
    let backend = MemoryBackend::default();
    let store = Store::with_backend(&config(), Arc::new(backend.clone())).unwrap();
    store.initialize(&genesis()).unwrap();
    Ledger::new().commit_up_to(&store, 3);
    let mut damage = WriteBatch::default();
    damage.delete(Column::StateA, account_key(1).path().0);
    backend.write(damage, true).unwrap();
    let error = Store::with_backend(&config(), Arc::new(backend)).err().unwrap();
    assert!(
        matches!(&error, StorageError::Corrupt { what } if what.to_string().contains("state rows")),
        "{error}"
    );
}

/// Fails every write while `failing` is set, and delays the others.
pub(super) struct Faulty {
    pub(super) inner: MemoryBackend,
    pub(super) failing: Arc<AtomicBool>,
    pub(super) delay: Duration,
}

impl Reader for Faulty {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.inner.get(column, key)
    }
    fn multi_get(&self, column: Column, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        self.inner.multi_get(column, keys)
    }
    fn scan(
        &self,
        column: Column,
        from: &[u8],
        to: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), StorageError> {
        self.inner.scan(column, from, to, visit)
    }
}

impl RowStore for Faulty {
    fn write(&self, batch: WriteBatch, durable: bool) -> Result<(), StorageError> {
        std::thread::park_timeout(self.delay);
        match self.failing.load(Ordering::Relaxed) {
            true => Err(StorageError::io("write", "disk".as_ref(), std::io::ErrorKind::StorageFull.into())),
            false => self.inner.write(batch, durable),
        }
    }
    fn sorted_file(&self, column: Column) -> Result<Box<dyn SortedFile>, StorageError> {
        self.inner.sorted_file(column)
    }
    fn snapshot(&self) -> Arc<dyn Reader> {
        self.inner.snapshot()
    }
}

impl Checkpoints for Faulty {
    fn prepare_checkpoint(&self) -> Result<(), StorageError> {
        self.inner.prepare_checkpoint()
    }
    fn checkpoint(&self, _number: u64) -> Result<Arc<dyn Reader>, StorageError> {
        Err(StorageError::io("link", "disk".as_ref(), std::io::ErrorKind::StorageFull.into()))
    }
    fn checkpoints(&self) -> Result<Vec<NumberedReader>, StorageError> {
        self.inner.checkpoints()
    }
    fn remove_checkpoint(&self, number: u64) -> Result<(), StorageError> {
        self.inner.remove_checkpoint(number)
    }
}

impl Upkeep for Faulty {
    fn reclaim(&self, column: Column, readers: usize) -> Result<(), StorageError> {
        self.inner.reclaim(column, readers)
    }
}

#[test]
fn a_failed_write_poisons_and_a_failed_snapshot_does_not() {
    let failing = Arc::new(AtomicBool::new(false));
    let inner = MemoryBackend::default();
    let config = StorageConfig { snapshot_interval_batches: 1, ..config() };
    let faulty = Faulty { inner: inner.clone(), failing: Arc::clone(&failing), delay: Duration::ZERO };
    let store = Store::with_backend(&config, Arc::new(faulty)).unwrap();
    store.initialize(&genesis()).unwrap();
    let mut ledger = Ledger::new();
    ledger.commit_up_to(&store, 2);
    assert!(store.snapshots().is_empty());

    failing.store(true, Ordering::Relaxed);
    let made = ledger.make(&[(account_key(1), account(100))], Vec::new());
    assert!(matches!(store.commit(made.batch(), None), Err(StorageError::Io { .. })));
    failing.store(false, Ordering::Relaxed);
    assert!(matches!(store.commit(made.batch(), None), Err(StorageError::Poisoned)));
    assert!(matches!(store.put_record("x", b"y"), Err(StorageError::Poisoned)));
    assert_eq!(store.head().unwrap().header, ledger.head);

    let reopened = Store::with_backend(&config, Arc::new(inner)).unwrap();
    reopened.commit(made.batch(), None).unwrap();
}
