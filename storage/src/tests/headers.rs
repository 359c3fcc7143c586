//! Pruned headers, and windows of time and of bytes.

use std::ops::ControlFlow;

use slipstream_types::Waypoint;

use super::*;
use crate::{
    Maintenance, PruneConfig, PrunedKind, RESTORE_HEADERS_MAX, StateHistory, StorageError, Window,
    backend::{Column, Direction},
    schema,
};

/// Headers before the head that BLOCKHASH can ask for, whatever a window says.
const ASKED: u64 = RESTORE_HEADERS_MAX as u64;

fn windows(blobs: u64, headers: Window) -> StorageConfig {
    let prune = PruneConfig { headers, ..PruneConfig::of_batches([blobs; 4]) };
    StorageConfig { prune, state_history: StateHistory::Batches(0), ..config() }
}

/// Checks that `first` is the first served header after the genesis, with everything that belongs to it, and that
/// nothing before it is served.
pub(super) fn check_from(store: &Store, headers: &[BatchHeader], first: u64) {
    let last = headers.len() as u64 - 1;
    let number = BatchNumber::new;
    for header in headers {
        let kept = header.number == BatchNumber::GENESIS || header.number.get() >= first;
        let expected = kept.then(|| header.clone());
        assert_eq!(store.header(header.number).unwrap(), expected);
        assert_eq!(store.find_header(&header.digest()).unwrap().is_some(), kept, "{}", header.number);
        let certified = kept && header.number != BatchNumber::GENESIS;
        assert_eq!(store.certificate(header.number).unwrap().is_some(), certified, "{}", header.number);
    }
    if first > 1 {
        assert!(store.headers(number(first - 1), 2).unwrap().is_empty());
        assert!(store.ledger_info(number(first - 1)).unwrap().is_none());
    }
    assert_eq!(store.headers(BatchNumber::GENESIS, 9).unwrap().len(), if first > 1 { 1 } else { 9 });
    let root = store.head().unwrap().accumulator.root();
    for at in [first, (first + last) / 2, last] {
        let found = store.headers(number(at), 2).unwrap();
        assert_eq!(found, headers[at as usize..].iter().take(2).cloned().collect::<Vec<_>>());
        let digests: Vec<_> = found.iter().map(BatchHeader::digest).collect();
        let proof = store.header_range_proof(last + 1, number(at), digests.len()).unwrap();
        proof.verify(root, last + 1, at, &digests).unwrap();
        assert!(store.ledger_info(number(at)).unwrap().is_some());
    }
    let proof = store.header_range_proof(last + 1, BatchNumber::GENESIS, 1).unwrap();
    proof.verify(root, last + 1, 0, &[headers[0].digest()]).unwrap();
}

/// Commits up to a batch. Returns all headers.
fn grow(store: &Store, ledger: &mut Ledger, up_to: u64) -> Vec<BatchHeader> {
    ledger.commit_up_to(store, up_to);
    let known = |n| store.header(BatchNumber::new(n)).unwrap().unwrap();
    (0..=up_to).map(known).collect()
}

/// Goal: batches below the window are dropped with all their parts, and the rest proves itself. A reopened store and
/// a check find it whole, and it continues.
#[test]
fn headers_go_with_all_that_hangs_on_them() {
    on_both(&windows(2, Window::All), |mut fixture| {
        let mut ledger = Ledger::new();
        let headers = grow(fixture.store(), &mut ledger, ASKED + 60);
        fixture.store().prune().unwrap();
        check_from(fixture.store(), &headers, 1);
        fixture.config = windows(2, Window::Batches(20));
        fixture.reopen();
        let pruned = fixture.store().prune().unwrap();
        let pruned = pruned.iter().find(|pruned| pruned.kind == PrunedKind::Headers).unwrap();
        // As far back as BLOCKHASH looks, whatever the window says.
        assert_eq!(pruned.lowest, BatchNumber::new(60));
        for _ in 0..2 {
            check_from(fixture.store(), &headers, 60);
            fixture.reopen();
        }
        // Wider windows bring nothing back.
        fixture.config = windows(2, Window::All);
        fixture.reopen();
        fixture.store().prune().unwrap();
        check_from(fixture.store(), &headers, 60);
        ledger.commit_up_to(fixture.store(), ASKED + 70);
        if fixture.is_on_disk() {
            fixture.close();
            let store = Maintenance::open(&fixture.config, fixture.dir()).unwrap();
            let report = store.check(&mut |_| {}).unwrap();
            assert_eq!((report.damage, report.unused), (Vec::<String>::new(), Vec::new()));
            assert_eq!(store.stats().unwrap().headers_floor, BatchNumber::new(60));
        }
    });
}

/// Goal: on disk too, nothing is left of pruned headers once their files were compacted.
#[test]
fn pruned_headers_leave_the_disk() {
    let mut fixture = Fixture::initialized(&windows(2, Window::Batches(1)), true);
    let mut ledger = Ledger::new();
    // Reopening puts the rows into files of their own.
    for up_to in [100, 200, ASKED + 300] {
        ledger.commit_up_to(fixture.store(), up_to);
        fixture.reopen();
    }
    let floor = 300;
    fixture.store().prune().unwrap();
    assert_eq!(fixture.store().headers_floor(), BatchNumber::new(floor));
    for column in [Column::Headers, Column::Certificates] {
        let mut left = Vec::new();
        let visit = &mut |key: &[u8], _: &[u8]| {
            left.push(schema::decode_number(key)?.get());
            Ok(ControlFlow::Continue(()))
        };
        fixture.store().0.backend.scan(column, &[], Direction::Up, visit).unwrap();
        let gone: Vec<u64> = left.into_iter().filter(|number| (1..floor).contains(number)).collect();
        assert_eq!(gone, [0; 0], "{column:?}");
    }
}

/// Goal: a header stays as long as anything needs it: a blob of its batch, a past state, a snapshot.
#[test]
fn headers_stay_for_who_needs_them() {
    let narrow = Window::Batches(1);
    let lowest = |config: StorageConfig, bodies: Window| {
        let mut config = config;
        config.prune.bodies = bodies;
        let fixture = Fixture::initialized(&config, false);
        Ledger::new().commit_up_to(fixture.store(), ASKED + 60);
        fixture.store().prune().unwrap();
        fixture.store().headers_floor().get()
    };
    assert_eq!(lowest(windows(2, narrow), narrow), 60);
    assert_eq!(lowest(windows(2, narrow), Window::Batches(ASKED + 21)), 40);
    assert_eq!(lowest(windows(2, narrow), Window::All), 0);
    let history = StorageConfig { state_history: StateHistory::Batches(30), ..windows(2, narrow) };
    assert_eq!(lowest(history, narrow), 30);
    let snapshots = StorageConfig { snapshot_interval_batches: 50, snapshots_kept: 2, ..windows(2, narrow) };
    assert_eq!(lowest(snapshots, narrow), 0, "snapshots of 250 and 300 need the headers before them");
}

/// Goal: a waypoint that the ledger passed through is accepted after its header is gone, at the next start too.
/// Another waypoint is not.
#[test]
fn a_waypoint_outlives_its_header() {
    let mut fixture = Fixture::initialized(&windows(2, Window::Batches(1)), false);
    let mut ledger = Ledger::new();
    ledger.commit_up_to(fixture.store(), 10);
    let info = fixture.store().ledger_info(BatchNumber::new(5)).unwrap().unwrap();
    let waypoint = Waypoint::of(&info);
    fixture.store().expect_waypoint(&waypoint).unwrap();
    for up_to in [ASKED + 30, ASKED + 60] {
        ledger.commit_up_to(fixture.store(), up_to);
        fixture.store().prune().unwrap();
        assert_eq!(fixture.store().header(waypoint.number).unwrap(), None);
        // First with the waypoint in the configuration, then with the note alone.
        fixture.reopen();
        assert!(fixture.store().passes_waypoint(&waypoint).unwrap());
    }
    // A reader of an old state learns that its rows are gone.
    let view = fixture.store().view().unwrap();
    assert!(matches!(view.header_digest(BatchNumber::new(9)), Err(StorageError::StateNotKept { .. })));
    assert!(view.header_digest(BatchNumber::new(ASKED + 59)).unwrap().is_some());
    let other = Waypoint { hash: Digest([9; 32]), ..waypoint };
    let refused = fixture.store().expect_waypoint(&other);
    assert!(matches!(refused, Err(StorageError::UnprovenWaypoint { .. })), "{refused:?}");
}

/// Goal: windows of time and of bytes keep what they say, and never less than the head's.
#[test]
fn windows_of_time_and_of_bytes() {
    let lowest = |window: Window| {
        let prune = PruneConfig { receipts: window, ..PruneConfig::default() };
        let fixture = Fixture::initialized(&StorageConfig { prune, ..config() }, false);
        Ledger::new().commit_up_to(fixture.store(), 100);
        fixture.store().prune().unwrap();
        let lowest = fixture.store().lowest(BlobKind::Receipts).unwrap().unwrap().get();
        assert!(fixture.store().blob(BlobKind::Receipts, BatchNumber::new(lowest)).unwrap().is_some());
        lowest
    };
    // Ten batches a second.
    assert_eq!(lowest(Window::Seconds(3)), 70);
    assert_eq!(lowest(Window::Seconds(u64::MAX)), 1);
    assert_eq!(lowest(Window::Batches(1)), 100);
    let of_one = {
        let fixture = Fixture::initialized(&config(), false);
        Ledger::new().commit_up_to(fixture.store(), 1);
        let blob = fixture.store().blob(BlobKind::Receipts, BatchNumber::new(1)).unwrap().unwrap();
        8 + blob.len() as u64
    };
    assert_eq!(lowest(Window::Bytes(10 * of_one)), 91);
    assert_eq!(lowest(Window::Bytes(1)), 100, "the newest file is kept whatever it takes");
    assert_eq!(lowest(Window::Bytes(1 << 40)), 1);
}

/// Goal: the kept nodes are all that proofs need, for every floor, in every accumulator from there on.
#[test]
fn the_nodes_that_are_kept_are_enough() {
    const LEAVES: u64 = 70;
    let digest = |leaf: u64| Digest([leaf as u8; 32]);
    let mut accumulator = Accumulator::default();
    let mut nodes = BTreeMap::new();
    let mut roots = vec![accumulator.root()];
    for leaf in 0..LEAVES {
        let added = accumulator.append(digest(leaf));
        nodes.extend(added.into_iter().map(|(position, node)| ((position.level, position.index), node)));
        roots.push(accumulator.root());
    }
    for floor in 1..LEAVES {
        let kept = |position: slipstream_types::accumulator::NodePosition| {
            let needed = schema::is_node_needed(position, floor);
            nodes.get(&(position.level, position.index)).copied().filter(|_| needed)
        };
        for leaves in floor..=LEAVES {
            let loaded = Accumulator::load(leaves, kept).expect("the ledger goes on");
            assert_eq!(loaded.root(), roots[leaves as usize]);
            for first in (floor..leaves).chain([0]) {
                let proof = slipstream_types::accumulator::prove(leaves, first, 1, &kept).unwrap();
                proof.verify(roots[leaves as usize], leaves, first, &[digest(first)]).unwrap();
            }
        }
    }
}
