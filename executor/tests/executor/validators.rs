//! Tests of the validators contract: what its owner may change, which calls it refuses and why, and which set follows
//! from its storage.

use alloy_primitives::{Address, B256, Bytes, U256};
use alloy_sol_types::{SolCall, SolEvent};
use proptest::{collection::vec, prelude::*};
use slipstream_executor::validators::{ValidatorsStorage, next_validators};
use slipstream_executor::{
    BatchEnv, CallRequest, Interrupt, Outcome, call, execute, validators::interface::Validators as contract,
};
use slipstream_storage::MemoryState;
use slipstream_types::{
    BatchHeader, BatchNumber, Epoch, Failures, Genesis, SecretKey, Validator, ValidatorSet,
    bounded::BoundedVec, genesis::GenesisAccount, limits, validators_contract,
};

use crate::support::*;

const OWNER: u8 = 1;
const STRANGER: u8 = 2;
const CONTRACT: Address = validators_contract::ADDRESS;

/// A chain of empty headers on which the contract is called.
struct Chain {
    genesis: Genesis,
    state: MemoryState,
    header: BatchHeader,
    nonces: [u64; 9],
}

impl Chain {
    fn new(validators: usize, epoch_batches: u64) -> Chain {
        let mut genesis = genesis();
        genesis.validators = BoundedVec::new((0..validators as u8).map(validator).collect()).unwrap();
        let account =
            GenesisAccount::validators_contract(account(OWNER), epoch_batches, &genesis.validator_set())
                .unwrap();
        genesis.accounts.insert(CONTRACT, account);
        let (state, header) = (MemoryState::from_genesis(&genesis).unwrap(), genesis.header().unwrap());
        Chain { genesis, state, header, nonces: [0; 9] }
    }

    /// Executes a batch of calls.
    fn batch(&mut self, calls: &[(u8, Vec<u8>)]) -> (Outcome, Option<ValidatorSet>) {
        let env = BatchEnv::new(&self.genesis.chain, &self.header, 2_500, PROPOSER);
        let transactions: Vec<_> = calls
            .iter()
            .map(|(sender, data)| {
                let nonce = &mut self.nonces[usize::from(*sender)];
                *nonce += 1;
                let mut tx = dynamic(*nonce - 1, CONTRACT);
                (tx.gas_limit, tx.input) = (4_000_000, Bytes::copy_from_slice(data));
                decode(sign(*sender, tx))
            })
            .collect();
        let outcome = execute(&self.state, &env, &transactions).unwrap();
        let header = BatchHeader { number: self.header.number.next(), ..self.header.clone() };
        let next = next_validators(Some(CONTRACT), &header, &self.state, &outcome.delta).unwrap();
        self.state.apply(&outcome.delta);
        self.header = header;
        (outcome, next)
    }

    fn wanted(&self) -> ValidatorSet {
        validators_contract::wanted(Epoch(0), &mut |key| {
            slipstream_storage::StateReader::slot(&self.state, &CONTRACT, &key)
        })
        .unwrap()
        .unwrap()
    }

    /// Returns why a call is refused: the text of its revert.
    fn refusal(&self, sender: u8, data: Vec<u8>) -> String {
        let env = BatchEnv::new(&self.genesis.chain, &self.header, 2_500, PROPOSER);
        let request = CallRequest {
            from: account(sender),
            to: Some(CONTRACT),
            data: data.into(),
            ..Default::default()
        };
        call(&self.state, &env, &request, &Interrupt::default())
            .unwrap()
            .revert_reason
            .unwrap_or_default()
            .replace("revert: ", "")
    }
}

fn validator(index: u8) -> Validator {
    let public_key = SecretKey::from_seed([index; 32]).public();
    Validator { public_key, fee_recipient: Address::repeat_byte(index + 1) }
}

fn add(index: u8) -> Vec<u8> {
    let Validator { public_key, fee_recipient } = validator(index);
    contract::addCall { publicKey: B256::from(public_key.0), feeRecipient: fee_recipient }.abi_encode()
}

fn remove(index: u8) -> Vec<u8> {
    contract::removeCall { publicKey: B256::from(validator(index).public_key.0) }.abi_encode()
}

fn set_failures(any: u64, commission: u64) -> Vec<u8> {
    contract::setFailuresCall { any: U256::from(any), commission: U256::from(commission) }.abi_encode()
}

/// Goal: an added validator comes last, and removing one keeps the order of the others. The batch ends its epoch with
/// the resulting set.
#[test]
fn changes_end_the_epoch_with_their_batch() {
    let mut chain = Chain::new(4, 1);
    assert_eq!(chain.batch(&[]).1, None);
    let (outcome, next) = chain.batch(&[(OWNER, add(4)), (OWNER, remove(0))]);
    assert!(outcome.receipts.receipts.iter().all(|receipt| receipt.success));
    let next = next.unwrap();
    assert_eq!((next.epoch, next.failures), (Epoch(1), Failures { any: 1, commission: 1 }));
    assert_eq!(next.validators.to_vec(), [1, 2, 3, 4].map(validator));
    let log = &outcome.receipts.receipts[0].logs[0];
    let topics = log.topics.iter().map(|topic| B256::from(*topic));
    let event = contract::ValidatorAdded::decode_raw_log(topics, &log.data).unwrap();
    assert_eq!((event.publicKey, event.lastBatch), (B256::from(validator(4).public_key.0), U256::from(2)));
    assert_eq!(chain.batch(&[]).1, None);
}

/// Goal: with longer epochs a change waits for the boundary, and all changes up to it count.
#[test]
fn changes_wait_for_the_boundary() {
    let mut chain = Chain::new(4, 5);
    assert_eq!(chain.batch(&[(OWNER, add(4))]).1, None);
    assert_eq!(chain.batch(&[]).1, None);
    assert_eq!(chain.batch(&[(OWNER, add(5))]).1, None);
    assert_eq!(chain.batch(&[]).1, None);
    assert_eq!(chain.batch(&[]).1.unwrap().validators.to_vec(), [0, 1, 2, 3, 4, 5].map(validator));
    (6..10).for_each(|_| assert_eq!(chain.batch(&[]).1, None));
    assert_eq!(
        chain.batch(&[(OWNER, remove(0))]).1.unwrap().validators.len(),
        5,
        "batch 10 is a boundary itself"
    );
    (11..=15).for_each(|_| assert_eq!(chain.batch(&[]).1, None));
}

/// Goal: a change that would break the set, or that comes from anyone but the owner, is refused by name and leaves the
/// set unchanged.
#[test]
fn what_is_refused_says_why() {
    let mut chain = Chain::new(4, 1);
    let owner_only = "only the owner of the validators contract may change it";
    let zero = contract::addCall { publicKey: B256::ZERO, feeRecipient: Address::ZERO }.abi_encode();
    let too_few = "too few validators: there must be more than 2 * failuresAny + failuresCommission";
    let recipient =
        contract::setFeeRecipientCall { publicKey: B256::repeat_byte(9), feeRecipient: Address::ZERO };
    let accept = contract::acceptOwnershipCall {}.abi_encode();
    let offer = contract::offerOwnershipCall { to: account(STRANGER) }.abi_encode();
    let cases = [
        (STRANGER, add(4), owner_only),
        (STRANGER, remove(0), owner_only),
        (STRANGER, set_failures(0, 0), owner_only),
        (STRANGER, offer.clone(), owner_only),
        (STRANGER, accept.clone(), "the ownership is not offered to this account"),
        (OWNER, zero, "a public key is not zero"),
        (OWNER, add(3), "this public key is a validator already"),
        (OWNER, remove(4), "this public key is not a validator"),
        (OWNER, recipient.abi_encode(), "this public key is not a validator"),
        (OWNER, remove(0), too_few),
        (OWNER, set_failures(1, 2), too_few),
        (OWNER, set_failures(u64::MAX, 0), too_few),
    ];
    for (sender, data, reason) in &cases {
        assert_eq!(chain.refusal(*sender, data.clone()), *reason);
    }
    let calls: Vec<_> = cases.into_iter().map(|(sender, data, _)| (sender, data)).collect();
    let before = chain.wanted();
    let (outcome, next) = chain.batch(&calls);
    assert!(outcome.receipts.receipts.iter().all(|receipt| !receipt.success));
    assert_eq!((next, chain.wanted()), (None, before));

    // The last validators can be removed only if the set tolerates no failures, and one always stays.
    let (_, next) = chain.batch(&[
        (OWNER, set_failures(0, 0)),
        (OWNER, remove(0)),
        (OWNER, remove(1)),
        (OWNER, remove(2)),
    ]);
    assert_eq!(next.unwrap().validators.to_vec(), [validator(3)]);
    assert_eq!(chain.refusal(OWNER, remove(3)), too_few);

    let (outcome, _) =
        chain.batch(&[(OWNER, offer), (STRANGER, accept), (OWNER, add(0)), (STRANGER, add(0))]);
    let succeeded: Vec<_> = outcome.receipts.receipts.iter().map(|receipt| receipt.success).collect();
    assert_eq!(succeeded, [true, true, false, true]);
}

/// Goal: a set may grow to the limit of certificates and no further. A change of the largest set costs less than the
/// gas limit of a transaction.
#[test]
fn the_largest_set() {
    let mut chain = Chain::new(limits::VALIDATORS_MAX, 1);
    assert_eq!(chain.refusal(OWNER, add(200)), "there may be at most 128 validators");
    let free = contract::setFailuresCall { any: U256::ZERO, commission: U256::ZERO }.abi_encode();
    let (outcome, next) = chain.batch(&[(OWNER, free), (OWNER, remove(0))]);
    assert_eq!(next.unwrap().validators.len(), limits::VALIDATORS_MAX - 1);
    let gas = outcome.receipts.receipts[1].gas_used;
    assert!(outcome.receipts.receipts[1].success && gas < limits::TRANSACTION_GAS_MAX / 4, "{gas}");
}

/// Goal: a chain without the contract keeps its validators. Nodes that only have deltas get the same answer from the
/// contract's storage.
#[test]
fn a_chain_without_the_contract_keeps_its_validators() {
    let mut chain = Chain::new(4, 1);
    let before = chain.state.clone();
    let (outcome, next) = chain.batch(&[(OWNER, add(4))]);
    assert_eq!(next_validators(None, &chain.header, &before, &outcome.delta).unwrap(), None);
    let storage = ValidatorsStorage::new(Some(CONTRACT));
    assert_eq!(storage.next_validators(&chain.header, &chain.state).unwrap(), next);
    let later = BatchHeader { number: BatchNumber::new(3), ..chain.header.clone() };
    assert_eq!(storage.next_validators(&later, &chain.state).unwrap(), None);
}

#[derive(Clone, Debug)]
enum Change {
    Add(u8),
    Remove(u8),
    Failures(u8, u8),
    FeeRecipient(u8, u8),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0u8..10).prop_map(Change::Add),
        3 => (0u8..10).prop_map(Change::Remove),
        1 => (0u8..4, 0u8..4).prop_map(|(any, commission)| Change::Failures(any, commission)),
        1 => (0u8..10, 0u8..10).prop_map(|(index, to)| Change::FeeRecipient(index, to)),
    ]
}

/// A second implementation of the rules. Returns whether the change is made.
fn apply(set: &mut ValidatorSet, change: &Change) -> bool {
    let mut list = set.validators.to_vec();
    let mut failures = set.failures;
    let at = |list: &[Validator], index: u8| {
        list.iter().position(|it| it.public_key == validator(index).public_key)
    };
    match change {
        Change::Add(index) if at(&list, *index).is_none() => list.push(validator(*index)),
        Change::Remove(index) if at(&list, *index).is_some() => {
            list.retain(|it| it.public_key != validator(*index).public_key);
        }
        Change::Failures(any, commission) => {
            failures = Failures { any: (*any).into(), commission: (*commission).into() };
        }
        Change::FeeRecipient(index, to) => match at(&list, *index) {
            Some(position) => list[position].fee_recipient = Address::repeat_byte(*to),
            None => return false,
        },
        Change::Add(_) | Change::Remove(_) => return false,
    }
    let changed = ValidatorSet { validators: BoundedVec::new(list).unwrap(), failures, ..set.clone() };
    let fits = changed.check().is_ok();
    if fits {
        *set = changed;
    }
    fits
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Goal: contract and model agree on every change, on the set after it, and on which batch ends an epoch.
    #[test]
    fn the_storage_is_the_set(
        validators in 1usize..6,
        every in 0u64..4,
        batches in vec(vec((any::<bool>(), change()), 0..4), 1..8),
    ) {
        let mut chain = Chain::new(validators, every);
        let mut set = chain.genesis.validator_set();
        let mut due = None;
        for (number, changes) in (1u64..).zip(&batches) {
            let mut made = Vec::new();
            let calls: Vec<_> = changes.iter().map(|(by_owner, change)| {
                made.push(*by_owner && apply(&mut set, change));
                let data = match change {
                    Change::Add(index) => add(*index),
                    Change::Remove(index) => remove(*index),
                    Change::Failures(any, commission) => set_failures((*any).into(), (*commission).into()),
                    Change::FeeRecipient(index, to) => contract::setFeeRecipientCall {
                        publicKey: B256::from(validator(*index).public_key.0),
                        feeRecipient: Address::repeat_byte(*to),
                    }.abi_encode(),
                };
                (if *by_owner { OWNER } else { STRANGER }, data)
            }).collect();
            if made.contains(&true) {
                due = Some(number.next_multiple_of(every.max(1)));
            }
            let (outcome, next) = chain.batch(&calls);
            let succeeded: Vec<_> = outcome.receipts.receipts.iter().map(|receipt| receipt.success).collect();
            prop_assert_eq!(succeeded, made);
            prop_assert_eq!(chain.wanted(), set.clone());
            let expected = (due == Some(number)).then(|| ValidatorSet { epoch: Epoch(1), ..set.clone() });
            prop_assert_eq!(next, expected);
        }
    }
}
