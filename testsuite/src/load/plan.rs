//! [`Plan`]: all transactions of a run, signed, and when each is due.

use std::{collections::HashMap, time::Duration};

use alloy_primitives::{Address, B256, U256};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rayon::prelude::*;

use super::{
    LoadOptions,
    setup::{Call, Chain, Target},
};
use crate::{
    accounts::Account,
    contracts,
    signer::{Envelope, Signed},
};

const TRANSFER_WEI: u64 = 1_000;
const TOKEN_TRANSFER_GAS: u64 = 70_000;
const SWAP_GAS: u64 = 160_000;

/// Transaction `i` is due at `i / tps` seconds and comes from account `i % accounts`, so that an account's nonces are in
/// the order of the schedule.
pub(super) struct Plan {
    transactions: Vec<Signed>,
    by_hash: HashMap<B256, u32>,
    accounts: usize,
    tps: u32,
}

impl Plan {
    pub(super) fn sign(
        options: &LoadOptions,
        chain: &Chain,
        target: &Target,
        nonces: &[u64],
        count: usize,
    ) -> Plan {
        let accounts = &options.accounts;
        let transactions: Vec<_> = (0..count)
            .into_par_iter()
            .map(|index| {
                let sender = index % accounts.len();
                let nonce = nonces[sender] + (index / accounts.len()) as u64;
                // Each transaction has its own generator, so that the plan does not depend on the threads.
                let mut random = StdRng::seed_from_u64(options.seed.wrapping_mul(1 << 32) ^ index as u64);
                let receiver = receiver(accounts, sender, &mut random);
                chain.sign(&accounts[sender], nonce, call(target, index, receiver, &mut random))
            })
            .collect();
        let by_hash = transactions.iter().zip(0..).map(|(signed, index)| (signed.hash, index)).collect();
        Plan { transactions, by_hash, accounts: accounts.len(), tps: options.tps }
    }

    pub(super) fn len(&self) -> usize {
        self.transactions.len()
    }

    /// When the transaction is due, after the start.
    pub(super) fn due(&self, index: usize) -> Duration {
        Duration::from_nanos(index as u64 * 1_000_000_000 / u64::from(self.tps))
    }

    pub(super) fn find(&self, hash: &B256) -> Option<u32> {
        self.by_hash.get(hash).copied()
    }

    pub(super) fn hash(&self, index: usize) -> B256 {
        self.transactions[index].hash
    }

    pub(super) fn raw(&self, index: usize) -> String {
        self.transactions[index].raw.to_string()
    }

    /// Whose transactions travel together: all of an account's in one lane keep their order.
    pub(super) fn lane(&self, index: usize, lanes: usize) -> usize {
        (index % self.accounts) % lanes
    }
}

/// Another account of the load, or as often an address that nobody has used: a state grows, and so must a test's.
fn receiver(accounts: &[Account], sender: usize, random: &mut StdRng) -> Address {
    if random.random() {
        return Address::new(random.random());
    }
    accounts[(sender + random.random_range(1..accounts.len())) % accounts.len()].address
}

fn call(target: &Target, index: usize, receiver: Address, random: &mut StdRng) -> Call {
    match target {
        Target::Accounts => Call {
            to: receiver.into(),
            value: U256::from(TRANSFER_WEI),
            envelope: if index.is_multiple_of(2) { Envelope::DynamicFee } else { Envelope::Legacy },
            ..Call::default()
        },
        Target::Token(token) => Call {
            to: (*token).into(),
            gas_limit: TOKEN_TRANSFER_GAS,
            input: contracts::transfer(receiver, U256::from(random.random_range(1..1_000_000u64))),
            ..Call::default()
        },
        Target::Amm { amm, tokens } => Call {
            to: (*amm).into(),
            gas_limit: SWAP_GAS,
            input: contracts::swap(
                tokens[random.random_range(0..2)],
                U256::from(random.random_range(1_000..1_000_000u64)),
            ),
            ..Call::default()
        },
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashSet;

    use super::*;

    /// 30 transfers at 10 per second from 4 accounts whose next nonce is 5.
    pub(in crate::load) fn plan() -> Plan {
        let options =
            LoadOptions { tps: 10, accounts: Account::derive_many("plan", 4), ..LoadOptions::default() };
        Plan::sign(&options, &Chain::for_tests(), &Target::Accounts, &[5; 4], 30)
    }

    #[test]
    fn a_plan_repeats_and_each_account_stays_in_one_lane_in_order() {
        use alloy_consensus::{Transaction, TxEnvelope, transaction::SignerRecoverable};
        use alloy_eips::eip2718::Decodable2718;

        let (plan, again) = (plan(), plan());
        let mut nonces = HashMap::new();
        let mut lanes = HashMap::new();
        for index in 0..plan.len() {
            assert_eq!(plan.hash(index), again.hash(index));
            assert_eq!(plan.find(&plan.hash(index)), Some(index as u32));
            let transaction = TxEnvelope::decode_2718_exact(&plan.transactions[index].raw).unwrap();
            let sender = transaction.recover_signer().unwrap();
            let nonce = nonces.entry(sender).or_insert(5);
            assert_eq!(transaction.nonce(), *nonce);
            *nonce += 1;
            lanes.entry(sender).or_insert_with(HashSet::new).insert(plan.lane(index, 3));
            assert_ne!(transaction.to(), Some(sender));
        }
        assert_eq!(lanes.len(), 4);
        assert!(lanes.values().all(|lanes| lanes.len() == 1));
        assert_eq!(plan.due(25), Duration::from_millis(2_500));
    }
}
