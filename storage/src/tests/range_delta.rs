//! Goal: a range delta leaves what batch by batch commits leave, whatever its chunks and their order, even through
//! failures.

use proptest::prelude::*;
use slipstream_types::{Path, accumulator::AccumulatorRangeProof};

use super::{restore::target, *};
use crate::{
    Ancestry, CrashPoint, Faults, Maintenance, PruneConfig, RangeDeltaChunk, RangeDeltaError,
    RangeDeltaTakeover, Snapshot, StorageError, Takeover, WriteStep, backend::faulty::FaultyBackend,
};

/// Bytes that a merge may take: enough for all of these tests.
pub(super) const MERGE_BYTES: u64 = 64 << 20;

/// Changes of one batch, with the code of each contract among them.
type Changes = (Vec<(StateKey, Option<StateValue>)>, Vec<Vec<u8>>);

pub(super) fn contract(i: u8, nonce: u64) -> (Option<StateValue>, Vec<u8>) {
    let code = vec![0x60, i];
    let code_hash = Some(Digest::from(keccak256(&code)));
    (Some(StateValue::Account(AccountValue { nonce, code_hash, ..AccountValue::default() })), code)
}

/// Hot and cold keys that are set, changed, deleted and created again, and contracts.
fn changes() -> impl Strategy<Value = Changes> {
    let entry = (0..40u8, 0..8u8, 0..5u64).prop_map(|(i, kind, value)| match kind {
        0 => (account_key(i), contract(i % 3, value).0, Some(contract(i % 3, value).1)),
        1 | 2 => (account_key(i % 4), if value == 0 { None } else { account(value) }, None),
        3 => (slot_key(0xcc, i % 4), slot(value), None),
        _ => (slot_key(i, kind), slot(value), None),
    });
    prop::collection::vec(entry, 0..25).prop_map(|entries| {
        let codes = entries.iter().filter_map(|(.., code)| code.clone()).collect();
        let unique: BTreeMap<_, _> = entries.into_iter().map(|(key, value, _)| (key, value)).collect();
        (unique.into_iter().collect(), codes)
    })
}

/// A chain whose last batch has a snapshot.
pub(super) struct Served {
    pub(super) source: Fixture,
    pub(super) made: Vec<Made>,
    pub(super) ledger: Ledger,
}

impl Served {
    fn new(batches: Vec<Changes>) -> Served {
        let interval = batches.len() as u64;
        let source =
            Fixture::initialized(&StorageConfig { snapshot_interval_batches: interval, ..config() }, false);
        let (mut ledger, mut made) = (Ledger::new(), Vec::new());
        for (changes, codes) in batches {
            let batch = ledger.make(&changes, codes);
            source.store().commit(batch.batch(), None).unwrap();
            ledger.advance(&batch);
            made.push(batch);
        }
        Served { source, made, ledger }
    }

    /// Thirty batches over some hot keys, each with a key of its own that the second batch after it deletes.
    pub(super) fn of_thirty() -> Served {
        let batch = |n: u8| {
            let own = (account_key(n), account(u64::from(n)));
            let gone = (account_key(n.wrapping_sub(2)), if n > 3 { None } else { account(7) });
            let (value, code) = contract(9, u64::from(n));
            let hot = (0..20).map(|i| (slot_key(0xcc, i), slot(u64::from(n + i))));
            let cold = (0..20).map(|i| (slot_key(i, n % 6), slot(u64::from(i))));
            let some = [own, gone, (account_key(0xdd), value)];
            (some.into_iter().chain(hot).chain(cold).collect(), vec![code])
        };
        Served::new((1..=30).map(batch).collect())
    }

    pub(super) fn last(&self) -> u64 {
        self.made.len() as u64
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.source.store().snapshot(BatchNumber::new(self.last())).unwrap().unwrap()
    }

    /// Commits the first batches to another store.
    pub(super) fn replay(&self, store: &Store, head: u64) {
        for made in &self.made[..head as usize] {
            store.commit(made.batch(), None).unwrap();
        }
    }

    pub(super) fn takeover(&self, store: &Store, ranges_bits: u8) -> RangeDeltaTakeover {
        store.take_range_delta(&target(self.source.store(), self.last()), ranges_bits, MERGE_BYTES).unwrap()
    }

    /// Takes another store from a batch to the last one by a range delta.
    pub(super) fn leap(&self, store: &Store, from: u64) {
        let takeover = self.takeover(store, 1);
        self.fill(&takeover, from, 8_000, 1);
        finish(&takeover, &self.headers(from)).unwrap();
    }

    pub(super) fn headers(&self, head: u64) -> Vec<BatchHeader> {
        self.made[head as usize..].iter().map(|made| made.header.clone()).collect()
    }

    /// Adds everything that is missing, chunk by chunk at places that a generator picks, and the code.
    pub(super) fn fill(&self, takeover: &RangeDeltaTakeover, from: u64, bytes_max: usize, mut seed: u64) {
        let merged = self.source.store().range_delta(
            BatchNumber::new(from),
            BatchNumber::new(self.last()),
            MERGE_BYTES,
        );
        let (merged, snapshot) = (merged.unwrap(), self.snapshot());
        loop {
            let missing = takeover.missing(usize::MAX);
            if missing.is_empty() {
                break;
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let span = missing[(seed >> 33) as usize % missing.len()];
            let chunk = snapshot.range_delta_chunk(&merged, span.first, span.last, bytes_max).unwrap();
            assert!(chunk.entry_bytes() <= bytes_max || chunk.entries.len() == 1);
            takeover.add(chunk.check().unwrap()).unwrap();
        }
        for hash in takeover.missing_codes(usize::MAX).unwrap() {
            takeover.add_code(&snapshot.code(&hash).unwrap().unwrap()).unwrap();
        }
    }

    /// Checks that the store is at the last batch with exactly its state, and can continue.
    pub(super) fn check(&self, store: &Store) {
        let head = store.head().unwrap();
        assert_eq!((&head.header, &head.accumulator), (&self.ledger.head, &self.ledger.accumulator));
        let keys: Vec<StateKey> = (0..=0xdd)
            .flat_map(|i| (0..20).map(move |slot| slot_key(i, slot)).chain([account_key(i)]))
            .chain(self.ledger.state.keys().copied())
            .collect();
        let expected: Vec<_> = keys.iter().map(|key| self.ledger.state.get(key).copied()).collect();
        let view = store.view().unwrap();
        assert_eq!(view.rows(&keys).unwrap(), expected);
        for value in self.ledger.state.values() {
            if let StateValue::Account(AccountValue { code_hash: Some(hash), .. }) = value {
                assert!(view.code(hash).unwrap().is_some(), "the code {hash} is there");
            }
        }
        for number in 0..=self.last() {
            let number = BatchNumber::new(number);
            assert_eq!(store.header(number).unwrap(), self.source.store().header(number).unwrap());
            let digest = store.header(number).unwrap().unwrap().digest();
            assert_eq!(store.find_header(&digest).unwrap(), Some(number));
        }
        let next = self.ledger.make(&[(account_key(1), account(99)), (slot_key(0xcc, 1), None)], Vec::new());
        assert_eq!(store.speculate(&next.delta).unwrap().root(), next.header.state_root);
    }

    fn next(&self) -> Made {
        self.ledger.make(&[(account_key(1), account(99))], Vec::new())
    }
}

fn advances(served: &Served, head: u64, from: u64, on_disk: bool, shape: (u8, usize, u64)) {
    let (ranges_bits, bytes_max, seed) = shape;
    let config = StorageConfig { snapshot_interval_batches: served.last(), ..config() };
    let mut fixture = Fixture::initialized(&config, on_disk);
    served.replay(fixture.store(), head);
    let takeover = served.takeover(fixture.store(), ranges_bits);
    served.fill(&takeover, from, bytes_max, seed);
    finish(&takeover, &served.headers(head)).unwrap();
    drop(takeover);
    served.check(fixture.store());
    let made = fixture.store().snapshots();
    assert_eq!(made, served.source.store().snapshots(), "a snapshot is made when one is due");
    assert_eq!(made[0].rows, served.ledger.state.len() as u64);
    let chunk = |store: &Store| {
        let snapshot = store.snapshot(made[0].number).unwrap().unwrap();
        snapshot.encoded_chunk(Path::MIN, Path::MAX, 1 << 20).unwrap()
    };
    assert_eq!(chunk(fixture.store()), chunk(served.source.store()));
    assert_eq!(fixture.store().lowest(BlobKind::Delta).unwrap(), None);
    fixture.reopen();
    served.check(fixture.store());
    let kept = fixture.store().snapshots();
    assert!(kept == made || !on_disk, "it knows as much of its snapshot after a restart");
    fixture.store().commit(served.next().batch(), None).unwrap();
    assert_eq!(fixture.store().lowest(BlobKind::Delta).unwrap(), Some(served.ledger.head.number.next()));
}

fn shapes() -> impl Strategy<Value = (u8, usize, u64)> {
    (0..5u8, 1..2_000usize, any::<u64>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_range_delta_leaves_what_commits_leave(
        batches in prop::collection::vec(changes(), 1..14),
        (head, from) in (0..100u64, 0..100u64),
        shape in shapes(),
    ) {
        let served = Served::new(batches);
        let head = head % served.last();
        advances(&served, head, from % (head + 1), false, shape);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn a_range_delta_leaves_what_commits_leave_on_disk(
        batches in prop::collection::vec(changes(), 6..10),
        head in 0..6u64,
        shape in shapes(),
    ) {
        advances(&Served::new(batches), head, head, true, shape);
    }
}

#[test]
fn hot_keys_are_sent_once() {
    let served = Served::of_thirty();
    let store = served.source.store();
    let merged = store.range_delta(BatchNumber::GENESIS, BatchNumber::new(30), MERGE_BYTES).unwrap();
    let keys: std::collections::BTreeSet<_> =
        served.made.iter().flat_map(|made| made.delta.entries()).map(|entry| entry.key).collect();
    assert_eq!(merged.len(), keys.len());
    assert!(merged.bytes() <= MERGE_BYTES && merged.bytes() > 0);
    let chunk = served.snapshot().range_delta_chunk(&merged, Path::MIN, Path::MAX, 1 << 20).unwrap();
    let encoded = slipstream_types::codec::encode("chunk", &chunk.entries).unwrap();
    assert_eq!(chunk.entry_bytes() + 2, encoded.len(), "two bytes tell the number of entries");
}

/// Goal: chunks may fall into evicted parts: the state is many times what the tree may keep in memory.
#[test]
fn a_small_tree_memory_changes_nothing() {
    let key = |i: u64| StateKey::Slot(address((i % 200) as u8), B256::from(U256::from(i)));
    let first = ((0..25_000).map(|i| (key(i), slot(i + 1))).collect(), Vec::new());
    let second = ((0..300).map(|i| (key(i * 83), slot(i % 5 * 11))).collect(), Vec::new());
    let served = Served::new(vec![first, second]);
    let config = StorageConfig { tree_memory_mib: 1, ..config() };
    let fixture = Fixture::initialized(&config, true);
    served.replay(fixture.store(), 1);
    let takeover = served.takeover(fixture.store(), 3);
    served.fill(&takeover, 1, 1_000, 5);
    assert_eq!(takeover.rows(), 300);
    finish(&takeover, &served.headers(1)).unwrap();
    served.check(fixture.store());
}

#[test]
fn what_an_advance_leaves_is_whole_for_check_and_pruning() {
    let served = Served::of_thirty();
    let prune = PruneConfig::of_batches([3; 4]);
    let config = StorageConfig { prune, ..config() };
    let fixture = Fixture::initialized(&config, true);
    served.replay(fixture.store(), 10);
    let takeover = served.takeover(fixture.store(), 1);
    served.fill(&takeover, 0, 500, 3);
    finish(&takeover, &served.headers(10)).unwrap();
    drop(takeover);
    fixture.store().commit(served.next().batch(), None).unwrap();
    fixture.store().prune().unwrap();
    assert_eq!(fixture.store().lowest(BlobKind::Body).unwrap(), Some(BatchNumber::new(31)));
    let Fixture { dir, store, .. } = fixture;
    drop(store);
    let maintenance = Maintenance::open(&config, dir.path()).unwrap();
    let report = maintenance.check(&mut |_| {}).unwrap();
    assert!(report.damage.is_empty() && report.rows > 0, "{:?}", report.damage);
}

#[test]
fn a_failed_write_leaves_the_old_head_or_the_new_one() {
    let served = Served::of_thirty();
    for (point, head) in
        [(CrashPoint::Before(WriteStep::Commit), 12), (CrashPoint::After(WriteStep::Commit), 30)]
    {
        for on_disk in [false, true] {
            let (dir, memory) = (store_dir(), MemoryBackend::default());
            let open = |faults: &Faults| match on_disk {
                true => Store::open_with(&config(), dir.path(), faults),
                false => {
                    Store::with_backend(&config(), FaultyBackend::wrap(Arc::new(memory.clone()), faults))
                }
            };
            let store = open(&Faults::fail_at(point, 13)).unwrap();
            store.initialize(&genesis()).unwrap();
            served.replay(&store, 12);
            let takeover = served.takeover(&store, 2);
            served.fill(&takeover, 12, 700, 8);
            finish(&takeover, &served.headers(12)).unwrap_err();
            assert!(matches!(store.put_record("x", b"y"), Err(StorageError::Poisoned)));
            drop((takeover, store));

            let store = open(&Faults::none()).unwrap();
            assert_eq!(store.head().unwrap().header, served.made[head - 1].header);
            if head < 30 {
                let takeover = served.takeover(&store, 2);
                served.fill(&takeover, 12, 700, 9);
                finish(&takeover, &served.headers(12)).unwrap();
            }
            served.check(&store);
        }
    }
}

/// Goal: a takeover that loses the race for the head has written nothing, and can begin anew from there.
#[test]
fn a_head_that_moved_ends_an_advance() {
    let served = Served::of_thirty();
    on_both(&config(), |fixture| {
        let store = fixture.store();
        served.replay(store, 5);
        let takeover = served.takeover(store, 0);
        served.fill(&takeover, 5, 10_000, 1);
        store.commit(served.made[5].batch(), None).unwrap();
        let error = finish(&takeover, &served.headers(5)).unwrap_err();
        assert!(matches!(error, StorageError::RangeDelta(RangeDeltaError::HeadMoved { .. })), "{error}");
        assert!(error.is_retryable() && !error.is_bad_supply());
        assert_eq!(store.head().unwrap().header, served.made[5].header);
        let takeover = served.takeover(store, 0);
        assert_eq!(takeover.base(), &served.made[5].header);
        served.fill(&takeover, 5, 10_000, 1);
        finish(&takeover, &served.headers(6)).unwrap();
        served.check(store);
    });
}

/// Finishes a takeover by a range delta, which needs no proofs.
pub(super) fn finish(takeover: &RangeDeltaTakeover, headers: &[BatchHeader]) -> Result<(), StorageError> {
    let none = AccumulatorRangeProof::default();
    takeover.finish(&Ancestry { headers, proof: &none, genesis_proof: &none })
}

/// Goal: the changes of a range delta take no more bytes than in the deltas that they come from, so that these bound them.
#[test]
fn changes_have_the_bytes_that_they_have_in_their_delta() {
    let some = (0..40).flat_map(|i| [(account_key(i), account(u64::from(i) + 1)), (slot_key(i, 1), slot(7))]);
    let gone = (0..40).flat_map(|i| [(account_key(100 + i), None), (slot_key(i, 2), None)]);
    let with_code = [(account_key(99), contract(1, 2).0)];
    let entries: Vec<_> =
        some.chain(gone).chain(with_code).map(|(key, value)| DeltaEntry { key, value }).collect();
    let delta = Delta::new(entries.clone(), Vec::new()).unwrap();
    let (first, last, proof) = (Path::MIN, Path::MAX, Default::default());
    let chunk = RangeDeltaChunk { first, last, entries: BoundedVec::new(entries).unwrap(), proof };
    let around = delta.content().unwrap().len() - chunk.entry_bytes();
    assert!(around <= 8, "{around} bytes for two lengths");
}
