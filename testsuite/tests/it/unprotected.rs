//! Transactions without a chain id: a transaction that was signed for all chains deploys a known contract at its known
//! address.

use alloy_consensus::TxEip1559;
use alloy_primitives::{Address, TxKind, U256, address, b256, hex, keccak256};
use serde_json::{Value, json};
use slipnet::{
    devnet::{Devnet, DevnetOptions, SyncMode},
    rpc::{Rpc, RpcError, quantity},
    signer::seal,
};

use crate::common::{deadline, receipt, room};

/// The transaction of the standard that deploys the registry of ERC-1820. Nobody has its sender's key.
const TRANSACTION: &str = include_str!("data/erc1820.transaction.hex");
const DEPLOYER: Address = address!("0xa990077c3205cbDf861e17Fa532eeB069cE9fF96");
const REGISTRY: Address = address!("0x1820a4B7618BdE71Dce8cdc73aAB6C95905faD24");
/// The most that the transaction pays, as signed: 800,000 gas at 100 gwei.
const COST_WEI: u64 = 80_000_000_000_000_000;

fn raw() -> String {
    format!("0x{}", TRANSACTION.trim())
}

/// Sends the sender the cost of the deployment.
async fn fund(devnet: &Devnet, rpc: &Rpc) {
    let transfer = TxEip1559 {
        chain_id: 7_357,
        nonce: 0,
        gas_limit: 21_000,
        max_fee_per_gas: 1_000_000_000,
        to: TxKind::Call(DEPLOYER),
        value: U256::from(COST_WEI),
        ..TxEip1559::default()
    };
    let raw = seal(&devnet.accounts()[0].key, transfer).raw;
    let hash: Value = rpc.call("eth_sendRawTransaction", json!([raw])).await.unwrap();
    assert_eq!(receipt(rpc, &hash).await["status"], "0x1");
}

/// Goal: a devnet accepts the transaction at any node, and every node has the contract. This includes a node that knows
/// the genesis only from its peers.
#[tokio::test(flavor = "multi_thread")]
async fn a_presigned_deployment_lands_on_a_devnet() {
    let _room = room().await;
    let options = DevnetOptions {
        fullnodes: 1,
        accounts: 2,
        batch_interval_ms: Some(100),
        state_history: Some(3_000),
        sync_mode: SyncMode::Replay,
        ..DevnetOptions::default()
    };
    let mut devnet = Devnet::start(options).await.unwrap();
    let fullnode = devnet.nodes()[4].rpc().clone();
    fund(&devnet, &fullnode).await;
    let hash: Value = fullnode.call("eth_sendRawTransaction", json!([raw()])).await.unwrap();
    // The hash on every chain that has the registry.
    let known = b256!("0xfefb2da535e927b85fe68eb81cb2e4a5827c905f78381a01ef2322aa9b0aee8e");
    assert_eq!(hash, json!(known));
    let receipt = receipt(&fullnode, &hash).await;
    assert_eq!((&receipt["status"], &receipt["contractAddress"]), (&json!("0x1"), &json!(REGISTRY)));
    let number = quantity(&receipt["blockNumber"]).unwrap();

    let waypoint = devnet.manifest().await.unwrap().waypoint.expect("a certificate");
    let late = devnet.add_fullnode_by_waypoint("late", SyncMode::Replay, &waypoint).await.unwrap();
    for index in 0..=late {
        devnet.node_mut(index).wait_head(number, deadline()).await.unwrap();
        let rpc = devnet.nodes()[index].rpc();
        let code: String = rpc.call("eth_getCode", json!([REGISTRY, "latest"])).await.unwrap();
        let code = code.strip_prefix("0x").unwrap();
        assert!(code.len() == 2 * 2_501 && TRANSACTION.contains(code), "{code}");
        // interfaceHash("ERC777Token")
        let mut call = hex!("65ba36c1").to_vec();
        let name = b"ERC777Token";
        call.extend(U256::from(32).to_be_bytes::<32>());
        call.extend(U256::from(name.len()).to_be_bytes::<32>());
        call.extend(name);
        call.resize(4 + 3 * 32, 0);
        let call = json!({ "to": REGISTRY, "data": hex::encode_prefixed(call) });
        let answer: Value = rpc.call("eth_call", json!([call, "latest"])).await.unwrap();
        assert_eq!(answer, json!(keccak256(name)));

        let shown: Value = rpc.call("eth_getTransactionByHash", json!([hash])).await.unwrap();
        assert!(shown.get("chainId").is_none(), "{shown}");
        assert_eq!((&shown["v"], &shown["type"]), (&json!("0x1b"), &json!("0x0")), "{shown}");
        assert_eq!(shown["from"], json!(DEPLOYER));
        let traced: Value =
            rpc.call("debug_traceTransaction", json!([hash, { "tracer": "callTracer" }])).await.unwrap();
        assert_eq!((&traced["type"], &traced["to"]), (&json!("CREATE"), &json!(REGISTRY)), "{traced}");
    }
    devnet.stop().await.unwrap();
}

/// Goal: without the option, a node refuses the transaction, with the error that clients know.
#[tokio::test(flavor = "multi_thread")]
async fn a_strict_devnet_refuses_it() {
    let options = DevnetOptions {
        validators: 1,
        accounts: 2,
        unprotected_transactions: false,
        ..DevnetOptions::default()
    };
    let devnet = Devnet::start(options).await.unwrap();
    let rpc = devnet.proposer().rpc().clone();
    fund(&devnet, &rpc).await;
    let error = rpc.call::<Value>("eth_sendRawTransaction", json!([raw()])).await.unwrap_err();
    let error = error.downcast_ref::<RpcError>().unwrap();
    let known = "only replay-protected (EIP-155) transactions allowed over RPC";
    assert!(error.code == -32000 && error.message.starts_with(known), "{error}");
    devnet.stop().await.unwrap();
}
