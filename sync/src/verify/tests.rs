use super::*;

fn batch(parts: Parts) -> RangeBatch {
    let blob = |part| parts.has(part).then(|| Blob::compress(BlobKind::Body, b"content").unwrap());
    RangeBatch {
        header: BatchHeader { timestamp_ms: 1, ..slipstream_testkit::header(1, Digest::ZERO) },
        body: blob(Parts::BODY),
        receipts: blob(Parts::RECEIPTS),
        delta: blob(Parts::DELTA),
        hints: None,
    }
}

fn range(batches: Vec<RangeBatch>) -> VerifiedRange {
    let info = LedgerInfo { timestamp_ms: 1, ..slipstream_testkit::info(0, 1) };
    let batches = batches.into_iter().map(|batch| (batch, None)).collect();
    VerifiedRange::again(slipstream_testkit::sign(info, &[]), batches)
}

/// Goal: a range in which one batch lacks a needed part does not count as having that part.
#[test]
fn a_range_has_what_all_of_its_batches_have() {
    let both = Parts::BODY.with(Parts::DELTA);
    let whole = range(vec![batch(both), batch(both)]);
    assert!(whole.has(both) && whole.has(Parts::BODY) && whole.has(Parts::DELTA));
    assert!(!whole.has(Parts::RECEIPTS) && !whole.has(both.with(Parts::RECEIPTS)));
    assert!(!range(vec![batch(both), batch(Parts::BODY)]).has(both));
}
