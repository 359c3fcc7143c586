mod calls;

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::{SignableTransaction, TxEip1559, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, hex, keccak256};
use jsonrpsee::RpcModule;
use k256::ecdsa::SigningKey;
use serde_json::{Value, json};
use slipstream_consensus::{Forwarder, Pool, PoolConfig};
use slipstream_executor::{Envelope, ExecutorConfig};
use slipstream_network::{BoxFuture, Handler, MemoryHub, Payload, PeerId, Protocol, Refusal, Transport};
use slipstream_storage::{StorageConfig, Store};
use slipstream_sync::{Follower, SyncConfig};
use slipstream_types::{
    BatchHeader, BatchNumber, Body, ChainConfig, Digest, Epoch, Genesis, Log, Receipt, Receipts, SecretKey,
    Validator,
    bounded::{BoundedBytes, BoundedVec},
    genesis::GenesisAccount,
};

use super::{
    Batches, Filters, LogIndex, RpcContext,
    batches::Batch,
    blocks,
    errors::{OUTPUT_BYTES_MAX, RpcError},
    lanes::Lanes,
    methods, module,
    senders::KnownSenders,
    transactions,
};
use crate::{
    clock::SystemClock,
    health::{HealthSource, Rules},
};

const CHAIN_ID: u64 = 7_357;
const CONTRACT: Address = Address::repeat_byte(0xcc);
pub(crate) const ZEROS: Address = Address::repeat_byte(0xdd);

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
    let (signature, parity) =
        key().sign_prehash_recoverable(transaction.signature_hash().as_slice()).unwrap();
    let signature = Signature::from((signature, parity));
    Envelope::from(transaction.into_signed(signature)).encoded_2718().into()
}

/// A transaction that the pool takes.
pub(crate) fn raw() -> Bytes {
    signed(transfer(1, 1_000_000))
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
        number: BatchNumber(3),
        parent: Digest([3; 32]),
        epoch: Epoch(0),
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

#[test]
fn a_batch_as_a_block() {
    let batch = batch();
    let block = serde_json::to_value(blocks::to_block(&chain(), &batch, false).unwrap()).unwrap();
    let expected = json!({
        "number": "0x3",
        "hash": batch.hash,
        "parentHash": B256::repeat_byte(3),
        "timestamp": "0x6553f100",
        "miner": Address::repeat_byte(9),
        "stateRoot": B256::repeat_byte(7),
        "transactionsRoot": B256::repeat_byte(4),
        "receiptsRoot": B256::repeat_byte(5),
        "mixHash": B256::repeat_byte(3),
        "gasUsed": "0x11558",
        "gasLimit": "0x11e1a300",
        "baseFeePerGas": "0x989680",
        "difficulty": "0x0",
        "nonce": "0x0000000000000000",
        "extraData": "0x",
        "size": "0x190",
        "sha3Uncles": "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347",
        "uncles": [],
        "withdrawals": [],
        "transactions": batch.hashes,
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(block[field], *value, "{field}");
    }
    let bloom: alloy_primitives::Bloom = serde_json::from_value(block["logsBloom"].clone()).unwrap();
    assert!(bloom.contains_input(alloy_primitives::BloomInput::Raw(&[0xa2; 32])));

    let full = serde_json::to_value(blocks::to_block(&chain(), &batch, true).unwrap()).unwrap();
    assert_eq!(full["transactions"][1]["hash"], json!(batch.hashes[1]));
}

#[test]
fn a_block_without_its_parts() {
    let whole = batch();
    let without = Batch::new(whole.header.clone(), None, None);
    let refused = blocks::to_block(&chain(), &without, false).unwrap_err();
    assert!(refused.to_string().starts_with("the transactions of batch 3 are not stored"), "{refused}");
    let headless = Batch::new(whole.header.clone(), whole.body.clone(), None);
    let block = serde_json::to_value(blocks::to_block(&chain(), &headless, false).unwrap()).unwrap();
    assert_eq!(
        block["logsBloom"],
        format!("0x{}", "ff".repeat(256)),
        "without receipts nothing is ruled out"
    );
    assert!(matches!(
        transactions::to_receipt(&chain(), &headless, 0),
        Err(RpcError::NotStored { what: "receipts", .. })
    ));
}

#[test]
fn transactions_as_clients_read_them() {
    let batch = batch();
    let dynamic = serde_json::to_value(transactions::to_transaction(&chain(), &batch, 0).unwrap()).unwrap();
    let expected = json!({
        "type": "0x2", "chainId": "0x1cbd", "nonce": "0x0", "gas": "0x186a0", "value": "0x7", "input": "0x",
        "maxFeePerGas": "0x1312d00", "maxPriorityFeePerGas": "0xf4240", "gasPrice": "0xa7d8c0",
        "from": sender(), "to": Address::repeat_byte(2), "hash": batch.hashes[0],
        "blockHash": batch.hash, "blockNumber": "0x3", "transactionIndex": "0x0", "accessList": [],
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(dynamic[field], *value, "{field}");
    }
    let legacy = serde_json::to_value(transactions::to_transaction(&chain(), &batch, 1).unwrap()).unwrap();
    assert_eq!(
        (&legacy["type"], &legacy["gasPrice"], &legacy["to"]),
        (&json!("0x0"), &json!("0x1c9c380"), &Value::Null)
    );
    assert!(transactions::to_transaction(&chain(), &batch, 2).unwrap().is_none());
}

#[test]
fn receipts_count_gas_and_logs_through_the_batch() {
    let batch = batch();
    let receipt = serde_json::to_value(transactions::to_receipt(&chain(), &batch, 1).unwrap()).unwrap();
    let expected = json!({
        "type": "0x0", "status": "0x0", "gasUsed": "0xc350", "cumulativeGasUsed": "0x11558",
        "effectiveGasPrice": "0x1c9c380", "transactionHash": batch.hashes[1], "transactionIndex": "0x1",
        "blockHash": batch.hash, "blockNumber": "0x3", "from": sender(), "to": null,
        "contractAddress": sender().create(1),
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(receipt[field], *value, "{field}");
    }
    let log = &receipt["logs"][0];
    assert_eq!(
        (&log["logIndex"], &log["transactionIndex"], &log["data"]),
        (&json!("0x1"), &json!("0x1"), &json!("0xa2"))
    );
    assert_eq!(log["address"], json!(CONTRACT));
    let first = serde_json::to_value(transactions::to_receipt(&chain(), &batch, 0).unwrap()).unwrap();
    assert_eq!((&first["status"], &first["contractAddress"]), (&json!("0x1"), &Value::Null));
    assert_eq!(first["cumulativeGasUsed"], "0x5208");
}

/// Goal: senders are recovered once; what a second request shows was kept by the first.
#[test]
fn senders_are_recovered_once() {
    let known = KnownSenders::new();
    let open = || {
        let Batch { header, body, receipts, .. } = batch();
        Batch::new(header, body, receipts).knowing(&known)
    };
    let from = |index| {
        let transaction = transactions::to_transaction(&chain(), &open(), index).unwrap().unwrap();
        let receipt = transactions::to_receipt(&chain(), &open(), index).unwrap().unwrap();
        assert_eq!(transaction.inner.signer(), receipt.from);
        receipt.from
    };
    assert_eq!(from(0), sender());
    assert_eq!(known.of(BatchNumber(3), 2).get(0), Some(sender()));
    // Nobody signed for this address: an answer that shows it recovered nothing.
    known.of(BatchNumber(3), 2).keep(1, CONTRACT);
    assert_eq!(from(1), CONTRACT);
    let block = serde_json::to_value(blocks::to_block(&chain(), &open(), true).unwrap()).unwrap();
    assert_eq!(
        (&block["transactions"][0]["from"], &block["transactions"][1]["from"]),
        (&json!(sender()), &json!(CONTRACT))
    );
}

struct Nobody;

impl Handler for Nobody {
    fn request<'a>(&'a self, _: PeerId, _: Protocol, _: Vec<u8>) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async { Err(Refusal::not_kept("nobody")) })
    }

    fn broadcast<'a>(&'a self, _: PeerId, _: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// JSON-RPC over a chain that has only its genesis: one rich account, one contract that answers 0x2a without call data and
/// reverts with any, and one that returns as many zeros as its first word says, or reverts with them if there is a second.
pub(super) struct Fixture(pub(super) RpcModule<RpcContext>);

/// What the methods use, over such a chain.
pub(crate) fn context() -> RpcContext {
    let validator = SecretKey::from_seed([1; 32]).public();
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
        chain: chain(),
        timestamp_ms: 1_700_000_000_000,
        validators: BoundedVec::new(vec![Validator { public_key: validator, fee_recipient: Address::ZERO }])
            .unwrap(),
        accounts: BTreeMap::from([(sender(), rich), (CONTRACT, contract), (ZEROS, zeros)]),
    };
    let store = Store::memory(&StorageConfig::default());
    store.initialize(&genesis).unwrap();
    let transport: Arc<dyn Transport> = MemoryHub::new().join(validator, Arc::new(Nobody));
    let pool = Pool::new(PoolConfig::default(), chain(), store.clone()).unwrap();
    let follower = Follower::new(
        SyncConfig::default(),
        store.clone(),
        transport.clone(),
        ExecutorConfig::default(),
        None,
        std::time::Duration::ZERO,
    );
    let clock = Arc::new(SystemClock);
    let rules = Rules { needs_peers: false, head_age_max: None };
    let health =
        HealthSource::new(rules, store.clone(), follower.unwrap(), None, transport.clone(), clock.clone());
    RpcContext {
        batches: Batches::new(store.clone()),
        chain: chain(),
        forwarder: Forwarder::new(pool.clone(), CHAIN_ID, transport.clone(), &[validator], None).unwrap(),
        pool,
        transport,
        health: Arc::new(health),
        clock,
        log_index: Arc::new(LogIndex::new(store.clone())),
        filters: Filters::default(),
        store,
    }
}

impl Fixture {
    pub(super) fn new() -> Fixture {
        Fixture(module(context()).unwrap())
    }

    pub(super) async fn ask(&self, method: &str, params: Value) -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let (answer, _) = self.0.raw_json_request(&request, 1).await.unwrap();
        serde_json::from_str(answer.get()).unwrap()
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

#[tokio::test]
async fn state_at_the_head() {
    let rpc = Fixture::new();
    for id in [
        json!("latest"),
        json!("safe"),
        json!("finalized"),
        json!("pending"),
        json!("0x0"),
        json!("earliest"),
        json!(null),
    ] {
        assert_eq!(rpc.result("eth_getTransactionCount", json!([sender(), id])).await, "0x1");
    }
    assert_eq!(rpc.result("eth_getBalance", json!([sender()])).await, "0xde0b6b3a7640000");
    assert_eq!(rpc.result("eth_getBalance", json!([Address::ZERO, "latest"])).await, "0x0");
    assert_eq!(
        rpc.result("eth_getCode", json!([CONTRACT, "latest"])).await,
        "0x36156008575f5ffd5b602a5f5260205ff3"
    );
    assert_eq!(rpc.result("eth_getCode", json!([sender(), "latest"])).await, "0x");
    for slot in [json!("0x1"), json!(B256::with_last_byte(1))] {
        assert_eq!(
            rpc.result("eth_getStorageAt", json!([CONTRACT, slot, "latest"])).await,
            json!(B256::with_last_byte(99))
        );
    }
    let (code, text) = rpc.error("eth_getBalance", json!([sender(), "0x5"])).await;
    assert_eq!((code, &*text), (-32000, "batch 5 does not exist yet; the head is batch 0"));
    let block = rpc.result("eth_getBlockByNumber", json!(["latest", false])).await;
    let at_hash = json!([sender(), { "blockHash": block["hash"] }]);
    assert_eq!(rpc.result("eth_getTransactionCount", at_hash).await, "0x1");
    assert_eq!(rpc.error("eth_getBalance", json!(["0x12"])).await.0, -32602);
}

#[tokio::test]
async fn calls_return_revert_and_are_estimated() {
    let rpc = Fixture::new();
    let answer = rpc.result("eth_call", json!([{ "to": CONTRACT }, "latest"])).await;
    assert_eq!(answer, json!(B256::with_last_byte(0x2a)));
    let reverting = json!([{ "to": CONTRACT, "data": "0x01" }, "latest"]);
    for method in ["eth_call", "eth_estimateGas"] {
        let answer = rpc.ask(method, reverting.clone()).await;
        assert_eq!(
            answer["error"],
            json!({ "code": 3, "message": "execution reverted", "data": "0x" }),
            "{method}"
        );
    }
    let gas = rpc
        .result(
            "eth_estimateGas",
            json!([{ "from": sender(), "to": Address::repeat_byte(2), "value": "0x1" }]),
        )
        .await;
    assert_eq!(gas, "0x5208");
}

/// Goal: a small request does not make an answer of any length.
#[tokio::test]
async fn long_outputs_are_refused() {
    let rpc = Fixture::new();
    let request = |len: usize, reverts: bool| {
        let words = [U256::from(len), U256::from(u8::from(reverts))];
        let data =
            words[..1 + usize::from(reverts)].iter().flat_map(U256::to_be_bytes::<32>).collect::<Bytes>();
        json!([{ "to": ZEROS, "data": data }, "latest"])
    };
    let most = rpc.result("eth_call", request(OUTPUT_BYTES_MAX, false)).await;
    assert_eq!(most.as_str().unwrap().len(), 2 + 2 * OUTPUT_BYTES_MAX);
    for (method, reverts) in [("eth_call", false), ("eth_call", true), ("eth_estimateGas", true)] {
        let (code, text) = rpc.error(method, request(OUTPUT_BYTES_MAX + 1, reverts)).await;
        assert_eq!(code, -32005, "{method}: {text}");
        assert!(
            text.starts_with("the call's output has 1048577 bytes, at most 1048576 are answered"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn sending_and_its_refusals() {
    let rpc = Fixture::new();
    let raw = signed(transfer(1, 1_000_000));
    let hash = rpc.result("eth_sendRawTransaction", json!([raw])).await;
    assert_eq!(hash, json!(keccak256(&raw)));
    let waiting = rpc.result("eth_getTransactionByHash", json!([hash])).await;
    assert_eq!((&waiting["hash"], &waiting["blockNumber"]), (&hash, &Value::Null));
    assert_eq!(rpc.result("eth_getTransactionReceipt", json!([hash])).await, Value::Null);
    assert_eq!(rpc.result("eth_getTransactionCount", json!([sender(), "pending"])).await, "0x2");
    assert_eq!(rpc.result("eth_getTransactionCount", json!([sender(), "latest"])).await, "0x1");

    let rich = TxEip1559 { value: U256::from(10).pow(U256::from(19)), ..transfer(2, 1) };
    let foreign = TxEip1559 { chain_id: 1, ..transfer(2, 1) };
    for (raw, text) in [
        (raw, "already known"),
        (signed(transfer(0, 1)), "nonce too low"),
        (signed(transfer(1, 1_000_001)), "replacement transaction underpriced"),
        (signed(rich), "insufficient funds for gas * price + value"),
        (signed(foreign), "invalid chain id for signer"),
        (Bytes::from_static(&[3, 0xc0]), "transaction type not supported: blob"),
        (vec![3; 140_000].into(), "transaction type not supported: blob"),
        (Bytes::from_static(&[0x7f, 1, 2]), "invalid transaction"),
    ] {
        let (code, message) = rpc.error("eth_sendRawTransaction", json!([raw])).await;
        assert!(message.starts_with(text), "{message}");
        assert_eq!(code, -32000, "{message}");
    }
}

#[tokio::test]
async fn blocks_fees_and_the_rest() {
    let rpc = Fixture::new();
    assert_eq!(rpc.result("eth_blockNumber", json!([])).await, "0x0");
    assert_eq!(rpc.result("net_version", json!([])).await, "7357");
    assert_eq!(rpc.result("eth_accounts", json!([])).await, json!([]));
    assert_eq!(rpc.result("eth_syncing", json!([])).await, false);
    assert_eq!(rpc.result("eth_gasPrice", json!([])).await, "0xa7d8c0");
    let history = rpc.result("eth_feeHistory", json!(["0x4", "latest", [25.0, 75.0]])).await;
    assert_eq!(history["oldestBlock"], "0x0");
    assert_eq!(history["baseFeePerGas"], json!(["0x989680", "0x989680"]));
    assert_eq!(history["gasUsedRatio"], json!([0.0]));
    assert_eq!(history["reward"], json!([["0x0", "0x0"]]));
    assert_eq!(rpc.error("eth_feeHistory", json!(["0x4", "latest", [75.0, 25.0]])).await.0, -32602);
    assert_eq!(rpc.result("eth_getBlockByNumber", json!(["0x7", false])).await, Value::Null);
    assert_eq!(rpc.result("eth_getBlockByHash", json!([B256::ZERO, false])).await, Value::Null);
    assert_eq!(rpc.result("eth_getBlockReceipts", json!(["latest"])).await, json!([]));
    assert_eq!(rpc.result("eth_getBlockTransactionCountByNumber", json!(["latest"])).await, "0x0");
    assert_eq!(
        rpc.result("eth_getLogs", json!([{ "fromBlock": "0x0", "toBlock": "latest" }])).await,
        json!([])
    );
    assert_eq!(rpc.error("eth_getLogs", json!([{ "blockHash": B256::ZERO }])).await.0, -32000);
}

/// Goal: costly calls that take every place of their lanes, and more that wait, make no cheap call wait.
#[tokio::test]
async fn costly_calls_starve_no_cheap_ones() {
    let lanes = Lanes::new();
    let taken = ["eth_getLogs", "eth_call"].map(|method| lanes.of(method).occupy());
    let rpc = Arc::new(Fixture(methods(context(), lanes).unwrap()));
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let rpc = rpc.clone();
            tokio::spawn(async move { rpc.result("eth_getLogs", json!([{ "fromBlock": "0x0" }])).await })
        })
        .collect();
    tokio::task::yield_now().await;
    assert_eq!(rpc.result("eth_chainId", json!([])).await, "0x1cbd");
    assert_eq!(rpc.result("eth_blockNumber", json!([])).await, "0x0");
    assert_eq!(rpc.result("eth_getBalance", json!([sender()])).await, "0xde0b6b3a7640000");
    assert!(waiting.iter().all(|call| !call.is_finished()));
    drop(taken);
    for call in waiting {
        assert_eq!(call.await.unwrap(), json!([]));
    }
}
