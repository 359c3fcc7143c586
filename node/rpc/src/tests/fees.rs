//! The suggested fees, given the pool's minimum and the tips that others paid.

use super::*;
use crate::fixture::commit;

fn with_tips(tips: impl IntoIterator<Item = u128>) -> Vec<Bytes> {
    (1..).zip(tips).map(|(nonce, tip)| signed(dear(nonce, tip))).collect()
}

fn dear(nonce: u64, tip: u128) -> TxEip1559 {
    TxEip1559 { max_fee_per_gas: 10_000_000_000, ..transfer(nonce, tip) }
}

async fn suggested(rpc: &Fixture) -> [u128; 2] {
    let mut fees = [0; 2];
    for (fee, method) in fees.iter_mut().zip(["eth_maxPriorityFeePerGas", "eth_gasPrice"]) {
        let shown = rpc.result(method, json!([])).await;
        *fee = U256::from_str_radix(shown.as_str().unwrap().trim_start_matches("0x"), 16).unwrap().to();
    }
    fees
}

/// Goal: while the pool is full, the suggestion is what it accepts; otherwise it is a tenth of the base fee.
#[tokio::test]
async fn a_full_pool_is_paid_what_it_asks_for() {
    let context = context_of(PoolConfig { transactions_max: 4, ..PoolConfig::default() }, None);
    let base_fee_wei = u128::from(context.store.next_rules().unwrap().base_fee_wei);
    let rpc = Fixture(table(context));
    assert_eq!(suggested(&rpc).await, [base_fee_wei / 10, base_fee_wei + base_fee_wei / 10]);
    for raw in with_tips([90_000_000; 4]) {
        rpc.result("eth_sendRawTransaction", json!([raw])).await;
    }
    let [tip_wei, price_wei] = suggested(&rpc).await;
    assert_eq!([tip_wei, price_wei], [99_000_000, base_fee_wei + 99_000_000]);
}

/// Goal: after full batches the suggestion follows the tips of their last transactions, and each head is examined once.
/// Batches with room have no influence.
#[tokio::test]
async fn full_batches_tell_what_is_paid() {
    let context = context();
    let base_fee_wei = u128::from(context.store.next_rules().unwrap().base_fee_wei);
    let gas_limit = context.store.next_rules().unwrap().gas_limit;
    let receipt = Receipt { tx_type: 2, success: true, gas_used: 21_000, logs: BoundedVec::default() };
    let commit = |raws: Vec<Bytes>, gas_used| {
        let receipts = Receipts { receipts: BoundedVec::new(vec![receipt.clone(); raws.len()]).unwrap() };
        commit(&context.store, raws.iter().map(|raw| raw.to_vec()).collect(), receipts, gas_used)
    };
    let tip = || {
        let leash = loose();
        context.congestion.tip_wei(&context, Reader::on(Lane::Reads, &leash)).unwrap()
    };
    commit(with_tips([500_000_000; 3]), gas_limit / 2 - 1);
    assert_eq!(tip(), 0);
    // The best first: ten that pay much, then 32, of which the last ones pay least.
    let tips = [900_000_000; 10].into_iter().chain((1..=32).rev().map(|tip| tip * 10_000_000));
    let number = commit(with_tips(tips), gas_limit / 2);
    assert_eq!(tip(), 200_000_000, "six of ten of the last 32 pay less");
    let receipts = Receipts { receipts: BoundedVec::default() };
    context.batches.replace(number, receipts);
    assert_eq!(tip(), 200_000_000);
    assert!(base_fee_wei / 10 < 200_000_000);
    let rpc = Fixture(table(context));
    assert_eq!(suggested(&rpc).await, [200_000_000, base_fee_wei + 200_000_000]);
}
