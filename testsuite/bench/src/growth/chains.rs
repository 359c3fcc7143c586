//! [`Chain`]: a ledger of one traffic, in a directory as a node stores it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use slipstream_executor::HintsMode;
use slipstream_storage::{StorageConfig, Store};
use slipstream_types::{BatchNumber, BlobKind};

use super::{KINDS, Size};
use crate::harness::{
    chain::{Maker, Source, one_validator},
    workload::{BATCH_TRANSACTIONS, Signer, Workload},
};
use slipnet::progress::Progress;

/// The contents of a chain's batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Traffic {
    /// Plain transfers in full batches.
    Transfers,
    /// Transfers of one ERC-20 token in full batches.
    Erc20,
    /// One plain transfer per batch, which shows the fixed bytes of a batch.
    Single,
}

impl Traffic {
    pub(super) const ALL: &'static [Traffic] = <Traffic as strum::VariantArray>::VARIANTS;

    /// Returns the traffic's name in figures.
    pub(super) fn name(self) -> &'static str {
        self.into()
    }

    fn batch_transactions(self) -> usize {
        match self {
            Traffic::Transfers | Traffic::Erc20 => BATCH_TRANSACTIONS,
            Traffic::Single => 1,
        }
    }
}

/// A finished chain with a closed store.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) traffic: Traffic,
    pub(super) dir: PathBuf,
    /// The number of batches after the genesis.
    pub(super) batches: u64,
    pub(super) transactions: u64,
    pub(super) setup: Setup,
}

/// The chain's beginning: the genesis, and the batches that deploy and mint.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Setup {
    /// The number of batches after the genesis.
    pub(super) batches: u64,
    pub(super) transactions: u64,
    /// Bytes in the columns of [`KINDS`].
    pub(super) blob_bytes: [u64; KINDS.len()],
}

impl Setup {
    fn of(store: &Store, traffic: Traffic) -> Result<Setup> {
        let mut setup = Setup::default();
        for number in (0..).map(BatchNumber::new) {
            let header = store.header(number)?.context("the chain has no batch of its traffic")?;
            if header.tx_count as usize == traffic.batch_transactions() {
                break;
            }
            setup.batches = number.get();
            setup.transactions += u64::from(header.tx_count);
            for (bytes, kind) in setup.blob_bytes.iter_mut().zip(KINDS) {
                // The genesis is its batch's body, but is not stored among the bodies.
                if (number, kind) != (BatchNumber::new(0), BlobKind::Body) {
                    *bytes += store.blob(kind, number)?.map_or(0, |blob| blob.len()) as u64;
                }
            }
        }
        Ok(setup)
    }
}

impl Chain {
    /// Fills a store in an empty directory.
    ///
    /// # Errors
    /// If a transaction or the disk fails.
    pub(super) fn make(traffic: Traffic, size: &Size, dir: &Path, progress: Progress) -> Result<Chain> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let store = Store::open(&StorageConfig::default(), dir)?;
        let full = |workload| -> Result<u64> {
            let made = Source::make(&store, workload, size.full_batches, size.senders, progress)?;
            Ok(made.transactions)
        };
        let transactions = match traffic {
            Traffic::Transfers => full(Workload::Transfers)?,
            Traffic::Erc20 => full(Workload::Erc20)?,
            Traffic::Single => make_single(&store, size, progress)?,
        };
        let (batches, setup) = (store.head()?.header.number.get(), Setup::of(&store, traffic)?);
        store.close();
        Ok(Chain { traffic, dir: dir.to_owned(), batches, transactions, setup })
    }

    /// Removes its directory.
    ///
    /// # Errors
    /// If the directory cannot be removed.
    pub(super) fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.dir).with_context(|| format!("cannot remove {}", self.dir.display()))
    }
}

/// Makes transfers, each in its own batch; returns their number.
fn make_single(store: &Store, size: &Size, progress: Progress) -> Result<u64> {
    let signer = Signer::new(Workload::Transfers, Default::default(), size.senders);
    let genesis = one_validator(&signer.funded());
    store.initialize(&genesis)?;
    let mut maker = Maker::new(store, &genesis, HintsMode::Keys);
    let mut task = progress.task("batches", size.single_batches);
    let signed = signer.batches(0..size.single_batches.div_ceil(BATCH_TRANSACTIONS as u64))?;
    for transaction in signed.into_iter().flatten().take(size.single_batches as usize) {
        maker.append(&[transaction])?;
        task.update(maker.transactions, "");
    }
    Ok(maker.transactions)
}
