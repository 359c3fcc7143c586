//! Sample values and strategies.

use proptest::{collection::vec, prelude::*};
use slipstream_types::{
    Address, B256, BatchHeader, BatchNumber, Body, Certificate, Delta, Digest, Epoch, LedgerInfo, Log,
    Receipt, Receipts, RulesId, SecretKey, StateKey, StateValue, Totals, U256, Validator, ValidatorSet,
    accumulator::{Accumulator, AccumulatorRangeProof, NodePosition, prove},
    bounded::{BoundedBytes, BoundedVec},
    delta::DeltaEntry,
    state::AccountValue,
};
use std::collections::HashMap;

pub(crate) fn digest(n: u64) -> Digest {
    Digest::tagged("test", &n.to_le_bytes())
}

pub(crate) fn header(number: u64) -> BatchHeader {
    BatchHeader {
        number: BatchNumber::new(number),
        parent: digest(number),
        epoch: Epoch(3),
        rules: RulesId([6; 8]),
        timestamp_ms: 1_700_000_000_000 + number,
        proposer: Address::repeat_byte(7),
        tx_count: 2,
        tx_bytes: 300,
        gas_used: 42_000,
        delta_bytes: 99,
        transactions_root: digest(1),
        receipts_root: digest(2),
        delta_digest: digest(3),
        state_root: digest(4),
        totals: Totals { transactions: 5, gas: 6, body_bytes: 7, receipts_bytes: 8, delta_bytes: 9 },
    }
}

pub(crate) fn keys(n: u8) -> Vec<SecretKey> {
    (1..=n).map(|i| SecretKey::from_seed([i; 32])).collect()
}

pub(crate) fn validators(keys: &[SecretKey]) -> ValidatorSet {
    let validators = keys
        .iter()
        .map(|key| Validator {
            public_key: key.public(),
            fee_recipient: Address::repeat_byte(key.public().0[0]),
        })
        .collect();
    ValidatorSet::new(Epoch(3), BoundedVec::new(validators).unwrap())
}

pub(crate) fn certify(info: LedgerInfo, keys: &[SecretKey], signers: &[u16]) -> Certificate {
    Certificate::signed(info, 5, signers.iter().map(|&i| (i, &keys[usize::from(i)]))).unwrap()
}

/// A ledger of `leaves` headers, the certificate of its last batch by validators 0, 1 and 3 of 4, and a way to prove ranges.
pub(crate) struct Ledger {
    pub(crate) headers: Vec<BatchHeader>,
    pub(crate) certificate: Certificate,
    pub(crate) set: ValidatorSet,
    nodes: HashMap<NodePosition, Digest>,
}

impl Ledger {
    pub(crate) fn new(leaves: u64) -> Ledger {
        let headers: Vec<_> = (0..leaves).map(header).collect();
        let mut accumulator = Accumulator::default();
        let nodes = headers.iter().flat_map(|header| accumulator.append(header.digest())).collect();
        let keys = keys(4);
        let info = LedgerInfo {
            epoch: Epoch(3),
            number: BatchNumber::new(leaves - 1),
            accumulator_root: accumulator.root(),
            state_root: digest(4),
            timestamp_ms: 1_700_000_000_000 + leaves - 1,
            next_validators: None,
        };
        Ledger { headers, certificate: certify(info, &keys, &[0, 1, 3]), set: validators(&keys), nodes }
    }

    pub(crate) fn prove(&self, first: u64, count: usize) -> AccumulatorRangeProof {
        prove(self.headers.len() as u64, first, count, &|position| self.nodes.get(&position).copied())
            .unwrap()
    }
}

pub(crate) fn any_key() -> impl Strategy<Value = StateKey> {
    let address = any::<[u8; 20]>().prop_map(Address::from);
    prop_oneof![
        address.clone().prop_map(StateKey::Account),
        (address, any::<[u8; 32]>()).prop_map(|(address, slot)| StateKey::Slot(address, B256::from(slot))),
    ]
}

pub(crate) fn any_entry() -> impl Strategy<Value = DeltaEntry> {
    (any_key(), any::<bool>(), 1..u64::MAX, any::<[u8; 32]>()).prop_map(|(key, deleted, word, hash)| {
        let value = match key {
            StateKey::Account(_) => StateValue::Account(AccountValue {
                nonce: word,
                balance: U256::from_be_bytes(hash),
                code_hash: (word % 2 == 0).then_some(Digest(hash)),
            }),
            StateKey::Slot(..) => StateValue::Slot(U256::from(word)),
        };
        DeltaEntry { key, value: (!deleted).then_some(value) }
    })
}

pub(crate) fn any_delta() -> impl Strategy<Value = Delta> {
    (vec(any_entry(), 0..40), vec(vec(any::<u8>(), 1..80), 0..3)).prop_map(|(mut entries, codes)| {
        entries.sort_by_key(|entry| entry.key);
        entries.dedup_by_key(|entry| entry.key);
        Delta::new(entries, codes).unwrap()
    })
}

pub(crate) fn any_body() -> impl Strategy<Value = Body> {
    vec(vec(any::<u8>(), 0..200), 0..20).prop_map(|transactions| Body::new(transactions).unwrap())
}

pub(crate) fn receipts() -> Receipts {
    let log = Log {
        address: Address::repeat_byte(9),
        topics: BoundedVec::new(vec![digest(8), digest(9)]).unwrap(),
        data: BoundedBytes::new(vec![1, 2, 3]).unwrap(),
    };
    let logs = BoundedVec::new(vec![log]).unwrap();
    let receipt = Receipt { tx_type: 2, success: true, gas_used: 21_000, logs };
    Receipts { receipts: BoundedVec::new(vec![receipt]).unwrap() }
}
