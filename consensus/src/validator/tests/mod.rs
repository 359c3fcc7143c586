//! Validators over memory: what gets certified, what is refused, and what survives a restart.

mod batches;
mod epochs;
mod messages;
mod network;
mod pool;
mod records;
mod views;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use slipstream_eve::Work;
use slipstream_executor::ExecutorConfig;
use slipstream_network::MemoryHub;
use slipstream_storage::Store;
use slipstream_types::{Certificate, Digest, Genesis, ValidatorSet};
use tokio::{sync::mpsc, time::Instant};

use super::{
    building::{BuildOutcome, BuildRequest},
    executed::Executed,
    ledger::Ledger,
    message::Ordered,
    pace::Pace,
    stop::Stop,
};
use crate::{
    ConsensusError, Driver, Pool, PoolConfig, Validator,
    seams::Seams,
    testing::{Account, ManualClock, Node, clock, config, join, session, store, validator_key},
};

pub(super) fn ledger(genesis: &Genesis, store: &Store) -> Arc<Ledger> {
    ledger_with(ExecutorConfig { prefetch_threads: 0, ..Default::default() }, genesis, store)
}

fn ledger_with(executor: ExecutorConfig, genesis: &Genesis, store: &Store) -> Arc<Ledger> {
    let set = genesis.validator_set();
    Arc::new(Ledger {
        domain: Ledger::domain(genesis.header().unwrap().digest(), &set),
        chain: genesis.chain.clone(),
        store: store.clone(),
        set,
        key: validator_key(0),
        session: session(&executor, genesis),
        contract: genesis.validators_contract,
        seams: Seams::default(),
    })
}

fn lone(genesis: &Genesis, store: &Store, index: usize) -> Result<(Validator, Driver), ConsensusError> {
    let (transport, _) = join(&MemoryHub::new(), validator_key(index).public());
    let pool = pool(genesis, store);
    let executor = ExecutorConfig { prefetch_threads: 0, ..Default::default() };
    let session = session(&executor, genesis);
    let (chain, set) = (genesis.chain.clone(), genesis.validator_set());
    let (decided, _) = mpsc::channel(1);
    let key = validator_key(index);
    Validator::new(config(), session, chain, store.clone(), pool, key, set, transport, clock(), decided)
}

fn pool(genesis: &Genesis, store: &Store) -> Pool {
    Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap()
}

/// Builds a batch from a pool, as the first primary does.
fn build(
    ledger: &Ledger,
    chain: &[Arc<Executed>],
    pool: &Pool,
    now_ms: u64,
    may_be_empty: bool,
) -> BuildOutcome {
    ledger.build(chain, pool, &request(ledger, chain, now_ms, may_be_empty)).unwrap().batch
}

fn request(ledger: &Ledger, chain: &[Arc<Executed>], now_ms: u64, may_be_empty: bool) -> BuildRequest {
    let number = chain.last().map_or(ledger.tip().unwrap().number(), |last| last.number()).next();
    let mut held = super::uncommitted_chain::UncommittedChain::new(number.before(1 + chain.len() as u64));
    chain.iter().for_each(|executed| held.push(executed.clone()));
    BuildRequest {
        work: Work { generation: 0, view: 0, number, sequential: false },
        parent: Digest::ZERO,
        begun: Instant::now(),
        transactions_max: 10_000,
        may_be_empty,
        now_ms,
        ahead: held.ahead(),
        patience: Duration::from_secs(60),
        pace: Arc::new(Mutex::new(Pace::new(Duration::from_secs(60), &ledger.set))),
        stop: Stop::default(),
    }
}

fn made(built: BuildOutcome) -> Arc<Executed> {
    match built {
        BuildOutcome::Made(executed) => Arc::new(*executed),
        BuildOutcome::Nothing(rejected) => panic!("nothing was made, {} rejected", rejected.len()),
        BuildOutcome::Overtaken => panic!("overtaken"),
    }
}

/// Builds a batch after others, with transactions of one account.
pub(super) fn batch_after(
    ledger: &Ledger,
    chain: &[Arc<Executed>],
    nonces: std::ops::Range<u64>,
    now_ms: u64,
) -> Arc<Executed> {
    let pool = Pool::new(PoolConfig::default(), ledger.chain.clone(), ledger.store.clone()).unwrap();
    // The earlier transactions are not committed, and must be here for the new ones to be executable.
    for nonce in 0..nonces.end {
        _ = pool.add(Account::new(0).transfer(nonce, 7));
    }
    made(build(ledger, chain, &pool, now_ms, true))
}

/// Builds a batch after the head.
fn batch(genesis: &Genesis, store: &Store, nonces: std::ops::Range<u64>, now_ms: u64) -> Arc<Executed> {
    batch_after(&ledger(genesis, store), &[], nonces, now_ms)
}

/// The batch as the primary sends it.
fn ordered(executed: &Executed) -> Ordered {
    let sealed = &executed.parts.sealed;
    let order = executed.parts.order.clone().unwrap();
    Ordered { order, body: sealed.body.clone(), hints: sealed.hints.clone() }
}

/// A certificate that all validators signed.
pub(super) fn certificate(set: &ValidatorSet, executed: &Executed) -> Certificate {
    let keys: Vec<_> = (0..set.validators.len()).map(validator_key).collect();
    let signers = keys.iter().enumerate().map(|(seat, key)| (seat as u16, key));
    Certificate::signed(executed.parts.info.clone(), 0, signers).unwrap()
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
