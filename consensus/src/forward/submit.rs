//! What users of this node give it: checked, written down, and then on its way.

use std::{net::IpAddr, time::Duration};

use alloy_primitives::B256;
use slipstream_executor::{Transaction, TransactionError};
use tokio::time::Instant;

use super::{
    Forwarder,
    intake::reason_of,
    meter::{RECOVERY, hashing},
};
use crate::{
    journal::JournalError,
    pool::{PoolError, Refused},
};

/// How often a journaled transaction that the state does not allow yet is tried again, once a minute, before it is given up.
const REPLAYS_MAX: u32 = 10;

/// Time between two lines that say that the journal takes nothing.
const JOURNAL_TOLD_EVERY: Duration = Duration::from_secs(10);

/// Why a user's transaction was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// It is no transaction of this chain.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// The pool does not take it.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// It could not be written down, and so is not acknowledged.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The address has sent too much that no pool takes.
    #[error("too many refused transactions from this address; retry in {retry_after_ms} ms")]
    Busy {
        /// When it may try again.
        retry_after_ms: u64,
    },
}

impl Forwarder {
    /// Takes a transaction of a user of this node, who calls from `address`; none is the operator's own, or stands for many, and is not
    /// metered. It outlives this process when this returns; before the user is told, [`Forwarder::synced`] makes it outlive a power cut. Blocks for some
    /// microseconds, and for a write of the journal now and then.
    ///
    /// # Errors
    /// If it is not taken; the texts begin as Ethereum's clients write them.
    pub fn submit(&self, raw: &[u8], address: Option<IpAddr>) -> Result<B256, SubmitError> {
        let Some(address) = address else { return self.submit_unmetered(raw) };
        let charged = RECOVERY + hashing(raw.len());
        if let Err(wait) = self.wallets.lock().charge(address, charged, Instant::now()) {
            self.pool.count_refused(Refused::Busy, 1);
            return Err(SubmitError::Busy { retry_after_ms: millis(wait) });
        }
        let submitted = self.submit_unmetered(raw);
        // Who delegates asks for a recovery of each authority, too.
        let parse = || Transaction::decode_known(raw, self.chain_id, Default::default());
        let authorities = || parse().map_or(0, |transaction| transaction.authorizations() as i64);
        let cost = if submitted.is_ok() { 0 } else { charged + RECOVERY * authorities() };
        self.wallets.lock().settle(&address, charged, cost);
        submitted
    }

    fn submit_unmetered(&self, raw: &[u8]) -> Result<B256, SubmitError> {
        let decoded = Transaction::decode(raw, self.chain_id);
        let transaction = decoded.inspect_err(|error| self.pool.count_refused(reason_of(error), 1))?;
        let hash = transaction.hash;
        match self.pool.add(transaction.clone()) {
            Ok(()) => {
                self.write_down(raw).inspect_err(|_| self.pool.withdraw(&hash))?;
                self.enqueue(transaction);
                Ok(hash)
            }
            Err(known @ PoolError::AlreadyKnown { .. }) => {
                // A peer may have brought it first. It is the user's all the same, whose wallet reads this as a yes.
                if self.pool.adopt(&hash) {
                    self.write_down(raw)?;
                }
                Err(known.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn write_down(&self, raw: &[u8]) -> Result<(), JournalError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        journal.append(raw, || self.live()).inspect_err(|error| {
            self.pool.count_refused(Refused::Journal, 1);
            self.tell_journal(error);
        })
    }

    /// What the journal has to keep.
    fn live(&self) -> Vec<Vec<u8>> {
        self.pool.local().iter().map(|transaction| transaction.raw.to_vec()).collect()
    }

    /// Callers cause it, so it is told now and then only.
    fn tell_journal(&self, error: &JournalError) {
        let mut told = self.journal_told.lock();
        if told.is_none_or(|told| told.elapsed() >= JOURNAL_TOLD_EVERY) {
            *told = Some(Instant::now());
            tracing::warn!(%error, "users' transactions are not taken");
        }
    }

    /// Returns when everything submitted before is on the disk.
    ///
    /// # Errors
    /// If the disk refuses; then none of what waits may be acknowledged.
    pub async fn synced(&self) -> Result<(), JournalError> {
        match &self.journal {
            Some(journal) if !journal.is_synced() => {
                let journal = journal.clone();
                let synced = tokio::task::spawn_blocking(move || journal.sync()).await;
                // Only a runtime that ends gives no answer, and with it the caller.
                synced.unwrap_or(Ok(()))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of the journal; 0 without one.
    pub fn journal_bytes(&self) -> u64 {
        self.journal.as_ref().map_or(0, |journal| journal.bytes())
    }

    /// Takes what the journal has from before the start, by the ordinary checks. What the state does not allow yet stays in the journal
    /// and is tried again.
    pub(super) fn replay(&self, attempt: u32) {
        let Some(journal) = &self.journal else { return };
        let (mut taken, mut waiting, mut gone) = (0u64, Vec::new(), 0u64);
        for raw in journal.recovered() {
            let Ok(transaction) = Transaction::decode(&raw, self.chain_id) else {
                gone += 1;
                continue;
            };
            match self.pool.add(transaction.clone()) {
                Ok(()) => {
                    taken += 1;
                    self.enqueue(transaction);
                }
                Err(PoolError::AlreadyKnown { .. }) => taken += 1,
                Err(error) if may_pass(&error) && attempt < REPLAYS_MAX => waiting.push(raw),
                Err(error) => {
                    gone += 1;
                    tracing::debug!(hash = %transaction.hash, %error, "a transaction of the journal is not taken again");
                }
            }
        }
        if taken + gone + waiting.len() as u64 == 0 {
            return;
        }
        if taken + gone > 0 {
            tracing::info!(
                taken,
                gone,
                waiting = waiting.len(),
                "replayed the transactions that users gave this node before"
            );
        }
        if let Err(error) = journal.settle(waiting, || self.live()) {
            self.tell_journal(&error);
        }
    }
}

/// Whether a later state may allow it.
fn may_pass(error: &PoolError) -> bool {
    error.is_retryable() || matches!(error.reason(), Refused::Funds | Refused::NonceTooHigh)
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}
