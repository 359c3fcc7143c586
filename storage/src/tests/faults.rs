//! Every step fails once, before and after its write: the store refuses further work, and what it left is whole.

use super::{
    restore::{headers, served, target},
    *,
};
use crate::{CrashPoint, Faults, PruneConfig, Step, StorageError, backend::faulty::FaultyBackend};

const WINDOWS: PruneConfig = PruneConfig { bodies: 2, receipts: 0, deltas: 3, hints: 0 };

/// One life of a store that passes every step but those of opening and of given up restores.
fn live(store: &Store, source: &Store) -> Result<(), StorageError> {
    store.initialize(&genesis())?;
    let mut ledger = Ledger::new();
    for number in 1..=12 {
        let made = ledger.make(&[(account_key(number), account(5))], Vec::new());
        store.commit(CommitBatch { certificate: None, ..made.batch() }, None)?;
        store.put_certificate(&made.certificate)?;
        store.put_record("vote", &[number])?;
        ledger.advance(&made);
        if number % 6 == 0 {
            store.prune()?;
        }
    }
    restore(store, source)
}

/// Goes on with the restore of batch 20, or starts it, to its end.
fn restore(store: &Store, source: &Store) -> Result<(), StorageError> {
    let snapshot = source.snapshot(BatchNumber(20))?.unwrap();
    let restore = store.restore(&target(source, 20))?;
    while let Some(next) = restore.next_path() {
        restore.add_chunk(&snapshot.chunk(next, 300)?)?;
    }
    for hash in restore.missing_codes(10)? {
        restore.add_code(&snapshot.code(&hash)?.unwrap())?;
    }
    let (headers, proof) = headers(source, 20, 3);
    restore.finish(&headers, &proof)
}

/// What survives a failure at `point`: a head with its state, and the record of no later batch.
fn check_left(store: &Store, source: &Store) {
    let Ok(head) = store.head() else { return };
    let number = head.header.number.0;
    let mut state = Ledger::new();
    for i in 1..=number.min(12) as u8 {
        let made = state.make(&[(account_key(i), account(5))], Vec::new());
        state.advance(&made);
    }
    let expected = match number {
        20 => source.header(BatchNumber(20)).unwrap().unwrap().state_root,
        _ => state_root(&state.state),
    };
    assert_eq!(head.header.state_root, expected);
    let vote = store.record("vote").unwrap().map_or(0, |vote| u64::from(vote[0]));
    assert!(vote <= number && number.min(12) <= vote + 1, "record {vote} at batch {number}");
    if number <= 12 {
        check_pruned(store, number);
    }
}

/// What is announced is served and nothing below it, also after pruning was cut short; and the next pruning goes all the way.
fn check_pruned(store: &Store, head: u64) {
    for pruned in [false, true] {
        if pruned {
            store.prune().unwrap();
        }
        for (kind, window) in [(BlobKind::Body, WINDOWS.bodies), (BlobKind::Delta, WINDOWS.deltas)] {
            let lowest = store.lowest(kind).unwrap().map_or(head + 1, |lowest| lowest.0);
            for number in 1..=head {
                let served = store.blob(kind, BatchNumber(number)).unwrap().is_some();
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

fn fails_and_comes_back(step: Step, on_disk: bool, source: &Store) {
    let config = StorageConfig { snapshot_interval_batches: 4, prune: WINDOWS, ..config() };
    for point in [CrashPoint::Before(step), CrashPoint::After(step)] {
        for passing in [1, 2] {
            let (dir, memory) = (tempfile::tempdir().unwrap(), MemoryBackend::default());
            let open = |faults: &Faults| match on_disk {
                true => Store::open_with(&config, dir.path(), faults),
                false => Store::with_backend(&config, FaultyBackend::wrap(Arc::new(memory.clone()), faults)),
            };
            let store = open(&Faults::fail_at(point, passing)).unwrap();
            let result = live(&store, source);
            let once = [Step::Initialize, Step::RestoreStart, Step::RestoreCode, Step::RestoreFinish];
            let (missed, harmless) = (
                passing > 1 && once.contains(&step),
                [Step::MakeSnapshot, Step::DropSnapshot].contains(&step),
            );
            assert_eq!(result.is_ok(), missed || harmless, "{point} {passing}: {result:?}");
            if result.is_err() {
                assert!(matches!(store.put_record("x", b"y"), Err(StorageError::Poisoned)), "{point}");
            }
            drop(store);
            let store = open(&Faults::none()).unwrap();
            check_left(&store, source);
            if store.head().is_ok_and(|head| head.header.number.0 == 20) {
                continue;
            }
            store.initialize(&genesis()).unwrap();
            restore(&store, source).unwrap();
        }
    }
}

#[test]
fn a_failure_at_any_step_leaves_whole_steps() {
    let (source, _) = served(false);
    let steps = Step::ALL.into_iter().filter(|step| ![Step::Open, Step::RestoreDiscard].contains(step));
    for step in steps {
        for on_disk in [false, true] {
            fails_and_comes_back(step, on_disk, source.store());
        }
    }
}

#[test]
fn crash_points_are_read_from_their_names() {
    for point in CrashPoint::all() {
        assert_eq!(point.to_string().parse(), Ok(point));
    }
    assert!("before:lunch".parse::<CrashPoint>().is_err());
}
