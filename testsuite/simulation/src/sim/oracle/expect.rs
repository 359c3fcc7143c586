//! Comparisons of answers, batches, rows and code with the ledger.

use anyhow::{Context, Result, ensure};
use slipstream_storage::{Span, Store, VerifiedChunk};
use slipstream_sync::{
    protocol::{ANSWER_BYTES_MAX, Codes, Parts, RangeBatch, RangeRequest},
    verify::VerifiedRange,
};
use slipstream_types::{BatchNumber, Blob, BlobKind, Delta, Digest, StateKey, codec, keccak256};

use super::super::chain::Chain;

/// Checks that a verified range is as long as required, and equals the ledger.
pub(super) fn expect_range(range: &VerifiedRange, asked: Option<(&RangeRequest, u64)>) -> Result<()> {
    expect_certificate(&range.certificate().info)?;
    let batches = range.batches();
    for batch in batches {
        expect_parts(batch)?;
    }
    let Some((request, due)) = asked else { return Ok(()) };
    let first = batches.first().map(|batch| batch.header.number);
    ensure!(
        first == Some(request.first),
        "the range begins with {first:?}, but the request was for {}",
        request.first
    );
    let parts = |batch: &RangeBatch| {
        let has = [
            (Parts::BODY, batch.body.is_some()),
            (Parts::RECEIPTS, batch.receipts.is_some()),
            (Parts::DELTA, batch.delta.is_some()),
        ];
        has.into_iter().all(|(part, is_there)| is_there || !request.parts.has(part))
    };
    ensure!(batches.iter().all(parts), "the range lacks requested parts");
    let bytes: usize = batches.iter().map(RangeBatch::certified_bytes).sum();
    let wanted = u64::from(request.batches_max).min(due);
    let is_long = batches.len() as u64 >= wanted || bytes >= request.bytes_max as usize;
    ensure!(is_long, "the range has {} batches, but {wanted} were due", batches.len());
    Ok(())
}

pub(super) fn expect_certificate(info: &slipstream_types::LedgerInfo) -> Result<()> {
    let made = Chain::canonical().batch(info.number).map(|made| &made.certificate.info);
    ensure!(made == Some(info), "a certificate of batch {} differs from the ledger", info.number);
    Ok(())
}

pub(super) fn expect_parts(batch: &RangeBatch) -> Result<()> {
    let number = batch.header.number;
    ensure!(batch.header == Chain::canonical().header(number)?, "batch {number} has another header");
    let parts = [
        (BlobKind::Body, &batch.body),
        (BlobKind::Receipts, &batch.receipts),
        (BlobKind::Delta, &batch.delta),
    ];
    for (kind, blob) in parts {
        if let Some(blob) = blob {
            expect_blob(kind, number, blob)?;
        }
    }
    Ok(())
}

/// Checks that the content is the ledger's; its compression is up to the sender.
pub(super) fn expect_blob(kind: BlobKind, number: BatchNumber, blob: &Blob) -> Result<()> {
    let made = Chain::canonical().store.blob(kind, number)?.context("the ledger lacks a blob")?;
    let is_same = made == *blob || made.content(kind)? == blob.content(kind)?;
    ensure!(is_same, "the {} of batch {number} differs from the ledger", kind.name());
    Ok(())
}

/// Checks that every stored part of a batch is the ledger's.
pub(super) fn expect_batch(store: &Store, number: BatchNumber) -> Result<()> {
    if let Some(header) = store.header(number)? {
        ensure!(header == Chain::canonical().header(number)?, "batch {number} has another header");
    }
    if number == BatchNumber::GENESIS {
        return Ok(());
    }
    if let Some(certificate) = store.certificate(number)? {
        expect_certificate(&certificate.info)?;
    }
    for kind in [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta] {
        if let Some(blob) = store.blob(kind, number)? {
            expect_blob(kind, number, &blob)?;
        }
    }
    Ok(())
}

/// Returns the keys that the batches after `after`, up to `last`, touched.
pub(super) fn changed(after: BatchNumber, last: BatchNumber) -> Result<Vec<StateKey>> {
    let chain = Chain::canonical();
    let mut keys = Vec::new();
    for number in after.next().through(last) {
        let made = chain.batch(number).context("the head is not in the ledger")?;
        keys.extend(made.delta.entries().iter().map(|entry| entry.key));
    }
    Ok(keys)
}

/// Checks that the rows of these keys, and the root over all rows, are the ledger's.
pub(super) fn expect_rows(store: &Store, number: BatchNumber, keys: &[StateKey]) -> Result<()> {
    let chain = Chain::canonical();
    let state = chain.state(number);
    for (key, row) in keys.iter().zip(store.view()?.rows(keys)?) {
        ensure!(
            state.get(key).copied() == row,
            "the row of {key:?} at batch {number} differs from the ledger: {row:?}"
        );
    }
    let root = store.speculate(&Delta::default())?.root();
    let expected = chain.header(number)?.state_root;
    ensure!(root == expected, "the state root is {root} at batch {number}, but the ledger's is {expected}");
    Ok(())
}

pub(super) fn expect_chunk(bytes: &[u8], span: Span, number: BatchNumber) -> Result<()> {
    let root = Chain::canonical().header(number)?.state_root;
    let content = Blob::from_bytes(bytes.to_vec())?.content(BlobKind::StateChunk)?;
    let chunk = VerifiedChunk::open(content, root)?;
    ensure!(chunk.first() == span.first && chunk.last() <= span.last, "the chunk has rows of another range");
    Ok(())
}

pub(super) fn expect_codes(bytes: &[u8], hashes: &[Digest]) -> Result<()> {
    let codes: Codes = codec::decode("codes", bytes, ANSWER_BYTES_MAX)?;
    let found: Vec<Digest> = codes.codes.iter().map(|code| Digest::from(keccak256(&code[..]))).collect();
    ensure!(found == hashes, "the answer has code with another hash");
    Ok(())
}
