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

use std::{sync::Arc, time::Duration};

use alloy_consensus::{TxEip1559, TxLegacy};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, hex, keccak256};
use serde_json::{Value, json, value::to_raw_value};
use slipstream_consensus::PoolConfig;
use slipstream_fair::{Leash, Origin, Turns};
use slipstream_storage::{StateHistory, StorageConfig, Store};
use slipstream_types::{
    BatchHeader, BatchNumber, Body, ChainConfig, Digest, Epoch, Log, Receipt, Receipts, RulesId, Totals,
    bounded::{BoundedBytes, BoundedVec},
};
use tokio_util::sync::CancellationToken;

use super::{
    Keeps, RpcContext, Table, TraceLimits,
    batches::{Batch, BatchParts, Reader},
    blocks,
    errors::{OUTPUT_BYTES_MAX, RpcError},
    fixture::{
        CHAIN_ID, CONTRACT, ZEROS, chain, context, context_keeping, context_of, context_under, raw, sender,
        signed, transfer,
    },
    lanes::{Lane, Lanes},
    methods, send_sync,
    senders::KnownSenders,
    table, transactions, txpool,
};

/// The leash of work that has a waiting caller.
pub(crate) fn loose() -> Leash {
    loose_until(CancellationToken::new())
}

/// The leash of unmetered work whose caller waits until `gone`.
pub(crate) fn loose_until(gone: CancellationToken) -> Leash {
    Leash::begin(None, None, Turns::new(1), gone)
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

/// JSON-RPC over a chain with only its genesis: one rich account and two contracts. The first contract answers 0x2a
/// without call data and reverts with any. The second returns as many zeros as its first word says, or reverts with
/// them if there is a second word.
pub(super) struct Fixture(pub(super) Table);

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
