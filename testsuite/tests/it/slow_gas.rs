//! Slow gas halts no chain, and its sender learns the outcome.

use alloy_consensus::TxEip1559;
use alloy_primitives::{Address, Bytes, TxKind, U256, hex};
use serde_json::{Value, json};
use slipnet::{
    devnet::{Devnet, DevnetOptions},
    rpc::{Rpc, RpcError},
    signer::seal,
};

use crate::common::{receipt, room, until};

/// Deploys a program that copies its input, and calls MODEXP with it until the gas is used up.
const PROGRAM: [u8; 25] = hex!("70365f5f375b5f5f365f60055afa506004565f526011600ff3");
/// More than one batch's gas: at MODEXP's slowest, a quarter of a minute of execution.
const ATTACKS: u64 = 18;

/// Returns the lengths of base, exponent and modulus, then ones in all bits but the last.
fn slowest_input() -> Vec<u8> {
    let mut input: Vec<u8> =
        [8u64, 81, 8].into_iter().flat_map(|bytes| U256::from(bytes).to_be_bytes::<32>()).collect();
    input.extend([0xff; 96]);
    input.push(0xfe);
    input
}

async fn send(rpc: &Rpc, devnet: &Devnet, account: usize, transaction: TxEip1559) -> (String, Value) {
    let raw = seal(&devnet.accounts()[account].key, transaction).raw;
    let hash: Value = rpc.call("eth_sendRawTransaction", json!([raw])).await.unwrap();
    (raw.to_string(), hash)
}

/// Goal: 18 transactions of one account, whose gas takes very long to execute, halt no chain. Transactions of other
/// accounts are included meanwhile, and each attack is executed or refused with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn slow_gas_halts_no_chain() {
    let _room = room().await;
    let options = DevnetOptions { fullnodes: 0, accounts: 2, ..DevnetOptions::default() };
    let devnet = Devnet::start(options).await.unwrap();
    let (proposer, rpc) = (devnet.proposer().rpc().clone(), devnet.nodes()[1].rpc().clone());
    let base = |nonce, gas_limit| TxEip1559 {
        chain_id: 7_357,
        nonce,
        gas_limit,
        max_fee_per_gas: 3_000_000_000,
        max_priority_fee_per_gas: 1_000_000_000,
        ..TxEip1559::default()
    };
    let deployment =
        TxEip1559 { to: TxKind::Create, input: Bytes::from(PROGRAM.to_vec()), ..base(0, 200_000) };
    let (_, deployed) = send(&rpc, &devnet, 0, deployment).await;
    let program: Address =
        serde_json::from_value(receipt(&rpc, &deployed).await["contractAddress"].clone()).unwrap();
    let mut attacks = Vec::new();
    for nonce in 1..=ATTACKS {
        let attack =
            TxEip1559 { to: TxKind::Call(program), input: slowest_input().into(), ..base(nonce, 1 << 24) };
        attacks.push(send(&proposer, &devnet, 0, attack).await);
    }
    for nonce in 0..5 {
        let transfer = TxEip1559 {
            to: TxKind::Call(Address::repeat_byte(7)),
            value: U256::from(1),
            ..base(nonce, 21_000)
        };
        let (_, hash) = send(&rpc, &devnet, 1, transfer).await;
        assert_eq!(receipt(&rpc, &hash).await["status"], "0x1");
    }
    let (raw, hash) = &attacks[0];
    until("what became of the first", async || {
        let receipt: Value = proposer.call("eth_getTransactionReceipt", json!([hash])).await.unwrap();
        if !receipt.is_null() {
            return Ok(());
        }
        let again = proposer.call::<Value>("eth_sendRawTransaction", json!([raw])).await;
        let refused = again.err().and_then(|error| Some(error.downcast_ref::<RpcError>()?.message.clone()));
        let is_told =
            refused.as_ref().is_some_and(|message| message.contains("takes longer than the validators have"));
        is_told.then_some(()).ok_or_else(|| format!("{refused:?}"))
    })
    .await;
    devnet.stop().await.unwrap();
}
