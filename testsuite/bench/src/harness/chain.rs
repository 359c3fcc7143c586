//! [`Source`]: a certified chain without consensus. Every batch is executed, sealed, certified with the only
//! validator's key and committed with its hints, as a validator does it.

use std::slice;

use anyhow::{Result, ensure};
use slipstream_executor::{BatchContext, HintsMode, Transaction, execute, seal};
use slipstream_storage::{CommitBatch, Store};
use slipstream_testkit::{Batch, certify};
use slipstream_types::{BatchHeader, BatchNumber, Delta, Digest, Epoch, Genesis, SecretKey};

use super::workload::{BATCH_TRANSACTIONS, Signer, Workload};
use slipnet::{
    accounts::{Account, node_key},
    devnet::genesis,
    progress::Progress,
};

/// Batches that are signed ahead on all cores while earlier ones are executed.
const SIGNED_AHEAD: u64 = 64;
const BATCH_INTERVAL_MS: u64 = 100;
const SEED: &str = "slipnet-bench";

/// A finished chain; its batches are in the store.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) workload: Workload,
    pub(crate) genesis: Genesis,
    pub(crate) head: BatchNumber,
    pub(crate) state_root: Digest,
    /// The transactions of all batches.
    pub(crate) transactions: u64,
}

/// Appends batches to a chain with one validator, whose key the bench has.
pub(crate) struct Maker<'a> {
    store: &'a Store,
    genesis: &'a Genesis,
    key: SecretKey,
    hints: HintsMode,
    /// Transactions in the appended batches.
    pub(crate) transactions: u64,
    /// Transactions of the workload that [`Maker::extend`] has appended so far.
    pub(crate) extended: u64,
}

impl Source {
    /// Fills an empty store with `batches` batches of a workload.
    ///
    /// # Errors
    /// If a transaction or the store fails.
    pub(crate) fn make(
        store: &Store,
        workload: Workload,
        batches: u64,
        senders: u32,
        progress: Progress,
    ) -> Result<Source> {
        let signer = Signer::new(workload, Default::default(), senders);
        let genesis = one_validator(&signer.funded());
        store.initialize(&genesis)?;
        let mut maker = Maker::new(store, &genesis, HintsMode::Keys);
        signer.prelude(0).try_for_each(|batch| maker.append(&batch?))?;
        let batches = batches - store.head()?.header.number.get();
        maker.extend(&signer, Stretch { batches, transactions: BATCH_TRANSACTIONS }, progress)?;
        let transactions = maker.transactions;
        let head = store.head()?.header;
        Ok(Source { workload, genesis, head: head.number, state_root: head.state_root, transactions })
    }
}

/// Consecutive batches of one size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Stretch {
    pub(crate) batches: u64,
    /// Transactions of each batch.
    pub(crate) transactions: usize,
}

/// Returns a genesis with one validator, whose key the bench has.
pub(crate) fn one_validator(funded: &[Account]) -> Genesis {
    genesis(SEED, 1, funded)
}

/// Returns the only validator's key.
pub(crate) fn validator_key() -> SecretKey {
    node_key(SEED, 0)
}

impl<'a> Maker<'a> {
    /// Makes a maker for a store on a chain of [`one_validator`], with hints as a validator makes them in mode `hints`.
    pub(crate) fn new(store: &'a Store, genesis: &'a Genesis, hints: HintsMode) -> Maker<'a> {
        Maker { store, genesis, key: validator_key(), hints, transactions: 0, extended: 0 }
    }

    /// Appends further batches of a workload: all cores sign the next ones while one executes.
    ///
    /// # Errors
    /// As [`Maker::append`].
    pub(crate) fn extend(&mut self, signer: &Signer, stretch: Stretch, progress: Progress) -> Result<()> {
        let Stretch { batches, transactions } = stretch;
        let mut task = progress.task("batches", batches);
        let sign = |first: u64, left: u64| signer.batches_of(first, left.min(SIGNED_AHEAD), transactions);
        let mut left = batches;
        let mut ready = sign(self.extended, left)?;
        while !ready.is_empty() {
            left -= ready.len() as u64;
            self.extended += ready.len() as u64 * transactions as u64;
            let first = self.extended;
            let append = || ready.iter().try_for_each(|batch| self.append(batch));
            let (appended, signed) = rayon::join(append, || sign(first, left));
            appended?;
            ready = signed?;
            task.update(batches - left, "");
        }
        Ok(())
    }

    /// Executes, certifies and commits a batch.
    ///
    /// # Errors
    /// If a transaction or the store fails.
    pub(crate) fn append(&mut self, transactions: &[Transaction]) -> Result<()> {
        let head = self.store.head()?;
        let timestamp_ms = head.header.timestamp_ms + BATCH_INTERVAL_MS;
        let proposer = self.genesis.validators[0].fee_recipient;
        let basis = BatchContext { parent: &head.header, epoch: Epoch(0), timestamp_ms, proposer };
        let outcome = execute(&self.store.view()?, &basis.env(&self.genesis.chain), transactions)?;
        let number = head.header.number.next();
        ensure!(
            outcome.receipts.receipts.iter().all(|receipt| receipt.success),
            "a transaction of batch {number} failed"
        );
        let speculation = self.store.speculate(&outcome.delta)?;
        let mut sealed = seal(self.hints, &basis, transactions, &outcome, speculation.root())?;
        sealed.vouch(0, &self.key);
        let batch = Batch { sealed: &sealed, delta: &outcome.delta, transactions, next: None };
        batch.commit(self.store, speculation, slice::from_ref(&self.key))?;
        self.transactions += transactions.len() as u64;
        Ok(())
    }

    /// Certifies and commits changes without a transaction.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn put(&self, delta: &Delta) -> Result<()> {
        let head = self.store.head()?;
        let speculation = self.store.speculate(delta)?;
        let header = BatchHeader {
            number: head.header.number.next(),
            parent: head.digest,
            timestamp_ms: head.header.timestamp_ms + BATCH_INTERVAL_MS,
            tx_count: 0,
            tx_bytes: 0,
            gas_used: 0,
            delta_bytes: 0,
            state_root: speculation.root(),
            ..head.header
        };
        let certificate = certify(&head.accumulator, &header, None, slice::from_ref(&self.key));
        let batch = CommitBatch { certificate: Some(&certificate), ..CommitBatch::new(&header, delta) };
        Ok(self.store.commit(batch, Some(speculation))?)
    }
}

#[cfg(test)]
mod tests {
    use slipstream_storage::StorageConfig;

    use super::*;

    #[test]
    fn every_workload_makes_a_chain_that_repeats() {
        for workload in [Workload::Transfers, Workload::Erc20, Workload::Hot] {
            let make = || {
                let store = Store::memory(&StorageConfig::default());
                Source::make(&store, workload, 6, 300, Progress::Quiet).unwrap()
            };
            let (source, again) = (make(), make());
            assert_eq!(source.head, BatchNumber::new(6), "{workload:?}");
            assert_eq!(source.state_root, again.state_root);
            let whole = 6 - if workload == Workload::Erc20 { 2 } else { 0 };
            assert!(source.transactions >= whole * BATCH_TRANSACTIONS as u64, "{workload:?}");
        }
    }
}
