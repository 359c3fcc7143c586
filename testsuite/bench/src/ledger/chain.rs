//! A ledger to fill stores with: linked headers over content that is never executed.

use anyhow::Result;
use rand::{RngCore, SeedableRng, rngs::SmallRng};
use slipstream_storage::{CommitBatch, Store};
use slipstream_testkit::{genesis, keys, next_header};
use slipstream_types::{Blob, BlobKind, Delta};

/// The parts of a batch and their bytes: about those of 500 transfers.
pub(crate) const PARTS: [(BlobKind, usize); 4] = [
    (BlobKind::Body, 64 << 10),
    (BlobKind::Receipts, 16 << 10),
    (BlobKind::Delta, 32 << 10),
    (BlobKind::Hints, 8 << 10),
];

/// The blobs of one batch, in the order of [`PARTS`]. Incompressible, like compressed content.
pub(crate) struct Parts(pub(crate) [Blob; 4]);

impl Parts {
    pub(crate) fn new(number: u64) -> Result<Parts> {
        let mut random = SmallRng::seed_from_u64(number);
        let mut blobs = Vec::new();
        for (kind, bytes) in PARTS {
            let mut content = vec![0; bytes];
            random.fill_bytes(&mut content);
            blobs.push(Blob::compress(kind, &content)?);
        }
        let blobs = <[Blob; 4]>::try_from(blobs).expect("one blob for each part");
        Ok(Parts(blobs))
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|blob| blob.len()).sum()
    }
}

/// Writes the genesis into an empty store.
pub(crate) fn initialize(store: &Store) -> Result<()> {
    Ok(store.initialize(&genesis(&keys([1]), 0))?)
}

/// Commits the next batch with this delta and, if given, these parts.
pub(crate) fn commit(store: &Store, delta: &Delta, parts: Option<&Parts>) -> Result<()> {
    let head = store.head()?;
    let speculation = store.speculate(delta)?;
    let header = next_header(&head.header, speculation.root());
    let batch = CommitBatch::new(&header, delta);
    let batch = match parts {
        None => batch,
        Some(Parts([body, receipts, delta, hints])) => CommitBatch {
            body: Some(body),
            receipts: Some(receipts),
            delta_blob: Some(delta),
            hints: Some(hints),
            ..batch
        },
    };
    Ok(store.commit(batch, Some(speculation))?)
}
