//! Parts of a batch as JSON, with all their fields.

use alloy_primitives::hex;
use serde_json::{Value, json};
use slipstream_types::{BatchHeader, Log, Receipt};

pub(super) fn header_of(header: &BatchHeader) -> Value {
    // All fields are named: a new field does not compile until it is shown.
    let BatchHeader {
        number,
        parent,
        epoch,
        rules,
        timestamp_ms,
        proposer,
        tx_count,
        tx_bytes,
        gas_used,
        delta_bytes,
        transactions_root,
        receipts_root,
        delta_digest,
        state_root,
        totals,
    } = header;
    json!({
        "number": number,
        "digest": header.digest(),
        "parent": parent,
        "epoch": epoch,
        "rules": rules,
        "timestamp_ms": timestamp_ms,
        "proposer": proposer.to_string(),
        "tx_count": tx_count,
        "tx_bytes": tx_bytes,
        "gas_used": gas_used,
        "delta_bytes": delta_bytes,
        "transactions_root": transactions_root,
        "receipts_root": receipts_root,
        "delta_digest": delta_digest,
        "state_root": state_root,
        "totals": totals,
    })
}

pub(super) fn receipt_of(receipt: &Receipt) -> Value {
    let logs: Vec<Value> = receipt.logs.iter().map(log_of).collect();
    json!({ "type": receipt.tx_type, "success": receipt.success, "gas_used": receipt.gas_used, "logs": logs })
}

fn log_of(log: &Log) -> Value {
    let topics: Vec<String> = log.topics.iter().map(ToString::to_string).collect();
    json!({ "address": log.address.to_string(), "topics": topics, "data": hex::encode_prefixed(&log.data[..]) })
}
