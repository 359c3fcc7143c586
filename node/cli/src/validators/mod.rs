//! `slipstream validators`: lists the validators of a chain, and changes them through its validators contract.

mod chain;
mod list;
mod transaction;

use std::path::PathBuf;

use alloy_primitives::{Address, Bytes};
use clap::{Args, Subcommand};
use miette::{Result, bail, miette};
use slipstream_base::{genesis_file, keys};
use slipstream_executor::validators::{add_call, failures_call, remove_call};
use slipstream_types::{Failures, PublicKey, Validator};

use self::chain::Chain;
use super::{exit::OrFail as _, output::print};

#[derive(Debug, Subcommand)]
pub(super) enum ValidatorsCommand {
    /// Show the validators of the epoch, and those that the contract specifies for the next one
    List(ListArgs),
    /// Add a validator
    Add(AddArgs),
    /// Remove a validator
    Remove(RemoveArgs),
    /// Set how many validators may fail
    Failures(FailuresArgs),
    /// Put the contract into a genesis file, so that its chain's validators can change
    Place(PlaceArgs),
}

#[derive(Debug, Args)]
pub(super) struct PlaceArgs {
    /// The genesis file without the contract
    #[arg(value_name = "GENESIS")]
    genesis: PathBuf,
    /// The account or contract that may change the validators
    #[arg(long, value_name = "ADDRESS")]
    owner: Address,
    /// A change takes effect after the next batch whose number is a multiple of this
    #[arg(long, value_name = "N", default_value_t = 1)]
    epoch_batches: u64,
    /// The file to write, which must not exist
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct RpcArgs {
    /// The API of a node of the chain: http://HOST:PORT, or https://HOST/PATH of a proxy in front of it
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8545")]
    rpc: String,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    rpc: RpcArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct SendArgs {
    #[command(flatten)]
    rpc: RpcArgs,
    /// File with the secret key of the contract's owner: 64 hexadecimal digits, mode 0600. Without it the call is
    /// printed, for an owner that is a contract
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct AddArgs {
    /// The validator's public key: the peer id of its node
    #[arg(value_name = "KEY")]
    public_key: PublicKey,
    /// The recipient of the fees of its batches
    #[arg(long, value_name = "ADDRESS")]
    fee_recipient: Address,
    #[command(flatten)]
    send: SendArgs,
}

#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// The validator's public key
    #[arg(value_name = "KEY")]
    public_key: PublicKey,
    #[command(flatten)]
    send: SendArgs,
}

#[derive(Debug, Args)]
pub(super) struct FailuresArgs {
    /// Validators that may fail in any way without stopping the chain
    #[arg(long, value_name = "U")]
    any: u16,
    /// Validators that may sign conflicting statements without two batches of one number being certified
    #[arg(long, value_name = "R")]
    commission: u16,
    #[command(flatten)]
    send: SendArgs,
}

pub(super) fn validators(command: &ValidatorsCommand) -> Result<()> {
    match command {
        ValidatorsCommand::List(args) => list::list(&args.rpc.rpc, args.json),
        ValidatorsCommand::Add(AddArgs { public_key, fee_recipient, send }) => {
            if !public_key.is_usable() {
                bail!(
                    "{public_key} is not an ed25519 public key: `slipstream status` of the validator's node shows the right one"
                );
            }
            let validator = Validator { public_key: *public_key, fee_recipient: *fee_recipient };
            change(send, add_call(&validator))
        }
        ValidatorsCommand::Remove(RemoveArgs { public_key, send }) => change(send, remove_call(public_key)),
        ValidatorsCommand::Failures(FailuresArgs { any, commission, send }) => {
            change(send, failures_call(Failures { any: *any, commission: *commission }))
        }
        ValidatorsCommand::Place(args) => place(args),
    }
}

fn place(args: &PlaceArgs) -> Result<()> {
    let genesis = genesis_file::load(&args.genesis).or_fail()?;
    if let Some(address) = genesis.validators_contract {
        bail!("{} already names a validators contract: {address}", args.genesis.display());
    }
    let genesis = genesis.with_validators_contract(args.owner, args.epoch_batches).or_fail()?;
    genesis_file::save(&args.out, &genesis).or_fail()?;
    print(&format!(
        "wrote {}: a different chain from that of {}, and {} may change its validators",
        args.out.display(),
        args.genesis.display(),
        args.owner
    ))
}

/// Builds, signs and sends the transaction with this call, and reports when its change takes effect.
fn change(args: &SendArgs, data: Bytes) -> Result<()> {
    let chain = Chain::ask(&args.rpc.rpc)?;
    let to = chain.contract()?;
    let Some(file) = &args.key_file else {
        print(&format!("call the contract from its owner:\nto   {to}\ndata {data}"))?;
        return Ok(());
    };
    let key = keys::load(file).or_fail()?.seed();
    let key = k256::ecdsa::SigningKey::from_slice(&key)
        .map_err(|_| miette!("{} does not hold an account's secret key", file.display()))?;
    let sent = transaction::send(&chain, &key, to, data)?;
    print(&format!("transaction {} is in batch {}", sent.hash, sent.batch))?;
    print(&match sent.last_batch {
        Some(last) => {
            format!("batch {last} ends the epoch: the change takes effect from batch {} on", last + 1)
        }
        None => "the change does not end the epoch".into(),
    })
}
