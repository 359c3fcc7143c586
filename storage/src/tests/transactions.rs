//! The index of transactions: the entries that leave it.

use std::time::{Duration, Instant};

use super::*;
use crate::{PruneConfig, backend::Column, transactions::place_key};

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
    // Snapshots flush the index now and then, and every few of its files are compacted in the background.
    let start = Instant::now();
    while (1..7).any(indexed) {
        assert!(start.elapsed() < Duration::from_secs(180), "batches 1 to 6 stay in the index");
        let next = ledger.head.number.get() + 1;
        ledger.commit_up_to(store, next);
    }
    assert!((7..=ledger.head.number.get()).all(indexed));
}
