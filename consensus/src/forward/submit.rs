//! Takes transactions from users of this node: checks them, writes them down, and sends them on.

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
    journal::{JournalError, Place},
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
    /// Writing the transaction down failed, so it is not acknowledged; it may be executed all the same. If it is sent again, it is
    /// written down then.
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
    /// Takes a transaction of a user who calls from `address`. `None` marks the operator's own calls, or an address that stands for many;
    /// these are not metered. When this returns, the transaction survives this process; [`Forwarder::synced`] makes it survive a power cut
    /// before the user is told. Blocks for some microseconds, and for the disk only where the journal is full or broken.
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
        let parse = || Transaction::decode_known(raw, self.admission, Default::default());
        let authorities = || parse().map_or(0, |transaction| transaction.authorizations() as i64);
        let cost = if submitted.is_ok() { 0 } else { charged + RECOVERY * authorities() };
        self.wallets.lock().settle(&address, charged, cost);
        submitted
    }

    fn submit_unmetered(&self, raw: &[u8]) -> Result<B256, SubmitError> {
        let decoded = Transaction::decode(raw, self.admission);
        let transaction = decoded.inspect_err(|error| self.pool.count_refused(reason_of(error), 1))?;
        let hash = transaction.hash;
        // Before the pool takes it, which may drive out others that are acknowledged.
        let place = if self.pool.is_journaled(&hash) { None } else { self.reserve(&transaction)? };
        match self.pool.add(transaction.clone()) {
            Ok(()) => {
                self.write_down(&transaction, place)?;
                self.enqueue(transaction);
                Ok(hash)
            }
            Err(known @ PoolError::AlreadyKnown { .. }) => {
                // A peer may have brought it first, or writing it down have failed before. It is the user's all the same, whose wallet
                // reads this as a yes.
                self.pool.adopt(&hash);
                if !self.pool.is_journaled(&hash) {
                    self.write_down(&transaction, place)?;
                }
                Err(known.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reserves room in the journal; returns `None` without a journal.
    fn reserve(&self, transaction: &Transaction) -> Result<Option<Place<'_>>, JournalError> {
        let Some(journal) = &self.journal else { return Ok(None) };
        let sender_bytes = self.pool.local_bytes_beside(transaction);
        let place = journal.reserve(transaction.raw.len(), sender_bytes, || self.pool.local());
        place.map(Some).inspect_err(|error| self.not_written(error))
    }

    /// If writing fails, the transaction stays in the pool as a peer's would. It may have driven others out, which do not come back,
    /// so dropping it would only lose more. When it is sent again and written, it counts as acknowledged.
    fn write_down(&self, transaction: &Transaction, place: Option<Place<'_>>) -> Result<(), JournalError> {
        let place = match place {
            Some(place) => Some(place),
            None => self.reserve(transaction)?,
        };
        let Some(place) = place else { return Ok(()) };
        place.append(&transaction.raw).inspect_err(|error| self.not_written(error))?;
        self.pool.mark_journaled(&transaction.hash);
        Ok(())
    }

    fn not_written(&self, error: &JournalError) {
        self.pool.count_refused(Refused::Journal, 1);
        if !matches!(error, JournalError::SenderFull { .. }) {
            self.tell_journal(error);
        }
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
        let Some(journal) = &self.journal else { return Ok(()) };
        let pool = self.pool.clone();
        journal.synced(move || pool.local()).await
    }

    /// Bytes of the journal; 0 without one.
    pub fn journal_bytes(&self) -> u64 {
        self.journal.as_ref().map_or(0, |journal| journal.bytes())
    }

    /// Gives the pool the journal's transactions from before the start, by the ordinary checks. Those that the state does not allow yet
    /// stay in the journal and are tried again.
    pub(super) fn replay(&self, attempt: u32) {
        let Some(journal) = &self.journal else { return };
        let (mut taken, mut waiting, mut gone) = (0u64, Vec::new(), 0u64);
        for raw in journal.recovered().iter() {
            let Ok(transaction) = Transaction::decode(raw, self.admission) else {
                gone += 1;
                continue;
            };
            match self.pool.add(transaction.clone()) {
                Ok(()) => {
                    taken += 1;
                    self.pool.mark_journaled(&transaction.hash);
                    self.enqueue(transaction);
                }
                Err(PoolError::AlreadyKnown { hash }) => {
                    taken += 1;
                    self.pool.adopt(&hash);
                    self.pool.mark_journaled(&hash);
                }
                Err(error) if may_pass(&error) && attempt < REPLAYS_MAX => waiting.push(raw.clone()),
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
        if let Err(error) = journal.settle(waiting, || self.pool.local()) {
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
