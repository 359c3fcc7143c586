//! Signed transactions: the wallet that signs them, and the batch that commits them.

use alloy_consensus::{SignableTransaction, Signed, TxEip1559, TxEnvelope, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Signature, TxKind};
use k256::ecdsa::SigningKey;
use slipstream_executor::{SealedBatch, Transaction};
use slipstream_storage::{CommitBatch, Speculation, StorageError, Store};
use slipstream_types::{Address, B256, Bytes, Certificate, Delta, SecretKey, U256, ValidatorSet};

use crate::certify;

/// The maximum fee per gas of a [`Wallet`]'s transactions, in wei.
const FEE_WEI_MAX: u128 = 1_000_000_000;

/// An account that signs transactions, each with the next nonce.
#[derive(Clone)]
pub struct Wallet {
    key: SigningKey,
    chain_id: u64,
    nonce: u64,
    gas_limit: u64,
}

impl Wallet {
    /// Makes the wallet whose secret key is the byte `seed` 32 times. All its transactions have this gas limit.
    ///
    /// # Panics
    /// If the byte is 0 or 255: no such secret key exists.
    pub fn new(seed: u8, chain_id: u64, gas_limit: u64) -> Wallet {
        let key = SigningKey::from_slice(&[seed; 32]).expect("a scalar from 1 to below the order");
        Wallet { key, chain_id, nonce: 0, gas_limit }
    }

    /// The account's address.
    pub fn address(&self) -> Address {
        Address::from_public_key(self.key.verifying_key())
    }

    /// The nonce of the transaction that it signs next.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Signs its next transaction, which pays a tip of one wei, and returns the encoded bytes.
    pub fn sign(&mut self, to: TxKind, value_wei: u64, input: Bytes) -> Vec<u8> {
        let transaction = TxEip1559 {
            chain_id: self.chain_id,
            nonce: self.nonce,
            gas_limit: self.gas_limit,
            max_fee_per_gas: FEE_WEI_MAX,
            max_priority_fee_per_gas: 1,
            to,
            value: U256::from(value_wei),
            access_list: Default::default(),
            input,
        };
        self.nonce += 1;
        TxEnvelope::from(signed(transaction, &self.key)).encoded_2718()
    }

    /// As [`Wallet::sign`], for a legacy transaction without a chain id, as before EIP-155.
    pub fn sign_unprotected(&mut self, to: TxKind, value_wei: u64, input: Bytes) -> Vec<u8> {
        let transaction = TxLegacy {
            chain_id: None,
            nonce: self.nonce,
            gas_price: FEE_WEI_MAX,
            gas_limit: self.gas_limit,
            to,
            value: U256::from(value_wei),
            input,
        };
        self.nonce += 1;
        TxEnvelope::from(signed(transaction, &self.key)).encoded_2718()
    }
}

/// Signs a transaction with this key.
pub fn signed<T: SignableTransaction<Signature>>(transaction: T, key: &SigningKey) -> Signed<T> {
    let signature = key.sign_prehash_recoverable(transaction.signature_hash().as_slice());
    transaction.into_signed(Signature::from(signature.expect("a digest can be signed")))
}

/// A batch that was executed and sealed on top of a store's head.
pub struct Batch<'a> {
    /// The batch with its header and certificate.
    pub sealed: &'a SealedBatch,
    /// The batch's changes to the state.
    pub delta: &'a Delta,
    /// The transactions of its body.
    pub transactions: &'a [Transaction],
    /// The next epoch's validators, if it ends its own.
    pub next: Option<ValidatorSet>,
}

impl Batch<'_> {
    /// Commits the batch to the store, with a certificate signed by these keys: validators 0, 1, 2 and so on.
    /// `speculation` is the state that the delta gives.
    ///
    /// # Errors
    /// If the store fails.
    pub fn commit(
        self,
        store: &Store,
        speculation: Speculation,
        keys: &[SecretKey],
    ) -> Result<Certificate, StorageError> {
        let Batch { sealed, delta, transactions, next } = self;
        let certificate = certify(&store.head()?.accumulator, &sealed.header, next, keys);
        let hashes: Vec<B256> = transactions.iter().map(|transaction| transaction.hash).collect();
        let batch = CommitBatch { certificate: Some(&certificate), ..sealed.commit_batch(delta, &hashes) };
        store.commit(batch, Some(speculation))?;
        Ok(certificate)
    }
}

#[cfg(test)]
mod tests {
    use slipstream_executor::{BatchContext, HintsMode, decode_body, execute, seal};
    use slipstream_storage::StorageConfig;
    use slipstream_types::{Body, Epoch, Genesis, genesis::GenesisAccount};

    use super::*;
    use crate::{genesis, keys};

    /// Goal: a wallet's transactions are executed one after another, and the store has the certificate of their batch.
    #[test]
    fn a_wallets_transactions_become_a_certified_batch() {
        let keys = keys([1]);
        let mut wallet = Wallet::new(9, Genesis::default().chain.chain_id, 21_000);
        let rich = GenesisAccount { balance: U256::from(10).pow(U256::from(18)), ..Default::default() };
        let genesis = Genesis { accounts: [(wallet.address(), rich)].into(), ..genesis(&keys, 1_000) };
        let store = Store::memory(&StorageConfig::default());
        store.initialize(&genesis).unwrap();

        let to = TxKind::Call(Address::repeat_byte(7));
        let raw = (0..2).map(|_| wallet.sign(to, 5, Bytes::new())).collect();
        assert_eq!(wallet.nonce(), 2);
        let transactions = decode_body(&Body::new(raw).unwrap(), &genesis.chain).unwrap();
        let head = store.head().unwrap();
        let proposer = Address::ZERO;
        let basis = BatchContext { parent: &head.header, epoch: Epoch(0), timestamp_ms: 1_100, proposer };
        let env = basis.env(&genesis.chain);
        let outcome = execute(&store.view().unwrap(), &env, &transactions).unwrap();
        assert!(outcome.receipts.receipts.iter().all(|receipt| receipt.success));
        let speculation = store.speculate(&outcome.delta).unwrap();
        let sealed = seal(HintsMode::Keys, &basis, &transactions, &outcome, speculation.root()).unwrap();
        let batch = Batch { sealed: &sealed, delta: &outcome.delta, transactions: &transactions, next: None };
        let certificate = batch.commit(&store, speculation, &keys).unwrap();

        certificate.verify(&genesis.validator_set()).unwrap();
        assert_eq!(store.certificate(sealed.header.number).unwrap(), Some(certificate));
    }
}
