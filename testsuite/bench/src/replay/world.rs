//! [`World`]: a state of many rows; a chain's transactions touch few of them.
//!
//! ```text
//!  genesis ─▶ contracts, by transactions ─▶ rows, in the order of the table ─▶ base ─┬─ clone ─▶ chain of a workload (serves)
//!                                                                                    └─ clone ─▶ follower, or proposer
//! ```
//! A clone hard-links the base's immutable files, and copies the files that name them.

use std::path::{Path, PathBuf};

use alloy_primitives::{Address, B256, TxKind, U256, keccak256};
use anyhow::{Result, ensure};
use rayon::prelude::*;
use slipstream_executor::HintsMode;
use slipstream_storage::{StorageConfig, Store};
use slipstream_types::{AccountValue, Delta, Digest, Genesis, StateKey, StateValue, delta::DeltaEntry};

use crate::harness::{
    chain::{Maker, one_validator},
    files,
    kept::once,
    workload::sign,
};
use slipnet::{accounts::Account, contracts, progress::Progress};

/// Rows of one commit.
const BATCH_ROWS: usize = 200_000;
/// The token's storage slots of balances and allowances in Solidity's layout.
const BALANCES: u64 = 3;
const ALLOWANCES: u64 = 4;
const DEPLOY_GAS: u64 = 3_000_000;
const SEED: &str = "slipnet-replay";
/// Change this when a world is filled differently.
const VERSION: u8 = 1;

/// The size of a world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    pub(super) rows: u64,
    /// The number of sending accounts.
    pub(super) senders: u32,
}

/// The contracts that transactions call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contracts {
    pub(super) tokens: [Address; 2],
    pub(super) pair: Address,
    pub(super) lists: Address,
}

/// The state below a chain.
pub(super) struct World {
    pub(super) genesis: Genesis,
    pub(super) senders: Vec<Account>,
    pub(super) contracts: Contracts,
    deployer: Account,
    /// Accounts with a balance of the first token; the first ones send.
    pub(super) holders: u64,
    /// Slots of the lists contract that are numbered from 0.
    pub(super) slots: u64,
    /// Further slots of the lists contract.
    listed: Vec<B256>,
}

impl World {
    /// Makes a world of a size, in which the slots `listed` of the lists contract also have rows.
    pub(super) fn new(size: Size, listed: Vec<B256>) -> World {
        let mut senders = Account::derive_many(SEED, size.senders + 1);
        let deployer = senders.pop().expect("one more than the senders");
        let created = |nonce| deployer.address.create(nonce);
        let contracts = Contracts { tokens: [created(0), created(1)], pair: created(2), lists: created(3) };
        let holders = (size.rows * 2 / 5).max(u64::from(size.senders));
        let taken = 2 * holders + 3 * u64::from(size.senders) + listed.len() as u64;
        World {
            genesis: one_validator(std::slice::from_ref(&deployer)),
            senders,
            contracts,
            deployer,
            holders,
            slots: size.rows.saturating_sub(taken).max(1),
            listed,
        }
    }

    /// Returns the number of rows beside those that the contracts' creation makes.
    pub(super) fn rows(&self) -> u64 {
        2 * self.holders + 3 * self.senders.len() as u64 + self.slots + self.listed.len() as u64
    }

    /// Returns the address of a holder.
    pub(super) fn holder(&self, index: u64) -> Address {
        match self.senders.get(index as usize) {
            Some(sender) => sender.address,
            None => {
                Address::from_slice(&Digest::tagged("slipnet/bench-replay", &index.to_le_bytes()).0[..20])
            }
        }
    }

    fn row(&self, index: u64) -> (StateKey, StateValue) {
        let Contracts { tokens, pair, lists } = self.contracts;
        let (holders, senders) = (self.holders, self.senders.len() as u64);
        let slot =
            |contract, slot, value| (StateKey::Slot(contract, slot), StateValue::Slot(U256::from(value)));
        let balance = 1_u64 << 60;
        let mut index = index;
        let mut is_below = |count: u64| {
            let found = index < count;
            let at = index;
            index = index.wrapping_sub(count);
            found.then_some(at)
        };
        if let Some(at) = is_below(holders) {
            let wei = U256::from(10_u64).pow(U256::from(if at < senders { 24 } else { 17 }));
            let account = AccountValue { nonce: 0, balance: wei, code_hash: None };
            return (StateKey::Account(self.holder(at)), StateValue::Account(account));
        }
        if let Some(at) = is_below(holders) {
            return slot(tokens[0], mapped(self.holder(at), BALANCES), balance);
        }
        if let Some(at) = is_below(senders) {
            return slot(tokens[1], mapped(self.holder(at), BALANCES), balance);
        }
        for token in tokens {
            if let Some(at) = is_below(senders) {
                let (key, _) = slot(token, allowance(self.holder(at), pair), 0);
                return (key, StateValue::Slot(U256::MAX));
            }
        }
        match is_below(self.slots) {
            Some(at) => slot(lists, B256::from(U256::from(at)), at + 1),
            None => slot(lists, self.listed[index as usize], 1),
        }
    }

    /// Returns the base's path in a directory, after filling it unless an earlier run did.
    pub(super) fn base(&self, dir: &Path, progress: Progress) -> Result<PathBuf> {
        let base = dir.join(format!("slipnet-replay-{}", &self.fingerprint().to_string()[..16])).join("base");
        once(&base, |dir| {
            progress.step(&format!("filling a store with {} rows", self.rows()));
            let store = open(dir)?;
            self.fill(&store, progress)?;
            // RocksDB is still compacting; closing it now would stop the compactions.
            files::wait_until_quiet()?;
            store.close();
            Ok(())
        })?;
        Ok(base)
    }

    fn fingerprint(&self) -> Digest {
        let mut bytes = vec![VERSION];
        bytes.extend(self.rows().to_le_bytes());
        bytes.extend(self.senders.len().to_le_bytes());
        self.listed.iter().for_each(|slot| bytes.extend(slot.0));
        bytes.extend(self.genesis.header().map(|header| header.digest()).unwrap_or(Digest::ZERO).0);
        bytes.extend(contracts::lists_init_code());
        Digest::tagged("slipnet/bench-replay-world", &bytes)
    }

    fn fill(&self, store: &Store, progress: Progress) -> Result<()> {
        store.initialize(&self.genesis)?;
        let mut maker = Maker::new(store, &self.genesis, HintsMode::Keys);
        self.create(&mut maker)?;
        let mut task = progress.task("rows", self.rows());
        let place = |index: u64| {
            let path = self.row(index).0.path();
            let (front, _) = path.0.split_first_chunk().expect("a path is longer");
            (u128::from_be_bytes(*front), index as u32)
        };
        let mut order: Vec<(u128, u32)> = (0..self.rows()).into_par_iter().map(place).collect();
        order.par_sort_unstable();
        for (number, rows) in order.chunks(BATCH_ROWS).enumerate() {
            let entry = |(_, index): &(u128, u32)| {
                let (key, value) = self.row(u64::from(*index));
                DeltaEntry { key, value: Some(value) }
            };
            maker.put(&Delta::new(rows.par_iter().map(entry).collect(), Vec::new())?)?;
            task.update(((number + 1) * BATCH_ROWS) as u64, "");
        }
        Ok(())
    }

    /// Creates two tokens, a pair of them with liquidity, and the lists.
    fn create(&self, maker: &mut Maker<'_>) -> Result<()> {
        let Contracts { tokens: [token0, token1], pair, lists } = self.contracts;
        let create = |code| (TxKind::Create, code);
        let creations = [
            create(contracts::token_init_code("Zero", "ZER")),
            create(contracts::token_init_code("One", "ONE")),
            create(contracts::amm_init_code(token0, token1)),
            create(contracts::lists_init_code()),
        ];
        let amount = U256::from(1_u64 << 62);
        let mint = |token: Address| (token.into(), contracts::mint_many(vec![self.deployer.address], amount));
        let approve = |token: Address| (token.into(), contracts::approve(pair, U256::MAX));
        let calls = [
            mint(token0),
            mint(token1),
            approve(token0),
            approve(token1),
            (pair.into(), contracts::add_liquidity(amount, amount)),
        ];
        let signed = creations.into_iter().chain(calls).zip(0..).map(|((to, input), nonce)| {
            sign(&self.genesis.chain, &self.deployer, nonce, to, 0, DEPLOY_GAS, input)
        });
        maker.append(&signed.collect::<Result<Vec<_>>>()?)?;
        ensure!(self.deployer.address.create(3) == lists, "the contracts are created in another order");
        Ok(())
    }
}

/// Returns the slot of a mapping's value in Solidity's layout.
fn mapped(key: Address, at: u64) -> B256 {
    below(key, B256::from(U256::from(at)))
}

fn allowance(owner: Address, spender: Address) -> B256 {
    below(spender, mapped(owner, ALLOWANCES))
}

fn below(key: Address, at: B256) -> B256 {
    keccak256([key.into_word().0, at.0].concat())
}

/// Opens a store for work that is not measured.
pub(super) fn open(dir: &Path) -> Result<Store> {
    let config = StorageConfig {
        snapshot_interval_batches: 0,
        fsync: false,
        tree_memory_mib: 0,
        ..StorageConfig::default()
    };
    Ok(Store::open(&config, dir)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::harness::kept::clone_store;

    /// Goal: every key that transactions will read exists once, where the contracts compute it.
    #[test]
    fn a_clone_has_the_rows_that_contracts_read() {
        let size = Size { rows: 1_000, senders: 10 };
        let world = World::new(size, vec![B256::repeat_byte(7)]);
        assert_eq!(world.rows(), size.rows);
        let keys: BTreeSet<_> = (0..world.rows()).map(|index| world.row(index).0).collect();
        assert_eq!(keys.len() as u64, size.rows);
        let dir = tempfile::tempdir().unwrap();
        let base = world.base(dir.path(), Progress::Quiet).unwrap();
        let clone = dir.path().join("clone");
        clone_store(&base, &clone).unwrap();
        let store = open(&clone).unwrap();
        let mut maker = Maker::new(&store, &world.genesis, HintsMode::Keys);
        let Contracts { tokens, pair, .. } = world.contracts;
        let swap = contracts::swap(tokens[0], U256::from(1_000));
        let chain = &world.genesis.chain;
        let swap = sign(chain, &world.senders[3], 0, pair.into(), 0, 300_000, swap).unwrap();
        maker.append(&[swap]).unwrap();
        let view = store.view().unwrap();
        let holder = world.holder(900_000);
        assert_eq!(view.account(&holder).unwrap(), None, "it holds nothing");
        let paid = view.slot(&tokens[0], &mapped(world.holder(3), BALANCES)).unwrap();
        assert_eq!(paid, U256::from((1_u64 << 60) - 1_000));
        assert_eq!(view.slot(&world.contracts.lists, &B256::repeat_byte(7)).unwrap(), U256::from(1));
        store.close();
    }
}
