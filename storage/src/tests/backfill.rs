//! Goal: a store that began in the middle and was backfilled answers like one that committed every batch, whatever
//! happens on the way.

use super::{
    headers::check_from,
    range_delta::Served,
    restore::{fetch, headers, restored, served, target},
    *,
};
use crate::{
    Ancestry, Backlog, Maintenance, PastBatch, PastRun, PruneConfig, StateHistory, StorageError, Takeover,
    Window,
};

const KINDS: [BlobKind; 4] = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints];

/// Backfills the batches of a source from the first to the last, as a peer sends them under a certificate of the last
/// or of a later one.
pub(super) fn fill(store: &Store, source: &Store, first: u64, last: u64) -> Result<(), StorageError> {
    fill_under(store, source, first..=last, last, |_| {})
}

/// A batch as it arrived.
struct Arrived {
    header: BatchHeader,
    blobs: [Option<Blob>; 4],
    hashes: Vec<B256>,
}

fn fill_under(
    store: &Store,
    source: &Store,
    numbers: std::ops::RangeInclusive<u64>,
    certified: u64,
    spoil: impl Fn(&mut Vec<Arrived>),
) -> Result<(), StorageError> {
    let first = BatchNumber::new(*numbers.start());
    let mut arrived: Vec<Arrived> = numbers
        .map(BatchNumber::new)
        .map(|number| Arrived {
            header: source.header(number).unwrap().unwrap(),
            blobs: KINDS.map(|kind| source.blob(kind, number).unwrap()),
            hashes: vec![transaction_hash(number, 0), transaction_hash(number, 1)],
        })
        .collect();
    let certificate = source.certificate(BatchNumber::new(certified)).unwrap().unwrap();
    let proof = source.header_range_proof(certified + 1, first, arrived.len()).unwrap();
    spoil(&mut arrived);
    let batches: Vec<PastBatch<'_>> = arrived
        .iter()
        .map(|Arrived { header, blobs: [body, receipts, delta, hints], hashes }| PastBatch {
            header,
            body: body.as_ref(),
            receipts: receipts.as_ref(),
            delta: delta.as_ref(),
            hints: hints.as_ref(),
            transaction_hashes: hashes,
        })
        .collect();
    store.backfill(&PastRun { certificate: &certificate, proof: &proof, batches: &batches })
}

/// Returns a source's batch as the next batch of another store.
fn next_as(source: &Store, store: &Store, number: u64) -> Made {
    let (head, number) = (store.head().unwrap(), BatchNumber::new(number));
    let delta = Delta::open(&source.blob(BlobKind::Delta, number).unwrap().unwrap()).unwrap();
    let root = source.header(number).unwrap().unwrap().state_root;
    seal(&head.header, &head.accumulator, delta, root)
}

pub(super) fn commit_as(source: &Store, store: &Store, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        store.commit(next_as(source, store, number).batch(), None).unwrap();
    }
}

/// Commits batches by their deltas alone.
fn commit_alone(source: &Store, store: &Store, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        let made = next_as(source, store, number);
        let batch =
            CommitBatch { body: None, receipts: None, hints: None, transaction_hashes: &[], ..made.batch() };
        store.commit(batch, None).unwrap();
    }
}

/// The next run to fetch, of at most `batches_max` batches. Returns `None` if nothing is missing.
fn next_run(store: &Store, batches_max: u64) -> Option<(u64, u64)> {
    let backlog = store.backlog().unwrap();
    let missing = || backlog.iter().filter(|of_kind| of_kind.wanted_from < of_kind.lowest);
    let last = missing().map(|of_kind| of_kind.lowest.get() - 1).max()?;
    let least = missing().map(|of_kind| of_kind.wanted_from.get()).min()?;
    let kept = missing().filter_map(|of_kind| of_kind.kept).map(|(_, to)| to.get() + 1).max().unwrap_or(1);
    Some(((last + 1).saturating_sub(batches_max).max(least).max(kept), last))
}

/// Fetches everything that is wanted, in runs of `batches_max` batches.
pub(super) fn fill_all(store: &Store, source: &Store, batches_max: u64) -> Result<(), StorageError> {
    while let Some((first, last)) = next_run(store, batches_max) {
        fill(store, source, first, last)?;
    }
    Ok(())
}

/// Checks that everything from a batch on is read and proved as in a store that committed every batch, and nothing
/// before it.
fn check_as(store: &Store, source: &Store, from: u64) {
    let head = store.head().unwrap();
    let (last, leaves) = (head.header.number.get(), head.header.number.leaves());
    for kind in KINDS {
        assert_eq!(store.lowest(kind).unwrap(), Some(BatchNumber::new(from)), "{}", kind.name());
        let mut range = store.blobs(kind, BatchNumber::GENESIS, 1_000);
        for number in (1..=last).map(BatchNumber::new) {
            let expected = source.blob(kind, number).unwrap().filter(|_| number.get() >= from);
            assert_eq!(store.blob(kind, number).unwrap(), expected, "{} {number}", kind.name());
            assert_eq!(range.of(number).unwrap(), expected, "{} {number}", kind.name());
        }
    }
    for number in (from..=last).map(BatchNumber::new) {
        let header = source.header(number).unwrap().unwrap();
        assert_eq!(store.find_header(&header.digest()).unwrap(), Some(number));
        assert_eq!(store.header(number).unwrap(), Some(header));
        assert_eq!(store.ledger_info(number).unwrap(), source.ledger_info(number).unwrap());
        for index in 0..2 {
            let places = store.transaction_places(&transaction_hash(number, u64::from(index))).unwrap();
            assert_eq!(places, [(number, index)]);
        }
        if let Some(certificate) = store.certificate(number).unwrap() {
            assert_eq!(Some(certificate), source.certificate(number).unwrap());
        }
    }
    for first in from..=last {
        let found = store.headers(BatchNumber::new(first), 1_000).unwrap();
        let digests: Vec<Digest> = found.iter().map(BatchHeader::digest).collect();
        assert_eq!(digests.len() as u64, leaves - first);
        for count in 1..=digests.len() {
            // In the ledger that ends with these headers, and in the head's.
            for leaves in [first + count as u64, leaves] {
                let proof = store.header_range_proof(leaves, BatchNumber::new(first), count).unwrap();
                let expected = source.header_range_proof(leaves, BatchNumber::new(first), count).unwrap();
                assert_eq!(proof, expected, "{count} from {first} on, of {leaves}");
            }
        }
    }
    store.header_range_proof(leaves, BatchNumber::GENESIS, 1).unwrap();
}

/// Checks that these batches have the bodies, receipts and deltas of the source, and that the first is the lowest
/// stored batch.
#[track_caller]
fn has_parts(store: &Store, source: &Store, numbers: std::ops::RangeInclusive<u64>) {
    for kind in &KINDS[..3] {
        assert_eq!(store.lowest(*kind).unwrap(), Some(BatchNumber::new(*numbers.start())), "{}", kind.name());
        for number in numbers.clone().map(BatchNumber::new) {
            let stored = store.blob(*kind, number).unwrap();
            assert_eq!(stored, source.blob(*kind, number).unwrap(), "{} {number}", kind.name());
        }
    }
}

/// Checks that a check of the whole store finds nothing.
fn check_whole(fixture: &mut Fixture) {
    if fixture.is_on_disk() {
        fixture.close();
        let store = Maintenance::open(&fixture.config, fixture.dir()).unwrap();
        let report = store.check(&mut |_| {}).unwrap();
        assert_eq!(report.damage, Vec::<String>::new());
        drop(store);
        fixture.reopen();
    }
}

/// Goal: after each run the store has everything that it announces. At the end it has everything, also after it is
/// reopened.
#[test]
fn runs_go_down_to_the_genesis() {
    let (source, _) = served(false);
    let source = source.store();
    for (on_disk, batches) in [(false, 1), (false, 5), (false, 30), (true, 7)] {
        let mut fixture = restored(source, 30, on_disk);
        assert_eq!(next_run(fixture.store(), batches), Some((31 - batches, 30)));
        fill(fixture.store(), source, 31 - batches, 30).unwrap();
        check_as(fixture.store(), source, 31 - batches);
        check_whole(&mut fixture);
        // The head advances meanwhile.
        commit_as(source, fixture.store(), 31..=31);
        while let Some((first, last)) = next_run(fixture.store(), batches) {
            fill_under(fixture.store(), source, first..=last, 32, |_| {}).unwrap();
            check_as(fixture.store(), source, first);
        }
        commit_as(source, fixture.store(), 32..=32);
        check_as(fixture.store(), source, 1);
        fixture.reopen();
        check_as(fixture.store(), source, 1);
        check_whole(&mut fixture);
        assert_eq!(next_run(fixture.store(), batches), None);
    }
}

/// Goal: batches that do not lead down from what is stored are refused, and leave nothing.
#[test]
fn what_does_not_fit_is_refused() {
    let (source, _) = served(false);
    let source = source.store();
    let fixture = restored(source, 30, false);
    let store = fixture.store();
    let refused = |numbers, certified, spoil: &dyn Fn(&mut Vec<Arrived>)| {
        let error = fill_under(store, source, numbers, certified, spoil).unwrap_err();
        assert_eq!(store.header(BatchNumber::new(20)).unwrap(), None, "{error}");
        assert_eq!(store.lowest(BlobKind::Body).unwrap(), None, "{error}");
        error
    };
    assert!(matches!(refused(15..=20, 20, &|_| {}), StorageError::NotBelow { .. }), "a gap");
    assert!(matches!(refused(29..=31, 31, &|_| {}), StorageError::NotBelow { .. }), "above the head");
    let skips = |all: &mut Vec<Arrived>| drop(all.remove(1));
    assert!(matches!(refused(20..=30, 30, &skips), StorageError::NotBelow { .. }));
    let altered = |all: &mut Vec<Arrived>| all[0].header.gas_used += 1;
    assert!(refused(30..=30, 30, &altered).is_bad_supply());
    // The same numbers of another ledger, whose own certificate and proof are valid.
    let other = Fixture::initialized(&config(), false);
    let mut ledger = Ledger::new();
    (0..30).for_each(|number| drop(ledger.commit(other.store(), &[(account_key(9), account(number + 1))])));
    for (first, last) in [(28, 30), (20, 25)] {
        let error = fill(store, other.store(), first, last).unwrap_err();
        assert!(matches!(error, StorageError::WrongParent { .. }) && error.is_bad_supply(), "{error}");
    }
    fill_all(store, source, 10).unwrap();
    check_as(store, source, 1);
}

/// Goal: each kind has its window. Batches beyond it are not wanted, and pruned ones come back when the window is
/// wider.
#[test]
fn each_kind_has_its_window() {
    let (source, _) = served(false);
    let source = source.store();
    let pruning = |windows| StorageConfig { prune: PruneConfig::of_batches(windows), ..config() };
    on_both(&pruning([4, 20, 10, 2]), |mut fixture| {
        let without_parts = |made: &Made| {
            let certificate = Some(&made.certificate);
            let batch = CommitBatch { certificate, ..CommitBatch::new(&made.header, &made.delta) };
            fixture.store().commit(batch, None).unwrap();
        };
        (1..=32).for_each(|number| without_parts(&next_as(source, fixture.store(), number)));
        let lowest = |store: &Store| KINDS.map(|kind| store.lowest(kind).unwrap().map(BatchNumber::get));
        fixture.store().prune().unwrap();
        assert_eq!(lowest(fixture.store()), [None; 4]);
        assert_eq!(next_run(fixture.store(), 50), Some((13, 32)));
        fill(fixture.store(), source, 25, 32).unwrap();
        fixture.store().prune().unwrap();
        assert_eq!(lowest(fixture.store()), [Some(29), Some(25), Some(25), Some(31)]);
        fill_all(fixture.store(), source, 3).unwrap();
        fixture.store().prune().unwrap();
        assert_eq!(lowest(fixture.store()), [Some(29), Some(13), Some(23), Some(31)]);

        fixture.config = pruning([0, 20, 15, 2]);
        fixture.reopen();
        let wanted = |backlog: [Backlog; 4]| backlog.map(|of_kind| of_kind.wanted_from.get());
        assert_eq!(wanted(fixture.store().backlog().unwrap()), [1, 13, 18, 31]);
        fill_all(fixture.store(), source, 5).unwrap();
        fixture.store().prune().unwrap();
        for _ in 0..2 {
            assert_eq!(lowest(fixture.store()), [Some(1), Some(13), Some(18), Some(31)]);
            for (kind, from) in KINDS.into_iter().zip([1, 13, 18, 31]) {
                for number in 1..=32 {
                    let blob = fixture.store().blob(kind, BatchNumber::new(number)).unwrap();
                    assert_eq!(blob.is_some(), number >= from, "{} {number}", kind.name());
                }
            }
            let found =
                fixture.store().transaction_places(&transaction_hash(BatchNumber::new(3), 1)).unwrap();
            assert_eq!(found, [(BatchNumber::new(3), 1)]);
            check_whole(&mut fixture);
        }
    });
}

/// Goal: windows of time and of bytes want what they have room for, and no more once the age or the size is known.
#[test]
fn windows_of_time_and_of_bytes_end_where_they_are_full() {
    let (source, _) = served(false);
    let source = source.store();
    // Batches are 100 ms apart.
    let cases = [(Window::Seconds(1), 20), (Window::Seconds(9), 1), (Window::Bytes(1 << 30), 1)];
    for (window, expected) in cases {
        let mut fixture = restored(source, 30, false);
        let blobs = PruneConfig { bodies: window, ..PruneConfig::of_batches([0, 1, 1, 1]) };
        fixture.config = StorageConfig { prune: blobs, ..fixture.config.clone() };
        fixture.reopen();
        fixture.store().prune().unwrap();
        fill_all(fixture.store(), source, 3).unwrap();
        fixture.store().prune().unwrap();
        let lowest = fixture.store().lowest(BlobKind::Body).unwrap().unwrap().get();
        assert_eq!(lowest, expected, "{window:?}");
        fill_all(fixture.store(), source, 3).unwrap();
        assert_eq!(fixture.store().lowest(BlobKind::Body).unwrap().unwrap().get(), expected);
    }
}

/// Goal: pruned headers come back with the blobs of their batches, and prove themselves.
#[test]
fn pruned_headers_come_back() {
    let source = Fixture::initialized(&config(), false);
    let mut ledger = Ledger::new();
    ledger.commit_up_to(source.store(), 330);
    let number = BatchNumber::new;
    let all: Vec<BatchHeader> =
        (0..=330).map(|n| source.store().header(number(n)).unwrap().unwrap()).collect();
    let windows = |blobs, headers| {
        let prune = PruneConfig { headers, ..PruneConfig::of_batches([blobs; 4]) };
        StorageConfig { prune, state_history: StateHistory::Batches(0), ..config() }
    };
    on_both(&windows(2, Window::Batches(20)), |mut fixture| {
        Ledger::new().commit_up_to(fixture.store(), 330);
        fixture.store().prune().unwrap();
        let floor = fixture.store().headers_floor().get();
        assert!(floor > 50, "{floor}");
        fixture.config = windows(310, Window::Batches(320));
        fixture.reopen();
        // Each of its batches has a certificate, as in a node that committed them.
        (21..=328).rev().for_each(|n| fill(fixture.store(), source.store(), n, n).unwrap());
        assert_eq!(next_run(fixture.store(), 9), None);
        for _ in 0..2 {
            fixture.store().prune().unwrap();
            check_from(fixture.store(), &all, 21);
            fixture.reopen();
        }
        check_whole(&mut fixture);
    });
}

/// Goal: a backfill that meets what a leap left joins it, so nothing is fetched twice. Another leap leaves another
/// gap.
#[test]
fn what_a_leap_left_is_joined() {
    let (source, _) = served(false);
    let source = source.store();
    let leap = |store: &Store, to: u64| {
        let snapshot = source.snapshot(BatchNumber::new(to)).unwrap().unwrap();
        let restore = store.restore(&target(source, to)).unwrap();
        fetch(&restore, &snapshot, usize::MAX);
        let (headers, proof, genesis) = headers(source, to, 3);
        restore.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis }).unwrap();
        assert_eq!(store.lowest(BlobKind::Body).unwrap(), None);
    };
    on_both(&config(), |mut fixture| {
        commit_as(source, fixture.store(), 1..=6);
        leap(fixture.store(), 20);
        fixture.reopen();
        assert_eq!(next_run(fixture.store(), 100), Some((7, 20)));
        fill(fixture.store(), source, 16, 20).unwrap();
        assert_eq!(next_run(fixture.store(), 100), Some((7, 15)));
        // The first gap is half full when the next leap comes.
        leap(fixture.store(), 30);
        fixture.reopen();
        assert_eq!(next_run(fixture.store(), 100), Some((21, 30)));
        fill(fixture.store(), source, 26, 30).unwrap();
        check_whole(&mut fixture);
        fill(fixture.store(), source, 21, 25).unwrap();
        assert_eq!(fixture.store().lowest(BlobKind::Body).unwrap(), Some(BatchNumber::new(16)));
        assert_eq!(next_run(fixture.store(), 100), Some((7, 15)));
        fill(fixture.store(), source, 7, 15).unwrap();
        for _ in 0..2 {
            check_as(fixture.store(), source, 1);
            check_whole(&mut fixture);
        }
    });
}

/// Goal: batches that were applied by their deltas alone, in one commit or more, leave earlier batches below a gap. A
/// backfill fetches the missing parts, and joins those batches.
#[test]
fn batches_that_lack_parts_are_filled_in() {
    let (source, _) = served(false);
    let source = source.store();
    for below_first in [false, true] {
        on_both(&config(), |mut fixture| {
            commit_as(source, fixture.store(), 1..=6);
            commit_alone(source, fixture.store(), 7..=12);
            commit_as(source, fixture.store(), 13..=20);
            commit_alone(source, fixture.store(), 21..=25);
            commit_as(source, fixture.store(), 26..=32);
            fixture.reopen();
            let lowest = |store: &Store| KINDS.map(|kind| store.lowest(kind).unwrap().unwrap().get());
            assert_eq!(lowest(fixture.store())[..3], [26, 26, 1]);
            assert_eq!(next_run(fixture.store(), 100), Some((21, 25)));
            let kept = |store: &Store| {
                store.backlog().unwrap()[0].kept.map(|(first, last)| (first.get(), last.get()))
            };
            assert_eq!(kept(fixture.store()), Some((13, 20)));
            if below_first {
                // A run that was in flight when batches came without their parts.
                fill(fixture.store(), source, 9, 12).unwrap();
                assert_eq!((lowest(fixture.store())[0], kept(fixture.store())), (26, Some((9, 20))));
                fixture.reopen();
            }
            fill(fixture.store(), source, 21, 25).unwrap();
            let whole = if below_first { 9 } else { 13 };
            assert_eq!(lowest(fixture.store())[..3], [whole, whole, 1], "what was whole before is joined");
            fill(fixture.store(), source, 7, whole - 1).unwrap();
            has_parts(fixture.store(), source, 1..=32);
            check_whole(&mut fixture);
        });
    }
}

/// Goal: a backfill below a gap that opened meanwhile adds to what is kept there, even where no header lies below it.
#[test]
fn a_backfill_goes_on_below_batches_that_lack_parts() {
    let (source, _) = served(false);
    let source = source.store();
    for on_disk in [false, true] {
        let mut fixture = restored(source, 20, on_disk);
        fill(fixture.store(), source, 13, 20).unwrap();
        commit_alone(source, fixture.store(), 21..=25);
        for first in [9, 5] {
            fill(fixture.store(), source, first, first + 3).unwrap();
            fixture.reopen();
            let body = fixture.store().backlog().unwrap()[0];
            let kept = body.kept.map(|(first, last)| (first.get(), last.get()));
            assert_eq!((body.lowest.get(), kept), (26, Some((first, 20))));
        }
        for (first, last, lowest) in [(21, 25, 5), (1, 4, 1)] {
            fill(fixture.store(), source, first, last).unwrap();
            has_parts(fixture.store(), source, lowest..=25);
        }
        check_whole(&mut fixture);
    }
}

/// Goal: what a leap left is dropped with its window. The part that was not pruned is joined.
#[test]
fn what_was_pruned_below_a_gap_is_fetched_again() {
    let served = Served::of_thirty();
    let pruning = |windows| StorageConfig { prune: PruneConfig::of_batches(windows), ..config() };
    on_both(&pruning([25, 0, 0, 0]), |mut fixture| {
        served.replay(fixture.store(), 10);
        served.leap(fixture.store(), 10);
        fixture.store().prune().unwrap();
        assert_eq!(fixture.store().floor(BlobKind::Body), BatchNumber::new(6));
        fixture.config = pruning([0; 4]);
        fixture.reopen();
        fill(fixture.store(), served.source.store(), 11, 30).unwrap();
        assert_eq!(fixture.store().lowest(BlobKind::Body).unwrap(), Some(BatchNumber::new(6)));
        assert_eq!(fixture.store().lowest(BlobKind::Delta).unwrap(), Some(BatchNumber::new(1)));
        assert_eq!(next_run(fixture.store(), 100), Some((1, 5)));
        fill(fixture.store(), served.source.store(), 1, 5).unwrap();
        check_as(fixture.store(), served.source.store(), 1);
        check_whole(&mut fixture);
    });
}

/// Goal: a range delta leaves all headers and a gap of blobs, which is filled like any other.
#[test]
fn the_gap_of_a_range_delta_is_filled() {
    let served = Served::of_thirty();
    on_both(&config(), |mut fixture| {
        served.replay(fixture.store(), 10);
        served.leap(fixture.store(), 10);
        assert_eq!(next_run(fixture.store(), 100), Some((11, 30)));
        fill_all(fixture.store(), served.source.store(), 8).unwrap();
        check_as(fixture.store(), served.source.store(), 1);
        check_whole(&mut fixture);
        served.check(fixture.store());
    });
}

/// Goal: a batch without hints ends the announced range of hints, and of no other kind.
#[test]
fn batches_may_lack_hints() {
    let (source, _) = served(false);
    let source = source.store();
    let fixture = restored(source, 30, false);
    let without = |all: &mut Vec<Arrived>| all[3].blobs[3] = None;
    fill_under(fixture.store(), source, 21..=30, 30, without).unwrap();
    fill(fixture.store(), source, 1, 20).unwrap();
    let lowest = KINDS.map(|kind| fixture.store().lowest(kind).unwrap().unwrap().get());
    assert_eq!(lowest, [1, 1, 1, 25]);
}
