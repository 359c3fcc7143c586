//! Goal: execution on the values that hints ship waits for no row, and gets the right outcome however wrong the values
//! are.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use crate::support::*;
use alloy_primitives::{Address, B256, Bytes, U256};
use proptest::{collection::vec, prelude::*, sample::Index};
use slipstream_executor::{
    BatchEnv, ExecuteError, ExecutionState, ForcedMethod, Outcome, PrefetchLimits, PrefetchRequest,
    Prefetcher, Transaction, WarmState, Workers, execute, execute_parallel, open_hints, seal_hints,
    seal_hints_with_values,
};
use slipstream_storage::{MemoryState, StateReader, StorageError};
use slipstream_types::{
    AccountValue, BatchNumber, Blob, BlobKind, Digest, StateKey, StateValue,
    hints::{DecodedHints, RowBefore},
};

static WORKERS: LazyLock<[Workers; 2]> = LazyLock::new(|| {
    [ForcedMethod::Ahead, ForcedMethod::Groups].map(|eager| Workers::new(2).unwrap().eager(eager))
});
static CASE: LazyLock<Case> = LazyLock::new(Case::new);

/// A batch, the state before it, and its outcome.
struct Case {
    state: MemoryState,
    env: BatchEnv,
    transactions: Vec<Transaction>,
    expected: Outcome,
    hints: Blob,
}

impl Case {
    fn new() -> Case {
        let (genesis, _, env) = chain();
        let transactions = |nonce: u64| {
            vec![
                transfer(1, nonce, account(9), 1_000),
                invoke(2, nonce, COUNTER, &[]),
                invoke(3, nonce, WRITER, &word(nonce + 5)),
                create(4, nonce, "64 5f355f5500 5f52 6005 601b f3"),
                invoke(5, nonce, COUNTER, &[]),
            ]
        };
        // Executes a first batch, so that slots have values.
        let state = after(&genesis, &execute(&genesis, &env, &transactions(0)).unwrap().delta);
        let transactions = transactions(1);
        let expected = execute(&state, &env, &transactions).unwrap();
        let hints = seal_hints_with_values(&expected, PROPOSER, &transactions).unwrap();
        Case { state, env, transactions, expected, hints }
    }

    fn open(&self, hints: &Blob) -> Option<DecodedHints> {
        open_hints(hints, self.expected.gas_used, PROPOSER, &self.transactions).ok()
    }

    fn execute(
        &self,
        state: &dyn ExecutionState,
        decoded: &DecodedHints,
        workers: Option<usize>,
    ) -> Result<Outcome, ExecuteError> {
        match (&decoded.conflicts, workers) {
            (Some(conflicts), Some(workers)) => {
                let workers = &WORKERS[workers];
                execute_parallel(state, &self.env, &self.transactions, conflicts, workers).map(|it| it.0)
            }
            _ => execute(state, &self.env, &self.transactions),
        }
    }
}

fn wanted(decoded: &DecodedHints) -> PrefetchRequest {
    PrefetchRequest { values: decoded.values.clone(), ..PrefetchRequest::from(&decoded.hints) }
}

/// A different value for the same key.
fn other(row: &RowBefore, seed: u8) -> Option<StateValue> {
    let number = U256::from_be_bytes([seed; 32]);
    match row {
        (_, Some(_)) if seed < 60 => None,
        (_, Some(StateValue::Slot(value))) => Some(StateValue::Slot(value ^ (number | U256::from(1)))),
        (_, Some(StateValue::Account(account))) => {
            let code_hash = if seed < 160 { account.code_hash } else { Some(Digest([seed; 32])) };
            let (nonce, balance) = (account.nonce ^ u64::from(seed % 3), account.balance ^ number);
            Some(StateValue::Account(AccountValue { nonce, balance, code_hash }))
        }
        (StateKey::Slot(..), None) => Some(StateValue::Slot(number | U256::from(1))),
        (StateKey::Account(_), None) => {
            let account = AccountValue { nonce: seed.into(), balance: U256::from(1), code_hash: None };
            Some(StateValue::Account(account))
        }
    }
}

proptest! {
    #[test]
    fn wrong_values_are_found_and_change_nothing(
        edits in vec((any::<Index>(), any::<u8>()), 0..6),
        swapped in proptest::option::of((any::<Index>(), any::<Index>())),
        cut in proptest::option::of(any::<Index>()),
        workers in proptest::option::of(0..2usize),
    ) {
        let case = &*CASE;
        let content = case.hints.content(BlobKind::Hints).unwrap();
        let kept = cut.map_or(content.len(), |cut| cut.index(content.len()));
        let blob = Blob::compress(BlobKind::Hints, &content[..kept]).unwrap();
        let mut decoded = case.open(&blob).unwrap_or_default();
        let mut rows = decoded.values.clone();
        let edits = if rows.is_empty() { vec![] } else { edits };
        for (at, seed) in &edits {
            let at = at.index(rows.len());
            rows[at].1 = other(&rows[at], *seed);
        }
        if let (Some((a, b)), false) = (swapped, rows.is_empty()) {
            let (a, b) = (a.index(rows.len()), b.index(rows.len()));
            let is_account = |at: usize| matches!(rows[at].0, StateKey::Account(_));
            if is_account(a) == is_account(b) {
                (rows[a].1, rows[b].1) = (rows[b].1, rows[a].1);
            }
        }
        let honest = std::mem::replace(&mut decoded.values, rows);
        let changed: Vec<StateKey> = honest
            .iter()
            .zip(&decoded.values)
            .filter(|(honest, said)| honest != said)
            .map(|(honest, _)| honest.0)
            .collect();

        let warm = WarmState::deferred(case.state.clone(), wanted(&decoded));
        let tried = case.execute(&warm, &decoded, workers);
        let wrong = warm.confirm().unwrap();
        prop_assert!(wrong.iter().all(|key| changed.contains(key)), "only what is wrong is called so");
        let outcome = match wrong.is_empty() {
            true => tried.unwrap(),
            false => {
                warm.distrust();
                let again = case.execute(&warm, &decoded, workers).unwrap();
                prop_assert_eq!(warm.confirm().unwrap(), []);
                again
            }
        };
        prop_assert_eq!(&outcome, &case.expected);
        // The first key that execution reads is never left out.
        if let Some(first) = case.expected.hints.keys().next().filter(|key| changed.contains(key)) {
            prop_assert!(wrong.contains(&first));
        }
    }
}

/// A state whose rows cannot be read before it is opened; its code can.
#[derive(Clone)]
struct Closed {
    state: MemoryState,
    is_open: Arc<AtomicBool>,
}

impl Closed {
    fn state(&self) -> Result<&MemoryState, StorageError> {
        if self.is_open.load(SeqCst) { Ok(&self.state) } else { Err(StorageError::NotInitialized) }
    }
}

impl StateReader for Closed {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        self.state()?.account(address)
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        self.state()?.slot(address, slot)
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.state.code(hash)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.state.header_digest(number)
    }
}

/// Goal: execution finishes before the store has answered, with a pool that gets errors and with a working one.
/// Confirmation waits for the store.
#[test]
fn execution_does_not_wait_for_the_store() {
    let case = &*CASE;
    let decoded = case.open(&case.hints).unwrap();
    let prefetcher = Prefetcher::new(PrefetchLimits { threads: 2, ..PrefetchLimits::default() }).unwrap();
    for reads_ahead in [false, true] {
        let is_open = Arc::new(AtomicBool::new(false));
        let reader = Closed { state: case.state.clone(), is_open: Arc::clone(&is_open) };
        let warm = match reads_ahead {
            true => prefetcher.read_ahead(BatchNumber::new(2), reader, wanted(&decoded)),
            false => WarmState::deferred(reader, wanted(&decoded)),
        };
        assert_eq!(case.execute(&warm, &decoded, Some(0)).unwrap(), case.expected);
        assert!(warm.stats().shipped > 0 && warm.stats().misses == 0, "{warm:?}");
        assert!(!warm.is_confirmable());
        assert!(warm.confirm().is_err(), "nobody has read the rows");
        is_open.store(true, SeqCst);
        assert_eq!(warm.confirm().unwrap(), []);
        assert!(warm.is_confirmable());
    }
}

/// Goal: if hints ship no values, only the store answers, and nothing needs confirmation.
#[test]
fn hints_without_values_trust_nobody() {
    let case = &*CASE;
    let hints = seal_hints(&case.expected, PROPOSER, &case.transactions).unwrap();
    let decoded = case.open(&hints).unwrap();
    assert_eq!(decoded.values, []);
    assert!(hints.len() < case.hints.len());
    let warm = WarmState::deferred(case.state.clone(), wanted(&decoded));
    assert_eq!(case.execute(&warm, &decoded, None).unwrap(), case.expected);
    assert_eq!((warm.stats().shipped, warm.is_confirmable()), (0, true));
}
