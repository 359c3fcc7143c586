//! Goal: a chunk can bring only the truth, and a refused one leaves no trace.

use slipstream_types::{
    Path, codec,
    tree::{Sibling, SiblingNode},
};

use super::range_delta::finish;
use super::{
    range_delta::{MERGE_BYTES, Served},
    restore::target,
    *,
};
use crate::{
    ChunkError, PruneConfig, RangeDeltaChunk, RangeDeltaError, RangeDeltaTakeover, StorageError, Takeover,
};

/// The chunk in the middle of the range after batch 10. It lacks the keys whose value is again that of batch 10: the
/// chunk is as true without them.
fn middle(served: &Served) -> RangeDeltaChunk {
    let merged =
        served.source.store().range_delta(BatchNumber::new(10), BatchNumber::new(30), MERGE_BYTES).unwrap();
    let (mut first, mut last) = (Path::MIN, Path::MAX);
    (first.0[0], last.0[0]) = (0x40, 0xb0);
    let chunk = served.snapshot().range_delta_chunk(&merged, first, last, 1 << 20).unwrap();
    let mut before = Ledger::new();
    served.made[..10].iter().for_each(|made| before.advance(made));
    let chunk = with_entries(&chunk, |entries| {
        entries.retain(|entry| before.state.get(&entry.key).copied() != entry.value);
    });
    assert!(chunk.entries.len() > 10 && chunk.last == last && !chunk.proof.left.is_empty());
    chunk
}

fn refused(error: StorageError, test: impl Fn(&RangeDeltaError) -> bool) {
    assert!(matches!(&error, StorageError::RangeDelta(inner) if test(inner)), "{error}");
}

/// Checks that a peer is blamed for a chunk and nothing of it is kept.
fn lie(takeover: &RangeDeltaTakeover, chunk: &RangeDeltaChunk, what: &str) {
    let before = (takeover.missing(9), takeover.rows(), takeover.missing_codes(9).unwrap());
    let error = match chunk.check() {
        Ok(checked) => takeover.add(checked).expect_err(what),
        Err(error) => RangeDeltaError::Chunk(error).into(),
    };
    assert!(error.is_bad_supply() && !error.is_retryable(), "{what}: {error}");
    refused(error, |error| matches!(error, RangeDeltaError::Chunk(_)));
    assert_eq!(before, (takeover.missing(9), takeover.rows(), takeover.missing_codes(9).unwrap()), "{what}");
}

fn with_entries(chunk: &RangeDeltaChunk, change: impl FnOnce(&mut Vec<DeltaEntry>)) -> RangeDeltaChunk {
    let mut entries = chunk.entries.clone().into_inner();
    change(&mut entries);
    entries.sort_by_key(|entry| entry.key.path());
    RangeDeltaChunk { entries: BoundedVec::new(entries).unwrap(), ..chunk.clone() }
}

#[test]
fn every_false_entry_is_refused() {
    let served = Served::of_thirty();
    let fixture = Fixture::initialized(&config(), false);
    served.replay(fixture.store(), 10);
    let (takeover, chunk) = (served.takeover(fixture.store(), 0), middle(&served));
    for i in 0..chunk.entries.len() {
        let left_out = with_entries(&chunk, |entries| {
            entries.remove(i);
        });
        lie(&takeover, &left_out, "an entry is left out");
        let altered = with_entries(&chunk, |entries| {
            entries[i].value = match (entries[i].key, entries[i].value) {
                (_, Some(_)) => None,
                (StateKey::Account(_), None) => account(3),
                (StateKey::Slot(..), None) => slot(3),
            };
        });
        lie(&takeover, &altered, "a deletion for a value, a value for a deletion");
        let misfit = with_entries(&chunk, |entries| entries[i].value = Some(StateValue::Slot(U256::ZERO)));
        lie(&takeover, &misfit, "a value that no row may have");
        lie(&takeover, &with_entries(&chunk, |entries| entries.push(entries[i])), "a key that stands twice");
    }
    let inside = |key: &StateKey| chunk.first <= key.path() && key.path() <= chunk.last;
    let is_in = |key: &StateKey| chunk.entries.iter().any(|entry| entry.key == *key);
    let surplus = (0..=255).map(account_key).find(|key| inside(key) && !is_in(key)).unwrap();
    let added = with_entries(&chunk, |entries| entries.push(DeltaEntry { key: surplus, value: account(1) }));
    lie(&takeover, &added, "a row that nobody made");
    let outside = (0..=255).map(account_key).find(|key| !inside(key)).unwrap();
    let added = with_entries(&chunk, |entries| entries.push(DeltaEntry { key: outside, value: account(1) }));
    lie(&takeover, &added, "a row outside of the ends");

    for (side, at) in
        (0..chunk.proof.left.len()).map(|at| (0, at)).chain((0..chunk.proof.right.len()).map(|at| (1, at)))
    {
        let forged = |change: &dyn Fn(&mut Vec<Sibling>)| {
            let mut forged = chunk.clone();
            let siblings = if side == 0 { &mut forged.proof.left } else { &mut forged.proof.right };
            let mut altered = siblings.clone().into_inner();
            change(&mut altered);
            *siblings = BoundedVec::new(altered).unwrap();
            forged
        };
        lie(
            &takeover,
            &forged(&|siblings| siblings[at].node = SiblingNode::Inner(Digest([7; 32]))),
            "a sibling",
        );
        lie(&takeover, &forged(&|siblings| siblings.truncate(at)), "a sibling left out");
    }
    let swapped = RangeDeltaChunk { first: chunk.last, last: chunk.first, ..chunk.clone() };
    lie(&takeover, &swapped, "swapped ends");

    // After all these lies, the true chunk is accepted.
    takeover.add(chunk.check().unwrap()).unwrap();
    assert_eq!(takeover.rows(), chunk.entries.len() as u64);
}

#[test]
fn no_other_bytes_are_the_same_chunk() {
    let served = Served::of_thirty();
    let fixture = Fixture::initialized(&config(), false);
    served.replay(fixture.store(), 10);
    let (takeover, chunk) = (served.takeover(fixture.store(), 0), middle(&served));
    let encoded = codec::encode("chunk", &chunk).unwrap();
    // Other ends may be true as well: not all rows beside the range changed.
    for at in 64..encoded.len() {
        let mut flipped = encoded.clone();
        flipped[at] ^= 1 << (at % 8);
        if let Ok(flipped) = codec::decode::<RangeDeltaChunk>("chunk", &flipped, 1 << 20) {
            lie(&takeover, &flipped, &format!("bit flipped at {at}"));
        }
    }
}

#[test]
fn chunks_of_another_base_or_target_are_refused() {
    let served = Served::of_thirty();
    let fixture = Fixture::initialized(&config(), false);
    served.replay(fixture.store(), 10);
    let takeover = served.takeover(fixture.store(), 0);
    let store = served.source.store();
    let later = store.range_delta(BatchNumber::new(20), BatchNumber::new(30), MERGE_BYTES).unwrap();
    let chunk = served.snapshot().range_delta_chunk(&later, Path::MIN, Path::MAX, 1 << 20).unwrap();
    lie(&takeover, &chunk, "changes that begin after the head");
    let other = store.range_delta(BatchNumber::new(10), BatchNumber::new(29), MERGE_BYTES).unwrap();
    let error = served.snapshot().range_delta_chunk(&other, Path::MIN, Path::MAX, 1 << 20).unwrap_err();
    refused(error, |error| matches!(error, RangeDeltaError::OtherSnapshot { .. }));
}

#[test]
fn an_advance_takes_each_path_once_and_ends_when_it_has_all() {
    let served = Served::of_thirty();
    let fixture = Fixture::initialized(&config(), false);
    let store = fixture.store();
    served.replay(store, 10);
    let takeover = served.takeover(store, 0);
    let refusal = |headers: &[BatchHeader]| finish(&takeover, headers).unwrap_err();
    refused(refusal(&served.headers(10)), |error| matches!(error, RangeDeltaError::RowsMissing { .. }));

    let chunk = middle(&served);
    takeover.add(chunk.check().unwrap()).unwrap();
    let merged =
        served.source.store().range_delta(BatchNumber::new(10), BatchNumber::new(30), MERGE_BYTES).unwrap();
    let whole = served.snapshot().range_delta_chunk(&merged, Path::MIN, Path::MAX, 1 << 20).unwrap();
    for again in [&chunk, &whole] {
        let error = takeover.add(again.check().unwrap()).unwrap_err();
        assert!(!error.is_bad_supply(), "{error}");
        refused(error, |error| matches!(error, RangeDeltaError::NotMissing { .. }));
    }
    for span in takeover.missing(9) {
        let chunk = served.snapshot().range_delta_chunk(&merged, span.first, span.last, 1 << 20).unwrap();
        takeover.add(chunk.check().unwrap()).unwrap();
    }
    assert!(takeover.missing(1).is_empty());
    refused(takeover.add_code(b"other").unwrap_err(), |error| {
        matches!(error, RangeDeltaError::UnwantedCode { .. })
    });
    finish(&takeover, &served.headers(10)).unwrap();
    served.check(store);
    refused(takeover.add(chunk.check().unwrap()).unwrap_err(), |e| {
        matches!(e, RangeDeltaError::NotMissing { .. })
    });
    assert!(finish(&takeover, &served.headers(10)).unwrap_err().is_retryable(), "the head moved: by itself");
}

#[test]
fn code_and_headers_are_due_at_the_end() {
    let served = Served::of_thirty();
    let fixture = Fixture::initialized(&config(), false);
    let store = fixture.store();
    let takeover = served.takeover(store, 0);
    let merged =
        served.source.store().range_delta(BatchNumber::GENESIS, BatchNumber::new(30), MERGE_BYTES).unwrap();
    let chunk = served.snapshot().range_delta_chunk(&merged, Path::MIN, Path::MAX, 1 << 20).unwrap();
    takeover.add(chunk.check().unwrap()).unwrap();
    let refuse = |headers: &[BatchHeader], test: fn(&RangeDeltaError) -> bool| {
        refused(finish(&takeover, headers).unwrap_err(), test);
        assert_eq!(store.head().unwrap().header.number, BatchNumber::GENESIS);
    };
    let headers = served.headers(0);
    refuse(&headers, |error| matches!(error, RangeDeltaError::CodeMissing { .. }));
    for hash in takeover.missing_codes(9).unwrap() {
        let code = served.snapshot().code(&hash).unwrap().unwrap();
        takeover.add_code(&code).unwrap();
        assert!(takeover.add_code(&code).is_err(), "no longer missing");
    }
    let bad: fn(&RangeDeltaError) -> bool = |error| matches!(error, RangeDeltaError::BadHeaders { .. });
    refuse(&[], bad);
    refuse(&headers[1..], bad);
    refuse(&headers[..29], bad);
    let mut altered = headers.clone();
    altered[7].gas_used += 1;
    refuse(&altered, bad);
    altered.remove(7);
    refuse(&altered, bad);
    finish(&takeover, &headers).unwrap();
    served.check(store);
}

/// Goal: a certificate of another ledger with the same state does not make its headers this ledger's.
#[test]
fn headers_lead_to_the_certified_ledger_or_nowhere() {
    let served = Served::of_thirty();
    let fixture = Fixture::initialized(&config(), false);
    let mut forged = target(served.source.store(), 30);
    forged.header.gas_used += 1;
    let takeover = fixture.store().take_range_delta(&forged, 0, MERGE_BYTES).unwrap();
    served.fill(&takeover, 0, 1 << 20, 1);
    let mut headers = served.headers(0);
    headers[29].gas_used += 1;
    refused(finish(&takeover, &headers).unwrap_err(), |error| {
        matches!(error, RangeDeltaError::BadHeaders { .. })
    });
    forged.header.state_root = Digest::ZERO;
    let error = fixture.store().take_range_delta(&forged, 0, MERGE_BYTES).err().unwrap();
    assert!(matches!(error, StorageError::WrongCertificate { .. }), "{error}");
}

#[test]
fn limits_are_kept() {
    let served = Served::of_thirty();
    let prune = PruneConfig::of_batches([0, 0, 20, 0]);
    let fixture = Fixture::initialized(&StorageConfig { prune, ..config() }, false);
    let store = fixture.store();
    served.replay(store, 30);
    let merge = |from: u64, to: u64, bytes_max: u64| {
        store.range_delta(BatchNumber::new(from), BatchNumber::new(to), bytes_max)
    };
    store.prune().unwrap();
    merge(10, 30, MERGE_BYTES).unwrap();
    let bytes = merge(10, 30, MERGE_BYTES).unwrap().bytes();
    merge(10, 30, bytes).unwrap();
    refused(merge(10, 30, bytes - 1).unwrap_err(), |error| matches!(error, RangeDeltaError::TooLarge { .. }));
    for (from, to) in [(9, 30), (10, 31), (0, 5)] {
        refused(merge(from, to, MERGE_BYTES).unwrap_err(), |error| {
            matches!(error, RangeDeltaError::NotKept { .. })
        });
    }
    for (from, to) in [(30, 30), (30, 20)] {
        refused(merge(from, to, MERGE_BYTES).unwrap_err(), |error| {
            matches!(error, RangeDeltaError::EmptyRange { .. })
        });
    }
    let error = store.take_range_delta(&target(served.source.store(), 30), 0, MERGE_BYTES).err().unwrap();
    refused(error, |error| matches!(error, RangeDeltaError::NotAhead { .. }));

    let behind = Fixture::initialized(&config(), false);
    let mut far = target(served.source.store(), 30);
    let distant = BatchNumber::new(crate::RANGE_DELTA_BATCHES_MAX + 1);
    (far.header.number, far.certificate.info.number) = (distant, distant);
    let error = behind.store().take_range_delta(&far, 0, MERGE_BYTES).err().unwrap();
    refused(error, |error| matches!(error, RangeDeltaError::TooFar { .. }));

    let chunk = {
        let merged = served
            .source
            .store()
            .range_delta(BatchNumber::GENESIS, BatchNumber::new(30), MERGE_BYTES)
            .unwrap();
        served.snapshot().range_delta_chunk(&merged, Path::MIN, Path::MAX, 1 << 20).unwrap()
    };
    let small = behind.store().take_range_delta(&target(served.source.store(), 30), 0, 1_000).unwrap();
    let error = small.add(chunk.check().unwrap()).unwrap_err();
    assert!(!error.is_bad_supply());
    refused(error, |error| matches!(error, RangeDeltaError::OverBudget { .. }));
    assert_eq!(small.rows(), 0);
    let checked = chunk.check().unwrap();
    assert_eq!((checked.len(), checked.is_empty()), (chunk.entries.len(), false));
    assert!(matches!(RangeDeltaChunk { first: Path::MAX, ..chunk }.check(), Err(ChunkError::Range(_))));
}
