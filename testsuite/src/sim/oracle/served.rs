//! What a node serves is the ledger's, and it serves what it promises.

use anyhow::{Result, ensure};
use slipstream_storage::{Store, VerifiedChunk};
use slipstream_sync::{
    answer,
    protocol::{ANSWER_BYTES_MAX, Parts, Range, RangeRequest, Request, Summary},
};
use slipstream_types::{BatchNumber, Blob, BlobKind, codec};

use super::{
    super::chain::Chain,
    expect::{expect_certificate, expect_parts},
};

/// What a store serves is the ledger's.
pub(super) fn expect_served(store: &Store) -> Result<()> {
    let ask = |request: &Request| answer(store, &codec::encode("sync request", request)?).map_err(refused);
    let summary: Summary = codec::decode("summary", &ask(&Request::Summary)?, ANSWER_BYTES_MAX)?;
    let Some(head) = &summary.head else { return Ok(()) };
    expect_certificate(&head.info)?;
    let last = head.info.number;
    let parts = [
        (Parts::BODY, summary.bodies_from),
        (Parts::RECEIPTS, summary.receipts_from),
        (Parts::DELTA, summary.deltas_from),
    ];
    for (parts, from) in parts {
        let Some(first) = from.map(|from| from.max(BatchNumber(1))).filter(|first| *first <= last) else {
            continue;
        };
        let request = RangeRequest { first, batches_max: 1_024, bytes_max: 16 << 20, parts };
        let range: Range = codec::decode("range", &ask(&Request::Range(request))?, ANSWER_BYTES_MAX)?;
        expect_certificate(&range.certificate.info)?;
        ensure!(range.batches.len() as u64 == last.0 - first.0 + 1, "what it promises is not there");
        range.batches.iter().try_for_each(expect_parts)?;
    }
    for offered in summary.snapshots.iter() {
        let header = Chain::canonical().header(offered.number)?;
        let (first, last) = (slipstream_types::Path::MIN, slipstream_types::Path::MAX);
        let request = Request::Chunk { number: offered.number, first, last, bytes_max: 4 << 20 };
        let content = Blob::from_bytes(ask(&request)?)?.content(BlobKind::StateChunk)?;
        VerifiedChunk::open(content, header.state_root)?;
    }
    Ok(())
}

fn refused(refusal: slipstream_network::Refusal) -> anyhow::Error {
    anyhow::anyhow!("it refuses what it promises: {refusal}")
}
