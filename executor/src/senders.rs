//! [`Senders`]: a cache of the senders of recent transactions.
//!
//! Recovering a sender takes about 30 us, more than the rest of decoding together. A node decodes most transactions
//! several times: when a wallet or a peer sends them, when a batch executes them, and when clients ask for them. A
//! transaction's hash covers its signature, so its sender never changes.

use alloy_primitives::{Address, B256, keccak256};
use quick_cache::sync::Cache;

use crate::transaction::{Admission, Transaction, TransactionError};

/// Capacity in senders: about 11 MiB, thirteen full batches or one full pool.
const SENDERS_MAX: usize = 131_072;

/// A cache of senders by transaction hash.
#[derive(Debug)]
pub struct Senders(Cache<B256, Address>);

impl Default for Senders {
    fn default() -> Senders {
        Senders(Cache::new(SENDERS_MAX))
    }
}

impl Senders {
    /// Does what [`Transaction::decode`] does, but recovers the sender only if it is not cached. Caches a recovered
    /// sender.
    ///
    /// # Errors
    /// As [`Transaction::decode`].
    pub fn decode(
        &self,
        raw: &[u8],
        admission: impl Into<Admission>,
    ) -> Result<Transaction, TransactionError> {
        let admission = admission.into();
        if let Some(sender) = self.get(&keccak256(raw)) {
            return Transaction::decode_known(raw, admission, sender);
        }
        let transaction = Transaction::decode(raw, admission)?;
        self.keep(&transaction);
        Ok(transaction)
    }

    /// The sender of the transaction with this hash, if it is cached.
    pub fn get(&self, hash: &B256) -> Option<Address> {
        self.0.get(hash)
    }

    /// Caches the sender of a transaction, as recovered from its signature.
    pub fn keep(&self, transaction: &Transaction) {
        self.0.insert(transaction.hash, transaction.sender);
    }
}
