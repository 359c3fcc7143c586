//! Pruning, checking and the disk guard.

use std::{
    fs,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU64, Ordering},
};

use slipstream_types::batch::content_digest;

use super::*;
use crate::{
    Maintenance, PruneConfig, PrunedKind, StorageError,
    backend::{Column, Direction, Reader, WriteBatch, rocks::RocksBackend},
    disk::DiskGuard,
    prune,
    schema::{self, PrunedRecord},
};

const KINDS: [BlobKind; 4] = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints];

fn pruning(bodies: u64, receipts: u64, deltas: u64) -> StorageConfig {
    StorageConfig { prune: PruneConfig::of_batches([bodies, receipts, deltas, 0]), ..config() }
}

/// Checks that all announced batches are there and all lower ones are gone, by number, by range and by transaction.
fn check_served(store: &Store, floors: [u64; 4]) {
    let head = store.head().unwrap().header.number.get();
    for (kind, floor) in KINDS.into_iter().zip(floors) {
        assert_eq!(store.lowest(kind).unwrap(), Some(BatchNumber::new(floor.max(1))), "{}", kind.name());
        let present = |number: u64| number >= floor || (number == 0 && kind == BlobKind::Body);
        let mut range = store.blobs(kind, BatchNumber::GENESIS, 1_000);
        for number in 0..=head {
            let blob = store.blob(kind, BatchNumber::new(number)).unwrap();
            let due = present(number) && (number > 0 || kind != BlobKind::Hints);
            assert_eq!(blob.is_some(), due, "{} {number}", kind.name());
            assert_eq!(range.of(BatchNumber::new(number)).unwrap(), blob, "{} {number}", kind.name());
        }
    }
    for number in 1..=head {
        let found = store.transaction_places(&transaction_hash(BatchNumber::new(number), 0)).unwrap();
        assert_eq!(!found.is_empty(), number >= floors[0], "{number}");
        assert!(store.header(BatchNumber::new(number)).unwrap().is_some(), "headers stay");
    }
    store.header_range_proof(head + 1, BatchNumber::GENESIS, 3).unwrap();
    assert_eq!(store.genesis().unwrap(), genesis());
}

/// Goal: exactly what is announced is served, through pruning, a reopen, other windows, and further batches.
#[test]
fn what_is_announced_is_what_is_served() {
    on_both(&pruning(4, 0, 10), |mut fixture| {
        let mut ledger = Ledger::new();
        ledger.commit_up_to(fixture.store(), 12);
        check_served(fixture.store(), [0; 4]);
        fixture.store().prune().unwrap();
        check_served(fixture.store(), [9, 0, 3, 0]);
        fixture.reopen();
        check_served(fixture.store(), [9, 0, 3, 0]);
        ledger.commit_up_to(fixture.store(), 20);
        check_served(fixture.store(), [9, 0, 3, 0]);
        // A wider window does not bring back what is gone.
        fixture.config = pruning(15, 5, 0);
        fixture.reopen();
        fixture.store().prune().unwrap();
        check_served(fixture.store(), [9, 16, 3, 0]);
        fixture.reopen();
        check_served(fixture.store(), [9, 16, 3, 0]);
    });
}

/// Goal: a kill after the first step leaves a store whose announcements are true, and that finishes the second step
/// later.
#[test]
fn a_kill_between_the_steps_leaves_the_truth() {
    let backend = MemoryBackend::default();
    let store = Store::with_backend(&pruning(2, 0, 0), Arc::new(backend.clone())).unwrap();
    store.initialize(&genesis()).unwrap();
    Ledger::new().commit_up_to(&store, 6);
    drop(store);
    let target = PrunedRecord {
        below: [BatchNumber::new(5), BatchNumber::GENESIS, BatchNumber::GENESIS, BatchNumber::GENESIS],
    };
    backend.write(prune::record_write(&target), true).unwrap();

    let store = Store::with_backend(&pruning(2, 0, 0), Arc::new(backend.clone())).unwrap();
    check_served(&store, [5, 0, 0, 0]);
    assert_eq!(stored_bodies(&backend), [1, 2, 3, 4, 5, 6], "the second step did not happen");
    let pruned = store.prune().unwrap();
    assert_eq!((pruned[0].kind, pruned[0].lowest), (PrunedKind::Blobs(BlobKind::Body), BatchNumber::new(5)));
    assert_eq!(stored_bodies(&backend), [5, 6]);
    check_served(&store, [5, 0, 0, 0]);
}

fn stored_bodies(backend: &MemoryBackend) -> Vec<u64> {
    let mut numbers = Vec::new();
    backend
        .scan(Column::Bodies, &[], Direction::Up, &mut |key, _| {
            numbers.push(u64::from_be_bytes(key.try_into().unwrap()));
            Ok(std::ops::ControlFlow::Continue(()))
        })
        .unwrap();
    numbers
}

/// A batch whose header commits to its parts, with a body of `body_bytes` incompressible bytes.
fn large(ledger: &mut Ledger, store: &Store, body_bytes: usize) -> Made {
    let number = ledger.head.number.get() + 1;
    let mut made = ledger.make(&[(account_key(1), account(number))], Vec::new());
    let noise = |i: usize| keccak256([number.to_be_bytes(), (i as u64).to_be_bytes()].concat()).0;
    let bytes: Vec<u8> = (0..body_bytes / 32).flat_map(noise).collect();
    let body = Body::new(bytes.chunks(64 << 10).map(<[u8]>::to_vec).collect()).unwrap();
    made.body = Blob::seal(BlobKind::Body, &body).unwrap();
    let digest = |kind, blob: &Blob| content_digest(kind, &blob.content(kind).unwrap());
    made.header.transactions_root = digest(BlobKind::Body, &made.body);
    made.header.receipts_root = digest(BlobKind::Receipts, &made.receipts);
    made.header.delta_digest = digest(BlobKind::Delta, &made.delta_blob);
    let mut accumulator = ledger.accumulator.clone();
    accumulator.append(made.header.digest());
    made.certificate = certify(&made.header, accumulator.root());
    store.commit(made.batch(), None).unwrap();
    ledger.advance(&made);
    made
}

fn disk_bytes(dir: &std::path::Path) -> u64 {
    let files = fs::read_dir(dir.join("db")).unwrap().map(|entry| entry.unwrap());
    let tables = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "sst"));
    tables.map(|file| file.metadata().unwrap().len()).sum()
}

/// Goal: when `prune` returns, the disk has the bytes back that the dry run reported, with files as large as RocksDB
/// makes them. Kept batches are readable.
#[test]
fn pruning_frees_the_disk_at_once() {
    let mut fixture = Fixture::initialized(&pruning(20, 0, 0), true);
    let mut ledger = Ledger::new();
    for _ in 0..150 {
        large(&mut ledger, fixture.store(), 1 << 20);
    }
    fixture.reopen();
    let before = disk_bytes(fixture.dir());
    assert!(before > 130 << 20, "{before}");
    fixture.store = None;
    let maintenance = Maintenance::open(&fixture.config, fixture.dir()).unwrap();
    let planned = maintenance.prune(&fixture.config.prune, true).unwrap();
    assert_eq!(
        maintenance.stats().unwrap().kept[0].lowest,
        Some(BatchNumber::new(1)),
        "a dry run changes nothing"
    );
    drop(maintenance);

    fixture.reopen();
    let pruned = fixture.store().prune().unwrap();
    let freed = before - disk_bytes(fixture.dir());
    assert_eq!((pruned.len(), pruned[0].bytes), (1, planned[0].bytes));
    // The database's own log and manifest grow by some hundred bytes meanwhile.
    assert!(freed.abs_diff(pruned[0].bytes) < 64 << 10, "{freed} of {}", pruned[0].bytes);
    assert!(freed > 70 << 20, "{freed}");
    for number in 131..=150 {
        let blob = fixture.store().blob(BlobKind::Body, BatchNumber::new(number)).unwrap().unwrap();
        blob.content(BlobKind::Body).unwrap();
    }
    assert_eq!(fixture.store().blob(BlobKind::Body, BatchNumber::new(130)).unwrap(), None);
}

/// Goal: files that a checkpoint shares are counted separately, and the checkpoint still opens.
#[test]
fn snapshots_hold_what_they_share() {
    let config = StorageConfig { snapshot_interval_batches: 40, ..pruning(1, 0, 0) };
    let mut fixture = Fixture::initialized(&config, true);
    let mut ledger = Ledger::new();
    for _ in 0..80 {
        large(&mut ledger, fixture.store(), 1 << 20);
    }
    let pruned = fixture.store().prune().unwrap();
    assert!(pruned[0].bytes_in_snapshots > 30 << 20, "{pruned:?}");
    fixture.reopen();
    assert_eq!(fixture.store().snapshots().len(), 2);
    let snapshot = fixture.store().snapshot(BatchNumber::new(40)).unwrap().unwrap();
    snapshot.chunk(slipstream_types::Path::MIN, 1 << 20).unwrap().verify(snapshot.info().state_root).unwrap();
}

/// Goal: a whole store has nothing to report. Each kind of damage is named, with its batch or file.
#[test]
fn check_names_the_damage() {
    let mut fixture = Fixture::initialized(&config(), true);
    let mut ledger = Ledger::new();
    for _ in 0..5 {
        large(&mut ledger, fixture.store(), 1 << 10);
    }
    fixture.store = None;
    let check = |fixture: &Fixture| {
        let maintenance = Maintenance::open(&fixture.config, fixture.dir()).unwrap();
        maintenance.check(&mut |_| {}).unwrap()
    };
    let report = check(&fixture);
    assert_eq!(report.damage, Vec::<String>::new());
    assert!(report.rows > 30 && report.bytes > 5 << 10, "{report:?}");

    let number = |number| schema::number_key(BatchNumber::new(number)).to_vec();
    let path = |i| account_key(i).path().0.to_vec();
    let swapped = Blob::seal(BlobKind::Body, &Body::default()).unwrap().into_bytes();
    let row = schema::encode_row(&account_key(1), &account(77).unwrap());
    let code = keccak256([0x60, 0x00]).to_vec();
    let damages = [
        (Column::Bodies, number(3), Some(swapped), "body of batch 3: its digest"),
        (Column::Deltas, number(2), Some(vec![3, 1]), "delta of batch 2"),
        (Column::Receipts, number(4), None, "receipts of batch 4: missing"),
        (Column::Headers, number(2), None, "header 2: missing"),
        (Column::StateA, path(1), Some(row), "the state rows have the root"),
        (Column::StateA, path(2), Some(vec![9]), "state row"),
        (Column::Codes, vec![7; 32], Some(vec![1]), "its bytes have another hash"),
        (Column::Codes, code, None, "which is not stored"),
    ];
    for (column, key, value, expected) in damages {
        let set = |value: Option<Vec<u8>>| {
            let backend = RocksBackend::open(&fixture.config, fixture.dir(), CURRENT).unwrap();
            let before = backend.get(column, &key).unwrap();
            let mut writes = WriteBatch::default();
            match value {
                Some(value) => writes.put(column, key.clone(), value),
                None => writes.delete(column, key.clone()),
            }
            backend.write(writes, true).unwrap();
            before
        };
        let before = set(value);
        let report = check(&fixture);
        assert!(report.damage.iter().any(|what| what.contains(expected)), "{expected}: {:?}", report.damage);
        set(before);
    }
    assert_eq!(check(&fixture).damage, Vec::<String>::new());
}

/// Goal: the checksum finds a flipped byte in a table file. The file and the batch are named, and no other batch.
#[test]
fn check_finds_a_flipped_byte() {
    let mut fixture = Fixture::initialized(&config(), true);
    let mut ledger = Ledger::new();
    for _ in 0..40 {
        large(&mut ledger, fixture.store(), 1 << 20);
    }
    // Recovery puts unflushed rows into a table.
    fixture.reopen();
    fixture.store = None;
    let tables = || {
        let files = fs::read_dir(fixture.dir().join("db")).unwrap().map(|entry| entry.unwrap().path());
        let mut tables: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|it| it == "sst")).collect();
        tables.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).unwrap().len()));
        tables
    };
    let largest = tables().remove(0);
    let file = fs::OpenOptions::new().read(true).write(true).open(&largest).unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 1], middle).unwrap();
    let maintenance = Maintenance::open(&fixture.config, fixture.dir()).unwrap();
    let report = maintenance.check(&mut |_| {}).unwrap();
    let name = largest.file_name().unwrap().to_str().unwrap();
    let [only] = &report.damage[..] else { panic!("one batch is damaged: {:?}", report.damage) };
    assert!(only.starts_with("column bodies, batch ") && only.contains(name), "{name}: {only}");
    let lost: u64 = only["column bodies, batch ".len()..].split(':').next().unwrap().parse().unwrap();
    assert!((1..=40).contains(&lost), "{only}");
}

/// Goal: below the limit every kind of write is refused, and the store stays sound. Reading and pruning work, and the first
/// commit after there is room goes through.
#[test]
fn a_nearly_full_disk_stops_writing_cleanly() {
    let free = Arc::new(AtomicU64::new(1 << 30));
    let seen = Arc::clone(&free);
    let guard = DiskGuard::new("disk".as_ref(), 512, move || Ok(seen.load(Ordering::Relaxed)));
    let config = pruning(2, 0, 0);
    let backend = Arc::new(MemoryBackend::default());
    let store = Store::with_parts(&config, backend, Some(guard), None).unwrap();
    store.initialize(&genesis()).unwrap();
    let mut ledger = Ledger::new();
    ledger.commit_up_to(&store, 3);

    free.store(100 << 20, Ordering::Relaxed);
    // Another program took the room, so nothing that this store wrote could have shown it.
    let made = ledger.make(&[(account_key(1), account(5))], Vec::new());
    let refused = store.commit(made.batch(), None);
    assert!(
        matches!(refused, Err(StorageError::DiskLow { free_mib: 100, min_mib: 512, .. })),
        "the file system is asked before every write: {refused:?}"
    );
    assert!(matches!(store.put_record("x", b"y"), Err(StorageError::DiskLow { .. })));
    assert_eq!(store.head().unwrap().header, ledger.head);
    assert!(store.view().unwrap().account(&address(1)).unwrap().is_some());
    store.prune().unwrap();
    assert_eq!(store.lowest(BlobKind::Body).unwrap(), Some(ledger.head.number.before(1)));

    free.store(1 << 30, Ordering::Relaxed);
    ledger.commit(&store, &[(account_key(2), account(6))]);
}

/// Goal: a store that has something to free opens on a nearly full disk, and frees it.
#[test]
fn a_nearly_full_disk_does_not_keep_an_overtaken_restore() {
    let (source, _) = super::restore::served(false);
    let target = super::restore::target(source.store(), 20);
    let backend = MemoryBackend::default();
    let store = Store::with_backend(&config(), Arc::new(backend.clone())).unwrap();
    store.initialize(&genesis()).unwrap();
    drop(store.restore(&target).unwrap());
    Ledger::new().commit_up_to(&store, 21);
    assert_eq!(store.recorded_restore().unwrap().as_ref(), Some(&target));
    drop(store);

    let guard = DiskGuard::new("disk".as_ref(), 512, || Ok(0));
    let store = Store::with_parts(&config(), Arc::new(backend), Some(guard), None).unwrap();
    assert_eq!(store.recorded_restore().unwrap(), None);
    assert!(matches!(store.put_record("x", b"y"), Err(StorageError::DiskLow { .. })));
}

/// Goal: snapshots do not cut the ledger's blobs into tiny files, which would stay for good.
#[test]
fn snapshots_leave_small_blobs_in_memory() {
    let config = StorageConfig { snapshot_interval_batches: 5, ..config() };
    let mut fixture = Fixture::initialized(&config, true);
    let mut ledger = Ledger::new();
    ledger.commit_up_to(fixture.store(), 60);
    assert_eq!(fixture.store().snapshots().len(), 2);
    fixture.store = None;
    let database = crate::plain_database(&config, fixture.dir()).unwrap();
    let of = |column: Column| {
        let files = database.live_files().unwrap().into_iter();
        files.filter(|file| file.column_family_name == column.name()).count()
    };
    // Opening makes one file of what was in memory.
    let files = [Column::Bodies, Column::Receipts, Column::Deltas, Column::Hints].map(of);
    assert!(files.iter().all(|files| *files <= 1), "{files:?}");
    drop(database);
    fixture.reopen();
    let snapshot = fixture.store().snapshot(BatchNumber::new(60)).unwrap().unwrap();
    let chunk = snapshot.chunk(slipstream_types::Path::MIN, 1 << 20).unwrap();
    chunk.verify(snapshot.info().state_root).unwrap();
}

/// Goal: another fingerprint is refused by name, and a cut one as damage, before the database is touched.
#[test]
fn another_fingerprint_is_refused() {
    let mut fixture = Fixture::initialized(&config(), true);
    fixture.store = None;
    let path = fixture.dir().join("FORMAT");
    let good = fs::read_to_string(&path).unwrap();
    let version = good.lines().next().unwrap();
    let other = "0011223344556677";
    // A fingerprint that is cut, or gone, is damage and not another format.
    for (fingerprint, is_other) in [(other, true), ("0011", false), ("", false)] {
        let text = format!("{version}\nfingerprint {fingerprint}\n");
        fs::write(&path, text).unwrap();
        for error in [
            Store::open(&config(), fixture.dir()).err().unwrap(),
            Maintenance::open(&config(), fixture.dir()).err().unwrap(),
        ] {
            match error {
                StorageError::OtherFormat { found, .. } => assert!(is_other && found == other, "{found}"),
                error => assert!(!is_other && matches!(error, StorageError::Corrupt { .. }), "{error}"),
            }
        }
    }
    fs::write(&path, good).unwrap();
    fixture.reopen();
    let elsewhere = tempfile::tempdir().unwrap();
    assert!(Maintenance::open(&config(), elsewhere.path()).is_err());
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0, "nothing is made where there is no store");
}
