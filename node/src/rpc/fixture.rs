//! A JSON-RPC context over a store, without a node. Its only validator never answers, and it has neither a follower nor
//! ports.

use std::{sync::Arc, time::Duration};

use slipstream_consensus::{Forwarder, Pool, PoolConfig};
use slipstream_executor::{ExecutorConfig, Session};
use slipstream_network::{BoxFuture, Handler, MemoryHub, Payload, PeerId, Protocol, Refusal, Transport};
use slipstream_storage::Store;
use slipstream_sync::{Follower, SyncConfig};
use slipstream_types::Genesis;

use super::{Batches, Congestion, Feed, Keeps, LogIndex, RpcContext, TraceLimits};
use crate::{
    clock::SystemClock,
    health::{HealthSource, Rules},
    workers::Workers,
};

/// A peer that has nothing.
pub(crate) struct Nobody;

impl Handler for Nobody {
    fn request<'a>(&'a self, _: PeerId, _: Protocol, _: Vec<u8>) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async { Err(Refusal::not_kept("nobody")) })
    }

    fn message<'a>(&'a self, _: PeerId, _: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// Builds a context over a store that has this genesis.
///
/// # Panics
/// If the store has another genesis.
pub(crate) fn over(genesis: &Genesis, store: Store) -> RpcContext {
    let chain = genesis.chain.clone();
    let validator = genesis.validators[0].public_key;
    let transport: Arc<dyn Transport> = MemoryHub::new().join(validator, Arc::new(Nobody));
    let pool = Pool::new(PoolConfig::default(), chain.clone(), store.clone()).expect("a readable store");
    let session = Session::new(&ExecutorConfig::default(), chain.clone()).expect("threads");
    let follower = Follower::new(
        SyncConfig::default(),
        store.clone(),
        transport.clone(),
        Arc::new(session),
        None,
        Duration::ZERO,
    );
    let clock = Arc::new(SystemClock);
    let rules = Rules { head_age_max: None, head_lag_max: None };
    let health = HealthSource::new(
        rules,
        store.clone(),
        follower.expect("a store with a genesis"),
        None,
        transport.clone(),
        clock.clone(),
        Arc::default(),
    );
    let forwarder = Forwarder::new(pool.clone(), &chain, transport.clone(), &[validator], None);
    RpcContext {
        batches: Batches::new(store.clone(), pool.senders().clone(), false),
        congestion: Congestion::default(),
        keeps: Keeps { bodies: true, places: true },
        chain,
        forwarder: forwarder.expect("no journal is read"),
        pool: pool.clone(),
        pool_reader: Workers::begun("pool reader"),
        transport,
        health: Arc::new(health),
        clock,
        log_index: Arc::new(LogIndex::new(store.clone())),
        filters: Arc::default(),
        feed: Feed::new(&store, pool).expect("a readable store"),
        call_time_max: Duration::from_secs(5),
        send_sync_time_max: Duration::from_secs(20),
        trace_limits: TraceLimits { time_max: Duration::from_secs(5), bytes_max: 64 << 20 },
        store,
    }
}
