//! Validators over memory: what gets certified, what is refused, and what survives a restart.

mod asked;
mod batches;
mod epochs;
mod network;
mod pool;
mod votes;

use std::sync::Arc;

use slipstream_executor::ExecutorConfig;
use slipstream_network::MemoryHub;
use slipstream_storage::Store;
use slipstream_types::{Certificate, CommitStatement, Genesis, ValidatorSet};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::ledger::{Executed, Ledger};
use crate::{
    ConsensusError, Driver, Pool, PoolConfig, Validator,
    protocol::{
        messages::{self, Proposal, Request, Response},
        votes::{VIEW, Votes},
    },
    testing::{Account, ManualClock, Node, clock, config, join, session, store, validator_key},
};

pub(super) fn ledger(genesis: &Genesis, store: &Store) -> Arc<Ledger> {
    ledger_with(ExecutorConfig { prefetch_threads: 0, ..Default::default() }, genesis, store)
}

fn ledger_with(executor: ExecutorConfig, genesis: &Genesis, store: &Store) -> Arc<Ledger> {
    let (chain, set) = (genesis.chain.clone(), genesis.validator_set());
    let session = session(&executor, genesis);
    Arc::new(Ledger { chain, store: store.clone(), set, session, contract: genesis.validators_contract })
}

/// A validator that only answers, without a network.
struct Lone {
    validator: Validator,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), ConsensusError>>,
}

impl Lone {
    fn start(genesis: &Genesis, store: &Store, index: usize) -> Lone {
        let (validator, driver) = lone(genesis, store, index).unwrap();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(driver.run(shutdown.clone()));
        Lone { validator, shutdown, running }
    }

    /// Asks as another validator does; a refusal gives its text.
    async fn ask(&self, peer: usize, request: &Request) -> Result<Response, String> {
        let payload = messages::encode(request).unwrap();
        let answer = self.validator.handle(validator_key(peer).public(), payload).await;
        let answer = answer.map_err(|refusal| refusal.text().to_owned());
        answer.map(|bytes| messages::decode_response(&bytes).unwrap())
    }

    async fn propose(&self, proposal: &Proposal) -> Result<Response, String> {
        self.ask(0, &Request::Propose(Box::new(proposal.clone()))).await
    }

    async fn decide(&self, certificate: &Certificate) -> Result<Response, String> {
        self.ask(0, &Request::Decide(Box::new(certificate.clone()))).await
    }

    /// Stops it, and lets go of the store.
    async fn stop(self) {
        self.shutdown.cancel();
        self.running.await.unwrap().unwrap();
    }
}

fn lone(genesis: &Genesis, store: &Store, index: usize) -> Result<(Validator, Driver), ConsensusError> {
    let (transport, _) = join(&MemoryHub::new(), validator_key(index).public());
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
    let executor = ExecutorConfig { prefetch_threads: 0, ..Default::default() };
    let session = session(&executor, genesis);
    let (chain, set) = (genesis.chain.clone(), genesis.validator_set());
    let (decided, _) = mpsc::channel(1);
    let key = validator_key(index);
    Validator::new(config(), session, chain, store.clone(), pool, key, set, transport, clock(), decided)
}

/// A batch as the proposer makes it, with transactions of one account.
pub(super) fn batch(genesis: &Genesis, store: &Store, nonces: std::ops::Range<u64>, now_ms: u64) -> Executed {
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
pub(super) fn certificate(set: &ValidatorSet, executed: &Executed) -> Certificate {
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
