//! [`Transaction`]: a decoded, checked envelope with its sender.

use std::sync::Arc;

use alloy_consensus::{
    EthereumTxEnvelope, Transaction as _, TxEip4844, Typed2718, crypto::RecoveryError,
    transaction::SignerRecoverable,
};
use alloy_eips::eip2718::{Decodable2718, Eip2718Error, Encodable2718};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use slipstream_types::{ChainConfig, limits::TRANSACTION_BYTES_MAX};

/// Ethereum's envelope; blob transactions come without their blobs.
pub type Envelope = EthereumTxEnvelope<TxEip4844>;

/// A signed transaction and its sender. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// The EIP-2718 envelope as it is sent and stored.
    pub raw: Bytes,
    /// Keccak-256 of `raw`, which identifies the transaction.
    pub hash: B256,
    /// The account that signed the transaction.
    pub sender: Address,
    /// The decoded envelope, shared by its users.
    pub envelope: Arc<Envelope>,
}

/// The chain's rule for chain ids in transactions: which ids it admits, and whether a transaction without one is valid.
/// Nodes with different rules come to different outcomes, so all nodes of a chain make the rule from the same
/// [`ChainConfig`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    chain_id: u64,
    unprotected: bool,
}

impl Admission {
    /// Admits only transactions that name this chain.
    pub const fn protected(chain_id: u64) -> Admission {
        Admission { chain_id, unprotected: false }
    }

    /// Whether an envelope with this chain id is admitted.
    fn check(self, named: Option<u64>) -> Result<(), TransactionError> {
        let Admission { chain_id: expected, unprotected } = self;
        match named {
            None if unprotected => Ok(()),
            None => Err(TransactionError::NoChainId { expected }),
            Some(found) if found != expected => Err(TransactionError::WrongChainId { expected, found }),
            Some(_) => Ok(()),
        }
    }
}

impl From<&ChainConfig> for Admission {
    fn from(chain: &ChainConfig) -> Admission {
        Admission { chain_id: chain.chain_id, unprotected: chain.unprotected_transactions }
    }
}

/// Why an envelope is not a transaction of this chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// The envelope is longer than any transaction may be.
    #[error("the transaction has {len} bytes, but at most {max} are allowed")]
    TooLong {
        /// Length of the envelope in bytes.
        len: usize,
        /// Maximum bytes of an envelope.
        max: usize,
    },
    /// The bytes are not the canonical encoding of an EIP-2718 envelope of a known type.
    #[error("malformed transaction: {0}")]
    Malformed(String),
    /// The transaction carries blobs (EIP-4844).
    #[error("blob transactions (EIP-4844) are not supported on this chain: send the data as calldata")]
    BlobTransaction,
    /// The legacy transaction has no chain id (before EIP-155). This chain refuses such transactions, because they
    /// would be valid on every chain.
    #[error(
        "the transaction has no chain id and could be replayed from another chain: sign it for chain {expected}"
    )]
    NoChainId {
        /// Chain id of this chain.
        expected: u64,
    },
    /// The transaction is signed for another chain.
    #[error("the transaction is signed for chain {found}, but this is chain {expected}")]
    WrongChainId {
        /// Chain id of this chain.
        expected: u64,
        /// Chain id that the transaction names.
        found: u64,
    },
    /// The signature yields no sender, or is the high-s twin of a valid one (EIP-2).
    #[error("the signature is invalid")]
    InvalidSignature,
}

impl From<Eip2718Error> for TransactionError {
    fn from(error: Eip2718Error) -> Self {
        TransactionError::Malformed(error.to_string())
    }
}

impl Transaction {
    /// Decodes a transaction that the chain admits: at most [`TRANSACTION_BYTES_MAX`] bytes, type 0, 1, 2 or 4, a
    /// canonical encoding and a low-s signature. The transaction names this chain's id, or no id where the chain allows
    /// that. Recovering the sender takes most of the time.
    pub fn decode(raw: &[u8], admission: impl Into<Admission>) -> Result<Transaction, TransactionError> {
        let envelope = admitted(raw, admission.into())?;
        Self::checked(Bytes::copy_from_slice(raw), Arc::new(envelope), Envelope::recover_signer)
    }

    /// Decodes a transaction whose sender [`Transaction::decode`] found before. Trusts `sender` instead of recovering
    /// it.
    ///
    /// # Errors
    /// As [`Transaction::decode`], except for the signature.
    pub fn decode_known(
        raw: &[u8],
        admission: impl Into<Admission>,
        sender: Address,
    ) -> Result<Transaction, TransactionError> {
        let envelope = admitted(raw, admission.into())?;
        let raw = Bytes::copy_from_slice(raw);
        Ok(Transaction { hash: keccak256(&raw), raw, sender, envelope: Arc::new(envelope) })
    }

    /// Replaces the assumed sender with the one recovered from the signature. For callers that inspect the transaction
    /// before they pay for the recovery.
    ///
    /// # Errors
    /// If the encoding is not canonical, or the signature is invalid.
    pub fn recovered(self) -> Result<Transaction, TransactionError> {
        Self::checked(self.raw, self.envelope, Envelope::recover_signer)
    }

    /// Decodes any transaction that Ethereum mainnet ever had, on any chain and of any type: for tools that run foreign
    /// blocks.
    pub fn decode_any(raw: &[u8]) -> Result<Transaction, TransactionError> {
        let envelope = Envelope::decode_2718_exact(raw)?;
        Self::checked(Bytes::copy_from_slice(raw), Arc::new(envelope), as_mainnet)
    }

    /// Takes an envelope that was decoded elsewhere, with the checks of [`Transaction::decode_any`].
    pub fn from_envelope(envelope: Envelope) -> Result<Transaction, TransactionError> {
        Self::checked(envelope.encoded_2718().into(), Arc::new(envelope), as_mainnet)
    }

    fn checked<E>(
        raw: Bytes,
        envelope: Arc<Envelope>,
        recover: impl FnOnce(&Envelope) -> Result<Address, E>,
    ) -> Result<Transaction, TransactionError> {
        let hash = keccak256(&raw);
        if hash != *envelope.tx_hash() {
            return Err(TransactionError::Malformed("the encoding is not canonical".into()));
        }
        let sender = recover(&envelope).map_err(|_| TransactionError::InvalidSignature)?;
        Ok(Transaction { raw, hash, sender, envelope })
    }

    /// The transaction's nonce: the number of the sender's transactions before it.
    pub fn nonce(&self) -> u64 {
        self.envelope.nonce()
    }

    /// Maximum gas that the transaction may use.
    pub fn gas_limit(&self) -> u64 {
        self.envelope.gas_limit()
    }

    /// Maximum wei that the transaction pays per gas, base fee and tip together.
    pub fn max_fee_wei(&self) -> u128 {
        self.envelope.max_fee_per_gas()
    }

    /// Wei per gas that the proposer gets at this base fee, or `None` if the transaction does not pay the base fee.
    pub fn tip_wei(&self, base_fee_wei: u64) -> Option<u128> {
        self.envelope.effective_tip_per_gas(base_fee_wei)
    }

    /// Wei that the sender must have: the value and the highest fee. The sum saturates, so an absurd fee is never
    /// payable.
    pub fn cost_max(&self) -> U256 {
        let fee = U256::from(self.gas_limit()).saturating_mul(U256::from(self.max_fee_wei()));
        fee.saturating_add(self.value())
    }

    /// The value that the transaction sends, in wei.
    pub fn value(&self) -> U256 {
        self.envelope.value()
    }

    /// The call data, or the code that creates a contract.
    pub fn input(&self) -> &Bytes {
        self.envelope.input()
    }

    /// The called account, or `None` if the transaction creates a contract.
    pub fn to(&self) -> Option<Address> {
        self.envelope.to()
    }

    /// Number of accounts that the transaction delegates (EIP-7702). Each costs a signature recovery.
    pub fn authorizations(&self) -> usize {
        self.envelope.authorization_list().map_or(0, <[_]>::len)
    }

    /// The accounts that the transaction delegates on this chain, recovered from their signatures, each with the nonce
    /// that it must have. Leaves out invalid authorizations, and those for other chains.
    pub fn authorities(&self, chain_id: u64) -> impl Iterator<Item = (Address, u64)> + '_ {
        let list = self.envelope.authorization_list().unwrap_or_default();
        let here = list.iter().filter(move |authorization| {
            authorization.chain_id.is_zero() || authorization.chain_id == U256::from(chain_id)
        });
        here.filter_map(|authorization| Some((authorization.recover_authority().ok()?, authorization.nonce)))
    }

    /// The EIP-2718 type; 0 is legacy.
    pub fn tx_type(&self) -> u8 {
        self.envelope.ty()
    }
}

/// Recovers the signer by mainnet's laxest rule. Frontier accepted high-s signatures, so mainnet's oldest blocks hold
/// some. A chain of today that admits unprotected transactions refuses high-s signatures (EIP-2): each such transaction
/// would have a second hash.
fn as_mainnet(envelope: &Envelope) -> Result<Address, RecoveryError> {
    match envelope.chain_id() {
        None => envelope.recover_signer_unchecked(),
        Some(_) => envelope.recover_signer(),
    }
}

/// Returns the envelope, if the chain admits its length, type and chain id.
fn admitted(raw: &[u8], admission: Admission) -> Result<Envelope, TransactionError> {
    // Checks the first byte before the length, so that the pooled form with blobs, which is long, gets the same answer.
    if raw.first() == Some(&alloy_eips::eip2718::EIP4844_TX_TYPE_ID) {
        return Err(TransactionError::BlobTransaction);
    }
    if raw.len() > TRANSACTION_BYTES_MAX {
        return Err(TransactionError::TooLong { len: raw.len(), max: TRANSACTION_BYTES_MAX });
    }
    let envelope = Envelope::decode_2718_exact(raw)?;
    admission.check(envelope.chain_id())?;
    Ok(envelope)
}
