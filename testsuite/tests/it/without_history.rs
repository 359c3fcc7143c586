//! The answers of a node with the preset `light`: it has the state and the headers, and keeps no transactions.

use std::collections::BTreeMap;

use alloy_consensus::TxEip1559;
use alloy_primitives::{Address, TxKind, U256, address};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use slipnet::{
    accounts::Account,
    devnet::{DevnetOptions, NodeOptions},
    rpc::{Rpc, RpcError, quantity},
    signer::{Signed, seal},
};
use tokio::net::TcpStream;
use tokio_tungstenite::{client_async, tungstenite::Message};

use crate::common::{deadline, fullnode, pair, receipt, until};

const RECEIVER: Address = address!("00000000000000000000000000000000000bee77");
/// The error code "Pruned history unavailable".
const GONE: i64 = 4444;
const TIP_WEI: u128 = 0xf4240;

/// Signs a transfer of seven wei to the receiver.
fn transfer(sender: &Account, nonce: u64) -> Signed {
    let transaction = TxEip1559 {
        chain_id: 7_357,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 1_000_000_000,
        max_priority_fee_per_gas: TIP_WEI,
        to: TxKind::Call(RECEIVER),
        value: U256::from(7),
        ..TxEip1559::default()
    };
    seal(&sender.key, transaction)
}

/// Checks that the node says that it lacks this history; the error is its other answer.
async fn gone(rpc: &Rpc, method: &str, params: Value) -> Result<(), String> {
    let error = match rpc.call::<Value>(method, params).await {
        Ok(answer) => return Err(format!("{method}: {answer}")),
        Err(error) => error,
    };
    let is_gone = error.downcast_ref::<RpcError>().is_some_and(|error| error.code == GONE);
    if is_gone { Ok(()) } else { Err(format!("{error:#}")) }
}

/// Returns the answer to a request over WebSocket.
async fn by_socket(rpc: &Rpc, request: Value) -> Value {
    let host = rpc.url().trim_start_matches("http://");
    let stream = TcpStream::connect(host).await.unwrap();
    let (mut socket, _) = client_async(format!("ws://{host}/ws"), stream).await.unwrap();
    socket.send(Message::text(request.to_string())).await.unwrap();
    loop {
        // The node also sends pings.
        if let Message::Text(answer) = socket.next().await.unwrap().unwrap() {
            return serde_json::from_str(&answer).unwrap();
        }
    }
}

/// Checks that the node has the newest state and an empty batch like a validator, and knows no tips of the transfer's
/// batch.
async fn check_kept(light: &Rpc, validator: &Rpc, number: &Value) {
    let balance: Value = light.call("eth_getBalance", json!([RECEIVER, "latest"])).await.unwrap();
    assert_eq!(balance, "0x7");
    assert!(light.head().await.unwrap() > quantity(number).unwrap());
    // Nobody else sends: all later batches are empty, and the validator has those of the light node.
    let block: Value = light.call("eth_getBlockByNumber", json!(["latest", true])).await.unwrap();
    let same: Value = validator.call("eth_getBlockByNumber", json!([block["number"], true])).await.unwrap();
    assert_eq!((&block["transactions"], &block), (&json!([]), &same));
    let header: Value = light.call("eth_getHeaderByNumber", json!([block["number"]])).await.unwrap();
    assert_eq!(header["hash"], block["hash"], "{header}");
    for (rpc, tip) in [(validator, TIP_WEI), (light, 0)] {
        let fees: Value = rpc.call("eth_feeHistory", json!(["0x1", number, [50.0]])).await.unwrap();
        assert_eq!(fees["reward"], json!([[format!("{tip:#x}")]]), "{fees}");
    }
}

/// Goal: a light node forwards a transfer. Once the transfer is executed, the node says that it cannot know this
/// transaction, and does not deny it. It refuses at once to wait for receipts and logs. It answers for states, headers
/// and batches without transactions.
#[tokio::test(flavor = "multi_thread")]
async fn a_light_node_denies_no_transaction() {
    let light = NodeOptions { overrides: vec!["preset=light".to_owned()], ..NodeOptions::default() };
    let nodes = BTreeMap::from([("fullnode-0".to_owned(), light)]);
    let options =
        DevnetOptions { accounts: 2, batch_interval_ms: Some(100), nodes, ..DevnetOptions::default() };
    let mut devnet = pair(options).await;
    let (validator, light) = (devnet.proposer().rpc().clone(), fullnode(&devnet).rpc().clone());
    let sender = devnet.accounts()[0].address;
    let [sent, refused] = [0, 1].map(|nonce| transfer(&devnet.accounts()[0], nonce));

    let hash: Value = light.call("eth_sendRawTransaction", json!([sent.raw])).await.unwrap();
    assert_eq!(hash, json!(sent.hash));
    let receipt = receipt(&validator, &hash).await;
    assert_eq!(receipt["status"], "0x1", "{receipt}");
    let number = receipt["blockNumber"].clone();
    devnet.node_mut(1).wait_head(quantity(&number).unwrap() + 1, deadline()).await.unwrap();

    let look = async || gone(&light, "eth_getTransactionReceipt", json!([hash])).await;
    until("the pool has dropped what is executed", look).await;
    for (method, params) in [
        ("eth_getTransactionByHash", json!([hash])),
        ("eth_getBlockByNumber", json!([number, false])),
        ("eth_getBlockByNumber", json!([number, true])),
        ("eth_getBlockReceipts", json!([number])),
        ("eth_getLogs", json!([{ "fromBlock": number, "toBlock": number }])),
        ("eth_newFilter", json!([{}])),
        ("eth_sendRawTransactionSync", json!([refused.raw])),
    ] {
        gone(&light, method, params).await.unwrap();
    }
    let count: Value = light.call("eth_getTransactionCount", json!([sender, "pending"])).await.unwrap();
    assert_eq!(count, "0x1", "it took the transaction that it refused");
    let subscribe = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["logs", {}] });
    let answer = by_socket(&light, subscribe).await;
    assert_eq!(answer["error"]["code"], GONE, "{answer}");

    check_kept(&light, &validator, &number).await;
    devnet.stop().await.unwrap();
}
