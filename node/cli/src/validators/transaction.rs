//! Signing and sending one transaction, and waiting for its receipt.

use std::{
    thread,
    time::{Duration, Instant},
};

use alloy_consensus::{SignableTransaction, TxEip1559};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U64, U128, U256, keccak256};
use alloy_sol_types::SolEventInterface;
use k256::ecdsa::SigningKey;
use miette::{Result, bail, miette};
use serde::Deserialize;
use serde_json::json;
use slipstream_executor::validators::interface::Validators::ValidatorsEvents;

use super::chain::Chain;
use crate::exit::{CommandFailure, Exit};

/// How long to wait for a batch with the transaction.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two checks.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// A transaction in the chain.
pub(super) struct Sent {
    pub(super) hash: B256,
    pub(super) batch: u64,
    /// The batch that ends the epoch, if the transaction's event names one.
    pub(super) last_batch: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Receipt {
    block_number: U64,
    status: U64,
    logs: Vec<Log>,
}

#[derive(Deserialize)]
struct Log {
    address: Address,
    topics: Vec<B256>,
    data: Bytes,
}

/// Sends a call of the contract from the key's account. A call that the contract would refuse fails before anything is
/// sent.
pub(super) fn send(chain: &Chain, key: &SigningKey, to: Address, input: Bytes) -> Result<Sent> {
    let from = address_of(key);
    let call = json!({ "from": from, "to": to, "data": input });
    let gas: U64 = chain.rpc("eth_estimateGas", &json!([call]))?;
    let nonce: U64 = chain.rpc("eth_getTransactionCount", &json!([from, "pending"]))?;
    let price: U128 = chain.rpc("eth_gasPrice", &json!([]))?;
    let price: u128 = price.to();
    let transaction = TxEip1559 {
        chain_id: chain.status.chain_id,
        nonce: nonce.to(),
        // When the call is executed, the list of validators may be longer than it was for the estimate.
        gas_limit: gas.to::<u64>().saturating_add(gas.to::<u64>() / 4),
        // The base fee changes only with forks; the caps leave room for a higher tip than suggested.
        max_fee_per_gas: price.saturating_mul(2),
        max_priority_fee_per_gas: price,
        to: TxKind::Call(to),
        value: U256::ZERO,
        access_list: Default::default(),
        input,
    };
    let signature = key
        .sign_prehash_recoverable(transaction.signature_hash().as_slice())
        .map_err(|error| miette!("the transaction cannot be signed: {error}"))?;
    let signed = transaction.into_signed(Signature::from(signature));
    let hash: B256 = chain.rpc("eth_sendRawTransaction", &json!([Bytes::from(signed.encoded_2718())]))?;
    let receipt = wait(chain, hash)?;
    if receipt.status.is_zero() {
        bail!(
            "transaction {hash} in batch {} reverted: another transaction changed the contract before it",
            receipt.block_number
        );
    }
    let last_batch = receipt.logs.iter().filter(|log| log.address == to).find_map(last_batch);
    Ok(Sent { hash, batch: receipt.block_number.to(), last_batch })
}

#[allow(clippy::disallowed_methods, reason = "a command has no runtime whose worker it could block")]
fn wait(chain: &Chain, hash: B256) -> Result<Receipt> {
    let begun = Instant::now();
    loop {
        if let Some(receipt) = chain.rpc::<Option<Receipt>>("eth_getTransactionReceipt", &json!([hash]))? {
            return Ok(receipt);
        }
        if begun.elapsed() > PATIENCE {
            let text = format!(
                "transaction {hash} was sent, but no batch has it after {} s: a later one may still include it; check `slipstream \
                 validators list`, and with `slipstream status` whether the chain makes batches",
                PATIENCE.as_secs()
            );
            return Err(CommandFailure::new(Exit::TryAgain, text).into());
        }
        thread::sleep(LOOK_PAUSE);
    }
}

/// The epoch's last batch, from an event of the contract.
fn last_batch(log: &Log) -> Option<u64> {
    let event = ValidatorsEvents::decode_raw_log(&log.topics, &log.data).ok()?;
    let last = match event {
        ValidatorsEvents::ValidatorAdded(event) => event.lastBatch,
        ValidatorsEvents::ValidatorRemoved(event) => event.lastBatch,
        ValidatorsEvents::FeeRecipientChanged(event) => event.lastBatch,
        ValidatorsEvents::FailuresChanged(event) => event.lastBatch,
        ValidatorsEvents::OwnerChanged(_) => return None,
    };
    last.try_into().ok()
}

fn address_of(key: &SigningKey) -> Address {
    let point = key.verifying_key().to_encoded_point(false);
    Address::from_slice(&keccak256(&point.as_bytes()[1..])[12..])
}
