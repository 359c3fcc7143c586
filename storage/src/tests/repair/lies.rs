//! False answers are found out one by one, and so are their senders.

use super::*;
use crate::OpenedSubtree;

fn lies(opened: &OpenedSubtree) -> Vec<OpenedSubtree> {
    let parts = opened.parts();
    let mut lies = vec![Vec::new(), parts[..parts.len() - 1].to_vec()];
    lies.push([parts, &[SubtreePart::Fork]].concat());
    lies.push(vec![SubtreePart::Hash(Digest([9; 32]))]);
    lies.push(vec![SubtreePart::Fork; 2 * usize::from(LEVELS_MAX)]);
    lies.push(vec![SubtreePart::Run { path: Path::MAX, bit: 255 }, SubtreePart::Fork, SubtreePart::Fork]);
    for at in 0..parts.len() {
        for part in [
            SubtreePart::Hash(Digest([1; 32])),
            SubtreePart::Hash(Digest::ZERO),
            SubtreePart::Fork,
            SubtreePart::Run { path: Path::MIN, bit: 200 },
            SubtreePart::Row(slot_key(1, 1), super::slot(3).unwrap()),
        ] {
            let mut parts = parts.to_vec();
            if parts[at] != part {
                parts[at] = part;
                lies.push(parts);
            }
        }
    }
    lies.into_iter().map(|parts| OpenedSubtree::new(parts).unwrap()).collect()
}

/// Goal: every false answer is refused and leaves no trace; the next true one is accepted.
#[test]
fn lies_are_found_out_one_by_one() {
    let (source, _) = backend();
    let server = Store::with_backend(&snapshots(), Arc::new(source.clone())).unwrap();
    let state = server.state_at(BatchNumber::new(HEAD), MERGE_BYTES).unwrap();
    let older = server.state_at(BatchNumber::new(HEAD - 1), MERGE_BYTES).unwrap();
    let (spoiled, _) = backend();
    let right = rows(&source, Column::StateA);
    spoil(
        &spoiled,
        &right,
        &[Wrong::Change(3, 1), Wrong::Remove(40), Wrong::Add(0, 1), Wrong::RemoveCode(2)],
    );
    let mut repair = open(&spoiled);
    let mut told = 0;
    while let Some(wanted) = repair.take_wanted(1).pop() {
        let opened = state.open(&wanted.place(), 2).unwrap();
        let stale = older.open(&wanted.place(), 2).unwrap();
        let deeper = state.open(&wanted.place(), 3).unwrap();
        let others = [stale, deeper].into_iter().filter(|other| *other != opened);
        for lie in lies(&opened).into_iter().chain(others) {
            let error = repair.add(&wanted, &lie, 2, SUPPLIER).unwrap_err();
            assert!(error.is_bad_supply(), "{lie:?}: {error}");
            told += 1;
        }
        repair.add(&wanted, &opened, 2, SUPPLIER).unwrap();
    }
    assert!(told > 100, "{told}");
    let missing = repair.missing_codes(10).unwrap();
    assert_eq!(missing.len(), 1);
    let error = repair.add_code(&missing[0], b"another").unwrap_err();
    assert!(matches!(error, StorageError::Repair(RepairError::WrongCode { .. })) && error.is_bad_supply());
    let code = state.code(&missing[0]).unwrap().unwrap();
    repair.add_code(&missing[0], &code).unwrap();
    repair.add_code(&missing[0], &code).unwrap();
    assert_eq!(repair.finish().unwrap().rows_put, 2);
    assert_eq!(rows(&spoiled, Column::StateA), right);
}

/// Goal: a peer that opens less than requested is exposed by what is opened next, and nobody else is blamed.
#[test]
fn who_opens_less_than_asked_is_named() {
    let (source, _) = backend();
    let server = Store::with_backend(&snapshots(), Arc::new(source.clone())).unwrap();
    let state = server.state_at(BatchNumber::new(HEAD), MERGE_BYTES).unwrap();
    for given in 1..=3 {
        let (spoiled, _) = backend();
        spoil(&spoiled, &rows(&source, Column::StateA), &[Wrong::Change(3, 1), Wrong::Remove(40)]);
        let mut repair = open(&spoiled);
        let mut named = Vec::new();
        while let Some(wanted) = repair.take_wanted(1).pop() {
            let opened = state.open(&wanted.place(), given).unwrap();
            named.extend(repair.add(&wanted, &opened, 3, SUPPLIER).unwrap());
        }
        assert_eq!(named.is_empty(), given == 3, "{given} levels of 3");
        assert!(named.iter().all(|named| *named == SUPPLIER));
    }
}
