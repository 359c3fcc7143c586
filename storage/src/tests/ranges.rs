//! Goal: a restore over many ranges at once gives the same state in whatever order they arrive, through kills, and
//! when its target moves.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    sync::Barrier,
    time::{Duration, Instant},
};

use slipstream_types::Path;

use super::{
    restore::{check_all, headers, target},
    *,
};
use crate::{
    Ancestry, EncodedChunk, RangeCheck, Restore, RestoreError, Snapshot, Span, StorageError, Takeover,
    VerifiedChunk, backend::Column, schema::RESTORE_KEY,
};

const DIR_VARIABLE: &str = "SLIPSTREAM_STORAGE_RESTORE_DIR";
const CHUNK_BYTES: usize = 600;

fn serving() -> StorageConfig {
    StorageConfig { snapshot_interval_batches: 5, snapshots_kept: 4, ..config() }
}

fn wide_slot(i: u16) -> StateKey {
    let mut slot = [0; 32];
    slot[..2].copy_from_slice(&i.to_be_bytes());
    StateKey::Slot(address((i % 61) as u8), B256::from(slot))
}

/// A ledger of 20 batches, the first of which makes 1,500 rows; snapshots at 5, 10, 15 and 20 that differ little.
fn served() -> (Fixture, Ledger) {
    let fixture = Fixture::initialized(&serving(), false);
    let mut ledger = Ledger::new();
    let first: Vec<_> = (0..1_500).map(|i| (wide_slot(i), slot(u64::from(i) + 1))).collect();
    ledger.commit(fixture.store(), &first);
    for number in 2..=20u16 {
        ledger.commit(fixture.store(), &[(wide_slot(number), slot(7_000)), (wide_slot(40 * number), None)]);
    }
    (fixture, ledger)
}

fn snapshot(store: &Store, number: u64) -> Arc<Snapshot> {
    store.snapshot(BatchNumber::new(number)).unwrap().unwrap()
}

fn chunk_of(snapshot: &Snapshot, span: Span) -> VerifiedChunk {
    let EncodedChunk { content, .. } = snapshot.encoded_chunk(span.first, span.last, CHUNK_BYTES).unwrap();
    VerifiedChunk::open(content, snapshot.info().state_root).unwrap()
}

/// Adds up to `max` chunks, each at a place that a generator picks; returns their number of rows.
fn add_somewhere(restore: &Restore, snapshot: &Snapshot, max: usize, seed: &mut u64) -> usize {
    let mut rows = 0;
    for _ in 0..max {
        let ranges = restore.missing(usize::MAX);
        if ranges.is_empty() {
            break;
        }
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let chunk = chunk_of(snapshot, ranges[(*seed >> 33) as usize % ranges.len()]);
        rows += chunk.rows();
        restore.add(chunk).unwrap();
    }
    rows
}

fn finish(restore: Restore, source: &Store, number: u64) {
    let code = [0x60, 0x00];
    assert_eq!(restore.missing_codes(10).unwrap(), [], "genesis has the only code: {code:?}");
    let (headers, proof, genesis) = headers(source, number, 3);
    restore.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis }).unwrap();
}

fn same_state(restored: &Store, source: &Store, number: u64) {
    assert_eq!(restored.head().unwrap().header, source.header(BatchNumber::new(number)).unwrap().unwrap());
    let (ours, theirs) = (restored.create_snapshot().unwrap(), snapshot(source, number));
    let ours = snapshot(restored, ours.number.get());
    let all = |snapshot: &Snapshot| snapshot.chunk(Path::MIN, 1 << 20).unwrap();
    assert_eq!(all(&ours), all(&theirs));
}

#[test]
fn ranges_come_in_any_order() {
    let (source, _) = served();
    on_both(&serving(), |mut fixture| {
        let mut seed = 5;
        let restore = fixture.store().restore(&target(source.store(), 20)).unwrap();
        assert_eq!(restore.missing(3).len(), 3);
        add_somewhere(&restore, &snapshot(source.store(), 20), usize::MAX, &mut seed);
        assert!((restore.share() - 1.0).abs() < 1e-6);
        finish(restore, source.store(), 20);
        same_state(fixture.store(), source.store(), 20);
        fixture.reopen();
        same_state(fixture.store(), source.store(), 20);
    });
}

#[test]
fn threads_add_ranges_at_the_same_time() {
    let (source, _) = served();
    let source = source.store();
    on_both(&serving(), |fixture| {
        let restore = fixture.store().restore(&target(source, 15)).unwrap();
        let ranges = restore.missing(usize::MAX);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (restore, ranges) = (&restore, &ranges);
                scope.spawn(move || {
                    let snapshot = snapshot(source, 15);
                    for range in ranges.iter().skip(thread).step_by(4) {
                        let mut first = Some(range.first).filter(|first| *first <= range.last);
                        while let Some(start) = first {
                            let chunk = chunk_of(&snapshot, Span { first: start, last: range.last });
                            first = chunk.last().successor().filter(|next| *next <= range.last);
                            restore.add(chunk).unwrap();
                        }
                    }
                });
            }
        });
        finish(restore, source, 15);
        same_state(fixture.store(), source, 15);
    });
}

/// Goal: a state above the tree's memory is restored from chunks that extend past their range, over what is there
/// already.
#[test]
fn chunks_of_any_length_restore_a_state_above_the_trees_memory() {
    let source = Fixture::initialized(&serving(), false);
    let mut ledger = Ledger::new();
    // Each with an address of its own, because the paths of one address share their first bytes.
    let address = |i: u64| Address::from_word(keccak256(i.to_be_bytes()));
    let first: Vec<_> = (1..12_000).map(|i| (StateKey::Account(address(i)), account(i))).collect();
    ledger.commit(source.store(), &first);
    ledger.commit_up_to(source.store(), 5);
    let (source, config) = (source.store(), StorageConfig { tree_memory_mib: 1, ..serving() });
    let fixture = Fixture::initialized(&config, false);
    let snapshot = snapshot(source, 5);
    let restore = fixture.store().restore(&target(source, 5)).unwrap();
    for range in restore.missing(usize::MAX).into_iter().step_by(3) {
        restore.add(chunk_of(&snapshot, range)).unwrap();
    }
    drop(restore);
    let restore = fixture.store().restore(&target(source, 5)).unwrap();
    while let Some(first) = restore.next_path() {
        let EncodedChunk { content, .. } = snapshot.encoded_chunk(first, Path::MAX, 200).unwrap();
        let root = snapshot.info().state_root;
        restore.add(VerifiedChunk::open(content, root).unwrap()).unwrap();
    }
    finish(restore, source, 5);
    same_state(fixture.store(), source, 5);
}

/// Goal: if several threads bring the same chunk, one adds it, and the others learn that it is there. No rows are lost
/// or counted twice.
#[test]
fn a_chunk_counts_once_whoever_brings_it() {
    let (source, _) = served();
    let source = source.store();
    on_both(&serving(), |fixture| {
        let restore = fixture.store().restore(&target(source, 20)).unwrap();
        let snapshot = snapshot(source, 20);
        let mut rows = 0;
        while let Some(range) = restore.missing(1).pop() {
            let (chunks, start) = ([(); 8].map(|()| chunk_of(&snapshot, range)), Barrier::new(8));
            rows += chunks[0].rows() as u64;
            let added = std::thread::scope(|scope| {
                let threads = chunks.map(|chunk| {
                    scope.spawn(|| {
                        start.wait();
                        restore.add(chunk)
                    })
                });
                threads.map(|thread| thread.join().unwrap())
            });
            let refused = |added: &Result<(), StorageError>| {
                matches!(added, Err(StorageError::Restore(RestoreError::WrongStart { .. })))
            };
            assert_eq!(added.iter().filter(|added| added.is_ok()).count(), 1, "{added:?}");
            assert_eq!(added.iter().filter(|added| refused(added)).count(), 7, "{added:?}");
        }
        assert_eq!(restore.rows(), rows);
        finish(restore, source, 20);
        same_state(fixture.store(), source, 20);
    });
}

#[test]
fn chunks_of_other_places_and_other_states_are_refused() {
    let (source, _) = served();
    let source = source.store();
    on_both(&serving(), |fixture| {
        let restore = fixture.store().restore(&target(source, 20)).unwrap();
        let range = restore.missing(2)[1];
        let older = chunk_of(&snapshot(source, 15), range);
        let error = restore.add(older).unwrap_err();
        assert!(matches!(error, StorageError::Restore(RestoreError::OtherRoot { .. })), "{error}");
        assert!(error.is_bad_supply());
        let chunk = || chunk_of(&snapshot(source, 20), range);
        restore.add(chunk()).unwrap();
        let error = restore.add(chunk()).unwrap_err();
        assert!(matches!(error, StorageError::Restore(RestoreError::WrongStart { .. })), "{error}");
        let unasked = restore.check_range(range, &Default::default()).unwrap_err();
        assert!(matches!(unasked, StorageError::Restore(RestoreError::NotUnchecked { .. })), "{unasked}");
        let (headers, proof, genesis) = headers(source, 20, 3);
        assert_eq!(restore.rows(), chunk().rows() as u64);
        let early = restore
            .finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis })
            .unwrap_err();
        assert!(matches!(early, StorageError::Restore(RestoreError::RowsMissing { .. })), "{early}");
    });
}

#[test]
fn a_newer_target_keeps_what_is_right() {
    let (source, _) = served();
    let source = source.store();
    for complete in [true, false] {
        on_both(&serving(), |mut fixture| {
            let mut seed = 77;
            let restore = fixture.store().restore(&target(source, 5)).unwrap();
            let chunks = if complete { usize::MAX } else { 90 };
            let older = add_somewhere(&restore, &snapshot(source, 5), chunks, &mut seed);
            drop(restore);
            fixture.reopen();

            let restore = fixture.store().restore(&target(source, 20)).unwrap();
            assert_eq!(restore.rows(), 0);
            let newer = snapshot(source, 20);
            let (mut kept, mut refetched) = (0, 0);
            while let Some(span) = restore.unchecked(1).unwrap().pop() {
                let proof = newer.range_proof(span.first, span.last).unwrap();
                match restore.check_range(span, &proof).unwrap() {
                    RangeCheck::Kept => kept += 1,
                    RangeCheck::Refetch => refetched += 1,
                    RangeCheck::Divided => {}
                }
            }
            assert!(kept > 0 && refetched > 0, "{kept} kept, {refetched} to fetch");
            let saved = restore.retargeted();
            assert_eq!(saved.rows, restore.rows());
            assert!(saved.rows > older as u64 / 2 && saved.rows < older as u64, "{saved:?} of {older}");
            assert!(saved.bytes > 100 * saved.rows);
            let fetched = add_somewhere(&restore, &newer, usize::MAX, &mut seed);
            assert!(!complete || fetched < older / 2, "{fetched} rows fetched again of {older}");
            finish(restore, source, 20);
            same_state(fixture.store(), source, 20);
        });
    }
}

#[test]
fn wrong_siblings_cost_a_fetch_and_never_keep_a_wrong_row() {
    let (source, _) = served();
    let source = source.store();
    on_both(&serving(), |fixture| {
        let mut seed = 3;
        let restore = fixture.store().restore(&target(source, 5)).unwrap();
        add_somewhere(&restore, &snapshot(source, 5), usize::MAX, &mut seed);
        drop(restore);
        let restore = fixture.store().restore(&target(source, 10)).unwrap();
        // Proofs of the older state, under which every row is right.
        check_all(&restore, &snapshot(source, 5));
        assert_eq!((restore.rows(), restore.retargeted().rows), (0, 0));
        add_somewhere(&restore, &snapshot(source, 10), usize::MAX, &mut seed);
        finish(restore, source, 10);
        same_state(fixture.store(), source, 10);
    });
}

/// Goal: however many rows of an older target are wrong, the record stays short, because it is written with every
/// step.
#[test]
fn the_record_of_a_restore_stays_short() {
    let (source, _) = served();
    let source = source.store();
    on_both(&serving(), |fixture| {
        let store = fixture.store();
        let restore = store.restore(&target(source, 5)).unwrap();
        add_somewhere(&restore, &snapshot(source, 5), usize::MAX, &mut 3);
        drop(restore);
        let restore = store.restore(&target(source, 10)).unwrap();
        // Siblings of the older state, under which every range is wrong.
        let wrong = snapshot(source, 5);
        let mut longest = 0;
        while let Some(span) = restore.unchecked(1).unwrap().pop() {
            restore.check_range(span, &wrong.range_proof(span.first, span.last).unwrap()).unwrap();
            longest = longest.max(store.0.backend.get(Column::Meta, RESTORE_KEY).unwrap().unwrap().len());
        }
        assert!(longest < (small().restore_spans_max + 16) * size_of::<Span>() + 1_000, "{longest} bytes");
        add_somewhere(&restore, &snapshot(source, 10), usize::MAX, &mut 3);
        finish(restore, source, 10);
        same_state(store, source, 10);
    });
}

/// Goal: the rows that a view reads are not dropped with their files when a later restore takes their column.
#[test]
fn a_view_keeps_its_rows_while_their_column_is_filled_anew() {
    let (source, _) = served();
    let source = source.store();
    on_both(&serving(), |mut fixture| {
        // Recovery puts the genesis into a table: rows in memory are not dropped with files.
        fixture.reopen();
        let store = fixture.store();
        let mut views = vec![store.view().unwrap()];
        for number in [5, 10, 15] {
            let restore = store.restore(&target(source, number)).unwrap();
            add_somewhere(&restore, &snapshot(source, number), usize::MAX, &mut 1);
            finish(restore, source, number);
            same_state(store, source, number);
            views.push(store.view().unwrap());
            assert!(views[0].account(&address(0xaa)).unwrap().is_some());
        }
        let rows: Vec<_> =
            views.iter().map(|view| view.rows(&[wide_slot(3), wide_slot(1_000)]).unwrap()).collect();
        assert_eq!(rows[0], [None, None]);
        assert_eq!(rows[1], [slot(7_000), slot(1_001)]);
        assert_eq!((&rows[1], &rows[1]), (&rows[2], &rows[3]));
    });
}

/// Goal: the files that a restore replaced leave the disk with it, unless a view still reads them.
#[test]
fn replaced_files_are_freed_unless_they_are_read() {
    let (source, _) = served();
    let source = source.store();
    for held in [false, true] {
        let fixture = Fixture::initialized(&serving(), true);
        let store = fixture.store();
        let restored = |number| {
            let restore = store.restore(&target(source, number)).unwrap();
            add_somewhere(&restore, &snapshot(source, number), usize::MAX, &mut 1);
            finish(restore, source, number);
        };
        restored(10);
        let replaced = store.current().unwrap().record.active.column();
        let view = held.then(|| store.view().unwrap());
        restored(20);
        let left = store.0.backend.droppable(replaced, &[], &[0xff; 48]).unwrap().bytes;
        assert_eq!(left > 50_000, held, "{left} bytes are left in files");
        if let Some(view) = view {
            assert_eq!(view.rows(&[wide_slot(3), wide_slot(1_000)]).unwrap(), [slot(7_000), slot(1_001)]);
        }
        same_state(store, source, 20);
    }
}

/// Goal: replaced rows that were in no file of their own leave the disk with the next start.
#[test]
fn replaced_rows_are_freed_by_the_next_start() {
    let (source, _) = served();
    let source = source.store();
    let mut fixture = Fixture::initialized(&serving(), true);
    let first: Vec<_> = (0..1_500).map(|i| (wide_slot(i), slot(5))).collect();
    Ledger::new().commit(fixture.store(), &first);
    let replaced = fixture.store().current().unwrap().record.active.column();
    let restore = fixture.store().restore(&target(source, 20)).unwrap();
    add_somewhere(&restore, &snapshot(source, 20), usize::MAX, &mut 1);
    finish(restore, source, 20);
    fixture.reopen();
    let left = fixture.store().0.backend.size(replaced).unwrap().bytes;
    assert!(left < 50_000, "{left} bytes are left");
    same_state(fixture.store(), source, 20);
}

/// The child: works only if a parent set the variable.
#[test]
fn restore_until_killed() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE) else { return };
    let (source, _) = served();
    let store = Store::open(&serving(), dir.as_ref()).unwrap();
    store.initialize(&genesis()).unwrap();
    let restore = store.restore(&target(source.store(), 20)).unwrap();
    let mut seed = u64::from(std::process::id());
    let mut out = std::io::stdout();
    loop {
        add_somewhere(&restore, &snapshot(source.store(), 20), 1, &mut seed);
        writeln!(out, "rows {}", restore.rows()).unwrap();
        out.flush().unwrap();
    }
}

fn run_child(dir: &std::path::Path, lines: usize, moment: Duration) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["tests::ranges::restore_until_killed", "--exact", "--nocapture"])
        .env(DIR_VARIABLE, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap()).lines();
    output.map(Result::unwrap).filter(|line| line.starts_with("rows ")).nth(lines).unwrap();
    let start = Instant::now();
    while start.elapsed() < moment {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_restore_goes_on_after_kills_at_any_moment() {
    let (source, _) = served();
    let source = source.store();
    let dir = store_dir();
    let mut reached = 0;
    for round in 0..6u64 {
        run_child(dir.path(), 20 + 7 * round as usize, Duration::from_micros(310 * round));
        let store = Store::open(&serving(), dir.path()).unwrap();
        assert_eq!(store.recorded_restore().unwrap(), Some(target(source, 20)));
        assert_eq!(store.head().unwrap().header.number, BatchNumber::GENESIS);
        let rows = store.restore(&target(source, 20)).unwrap().rows();
        assert!(rows >= reached, "{rows} rows after {reached}");
        reached = rows;
    }
    assert!(reached > 0, "something became durable before a kill");
    let store = Store::open(&serving(), dir.path()).unwrap();
    let restore = store.restore(&target(source, 20)).unwrap();
    let fetched = add_somewhere(&restore, &snapshot(source, 20), usize::MAX, &mut 9);
    assert_eq!(fetched as u64 + reached, restore.rows());
    finish(restore, source, 20);
    same_state(&store, source, 20);
}
