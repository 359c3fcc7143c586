use alloy_primitives::keccak256;
use tokio::sync::mpsc;

use super::*;
use crate::load::{audit::AuditFigures, fake_node, plan::tests::plan, receipt::TRANSFER_EVENT};

/// Returns an auditor of the plan's accounts. Its node does not exist: these tests need none.
fn auditor(plan: &Plan) -> Auditor {
    let mut ledger = Ledger::default();
    for index in 0..4 {
        let holder = plan.sender_address(index);
        ledger.open(BalanceKey { holder, unit: Unit::Wei }, U256::from(1_000_000));
    }
    Auditor {
        nodes: vec![Rpc::new("http://127.0.0.1:1").unwrap()],
        node: 0,
        accounts: (0..4).map(|index| plan.sender_address(index)).collect(),
        tokens: [Address::repeat_byte(1)].into(),
        lists: Some(Address::repeat_byte(5)),
        ledger,
        audit: Audit::default(),
        seen: HashSet::new(),
        unknown: Vec::new(),
    }
}

fn told(hash: B256, from: Address, status: &str, logs: Value) -> Value {
    json!({
        "transactionHash": hash, "from": from, "status": status, "gasUsed": "0x5208",
        "effectiveGasPrice": "0x2", "logs": logs, "contractAddress": null,
    })
}

fn receipt(hash: B256, from: Address, status: &str, logs: Value) -> Receipt {
    Receipt::parse(&told(hash, from, status, logs)).unwrap()
}

/// Starts a node that gives every call this answer.
async fn node(answer: Value) -> Rpc {
    fake_node::start(move |_| answer.clone()).await
}

fn wei(holder: Address) -> BalanceKey {
    BalanceKey { holder, unit: Unit::Wei }
}

#[test]
fn a_transfer_costs_its_value_and_its_fee_and_a_failed_one_only_its_fee() {
    let plan = plan("hot-spot");
    let hashes = HashMap::from([(B256::repeat_byte(1), 1), (B256::repeat_byte(2), 2)]);
    let plugs = HashSet::from([B256::repeat_byte(3)]);
    let known = Known { plan: &plan, hashes: &hashes, plugs: &plugs };
    let mut auditor = auditor(&plan);
    let mut post = |byte, index, status| {
        let receipt = receipt(B256::repeat_byte(byte), plan.sender_address(index), status, json!([]));
        auditor.post(&known, &receipt).unwrap();
    };
    post(1, 1, "0x1");
    post(2, 2, "0x0");
    post(3, 3, "0x1");
    // A duplicate, and a transaction that another program sent from the load's account.
    post(1, 1, "0x1");
    post(9, 1, "0x1");
    let expected = |index| auditor.ledger.expected(wei(plan.sender_address(index))).unwrap();
    assert_eq!(expected(0), U256::from(1_001_000));
    assert_eq!(expected(1), U256::from(1_000_000 - 1_000 - 42_000));
    assert_eq!((expected(2), expected(3)), (U256::from(958_000), U256::from(958_000)));
    assert_eq!(auditor.committed_of_accepted(&known, &[]), 2);
    assert_eq!(
        auditor.committed_of_accepted(&known, &[2, 7]),
        1,
        "a plug, and what was given up, do not count"
    );
    let AuditFigures { receipts, receipts_failed, receipts_wrong, duplicates, foreign, .. } =
        auditor.audit.figures;
    assert_eq!((receipts, receipts_failed, receipts_wrong, duplicates, foreign), (3, 1, 0, 1, 1));
}

#[test]
fn a_token_transfer_of_another_amount_is_wrong() {
    let plan = plan("erc20");
    let hashes = HashMap::from([(B256::repeat_byte(1), 1), (B256::repeat_byte(2), 2)]);
    let known = Known { plan: &plan, hashes: &hashes, plugs: &HashSet::new() };
    let mut auditor = auditor(&plan);
    let word = |address: Address| address.into_word();
    for (index, surplus) in [(1, 0), (2, 1)] {
        use alloy_sol_types::SolCall;
        let (from, call) = (plan.sender_address(index), plan.call(index).unwrap());
        let asked = contracts::Token::transferCall::abi_decode(&call.input).unwrap();
        let logs = json!([{
            "address": Address::repeat_byte(1),
            "topics": [keccak256(TRANSFER_EVENT), word(from), word(asked.to)],
            "data": B256::from(asked.value + U256::from(surplus)),
        }]);
        let receipt = receipt(B256::repeat_byte(index as u8), from, "0x1", logs);
        auditor.post(&known, &receipt).unwrap();
        assert_eq!(auditor.audit.figures.receipts_wrong, surplus);
    }
    assert_eq!(auditor.audit.figures.receipts, 2);
}

#[test]
fn every_written_slot_is_counted() {
    let plan = plan("storage");
    let hashes = HashMap::from([(B256::repeat_byte(1), 1)]);
    let known = Known { plan: &plan, hashes: &hashes, plugs: &HashSet::new() };
    let mut auditor = auditor(&plan);
    let receipt = receipt(B256::repeat_byte(1), plan.sender_address(1), "0x1", json!([]));
    auditor.post(&known, &receipt).unwrap();
    let slots = auditor.ledger.places().filter(|place| matches!(place.unit, Unit::Slot(_)));
    let sum: U256 = slots.map(|place| auditor.ledger.expected(place).unwrap()).sum();
    assert_eq!(sum, U256::from(20));
}

/// Goal: receipts that one node has pruned come from another. A hash that is not in the plan waits for the generators'
/// report, and strangers' transactions are ignored.
#[tokio::test]
async fn receipts_come_from_whoever_has_them() {
    let plan = plan("hot-spot");
    let hashes = HashMap::from([(B256::repeat_byte(1), 1)]);
    let told = |byte, from| told(B256::repeat_byte(byte), from, "0x1", json!([]));
    let own = plan.sender_address(1);
    let answer = json!([told(1, own), told(2, own), told(3, Address::repeat_byte(0x77))]);
    let pruned =
        node(json!({ "id": 0, "error": { "code": 4444, "message": "pruned history unavailable" } })).await;
    let nodes = vec![pruned, node(json!({ "id": 0, "result": answer })).await];
    let auditor = Auditor { nodes, ..auditor(&plan) };
    let (full, batches) = mpsc::unbounded_channel();
    full.send(Full { number: 5, transactions: 3 }).unwrap();
    drop(full);
    let mut auditor = auditor.follow(&plan, &hashes, (batches, 0)).await.unwrap();
    assert_eq!(
        (auditor.audit.figures.receipts, auditor.audit.figures.receipts_wrong, auditor.node),
        (1, 0, 1)
    );
    let unknown = std::mem::take(&mut auditor.unknown);
    assert_eq!(unknown.iter().map(|receipt| receipt.hash).collect::<Vec<_>>(), [B256::repeat_byte(2)]);
    // The generator reports this transaction as a plug, so it is not foreign.
    let plugs = HashSet::from([B256::repeat_byte(2)]);
    auditor.post(&Known { plan: &plan, hashes: &hashes, plugs: &plugs }, &unknown[0]).unwrap();
    assert_eq!((auditor.audit.figures.receipts, auditor.audit.figures.foreign), (2, 0));
}
