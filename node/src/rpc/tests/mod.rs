//! A chain with only its genesis, and JSON-RPC over it.

mod calls;
mod fees;
mod gone;
mod methods;
mod past;
mod pool;
mod shown;
mod simulate;
mod trace;
mod unprotected;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use alloy_consensus::{SignableTransaction, TxEip1559, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, hex, keccak256};
use k256::ecdsa::SigningKey;
use serde_json::{Value, json, value::to_raw_value};
use slipstream_consensus::{Forwarder, Journal, Pool, PoolConfig};
use slipstream_executor::Envelope;
use slipstream_storage::{StateHistory, StorageConfig, Store};
use slipstream_types::{
    BatchHeader, BatchNumber, Body, ChainConfig, Digest, Epoch, Genesis, Log, Receipt, Receipts, RulesId,
    Totals,
    bounded::{BoundedBytes, BoundedVec},
    genesis::GenesisAccount,
};
use tokio_util::sync::CancellationToken;

use super::{
    Keeps, RpcContext, Table, TraceLimits,
    batches::{Batch, Parts, Reader},
    blocks,
    errors::{OUTPUT_BYTES_MAX, RpcError},
    fixture,
    lanes::{Lane, Lanes},
    methods, send_sync,
    senders::KnownSenders,
    table, transactions, txpool,
};
use crate::{leash::Leash, origin::Origin};

const CHAIN_ID: u64 = 7_357;
const CONTRACT: Address = Address::repeat_byte(0xcc);
pub(crate) const ZEROS: Address = Address::repeat_byte(0xdd);

/// The leash of work that has a waiting caller.
pub(crate) fn loose() -> Leash {
    Leash::loose(CancellationToken::new())
}

fn key() -> SigningKey {
    SigningKey::from_slice(&[5; 32]).unwrap()
}

fn sender() -> Address {
    Address::from_private_key(&key())
}

fn signed<T: SignableTransaction<Signature>>(transaction: T) -> Bytes
where
    Envelope: From<alloy_consensus::Signed<T>>,
{
    Envelope::from(slipstream_testkit::signed(transaction, &key())).encoded_2718().into()
}

/// A transaction that the pool accepts.
pub(crate) fn raw() -> Bytes {
    raw_at(1)
}

/// The same with another nonce.
pub(crate) fn raw_at(nonce: u64) -> Bytes {
    signed(transfer(nonce, 1_000_000))
}

/// A transaction whose input is so long that the pool keeps some forty like it in full.
pub(crate) fn long_raw_at(nonce: u64) -> Bytes {
    signed(TxEip1559 { gas_limit: 2_000_000, input: vec![0; 100_000].into(), ..transfer(nonce, 1_000_000) })
}

fn transfer(nonce: u64, tip: u128) -> TxEip1559 {
    TxEip1559 {
        chain_id: CHAIN_ID,
        nonce,
        gas_limit: 100_000,
        max_fee_per_gas: 20_000_000,
        max_priority_fee_per_gas: tip,
        to: TxKind::Call(Address::repeat_byte(2)),
        value: U256::from(7),
        ..TxEip1559::default()
    }
}

fn header(body: &Body) -> BatchHeader {
    BatchHeader {
        number: BatchNumber::new(3),
        parent: Digest([3; 32]),
        epoch: Epoch(0),
        rules: RulesId::GENESIS,
        timestamp_ms: 1_700_000_000_999,
        proposer: Address::repeat_byte(9),
        tx_count: body.transactions.len() as u32,
        tx_bytes: 400,
        gas_used: 71_000,
        delta_bytes: 1,
        transactions_root: Digest([4; 32]),
        receipts_root: Digest([5; 32]),
        delta_digest: Digest([6; 32]),
        state_root: Digest([7; 32]),
        totals: Totals::default(),
    }
}

/// A transfer with one log, then the creation of a contract with one log.
fn batch() -> Batch {
    let create = TxLegacy {
        chain_id: Some(CHAIN_ID),
        nonce: 1,
        gas_price: 30_000_000,
        gas_limit: 100_000,
        to: TxKind::Create,
        value: U256::ZERO,
        input: Bytes::from_static(&[0x60]),
    };
    let body = Body::new(vec![signed(transfer(0, 1_000_000)).to_vec(), signed(create).to_vec()]).unwrap();
    let log = |byte| Log {
        address: CONTRACT,
        topics: BoundedVec::new(vec![Digest([byte; 32])]).unwrap(),
        data: BoundedBytes::new(vec![byte]).unwrap(),
    };
    let receipt = |tx_type, success, gas_used, byte| Receipt {
        tx_type,
        success,
        gas_used,
        logs: BoundedVec::new(vec![log(byte)]).unwrap(),
    };
    let receipts = vec![receipt(2, true, 21_000, 0xa1), receipt(0, false, 50_000, 0xa2)];
    let receipts = Receipts { receipts: BoundedVec::new(receipts).unwrap() };
    Batch::new(header(&body), Some(body), Some(receipts))
}

fn chain() -> ChainConfig {
    ChainConfig { chain_id: CHAIN_ID, ..ChainConfig::default() }
}

/// JSON-RPC over a chain with only its genesis: one rich account and two contracts. The first contract answers 0x2a
/// without call data and reverts with any. The second returns as many zeros as its first word says, or reverts with
/// them if there is a second word.
pub(super) struct Fixture(pub(super) Table);

/// The context of the methods, over this chain.
pub(crate) fn context() -> RpcContext {
    context_under(chain())
}

/// The same with a pool of this configuration, and a journal.
pub(crate) fn context_of(pool: PoolConfig, journal: Option<Journal>) -> RpcContext {
    let context = context();
    let pool = Pool::new(pool, context.chain.clone(), context.store.clone()).unwrap();
    let forwarder =
        Forwarder::new(pool.clone(), &context.chain, context.transport.clone(), &[], journal).unwrap();
    RpcContext { pool, forwarder, ..context }
}

/// The same under other rules.
fn context_under(chain: ChainConfig) -> RpcContext {
    // A window that a test can outgrow.
    let state_history = StateHistory::Batches(256);
    context_keeping(chain, &StorageConfig { state_history, ..StorageConfig::default() })
}

/// The same over a store with this configuration.
fn context_keeping(chain: ChainConfig, storage: &StorageConfig) -> RpcContext {
    let validators = slipstream_testkit::keys([1]);
    // CALLDATASIZE ISZERO PUSH1 8 JUMPI  PUSH0 PUSH0 REVERT  JUMPDEST PUSH1 42 PUSH0 MSTORE PUSH1 32 PUSH0 RETURN
    let code = hex!("36156008575f5ffd5b602a5f5260205ff3").to_vec();
    let contract = GenesisAccount {
        code: BoundedBytes::new(code).unwrap(),
        storage: BTreeMap::from([(B256::with_last_byte(1), U256::from(99))]),
        ..GenesisAccount::default()
    };
    // PUSH1 32 CALLDATALOAD PUSH1 10 JUMPI  PUSH0 CALLDATALOAD PUSH0 RETURN  JUMPDEST PUSH0 CALLDATALOAD PUSH0 REVERT
    let code = hex!("602035600a575f355ff35b5f355ffd").to_vec();
    let zeros = GenesisAccount { code: BoundedBytes::new(code).unwrap(), ..GenesisAccount::default() };
    let rich =
        GenesisAccount { balance: U256::from(10).pow(U256::from(18)), nonce: 1, ..GenesisAccount::default() };
    let genesis = Genesis {
        chain: chain.clone(),
        timestamp_ms: 1_700_000_000_000,
        validators: slipstream_testkit::members(&validators, Address::ZERO),
        accounts: BTreeMap::from([(sender(), rich), (CONTRACT, contract), (ZEROS, zeros)]),
        ..Genesis::default()
    };
    let store = Store::memory(storage);
    store.initialize(&genesis).unwrap();
    fixture::over(&genesis, store)
}

impl Fixture {
    pub(super) fn new() -> Fixture {
        Fixture(table(context()))
    }

    pub(super) async fn ask(&self, method: &str, params: Value) -> Value {
        self.ask_as(Origin::Trusted, method, params).await
    }

    pub(super) async fn ask_as(&self, origin: Origin, method: &str, params: Value) -> Value {
        let params = to_raw_value(&params).unwrap();
        let reply = self.0.call(origin, method, Some(&params)).await.expect("there is such a method");
        if let Some(effect) = reply.effect {
            effect.told();
        }
        match reply.result {
            Ok(result) => json!({ "result": result }),
            Err(error) => json!({ "error": error }),
        }
    }

    pub(super) async fn result(&self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params).await;
        assert!(answer.get("result").is_some(), "{method}: {answer}");
        answer["result"].clone()
    }

    pub(super) async fn error(&self, method: &str, params: Value) -> (i64, String) {
        let answer = self.ask(method, params).await;
        (answer["error"]["code"].as_i64().unwrap(), answer["error"]["message"].as_str().unwrap().to_owned())
    }
}

/// A failure with this text.
pub(crate) fn internal_error(text: &str) -> RpcError {
    RpcError::Rejected(text.to_owned())
}
