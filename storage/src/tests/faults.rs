//! Every step fails once, before and after its write. The store then refuses further work, and what it left is
//! complete.

use std::thread;

use super::{
    backfill::fill_all,
    restore::{headers, served, target},
    *,
};
use crate::{
    Ancestry, CrashPoint, Faults, MemoryDisk, PruneConfig, StateHistory, StorageError, Takeover, WriteStep,
};

/// Windows of bodies, receipts, deltas and hints, in batches.
const WINDOWS: [u64; 4] = [2, 0, 3, 0];

/// One life of a store that passes every step, except for opening and for discarding a restore.
fn live(store: &Store, source: &Store) -> Result<(), StorageError> {
    store.initialize(&genesis())?;
    let mut ledger = Ledger::new();
    for number in 1..=12 {
        let made = ledger.make(&[(account_key(number), account(5))], Vec::new());
        store.commit(CommitBatch { certificate: None, ..made.batch() }, None)?;
        store.put_certificate(&made.certificate)?;
        store.put_record("vote", &[number])?;
        store.remove_records("past/", "past/~")?;
        ledger.advance(&made);
        if number % 6 == 0 {
            store.prune()?;
        }
    }
    restore(store, source)
}

/// Continues or starts the restore of batch 20, and finishes it.
fn restore(store: &Store, source: &Store) -> Result<(), StorageError> {
    let snapshot = source.snapshot(BatchNumber::new(20))?.unwrap();
    let restore = store.restore(&target(source, 20))?;
    while let Some(next) = restore.next_path() {
        restore.add_chunk(&snapshot.chunk(next, 300)?)?;
    }
    for hash in restore.missing_codes(10)? {
        restore.add_code(&snapshot.code(&hash)?.unwrap())?;
    }
    let (headers, proof, genesis) = headers(source, 20, 3);
    restore.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis })?;
    // The last batches of the windows, in runs.
    fill_all(store, source, 1)
}

/// Checks what survives a failure at `point`: a head with its state, and no record of a later batch.
fn check_left(store: &Store, source: &Store) {
    let Ok(head) = store.head() else { return };
    let number = head.header.number.get();
    let mut state = Ledger::new();
    for i in 1..=number.min(12) as u8 {
        let made = state.make(&[(account_key(i), account(5))], Vec::new());
        state.advance(&made);
    }
    let expected = match number {
        20 => source.header(BatchNumber::new(20)).unwrap().unwrap().state_root,
        _ => state_root(&state.state),
    };
    assert_eq!(head.header.state_root, expected);
    let vote = store.record("vote").unwrap().map_or(0, |vote| u64::from(vote[0]));
    assert!(vote <= number && number.min(12) <= vote + 1, "record {vote} at batch {number}");
    if number <= 12 {
        check_pruned(store, number);
    } else {
        check_backfilled(store, source);
    }
}

/// Checks that a restored store serves what it announces, and that the rest of its windows can be fetched.
fn check_backfilled(store: &Store, source: &Store) {
    for filled in [false, true] {
        if filled {
            fill_all(store, source, 1).unwrap();
        }
        for (kind, window) in [(BlobKind::Body, WINDOWS[0]), (BlobKind::Delta, WINDOWS[2])] {
            let lowest = store.lowest(kind).unwrap().map_or(21, |lowest| lowest.get());
            assert!(!filled || lowest <= 21 - window, "{} from {lowest} on", kind.name());
            for number in (lowest..=20).map(BatchNumber::new) {
                let expected = source.blob(kind, number).unwrap();
                assert!(expected.is_some() && store.blob(kind, number).unwrap() == expected, "{number}");
                assert_eq!(store.header(number).unwrap(), source.header(number).unwrap());
            }
        }
    }
}

/// Checks that the store serves exactly what it announces, even after a pruning that was cut short. The next pruning
/// finishes.
fn check_pruned(store: &Store, head: u64) {
    for pruned in [false, true] {
        if pruned {
            store.prune().unwrap();
        }
        for (kind, window) in [(BlobKind::Body, WINDOWS[0]), (BlobKind::Delta, WINDOWS[2])] {
            let lowest = store.lowest(kind).unwrap().map_or(head + 1, |lowest| lowest.get());
            for number in 1..=head {
                let served = store.blob(kind, BatchNumber::new(number)).unwrap().is_some();
                assert_eq!(served, number >= lowest, "{} {number}, announced from {lowest}", kind.name());
            }
            assert!(
                lowest <= (head + 1).saturating_sub(window).max(1),
                "too much of {} is gone",
                kind.name()
            );
            assert!(!pruned || lowest + window > head, "{} from {lowest} on is left", kind.name());
        }
    }
}

/// Checks that every announced snapshot is complete, and of a batch of this ledger.
fn check_snapshots(store: &Store) {
    for info in store.snapshots() {
        assert!(info.number <= store.head().unwrap().header.number);
        let snapshot = store.snapshot(info.number).unwrap().unwrap();
        snapshot.chunk(slipstream_types::Path::MIN, 1 << 20).unwrap().verify(info.state_root).unwrap();
    }
}

/// The kind of disk under a store, and how the store dies.
#[derive(Clone, Copy)]
enum Medium {
    /// A directory, whose store is dropped.
    Directory,
    /// Memory, where the power is cut: the first `kept` of the unsynced writes are left.
    Memory { kept: usize },
}

fn fails_and_comes_back(step: WriteStep, place: Medium, source: &Store) {
    let (fsync, on_disk) = (matches!(place, Medium::Memory { .. }), matches!(place, Medium::Directory));
    let config = StorageConfig {
        snapshot_interval_batches: 4,
        prune: PruneConfig::of_batches(WINDOWS),
        fsync,
        ..config()
    };
    // Each of these steps is passed only once, so no fault can hit a second passing.
    let once =
        [WriteStep::Initialize, WriteStep::RestoreStart, WriteStep::RestoreCode, WriteStep::RestoreFinish]
            .contains(&step);
    for point in [CrashPoint::Before(step), CrashPoint::After(step)] {
        // A directory takes many times as long as memory. So its first write fails before it is made, and its second
        // after it.
        let passings: &[u64] = match (on_disk, point) {
            (false, _) => &[1, 2],
            (true, CrashPoint::After(_)) if !once => &[2],
            (true, _) => &[1],
        };
        for &passing in passings {
            let (dir, memory) = (store_dir(), MemoryDisk::default());
            let open = |faults: &Faults| match place {
                Medium::Directory => Store::open_with(&config, dir.path(), faults),
                Medium::Memory { .. } => Store::memory_on(&memory, &config, faults),
            };
            let store = open(&Faults::fail_at(point, passing)).unwrap();
            let result = live(&store, source);
            let (missed, harmless) = (
                passing > 1 && once,
                [
                    WriteStep::MakeSnapshot,
                    WriteStep::DropSnapshot,
                    WriteStep::FrontierNote,
                    WriteStep::FrontierSave,
                ]
                .contains(&step),
            );
            // On a disk, sealing runs beside the commits.
            let sealing = [
                WriteStep::HistorySeal,
                WriteStep::HistoryRows,
                WriteStep::HistoryRecord,
                WriteStep::HistoryDrop,
            ]
            .contains(&step);
            match sealing {
                true => assert!(passing > 1 || on_disk || result.is_err(), "{point}"),
                false => assert_eq!(result.is_ok(), missed || harmless, "{point} {passing}: {result:?}"),
            }
            if result.is_err() {
                assert!(matches!(store.put_record("x", b"y"), Err(StorageError::Poisoned)), "{point}");
            }
            if let Medium::Memory { kept } = place {
                memory.crash(kept);
            }
            drop(store);
            let store = open(&Faults::none()).unwrap();
            check_left(&store, source);
            check_snapshots(&store);
            if store.head().is_ok_and(|head| head.header.number.get() == 20) {
                continue;
            }
            store.initialize(&genesis()).unwrap();
            restore(&store, source).unwrap();
        }
    }
}

/// Threads that share the steps: a step mostly waits for a disk.
const SHARES: usize = 4;

#[test]
fn a_failure_at_any_step_leaves_whole_steps() {
    let (source, _) = served(false);
    let source = source.store();
    thread::scope(|scope| {
        for share in 0..SHARES {
            scope.spawn(move || {
                let steps = WriteStep::of_use().skip(share).step_by(SHARES);
                for step in steps.filter(|step| ![WriteStep::Open, WriteStep::RestoreDiscard].contains(step))
                {
                    let memory = [0, 1, usize::MAX].map(|kept| Medium::Memory { kept });
                    for place in memory.into_iter().chain([Medium::Directory]) {
                        fails_and_comes_back(step, place, source);
                    }
                }
            });
        }
    });
}

/// Goal: a crash loses whole commits from the end, however many of the unsynced writes the disk kept. Snapshots of surviving
/// batches survive too.
#[test]
fn a_power_cut_without_fsync_leaves_a_whole_batch() {
    // Sealing the history would sync what comes before it.
    let state_history = StateHistory::Batches(0);
    let config = StorageConfig { snapshot_interval_batches: 4, state_history, ..config() };
    for kept in [0, 1, 5, 8, 9, usize::MAX] {
        let disk = MemoryDisk::default();
        let store = Store::memory_on(&disk, &config, &Faults::none()).unwrap();
        store.initialize(&genesis()).unwrap();
        let mut ledger = Ledger::new();
        ledger.commit_up_to(&store, 3);
        store.close();
        ledger.commit_up_to(&store, 12);
        assert_eq!(disk.unsynced(), 9);
        disk.crash(kept);
        let expected = 3 + kept.min(9) as u64;

        let after = Store::memory_on(&disk, &config, &Faults::none()).unwrap();
        assert_eq!(after.head().unwrap().header.number, BatchNumber::new(expected));
        let mut left = Ledger::new();
        for number in 1..=expected {
            assert!(after.certificate(BatchNumber::new(number)).unwrap().is_some());
            let n = left.head.number.get() as u8;
            let made = left.make(
                &[(account_key(n), account(u64::from(n) + 1)), (slot_key(0xcc, n), slot(77))],
                Vec::new(),
            );
            left.advance(&made);
        }
        assert_eq!(after.head().unwrap().header, left.head);
        check_snapshots(&after);
        let snapshots: Vec<_> = after.snapshots().iter().map(|info| info.number.get()).collect();
        let kept_by_store: Vec<_> = [12, 8].into_iter().filter(|number| *number <= expected).collect();
        assert_eq!(snapshots, kept_by_store);

        // The dead store's last writes reach nothing. The ledger grows again, over an older snapshot if there is one.
        store.close();
        drop(store);
        left.commit_up_to(&after, 13);
        let snapshots: Vec<_> = after.snapshots().iter().map(|info| info.number.get()).collect();
        assert_eq!(snapshots, [12, 8]);
        check_snapshots(&after);
    }
}

/// Goal: a commit whose batch is in a record costs no sync, and a power cut loses only that commit. The next durable
/// write keeps it, and so does a snapshot of it.
#[test]
fn a_recorded_commit_is_durable_with_the_next_write() {
    for (is_followed, snapshot_interval_batches) in [(false, 0), (true, 0), (true, 1)] {
        let config = StorageConfig { fsync: true, snapshot_interval_batches, ..config() };
        let disk = MemoryDisk::default();
        let store = Store::memory_on(&disk, &config, &Faults::none()).unwrap();
        store.initialize(&genesis()).unwrap();
        let ledger = Ledger::new();
        let made = ledger.make(&[(account_key(1), account(2))], Vec::new());
        store.put_record("batch", b"1").unwrap();
        store.commit_recorded(made.batch(), None).unwrap();
        let unsynced = usize::from(snapshot_interval_batches == 0);
        assert_eq!((disk.unsynced(), store.head().unwrap().header), (unsynced, made.header.clone()));
        if is_followed && unsynced > 0 {
            store.put_record("vote", b"2").unwrap();
            assert_eq!(disk.unsynced(), 0);
        }
        disk.crash(0);
        let after = Store::memory_on(&disk, &config, &Faults::none()).unwrap();
        assert_eq!(after.record("batch").unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(after.head().unwrap().header.number.get(), u64::from(is_followed));
        assert_eq!(after.snapshots().len(), 1 - unsynced);
        if !is_followed {
            after.commit(made.batch(), None).unwrap();
        }
        assert_eq!(after.head().unwrap().header, made.header);
    }
}

#[test]
fn a_restore_goes_on_after_a_power_cut() {
    let (source, _) = served(false);
    let config = StorageConfig { snapshot_interval_batches: 4, fsync: true, ..config() };
    let snapshot = source.store().snapshot(BatchNumber::new(20)).unwrap().unwrap();
    for kept in [0, 2, usize::MAX] {
        let disk = MemoryDisk::default();
        let mut lives = 0;
        loop {
            lives += 1;
            let store = Store::memory_on(&disk, &config, &Faults::none()).unwrap();
            if store.head().is_ok_and(|head| head.header.number.get() == 20) {
                break;
            }
            store.initialize(&genesis()).unwrap();
            let restore = store.restore(&target(source.store(), 20)).unwrap();
            // Each life is one chunk longer than the one before.
            for _ in 0..lives {
                let Some(next) = restore.next_path() else { break };
                restore.add_chunk(&snapshot.chunk(next, 300).unwrap()).unwrap();
            }
            if restore.next_path().is_some() {
                disk.crash(kept);
                let before = disk.unsynced();
                drop(restore);
                assert_eq!(disk.unsynced(), before, "rows that a dead handle still held are lost");
            } else {
                drop(restore);
                self::restore(&store, source.store()).unwrap();
                disk.crash(kept);
            }
        }
        assert!(lives > 3, "{lives}");
    }
}

#[test]
fn opening_and_discarding_fail_and_leave_what_was_there() {
    let (source, _) = served(false);
    for point in [WriteStep::Open, WriteStep::RestoreDiscard]
        .into_iter()
        .flat_map(|step| [CrashPoint::Before(step), CrashPoint::After(step)])
    {
        let disk = MemoryDisk::default();
        let store = Store::memory_on(&disk, &config(), &Faults::none()).unwrap();
        store.initialize(&genesis()).unwrap();
        let restore = store.restore(&target(source.store(), 20)).unwrap();
        let snapshot = source.store().snapshot(BatchNumber::new(20)).unwrap().unwrap();
        restore.add_chunk(&snapshot.chunk(slipstream_types::Path::MIN, 300).unwrap()).unwrap();
        drop(restore);
        // The restore was overtaken: the next start discards it.
        let mut ledger = Ledger::new();
        ledger.commit_up_to(&store, 21);
        drop(store);
        assert!(Store::memory_on(&disk, &config(), &Faults::fail_at(point, 1)).is_err(), "{point}");
        disk.crash(usize::MAX);
        let store = Store::memory_on(&disk, &config(), &Faults::none()).unwrap();
        assert_eq!(store.head().unwrap().header, ledger.head);
        assert_eq!(store.recorded_restore().unwrap(), None);
    }
}

#[test]
fn crash_points_are_read_from_their_names() {
    for point in CrashPoint::all() {
        assert_eq!(point.to_string().parse(), Ok(point));
    }
    assert!("before:lunch".parse::<CrashPoint>().is_err());
}
