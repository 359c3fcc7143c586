//! Takes transactions from users of this node: checks them, writes them to the journal, and sends them on.

use std::{iter, net::IpAddr, time::Duration};

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

/// Maximum number of replays, one a minute, of a journaled transaction that the state does not allow yet. After that it
/// is dropped.
const REPLAYS_MAX: u32 = 10;

/// The first byte of a transaction that delegates accounts (EIP-7702).
const DELEGATING: u8 = 4;

/// Time between two log lines about a journal that refuses transactions.
const JOURNAL_TOLD_EVERY: Duration = Duration::from_secs(10);

/// Why a user's transaction was refused.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// It is no transaction of this chain.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// The pool refuses it.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Writing the transaction to the journal failed, so it is not acknowledged; it may be executed all the same. If it
    /// is sent again, it is written then.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The address has sent too many transactions that no pool takes.
    #[error("too many refused transactions from this address; retry in {retry_after_ms} ms")]
    Busy {
        /// Milliseconds after which it may try again.
        retry_after_ms: u64,
    },
}

/// A transaction that the pool has, and the journal does not have yet.
struct Unwritten<'a> {
    /// Its positions in the submitted list; several if it was sent more than once.
    indices: Vec<usize>,
    transaction: Transaction,
    /// Its room in the journal; `None` without a journal.
    place: Option<Place<'a>>,
    /// Whether it was new to this node.
    is_new: bool,
}

impl Forwarder {
    /// Takes a transaction of a user; see [`Forwarder::submit_all`].
    ///
    /// # Errors
    /// If it is refused; the texts begin as Ethereum's clients write them.
    pub fn submit(&self, raw: &[u8], address: Option<IpAddr>) -> Result<B256, SubmitError> {
        self.submit_all(&[raw], address).remove(0)
    }

    /// Takes transactions of a user that calls from `address`, and returns an answer for each, in order. The
    /// transactions share the cores for the recovery of their senders, and one write to the journal. `None` marks the
    /// operator's own calls, or an address that many users share; these calls are not metered. On return, the
    /// transactions survive this process. To survive a power cut, wait for [`Forwarder::synced`] before telling the
    /// user. Blocks for some microseconds for each, and for the disk only if the journal is full or broken.
    pub fn submit_all(&self, raws: &[&[u8]], address: Option<IpAddr>) -> Vec<Result<B256, SubmitError>> {
        let Some(address) = address else { return self.submit_unmetered(raws) };
        let mut answers = Vec::with_capacity(raws.len());
        while answers.len() < raws.len() {
            let rest = &raws[answers.len()..];
            match self.charge_wallet(address, rest) {
                Ok(charged) => {
                    let rest = &rest[..charged.len()];
                    let submitted = self.submit_unmetered(rest);
                    self.settle_wallet(address, rest, &charged, &submitted);
                    answers.extend(submitted);
                }
                Err(wait) => {
                    self.pool.count_refused(Refused::Busy, 1);
                    answers.push(Err(SubmitError::Busy { retry_after_ms: millis(wait) }));
                }
            }
        }
        answers
    }

    /// Charges an address for the first of these transactions: for as many as its allowance covers. The charge of those
    /// that the pool takes is refunded, and the allowance then covers more. The charge ends at a delegating
    /// transaction, because the cost of that one is known, and paid, only afterwards.
    ///
    /// # Errors
    /// The time after which to retry, if the allowance is too small for the first one.
    fn charge_wallet(&self, address: IpAddr, raws: &[&[u8]]) -> Result<Vec<i64>, Duration> {
        let (mut wallets, now, mut charged) = (self.wallets.lock(), Instant::now(), Vec::new());
        for raw in raws {
            let units = RECOVERY + hashing(raw.len());
            match wallets.charge(address, units, now) {
                Ok(()) => charged.push(units),
                Err(wait) if charged.is_empty() => return Err(wait),
                Err(_) => break,
            }
            if raw.starts_with(&[DELEGATING]) {
                break;
            }
        }
        Ok(charged)
    }

    fn settle_wallet(
        &self,
        address: IpAddr,
        raws: &[&[u8]],
        charged: &[i64],
        submitted: &[Result<B256, SubmitError>],
    ) {
        let costs = raws.iter().zip(charged).zip(submitted).map(|((raw, charged), submitted)| {
            if submitted.is_ok() {
                return 0;
            }
            // A delegating transaction costs a recovery of each authority, too.
            let parsed = Transaction::decode_known(raw, self.admission, Default::default());
            let authorities = parsed.map_or(0, |transaction| transaction.authorizations() as i64);
            charged + RECOVERY * authorities
        });
        let costs: Vec<i64> = costs.collect();
        let mut wallets = self.wallets.lock();
        for (charged, cost) in charged.iter().zip(costs) {
            wallets.settle(&address, *charged, cost);
        }
    }

    fn submit_unmetered(&self, raws: &[&[u8]]) -> Vec<Result<B256, SubmitError>> {
        let (mut answers, mut unwritten) = (Vec::with_capacity(raws.len()), Vec::new());
        for decoded in slipstream_executor::decode_each(raws, self.admission) {
            let decoded = decoded.inspect_err(|error| self.pool.count_refused(reason_of(error), 1));
            let index = answers.len();
            let taken = decoded.map_err(Into::into).and_then(|it| self.take(index, it, &mut unwritten));
            answers.push(taken);
        }
        self.write_down(unwritten, &mut answers);
        answers
    }

    /// Gives a transaction to the pool.
    fn take<'a>(
        &'a self,
        index: usize,
        transaction: Transaction,
        unwritten: &mut Vec<Unwritten<'a>>,
    ) -> Result<B256, SubmitError> {
        let hash = transaction.hash;
        // Reserved before the pool takes the transaction, because the pool may then evict acknowledged ones.
        let mut place = if self.pool.is_journaled(&hash) { None } else { self.reserve(&transaction)? };
        let taken = self.pool.add(transaction.clone());
        let is_to_write = match &taken {
            Ok(()) => true,
            Err(PoolError::AlreadyKnown { .. }) => {
                // A peer may have brought the transaction first, or an earlier write of it may have failed. It still
                // counts as the user's, whose wallet takes this error for an acknowledgement.
                self.pool.adopt(&hash);
                let before = unwritten.iter_mut().find(|it| it.transaction.hash == hash);
                let is_known = before.map(|it| it.indices.push(index)).is_some();
                !is_known && !self.pool.is_journaled(&hash)
            }
            Err(_) => false,
        };
        if is_to_write {
            if place.is_none() {
                place = self.reserve(&transaction)?;
            }
            unwritten.push(Unwritten { indices: vec![index], transaction, place, is_new: taken.is_ok() });
        }
        Ok(taken.map(|()| hash)?)
    }

    /// Reserves room in the journal; returns `None` without a journal.
    fn reserve(&self, transaction: &Transaction) -> Result<Option<Place<'_>>, JournalError> {
        let Some(journal) = &self.journal else { return Ok(None) };
        let sender_bytes = self.pool.local_bytes_beside(transaction);
        let place = journal.reserve(transaction.raw.len(), sender_bytes, || self.pool.local());
        place.map(Some).inspect_err(|error| self.not_written(error))
    }

    /// Writes transactions to the journal, and sends the new ones on. If that fails, they stay in the pool as a peer's
    /// would. They may have evicted others, which do not come back, so dropping them would only lose more. A
    /// transaction that is sent again and written counts as acknowledged.
    fn write_down(&self, mut unwritten: Vec<Unwritten<'_>>, answers: &mut [Result<B256, SubmitError>]) {
        if let Some(journal) = self.journal.as_ref().filter(|_| !unwritten.is_empty()) {
            let places = unwritten.iter_mut().filter_map(|it| Some((it.place.take()?, &it.transaction.raw)));
            let entries: Vec<_> = places.collect();
            let appended = journal.append(&entries);
            drop(entries);
            if let Err(error) = appended {
                let errors = iter::once(error).chain(iter::repeat_with(|| journal.broken()));
                for (index, error) in unwritten.iter().flat_map(|it| &it.indices).zip(errors) {
                    self.not_written(&error);
                    answers[*index] = Err(error.into());
                }
                return;
            }
            self.pool.mark_journaled(unwritten.iter().map(|it| &it.transaction.hash));
        }
        for it in unwritten.into_iter().filter(|it| it.is_new) {
            self.enqueue(it.transaction);
        }
    }

    fn not_written(&self, error: &JournalError) {
        self.pool.count_refused(Refused::Journal, 1);
        if !matches!(error, JournalError::SenderFull { .. }) {
            self.tell_journal(error);
        }
    }

    /// Logs the error now and then only, because callers cause it.
    fn tell_journal(&self, error: &JournalError) {
        let mut told = self.journal_told.lock();
        if told.is_none_or(|told| told.elapsed() >= JOURNAL_TOLD_EVERY) {
            *told = Some(Instant::now());
            tracing::warn!(%error, "refusing users' transactions");
        }
    }

    /// Returns when everything submitted before is on disk.
    ///
    /// # Errors
    /// If the disk refuses; then nothing that waits may be acknowledged.
    pub async fn synced(&self) -> Result<(), JournalError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let pool = self.pool.clone();
        journal.synced(move || pool.local()).await
    }

    /// Bytes of the journal; 0 without one.
    pub fn journal_bytes(&self) -> u64 {
        self.journal.as_ref().map_or(0, |journal| journal.bytes())
    }

    /// Gives the pool the journal's transactions from before the start, by the usual checks. Those that the state does
    /// not allow yet stay in the journal and are tried again.
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
                    self.pool.mark_journaled([&transaction.hash]);
                    self.enqueue(transaction);
                }
                Err(PoolError::AlreadyKnown { hash }) => {
                    taken += 1;
                    self.pool.adopt(&hash);
                    self.pool.mark_journaled([&hash]);
                }
                Err(error) if may_pass(&error) && attempt < REPLAYS_MAX => waiting.push(raw.clone()),
                Err(error) => {
                    gone += 1;
                    tracing::debug!(hash = %transaction.hash, %error, "the pool refuses a transaction from the journal");
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
                "replayed the journal of users' transactions"
            );
        }
        if let Err(error) = journal.settle(waiting, || self.pool.local()) {
            self.tell_journal(&error);
        }
    }
}

/// Whether a later state may allow the transaction.
fn may_pass(error: &PoolError) -> bool {
    error.is_retryable() || matches!(error.reason(), Refused::Funds | Refused::NonceTooHigh)
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}
