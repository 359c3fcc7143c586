//! Repairs: whatever is wrong with a state's rows and code, comparing it with another state's repairs exactly that.

mod lies;
mod spoiled;

use std::sync::OnceLock;

use proptest::{prelude::*, test_runner::RngSeed};
use slipstream_types::{Path, PublicKey};

use self::spoiled::{Wrong, spoil, wrong};
use super::*;
use crate::{
    Faults, LEVELS_MAX, PathPrefix, RangeDeltaError, Repair, RepairError, RepairSummary, StateAt,
    StorageError, SubtreePart, WantedSubtree,
    backend::{Column, WriteBatch, faulty::FaultyBackend},
    crash::{CrashPoint, WriteStep},
    schema,
};

const MERGE_BYTES: u64 = 1 << 20;
/// Batches of the repaired ledger.
const HEAD: u64 = 25;
const SUPPLIER: PublicKey = PublicKey([7; 32]);

/// The rows of a column.
type Content = BTreeMap<Path, Vec<u8>>;

fn snapshots() -> StorageConfig {
    StorageConfig { snapshot_interval_batches: 10, ..config() }
}

fn code_of(i: u8) -> Vec<u8> {
    vec![0x60, i, 0x00]
}

fn contract(i: u8) -> Option<StateValue> {
    let code_hash = Some(Digest::from(keccak256(code_of(i))));
    Some(StateValue::Account(AccountValue { nonce: 1, balance: U256::from(i), code_hash }))
}

/// Accounts, contracts, and slots whose paths share long prefixes; some are deleted again.
fn ledger(store: &Store) -> Ledger {
    // Hundreds of cases begin with these batches, so they are made and signed once.
    static MADE: OnceLock<(Vec<Made>, Ledger)> = OnceLock::new();
    let (batches, ledger) = MADE.get_or_init(make);
    for made in batches {
        store.commit(made.batch(), None).unwrap();
    }
    ledger.clone()
}

fn make() -> (Vec<Made>, Ledger) {
    let (mut batches, mut ledger) = (Vec::new(), Ledger::new());
    for number in 1..=HEAD {
        let n = number as u8;
        let changes: BTreeMap<StateKey, Option<StateValue>> = (0..6u8)
            .flat_map(|i| {
                [
                    (account_key(n.wrapping_mul(7).wrapping_add(i) | 1), account(number + u64::from(i))),
                    (slot_key(2 * (i % 3), n.wrapping_mul(11).wrapping_add(i)), slot(number + u64::from(i))),
                ]
            })
            .chain([(account_key(2 * n), contract(n)), (slot_key(0, n.wrapping_mul(11)), None)])
            .filter(|(_, value)| value.is_some() || number % 3 == 0)
            .collect();
        let changes: Vec<_> = changes.into_iter().collect();
        let made = ledger.make(&changes, vec![code_of(n)]);
        ledger.advance(&made);
        batches.push(made);
    }
    (batches, ledger)
}

/// A memory backend with the ledger, closed.
fn backend() -> (MemoryBackend, Ledger) {
    let backend = MemoryBackend::with_crashes();
    let store = Store::with_backend(&snapshots(), Arc::new(backend.clone())).unwrap();
    store.initialize(&genesis()).unwrap();
    let ledger = ledger(&store);
    (backend, ledger)
}

fn open(backend: &MemoryBackend) -> Repair {
    Repair::with_backend(&snapshots(), Arc::new(backend.clone())).unwrap()
}

/// Asks one server for everything that differs, and counts the bytes of its answers.
fn compare(repair: &mut Repair, state: &StateAt, levels: u8) -> usize {
    let mut bytes = 0;
    loop {
        let wanted = repair.take_wanted(7);
        if wanted.is_empty() {
            break;
        }
        for wanted in wanted {
            let opened = state.open(&wanted.place(), levels).unwrap();
            bytes += slipstream_types::codec::encode("opened", &opened).unwrap().len();
            repair.add(&wanted, &opened, levels, SUPPLIER).unwrap();
        }
    }
    for hash in repair.missing_codes(usize::MAX).unwrap() {
        let code = state.code(&hash).unwrap().unwrap();
        bytes += code.len();
        repair.add_code(&hash, &code).unwrap();
    }
    bytes
}

fn rows(backend: &MemoryBackend, column: Column) -> Content {
    let mut rows = BTreeMap::new();
    let visit = &mut |path: &[u8], row: &[u8]| {
        rows.insert(Path(path.try_into().unwrap()), row.to_vec());
        Ok(std::ops::ControlFlow::Continue(()))
    };
    use crate::backend::{Direction, Reader as _};
    backend.scan(column, &[], Direction::Up, visit).unwrap();
    rows
}

/// The changes that a repair must make, found by comparing both.
fn expected(right: &Content, codes: &Content, backend: &MemoryBackend) -> RepairSummary {
    let found = rows(backend, Column::StateA);
    let found_codes = rows(backend, Column::Codes);
    RepairSummary {
        rows_put: right.iter().filter(|(path, row)| found.get(path) != Some(row)).count() as u64,
        rows_removed: found.keys().filter(|path| !right.contains_key(path)).count() as u64,
        codes: codes.iter().filter(|(hash, code)| found_codes.get(hash) != Some(code)).count() as u64,
        keys: Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, rng_seed: RngSeed::Fixed(15), ..ProptestConfig::default() })]

    /// Goal: rows and codes that are missing, surplus or changed are repaired, and no others, whatever the tree may
    /// hold.
    #[test]
    fn whatever_is_wrong_is_put_right(
        wrong in prop::collection::vec(wrong(), 0..40),
        levels in 1..=LEVELS_MAX,
        tree_memory_mib in 0..2u64,
    ) {
        let (source, ledger) = backend();
        let server = Store::with_backend(&snapshots(), Arc::new(source.clone())).unwrap();
        let state = server.state_at(BatchNumber::new(HEAD), MERGE_BYTES).unwrap();
        let (spoiled, _) = backend();
        let (right, codes) = (rows(&source, Column::StateA), rows(&source, Column::Codes));
        spoil(&spoiled, &right, &wrong);
        let expected = expected(&right, &codes, &spoiled);

        let config = StorageConfig { tree_memory_mib, ..snapshots() };
        let mut repair = Repair::with_backend(&config, Arc::new(spoiled.clone())).unwrap();
        compare(&mut repair, &state, levels);
        let repaired = repair.finish().unwrap();
        prop_assert_eq!(repaired.keys.len() as u64, (expected.rows_put + expected.rows_removed).min(16));
        prop_assert_eq!(RepairSummary { keys: Vec::new(), ..repaired }, expected);
        prop_assert_eq!(rows(&spoiled, Column::StateA), right);
        prop_assert_eq!(rows(&spoiled, Column::Codes), codes);
        let store = Store::with_backend(&snapshots(), Arc::new(spoiled)).unwrap();
        prop_assert_eq!(store.head().unwrap().header, ledger.head);
    }
}

/// Goal: a whole state is found to be whole, and nothing is requested or written.
#[test]
fn a_whole_state_asks_for_nothing() {
    let (whole, _) = backend();
    let mut repair = open(&whole);
    assert!(repair.take_wanted(10).is_empty());
    let repaired = repair.finish().unwrap();
    assert!(repaired.is_nothing(), "{repaired:?}");
}

/// Goal: the state of every batch from the genesis on can be opened, with snapshots and without, and equals the
/// model's.
#[test]
fn the_state_of_every_batch_can_be_opened() {
    for config in [config(), snapshots()] {
        let mut fixture = Fixture::initialized(&config, false);
        let mut model = vec![Ledger::new()];
        for number in 1..=HEAD {
            let mut next = model.last().unwrap().clone();
            next.commit_up_to(fixture.store(), number);
            model.push(next);
        }
        for (number, ledger) in model.iter().enumerate() {
            let number = BatchNumber::new(number as u64);
            let state = match fixture.store().state_at(number, MERGE_BYTES) {
                Ok(state) => state,
                Err(error) => panic!("batch {number}: {error}"),
            };
            assert_eq!((state.number(), state.root()), (number, state_root(&ledger.state)));
            let mut shown = BTreeMap::new();
            collect(&state, PathPrefix::ROOT, &mut shown);
            assert_eq!(shown, ledger.state, "batch {number}");
        }
        let error = fixture.store().state_at(BatchNumber::new(HEAD + 1), MERGE_BYTES).unwrap_err();
        assert!(matches!(error, StorageError::Repair(RepairError::NotKept { .. })), "{error}");
        let error = fixture.store().state_at(BatchNumber::new(9), 1_000).unwrap_err();
        assert!(matches!(error, StorageError::RangeDelta(_)), "{error}");
        let error = fixture.store().state_at(BatchNumber::GENESIS, 100).unwrap_err();
        assert!(matches!(error, StorageError::RangeDelta(RangeDeltaError::TooLarge { .. })), "{error}");
        fixture.reopen();
        assert!(
            fixture.store().state_at(BatchNumber::new(HEAD), MERGE_BYTES).is_ok(),
            "after a restart, too"
        );
    }
}

/// Collects everything below a place, by opening it bit by bit.
fn collect(state: &StateAt, place: PathPrefix, shown: &mut BTreeMap<StateKey, StateValue>) {
    let opened = state.open(&place, 1).unwrap();
    let below = match opened.parts() {
        [] => return,
        [SubtreePart::Row(key, value)] => {
            shown.insert(*key, *value);
            return;
        }
        [SubtreePart::Fork, SubtreePart::Hash(_), SubtreePart::Hash(_)] => place,
        [SubtreePart::Run { path, bit }, SubtreePart::Hash(_), SubtreePart::Hash(_)] => {
            PathPrefix::new(path, usize::from(*bit))
        }
        other => panic!("{other:?}"),
    };
    for right in [false, true] {
        collect(state, below.child(right), shown);
    }
}

/// Goal: nothing is written before the repair is complete.
#[test]
fn what_is_not_complete_is_not_written() {
    let (source, _) = backend();
    let (spoiled, _) = backend();
    spoil(&spoiled, &rows(&source, Column::StateA), &[Wrong::Change(5, 1)]);
    let before = rows(&spoiled, Column::StateA);
    let mut repair = open(&spoiled);
    assert!(matches!(repair.missing_codes(1), Err(StorageError::Repair(RepairError::Incomplete { .. }))));
    let wanted: Vec<WantedSubtree> = repair.take_wanted(9);
    assert_eq!(wanted.len(), 1);
    repair.want_again(wanted);
    let error = repair.finish().unwrap_err();
    assert!(matches!(error, StorageError::Repair(RepairError::Incomplete { places: 1, .. })), "{error}");
    assert_eq!(rows(&spoiled, Column::StateA), before);
}

/// Goal: a kill around the write leaves the state as wrong as it was, or right.
#[test]
fn a_crash_leaves_the_state_before_or_after() {
    let (source, _) = backend();
    let server = Store::with_backend(&snapshots(), Arc::new(source.clone())).unwrap();
    let state = server.state_at(BatchNumber::new(HEAD), MERGE_BYTES).unwrap();
    let right = rows(&source, Column::StateA);
    for point in [CrashPoint::Before(WriteStep::Repair), CrashPoint::After(WriteStep::Repair)] {
        let (spoiled, _) = backend();
        spoil(&spoiled, &right, &[Wrong::Change(5, 1), Wrong::Remove(7), Wrong::Add(9, 9)]);
        let faulty = FaultyBackend::wrap(Arc::new(spoiled.clone()), &Faults::fail_at(point, 1));
        let mut repair = Repair::with_backend(&snapshots(), faulty).unwrap();
        compare(&mut repair, &state, 2);
        repair.finish().unwrap_err();
        let left = spoiled.after_crash(0);
        let is_right = rows(&left, Column::StateA) == right;
        assert_eq!(is_right, point == CrashPoint::After(WriteStep::Repair));
        let mut repair = open(&left);
        compare(&mut repair, &state, 2);
        assert_eq!(repair.finish().unwrap().is_nothing(), is_right);
        assert_eq!(rows(&left, Column::StateA), right);
    }
}

/// Goal: on disk too, the cost of a repair depends on the wrong rows, and not on the size of the state.
#[test]
fn a_repair_of_files_moves_what_differs() {
    let serving = StorageConfig { snapshot_interval_batches: 10, ..config() };
    let mut fixture = Fixture::initialized(&serving, true);
    let (source, _) = backend();
    let server = Store::with_backend(&snapshots(), Arc::new(source.clone())).unwrap();
    ledger(fixture.store());
    let path = account_key(7).path();
    let mut writes = WriteBatch::default();
    writes.put(Column::StateA, path.0, schema::encode_row(&account_key(7), &account(4_242).unwrap()));
    fixture.store().0.backend.write(writes, true).unwrap();
    fixture.store = None;
    let error = Store::open(&serving, fixture.dir()).unwrap_err();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");

    let state = server.state_at(BatchNumber::new(HEAD), MERGE_BYTES).unwrap();
    let mut repair = Repair::open(&serving, fixture.dir()).unwrap();
    assert_eq!(repair.header().number, BatchNumber::new(HEAD));
    let bytes = compare(&mut repair, &state, 2);
    let repaired = repair.finish().unwrap();
    assert_eq!(repaired.keys, [format!("account {}", address(7))]);
    let all: usize = rows(&source, Column::StateA).values().map(Vec::len).sum();
    assert!(bytes * 4 < all, "{bytes} of {all}");
    fixture.reopen();
    assert_eq!(fixture.store().view().unwrap().account(&address(7)).unwrap().map(StateValue::Account), {
        server.view().unwrap().account(&address(7)).unwrap().map(StateValue::Account)
    });
}
