//! Goal: a store that began from a snapshot is complete, proves its genesis like any other, and notices lost data.

use slipstream_types::accumulator::NodePosition;

use super::{
    restore::{headers, target},
    *,
};
use crate::{
    Ancestry, Maintenance, Takeover,
    backend::{Column, Reader as _, RowStore as _, WriteBatch, rocks::RocksBackend},
    schema,
};

fn serving() -> StorageConfig {
    StorageConfig { snapshot_interval_batches: 10, ..config() }
}

/// A ledger of `batches` batches with their snapshots.
fn source(batches: u64) -> (Fixture, Ledger) {
    let fixture = Fixture::initialized(&serving(), false);
    let mut ledger = Ledger::new();
    ledger.commit_up_to(fixture.store(), batches);
    (fixture, ledger)
}

/// Restores a snapshot with `count` headers.
fn restore(store: &Store, source: &Store, number: u64, count: u64) {
    let snapshot = source.snapshot(BatchNumber::new(number)).unwrap().unwrap();
    let restore = store.restore(&target(source, number)).unwrap();
    while let Some(next) = restore.next_path() {
        restore.add_chunk(&snapshot.chunk(next, 4_096).unwrap()).unwrap();
    }
    let (headers, proof, genesis) = headers(source, number, count);
    restore.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis }).unwrap();
}

/// Commits the ledger's next batches to both stores.
fn go_on(ledger: &mut Ledger, up_to: u64, stores: [&Store; 2]) {
    while ledger.head.number.get() < up_to {
        let made = ledger.make(&[(account_key(1), account(ledger.head.number.get() + 7))], Vec::new());
        stores.iter().for_each(|store| store.commit(made.batch(), None).unwrap());
        ledger.advance(&made);
    }
}

/// Checks that the genesis is proved, and the ledger info known, for each of these batches.
fn introduces(store: &Store, source: &Store, numbers: std::ops::RangeInclusive<u64>) {
    let genesis = genesis().header().unwrap().digest();
    for number in numbers {
        let info = source.certificate(BatchNumber::new(number)).unwrap().unwrap().info;
        assert_eq!(
            store.ledger_info(BatchNumber::new(number)).unwrap().as_ref(),
            Some(&info),
            "batch {number}"
        );
        let proof = store.header_range_proof(number + 1, BatchNumber::GENESIS, 1).unwrap();
        proof.verify(info.accumulator_root, number + 1, 0, &[genesis]).unwrap();
    }
}

#[test]
fn a_restored_store_proves_its_genesis_in_every_ledger_that_it_knows() {
    for (number, count) in [(30, 5), (30, 10), (40, 1), (40, 9)] {
        let (served, mut ledger) = source(number);
        let fixture = Fixture::initialized(&serving(), false);
        let (store, source) = (fixture.store(), served.store());
        restore(store, source, number, count);
        go_on(&mut ledger, 150, [store, source]);
        introduces(store, source, number + 1 - count..=150);
        assert_eq!(store.ledger_info(BatchNumber::new(number - count)).unwrap(), None);

        // A store that is restored from it does so too.
        let next = Fixture::initialized(&serving(), false);
        restore(next.store(), store, 150, 20);
        introduces(next.store(), source, 131..=150);
        // So does one that had batches before.
        let other = Fixture::initialized(&serving(), false);
        Ledger::new().commit_up_to(other.store(), 12);
        restore(other.store(), store, 150, 20);
        introduces(other.store(), source, 131..=150);
    }
}

/// Returns the damage that a check finds in a closed store.
fn damage(fixture: &Fixture) -> Vec<String> {
    let maintenance = Maintenance::open(&fixture.config, fixture.dir()).unwrap();
    maintenance.check(&mut |_| {}).unwrap().damage
}

/// Puts back what was lost before, and deletes rows of a closed store. Returns the write that restores them.
fn lose(fixture: &Fixture, before: WriteBatch, rows: &[(Column, Vec<u8>)]) -> WriteBatch {
    let backend = RocksBackend::open(&fixture.config, fixture.dir(), CURRENT).unwrap();
    backend.write(before, true).unwrap();
    let (mut loss, mut back) = (WriteBatch::default(), WriteBatch::default());
    for (column, key) in rows {
        back.put(*column, key.clone(), backend.get(*column, key).unwrap().unwrap());
        loss.delete(*column, key.clone());
    }
    backend.write(loss, true).unwrap();
    back
}

fn put_back(fixture: &Fixture, back: WriteBatch) {
    RocksBackend::open(&fixture.config, fixture.dir(), CURRENT).unwrap().write(back, true).unwrap();
}

#[test]
fn a_check_tells_lost_headers_from_those_that_a_restore_leaves_out() {
    let (served, _) = source(60);
    // Windows that begin at an odd and at an even batch, right after the genesis, and after other batches.
    for (before, count) in [(0, 10), (0, 59), (7, 9), (8, 10)] {
        let mut fixture = Fixture::initialized(&serving(), true);
        Ledger::new().commit_up_to(fixture.store(), before);
        restore(fixture.store(), served.store(), 60, count);
        fixture.store = None;
        assert_eq!(damage(&fixture), Vec::<String>::new(), "{count} headers behind batch {before}");

        let first = 61 - count;
        let mut back = WriteBatch::default();
        for number in [first, first + 1, 60 - count / 2] {
            let header = (Column::Headers, schema::number_key(BatchNumber::new(number)).to_vec());
            back = lose(&fixture, back, &[header]);
            let found = damage(&fixture);
            let expected = format!("header {number}: missing, but its digest is in the accumulator");
            assert!(found.contains(&expected), "{expected}: {found:?}");
        }
        let both = |number| {
            let digest = served.store().header(BatchNumber::new(number)).unwrap().unwrap().digest();
            let key = schema::number_key(BatchNumber::new(number)).to_vec();
            [(Column::Headers, key), (Column::HeaderIndex, digest.0.to_vec())]
        };
        // Without a proof, only the leaf tells it.
        back = lose(&fixture, back, &both(53));
        let found = damage(&fixture);
        let expected = "header 53: missing, but its digest is in the accumulator";
        assert!(found.iter().any(|what| what == expected), "{found:?}");
        let leaf = schema::node_key(NodePosition { level: 0, index: first }).to_vec();
        back = lose(&fixture, back, &[(Column::Nodes, leaf)]);
        let found = damage(&fixture);
        assert!(
            found.iter().any(|what| what.contains("differs from the one in the accumulator")),
            "{found:?}"
        );
        put_back(&fixture, back);
        assert_eq!(damage(&fixture), Vec::<String>::new());
    }
}
