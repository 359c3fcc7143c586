use slipstream_types::{Path, accumulator::AccumulatorRangeProof};

use super::*;
use crate::{
    Ancestry, ChunkError, Restore, RestoreError, RestoreTarget, Snapshot, StateChunk, StorageError, Takeover,
};

const CODE: &[u8] = &[0x60, 0x01, 0x50];

fn serving() -> StorageConfig {
    StorageConfig { snapshot_interval_batches: 10, ..config() }
}

/// A ledger of 32 batches with snapshots at 20 and 30 and one contract that genesis does not have.
pub(super) fn served(on_disk: bool) -> (Fixture, Ledger) {
    let fixture = Fixture::initialized(&serving(), on_disk);
    let mut ledger = Ledger::new();
    let contract =
        AccountValue { code_hash: Some(Digest::from(keccak256(CODE))), nonce: 1, ..AccountValue::default() };
    let made = ledger.make(&[(account_key(0xdd), Some(StateValue::Account(contract)))], vec![CODE.to_vec()]);
    fixture.store().commit(made.batch(), None).unwrap();
    ledger.advance(&made);
    ledger.commit_up_to(fixture.store(), 32);
    let numbers: Vec<_> = fixture.store().snapshots().iter().map(|info| info.number.get()).collect();
    assert_eq!(numbers, [30, 20]);
    (fixture, ledger)
}

pub(super) fn target(store: &Store, number: u64) -> RestoreTarget {
    let number = BatchNumber::new(number);
    RestoreTarget {
        header: store.header(number).unwrap().unwrap(),
        certificate: store.certificate(number).unwrap().unwrap(),
    }
}

/// Returns the last headers up to a batch, their proof, and that of the genesis.
pub(super) fn headers(
    store: &Store,
    number: u64,
    count: u64,
) -> (Vec<BatchHeader>, AccumulatorRangeProof, AccumulatorRangeProof) {
    let first = BatchNumber::new(number + 1 - count);
    let proof = store.header_range_proof(number + 1, first, count as usize).unwrap();
    let genesis = store.header_range_proof(number + 1, BatchNumber::GENESIS, 1).unwrap();
    (store.headers(first, count as usize).unwrap(), proof, genesis)
}

pub(super) fn fetch(restore: &Restore, snapshot: &Snapshot, chunks_max: usize) {
    for _ in 0..chunks_max {
        let Some(next) = restore.next_path() else { break };
        restore.add_chunk(&snapshot.chunk(next, 300).unwrap()).unwrap();
    }
    for hash in restore.missing_codes(10).unwrap() {
        restore.add_code(&snapshot.code(&hash).unwrap().unwrap()).unwrap();
    }
}

/// Checks everything that an older target left.
pub(super) fn check_all(restore: &Restore, snapshot: &Snapshot) {
    while let Some(span) = restore.unchecked(1).unwrap().pop() {
        restore.check_range(span, &snapshot.range_proof(span.first, span.last).unwrap()).unwrap();
    }
}

/// Restores `number`, dropping the handle and reopening the store after every few chunks.
pub(super) fn restored(source: &Store, number: u64, on_disk: bool) -> Fixture {
    let mut fixture = Fixture::initialized(&serving(), on_disk);
    let snapshot = source.snapshot(BatchNumber::new(number)).unwrap().unwrap();
    let mut rows = 0;
    loop {
        let restore = fixture.store().restore(&target(source, number)).unwrap();
        assert_eq!(restore.rows(), rows, "goes on where it was");
        fetch(&restore, &snapshot, 3);
        rows = restore.rows();
        if restore.next_path().is_none() {
            let (headers, proof, genesis) = headers(source, number, 5);
            restore.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis }).unwrap();
            return fixture;
        }
        drop(restore);
        assert_eq!(fixture.store().head().unwrap().header.number, BatchNumber::GENESIS);
        fixture.reopen();
        assert_eq!(fixture.store().recorded_restore().unwrap(), Some(target(source, number)));
    }
}

fn restores_and_goes_on(on_disk: bool) {
    let (source, ledger) = served(on_disk);
    let source = source.store();
    let mut fixture = restored(source, 30, on_disk);
    for reopened in [false, true] {
        let store = fixture.store();
        assert_eq!(store.head().unwrap().header, source.header(BatchNumber::new(30)).unwrap().unwrap());
        assert_eq!(store.recorded_restore().unwrap(), None);
        assert_eq!(store.lowest(BlobKind::Body).unwrap(), None);
        assert_eq!(store.header(BatchNumber::new(25)).unwrap(), None);
        assert_eq!(store.headers(BatchNumber::GENESIS, 9).unwrap().len(), 1, "genesis stays");
        let view = store.view().unwrap();
        for number in 26..=30 {
            let expected = source.header(BatchNumber::new(number)).unwrap().unwrap().digest();
            assert_eq!(view.header_digest(BatchNumber::new(number)).unwrap(), Some(expected));
        }
        assert_eq!(view.header_digest(BatchNumber::new(25)).unwrap(), None);
        assert_eq!(view.code(&Digest::from(keccak256(CODE))).unwrap().unwrap()[..], *CODE);
        assert_eq!(
            store.snapshots()[0].number,
            BatchNumber::new(30),
            "what was restored is served (reopened: {reopened})"
        );
        drop(view);
        fixture.reopen();
    }
    let store = fixture.store();
    let mut replica = Ledger::new();
    for number in 1..=32 {
        let delta =
            Delta::open(&source.blob(BlobKind::Delta, BatchNumber::new(number)).unwrap().unwrap()).unwrap();
        let root = source.header(BatchNumber::new(number)).unwrap().unwrap().state_root;
        let made = seal(&replica.head, &replica.accumulator, delta, root);
        if number > 30 {
            store.commit(made.batch(), None).unwrap();
        }
        replica.advance(&made);
    }
    assert_eq!(store.head().unwrap().accumulator, ledger.accumulator);
    assert_eq!(store.lowest(BlobKind::Body).unwrap(), Some(BatchNumber::new(31)));
    let state = store.view().unwrap();
    let keys: Vec<_> = ledger.state.keys().copied().collect();
    let expected: Vec<_> = ledger.state.values().copied().map(Some).collect();
    assert_eq!(state.rows(&keys).unwrap(), expected);
    let proof = store.header_range_proof(33, BatchNumber::new(28), 5).unwrap();
    let digests: Vec<_> =
        store.headers(BatchNumber::new(28), 5).unwrap().iter().map(BatchHeader::digest).collect();
    proof.verify(ledger.accumulator.root(), 33, 28, &digests).unwrap();
}

#[test]
fn a_restored_memory_store_goes_on() {
    restores_and_goes_on(false);
}

#[test]
fn a_restored_disk_store_goes_on() {
    restores_and_goes_on(true);
}

#[test]
fn another_target_ends_the_older_handle() {
    let (source, _) = served(false);
    let source = source.store();
    on_both(&serving(), |fixture| {
        let store = fixture.store();
        let old = source.snapshot(BatchNumber::new(20)).unwrap().unwrap();
        let older = store.restore(&target(source, 20)).unwrap();
        fetch(&older, &old, 4);
        assert!(older.rows() > 0);
        let newer = store.restore(&target(source, 30)).unwrap();
        assert_eq!(newer.rows(), 0);
        let snapshot = source.snapshot(BatchNumber::new(30)).unwrap().unwrap();
        check_all(&newer, &snapshot);
        let chunk = old.chunk(older.next_path().unwrap(), 300).unwrap();
        let superseded = older.add_chunk(&chunk).unwrap_err();
        assert!(matches!(superseded, StorageError::Restore(RestoreError::Superseded { .. })));

        fetch(&newer, &snapshot, usize::MAX);
        let (headers, proof, genesis) = headers(source, 30, 31);
        newer.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis }).unwrap();
        assert_eq!(store.head().unwrap().header.number, BatchNumber::new(30));
        let behind = store.restore(&target(source, 20)).err().unwrap();
        assert!(matches!(behind, StorageError::Restore(RestoreError::NotAhead { .. })));
    });
}

#[test]
fn bad_supply_is_refused_and_nothing_of_it_stored() {
    let (source, ledger) = served(false);
    let source = source.store();
    on_both(&config(), |fixture| {
        let store = fixture.store();
        let snapshot = source.snapshot(BatchNumber::new(30)).unwrap().unwrap();
        let restore = store.restore(&target(source, 30)).unwrap();
        let chunk = snapshot.chunk(Path::MIN, 600).unwrap();
        assert!(chunk.rows.len() >= 3);
        let with_rows = |rows: Vec<(StateKey, StateValue)>| StateChunk {
            rows: BoundedVec::new(rows).unwrap(),
            ..chunk.clone()
        };
        let mut short = chunk.rows.to_vec();
        short.remove(1);
        let mut altered = chunk.rows.to_vec();
        altered[0].1 = StateValue::Slot(U256::ZERO);
        let mut richer = chunk.rows.to_vec();
        if let (_, StateValue::Account(account)) = &mut richer[0] {
            account.nonce += 1;
        } else {
            richer[0].1 = StateValue::Slot(U256::from(1_234_567));
        }
        let longer = StateChunk { last: Path::MAX, ..chunk.clone() };
        for bad in [with_rows(short), with_rows(altered), with_rows(richer), longer] {
            let error = restore.add_chunk(&bad).unwrap_err();
            assert!(matches!(error, StorageError::Restore(RestoreError::Chunk(_))), "{error}");
            assert!(error.is_bad_supply());
        }
        let other_root = snapshot.chunk(Path::MIN, 600).unwrap().verify(ledger.head.state_root);
        assert!(matches!(other_root, Err(ChunkError::Range(_))));
        let skipping = snapshot.chunk(chunk.last.successor().unwrap(), 600).unwrap();
        let error = restore.add_chunk(&skipping).unwrap_err();
        assert!(matches!(error, StorageError::Restore(RestoreError::WrongStart { .. })));
        let unwanted = restore.add_code(b"nobody has this").unwrap_err();
        assert!(matches!(unwanted, StorageError::Restore(RestoreError::UnwantedCode { .. })));
        assert_eq!((restore.rows(), restore.next_path()), (0, Some(Path::MIN)));

        while let Some(next) = restore.next_path() {
            restore.add_chunk(&snapshot.chunk(next, 600).unwrap()).unwrap();
        }
        let (good, proof, genesis) = headers(source, 30, 5);
        let again = || store.restore(&target(source, 30)).unwrap();
        let error =
            restore.finish(&Ancestry { headers: &good, proof: &proof, genesis_proof: &genesis }).unwrap_err();
        assert!(matches!(error, StorageError::Restore(RestoreError::CodeMissing { .. })), "{error}");
        again().add_code(CODE).unwrap();
        let mut altered = good.clone();
        altered[1].gas_used += 1;
        let shorter = &good[1..];
        for (bad, proof) in [(&altered[..], &proof), (shorter, &proof), (&good[..4], &proof), (&[], &proof)] {
            let error =
                again().finish(&Ancestry { headers: bad, proof, genesis_proof: &genesis }).unwrap_err();
            assert!(error.is_bad_supply(), "{error}");
        }
        let foreign =
            again().finish(&Ancestry { headers: &good, proof: &proof, genesis_proof: &proof }).unwrap_err();
        assert!(foreign.is_bad_supply(), "{foreign}");
        assert_eq!(store.head().unwrap().header.number, BatchNumber::GENESIS);
        again().finish(&Ancestry { headers: &good, proof: &proof, genesis_proof: &genesis }).unwrap();
        assert_eq!(store.head().unwrap().header.number, BatchNumber::new(30));
    });
}

#[test]
fn a_restore_that_the_head_overtook_is_freed() {
    let (source, _) = served(false);
    on_both(&config(), |mut fixture| {
        let restore = fixture.store().restore(&target(source.store(), 20)).unwrap();
        fetch(&restore, &source.store().snapshot(BatchNumber::new(20)).unwrap().unwrap(), usize::MAX);
        Ledger::new().commit_up_to(fixture.store(), 21);
        let (headers, proof, genesis) = headers(source.store(), 20, 3);
        assert!(
            restore.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis }).is_err()
        );
        drop(restore);
        fixture.reopen();
        assert_eq!(fixture.store().recorded_restore().unwrap(), None);
        assert_eq!(fixture.store().head().unwrap().header.number, BatchNumber::new(21));
    });
}

#[test]
fn snapshots_outlive_restarts_and_old_ones_leave_the_disk() {
    let (mut fixture, mut ledger) = served(true);
    let made_before = fixture.store().snapshot(BatchNumber::new(30)).unwrap().unwrap();
    let chunk = made_before.chunk(Path::MIN, 1_000).unwrap();
    drop(made_before);
    std::fs::create_dir(fixture.dir().join("snapshots/40.tmp")).unwrap();
    fixture.reopen();
    assert!(!fixture.dir().join("snapshots/40.tmp").exists());
    let snapshot = fixture.store().snapshot(BatchNumber::new(30)).unwrap().unwrap();
    assert_eq!(snapshot.chunk(Path::MIN, 1_000).unwrap(), chunk);
    chunk.verify(snapshot.info().state_root).unwrap();
    assert_eq!(snapshot.info().certificate.info.number, BatchNumber::new(30));

    ledger.commit_up_to(fixture.store(), 50);
    let numbers: Vec<_> = fixture.store().snapshots().iter().map(|info| info.number.get()).collect();
    assert_eq!(numbers, [50, 40]);
    assert!(!fixture.dir().join("snapshots/20").exists());
    assert_eq!(snapshot.chunk(Path::MIN, 1_000).unwrap(), chunk, "who holds it can still read it");
    drop(snapshot);
    assert!(!fixture.dir().join("snapshots/30").exists());
}

#[test]
fn a_late_certificate_of_the_head_makes_its_snapshot() {
    on_both(&serving(), |fixture| {
        let store = fixture.store();
        let mut ledger = Ledger::new();
        ledger.commit_up_to(store, 9);
        let made = ledger.make(&[(account_key(1), account(50))], Vec::new());
        let mut batch = made.batch();
        batch.certificate = None;
        store.commit(batch, None).unwrap();
        assert!(store.snapshots().is_empty());
        store.put_certificate(&made.certificate).unwrap();
        store.put_certificate(&made.certificate).unwrap();
        assert_eq!(store.snapshots().len(), 1);
    });
}
