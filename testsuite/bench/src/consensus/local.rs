//! [`Local`]: batches of requests in this process, on a separate state.

use std::{collections::BTreeMap, time::Instant};

use alloy_primitives::{Address, utils::parse_ether};
use anyhow::{Result, ensure};
use rayon::prelude::*;
use slipstream_executor::{BatchEnv, Outcome, Transaction, execute};
use slipstream_storage::MemoryState;
use slipstream_types::{
    ChainConfig, Genesis, Validator,
    bounded::{BoundedBytes, BoundedVec},
    genesis::GenesisAccount,
};

use super::object::{self, Request};
use crate::harness::workload::sign;
use slipnet::accounts::{Account, node_key};

/// The address of the contract.
pub(super) const CONTRACT: Address = Address::repeat_byte(0x0b);
pub(super) const SEED: &str = "slipnet-bench-consensus";
/// More than any batch here needs.
const GAS_LIMIT: u64 = 100_000_000_000;

/// The number of hashes that are timed together, to find the time of one hash.
const CALIBRATION_HASHES: u64 = 2_000;

/// Senders and a contract; every batch has one transaction from each sender.
pub(super) struct Local {
    pub(super) genesis: Genesis,
    pub(super) env: BatchEnv,
    pub(super) state: MemoryState,
    pub(super) senders: Vec<Account>,
}

impl Local {
    /// Makes a state with `senders` senders.
    ///
    /// # Errors
    /// If the genesis is invalid.
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

    /// Makes one request from each sender, on the object that `object` returns for that sender. `nonce` is each
    /// sender's nonce.
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

/// Returns the EVM's time for a hash of 1 KiB on this machine, in nanoseconds: the fastest of some tries.
///
/// # Errors
/// If the batch cannot be executed.
pub(super) fn hash_ns() -> Result<f64> {
    let local = Local::new(8)?;
    let batch = local.batch(Request { hashes: CALIBRATION_HASHES, slots: 1 }, 0, |sender| sender)?;
    let mut least = f64::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        let outcome = local.execute(&batch)?;
        least = least.min(begun.elapsed().as_nanos() as f64);
        ensure!(outcome.receipts.receipts.iter().all(|receipt| receipt.success), "a transaction failed");
    }
    Ok(least / (CALIBRATION_HASHES * batch.len() as u64) as f64)
}
