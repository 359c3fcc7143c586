//! [`Receipt`]: the part of a receipt that an audit needs, in a tenth of the memory of its JSON.

use alloy_primitives::{Address, B256, U256, keccak256};
use anyhow::{Context, Result};
use serde_json::Value;

use crate::rpc::quantity;

/// The event of each ERC-20 transfer.
pub(super) const TRANSFER_EVENT: &[u8] = b"Transfer(address,address,uint256)";

/// A transfer of an ERC-20.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Transfer {
    pub(super) token: Address,
    pub(super) from: Address,
    pub(super) to: Address,
    pub(super) amount: U256,
}

/// The audited part of a transaction's receipt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Receipt {
    pub(super) hash: B256,
    pub(super) from: Address,
    pub(super) has_succeeded: bool,
    pub(super) gas_used: u64,
    /// The effective gas price in wei.
    pub(super) gas_price: u64,
    /// Whether the receipt names a new contract.
    pub(super) has_created: bool,
    pub(super) transfers: Box<[Transfer]>,
}

impl Receipt {
    /// Parses a node's JSON.
    pub(super) fn parse(receipt: &Value) -> Result<Receipt> {
        Ok(Receipt {
            hash: field(receipt, "transactionHash")?,
            from: field(receipt, "from")?,
            has_succeeded: receipt["status"] == "0x1",
            gas_used: quantity(&receipt["gasUsed"])?,
            gas_price: quantity(&receipt["effectiveGasPrice"])?,
            has_created: receipt["contractAddress"].is_string(),
            transfers: transfers(receipt)?,
        })
    }

    /// Returns the fee that its sender paid, in wei.
    pub(super) fn fee(&self) -> U256 {
        U256::from(self.gas_used) * U256::from(self.gas_price)
    }
}

fn transfers(receipt: &Value) -> Result<Box<[Transfer]>> {
    let event = keccak256(TRANSFER_EVENT).to_string();
    let logs = receipt["logs"].as_array().context("a receipt without logs")?;
    let ours = logs.iter().filter(|log| log["topics"][0] == event.as_str());
    let address = |topic: &Value| -> Result<Address> {
        let topic: B256 = topic.as_str().unwrap_or_default().parse().context("the topic of a transfer")?;
        Ok(Address::from_word(topic))
    };
    ours.map(|log| {
        Ok(Transfer {
            token: field(log, "address")?,
            from: address(&log["topics"][1])?,
            to: address(&log["topics"][2])?,
            amount: field(log, "data")?,
        })
    })
    .collect()
}

fn field<T: std::str::FromStr>(value: &Value, name: &str) -> Result<T> {
    let text = value[name].as_str();
    text.and_then(|text| text.parse().ok()).with_context(|| format!("{name} is {}", value[name]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_receipt_is_read_with_its_transfers_alone() {
        let word = |byte| Address::repeat_byte(byte).into_word();
        let log = |topics: Value| json!({ "address": Address::repeat_byte(1), "topics": topics, "data": B256::with_last_byte(9) });
        let receipt = json!({
            "transactionHash": B256::repeat_byte(7), "from": Address::repeat_byte(2), "status": "0x1", "gasUsed": "0x5208",
            "effectiveGasPrice": "0x2", "contractAddress": null,
            "logs": [log(json!([keccak256(TRANSFER_EVENT), word(2), word(3)])), log(json!([B256::ZERO]))],
        });
        let found = Receipt::parse(&receipt).unwrap();
        let at = Address::repeat_byte;
        let transfer = Transfer { token: at(1), from: at(2), to: at(3), amount: U256::from(9) };
        assert_eq!((&found.transfers[..], found.fee()), (&[transfer][..], U256::from(42_000)));
        assert!(found.has_succeeded && !found.has_created);
        assert!(Receipt::parse(&json!({})).unwrap_err().to_string().contains("transactionHash"));
    }
}
