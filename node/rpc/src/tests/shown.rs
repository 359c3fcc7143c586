//! Batches, transactions and receipts as clients read them.

use super::*;

#[test]
fn a_batch_as_a_block() {
    let batch = batch();
    let block = serde_json::to_value(blocks::to_block(&chain(), &batch, false, &loose()).unwrap()).unwrap();
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
        "transactions": batch.hashes().collect::<Vec<_>>(),
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(block[field], *value, "{field}");
    }
    let bloom: alloy_primitives::Bloom = serde_json::from_value(block["logsBloom"].clone()).unwrap();
    assert!(bloom.contains_input(alloy_primitives::BloomInput::Raw(&[0xa2; 32])));

    let full = serde_json::to_value(blocks::to_block(&chain(), &batch, true, &loose()).unwrap()).unwrap();
    assert_eq!(full["transactions"][1]["hash"], json!(batch.transaction_hash(1)));
}

/// Goal: a batch without transactions shows the roots of Ethereum's empty lists, without which Go's client rejects it.
/// The hash stays the batch's, as the validators signed it.
#[test]
fn an_empty_batch_has_the_empty_roots() {
    let empty = Batch::new(
        BatchHeader { tx_count: 0, ..batch().header },
        Some(Body::default()),
        Some(Receipts::default()),
    );
    let block = serde_json::to_value(blocks::to_block(&chain(), &empty, true, &loose()).unwrap()).unwrap();
    // Keccak-256 of the RLP of an empty string.
    let root = json!(keccak256([0x80]));
    assert_eq!((&block["transactionsRoot"], &block["receiptsRoot"]), (&root, &root));
    assert_eq!(
        (&block["transactions"], &block["hash"]),
        (&json!([]), &json!(B256::from(empty.header.digest())))
    );
}

#[test]
fn a_block_without_its_parts() {
    let whole = batch();
    let without = Batch::new(whole.header.clone(), None, None);
    let refused = blocks::to_block(&chain(), &without, false, &loose()).unwrap_err();
    let refused = jsonrpsee_types::ErrorObjectOwned::from(refused);
    assert_eq!(refused.code(), 4444);
    let text = "pruned history unavailable: this node has no transactions of batch 3: it pruned that part";
    assert!(refused.message().starts_with(text), "{refused}");
    let headless = Batch::new(whole.header.clone(), whole.body().ok().cloned(), None);
    let block =
        serde_json::to_value(blocks::to_block(&chain(), &headless, false, &loose()).unwrap()).unwrap();
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
        "from": sender(), "to": Address::repeat_byte(2), "hash": batch.transaction_hash(0),
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
        "effectiveGasPrice": "0x1c9c380", "transactionHash": batch.transaction_hash(1), "transactionIndex": "0x1",
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

/// Goal: senders are recovered once. A second request reuses those from the first one, from the pool or from an
/// execution. Requests fill only their own memory.
#[test]
fn senders_are_recovered_once() {
    let met = Arc::new(slipstream_executor::Senders::default());
    let known = KnownSenders::new(met.clone());
    let open = || batch().knowing(&known);
    let from = |index| {
        let transaction = transactions::to_transaction(&chain(), &open(), index).unwrap().unwrap();
        let receipt = transactions::to_receipt(&chain(), &open(), index).unwrap().unwrap();
        assert_eq!(transaction.inner.signer(), receipt.from);
        receipt.from
    };
    assert_eq!(from(0), sender());
    assert_eq!(known.of(BatchNumber::new(3), 2).get(0), Some(sender()));
    assert_eq!(batch().hashes().find_map(|hash| met.get(&hash)), None);
    // Nobody signed for this address, so an answer that shows it did not recover it.
    let raw = batch().raw(1).unwrap().unwrap();
    met.keep(&slipstream_executor::Transaction::decode_known(&raw, &chain(), CONTRACT).unwrap());
    assert_eq!(from(1), CONTRACT);
    let block = serde_json::to_value(blocks::to_block(&chain(), &open(), true, &loose()).unwrap()).unwrap();
    assert_eq!(
        (&block["transactions"][0]["from"], &block["transactions"][1]["from"]),
        (&json!(sender()), &json!(CONTRACT))
    );
}
