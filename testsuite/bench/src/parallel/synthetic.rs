//! Batches whose conflicts are known by construction.

use std::collections::BTreeMap;

use alloy_primitives::{Address, Bytes, TxKind, U256, utils::parse_ether};
use anyhow::Result;
use rayon::prelude::*;
use slipstream_executor::{BatchEnv, Transaction, execute};
use slipstream_storage::MemoryState;
use slipstream_types::{ChainConfig, Genesis, genesis::GenesisAccount};

use super::case::Case;
use crate::harness::workload::sign;
use slipnet::{accounts::Account, contracts};

/// Transactions of a batch, each from its own account.
const TRANSACTIONS: u32 = 1_000;
/// Shares of the token transfers that go to one account, in percent.
const HOT_PERCENT: [usize; 4] = [10, 25, 50, 100];
const SEED: &str = "slipnet-bench-parallel";
/// More than any batch here needs.
const GAS_LIMIT: u64 = 10_000_000_000;
const TRANSFER_GAS: u64 = 21_000;
const TOKEN_TRANSFER_GAS: u64 = 70_000;
const DEPLOY_GAS: u64 = 3_000_000;
/// Accounts that one transaction gives tokens, and its gas limit.
const MINTS: usize = 200;
const MINT_GAS: u64 = 10_000_000;

/// Returns all cases; the conflict-free one of the aims comes first.
pub(super) fn cases() -> Result<Vec<Case>> {
    let chain = Chain::new()?;
    let others = |index: usize| chain.senders[(index + 1) % chain.senders.len()].address.create(9);
    let payee = Address::repeat_byte(0x77);
    let mut cases = vec![chain.case("tokens.conflict_free", others, Chain::token_transfer)?];
    for percent in HOT_PERCENT {
        let name = format!("tokens.hot_{percent}");
        let to = |index: usize| if index * percent % 100 < percent { payee } else { others(index) };
        cases.push(chain.case(&name, to, Chain::token_transfer)?);
    }
    cases.push(chain.case("transfers.conflict_free", others, Chain::transfer)?);
    cases.push(chain.case("transfers.one_payee", |_| payee, Chain::transfer)?);
    Ok(cases)
}

/// A chain with funded accounts that all hold a token.
struct Chain {
    config: ChainConfig,
    env: BatchEnv,
    state: MemoryState,
    senders: Vec<Account>,
    token: Address,
}

impl Chain {
    fn new() -> Result<Chain> {
        let config = ChainConfig { gas_limit: GAS_LIMIT, ..ChainConfig::default() };
        let mut senders = Account::derive_many(SEED, TRANSACTIONS + 1);
        let balance = parse_ether("1000000")?;
        let funded = |account: &Account| (account.address, GenesisAccount { balance, ..Default::default() });
        let accounts: BTreeMap<_, _> = senders.iter().map(funded).collect();
        let chain = config.clone();
        let genesis = Genesis {
            chain,
            timestamp_ms: 0,
            validators: Default::default(),
            accounts,
            ..Genesis::default()
        };
        let env = BatchEnv::new(&config, &genesis.header()?, 1_000, Address::repeat_byte(0xfe));
        let deployer = senders.pop().expect("one more than the senders");
        let token = deployer.address.create(0);
        let mut chain = Chain { config, env, state: MemoryState::from_genesis(&genesis)?, senders, token };
        let code = contracts::token_init_code("Slip", "SLP");
        let mut prelude = vec![sign(&chain.config, &deployer, 0, TxKind::Create, 0, DEPLOY_GAS, code)?];
        for (holders, nonce) in chain.senders.chunks(MINTS).zip(1..) {
            let holders = holders.iter().map(|account| account.address).collect();
            let mint = contracts::mint_many(holders, U256::from(1_000_000));
            prelude.push(sign(&chain.config, &deployer, nonce, token.into(), 0, MINT_GAS, mint)?);
        }
        let made = execute(&chain.state, &chain.env, &prelude)?;
        anyhow::ensure!(
            made.receipts.receipts.iter().all(|receipt| receipt.success),
            "the token was not made"
        );
        chain.state.apply(&made.delta);
        Ok(chain)
    }

    /// Makes a batch with a transaction from each account, to the receiver that `to` returns.
    fn case(
        &self,
        name: &str,
        to: impl Fn(usize) -> Address + Sync,
        transaction: impl Fn(&Chain, &Account, Address) -> Result<Transaction> + Sync,
    ) -> Result<Case> {
        let senders = self.senders.par_iter().enumerate();
        let transactions: Vec<Transaction> =
            senders.map(|(index, sender)| transaction(self, sender, to(index))).collect::<Result<_>>()?;
        Case::new(name.to_owned(), self.state.clone(), self.env.clone(), transactions, None)
    }

    fn token_transfer(&self, sender: &Account, to: Address) -> Result<Transaction> {
        let input = contracts::transfer(to, U256::from(7));
        sign(&self.config, sender, 0, self.token.into(), 0, TOKEN_TRANSFER_GAS, input)
    }

    fn transfer(&self, sender: &Account, to: Address) -> Result<Transaction> {
        sign(&self.config, sender, 0, to.into(), 7, TRANSFER_GAS, Bytes::new())
    }
}
