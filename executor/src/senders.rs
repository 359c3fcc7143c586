//! [`Senders`]: the signers of the transactions that this node met last.
//!
//! Recovering a sender takes about 30 us, more than the rest of decoding together. Most transactions are met several times: when a wallet
//! or a peer sends them, when a batch executes them, and when clients ask for them. A transaction's hash covers its signature, so it names
//! one sender for ever.

use alloy_primitives::{Address, B256, keccak256};
use quick_cache::sync::Cache;

use crate::transaction::{Admission, Transaction, TransactionError};

/// Transactions whose senders are kept: about 11 MiB, thirteen full batches or one full pool.
const SENDERS_MAX: usize = 131_072;

/// See the module.
#[derive(Debug)]
pub struct Senders(Cache<B256, Address>);

impl Default for Senders {
    fn default() -> Senders {
        Senders(Cache::new(SENDERS_MAX))
    }
}

impl Senders {
    /// [`Transaction::decode`], without the recovery if the sender is known. The sender is known from then on.
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

    /// The sender of the transaction with this hash, if it is known.
    pub fn get(&self, hash: &B256) -> Option<Address> {
        self.0.get(hash)
    }

    /// Keeps the sender of a transaction, which its signature has named.
    pub fn keep(&self, transaction: &Transaction) {
        self.0.insert(transaction.hash, transaction.sender);
    }
}
