//! [`Traffic`]: the kind of a chain's transactions.

use alloy_primitives::{Address, B256, Bytes, TxKind, U256, keccak256};
use anyhow::Result;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use rayon::prelude::*;
use slipstream_executor::Transaction;
use slipstream_types::StateKey;

use super::world::World;
use crate::harness::workload::{BATCH_TRANSACTIONS, sign};
use slipnet::contracts;

/// Slots that a call of the storage workload reads, and those that it writes.
const STORAGE_READS: usize = 12;
const STORAGE_WRITES: usize = 4;
/// Slots of an access list that one transaction touches; it writes every fourth.
const LISTED_SLOTS: usize = 32;
const WRITES_OF: usize = 4;
/// Gas limits of one call; unused gas is refunded.
const CALL_GAS: u64 = 300_000;
const TOUCH_GAS: u64 = 1_500_000;

/// The traffic of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Traffic {
    /// Transfers of one token between uniformly drawn holders.
    Erc20,
    /// Like `Erc20`, but the holder of rank r takes part 1/r as often as the first.
    Erc20Zipf,
    /// Swaps of one pair.
    Amm,
    /// Calls that read and write uniformly drawn slots of a contract.
    Storage,
    /// Calls that read and write the slots of mainnet's access lists, block by block.
    Lists,
}

impl Traffic {
    pub(super) const ALL: &'static [Traffic] = <Traffic as strum::VariantArray>::VARIANTS;

    /// Returns the traffic's name in figures.
    pub(super) fn name(self) -> &'static str {
        self.into()
    }

    /// Makes `count` batches of this traffic; for `Lists`, no more than the number of access lists.
    ///
    /// # Errors
    /// If a transaction cannot be signed.
    pub(super) fn batches(
        self,
        world: &World,
        lists: &[Vec<B256>],
        count: usize,
    ) -> Result<Vec<Vec<Transaction>>> {
        let mut maker =
            Maker { world, nonces: vec![0; world.senders.len()], random: SmallRng::seed_from_u64(7) };
        let batches: Vec<Vec<Call>> = match self {
            Traffic::Lists => lists.iter().take(count).map(|list| maker.listed(list)).collect(),
            _ => (0..count).map(|_| (0..BATCH_TRANSACTIONS).map(|_| maker.call(self)).collect()).collect(),
        };
        let chain = &world.genesis.chain;
        let signed = |Call { sender, nonce, to, gas, input }: Call| {
            sign(chain, &world.senders[sender], nonce, TxKind::Call(to), 0, gas, input)
        };
        batches.into_par_iter().map(|calls| calls.into_iter().map(signed).collect()).collect()
    }
}

/// Returns the slot of the lists contract that represents a key of another chain.
pub(super) fn listed_slot(key: &StateKey) -> B256 {
    match key {
        StateKey::Account(address) => keccak256(address),
        StateKey::Slot(address, slot) => keccak256([&address[..], &slot[..]].concat()),
    }
}

struct Call {
    sender: usize,
    nonce: u64,
    to: Address,
    gas: u64,
    input: Bytes,
}

struct Maker<'a> {
    world: &'a World,
    /// The nonces of the senders.
    nonces: Vec<u64>,
    random: SmallRng,
}

impl Maker<'_> {
    fn call(&mut self, traffic: Traffic) -> Call {
        let contracts = self.world.contracts;
        let sender = self.draw(self.nonces.len() as u64, traffic) as usize;
        let amount = U256::from(self.random.random_range(1..1_000_000_u64));
        match traffic {
            Traffic::Erc20 | Traffic::Erc20Zipf => {
                let to = self.draw(self.world.holders, traffic);
                let input = contracts::transfer(self.world.holder(to), amount);
                self.from(sender, contracts.tokens[0], CALL_GAS, input)
            }
            Traffic::Amm => {
                let sold = contracts.tokens[self.random.random_range(0..2)];
                self.from(sender, contracts.pair, CALL_GAS, contracts::swap(sold, amount))
            }
            Traffic::Storage | Traffic::Lists => {
                let mut slots = |count| {
                    let slot = |_| U256::from(self.random.random_range(0..self.world.slots));
                    (0..count).map(slot).collect::<Vec<_>>()
                };
                let input = contracts::touch(slots(STORAGE_READS), slots(STORAGE_WRITES));
                self.from(sender, contracts.lists, TOUCH_GAS, input)
            }
        }
    }

    /// Makes calls that together touch these slots.
    fn listed(&mut self, slots: &[B256]) -> Vec<Call> {
        let call = |slots: &[B256]| {
            let words = slots.iter().map(|slot| U256::from_be_bytes(slot.0));
            let (writes, reads): (Vec<_>, Vec<_>) =
                words.enumerate().partition(|(at, _)| at % WRITES_OF == 0);
            let plain = |list: Vec<(usize, U256)>| list.into_iter().map(|(_, word)| word).collect();
            let sender = self.random.random_range(0..self.nonces.len());
            self.from(
                sender,
                self.world.contracts.lists,
                TOUCH_GAS,
                contracts::touch(plain(reads), plain(writes)),
            )
        };
        slots.chunks(LISTED_SLOTS).map(call).collect()
    }

    fn from(&mut self, sender: usize, to: Address, gas: u64, input: Bytes) -> Call {
        let nonce = self.nonces[sender];
        self.nonces[sender] += 1;
        Call { sender, nonce, to, gas, input }
    }

    /// Draws a number below `count`.
    fn draw(&mut self, count: u64, traffic: Traffic) -> u64 {
        match traffic {
            // The inverse of the distribution whose density at x is 1/x.
            Traffic::Erc20Zipf => {
                let rank = (count as f64 + 1.0).powf(self.random.random::<f64>());
                (rank as u64 - 1).min(count - 1)
            }
            _ => self.random.random_range(0..count),
        }
    }
}

#[cfg(test)]
mod tests {
    use slipstream_executor::HintsMode;

    use super::*;
    use crate::{
        harness::{chain::Maker as ChainMaker, kept::clone_store},
        replay::world::{Size, open},
    };
    use slipnet::progress::Progress;

    /// Goal: every kind of traffic executes, and none of its transactions fails.
    #[test]
    fn all_traffic_executes() {
        let keys = [StateKey::Account(Address::ZERO), StateKey::Slot(Address::ZERO, B256::ZERO)];
        let list: Vec<B256> = keys.iter().map(listed_slot).collect();
        let world = World::new(Size { rows: 2_000, senders: 20 }, list.clone());
        let dir = tempfile::tempdir().unwrap();
        let base = world.base(dir.path(), Progress::Quiet).unwrap();
        for &traffic in Traffic::ALL {
            let batches = traffic.batches(&world, std::slice::from_ref(&list), 2).unwrap();
            assert_eq!(batches.len(), if traffic == Traffic::Lists { 1 } else { 2 }, "{traffic:?}");
            let clone = dir.path().join(traffic.name());
            clone_store(&base, &clone).unwrap();
            let store = open(&clone).unwrap();
            let mut maker = ChainMaker::new(&store, &world.genesis, HintsMode::Values);
            batches.iter().for_each(|batch| maker.append(batch).unwrap());
            store.close();
            let again = traffic.batches(&world, std::slice::from_ref(&list), 2).unwrap();
            assert!(batches.concat().iter().map(|it| it.hash).eq(again.concat().iter().map(|it| it.hash)));
        }
    }

    #[test]
    fn ranks_are_drawn_as_zipf_says() {
        let world = World::new(Size { rows: 1_000, senders: 10 }, Vec::new());
        let mut maker = Maker { world: &world, nonces: vec![0; 10], random: SmallRng::seed_from_u64(1) };
        let mut counts = [0_u32; 4];
        for _ in 0..40_000 {
            if let Some(count) = counts.get_mut(maker.draw(1_000_000, Traffic::Erc20Zipf) as usize) {
                *count += 1;
            }
        }
        // ln 2 / ln 1,000,001 of all, then ln 3/2, ln 4/3.
        for (count, share) in counts.iter().zip([2.0_f64, 1.5, 4.0 / 3.0, 1.25]) {
            let expected = 40_000.0 * share.ln() / 1_000_001_f64.ln();
            assert!((f64::from(*count) - expected).abs() < 0.1 * expected, "{counts:?}, {expected}");
        }
    }
}
