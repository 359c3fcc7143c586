//! [`Hints`]: the working set of a batch, from whoever executed it first.
//!
//! Source: "Ira" (arXiv 2601.21286), the form Ira-L: keys grouped by the table that they are read from. Hints are advice:
//! they change how long a batch takes, never its result, and nothing certifies them.

use alloy_primitives::{Address, B256};
use serde::{Deserialize, Serialize};

use crate::{
    bounded::BoundedVec,
    codec::{CodecError, raw},
    digest::Digest,
    limits,
    state::StateKey,
};

/// The keys that executing a batch reads, each group in first-use order.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Hints {
    /// Accounts read, and of each the slots read.
    pub accounts: BoundedVec<AccountHints, { limits::HINT_KEYS_MAX }>,
    /// Hashes of the code executed or copied.
    pub codes: BoundedVec<Digest, { limits::HINT_KEYS_MAX }>,
}

/// What is read of one account.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AccountHints {
    /// The account; its own row is always read.
    #[serde(with = "raw")]
    pub address: Address,
    /// Its slots that are read.
    pub slots: BoundedVec<Digest, { limits::HINT_KEYS_MAX }>,
}

impl Hints {
    /// Groups slots under their accounts.
    pub fn new(accounts: Vec<(Address, Vec<B256>)>, codes: Vec<B256>) -> Result<Hints, CodecError> {
        let accounts = accounts
            .into_iter()
            .map(|(address, slots)| {
                let slots = BoundedVec::new(slots.into_iter().map(Digest::from).collect())?;
                Ok(AccountHints { address, slots })
            })
            .collect::<Result<_, CodecError>>()?;
        let codes = BoundedVec::new(codes.into_iter().map(Digest::from).collect())?;
        Ok(Hints { accounts: BoundedVec::new(accounts)?, codes })
    }

    /// Every account and slot, an account before its slots.
    pub fn keys(&self) -> impl Iterator<Item = StateKey> + '_ {
        self.accounts.iter().flat_map(|account| {
            let slots = account.slots.iter().map(|slot| StateKey::Slot(account.address, (*slot).into()));
            std::iter::once(StateKey::Account(account.address)).chain(slots)
        })
    }
}
