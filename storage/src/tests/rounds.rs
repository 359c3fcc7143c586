//! Goal: the rows of one large account cost a few round trips, not one for each of their chunks, whichever way the
//! state arrives.

use super::{
    range_delta::{MERGE_BYTES, finish},
    restore::target,
    *,
};
use crate::{EncodedChunk, Span, Takeover, VerifiedChunk};

/// Slots of the account: sixteen times what a chunk holds.
const SLOTS: u64 = 6_000;
const CHUNK_BYTES: usize = 32 << 10;
/// The last batch, which has a snapshot.
const LAST: BatchNumber = BatchNumber::new(5);

/// A ledger whose first batch writes the slots, and its headers.
fn served() -> (Fixture, Ledger, Vec<BatchHeader>) {
    let config = StorageConfig { snapshot_interval_batches: LAST.get(), ..config() };
    let fixture = Fixture::initialized(&config, false);
    let mut ledger = Ledger::new();
    let key = |i: u64| StateKey::Slot(address(0xbb), keccak256(i.to_be_bytes()));
    let slots: Vec<_> = (0..SLOTS).map(|i| (key(i), slot(i + 1))).collect();
    let mut headers = vec![ledger.commit(fixture.store(), &slots).header];
    for n in 2..=LAST.get() {
        headers.push(ledger.commit(fixture.store(), &[(account_key(n as u8), account(n))]).header);
    }
    (fixture, ledger, headers)
}

/// Requests everything that is missing at once, until nothing is. Returns the number of rounds and of chunks.
fn rounds(takeover: &impl Takeover, add: impl Fn(Span)) -> (usize, usize) {
    let (mut rounds, mut chunks) = (0, 0);
    loop {
        let missing = takeover.missing(usize::MAX);
        if missing.is_empty() {
            return (rounds, chunks);
        }
        rounds += 1;
        chunks += missing.len();
        missing.into_iter().for_each(&add);
    }
}

#[test]
fn a_large_account_takes_few_rounds_of_a_range_delta() {
    let (source, _, headers) = served();
    let snapshot = source.store().snapshot(LAST).unwrap().unwrap();
    let merged = source.store().range_delta(BatchNumber::GENESIS, LAST, MERGE_BYTES).unwrap();
    let behind = Fixture::initialized(&config(), false);
    let takeover =
        behind.store().take_range_delta(&target(source.store(), LAST.get()), 4, MERGE_BYTES).unwrap();
    let (rounds, chunks) = rounds(&takeover, |span| {
        let chunk = snapshot.range_delta_chunk(&merged, span.first, span.last, CHUNK_BYTES).unwrap();
        takeover.add(chunk.check().unwrap()).unwrap();
    });
    assert!(rounds <= 4 && chunks >= 16 + 15, "{chunks} chunks in {rounds} rounds");
    finish(&takeover, &headers).unwrap();
    assert_eq!(behind.store().head().unwrap().header, headers[headers.len() - 1]);
}

#[test]
fn a_large_account_takes_few_rounds_of_a_restore() {
    let (source, ledger, _) = served();
    let snapshot = source.store().snapshot(LAST).unwrap().unwrap();
    let behind = Fixture::initialized(&config(), false);
    let restore = behind.store().restore(&target(source.store(), LAST.get())).unwrap();
    let (rounds, chunks) = rounds(&restore, |span| {
        let made = snapshot.encoded_chunk(span.first, span.last, CHUNK_BYTES).unwrap();
        let EncodedChunk { content, .. } = made;
        restore.add(VerifiedChunk::open(content, snapshot.info().state_root).unwrap()).unwrap();
    });
    assert!(rounds <= 5 && chunks >= 64 + 15, "{chunks} chunks in {rounds} rounds");
    assert_eq!(restore.rows(), ledger.state.len() as u64);
}
