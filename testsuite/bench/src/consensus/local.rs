//! [`Local`]: batches of requests in this process, on a state of their own.

use std::collections::BTreeMap;

use alloy_primitives::{Address, utils::parse_ether};
use anyhow::Result;
use rayon::prelude::*;
use slipstream_executor::{BatchEnv, MemoryState, Outcome, Transaction, execute};
use slipstream_types::{
    ChainConfig, Genesis, Validator,
    bounded::{BoundedBytes, BoundedVec},
    genesis::GenesisAccount,
};

use super::object::{self, Request};
use crate::harness::workload::sign;
use slipnet::accounts::{Account, node_key};

/// Where the contract is.
pub(super) const CONTRACT: Address = Address::repeat_byte(0x0b);
pub(super) const SEED: &str = "slipnet-bench-consensus";
/// More than any batch here needs.
const GAS_LIMIT: u64 = 100_000_000_000;

/// Senders and a contract; every batch has a transaction of each sender.
pub(super) struct Local {
    pub(super) genesis: Genesis,
    pub(super) env: BatchEnv,
    pub(super) state: MemoryState,
    pub(super) senders: Vec<Account>,
}

impl Local {
    /// With so many senders.
    ///
    /// # Errors
    /// If the genesis is none.
    pub(super) fn new(senders: u32) -> Result<Local> {
        let chain = ChainConfig { gas_limit: GAS_LIMIT, ..ChainConfig::default() };
        let senders = Account::derive_many(SEED, senders);
        let balance = parse_ether("1000000")?;
        let funded = |account: &Account| (account.address, GenesisAccount { balance, ..Default::default() });
        let mut accounts: BTreeMap<_, _> = senders.iter().map(funded).collect();
        let code = BoundedBytes::new(object::code())?;
        accounts.insert(CONTRACT, GenesisAccount { nonce: 1, code, ..GenesisAccount::default() });
        let alone = Validator { public_key: node_key(SEED, 0).public(), fee_recipient: Address::ZERO };
        let genesis = Genesis {
            chain,
            timestamp_ms: 0,
            validators: BoundedVec::new(vec![alone])?,
            accounts,
            ..Genesis::default()
        };
        let env = BatchEnv::new(&genesis.chain, &genesis.header()?, 1_000, Address::repeat_byte(0xfe));
        let state = MemoryState::from_genesis(&genesis)?;
        Ok(Local { genesis, env, state, senders })
    }

    /// A request of each sender, on the object that `object` says; `nonce` is how many each has sent.
    pub(super) fn batch(
        &self,
        request: Request,
        nonce: u64,
        object: impl Fn(u64) -> u64 + Sync,
    ) -> Result<Vec<Transaction>> {
        let sign = |(index, account): (usize, &Account)| {
            let input = request.input(object(index as u64));
            sign(&self.genesis.chain, account, nonce, CONTRACT.into(), 0, request.gas(), input)
        };
        self.senders.par_iter().enumerate().map(sign).collect()
    }

    /// Executes a batch on one thread.
    pub(super) fn execute(&self, batch: &[Transaction]) -> Result<Outcome> {
        Ok(execute(&self.state, &self.env, batch)?)
    }
}
