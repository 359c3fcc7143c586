//! Goal: whatever brings batches, a store that expects a waypoint has its batch or stops before it, and says which.

use std::num::NonZeroUsize;

use super::{
    range_delta::finish,
    restore::{headers, target},
    *,
};
use slipstream_types::Waypoint;

use crate::{Ancestry, StorageError, Takeover};

const AT: BatchNumber = BatchNumber::new(7);

fn serving() -> StorageConfig {
    StorageConfig { snapshot_interval_batches: 10, ..config() }
}

/// Twenty batches of a ledger, and the waypoint at the seventh.
fn source() -> (Fixture, Vec<Made>, Waypoint) {
    let (fixture, mut ledger) = (Fixture::initialized(&serving(), false), Ledger::new());
    let made: Vec<Made> = (1..=20)
        .map(|n| ledger.commit(fixture.store(), &[(account_key(n), account(u64::from(n)))]))
        .collect();
    let waypoint = Waypoint::of(&fixture.store().ledger_info(AT).unwrap().unwrap());
    (fixture, made, waypoint)
}

fn wrong(waypoint: Waypoint) -> Waypoint {
    Waypoint { hash: Digest([1; 32]), ..waypoint }
}

/// Restores the twentieth batch's state with three headers.
fn restore(store: &Store, source: &Store) -> Result<(), StorageError> {
    let snapshot = source.snapshot(BatchNumber::new(20)).unwrap().unwrap();
    let restore = store.restore(&target(source, 20)).unwrap();
    while let Some(next) = restore.next_path() {
        restore.add_chunk(&snapshot.chunk(next, 4_096).unwrap()).unwrap();
    }
    for hash in restore.missing_codes(9).unwrap() {
        restore.add_code(&snapshot.code(&hash).unwrap().unwrap()).unwrap();
    }
    let (headers, proof, genesis) = headers(source, 20, 3);
    restore.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis })
}

/// Goal: a validator's own consensus commits as sync does: batches that its quorum decides on another ledger than the
/// waypoint's are not stored.
#[test]
fn no_commit_leads_past_a_waypoint_on_another_ledger() {
    let (_source, made, waypoint) = source();
    let batches: Vec<_> = made.iter().map(Made::batch).collect();
    let one_by_one = |store: &Store| {
        batches.iter().try_for_each(|batch| {
            let speculation = store.speculate(batch.delta)?;
            store.commit(*batch, Some(speculation))
        })
    };
    let at_once = |store: &Store| store.commit_run(&batches, NonZeroUsize::new(4).unwrap());
    for is_run in [false, true] {
        let commit = |store: &Store| if is_run { at_once(store) } else { one_by_one(store) };
        let fixture = Fixture::initialized(&config(), false);
        fixture.store().expect_waypoint(&wrong(waypoint)).unwrap();
        let error = commit(fixture.store()).unwrap_err();
        assert!(matches!(error, StorageError::WrongWaypoint { found, .. } if found == waypoint), "{error}");
        assert!(fixture.store().head().unwrap().header.number < AT);

        let fixture = Fixture::initialized(&config(), false);
        fixture.store().expect_waypoint(&waypoint).unwrap();
        assert!(!fixture.store().passes_waypoint(&waypoint).unwrap());
        commit(fixture.store()).unwrap();
        assert!(fixture.store().passes_waypoint(&waypoint).unwrap());
    }
}

/// Goal: a directory that followed another ledger is found out when it is opened with the waypoint.
#[test]
fn a_ledger_that_is_past_another_waypoint_is_refused_at_the_start() {
    let (source, _, waypoint) = source();
    let error = source.store().expect_waypoint(&wrong(waypoint)).unwrap_err();
    assert!(matches!(error, StorageError::WrongWaypoint { .. }), "{error}");
    assert!(error.to_string().contains(&waypoint.to_string()), "{error}");
    source.store().expect_waypoint(&waypoint).unwrap();
}

/// Goal: a leap over the waypoint counts only if its ledger was proved to pass through it, also after a restart.
#[test]
fn a_leap_over_the_waypoint_is_compared_or_refused() {
    let (source, _, waypoint) = source();
    let (source, header) = (source.store(), source.store().header(BatchNumber::new(20)).unwrap().unwrap());
    on_both(&config(), |mut fixture| {
        fixture.store().expect_waypoint(&waypoint).unwrap();
        let error = restore(fixture.store(), source).unwrap_err();
        assert!(matches!(error, StorageError::UnprovenWaypoint { .. }), "{error}");
        assert_eq!(fixture.store().head().unwrap().header.number, BatchNumber::GENESIS);
        fixture.store().note_waypoint(&wrong(waypoint), &header).unwrap();
        assert!(restore(fixture.store(), source).is_err());
        fixture.store().note_waypoint(&waypoint, &header).unwrap();
        restore(fixture.store(), source).unwrap();
        assert_eq!(fixture.store().ledger_info(AT).unwrap(), None, "its header did not come");
        fixture.reopen();
        fixture.store().expect_waypoint(&waypoint).unwrap();
        let error = fixture.store().expect_waypoint(&wrong(waypoint)).unwrap_err();
        assert!(matches!(error, StorageError::UnprovenWaypoint { .. }), "{error}");
    });
}

/// Goal: a leap that does not cross the waypoint needs no proof of it, whether it begins at the waypoint's batch or
/// ends before it.
#[test]
fn a_leap_beside_the_waypoint_needs_no_proof() {
    let (source, made, waypoint) = source();
    let fixture = Fixture::initialized(&config(), false);
    fixture.store().expect_waypoint(&waypoint).unwrap();
    made[..AT.get() as usize].iter().for_each(|made| fixture.store().commit(made.batch(), None).unwrap());
    restore(fixture.store(), source.store()).unwrap();
    assert_eq!(fixture.store().head().unwrap().header.number, BatchNumber::new(20));

    let fixture = Fixture::initialized(&config(), false);
    let ahead = Waypoint { number: BatchNumber::new(21), ..waypoint };
    fixture.store().expect_waypoint(&ahead).unwrap();
    restore(fixture.store(), source.store()).unwrap();
    assert!(!fixture.store().passes_waypoint(&ahead).unwrap());
}

/// Goal: a store that leapt past the waypoint without a comparison is not taken for a compared one.
#[test]
fn a_ledger_that_nobody_compared_is_refused_at_the_start() {
    let (source, made, waypoint) = source();
    let fixture = Fixture::initialized(&config(), false);
    // A note about a leap that was never made.
    fixture.store().note_waypoint(&waypoint, &made[9].header).unwrap();
    restore(fixture.store(), source.store()).unwrap();
    let error = fixture.store().expect_waypoint(&waypoint).unwrap_err();
    assert!(error.to_string().contains("began after that batch"), "{error}");
    let newest = Waypoint::of(&source.store().ledger_info(BatchNumber::new(20)).unwrap().unwrap());
    fixture.store().expect_waypoint(&newest).unwrap();
    let error = fixture.store().passes_waypoint(&wrong(newest)).unwrap_err();
    assert!(matches!(error, StorageError::WrongWaypoint { .. }), "{error}");
}

/// Goal: a range delta brings all headers, and so the header of the waypoint.
#[test]
fn a_range_delta_passes_through_the_waypoint() {
    let (source, made, waypoint) = source();
    let source = source.store();
    for (expected, is_right) in [(waypoint, true), (wrong(waypoint), false)] {
        let fixture = Fixture::initialized(&config(), false);
        fixture.store().expect_waypoint(&expected).unwrap();
        let takeover = fixture.store().take_range_delta(&target(source, 20), 0, 1 << 20).unwrap();
        let merged = source.range_delta(BatchNumber::GENESIS, BatchNumber::new(20), 1 << 20).unwrap();
        let snapshot = source.snapshot(BatchNumber::new(20)).unwrap().unwrap();
        let (first, last) = (slipstream_types::Path::MIN, slipstream_types::Path::MAX);
        let chunk = snapshot.range_delta_chunk(&merged, first, last, 1 << 20).unwrap();
        takeover.add(chunk.check().unwrap()).unwrap();
        let headers: Vec<_> = made.iter().map(|made| made.header.clone()).collect();
        match finish(&takeover, &headers) {
            Ok(()) => assert!(is_right && fixture.store().passes_waypoint(&waypoint).unwrap()),
            Err(error) => {
                assert!(!is_right && matches!(error, StorageError::WrongWaypoint { .. }), "{error}")
            }
        }
    }
}
