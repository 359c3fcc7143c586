//! A ledger to fill stores with: headers that follow each other over content that nobody has to execute.

use std::collections::BTreeMap;

use anyhow::Result;
use rand::{RngCore, SeedableRng, rngs::SmallRng};
use slipstream_storage::{CommitBatch, Store};
use slipstream_types::{
    Address, BatchHeader, Blob, BlobKind, ChainConfig, Delta, Digest, Genesis, RulesId, SecretKey, Validator,
    bounded::BoundedVec,
};

/// The parts of a batch and their bytes: about what 500 transfers make.
pub(crate) const PARTS: [(BlobKind, usize); 4] = [
    (BlobKind::Body, 64 << 10),
    (BlobKind::Receipts, 16 << 10),
    (BlobKind::Delta, 32 << 10),
    (BlobKind::Hints, 8 << 10),
];

/// The blobs of one batch, in the order of [`PARTS`]. Incompressible, as compressed content is.
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
    let validator =
        Validator { public_key: SecretKey::from_seed([1; 32]).public(), fee_recipient: Address::ZERO };
    let genesis = Genesis {
        chain: ChainConfig::default(),
        timestamp_ms: 0,
        validators: BoundedVec::new(vec![validator])?,
        accounts: BTreeMap::new(),
        ..Genesis::default()
    };
    Ok(store.initialize(&genesis)?)
}

/// Commits the next batch with this delta and, if given, these parts.
pub(crate) fn commit(store: &Store, delta: &Delta, parts: Option<&Parts>) -> Result<()> {
    let head = store.head()?;
    let speculation = store.speculate(delta)?;
    let header = BatchHeader {
        number: head.header.number.next(),
        parent: head.digest,
        epoch: head.header.epoch,
        rules: RulesId::GENESIS,
        timestamp_ms: head.header.timestamp_ms + 100,
        proposer: Address::ZERO,
        tx_count: 0,
        tx_bytes: 0,
        gas_used: 0,
        delta_bytes: 0,
        transactions_root: Digest::ZERO,
        receipts_root: Digest::ZERO,
        delta_digest: Digest::ZERO,
        state_root: speculation.root(),
    };
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
