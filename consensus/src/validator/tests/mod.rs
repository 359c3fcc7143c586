//! Validators over memory: what gets certified, what is refused, and what survives a restart.

mod asked;
mod batches;
mod network;
mod pool;
mod votes;

use std::sync::Arc;

use slipstream_executor::ExecutorConfig;
use slipstream_network::MemoryHub;
use slipstream_storage::Store;
use slipstream_types::{Certificate, CommitStatement, Genesis, ValidatorSet};

use super::{
    ledger::{Executed, Ledger},
    voter::Voter,
};
use crate::{
    Pool, PoolConfig,
    protocol::{
        messages::Proposal,
        votes::{VIEW, Votes},
    },
    testing::{Account, ManualClock, Node, clock, session, store, validator_key},
};

fn ledger(genesis: &Genesis, store: &Store) -> Arc<Ledger> {
    ledger_with(ExecutorConfig { prefetch_threads: 0, ..Default::default() }, genesis, store)
}

fn ledger_with(executor: ExecutorConfig, genesis: &Genesis, store: &Store) -> Arc<Ledger> {
    let (chain, set) = (genesis.chain.clone(), genesis.validator_set());
    let session = session(&executor, genesis);
    Arc::new(Ledger { chain, store: store.clone(), set, session })
}

fn voter(genesis: &Genesis, store: &Store, index: u16) -> Voter {
    Voter::new(ledger(genesis, store), clock(), validator_key(index.into()), index).unwrap()
}

/// A batch as the proposer makes it, with transactions of one account.
fn batch(genesis: &Genesis, store: &Store, nonces: std::ops::Range<u64>, now_ms: u64) -> Executed {
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
    for nonce in nonces {
        pool.add(Account::new(0).transfer(nonce, 7)).unwrap();
    }
    ledger(genesis, store).build(&pool, 100, now_ms, true).unwrap().unwrap().executed.unwrap()
}

fn proposal(executed: &Executed) -> Proposal {
    let sealed = &executed.sealed;
    let (header, body, hints) = (sealed.header.clone(), sealed.body.clone(), sealed.hints.clone());
    Proposal { header, body, hints, parent: None }
}

/// Signed by all.
fn certificate(set: &ValidatorSet, executed: &Executed) -> Certificate {
    let mut votes = Votes::new(executed.info.clone());
    let statement = CommitStatement::new(VIEW, executed.info.digest());
    for index in 0..set.validators.len() as u16 {
        votes.add(set, index, statement.sign(&validator_key(index.into())));
    }
    votes.certificate(set).unwrap()
}

fn connect_all(hub: &MemoryHub, indices: &[usize]) {
    for (position, a) in indices.iter().enumerate() {
        for b in &indices[position + 1..] {
            assert!(hub.connect(validator_key(*a).public(), validator_key(*b).public()));
        }
    }
}

fn start_all(hub: &MemoryHub, genesis: &Genesis, clock: &Arc<ManualClock>) -> Vec<Node> {
    let nodes = 0..genesis.validators.len();
    nodes.map(|index| Node::start(hub, genesis, index, store(genesis), clock.clone())).collect()
}
