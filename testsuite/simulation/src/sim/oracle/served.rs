//! Checks that a node serves the ledger, and all that it promises.

use anyhow::{Context, Result, ensure};
use slipstream_storage::{PruneConfig, Store, VerifiedChunk, Window};
use slipstream_sync::{
    answer,
    protocol::{ANSWER_BYTES_MAX, Parts, Range, RangeDeltaRequest, RangeRequest, Request, Summary},
};
use slipstream_types::{BatchNumber, Blob, BlobKind, Delta, Path, codec};

use super::{
    super::{
        chain::Chain,
        world::{To, World},
    },
    expect::{expect_certificate, expect_parts},
};

impl World {
    /// Checks that a node that pruned keeps its windows, and serves nothing below them.
    pub(in super::super) fn check_pruned(&mut self, to: To) -> Result<()> {
        let node = to.node;
        let prune = self.nodes[node].plan.storage.prune;
        let Some(up) = self.process(to) else { return Ok(()) };
        if up.has_failed() {
            return Ok(());
        }
        expect_windows(&up.store, &prune)
            .with_context(|| format!("safety: the store of node {node} after pruning"))
    }
}

/// Checks that a store's answers are the ledger's.
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
        let Some(first) = from.map(|from| from.max(BatchNumber::new(1))).filter(|first| *first <= last)
        else {
            continue;
        };
        let request = RangeRequest { first, batches_max: 1_024, bytes_max: 16 << 20, parts };
        let range: Range = codec::decode("range", &ask(&Request::Range(request))?, ANSWER_BYTES_MAX)?;
        expect_certificate(&range.certificate.info)?;
        ensure!(
            range.batches.len() as u64 == last.since(first) + 1,
            "it does not serve all batches that it promises"
        );
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

/// Checks that a store's past states are the ledger's. Each state is compared at the keys that its own batch and the
/// next batch changed.
pub(super) fn expect_states(store: &Store) -> Result<()> {
    let ledger = &Chain::canonical().store;
    let head = store.head()?.header.number;
    for number in store.states_from()?.through(head) {
        let (Some(found), Some(expected)) = (store.view_of(number)?, ledger.view_of(number)?) else {
            anyhow::bail!("the state of batch {number} is promised but missing");
        };
        let mut keys = Vec::new();
        for changed in [number, number.next()] {
            let Some(blob) = ledger.blob(BlobKind::Delta, changed)? else { continue };
            keys.extend(Delta::open(&blob)?.entries().iter().map(|entry| entry.key));
        }
        ensure!(
            found.rows(&keys)? == expected.rows(&keys)?,
            "the state of batch {number} differs from the ledger"
        );
    }
    Ok(())
}

fn refused(refusal: slipstream_network::Refusal) -> anyhow::Error {
    anyhow::anyhow!("it refuses a request for data that it promises: {refusal}")
}

/// Checks that the served batches begin exactly at the windows.
fn expect_windows(store: &Store, prune: &PruneConfig) -> Result<()> {
    let ask = |request: &Request| answer(store, &codec::encode("sync request", request)?).map_err(refused);
    let summary: Summary = codec::decode("summary", &ask(&Request::Summary)?, ANSWER_BYTES_MAX)?;
    let head = store.head()?.header.number;
    let kinds = [
        (Parts::BODY, BlobKind::Body, prune.bodies, summary.bodies_from),
        (Parts::RECEIPTS, BlobKind::Receipts, prune.receipts, summary.receipts_from),
        (Parts::DELTA, BlobKind::Delta, prune.deltas, summary.deltas_from),
    ];
    for (parts, kind, window, from) in kinds {
        let name = kind.name();
        let least = match window {
            Window::Batches(batches) => head.next().before(batches),
            _ => BatchNumber::GENESIS,
        };
        ensure!(
            from.is_none_or(|from| from >= least),
            "its {name} window of {window} ends with batch {head} but begins with {from:?}"
        );
        let Some(first) =
            from.and_then(BatchNumber::previous).filter(|before| *before > BatchNumber::GENESIS)
        else {
            continue;
        };

        let range = RangeRequest { first, batches_max: 1, bytes_max: 1 << 20, parts };
        ensure!(
            ask(&Request::Range(range)).is_err(),
            "the {name} of batch {first} is served, though it is below the window"
        );
        ensure!(
            store.blob(kind, first)?.is_none(),
            "the {name} of batch {first} is stored, though it is below the window"
        );
    }
    let Some(from) = summary.deltas_from.and_then(BatchNumber::previous).and_then(BatchNumber::previous)
    else {
        return Ok(());
    };
    for offered in summary.snapshots.iter().filter(|offered| offered.number > from) {
        let (first, last) = (Path::MIN, Path::MAX);
        let request = RangeDeltaRequest { from, to: offered.number, first, last, bytes_max: 1 << 20 };
        let served = ask(&Request::RangeDelta(request)).is_ok();
        ensure!(
            !served,
            "a range delta is served that includes batch {}, whose delta is not kept",
            from.next()
        );
    }
    Ok(())
}
