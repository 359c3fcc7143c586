//! Reading the state, sending transactions, blocks and fees, and how calls of one kind affect those of another.

use serde_json::value::RawValue;
use slipstream_types::{Schedule, ScheduledFork, chain::Fork, schedule::Activation};

use super::*;

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
    assert_eq!((code, &*text), (-32000, "header not found: batch 5 does not exist yet; the head is batch 0"));
    let block = rpc.result("eth_getBlockByNumber", json!(["latest", false])).await;
    let (code, text) = rpc.error("eth_getBalance", json!([sender(), B256::ZERO])).await;
    assert_eq!(code, -32000);
    assert!(text.starts_with("header for hash not found: no block here has the hash 0x0000"), "{text}");
    let at_hash = json!([sender(), { "blockHash": block["hash"] }]);
    assert_eq!(rpc.result("eth_getTransactionCount", at_hash).await, "0x1");
    assert_eq!(rpc.error("eth_getBalance", json!(["0x12"])).await.0, -32602);
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
    assert_eq!(rpc.result("net_listening", json!([])).await, true);
    assert_eq!(rpc.result("eth_baseFee", json!([])).await, "0x989680");
    assert_eq!(rpc.result("eth_gasPrice", json!([])).await, "0xa7d8c0");
    let history = rpc.result("eth_feeHistory", json!(["0x4", "latest", [25.0, 75.0]])).await;
    assert_eq!(history["oldestBlock"], "0x0");
    assert_eq!(history["baseFeePerGas"], json!(["0x989680", "0x989680"]));
    assert_eq!(history["gasUsedRatio"], json!([0.0]));
    assert_eq!(history["reward"], json!([["0x0", "0x0"]]));
    for count in [json!("4"), json!("0x04"), json!(4)] {
        let same = rpc.result("eth_feeHistory", json!([count, "latest", [25.0, 75.0]])).await;
        assert_eq!(same, history, "{count}");
    }
    let nothing = rpc.result("eth_feeHistory", json!(["0x0", "latest", []])).await;
    assert_eq!(nothing, json!({ "oldestBlock": "0x0", "gasUsedRatio": null }));
    for (params, text) in [
        (json!(["0x4", "latest", [75.0, 25.0]]), "invalid reward percentile: #0:75.000000 >= #1:25.000000"),
        (json!(["0x4", "0x7", []]), "request beyond head block: requested 7, head 0"),
    ] {
        let (code, message) = rpc.error("eth_feeHistory", params).await;
        assert_eq!((code, &*message), (-32000, text));
    }
    assert_eq!(rpc.result("eth_getBlockByNumber", json!(["0x7", false])).await, Value::Null);
    assert_eq!(rpc.result("eth_getBlockByHash", json!([B256::ZERO, false])).await, Value::Null);
    assert_eq!(rpc.result("eth_getBlockReceipts", json!(["latest"])).await, json!([]));
    assert_eq!(rpc.result("eth_getBlockTransactionCountByNumber", json!(["latest"])).await, "0x0");
    let block = rpc.result("eth_getBlockByNumber", json!(["latest", false])).await;
    let hash = block["hash"].clone();
    let header = rpc.result("eth_getHeaderByNumber", json!(["latest"])).await;
    assert_eq!(rpc.result("eth_getHeaderByHash", json!([hash])).await, header);
    let mut others: Vec<_> =
        block.as_object().unwrap().keys().filter(|field| header[&***field] != block[&***field]).collect();
    others.sort_unstable();
    assert_eq!(others, ["size", "transactions", "uncles", "withdrawals"]);
    assert_eq!(rpc.result("eth_getHeaderByNumber", json!(["0x7"])).await, Value::Null);
    for (method, block, count) in [
        ("eth_getUncleCountByBlockNumber", json!("latest"), json!("0x0")),
        ("eth_getUncleCountByBlockNumber", json!("0x7"), Value::Null),
        ("eth_getUncleCountByBlockHash", hash, json!("0x0")),
        ("eth_getUncleCountByBlockHash", json!(B256::ZERO), Value::Null),
    ] {
        assert_eq!(rpc.result(method, json!([block])).await, count, "{method} {block}");
    }
    assert_eq!(
        rpc.result("eth_getLogs", json!([{ "fromBlock": "0x0", "toBlock": "latest" }])).await,
        json!([])
    );
    assert_eq!(rpc.error("eth_getLogs", json!([{ "blockHash": B256::ZERO }])).await.0, -32000);
}

/// Goal: the pending block follows the head and is not produced yet, as in geth. It shows no content that the next
/// block might not have.
#[tokio::test]
async fn the_pending_block_is_not_made_yet() {
    let rpc = Fixture::new();
    rpc.result("eth_sendRawTransaction", json!([raw()])).await;
    let latest = rpc.result("eth_getBlockByNumber", json!(["latest", false])).await;
    let pending = rpc.result("eth_getBlockByNumber", json!(["pending", true])).await;
    for (field, value) in [
        ("number", json!("0x1")),
        ("parentHash", latest["hash"].clone()),
        ("hash", Value::Null),
        ("nonce", Value::Null),
        ("miner", Value::Null),
        ("stateRoot", json!(B256::ZERO)),
        ("gasUsed", json!("0x0")),
        ("gasLimit", latest["gasLimit"].clone()),
        ("baseFeePerGas", latest["baseFeePerGas"].clone()),
        ("transactions", json!([])),
    ] {
        assert_eq!(pending.get(field), Some(&value), "{field}");
    }
    let header = rpc.result("eth_getHeaderByNumber", json!(["pending"])).await;
    for field in ["number", "parentHash", "hash", "nonce", "miner", "stateRoot", "gasLimit"] {
        assert_eq!(header.get(field), pending.get(field), "{field} of the header");
    }
    let keys = |block: &Value| block.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&pending), keys(&latest));
    for (method, params, expected) in [
        ("eth_getBlockTransactionCountByNumber", json!(["pending"]), json!("0x0")),
        ("eth_getBlockReceipts", json!(["pending"]), json!([])),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["pending", "0x0"]), Value::Null),
        ("eth_getRawTransactionByBlockNumberAndIndex", json!(["pending", "0x0"]), json!("0x")),
        ("eth_getUncleCountByBlockNumber", json!(["pending"]), json!("0x0")),
        ("trace_block", json!(["pending"]), json!([])),
        ("debug_traceBlockByNumber", json!(["pending"]), json!([])),
    ] {
        assert_eq!(rpc.result(method, params).await, expected, "{method}");
    }
}

/// Goal: one call reads the slots of several accounts, in the requested order, up to its limit.
#[tokio::test]
async fn slots_of_several_accounts_at_once() {
    let rpc = Fixture::new();
    let asked = json!({ (CONTRACT.to_string()): ["0x1", B256::ZERO], (sender().to_string()): [] });
    let name = |address: Address| json!(address).as_str().unwrap().to_owned();
    let values = rpc.result("eth_getStorageValues", json!([asked, "latest"])).await;
    let expected = json!({ (name(CONTRACT)): [B256::with_last_byte(99), B256::ZERO], (name(sender())): [] });
    assert_eq!(values, expected);
    assert_eq!(rpc.result("eth_getStorageValues", json!([{}])).await, json!({}));
    let (code, text) = rpc.error("eth_getStorageValues", json!([asked, "0x5"])).await;
    assert_eq!((code, &*text), (-32000, "header not found: batch 5 does not exist yet; the head is batch 0"));

    let most = json!({ (CONTRACT.to_string()): vec!["0x1"; 1_024] });
    let values = rpc.result("eth_getStorageValues", json!([most])).await;
    assert_eq!(values[name(CONTRACT)].as_array().unwrap().len(), 1_024);
    for wrong in [
        json!({ (CONTRACT.to_string()): vec!["0x1"; 1_025] }),
        json!({ (CONTRACT.to_string()): vec!["0x1"; 1_024], (sender().to_string()): [] }),
        json!({ "0x12": ["0x1"] }),
        json!({ (CONTRACT.to_string()): "0x1" }),
        json!({ (CONTRACT.to_string()): ["0x1"], (name(CONTRACT)): ["0x2"] }),
        json!([]),
    ] {
        assert_eq!(rpc.error("eth_getStorageValues", json!([wrong])).await.0, -32602, "{wrong}");
    }
}

/// Goal: `eth_config` reports the present rules and those of forks planned by time; it refuses to guess the time of a
/// batch.
#[tokio::test]
async fn the_configuration_has_present_and_planned_forks() {
    let rpc = Fixture::new();
    let config = rpc.result("eth_config", json!([])).await;
    let current = &config["current"];
    assert_eq!((&current["activationTime"], &current["chainId"]), (&json!(0), &json!("0x1cbd")));
    assert_eq!(current["forkId"], "0x00000000");
    assert_eq!(current["blobSchedule"]["max"], 0);
    assert_eq!(current["precompiles"]["BLS12_G1ADD"], json!(Address::with_last_byte(11)));
    assert_eq!(current["precompiles"].as_object().unwrap().len(), 18, "{config}");
    assert_eq!(current["systemContracts"], json!({}), "the chain has none of them");
    assert_eq!((&config["next"], &config["last"]), (&Value::Null, &Value::Null));

    let under = |forks: Vec<ScheduledFork>| {
        let schedule = Schedule::new(BoundedVec::new(forks).unwrap());
        let chain = ChainConfig { fork: Fork::Prague, schedule, ..chain() };
        Fixture(methods(context_under(chain), Lanes::new()))
    };
    let osaka = ScheduledFork::evm("osaka", Activation::TimeMs(1_800_000_000_001), Fork::Osaka);
    let id = json!(Bytes::copy_from_slice(&RulesId::GENESIS.after(&osaka).0[..4]));
    let config = under(vec![osaka.clone()]).result("eth_config", json!([])).await;
    assert_eq!(config["current"]["activationTime"], 0);
    assert_eq!((&config["next"]["activationTime"], &config["next"]["forkId"]), (&json!(1_800_000_001), &id));
    assert_eq!(config["next"], config["last"]);
    assert_eq!(config["next"]["precompiles"].as_object().unwrap().len(), 18, "{config}");
    assert!(config["current"]["precompiles"]["P256VERIFY"].is_null());

    let first = ScheduledFork::evm("first", Activation::Batch(BatchNumber::new(1)), Fork::Osaka);
    let config = under(vec![first]).result("eth_config", json!([])).await;
    assert_eq!(
        (&config["current"]["activationTime"], &config["next"]),
        (&json!(1_700_000_000), &Value::Null)
    );
    let later = ScheduledFork { at: Activation::Batch(BatchNumber::new(50)), ..osaka };
    let (code, text) = under(vec![later]).error("eth_config", json!([])).await;
    assert!(code == -32000 && text.contains("batch 50, where fork osaka begins"), "{code} {text}");
}

/// Goal: costly calls that take every place of their lanes, with more waiting, delay no cheap call.
#[tokio::test]
async fn costly_calls_starve_no_cheap_ones() {
    let lanes = Lanes::new();
    let taken = [Lane::Searches, Lane::Calls].map(|lane| lanes.of(lane).places().occupy());
    let rpc = Arc::new(Fixture(methods(context(), lanes)));
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

/// Goal: a block with all its transactions queues with the costly calls, however its request is written, and so does a
/// long filter. Other calls pass them.
#[test]
fn full_blocks_and_long_filters_are_costly() {
    let rpc = Fixture::new();
    let lane = |method: &str, params: Value| rpc.0.lane(method, Some(&to_raw_value(&params).unwrap()));
    for method in ["eth_getBlockByNumber", "eth_getBlockByHash"] {
        assert_eq!(lane(method, json!(["latest", true])), Lane::Calls);
        assert_eq!(lane(method, json!(["latest", false])), Lane::Reads);
        assert_eq!(lane(method, json!(["latest"])), Lane::Reads);
        let spaced = RawValue::from_string("[ \"latest\", true \n]".into()).unwrap();
        assert_eq!(rpc.0.lane(method, Some(&spaced)), Lane::Calls);
    }
    assert_eq!(lane("eth_getBalance", json!([true])), Lane::Reads);
    assert_eq!(rpc.0.lane("eth_getBlockByNumber", None), Lane::Reads);
    let wide = json!([{ "topics": [vec![B256::ZERO; 1_000]] }]);
    for method in ["eth_subscribe", "eth_newFilter"] {
        assert_eq!(lane(method, json!([{ "topics": [B256::ZERO] }])), Lane::Reads);
        assert_eq!(lane(method, wide.clone()), Lane::Calls, "a filter of 68,000 bytes");
    }
    assert_eq!(lane("eth_chainId", wide), Lane::Reads);
}

/// Goal: docs/security.md lists each method with its bound and its threads, and no others.
#[test]
fn every_method_has_its_row_in_the_security_document() {
    let documented = include_str!("../../../../docs/security.md");
    let rows: Vec<_> = documented
        .lines()
        .filter(|line| line.starts_with("| `") && line.matches(" | ").count() == 2)
        .collect();
    let rpc = Fixture::new();
    for method in rpc.0.names() {
        let row = format!("| `{method}` | {} | ", rpc.0.lane(method, None).name());
        let count = rows.iter().filter(|line| line.starts_with(&row)).count();
        assert_eq!(count, 1, "docs/security.md lacks one row that begins {row}");
    }
    let is_method = |row: &&&str| {
        ["eth_", "net_", "web3_", "txpool_", "rpc_", "debug_", "trace_", "slipstream_"]
            .iter()
            .any(|space| row[3..].starts_with(space))
    };
    let documented = rows.iter().filter(is_method).count();
    assert_eq!(
        documented,
        rpc.0.names().count(),
        "rows of methods in docs/security.md, and methods; a new namespace belongs into the list above"
    );
}
