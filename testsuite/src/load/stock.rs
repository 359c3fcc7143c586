//! [`Stock`]: a generator's transactions, signed before the first one is due.

use alloy_primitives::Address;
use anyhow::{Context, Result, ensure};
use rayon::prelude::*;

use super::{
    plan::{self, Plan},
    protocol::Job,
    setup::ChainFacts,
};
use crate::{accounts::Account, signer::Signed};

/// The transactions of the plan that one generator sends, about 300 bytes each.
pub(super) struct Stock {
    chain: ChainFacts,
    plan: Plan,
    accounts: Vec<Account>,
    nonces: Vec<u64>,
    /// Plan indices, ascending.
    indices: Vec<u32>,
    /// The signed transactions, in the order of `indices`.
    signed: Vec<Signed>,
}

impl Stock {
    /// Signs a job's part of the plan, on all cores.
    pub(super) fn sign(job: &Job) -> Result<Stock> {
        ensure!(job.worker < job.workers && job.connections > 0, "the job has no lanes");
        ensure!(job.accounts.len() == job.nonces.len(), "a nonce is missing");
        let accounts: Vec<Account> =
            job.accounts.par_iter().map(|key| Account::from_hex(key)).collect::<Result<_>>()?;
        let senders = accounts.iter().map(|account| account.address).collect();
        let plan = Plan::new(job.plan.clone(), senders)?;
        let indices = indices(&plan, job.worker, job.workers, job.connections);
        let mut stock = Stock {
            chain: job.chain,
            plan,
            accounts,
            nonces: job.nonces.clone(),
            indices,
            signed: Vec::new(),
        };
        let signed = stock.indices.par_iter().map(|index| {
            let place = *index as usize;
            let call = stock.plan.call(place).with_context(|| format!("transaction {index}"))?;
            let account = &stock.accounts[stock.plan.sender(place)];
            Ok::<_, anyhow::Error>(stock.chain.sign(account, stock.nonce(*index), call))
        });
        let signed: Result<Vec<Signed>> = signed.collect();
        stock.signed = signed?;
        Ok(stock)
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the next nonces of all accounts before the run.
    pub(super) fn nonces(&self) -> &[u64] {
        &self.nonces
    }

    /// Returns the plan indices of the generator's transactions.
    pub(super) fn indices(&self) -> &[u32] {
        &self.indices
    }

    pub(super) fn address(&self, account: usize) -> Address {
        self.accounts[account].address
    }

    /// Returns the hashes in the order of [`Stock::indices`], 32 bytes each.
    pub(super) fn hashes(&self) -> Vec<u8> {
        self.signed.iter().flat_map(|signed| signed.hash.0).collect()
    }

    /// Returns a presigned transaction.
    pub(super) fn signed(&self, index: u32) -> &Signed {
        let place = self.indices.binary_search(&index).expect("a lane sends what is its generator's");
        &self.signed[place]
    }

    /// Returns a transaction with this nonce, and whether it had to be signed again.
    pub(super) fn planned(&self, index: u32, nonce: u64) -> (Signed, bool) {
        if nonce == self.nonce(index) {
            return (self.signed(index).clone(), false);
        }
        let place = index as usize;
        let call = self.plan.call(place).expect("it was signed once");
        (self.chain.sign(&self.accounts[self.plan.sender(place)], nonce, call), true)
    }

    /// Signs a transaction that only plugs a nonce.
    pub(super) fn plug(&self, account: usize, nonce: u64) -> Signed {
        let account = &self.accounts[account];
        self.chain.sign(account, nonce, plan::plug(account.address))
    }

    fn nonce(&self, index: u32) -> u64 {
        let index = index as usize;
        self.nonces[self.plan.sender(index)] + self.plan.nonce_offset(index)
    }
}

/// Returns the plan indices of one generator. Lane `l` belongs to generator `l % workers`.
pub(super) fn indices(plan: &Plan, worker: usize, workers: usize, connections: usize) -> Vec<u32> {
    let lanes = workers * connections;
    let own = (0..plan.len()).filter(|index| plan.lane(*index, lanes) % workers == worker);
    own.map(|index| index as u32).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashSet;

    use alloy_consensus::{Transaction, TxEnvelope, transaction::SignerRecoverable};
    use alloy_eips::eip2718::Decodable2718;

    use super::*;
    use crate::load::{
        plan::{PlanOptions, Targets},
        schedule::Rate,
    };

    /// Returns the job of one of two generators: 30 transfers at 10 per second from 4 accounts whose next nonce is 5.
    pub(in crate::load) fn job(worker: usize) -> Job {
        Job {
            worker,
            workers: 2,
            connections: 2,
            chain: ChainFacts { chain_id: 7_357, max_fee_wei: 20, tip_wei: 1 },
            accounts: Account::derive_many("plan", 4).iter().map(Account::key_hex).collect(),
            nonces: vec![5; 4],
            plan: PlanOptions {
                mix: "transfers".parse().unwrap(),
                rate: Rate::constant(10),
                duration_ms: 3_000,
                seed: 1,
                targets: Targets::default(),
            },
            submit: Vec::new(),
            sink: String::new(),
            reads: None,
            hashes_file: "hashes".into(),
        }
    }

    #[test]
    fn generators_share_the_plan_and_each_transaction_is_its_senders_next() {
        let stocks = [Stock::sign(&job(0)).unwrap(), Stock::sign(&job(1)).unwrap()];
        let mut seen = HashSet::new();
        for stock in &stocks {
            assert_eq!(stock.hashes().len(), 32 * stock.indices().len());
            for index in stock.indices() {
                assert!(seen.insert(*index), "{index} belongs to both");
                let (signed, is_new) = stock.planned(*index, 5 + u64::from(*index) / 4);
                let decoded = TxEnvelope::decode_2718_exact(&signed.raw).unwrap();
                assert_eq!(decoded.recover_signer().unwrap(), stock.plan().sender_address(*index as usize));
                assert!(!is_new && decoded.nonce() == 5 + u64::from(*index) / 4);
            }
        }
        assert_eq!(seen.len(), 30);
        let (other, is_new) = stocks[0].planned(stocks[0].indices()[0], 99);
        assert!(is_new && other.hash != stocks[0].signed(stocks[0].indices()[0]).hash);
    }

    #[test]
    fn a_plug_is_a_transfer_of_nothing_to_oneself() {
        let stock = Stock::sign(&job(0)).unwrap();
        let decoded = TxEnvelope::decode_2718_exact(&stock.plug(1, 7).raw).unwrap();
        assert_eq!((decoded.to(), decoded.nonce()), (Some(stock.address(1)), 7));
        assert!(decoded.value().is_zero() && decoded.input().is_empty());
    }
}
