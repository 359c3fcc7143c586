use slipstream_types::Address;

use super::*;

fn batch(parts: Parts) -> RangeBatch {
    let blob = |part| parts.has(part).then(|| Blob::compress(BlobKind::Body, b"content").unwrap());
    let header = BatchHeader {
        number: BatchNumber::new(1),
        epoch: Epoch(0),
        rules: slipstream_types::RulesId::GENESIS,
        parent: Digest::ZERO,
        timestamp_ms: 1,
        proposer: Address::ZERO,
        tx_count: 0,
        tx_bytes: 0,
        gas_used: 0,
        delta_bytes: 0,
        transactions_root: Digest::ZERO,
        receipts_root: Digest::ZERO,
        delta_digest: Digest::ZERO,
        state_root: Digest::ZERO,
    };
    RangeBatch {
        header,
        body: blob(Parts::BODY),
        receipts: blob(Parts::RECEIPTS),
        delta: blob(Parts::DELTA),
        hints: None,
    }
}

fn range(batches: Vec<RangeBatch>) -> VerifiedRange {
    let info = LedgerInfo {
        epoch: Epoch(0),
        number: BatchNumber::new(1),
        accumulator_root: Digest::ZERO,
        state_root: Digest::ZERO,
        timestamp_ms: 1,
        next_validators: None,
    };
    let batches = batches.into_iter().map(|batch| (batch, None)).collect();
    VerifiedRange::again(Certificate::signed(info, 0, []).unwrap(), batches)
}

/// Goal: a range in which one batch lacks one part that is needed now is not taken for one that has all.
#[test]
fn a_range_has_what_all_of_its_batches_have() {
    let both = Parts::BODY.with(Parts::DELTA);
    let whole = range(vec![batch(both), batch(both)]);
    assert!(whole.has(both) && whole.has(Parts::BODY) && whole.has(Parts::DELTA));
    assert!(!whole.has(Parts::RECEIPTS) && !whole.has(both.with(Parts::RECEIPTS)));
    assert!(!range(vec![batch(both), batch(Parts::BODY)]).has(both));
}
