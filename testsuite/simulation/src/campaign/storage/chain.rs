//! A chain that a seed determines, batch by batch: every store of the campaign must hold a prefix of it.

use std::collections::BTreeMap;

use anyhow::Result;
use rand::{Rng, SeedableRng, rngs::StdRng};
use slipstream_storage::CommitBatch;
use slipstream_types::{
    AccountValue, Address, B256, BatchHeader, BatchNumber, Blob, BlobKind, Body, Certificate, Delta, Digest,
    Genesis, LedgerInfo, Receipts, SecretKey, StateKey, StateValue, U256, accumulator::Accumulator,
    batch::content_digest, delta::DeltaEntry, genesis::GenesisAccount, hints::HINTS_VERSION, keccak256,
};

use super::naive;

/// The number of accounts, and of slots of each: few, so that rows are changed and deleted again.
const ACCOUNTS: u64 = 24;
const SLOTS: u64 = 20;
/// The number of changes in a batch.
const CHANGES: usize = 40;
/// One batch in this many creates a contract.
const CREATION_INTERVAL: u64 = 5;

/// State rows by key.
pub(super) type State = BTreeMap<StateKey, StateValue>;

/// The chain that the seed determines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    /// Determines keys, values and blobs.
    pub seed: u64,
    /// Random bytes in each body, which decide how fast a disk fills.
    pub body_bytes: usize,
}

/// A batch with all its parts.
#[derive(Clone)]
pub(super) struct MadeBatch {
    /// The batch's header.
    pub header: BatchHeader,
    /// The batch's changes to the state.
    pub delta: Delta,
    /// Its blobs: body, receipts, delta, hints.
    pub blobs: [(BlobKind, Blob); 4],
    /// The hashes of the batch's transactions.
    pub hashes: Vec<B256>,
    /// The batch's certificate.
    pub certificate: Certificate,
}

impl MadeBatch {
    /// Returns all parts of the batch, for a commit.
    pub(super) fn batch(&self) -> CommitBatch<'_> {
        let [body, receipts, delta_blob, hints] = &self.blobs;
        CommitBatch {
            body: Some(&body.1),
            receipts: Some(&receipts.1),
            delta_blob: Some(&delta_blob.1),
            hints: Some(&hints.1),
            transaction_hashes: &self.hashes,
            certificate: Some(&self.certificate),
            ..CommitBatch::new(&self.header, &self.delta)
        }
    }
}

fn key() -> SecretKey {
    slipstream_testkit::key(7)
}

/// Returns a transaction's hash; the storage layer does not check it.
pub(super) fn transaction_hash(number: BatchNumber, index: u64) -> B256 {
    keccak256([number.get().to_be_bytes(), index.to_be_bytes()].concat())
}

impl Chain {
    fn rng(&self, number: u64, purpose: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed ^ (number << 20) ^ (purpose << 56))
    }

    fn address(&self, index: u64) -> Address {
        Address::from_word(keccak256([self.seed.to_be_bytes(), index.to_be_bytes()].concat()))
    }

    fn slot(&self, index: u64, slot: u64) -> StateKey {
        StateKey::Slot(self.address(index), B256::from(U256::from(slot)))
    }

    /// Returns the chain's batch 0.
    pub(super) fn genesis(&self) -> Genesis {
        let rich = |i| {
            (self.address(i), GenesisAccount { balance: U256::from(1_000_000), ..GenesisAccount::default() })
        };
        Genesis {
            accounts: (0..ACCOUNTS / 2).map(rich).collect(),
            ..slipstream_testkit::genesis(&[key()], 1_000)
        }
    }

    /// Returns every key that any batch may set.
    pub(super) fn keys(&self) -> Vec<StateKey> {
        let of = |i| (0..SLOTS).map(move |slot| (i, Some(slot))).chain([(i, None)]);
        let all = (0..ACCOUNTS).flat_map(of).map(|(i, slot)| match slot {
            Some(slot) => self.slot(i, slot),
            None => StateKey::Account(self.address(i)),
        });
        all.collect()
    }

    /// Returns the code that batch `number` creates, if any.
    pub(super) fn code(&self, number: u64) -> Option<Vec<u8>> {
        let mut rng = self.rng(number, 2);
        number.is_multiple_of(CREATION_INTERVAL).then(|| (0..200).map(|_| rng.random()).collect())
    }

    /// Returns the changes of batch `number` to the state.
    pub(super) fn delta(&self, number: u64) -> Result<Delta> {
        let mut rng = self.rng(number, 1);
        let mut changes: BTreeMap<StateKey, Option<StateValue>> = BTreeMap::new();
        for _ in 0..CHANGES {
            let index = rng.random_range(0..ACCOUNTS);
            let deletes = rng.random_ratio(1, 5);
            let number = rng.random::<u64>().max(1);
            if rng.random_ratio(1, 4) {
                let account =
                    AccountValue { nonce: number, balance: U256::from(number) << 64, code_hash: None };
                let value = (!deletes).then_some(StateValue::Account(account));
                changes.insert(StateKey::Account(self.address(index)), value);
            } else {
                let key = self.slot(index, rng.random_range(0..SLOTS));
                changes.insert(key, (!deletes).then(|| StateValue::Slot(U256::from(number))));
            }
        }
        let code = self.code(number);
        if let Some(code) = &code {
            let code_hash = Some(Digest::from(keccak256(code)));
            let account = AccountValue { nonce: 1, code_hash, ..AccountValue::default() };
            let address = self.address(rng.random_range(0..ACCOUNTS));
            changes.insert(StateKey::Account(address), Some(StateValue::Account(account)));
        }
        let entries = changes.into_iter().map(|(key, value)| DeltaEntry { key, value }).collect();
        Ok(Delta::new(entries, code.into_iter().collect())?)
    }

    /// Makes batch `parent.number + 1`, whose state has this root.
    pub(super) fn seal(
        &self,
        parent: &BatchHeader,
        accumulator: &Accumulator,
        state_root: Digest,
    ) -> Result<MadeBatch> {
        self.seal_delta(parent, accumulator, self.delta(parent.number.get() + 1)?, state_root)
    }

    /// Makes a batch as [`Chain::seal`] does, with a delta other than the chain's.
    pub(super) fn seal_delta(
        &self,
        parent: &BatchHeader,
        accumulator: &Accumulator,
        delta: Delta,
        state_root: Digest,
    ) -> Result<MadeBatch> {
        let number = parent.number.next();
        let mut rng = self.rng(number.get(), 3);
        let filling = (0..self.body_bytes).map(|_| rng.random()).collect::<Vec<u8>>();
        let mut transactions = vec![number.get().to_be_bytes().to_vec()];
        transactions.extend(filling.chunks(100_000).map(<[u8]>::to_vec));
        let tx_count = transactions.len() as u32;
        let (body, delta_content) = (Body::new(transactions)?.content()?, delta.content()?);
        let receipts = Blob::seal(BlobKind::Receipts, &Receipts::default())?;
        let header = BatchHeader {
            tx_count,
            tx_bytes: body.len() as u32,
            gas_used: 21_000,
            delta_bytes: delta_content.len() as u32,
            transactions_root: content_digest(BlobKind::Body, &body),
            receipts_root: content_digest(BlobKind::Receipts, &receipts.content(BlobKind::Receipts)?),
            delta_digest: content_digest(BlobKind::Delta, &delta_content),
            ..slipstream_testkit::next_header(parent, state_root)
        };
        let mut accumulator = accumulator.clone();
        accumulator.append(header.digest());
        let blobs = [
            (BlobKind::Body, Blob::compress(BlobKind::Body, &body)?),
            (BlobKind::Receipts, receipts),
            (BlobKind::Delta, Blob::compress(BlobKind::Delta, &delta_content)?),
            (BlobKind::Hints, Blob::compress(BlobKind::Hints, &[HINTS_VERSION])?),
        ];
        let certificate = self.certificate(&header, accumulator.root());
        let hashes = (0..u64::from(tx_count)).map(|index| transaction_hash(number, index)).collect();
        Ok(MadeBatch { header, delta, blobs, hashes, certificate })
    }

    /// Returns the only validator's certificate of a batch.
    pub(super) fn certificate(&self, header: &BatchHeader, accumulator_root: Digest) -> Certificate {
        slipstream_testkit::sign(LedgerInfo::of(header, accumulator_root, None), &[key()])
    }
}

/// Applies a delta to the state.
pub(super) fn apply(state: &mut State, delta: &Delta) {
    for entry in delta.entries() {
        match entry.value {
            Some(value) => state.insert(entry.key, value),
            None => state.remove(&entry.key),
        };
    }
}

/// The contents that a store must have at one batch.
#[derive(Clone)]
pub(super) struct Moment {
    /// The batch; `None` for the genesis.
    pub made: Option<MadeBatch>,
    /// The batch's header.
    pub header: BatchHeader,
    /// The accumulator over all headers up to the batch's.
    pub accumulator: Accumulator,
    /// The state after the batch.
    pub state: State,
}

/// The expected chain, with roots by [`naive`], computed up to the highest requested batch.
pub(super) struct History {
    /// The chain that these moments are from.
    pub chain: Chain,
    moments: Vec<Moment>,
}

impl History {
    /// Makes a history of the genesis alone.
    pub(super) fn new(chain: Chain) -> Result<History> {
        let genesis = chain.genesis();
        let mut state = State::new();
        apply(&mut state, &genesis.delta()?);
        let mut header = genesis.header()?;
        header.state_root = naive::root(&state);
        let mut accumulator = Accumulator::default();
        accumulator.append(header.digest());
        Ok(History { chain, moments: vec![Moment { made: None, header, accumulator, state }] })
    }

    /// Returns the expected contents after a batch.
    pub(super) fn at(&mut self, number: BatchNumber) -> Result<&Moment> {
        while self.moments.len() as u64 <= number.get() {
            let last = &self.moments[self.moments.len() - 1];
            let mut state = last.state.clone();
            apply(&mut state, &self.chain.delta(last.header.number.get() + 1)?);
            let made = self.chain.seal(&last.header, &last.accumulator, naive::root(&state))?;
            let mut accumulator = last.accumulator.clone();
            accumulator.append(made.header.digest());
            self.moments.push(Moment { header: made.header.clone(), made: Some(made), accumulator, state });
        }
        Ok(&self.moments[number.get() as usize])
    }
}
