//! States that callers name by number or hash while the head moves on.

use tokio::task::JoinHandle;

use super::{trace::commit, *};

const BATCHES: u64 = 150;
/// Receives 7 wei in each batch.
const RECIPIENT: Address = Address::repeat_byte(2);

/// Requests the state after a batch by number and by hash. The nonce, the balance, and a call's view of state and block
/// identify the batch.
async fn check(rpc: &Fixture, number: u64) {
    let by_number = json!(format!("0x{number:x}"));
    let block = rpc.result("eth_getBlockByNumber", json!([by_number, false])).await;
    assert_eq!(block["number"], by_number);
    let by_hash = json!({ "blockHash": block["hash"] });
    // PUSH20 of the recipient and BALANCE, or NUMBER.
    let codes = [(format!("73{}31", hex::encode(RECIPIENT)), 7 * number), ("43".to_owned(), number)];
    for id in [by_number, by_hash] {
        let nonce = rpc.result("eth_getTransactionCount", json!([sender(), id])).await;
        assert_eq!(nonce, json!(format!("0x{:x}", number + 1)), "{id}");
        let balance = rpc.result("eth_getBalance", json!([RECIPIENT, id])).await;
        assert_eq!(balance, json!(format!("0x{:x}", 7 * number)), "{id}");
        for (code, expected) in &codes {
            let overrides = json!({ (CONTRACT.to_string()): { "code": format!("0x{code}5f5260205ff3") } });
            let answer = rpc.result("eth_call", json!([{ "to": CONTRACT }, id, overrides])).await;
            assert_eq!(answer, json!(B256::from(U256::from(*expected))), "{id}");
        }
    }
}

/// Requests mostly the newest states, until the writer is done and once more.
async fn read(rpc: &Fixture, writer: &JoinHandle<()>, mut random: u64) {
    loop {
        let is_last = writer.is_finished();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let head = rpc.result("eth_blockNumber", json!([])).await;
        let head = u64::from_str_radix(head.as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
        let number = match (random >> 33) % 4 {
            0 => (random >> 40) % (head + 1),
            back => head.saturating_sub(back - 1),
        };
        check(rpc, number).await;
        if is_last {
            return;
        }
    }
}

/// Goal: while batches are committed, a block's number or hash means the state after that block, in every read and
/// call.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_means_its_state_while_the_head_moves_on() {
    let rpc = Fixture::new();
    let context = rpc.0.context.clone();
    let writer = tokio::task::spawn_blocking(move || {
        (1..=BATCHES).for_each(|nonce| commit(&context, &[signed(transfer(nonce, 1))]));
    });
    tokio::join!(read(&rpc, &writer, 1), read(&rpc, &writer, 2), read(&rpc, &writer, 3));
    writer.await.unwrap();
    check(&rpc, BATCHES).await;
}
