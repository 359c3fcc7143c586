//! `slipstream db get`: one entry of the database, read as stored, even while a node runs on it.

use std::fmt::Write as _;

use alloy_primitives::hex;
use clap::{Args, Subcommand};
use miette::Result;
use serde_json::{Map, Value, json};
use slipstream_base::{
    DATABASE,
    lock::{self, LockError},
};
use slipstream_config::NodeConfig;
use slipstream_executor::Transaction;
use slipstream_storage::{ReadOnly, StorageError};
use slipstream_types::{
    Address, B256, BatchHeader, BatchNumber, Blob, BlobKind, Body, Certificate, Digest, Receipts, Waypoint,
};

use super::json::{header_of, receipt_of};
use crate::{
    access,
    advice::advised,
    exit::{CommandFailure, Exit, OrFail as _},
    output::print,
    run,
    source::ConfigArgs,
};

/// The stored blobs of a batch, besides its header.
const KINDS: [BlobKind; 4] = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints];

#[derive(Debug, Subcommand)]
pub(crate) enum GetCommand {
    /// A batch: its header, and which parts of it are kept
    Batch(NumberArgs),
    /// The header of a batch
    Header(NumberArgs),
    /// The receipts of a batch
    Receipts(NumberArgs),
    /// The certificate of a batch, and the waypoint that it proves
    Certificate(NumberArgs),
    /// A transaction by its hash, with its receipt
    Transaction(TransactionArgs),
    /// An account
    Account(AccountArgs),
    /// A storage slot of a contract
    Slot(SlotArgs),
    /// The code of a contract by its Keccak-256, which `db get account` shows
    Code(CodeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct Source {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NumberArgs {
    /// The batch's number
    #[arg(value_name = "N")]
    number: u64,
    #[command(flatten)]
    source: Source,
}

#[derive(Debug, Args)]
pub(crate) struct TransactionArgs {
    /// The transaction's hash
    #[arg(value_name = "HASH")]
    hash: B256,
    #[command(flatten)]
    source: Source,
}

#[derive(Debug, Args)]
pub(crate) struct AccountArgs {
    /// The account
    #[arg(value_name = "ADDRESS")]
    address: Address,
    /// The batch after which the state is read; the last one if omitted
    #[arg(long, value_name = "N")]
    at: Option<u64>,
    #[command(flatten)]
    source: Source,
}

#[derive(Debug, Args)]
pub(crate) struct SlotArgs {
    /// The contract
    #[arg(value_name = "ADDRESS")]
    address: Address,
    /// The slot, 0x and up to 64 hexadecimal digits
    #[arg(value_name = "SLOT", value_parser = crate::verify_account::slot)]
    slot: B256,
    /// The batch after which the state is read; the last one if omitted
    #[arg(long, value_name = "N")]
    at: Option<u64>,
    #[command(flatten)]
    source: Source,
}

#[derive(Debug, Args)]
pub(crate) struct CodeArgs {
    /// The code's Keccak-256
    #[arg(value_name = "HASH")]
    hash: Digest,
    #[command(flatten)]
    source: Source,
}

pub(crate) fn get(command: &GetCommand) -> Result<()> {
    match command {
        GetCommand::Batch(args) => show(&args.source, |store| batch(store, BatchNumber::new(args.number))),
        GetCommand::Header(args) => {
            show(&args.source, |store| Ok(header_of(&header(store, BatchNumber::new(args.number))?)))
        }
        GetCommand::Receipts(args) => {
            show(&args.source, |store| receipts(store, BatchNumber::new(args.number)))
        }
        GetCommand::Certificate(args) => {
            show(&args.source, |store| certificate(store, BatchNumber::new(args.number)))
        }
        GetCommand::Transaction(args) => show(&args.source, |store| transaction(store, &args.hash)),
        GetCommand::Account(args) => show(&args.source, |store| account(store, &args.address, args.at)),
        GetCommand::Slot(args) => show(&args.source, |store| slot(store, args)),
        GetCommand::Code(args) => show(&args.source, |store| code(store, &args.hash)),
    }
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
enum Missing {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Codec(#[from] slipstream_types::CodecError),
    #[error("{what} {of} is not stored here; the database has batches up to {head}")]
    NotStored { what: &'static str, of: String, head: BatchNumber },
    #[error(
        "the state after batch {number} is not kept: the database has the states of batches {first} to {head} (storage.state_history)"
    )]
    NoState { number: BatchNumber, first: BatchNumber, head: BatchNumber },
    #[error("{0}")]
    Undecodable(String),
}

type Found = std::result::Result<Value, Missing>;

fn show(source: &Source, find: impl FnOnce(&ReadOnly) -> Found) -> Result<()> {
    let config = source.config.load()?;
    access::check_database(&config)?;
    let store = open(&config)?;
    let found = match find(&store) {
        Err(Missing::Storage(error)) => advised(Err(in_use(&config, error)?), config.role)?,
        found => found.or_fail()?,
    };
    match source.json {
        true => print(&serde_json::to_string_pretty(&found).or_fail()?),
        false => print(text(&found, 0).trim_end()),
    }
}

fn open(config: &NodeConfig) -> Result<ReadOnly> {
    // Opening needs all files of the database at once: the node may remove one at any time.
    run::raise_open_files();
    match ReadOnly::open(&config.storage, &config.data_dir.join(DATABASE)) {
        Ok(store) => Ok(store),
        Err(error) => advised(Err(in_use(config, error)?), config.role),
    }
}

/// A running node removes files that it has merged, so an error while a node runs may be temporary.
fn in_use(config: &NodeConfig, error: StorageError) -> Result<StorageError> {
    match lock::check_free(&config.data_dir) {
        Err(LockError::Held { holder, .. }) if !matches!(error, StorageError::NotInitialized) => {
            let text = format!(
                "the database changed while this command read it, because {holder} uses it: try again ({error})"
            );
            Err(CommandFailure::new(Exit::TryAgain, text).into())
        }
        _ => Ok(error),
    }
}

fn not_stored(store: &ReadOnly, what: &'static str, of: impl ToString) -> Missing {
    Missing::NotStored { what, of: of.to_string(), head: store.head() }
}

fn header(store: &ReadOnly, number: BatchNumber) -> std::result::Result<BatchHeader, Missing> {
    store.header(number)?.ok_or_else(|| not_stored(store, "the header of batch", number))
}

fn blob(store: &ReadOnly, kind: BlobKind, number: BatchNumber) -> std::result::Result<Blob, Missing> {
    let what = if kind == BlobKind::Receipts { "receipts, those of batch" } else { "the body of batch" };
    store.blob(kind, number)?.ok_or_else(|| not_stored(store, what, number))
}

fn batch(store: &ReadOnly, number: BatchNumber) -> Found {
    let mut shown = header_of(&header(store, number)?);
    let mut kept = Map::new();
    for kind in KINDS {
        let bytes = store.blob(kind, number)?.map(|blob| blob.len());
        kept.insert(format!("{}_bytes", kind.name()), json!(bytes));
    }
    shown["certified"] = json!(store.certificate(number)?.is_some());
    shown["kept"] = Value::Object(kept);
    if number > BatchNumber::GENESIS
        && let Some(body) = store.blob(BlobKind::Body, number)?
    {
        let body: Body = body.open(BlobKind::Body)?;
        let hashes = body.transactions.iter().map(|raw| slipstream_types::keccak256(&raw[..]).to_string());
        shown["transactions"] = hashes.collect();
    }
    Ok(shown)
}

fn receipts(store: &ReadOnly, number: BatchNumber) -> Found {
    let receipts: Receipts = blob(store, BlobKind::Receipts, number)?.open(BlobKind::Receipts)?;
    let receipts: Vec<Value> = receipts.receipts.iter().map(receipt_of).collect();
    Ok(json!({ "number": number, "receipts": receipts }))
}

fn certificate(store: &ReadOnly, number: BatchNumber) -> Found {
    let certificate = store
        .certificate(number)?
        .ok_or_else(|| not_stored(store, "a certificate, that of batch", number))?;
    let Certificate { info, view, signatures } = &certificate;
    let signatures: Vec<Value> = signatures
        .iter()
        .map(|(index, signature)| json!({ "validator": index, "signature": hex::encode(signature.0) }))
        .collect();
    let next = info.next_validators.as_ref().map(|set| {
        let keys: Vec<String> =
            set.validators.iter().map(|validator| validator.public_key.to_string()).collect();
        json!({ "epoch": set.epoch, "validators": keys })
    });
    Ok(json!({
        "number": info.number,
        "epoch": info.epoch,
        "view": view,
        "accumulator_root": info.accumulator_root,
        "state_root": info.state_root,
        "timestamp_ms": info.timestamp_ms,
        "waypoint": Waypoint::of(info).to_string(),
        "next_validators": next,
        "signatures": signatures,
    }))
}

fn transaction(store: &ReadOnly, hash: &B256) -> Found {
    for (number, index) in store.transaction_places(hash)? {
        let body: Body = blob(store, BlobKind::Body, number)?.open(BlobKind::Body)?;
        // Only the start of the hash was compared.
        let raw = body.transactions.get(index as usize);
        let Some(raw) = raw.filter(|raw| slipstream_types::keccak256(&raw[..]) == *hash) else { continue };
        let decoded =
            Transaction::decode_any(raw).map_err(|error| Missing::Undecodable(error.to_string()))?;
        let envelope = serde_json::to_value(&*decoded.envelope);
        let envelope = envelope.map_err(|error| Missing::Undecodable(error.to_string()))?;
        let receipts = store.blob(BlobKind::Receipts, number)?;
        let receipts = receipts.map(|blob| blob.open::<Receipts>(BlobKind::Receipts)).transpose()?;
        let receipt = receipts.and_then(|all| all.receipts.get(index as usize).map(receipt_of));
        return Ok(json!({
            "batch": number,
            "index": index,
            "sender": decoded.sender.to_string(),
            "transaction": envelope,
            "receipt": receipt,
            "raw": hex::encode_prefixed(&raw[..]),
        }));
    }
    Err(not_stored(store, "transaction", hash))
}

/// The requested batch, whose state must be kept.
fn state_at(store: &ReadOnly, at: Option<u64>) -> std::result::Result<BatchNumber, Missing> {
    let (head, first) = (store.head(), store.states_from()?);
    let number = at.map_or(head, BatchNumber::new);
    match (first..=head).contains(&number) {
        true => Ok(number),
        false => Err(Missing::NoState { number, first, head }),
    }
}

fn account(store: &ReadOnly, address: &Address, at: Option<u64>) -> Found {
    let at = state_at(store, at)?;
    let found = store.account(address, at)?.unwrap_or_default();
    Ok(json!({
        "address": address.to_string(),
        "batch": at,
        "nonce": found.nonce,
        "balance_wei": found.balance.to_string(),
        "code_hash": found.code_hash,
    }))
}

fn slot(store: &ReadOnly, args: &SlotArgs) -> Found {
    let at = state_at(store, args.at)?;
    let value = store.slot(&args.address, &args.slot, at)?;
    let value = hex::encode_prefixed(value.to_be_bytes::<32>());
    Ok(
        json!({ "address": args.address.to_string(), "slot": args.slot.to_string(), "batch": at, "value": value }),
    )
}

fn code(store: &ReadOnly, hash: &Digest) -> Found {
    let code = store.code(hash)?.ok_or_else(|| not_stored(store, "code", hash))?;
    Ok(json!({ "hash": hash, "bytes": code.len(), "code": hex::encode_prefixed(&code) }))
}

/// Formats a document for people: a line per value, with the parts of a value below it.
fn text(value: &Value, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    let mut lines = String::new();
    let mut line = |name: &str, value: &Value| {
        let written = match value {
            Value::Null => writeln!(lines, "{indent}{name:<18} -"),
            Value::Array(items) if items.is_empty() => writeln!(lines, "{indent}{name:<18} none"),
            Value::Object(_) | Value::Array(_) => {
                writeln!(lines, "{indent}{name}\n{}", text(value, depth + 1).trim_end())
            }
            Value::String(text) => writeln!(lines, "{indent}{name:<18} {text}"),
            Value::Bool(_) | Value::Number(_) => writeln!(lines, "{indent}{name:<18} {value}"),
        };
        written.expect("a String takes everything");
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| line(name, value)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| line(&index.to_string(), value))
        }
        other => line("", other),
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nested_stands_below() {
        let value = json!({ "a": 1, "b": { "c": "x", "d": [] }, "e": [true, { "f": null }] });
        let expected = "a                  1\nb\n  c                  x\n  d                  none\ne\n  0                  true\n  1\n    \
                        f                  -\n";
        assert_eq!(text(&value, 0), expected);
    }
}
