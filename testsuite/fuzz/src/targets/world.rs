//! The honest chain that targets compare inputs with: four validators, three batches, an account with code, a snapshot.

use std::sync::{Arc, LazyLock};

use alloy_primitives::TxKind;
use slipstream_executor::{BatchContext, ExecutorConfig, HintsMode, Session, decode_body, execute, seal};
use slipstream_storage::{Snapshot, StorageConfig, Store};
use slipstream_testkit::{Batch, Wallet, key, keys};
use slipstream_types::{
    Address, B256, BatchHeader, BatchNumber, BlobKind, Body, Bytes, Epoch, Genesis, SecretKey, U256,
    bounded::BoundedBytes, genesis::GenesisAccount,
};

/// The number of batches; the snapshot is of the last one.
pub(super) const BATCHES: u64 = 3;
/// The seed of the wallet that signs the batches' transactions.
pub(super) const WALLET: u8 = 9;
/// The gas limit of the wallet's transactions.
pub(super) const GAS: u64 = 100_000;
/// Code that returns its call data: CALLDATASIZE PUSH0 PUSH0 CALLDATACOPY CALLDATASIZE PUSH0 RETURN.
const CODE: [u8; 7] = [0x36, 0x5f, 0x5f, 0x37, 0x36, 0x5f, 0xf3];
/// The account with that code, and with slots.
pub(super) const CONTRACT: Address = Address::repeat_byte(0xcc);
/// Other accounts, so that the state's paths fill several pieces.
const OTHERS: u8 = 40;

pub(super) struct Chain {
    pub(super) genesis: Genesis,
    pub(super) store: Store,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) headers: Vec<BatchHeader>,
}

/// Made once, because targets only read it.
pub(super) static CHAIN: LazyLock<Chain> = LazyLock::new(|| {
    let genesis = genesis();
    let store = store(&genesis);
    let mut wallet = wallet(&genesis);
    let headers = (0..BATCHES).map(|_| commit(&genesis, &store, &mut wallet)).collect();
    store.create_snapshot().expect("the head is certified");
    let snapshot = store.snapshot(BatchNumber::new(BATCHES)).expect("memory is readable");
    Chain { genesis, store, snapshot: snapshot.expect("it was made"), headers }
});

pub(super) fn validators() -> Vec<SecretKey> {
    keys(1..=4)
}

/// Returns a key that is no validator's.
pub(super) fn stranger() -> SecretKey {
    key(77)
}

pub(super) fn wallet(genesis: &Genesis) -> Wallet {
    Wallet::new(WALLET, genesis.chain.chain_id, GAS)
}

pub(super) fn genesis() -> Genesis {
    let genesis = slipstream_testkit::genesis(&validators(), 1_700_000_000_000);
    let rich = || GenesisAccount { balance: U256::from(10).pow(U256::from(20)), ..Default::default() };
    let code = BoundedBytes::new(CODE.to_vec()).expect("short code");
    let slots = (1..6).map(|slot| (B256::with_last_byte(slot), U256::from(slot)));
    let contract = GenesisAccount { code, storage: slots.collect(), ..rich() };
    let others = (1..=OTHERS).map(|other| (Address::repeat_byte(other), rich()));
    let named = [(CONTRACT, contract), (wallet(&genesis).address(), rich())];
    Genesis { accounts: others.chain(named).collect(), ..genesis }
}

/// Returns a store with only the genesis.
pub(super) fn store(genesis: &Genesis) -> Store {
    let config = StorageConfig { snapshot_interval_batches: 0, tree_memory_mib: 1, ..Default::default() };
    let store = Store::memory(&config);
    store.initialize(genesis).expect("a fresh store takes a genesis");
    store
}

/// Returns a session that does all work on its caller's thread.
pub(super) fn session(genesis: &Genesis) -> Arc<Session> {
    let config = ExecutorConfig {
        prefetch_threads: 0,
        hints: HintsMode::Keys,
        threads: 1,
        hot_cache_mib: 1,
        ..Default::default()
    };
    Arc::new(Session::new(&config, genesis.chain.clone()).expect("no thread is begun"))
}

/// Commits the next batch: a transfer, and a call of the contract.
fn commit(genesis: &Genesis, store: &Store, wallet: &mut Wallet) -> BatchHeader {
    let transfer = wallet.sign(TxKind::Call(Address::repeat_byte(7)), 5, Bytes::new());
    let call = wallet.sign(TxKind::Call(CONTRACT), 0, Bytes::from_static(&[1; 40]));
    let body = Body::new(vec![transfer, call]).expect("two transactions");
    let transactions = decode_body(&body, &genesis.chain).expect("they are of this chain");
    let head = store.head().expect("memory is readable");
    let basis = BatchContext {
        parent: &head.header,
        epoch: Epoch(0),
        timestamp_ms: head.header.timestamp_ms + 100,
        proposer: Address::ZERO,
    };
    let view = store.view().expect("memory is readable");
    let outcome = execute(&view, &basis.env(&genesis.chain), &transactions).expect("they can be executed");
    let speculation = store.speculate(&outcome.delta).expect("memory is readable");
    let sealed = seal(HintsMode::Keys, &basis, &transactions, &outcome, speculation.root());
    let sealed = sealed.expect("a short batch");
    let batch = Batch { sealed: &sealed, delta: &outcome.delta, transactions: &transactions, next: None };
    batch.commit(store, speculation, &validators()).expect("it follows the head");
    sealed.header
}

impl Chain {
    /// Returns the announcement of a batch, as its primary sends it.
    pub(super) fn announcement(&self, number: BatchNumber) -> Vec<u8> {
        let blob = |kind| self.store.blob(kind, number).expect("memory is readable");
        let header = self.headers[number.get() as usize - 1].clone();
        let certificate = self.store.certificate(number).expect("memory is readable").expect("certified");
        let body = blob(BlobKind::Body).expect("a body");
        slipstream_sync::announcement(header, certificate, body, blob(BlobKind::Hints)).expect("it encodes")
    }
}
