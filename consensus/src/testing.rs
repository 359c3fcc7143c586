//! The shared parts of this crate's tests: a chain with funded accounts, signed transactions, validators over memory.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_consensus::{TxEip1559, TxEip7702};
use alloy_eips::eip7702::{Authorization, SignedAuthorization};
use alloy_primitives::{Address, TxKind, U256};
use k256::ecdsa::SigningKey;
use slipstream_executor::{Envelope, ExecutorConfig, Session, Transaction};
use slipstream_network::{
    BoxFuture, Handler, MemoryHub, MemoryTransport, Payload, PeerId, Protocol, Refusal,
};
use slipstream_storage::{StorageConfig, Store};
use slipstream_types::{
    ChainConfig, Clock, Genesis, SecretKey, Validator as Member, bounded::BoundedVec, delta::Code,
    genesis::GenesisAccount,
};
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{ConsensusConfig, PoolConfig},
    error::ConsensusError,
    forward::Forwarder,
    pool::Pool,
    validator::{DecidedBatch, Driver, Validator},
};

pub(crate) const NOW_MS: u64 = 1_800_000_000_000;

/// The index of [`Account::contract`]; those below it are ordinary accounts.
const CONTRACT: u8 = 8;

/// Gas of a transfer.
const TRANSFER_GAS: u64 = 21_000;

/// A clock that begins at [`NOW_MS`], runs with tokio's and can be set.
pub(crate) struct ManualClock {
    begun: Instant,
    set_by_ms: AtomicI64,
}

impl ManualClock {
    /// Sets the clock ahead, or back.
    pub(crate) fn shift(&self, ms: i64) {
        self.set_by_ms.fetch_add(ms, Relaxed);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        let elapsed_ms = self.begun.elapsed().as_millis() as u64;
        (NOW_MS + elapsed_ms).saturating_add_signed(self.set_by_ms.load(Relaxed))
    }
}

pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock { begun: Instant::now(), set_by_ms: AtomicI64::new(0) })
}

pub(crate) fn validator_key(index: usize) -> SecretKey {
    slipstream_testkit::key(index as u8 + 1)
}

/// An Ethereum account with money in the genesis.
pub(crate) struct Account {
    key: SigningKey,
    pub(crate) address: Address,
}

impl Account {
    pub(crate) fn new(index: u8) -> Account {
        let key = SigningKey::from_slice(&[index + 1; 32]).unwrap();
        let address = Address::from_private_key(&key);
        Account { key, address }
    }

    /// A transfer of 1 wei to an unused address.
    pub(crate) fn transfer(&self, nonce: u64, tip_wei: u128) -> Transaction {
        self.call(nonce, tip_wei, TRANSFER_GAS, &[])
    }

    /// A transfer with these caps of the fee and of the tip.
    pub(crate) fn transfer_capped(&self, nonce: u64, max_fee_per_gas: u128, tip_cap: u128) -> Transaction {
        let transaction = TxEip1559 {
            chain_id: ChainConfig::default().chain_id,
            nonce,
            gas_limit: TRANSFER_GAS,
            max_fee_per_gas,
            max_priority_fee_per_gas: tip_cap,
            to: TxKind::Call(Address::repeat_byte(0xee)),
            ..TxEip1559::default()
        };
        let signed = slipstream_testkit::signed(transaction, &self.key);
        Transaction::from_envelope(Envelope::Eip1559(signed)).unwrap()
    }

    /// A transfer with that gas limit.
    pub(crate) fn transfer_with_gas(&self, nonce: u64, tip_wei: u128, gas_limit: u64) -> Transaction {
        self.call(nonce, tip_wei, gas_limit, &[])
    }

    /// A transfer of slightly more than `bytes` bytes.
    pub(crate) fn large(&self, nonce: u64, bytes: usize) -> Transaction {
        self.call(nonce, 1, TRANSFER_GAS + 10 * bytes as u64, &vec![0; bytes])
    }

    /// An account with money and with code (EIP-3607): only execution finds that its transactions are invalid.
    pub(crate) fn contract() -> Account {
        Account::new(CONTRACT)
    }

    /// A transfer with data, for which its gas limit does not pay.
    pub(crate) fn hopeless(&self, nonce: u64) -> Transaction {
        self.call(nonce, 1, TRANSFER_GAS, b"too much")
    }

    /// A transaction with this many authorizations (EIP-7702), whose signatures are invalid.
    pub(crate) fn delegating(&self, authorizations: usize) -> Transaction {
        let authorization = Authorization { chain_id: U256::ZERO, address: Address::ZERO, nonce: 0 };
        let signed = SignedAuthorization::new_unchecked(authorization, 0, U256::from(1), U256::from(1));
        let transaction = TxEip7702 {
            chain_id: ChainConfig::default().chain_id,
            gas_limit: 100_000 + 25_000 * authorizations as u64,
            max_fee_per_gas: u128::from(ChainConfig::default().base_fee_wei) + 1,
            max_priority_fee_per_gas: 1,
            authorization_list: vec![signed; authorizations],
            ..TxEip7702::default()
        };
        let signed = slipstream_testkit::signed(transaction, &self.key);
        Transaction::from_envelope(Envelope::Eip7702(signed)).unwrap()
    }

    /// Calls a contract, without value.
    pub(crate) fn invoke(&self, nonce: u64, contract: Address, data: &[u8]) -> Transaction {
        self.pay(contract, U256::ZERO, nonce, 1, 500_000, data)
    }

    fn call(&self, nonce: u64, tip_wei: u128, gas_limit: u64, data: &[u8]) -> Transaction {
        self.pay(Address::repeat_byte(0xee), U256::from(1), nonce, tip_wei, gas_limit, data)
    }

    fn pay(
        &self,
        to: Address,
        value: U256,
        nonce: u64,
        tip_wei: u128,
        gas_limit: u64,
        data: &[u8],
    ) -> Transaction {
        let chain = ChainConfig::default();
        let transaction = TxEip1559 {
            chain_id: chain.chain_id,
            nonce,
            gas_limit,
            // The fee cap is above what anybody gets.
            max_fee_per_gas: u128::from(chain.base_fee_wei) + tip_wei + 3,
            max_priority_fee_per_gas: tip_wei,
            to: TxKind::Call(to),
            value,
            input: data.to_vec().into(),
            ..TxEip1559::default()
        };
        let signed = slipstream_testkit::signed(transaction, &self.key);
        Transaction::from_envelope(Envelope::Eip1559(signed)).unwrap()
    }
}

pub(crate) fn genesis(validators: usize) -> Genesis {
    let validators = (0..validators).map(|index| Member {
        public_key: validator_key(index).public(),
        fee_recipient: Address::repeat_byte(0xf0 + index as u8),
    });
    let balance = U256::from(10).pow(U256::from(18));
    let code = |index| if index == CONTRACT { vec![0] } else { Vec::new() };
    let account = |index| GenesisAccount {
        balance,
        code: Code::new(code(index)).unwrap(),
        ..GenesisAccount::default()
    };
    let accounts = (0..=CONTRACT).map(|index| (Account::new(index).address, account(index)));
    Genesis {
        chain: ChainConfig::default(),
        timestamp_ms: NOW_MS - 1_000,
        validators: BoundedVec::new(validators.collect()).unwrap(),
        accounts: accounts.collect(),
        ..Genesis::default()
    }
}

pub(crate) fn store(genesis: &Genesis) -> Store {
    let store = Store::memory(&StorageConfig::default());
    store.initialize(genesis).unwrap();
    store
}

/// The session with which a node of this chain executes.
pub(crate) fn session(executor: &ExecutorConfig, genesis: &Genesis) -> Arc<Session> {
    Arc::new(Session::new(executor, genesis.chain.clone()).unwrap())
}

pub(crate) fn config() -> ConsensusConfig {
    ConsensusConfig {
        batch_interval_ms: 5,
        empty_batch_interval_ms: 0,
        rotate_after: 0,
        ..ConsensusConfig::default()
    }
}

/// Passes requests to the parts that the node runs.
#[derive(Default)]
pub(crate) struct Endpoint {
    validator: OnceLock<Validator>,
    forwarder: OnceLock<Arc<Forwarder>>,
}

impl Endpoint {
    /// Serves as a fullnode does.
    pub(crate) fn serve(&self, forwarder: Arc<Forwarder>) {
        self.forwarder.set(forwarder).ok().unwrap();
    }
}

impl Handler for Endpoint {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move {
            match (protocol, self.validator.get(), self.forwarder.get()) {
                (Protocol::CONSENSUS, Some(validator), _) => {
                    validator.handle(peer, payload).await.map(Payload::from)
                }
                (Protocol::TRANSACTIONS, _, Some(forwarder)) => {
                    forwarder.handle(peer, payload).await.map(Payload::from)
                }
                _ => Err(Refusal::not_kept("not served here")),
            }
        })
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// One node of a test network.
pub(crate) struct Node {
    pub(crate) store: Store,
    pub(crate) pool: Pool,
    pub(crate) validator: Validator,
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) decided: mpsc::Receiver<DecidedBatch>,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), ConsensusError>>,
}

impl Node {
    /// Starts validator `index` over the store and joins it to the hub, unconnected.
    pub(crate) fn start(
        hub: &MemoryHub,
        genesis: &Genesis,
        index: usize,
        store: Store,
        clock: Arc<impl Clock>,
    ) -> Node {
        Node::start_with(hub, genesis, index, store, clock, |_| {})
    }

    /// Does the same, with a driver that is changed before it runs.
    pub(crate) fn start_with(
        hub: &MemoryHub,
        genesis: &Genesis,
        index: usize,
        store: Store,
        clock: Arc<impl Clock>,
        change: impl FnOnce(&mut Driver),
    ) -> Node {
        let (transport, endpoint) = join(hub, validator_key(index).public());
        let chain = genesis.chain.clone();
        let pool = Pool::new(PoolConfig::default(), chain.clone(), store.clone()).unwrap();
        let (sender, decided) = mpsc::channel(64);
        let (key, set) = (validator_key(index), genesis.validator_set());
        let members: Vec<_> = set.validators.iter().map(|member| member.public_key).collect();
        // Works on the caller's thread, so that a paused clock stands still meanwhile.
        let forwarder =
            Forwarder::with_threads(pool.clone(), (&chain).into(), transport.clone(), &members, None, 0)
                .unwrap();
        let (validator, mut driver) = Validator::new(
            config(),
            session(&ExecutorConfig::default(), genesis),
            chain,
            store.clone(),
            pool.clone(),
            key,
            set.clone(),
            transport,
            clock,
            sender,
        )
        .unwrap();
        change(&mut driver);
        endpoint.validator.set(validator.clone()).ok().unwrap();
        endpoint.forwarder.set(forwarder.clone()).ok().unwrap();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(driver.run(shutdown.clone()));
        let (mut view, led) = (validator.watch_view(), forwarder.clone());
        tokio::spawn(async move {
            while view.changed().await.is_ok() {
                led.lead(&set, *view.borrow_and_update());
            }
        });
        Node { store, pool, validator, forwarder, decided, shutdown, running }
    }

    /// Stops the node as a shutdown does, and returns the store that is left on disk.
    pub(crate) async fn stop(self) -> Store {
        self.shutdown.cancel();
        self.running.await.unwrap().unwrap();
        self.store
    }

    /// Waits until the node cannot continue, and returns the reason.
    pub(crate) async fn fails(&mut self) -> ConsensusError {
        let ended = tokio::time::timeout(PATIENCE, &mut self.running).await.expect("the validator runs on");
        ended.unwrap().expect_err("the validator ended by itself")
    }

    /// Waits until the node panics, and returns the reason.
    pub(crate) async fn panics(self) -> String {
        let ended = tokio::time::timeout(PATIENCE, self.running).await.expect("the validator runs on");
        let panic = ended.unwrap_err().into_panic();
        panic.downcast_ref::<&str>().copied().unwrap_or_default().to_owned()
    }

    /// Waits until the head is at least `number`.
    pub(crate) async fn reaches(&self, number: u64) {
        let mut head = self.store.watch_head();
        let reached = tokio::time::timeout(PATIENCE, head.wait_for(|head| head.get() >= number)).await;
        reached.expect("the head does not move").unwrap();
    }
}

/// Far longer than anything takes on a slow machine: reached only by a test that fails.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn join(hub: &MemoryHub, id: PeerId) -> (Arc<MemoryTransport>, Arc<Endpoint>) {
    let endpoint = Arc::new(Endpoint::default());
    (hub.join(id, endpoint.clone()), endpoint)
}

/// Waits for a condition that nothing announces.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

/// Never answers.
pub(crate) struct Silent;

impl Handler for Silent {
    fn request<'a>(&'a self, _: PeerId, _: Protocol, _: Vec<u8>) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(std::future::pending())
    }

    fn message<'a>(&'a self, _: PeerId, _: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}
