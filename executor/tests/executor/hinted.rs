//! Goal: with any hints, following a batch gives the same receipts, delta and root, and reads little more than without
//! hints.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    store::{certified_genesis, commit, propose, store},
    support::*,
};
use alloy_primitives::{Address, B256, Bytes, U256, address};
use slipstream_executor::{
    BatchContext, ForcedMethod, HintsMode, PrefetchRequest, SealedBatch, Transaction, WarmState, Workers,
    decode_body, execute, execute_parallel, open_hints, seal,
};
use slipstream_storage::{StateReader, StorageError, Store, View};
use slipstream_types::{
    AccountValue, BatchNumber, Blob, BlobKind, Body, Digest, Genesis, Hints, StateKey, StateValue,
    delta::Code,
    genesis::GenesisAccount,
    hints::{AccountHints, DecodedHints, HintContext, encode, keys_max},
};

/// Counts how often each caller called: `balances[caller] += 1`, with the mapping at slot 0.
const BALANCES: Address = address!("0x00000000000000000000000000000000c0ffee08");
const BALANCES_CODE: &str = "33 5f52 5f602052 60405f20 8054 600101 90 55 00";

static WORKERS: LazyLock<Workers> = LazyLock::new(|| Workers::new(2).unwrap().eager(ForcedMethod::Ahead));

/// The hints that a follower gets.
#[derive(Clone, Copy, Debug, strum::VariantArray)]
enum Given {
    Nothing,
    Honest,
    Truncated,
    Permuted,
    Flipped,
    Random,
    OfAnotherBatch,
    Largest,
}

const ALL: &[Given] = <Given as strum::VariantArray>::VARIANTS;

/// A view that counts the keys and codes that are read through it.
#[derive(Clone)]
struct Counted {
    view: View,
    reads: Arc<AtomicU64>,
}

impl Counted {
    fn add(&self, reads: usize) -> &View {
        self.reads.fetch_add(reads as u64, Relaxed);
        &self.view
    }
}

impl StateReader for Counted {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        self.add(1).account(address)
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        self.add(1).slot(address, slot)
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.add(1).code(hash)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.view.header_digest(number)
    }

    fn rows(&self, keys: &[StateKey]) -> Result<Vec<Option<StateValue>>, StorageError> {
        self.add(keys.len()).rows(keys)
    }
}

/// Bytes that look random and are the same in every run.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let block = |at: u64| alloy_primitives::keccak256([seed.to_le_bytes(), at.to_le_bytes()].concat()).0;
    (0..).flat_map(block).take(len).collect()
}

/// Hints with as many keys as a batch of that gas may name, none of which it reads.
fn largest(gas_used: u64, implied: usize) -> Vec<u8> {
    let slots = (0..keys_max(gas_used) - implied - 1).map(|at| B256::from(U256::from(at)));
    let account = AccountHints { address: PROPOSER, code: true, slots: slots.collect() };
    // The fee recipient has the same number in every context; the reader adds the other keys that every batch reads.
    let context = HintContext::new(PROPOSER, std::iter::empty());
    encode(&Hints { accounts: vec![account] }, &[], None, &context)
}

fn hints(
    given: Given,
    sealed: &SealedBatch,
    other: Option<&SealedBatch>,
    transactions: &[Transaction],
) -> Option<DecodedHints> {
    let header = &sealed.header;
    let open = |blob: &Blob| open_hints(blob, header.gas_used, header.proposer, transactions).ok();
    let honest = sealed.hints.as_ref().unwrap();
    let content = honest.content(BlobKind::Hints).unwrap();
    let open_bytes = |bytes: &[u8]| open(&Blob::compress(BlobKind::Hints, bytes).unwrap());
    let seed = header.number.get();
    let decoded = match given {
        Given::Nothing => None,
        Given::Honest | Given::Permuted => Some(open(honest).expect("honest hints open")),
        Given::Truncated => open_bytes(&content[..content.len() * 2 / 3]),
        Given::Flipped => {
            let at = noise(seed, 1)[0] as usize % content.len();
            let flipped: Vec<u8> =
                content.iter().enumerate().map(|(i, byte)| byte ^ u8::from(i == at)).collect();
            open_bytes(&flipped)
        }
        // A section of keys, so that the noise is decoded as keys.
        Given::Random => open_bytes(&[&[1, 1, 120][..], &noise(seed, 120)].concat()),
        Given::OfAnotherBatch => other.and_then(|other| open(other.hints.as_ref().unwrap())),
        Given::Largest => {
            let implied = open_bytes(&[1]).unwrap().hints.keys().count();
            Some(open_bytes(&largest(header.gas_used, implied)).expect("hints of the largest size open"))
        }
    };
    let mut decoded = decoded?;
    if matches!(given, Given::Permuted) {
        decoded.hints.accounts.reverse();
        decoded.hints.accounts.iter_mut().for_each(|account| account.slots.reverse());
    }
    Some(decoded)
}

/// Follows one batch. Returns the number of keys and codes read.
fn follow(
    store: &Store,
    genesis: &Genesis,
    sealed: &SealedBatch,
    other: Option<&SealedBatch>,
    given: Given,
) -> u64 {
    let (head, view) = (store.head().unwrap(), store.view().unwrap());
    let header = &sealed.header;
    let basis = BatchContext::of(&head.header, header);
    let env = basis.env(&genesis.chain);
    let body: Body = sealed.body.open(BlobKind::Body).unwrap();
    let transactions = decode_body(&body, &genesis.chain).unwrap();
    let counted = Counted { view, reads: Arc::default() };
    let DecodedHints { hints, conflicts, .. } =
        hints(given, sealed, other, &transactions).unwrap_or_default();
    let warm = WarmState::complete(counted.clone(), PrefetchRequest::from(&hints)).unwrap();
    let outcome = match &conflicts {
        Some(conflicts) => execute_parallel(&warm, &env, &transactions, conflicts, &WORKERS).unwrap().0,
        None => execute(&warm, &env, &transactions).unwrap(),
    };
    if matches!(given, Given::Honest | Given::Permuted) {
        assert_eq!(warm.stats().misses, 0, "{given:?} hints leave nothing to read");
        assert!(conflicts.is_some(), "{given:?} hints say who waits for whom");
    }
    let root = store.speculate(&outcome.delta).unwrap().root();
    let again = seal(HintsMode::Keys, &basis, &transactions, &outcome, root);
    // The header commits to receipts, delta and root. The hints that are made again equal the original ones, whatever
    // the follower got.
    assert_eq!(again.unwrap(), *sealed, "{given:?} hints of batch {}", header.number);
    commit(store, sealed, &outcome.delta, &transactions);
    counted.reads.load(Relaxed)
}

#[test]
fn no_hints_change_a_result() {
    let code = Code::new(bytes(BALANCES_CODE)).unwrap();
    let mut genesis = certified_genesis();
    genesis.accounts.insert(BALANCES, GenesisAccount { nonce: 1, code, ..Default::default() });
    let proposer = store(&genesis);
    let followers: Vec<_> = ALL.iter().map(|&given| (given, store(&genesis))).collect();
    let mut previous: Option<SealedBatch> = None;
    for round in 0..10u64 {
        let candidates = vec![
            transfer(1, round, account(9), 1_000),
            invoke(2, round, COUNTER, &[]),
            invoke(3, round, BALANCES, &[]),
            invoke(4, round, WRITER, &word(round % 3)),
            create(5, round, "64 5f355f5500 5f52 6005 601b f3"),
            invoke(6, round, BALANCES, &[]),
        ];
        let sealed = propose(&proposer, &genesis, candidates, 2_000 + round * 700);
        let mut cold = 0;
        for (given, store) in &followers {
            let reads = follow(store, &genesis, &sealed, previous.as_ref(), *given);
            if let Given::Nothing = given {
                cold = reads;
            }
            let most = cold + keys_max(sealed.header.gas_used) as u64;
            assert!(reads <= most, "{given:?} hints cost {reads} reads, {cold} without");
        }
        previous = Some(sealed);
    }
    for (given, store) in &followers {
        assert_eq!(store.head().unwrap(), proposer.head().unwrap(), "{given:?}");
    }
}
