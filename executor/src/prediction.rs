//! [`predict_batch`]: predicts the reads of a whole batch, in the form of hints, and the conflicts of its transactions.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use alloy_primitives::{
    Address, B256,
    map::{AddressMap, HashSet},
};
use rayon::prelude::*;
use slipstream_predict::{BlockValues, PredictMode, Predicted, Predictors, TransactionRef};
use slipstream_storage::{MemoryState, StateReader};
use slipstream_types::{
    Conflicts, Hints, StateKey,
    hints::{self, AccountHints},
};

use crate::{
    access::{AccessSet, conflicts},
    evm::BatchEnv,
    transaction::Transaction,
};

/// Gas of the batch per operation that its programs may execute. On mainnet 240 gas are used per operation, so the
/// limit affects only batches that are made to be slow to predict. Predicting a batch costs at most as much as
/// executing it.
const GAS_PER_STEP: u64 = 16;

/// The probable accesses of a batch.
#[derive(Debug, Default)]
pub struct Prediction {
    /// The keys that the batch reads.
    pub hints: Hints,
    /// The predicted keys of each transaction.
    named: Vec<PredictedKeys>,
}

impl Prediction {
    /// Returns which transactions wait for which. A transaction predicted to its end counts by its predicted reads and
    /// changes. Any other transaction also counts by the accesses that it [announces](AccessSet::announced).
    pub fn conflicts(&self, transactions: &[Transaction]) -> Conflicts {
        let accesses: Vec<_> =
            transactions.iter().zip(&self.named).map(|(it, named)| named.accesses(it)).collect();
        conflicts(&accesses, transactions.iter().map(Transaction::gas_limit).collect())
    }
}

/// Predicts the reads of a batch that uses `gas_used`. The number of keys is bounded as in hints
/// ([`hints::keys_max`]). The code of each named account that has code is included.
///
/// [`PredictMode::Accounts`] leaves `state` unread, so it never waits. [`PredictMode::Full`] predicts the transactions
/// in parallel, on the caller's rayon pool: each thread waits for its own reads. All predictions start from `state` and
/// miss the writes of earlier transactions in the batch, so some are wrong. This function never fails.
pub fn predict_batch(
    predictors: &Predictors,
    transactions: &[Transaction],
    env: &BatchEnv,
    gas_used: u64,
    state: &dyn StateReader,
    mode: PredictMode,
) -> Prediction {
    let block = BlockValues::from(env);
    let nothing = MemoryState::default();
    let state = if mode == PredictMode::Full { state } else { &nothing };
    let keys_max = hints::keys_max(gas_used);
    let steps_max = predictors.limits().steps_max + gas_used / GAS_PER_STEP;
    let (keys, steps) = (AtomicU64::new(0), AtomicU64::new(0));
    let follow = |transaction: &Transaction| {
        let mut named = PredictedKeys::default();
        // The limits are checked only before each transaction. A transaction that has begun has limits of its own.
        if keys.load(Relaxed) >= keys_max as u64 || steps.load(Relaxed) >= steps_max {
            return named;
        }
        let stats =
            predictors.predict(transaction.into(), &block, state, mode, &mut |predicted| match predicted {
                Predicted::Key(key) => named.keys.push(key),
                Predicted::Change(key) => named.changes.push(key),
                Predicted::Code(_) => {}
            });
        keys.fetch_add(stats.keys, Relaxed);
        steps.fetch_add(stats.steps, Relaxed);
        named.is_whole = mode == PredictMode::Full && stats.stopped_because.is_none();
        named
    };
    let named: Vec<PredictedKeys> = transactions.par_iter().with_max_len(1).map(follow).collect();
    let mut gathered = HintBuilder { left: keys_max, ..HintBuilder::default() };
    named.iter().flat_map(|named| &named.keys).for_each(|key| gathered.add(*key));
    Prediction { hints: Hints { accounts: gathered.accounts }, named }
}

impl<'a> From<&'a Transaction> for TransactionRef<'a> {
    fn from(transaction: &'a Transaction) -> TransactionRef<'a> {
        TransactionRef { sender: transaction.sender, envelope: &*transaction.envelope }
    }
}

impl From<&BatchEnv> for BlockValues {
    fn from(env: &BatchEnv) -> BlockValues {
        BlockValues {
            chain_id: env.chain_id,
            number: env.number,
            timestamp_s: env.timestamp_s,
            beneficiary: env.beneficiary,
            gas_limit: env.gas_limit,
            base_fee_wei: env.base_fee_wei,
            prev_randao: env.prev_randao.map_or(env.difficulty, Into::into),
            parent_hash: env.parent_hash,
        }
    }
}

/// The probable reads and changes of one transaction.
#[derive(Debug, Default)]
struct PredictedKeys {
    keys: Vec<StateKey>,
    changes: Vec<StateKey>,
    /// Whether the transaction was predicted to its end.
    is_whole: bool,
}

impl PredictedKeys {
    /// Returns the access set. Leaves out all accounts except the sender's: few transactions change the fields of an
    /// account that others read. Execution finds missed conflicts, at the cost of time.
    fn accesses(&self, transaction: &Transaction) -> AccessSet {
        let mut set = match self.is_whole {
            true => AccessSet::of_sender(transaction),
            false => AccessSet::announced(transaction),
        };
        set.reads.extend(self.keys.iter().filter(|key| matches!(key, StateKey::Slot(..))));
        set.writes.extend(&self.changes);
        set
    }
}

/// Distinct keys grouped by account; accounts in the order of their first key.
#[derive(Default)]
struct HintBuilder {
    accounts: Vec<AccountHints>,
    places: AddressMap<usize>,
    slots: HashSet<(Address, B256)>,
    /// Number of keys that still fit.
    left: usize,
}

impl HintBuilder {
    fn add(&mut self, key: StateKey) {
        let address = *key.address();
        let place = match self.places.get(&address) {
            Some(place) => *place,
            None if self.left == 0 => return,
            None => {
                self.left -= 1;
                self.places.insert(address, self.accounts.len());
                // Nearly every contract that a transaction names is called, and a hint for missing code costs nothing.
                self.accounts.push(AccountHints { address, code: true, slots: Vec::new() });
                self.accounts.len() - 1
            }
        };
        if let StateKey::Slot(_, slot) = key
            && self.left > 0
            && self.slots.insert((address, slot))
        {
            self.left -= 1;
            self.accounts[place].slots.push(slot);
        }
    }
}
