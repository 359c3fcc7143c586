//! [`Workload`]: the kind of transactions in a source chain, and [`Signer`], which signs them on all cores.

use std::sync::Arc;

use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, Bytes, TxKind, U256, keccak256, utils::parse_ether};
use anyhow::Result;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use rayon::prelude::*;
use slipstream_executor::{Envelope, Transaction};
use slipstream_types::ChainConfig;

use slipnet::{
    accounts::Account,
    contracts,
    signer::{self, Fees, Request},
};

/// Transactions of every batch, except the first ones of an ERC-20 chain.
pub(crate) const BATCH_TRANSACTIONS: usize = 250;
/// Receivers that never send.
const RECEIVERS: u32 = 100_000;
/// The accounts of the hot-key workload, which all send to each other.
const HOT_ACCOUNTS: u32 = 200;
const TRANSFER_WEI: u64 = 1_000;
const TRANSFER_GAS: u64 = 21_000;
const TOKEN_TRANSFER_GAS: u64 = 70_000;
const DEPLOY_GAS: u64 = 3_000_000;
/// Accounts per minting transaction, and the most gas for each.
const MINTS: usize = 200;
const GAS_PER_MINT: u64 = 40_000;
const SEED: &str = "slipnet-bench";

/// The kind of transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Workload {
    /// Plain transfers between uniformly drawn accounts.
    Transfers,
    /// Transfers of one ERC-20 token between uniformly drawn holders.
    Erc20,
    /// Plain transfers among few accounts: every batch writes each of them.
    Hot,
}

impl Workload {
    /// Returns the workload's name in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Transfers => "transfers",
            Workload::Erc20 => "erc20",
            Workload::Hot => "hot",
        }
    }
}

/// Makes a workload's transactions, each from its index alone.
pub(crate) struct Signer {
    workload: Workload,
    chain: ChainConfig,
    accounts: Vec<Account>,
    /// The account that deploys and mints.
    deployer: Account,
    token: Address,
}

impl Signer {
    /// Makes a signer for `senders` senders (the hot-key workload has its own number).
    pub(crate) fn new(workload: Workload, chain: ChainConfig, senders: u32) -> Signer {
        let senders = if workload == Workload::Hot { HOT_ACCOUNTS } else { senders };
        let mut accounts = Account::derive_many(SEED, senders + 1);
        let deployer = accounts.pop().expect("one more than the senders");
        let token = deployer.address.create(0);
        Signer { workload, chain, accounts, deployer, token }
    }

    /// Returns the accounts that need ether.
    pub(crate) fn funded(&self) -> Vec<Account> {
        self.accounts.iter().chain([&self.deployer]).cloned().collect()
    }

    /// Returns the batches before the workload, signed one by one. They create the token of an ERC-20 chain with a
    /// balance for each sender, and `rows` further balances that no transaction of the workload touches.
    pub(crate) fn prelude(&self, rows: u64) -> impl Iterator<Item = Result<Vec<Transaction>>> {
        let senders = if self.workload == Workload::Erc20 { &self.accounts[..] } else { &[] };
        let holders: Vec<Address> =
            senders.iter().map(|account| account.address).chain((0..rows).map(holder)).collect();
        // As many mints in a batch as its gas allows.
        let per_batch = (self.chain.gas_limit / (100_000 + GAS_PER_MINT * MINTS as u64)).max(1) as usize;
        let deploys = !holders.is_empty();
        let mints = holders.len().div_ceil(MINTS);
        let deploy = move || {
            let code = contracts::token_init_code("Slip", "SLP");
            Ok(vec![sign(&self.chain, &self.deployer, 0, TxKind::Create, 0, DEPLOY_GAS, code)?])
        };
        let minted = (0..mints).step_by(per_batch).map(move |first| {
            let batch = first..mints.min(first + per_batch);
            batch.map(|mint| self.mint(mint as u64 + 1, &holders[mint * MINTS..])).collect()
        });
        deploys.then(deploy).into_iter().chain(minted)
    }

    /// Mints for the first of these holders, as the deployer's transaction with this nonce.
    fn mint(&self, nonce: u64, holders: &[Address]) -> Result<Transaction> {
        let to = holders[..holders.len().min(MINTS)].to_vec();
        let gas = 100_000 + GAS_PER_MINT * to.len() as u64;
        let input = contracts::mint_many(to, parse_ether("1000000000")?);
        sign(&self.chain, &self.deployer, nonce, self.token.into(), 0, gas, input)
    }

    /// Returns the transactions of `batches` batches of one size, from the workload's transaction `first` on.
    pub(crate) fn batches_of(
        &self,
        first: u64,
        batches: u64,
        transactions: usize,
    ) -> Result<Vec<Vec<Transaction>>> {
        let batch = |batch: u64| {
            let first = first + batch * transactions as u64;
            (first..first + transactions as u64).map(|index| self.transaction(index)).collect()
        };
        (0..batches).into_par_iter().map(batch).collect()
    }

    /// Makes the transaction at an index. Accounts take turns, so the index determines the nonce.
    fn transaction(&self, index: u64) -> Result<Transaction> {
        let senders = self.accounts.len() as u64;
        let (sender, nonce) = ((index % senders) as usize, index / senders);
        let mut random = SmallRng::seed_from_u64(index);
        let account = &self.accounts[sender];
        match self.workload {
            Workload::Transfers => {
                let to = receiver(random.random_range(0..RECEIVERS));
                sign(&self.chain, account, nonce, to.into(), TRANSFER_WEI, TRANSFER_GAS, Bytes::new())
            }
            Workload::Erc20 => {
                let to = receiver(random.random_range(0..RECEIVERS));
                let input = contracts::transfer(to, U256::from(random.random_range(1..1_000_000u64)));
                sign(&self.chain, account, nonce, self.token.into(), 0, TOKEN_TRANSFER_GAS, input)
            }
            Workload::Hot => {
                let other = (sender + random.random_range(1..self.accounts.len())) % self.accounts.len();
                let to = self.accounts[other].address;
                sign(&self.chain, account, nonce, to.into(), TRANSFER_WEI, TRANSFER_GAS, Bytes::new())
            }
        }
    }
}

/// Signs a call, with the fees for the chain's base fee. The sender is known, and is not recovered from the signature.
pub(crate) fn sign(
    chain: &ChainConfig,
    account: &Account,
    nonce: u64,
    to: TxKind,
    wei: u64,
    gas_limit: u64,
    input: Bytes,
) -> Result<Transaction> {
    let tip_wei = (u128::from(chain.base_fee_wei) / 10).max(1);
    let request = Request {
        chain_id: chain.chain_id,
        nonce,
        to,
        value: U256::from(wei),
        gas_limit,
        fees: Fees { max_fee_wei: 2 * u128::from(chain.base_fee_wei) + tip_wei, tip_wei },
        input,
        envelope: signer::Envelope::DynamicFee,
    };
    let signed = signer::sign(account, request);
    let envelope = Arc::new(Envelope::decode_2718_exact(&signed.raw)?);
    Ok(Transaction { raw: signed.raw, hash: signed.hash, sender: account.address, envelope })
}

fn receiver(index: u32) -> Address {
    Address::from_word(keccak256(index.to_le_bytes()))
}

/// Returns an account that holds a balance and neither sends nor receives.
fn holder(index: u64) -> Address {
    Address::from_word(keccak256(index.to_le_bytes()))
}
