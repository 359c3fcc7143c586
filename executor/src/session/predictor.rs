//! [`BatchPredictor`]: predicts the reads of batches without hints.
//!
//! The predictor learns from prepared and executed batches which contracts are called often, and analyses these
//! contracts in the background. Its predictions reach the prefetcher as hints do, and are trusted no more than hints.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use alloy_primitives::{Address, map::HashMap};
use rayon::{ThreadPool, ThreadPoolBuilder};
use slipstream_predict::{JumpWatch, PredictConfig, PredictMode, Predictors};
use slipstream_storage::{StateReader, StorageError, Store};
use slipstream_types::{B256, ChainConfig, Digest, StateKey, StateValue};

use super::{OrderedBatch, SessionError};
use crate::{
    config::ExecutorConfig,
    evm::{BatchEnv, ReadSet},
    prediction::{Prediction, predict_batch},
    transaction::Transaction,
};

/// Bytes of code after which analysis for one batch ends: some 10 to 20 ms of work, so execution loses little. The
/// remaining contracts wait for the next batch.
const BUILD_BYTES: usize = 64 << 10;

/// Predicts batches; see the module.
pub(super) struct BatchPredictor {
    mode: PredictMode,
    predictors: Arc<Predictors>,
    /// A separate pool, because its threads mostly wait for the disk. `None` if read-ahead is off: predictions then run
    /// on the caller's thread, and a simulation stays a function of its seed.
    threads: Option<ThreadPool>,
    is_building: Arc<AtomicBool>,
}

impl BatchPredictor {
    /// Makes a predictor without programs.
    ///
    /// # Errors
    /// If the system cannot start the threads.
    pub(super) fn new(executor: &ExecutorConfig) -> Result<BatchPredictor, SessionError> {
        let mode = executor.predict;
        let has_threads = mode == PredictMode::Full && executor.prefetch_threads > 0;
        let start = || {
            ThreadPoolBuilder::new()
                .num_threads(executor.prefetch_threads)
                .thread_name(|index| format!("predict-{index}"))
                .build()
                .map_err(SessionError::of("foretell on"))
        };
        Ok(BatchPredictor {
            mode,
            predictors: Arc::new(Predictors::new(PredictConfig::default())),
            threads: has_threads.then(start).transpose()?,
            is_building: Arc::default(),
        })
    }

    /// Whether predictions read rows themselves.
    pub(super) fn reads(&self) -> bool {
        self.mode == PredictMode::Full
    }

    /// Whether anything is predicted.
    pub(super) fn predicts(&self) -> bool {
        self.mode != PredictMode::Off
    }

    /// Predicts the accesses of a batch that comes some batches after the state `base`; `None` if predictions are off.
    pub(super) fn predict(
        &self,
        chain: &ChainConfig,
        batch: &OrderedBatch<'_>,
        base: &dyn StateReader,
    ) -> Option<Prediction> {
        let OrderedBatch { number, timestamp_ms, proposer, gas_max, transactions, .. } = *batch;
        if !self.predicts() || transactions.is_empty() {
            return None;
        }
        // The previous batch may not be here yet. The EVM sees only its digest, which decides no keys.
        let env = BatchEnv::behind(B256::ZERO, chain, number, timestamp_ms, proposer);
        let foretell = || predict_batch(&self.predictors, transactions, &env, gas_max, base, self.mode);
        let foretold = match &self.threads {
            Some(threads) => threads.install(foretell),
            None => foretell(),
        };
        self.build();
        Some(foretold)
    }

    /// Loads the programs that an earlier run saved in the store, and saves new programs there from now on.
    ///
    /// # Errors
    /// If the disk fails, or the store is damaged.
    pub(super) fn with_saved(mut self, store: &Store) -> Result<BatchPredictor, StorageError> {
        if self.mode == PredictMode::Full {
            let predictors = Predictors::new(PredictConfig::default());
            self.predictors = Arc::new(predictors.with_saved(store.clone())?);
        }
        Ok(self)
    }

    /// The recorder of jumps through which predictors learn from execution.
    pub(super) fn watch(&self) -> Option<Arc<JumpWatch>> {
        self.predictors.watch()
    }

    /// Counts the calls that a batch's transactions made to contracts, and analyses some contracts that are called often.
    pub(super) fn learn(&self, transactions: &[Transaction], touched: &ReadSet) {
        if self.mode != PredictMode::Full {
            return;
        }
        self.predictors.learn_jumps();
        let calls = calls(transactions, touched);
        for (hash, code) in &touched.codes {
            let hash = Digest::from(*hash);
            // If no transaction called the code, another contract called it at least once.
            let calls = calls.get(&hash).copied().unwrap_or(1);
            self.predictors.note_executed(hash, &code.bytes(), calls);
        }
        self.build();
    }

    /// Analyses some of the contracts that are called often.
    fn build(&self) {
        let Some(threads) = &self.threads else {
            self.predictors.build_queued(BUILD_BYTES);
            return;
        };
        // One at a time: analysis must not take all cores from execution.
        if self.predictors.queued() > 0 && !self.is_building.swap(true, SeqCst) {
            let (predictors, is_building) = (Arc::clone(&self.predictors), Arc::clone(&self.is_building));
            threads.spawn(move || {
                predictors.build_queued(BUILD_BYTES);
                is_building.store(false, SeqCst);
            });
        }
    }
}

/// Number of transactions that call each code.
fn calls(transactions: &[Transaction], touched: &ReadSet) -> HashMap<Digest, u32> {
    let mut by_address = HashMap::<Address, u32>::default();
    for to in transactions.iter().filter_map(Transaction::to) {
        *by_address.entry(to).or_default() += 1;
    }
    let mut by_code = HashMap::default();
    for (key, value) in &touched.rows {
        if let (StateKey::Account(address), Some(StateValue::Account(account))) = (key, value)
            && let (Some(hash), Some(calls)) = (account.code_hash, by_address.get(address))
        {
            *by_code.entry(hash).or_default() += calls;
        }
    }
    by_code
}

#[cfg(test)]
mod tests {
    use alloy_consensus::{SignableTransaction as _, TxLegacy};
    use alloy_primitives::{B256, Bytes, Signature, TxKind, U256};
    use slipstream_storage::StorageConfig;
    use slipstream_types::{
        Genesis, PublicKey, Validator, bounded::BoundedVec, delta::Code, genesis::GenesisAccount,
    };

    use super::*;
    use crate::{outcome::execute, transaction::Envelope};

    const SENDER: Address = Address::repeat_byte(1);
    const CONTRACT: Address = Address::repeat_byte(0xc0);

    /// A sender with a balance, and a contract that reads its slot 1.
    fn genesis() -> Genesis {
        let sender = GenesisAccount { balance: U256::from(1_u128 << 100), ..Default::default() };
        let code = Code::new(vec![0x60, 1, 0x54, 0x50, 0x00]).unwrap();
        let validator = Validator { public_key: PublicKey([7; 32]), fee_recipient: Address::ZERO };
        let contract = GenesisAccount { nonce: 1, code, ..Default::default() };
        Genesis {
            chain: ChainConfig::default(),
            timestamp_ms: 0,
            validators: BoundedVec::new(vec![validator]).unwrap(),
            accounts: [(SENDER, sender), (CONTRACT, contract)].into(),
            ..Genesis::default()
        }
    }

    fn call() -> Transaction {
        let to = TxKind::Call(CONTRACT);
        let tx = TxLegacy { gas_limit: 100_000, gas_price: 1 << 40, to, ..TxLegacy::default() };
        let envelope = Envelope::from(tx.into_signed(Signature::new(U256::from(1), U256::from(1), false)));
        // The signature is invalid, so the sender is set by hand.
        Transaction { raw: Bytes::new(), hash: B256::ZERO, sender: SENDER, envelope: envelope.into() }
    }

    fn config(predict: PredictMode, prefetch_threads: usize) -> ExecutorConfig {
        ExecutorConfig { predict, prefetch_threads, ..ExecutorConfig::default() }
    }

    /// Goal: accounts are predicted from the beginning, slots once their contract was executed often enough. The
    /// configuration can turn prediction off. Prediction works with and without its own threads.
    #[test]
    fn contracts_that_are_called_often_are_followed() {
        let store = Store::memory(&StorageConfig::default());
        let genesis = genesis();
        store.initialize(&genesis).unwrap();
        let (base, header) = (store.view().unwrap(), genesis.header().unwrap());
        let transactions = [call()];
        let batch = OrderedBatch::of(&header, &transactions, None);
        let env = BatchEnv::new(&genesis.chain, &header, 1_000, Address::ZERO);
        let touched = execute(&base, &env, &[call()]).unwrap().touched;
        for threads in [0, 2] {
            let saved = Store::memory(&StorageConfig::default());
            let start = || {
                let predictor = BatchPredictor::new(&config(PredictMode::Full, threads)).unwrap();
                predictor.with_saved(&saved).unwrap()
            };
            let predictor = start();
            let slots = |predictor: &BatchPredictor| {
                let hints = predictor.predict(&genesis.chain, &batch, &base).unwrap().hints;
                assert!(hints.codes().any(|address| address == CONTRACT));
                hints.keys().filter(|key| matches!(key, StateKey::Slot(..))).count()
            };
            assert_eq!(slots(&predictor), 0);
            predictor.learn(&[], &touched);
            assert_eq!(predictor.predictors.queued() + predictor.predictors.len(), 0);
            // Calls count, not batches.
            predictor.learn(&[call(), call(), call()], &touched);
            while predictor.predictors.is_empty() {
                std::thread::yield_now();
            }
            assert_eq!(slots(&predictor), 1);
            // A background thread writes the programs, which outlast the process.
            while slots(&start()) == 0 {
                std::thread::yield_now();
            }
        }
        let accounts = BatchPredictor::new(&config(PredictMode::Accounts, 2)).unwrap();
        accounts.learn(&[call(), call(), call(), call()], &touched);
        let hints = accounts.predict(&genesis.chain, &batch, &base).unwrap().hints;
        assert!(hints.accounts.iter().all(|account| account.slots.is_empty()));
        assert_eq!((accounts.predictors.queued(), accounts.predictors.len()), (0, 0));
        let off = BatchPredictor::new(&config(PredictMode::Off, 2)).unwrap();
        assert!(off.predict(&genesis.chain, &batch, &base).is_none());
    }

    /// Goal: many batches are prepared before the first of them is executed, and the later ones profit from the first
    /// ones' calls.
    #[test]
    fn contracts_are_followed_before_anything_is_executed() {
        let store = Store::memory(&StorageConfig::default());
        let genesis = genesis();
        store.initialize(&genesis).unwrap();
        let (base, header) = (store.view().unwrap(), genesis.header().unwrap());
        let transactions = [call(), call()];
        let batch = OrderedBatch::of(&header, &transactions, None);
        for threads in [0, 2] {
            let predictor = BatchPredictor::new(&config(PredictMode::Full, threads)).unwrap();
            let slots = || {
                let hints = predictor.predict(&genesis.chain, &batch, &base).unwrap().hints;
                hints.keys().filter(|key| matches!(key, StateKey::Slot(..))).count()
            };
            assert_eq!(slots(), 0);
            while predictor.predictors.is_empty() {
                slots();
            }
            assert_eq!(slots(), 1);
        }
    }
}
