//! Shared parts of the integration tests: a small chain with known keys, and signing.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::{SignableTransaction, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxLegacy};
use alloy_eips::{eip2718::Encodable2718, eip2930::AccessList, eip7702::Authorization};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, address, keccak256};
use k256::ecdsa::SigningKey;
use slipstream_executor::{Admission, BatchEnv, Envelope, ExecutionState, Interrupt, Transaction};
use slipstream_predict::JumpWatch;
use slipstream_storage::{MemoryState, StateReader, StorageError};
use slipstream_types::{
    AccountValue, BatchHeader, BatchNumber, ChainConfig, Digest, Genesis, StateKey, StateValue, delta::Code,
    genesis::GenesisAccount,
};

pub(crate) const CHAIN_ID: u64 = 7_357;
/// The admission rule of the chain of [`genesis`].
pub(crate) const STRICT: Admission = Admission::protected(CHAIN_ID);
pub(crate) const PROPOSER: Address = address!("0xbadfeebadfeebadfeebadfeebadfeebadfeebadf");
pub(crate) const FEE: u128 = 1_000_000_000;
pub(crate) const TIP: u128 = 100;

/// Adds 1 to slot 0 and emits topic 0x2a.
pub(crate) const COUNTER: Address = address!("0x00000000000000000000000000000000c0ffee01");
/// Writes the first word of its call data to slot 0.
pub(crate) const WRITER: Address = address!("0x00000000000000000000000000000000c0ffee02");
/// Writes slot 0 and then reverts with its call data.
pub(crate) const REVERTER: Address = address!("0x00000000000000000000000000000000c0ffee03");
/// Writes the hash of the batch whose number is in its call data to slot 0.
pub(crate) const HASHES: Address = address!("0x00000000000000000000000000000000c0ffee04");
/// Emits the 32,768 zero bytes of its memory as a log, the number of times in its call data's first word.
pub(crate) const LOUD: Address = address!("0x00000000000000000000000000000000c0ffee05");
/// Reverts with less than 60,000 gas left, but uses almost none.
pub(crate) const GREEDY: Address = address!("0x00000000000000000000000000000000c0ffee06");
/// Writes 1 to every slot from the first word of its call data up to, but not including, the second.
pub(crate) const FILLER: Address = address!("0x00000000000000000000000000000000c0ffee07");

const CODES: [(Address, &str); 7] = [
    (COUNTER, "60005460010160005560 2a60006000a100"),
    (WRITER, "5f355f5500"),
    (REVERTER, "60015f55365f5f37365ffd"),
    (HASHES, "5f35405f5500"),
    // counter = calldata[0]; while counter != 0 { log0(0, 0x8000); counter -= 1 }
    (LOUD, "5f355b8015601457 6180005fa0 60019003600256 5b00"),
    // slot = calldata[0]; while slot != calldata[1] { slots[slot] = 1; slot += 1 }
    (FILLER, "5f355b8060203514601557 60018155600101600256 5b00"),
    (GREEDY, "5a61ea6011600a5700 5b5f5ffd"),
];

pub(crate) fn key(seed: u8) -> SigningKey {
    SigningKey::from_slice(&[seed; 32]).unwrap()
}

pub(crate) fn account(seed: u8) -> Address {
    let point = key(seed).verifying_key().to_encoded_point(false);
    Address::from_slice(&keccak256(&point.as_bytes()[1..])[12..])
}

pub(crate) fn ether(amount: u64) -> U256 {
    U256::from(amount) * U256::from(10u64.pow(18))
}

/// A genesis with accounts 1 to 8 (100 ether each), account 9 (empty), the contracts above, and the two system
/// contracts.
pub(crate) fn genesis() -> Genesis {
    let mut accounts = BTreeMap::new();
    for seed in 1..=8 {
        accounts.insert(account(seed), GenesisAccount { balance: ether(100), ..Default::default() });
    }
    let contract =
        |code: Vec<u8>| GenesisAccount { nonce: 1, code: Code::new(code).unwrap(), ..Default::default() };
    for (address, code) in CODES {
        accounts.insert(address, contract(bytes(code)));
    }
    use alloy_eips::{eip2935, eip4788};
    accounts.insert(eip2935::HISTORY_STORAGE_ADDRESS, contract(eip2935::HISTORY_STORAGE_CODE.to_vec()));
    accounts.insert(eip4788::BEACON_ROOTS_ADDRESS, contract(eip4788::BEACON_ROOTS_CODE.to_vec()));
    Genesis {
        chain: ChainConfig { chain_id: CHAIN_ID, ..ChainConfig::default() },
        timestamp_ms: 1_000,
        validators: Default::default(),
        accounts,
        ..Genesis::default()
    }
}

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    alloy_primitives::hex::decode(hex.replace(' ', "")).unwrap()
}

/// The state after genesis, genesis' header, and the environment of batch 1.
pub(crate) fn chain() -> (MemoryState, BatchHeader, BatchEnv) {
    let genesis = genesis();
    let header = genesis.header().unwrap();
    let env = BatchEnv::new(&genesis.chain, &header, 2_500, PROPOSER);
    (MemoryState::from_genesis(&genesis).unwrap(), header, env)
}

pub(crate) fn sign_hash(seed: u8, hash: B256) -> Signature {
    let (signature, id) = key(seed).sign_prehash_recoverable(hash.as_slice()).unwrap();
    let (r, s) = (signature.r().to_bytes(), signature.s().to_bytes());
    Signature::new(U256::from_be_slice(&r), U256::from_be_slice(&s), id.is_y_odd())
}

pub(crate) fn sign<T>(seed: u8, tx: T) -> Vec<u8>
where
    T: SignableTransaction<Signature>,
    Envelope: From<alloy_consensus::Signed<T>>,
{
    let signature = sign_hash(seed, tx.signature_hash());
    Envelope::from(tx.into_signed(signature)).encoded_2718()
}

pub(crate) fn decode(raw: Vec<u8>) -> Transaction {
    Transaction::decode(&raw, STRICT).unwrap()
}

pub(crate) fn dynamic(nonce: u64, to: Address) -> TxEip1559 {
    TxEip1559 {
        chain_id: CHAIN_ID,
        nonce,
        gas_limit: 200_000,
        max_fee_per_gas: FEE,
        max_priority_fee_per_gas: TIP,
        to: TxKind::Call(to),
        ..Default::default()
    }
}

pub(crate) fn legacy(nonce: u64, to: Address) -> TxLegacy {
    TxLegacy {
        chain_id: Some(CHAIN_ID),
        nonce,
        gas_price: FEE,
        gas_limit: 200_000,
        to: TxKind::Call(to),
        ..Default::default()
    }
}

pub(crate) fn with_access_list(nonce: u64, to: Address, access_list: AccessList) -> TxEip2930 {
    TxEip2930 {
        chain_id: CHAIN_ID,
        nonce,
        gas_price: FEE,
        gas_limit: 200_000,
        to: TxKind::Call(to),
        access_list,
        ..Default::default()
    }
}

pub(crate) fn delegation(nonce: u64, to: Address, authorizer: u8, delegate: Address) -> TxEip7702 {
    let authorization = Authorization { chain_id: U256::from(CHAIN_ID), address: delegate, nonce: 0 };
    let signature = sign_hash(authorizer, authorization.signature_hash());
    TxEip7702 {
        chain_id: CHAIN_ID,
        nonce,
        gas_limit: 200_000,
        max_fee_per_gas: FEE,
        max_priority_fee_per_gas: TIP,
        to,
        authorization_list: vec![authorization.into_signed(signature)],
        ..Default::default()
    }
}

pub(crate) fn blob(nonce: u64) -> TxEip4844 {
    TxEip4844 {
        chain_id: CHAIN_ID,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: FEE,
        max_fee_per_blob_gas: 1,
        blob_versioned_hashes: vec![B256::with_last_byte(1)],
        ..Default::default()
    }
}

pub(crate) fn transfer(seed: u8, nonce: u64, to: Address, wei: u64) -> Transaction {
    decode(sign(seed, TxEip1559 { value: U256::from(wei), gas_limit: 21_000, ..dynamic(nonce, to) }))
}

pub(crate) fn invoke(seed: u8, nonce: u64, to: Address, data: &[u8]) -> Transaction {
    decode(sign(seed, TxEip1559 { input: Bytes::copy_from_slice(data), ..dynamic(nonce, to) }))
}

pub(crate) fn create(seed: u8, nonce: u64, init_code: &str) -> Transaction {
    let to = TxKind::Create;
    decode(sign(seed, TxEip1559 { to, input: bytes(init_code).into(), ..dynamic(nonce, Address::ZERO) }))
}

pub(crate) fn word(value: u64) -> [u8; 32] {
    U256::from(value).to_be_bytes()
}

pub(crate) fn slot(state: &MemoryState, address: Address, slot: u64) -> U256 {
    state.slot(&address, &B256::from(word(slot))).unwrap()
}

pub(crate) fn balance(state: &MemoryState, address: Address) -> U256 {
    state.account(&address).unwrap().unwrap_or_default().balance
}

pub(crate) fn after(state: &MemoryState, delta: &slipstream_types::Delta) -> MemoryState {
    let mut state = state.clone();
    state.apply(delta);
    state
}

pub(crate) fn change(delta: &slipstream_types::Delta, key: StateKey) -> Option<Option<StateValue>> {
    delta.entries().iter().find(|entry| entry.key == key).map(|entry| entry.value)
}

/// A state whose executions record their jumps, and end when they are interrupted.
pub(crate) struct AttendedState<'a> {
    pub(crate) state: &'a MemoryState,
    pub(crate) watch: Option<Arc<JumpWatch>>,
    pub(crate) interrupt: Interrupt,
}

impl StateReader for AttendedState<'_> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        self.state.account(address)
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        self.state.slot(address, slot)
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.state.code(hash)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.state.header_digest(number)
    }
}

impl ExecutionState for AttendedState<'_> {
    fn watch(&self) -> Option<&Arc<JumpWatch>> {
        self.watch.as_ref()
    }

    fn interrupt(&self) -> Interrupt {
        self.interrupt.clone()
    }
}
