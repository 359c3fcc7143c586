//! `slipstream genesis`: changes to a genesis file before its chain begins.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use miette::Result;
use slipstream_base::genesis_file;
use slipstream_types::predeploys::predeploys;

use super::{exit::OrFail as _, output::print};

#[derive(Debug, Subcommand)]
pub(super) enum GenesisCommand {
    /// Add contracts that Ethereum tools expect on every chain: a CREATE2 deployer, Multicall3, and those of EIP-4788
    /// and EIP-2935
    Predeploys(FilesArgs),
    /// Admit transactions without a chain id, from before EIP-155, such as those that deploy known contracts at their
    /// known addresses
    Unprotected(FilesArgs),
}

#[derive(Debug, Args)]
pub(super) struct FilesArgs {
    /// The genesis file to read
    genesis: PathBuf,
    /// The genesis file to write, which must not exist
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(super) fn genesis(command: &GenesisCommand) -> Result<()> {
    match command {
        GenesisCommand::Predeploys(files) => add_predeploys(files),
        GenesisCommand::Unprotected(files) => admit_unprotected(files),
    }
}

fn add_predeploys(FilesArgs { genesis: path, out }: &FilesArgs) -> Result<()> {
    let before = genesis_file::load(path).or_fail()?;
    let there = predeploys().into_keys().filter(|address| before.accounts.contains_key(address));
    let kept = there.map(|address| format!("; account {address} stays as it was")).collect::<String>();
    genesis_file::save(out, &before.with_predeploys()).or_fail()?;
    let (out, path) = (out.display(), path.display());
    print(&format!(
        "wrote {out}: a different chain from that of {path}, with the contracts that tools expect{kept}"
    ))
}

fn admit_unprotected(FilesArgs { genesis: path, out }: &FilesArgs) -> Result<()> {
    let mut genesis = genesis_file::load(path).or_fail()?;
    let did = std::mem::replace(&mut genesis.chain.unprotected_transactions, true);
    genesis_file::save(out, &genesis).or_fail()?;
    let (out, path) = (out.display(), path.display());
    print(&match did {
        true => {
            format!("wrote {out}: the chain of {path}, which already admits transactions without a chain id")
        }
        false => format!(
            "wrote {out}: a different chain from that of {path}, which admits transactions without a chain id; anybody can replay \
             on it a transaction without a chain id that was signed for another chain"
        ),
    })
}
