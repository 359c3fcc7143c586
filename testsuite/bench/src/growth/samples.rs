//! [`Samples`]: contents of one kind of blob, in two sets: one to train a dictionary on, and one to pack.

use std::{ops::RangeInclusive, path::Path};

use anyhow::{Context, Result};
use slipstream_executor::{execute, seal_hints};
use slipstream_storage::{StorageConfig, Store};
use slipstream_types::{BatchNumber, BlobKind, Body, codec};

use super::{KINDS, Size, chains::Chain, ways::GROUP_BATCHES};
use crate::mainnet::{self, Block};

/// The first block whose receipts contain no state root.
const BLOCK_MIN: u64 = 4_370_000;

/// The samples of one kind of blob.
pub(super) struct Samples {
    /// Traffic and kind, as in the names of figures.
    pub(super) name: String,
    pub(super) kind: BlobKind,
    pub(super) train: Vec<Vec<u8>>,
    /// Blobs to pack, in whole groups.
    pub(super) test: Vec<Vec<u8>>,
    /// Transactions of the batches that are packed.
    pub(super) transactions: u64,
}

/// A batch's content of one kind, and the batch's number of transactions.
type Content = (Vec<u8>, u64);

impl Samples {
    fn new(traffic: &str, kind: BlobKind, train: Vec<Content>, mut test: Vec<Content>) -> Samples {
        test.truncate(test.len() / GROUP_BATCHES * GROUP_BATCHES);
        Samples {
            name: format!("{traffic}.{}", kind.name()),
            kind,
            train: train.into_iter().map(|(content, _)| content).collect(),
            transactions: test.iter().map(|(_, transactions)| transactions).sum(),
            test: test.into_iter().map(|(content, _)| content).collect(),
        }
    }
}

/// Returns the blobs of a chain's store. The first half trains a dictionary, and the second half is packed.
///
/// # Errors
/// If a blob is damaged, or the disk fails.
pub(super) fn of_chain(chain: &Chain, size: &Size) -> Result<Vec<Samples>> {
    let store = Store::open(&StorageConfig::default(), &chain.dir)?;
    let middle = chain.batches / 2;
    let samples = |kind| {
        let train = read(&store, kind, chain.setup.batches + 1..=middle, size.train_bytes_max)?;
        let test = read(&store, kind, middle + 1..=chain.batches, size.test_bytes_max)?;
        Ok(Samples::new(chain.traffic.name(), kind, train, test))
    };
    let samples = KINDS.into_iter().map(samples).collect();
    store.close();
    samples
}

/// Reads the contents of a kind in a range of batches, from the first one, up to the limit in bytes.
fn read(
    store: &Store,
    kind: BlobKind,
    batches: RangeInclusive<u64>,
    bytes_max: usize,
) -> Result<Vec<Content>> {
    let mut blobs = store.blobs(kind, BatchNumber::new(*batches.start()), batches.clone().count());
    let (mut contents, mut bytes) = (Vec::new(), 0);
    for number in batches.map(BatchNumber::new) {
        // A batch may have no hints.
        let Some(blob) = blobs.of(number)? else { continue };
        let content = blob.content(kind)?;
        bytes += content.len();
        if bytes > bytes_max {
            break;
        }
        let header = store.header(number)?.with_context(|| format!("batch {number} has no header"))?;
        contents.push((content, header.tx_count.into()));
    }
    Ok(contents)
}

/// Returns mainnet blocks as batches: every other one trains a dictionary, and the rest is packed.
///
/// # Errors
/// If a block cannot be read or executed.
pub(super) fn of_mainnet(data: &Path) -> Result<Vec<Samples>> {
    let mut halves = [(); KINDS.len()].map(|()| [Vec::new(), Vec::new()]);
    for (index, block) in mainnet::load(data, BLOCK_MIN)?.iter().enumerate() {
        for (contents, content) in halves.iter_mut().zip(contents(block)?) {
            contents[index % 2].extend(content.map(|content| (content, block.transactions.len() as u64)));
        }
    }
    let samples = |(kind, [train, test]): (_, [_; 2])| Samples::new("mainnet", kind, train, test);
    Ok(KINDS.into_iter().zip(halves).map(samples).collect())
}

/// Returns the blobs that a block would have, in the order of [`KINDS`].
fn contents(block: &Block) -> Result<[Option<Vec<u8>>; KINDS.len()]> {
    let Block { env, transactions, state, .. } = block;
    let outcome = execute(state, env, transactions)?;
    let raws = transactions.iter().map(|transaction| transaction.raw.to_vec()).collect();
    let hints = seal_hints(&outcome, env.beneficiary, transactions);
    Ok([
        Some(Body::new(raws)?.content()?),
        Some(codec::encode("receipts", &outcome.receipts)?),
        Some(outcome.delta.content()?),
        hints.map(|hints| hints.content(BlobKind::Hints)).transpose()?,
    ])
}
