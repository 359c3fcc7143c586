//! The index of transactions: what leaves it, and stores of before.

use std::{
    fs,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    PruneConfig,
    backend::{Column, rocks::age_transactions},
    transactions::place_key,
};

fn pruning(bodies: u64) -> StorageConfig {
    StorageConfig { prune: PruneConfig::of_batches([bodies, 0, 0, 0]), ..config() }
}

/// Goal: entries of pruned batches leave the transaction index when its files are compacted, and no others do.
#[test]
fn compaction_takes_pruned_transactions_out_of_the_index() {
    let config = StorageConfig { snapshot_interval_batches: 2, ..pruning(4) };
    let fixture = Fixture::initialized(&config, true);
    let store = fixture.store();
    let mut ledger = Ledger::new();
    ledger.commit_up_to(store, 10);
    let indexed = |number| {
        let hash = transaction_hash(BatchNumber::new(number), 0);
        let key = place_key(&hash, BatchNumber::new(number), 0).unwrap();
        store.0.backend.get(Column::Transactions, &key).unwrap().is_some()
    };
    assert!((1..=10).all(indexed));
    store.prune().unwrap();
    // Each snapshot flushes the index, and every few files of it are compacted in the background.
    let start = Instant::now();
    while (1..7).any(indexed) {
        assert!(start.elapsed() < Duration::from_secs(180), "batches 1 to 6 stay in the index");
        let next = ledger.head.number.get() + 1;
        ledger.commit_up_to(store, next);
    }
    assert!((7..=ledger.head.number.get()).all(indexed));
}

/// Goal: a store of the release before, whose index held whole hashes, finds every transaction after it was opened, pruned ones not.
#[test]
fn an_index_of_before_is_taken_over() {
    let mut fixture = Fixture::initialized(&pruning(4), true);
    let mut ledger = Ledger::new();
    ledger.commit_up_to(fixture.store(), 10);
    fixture.store().prune().unwrap();
    fixture.close();
    let entries = (1..=10).flat_map(|number| (0..2_u32).map(move |index| (BatchNumber::new(number), index)));
    let entries = entries.map(|(number, index)| (transaction_hash(number, u64::from(index)), number, index));
    age_transactions(fixture.dir(), entries);
    let path = fixture.dir().join("FORMAT");
    let text = fs::read_to_string(&path).unwrap();
    let (first, _) = text.split_once('\n').unwrap();
    fs::write(&path, format!("{first}\nfingerprint 38e654a4e24c0fa0\n")).unwrap();
    for _ in 0..2 {
        fixture.reopen();
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "it is marked as one of this release");
        for number in 1..=10 {
            let places = |index| {
                let hash = transaction_hash(BatchNumber::new(number), index);
                fixture.store().transaction_places(&hash).unwrap()
            };
            let expected =
                |index| if number > 6 { vec![(BatchNumber::new(number), index)] } else { Vec::new() };
            assert_eq!([places(0), places(1), places(2)], [expected(0), expected(1), Vec::new()], "{number}");
        }
    }
}
