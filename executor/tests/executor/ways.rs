//! Every way to execute a batch gives the same outcome: on one thread, ahead of turn, in groups, on shipped values
//! alone, and under any claims about conflicts and values.

use alloy_primitives::{Address, B256, Bytes, U256};
use slipstream_executor::{
    BatchEnv, ExecuteError, ExecutionState, ForcedMethod, Outcome, PrefetchRequest, Transaction, WarmState,
    Workers, announced_conflicts, execute, execute_parallel, open_hints, seal_hints_with_values,
};
use slipstream_storage::{MemoryState, StateReader, StorageError};
use slipstream_types::{AccountValue, BatchNumber, Conflicts, Digest, StateValue, hints::RowBefore};

/// Threads for both kinds of parallel execution.
pub(crate) struct Ways([Workers; 2]);

impl Ways {
    pub(crate) fn new(threads: usize) -> Ways {
        Ways(
            [ForcedMethod::Ahead, ForcedMethod::Groups]
                .map(|eager| Workers::new(threads).unwrap().eager(eager)),
        )
    }

    /// Returns the outcome or the error that every way gives. The outer error names a way that gives something else.
    pub(crate) fn agree(
        &self,
        state: &MemoryState,
        env: &BatchEnv,
        transactions: &[Transaction],
        more: &[Conflicts],
    ) -> Result<Result<Outcome, String>, String> {
        let expected = comparable(execute(state, env, transactions));
        let exact = expected.as_ref().ok().map(Outcome::conflicts);
        let named = [Conflicts::default(), hidden(transactions), announced_conflicts(transactions)];
        let graphs: Vec<_> = named.iter().chain(more).chain(&exact).collect();
        for (workers, kind) in self.0.iter().zip(["ahead of turn", "in groups"]) {
            for (index, graph) in graphs.iter().enumerate() {
                let found = execute_parallel(state, env, transactions, graph, workers);
                let found = comparable(found.map(|(outcome, _)| outcome));
                same(&format!("{kind}, with graph {index}"), &found, &expected)?;
            }
        }
        if let Ok(outcome) = &expected {
            self.agree_on_values(state, env, transactions, outcome)?;
        }
        Ok(expected)
    }

    fn agree_on_values(
        &self,
        state: &MemoryState,
        env: &BatchEnv,
        transactions: &[Transaction],
        outcome: &Outcome,
    ) -> Result<(), String> {
        let expected = Ok(outcome.clone());
        let rows = shipped(outcome, env, transactions)?;
        let wanted =
            |values: Vec<RowBefore>| PrefetchRequest { values, ..PrefetchRequest::from(&outcome.hints) };
        let graph = outcome.conflicts();
        let again = |warm: &dyn ExecutionState, way: &str| {
            same(way, &comparable(execute(warm, env, transactions)), &expected)?;
            self.0.iter().try_for_each(|workers| {
                let found = execute_parallel(warm, env, transactions, &graph, workers);
                same(way, &comparable(found.map(|(outcome, _)| outcome)), &expected)
            })
        };
        again(&WarmState::deferred(Rowless(state.clone()), wanted(rows.clone())), "on values alone")?;

        let Some((key, wrong)) = rows.first().copied() else { return Ok(()) };
        let wrong = match wrong {
            Some(_) => None,
            None => Some(StateValue::Account(AccountValue { nonce: 3, ..AccountValue::default() })),
        };
        let lie = [vec![(key, wrong)], rows[1..].to_vec()].concat();
        let warm = WarmState::deferred(state.clone(), wanted(lie));
        let _ = execute(&warm, env, transactions);
        if warm.confirm().unwrap() != [key] {
            return Err(format!("a wrong value of {key:?} is not found"));
        }
        warm.distrust();
        again(&warm, "after wrong values")
    }
}

/// The values before the batch as hints ship them. If the batch reads more keys than hints may name, the recorded
/// values instead.
fn shipped(
    outcome: &Outcome,
    env: &BatchEnv,
    transactions: &[Transaction],
) -> Result<Vec<RowBefore>, String> {
    let read = &outcome.touched.rows;
    let Some(blob) = seal_hints_with_values(outcome, env.beneficiary, transactions) else {
        return Ok(read.clone());
    };
    let opened = open_hints(&blob, outcome.gas_used, env.beneficiary, transactions);
    let values = opened.map_err(|error| format!("hints: {error}"))?.values;
    match read.iter().find(|row| !values.contains(row)) {
        Some((key, _)) if !values.is_empty() => Err(format!("the value of {key:?} does not come back")),
        _ if values.is_empty() => Ok(read.clone()),
        _ => Ok(values),
    }
}

/// A graph in which no transaction waits for another, and each is worth a thread.
fn hidden(transactions: &[Transaction]) -> Conflicts {
    let len = transactions.len();
    Conflicts { predecessors: vec![vec![]; len], gas: vec![200_000; len] }
}

fn comparable(outcome: Result<Outcome, ExecuteError>) -> Result<Outcome, String> {
    outcome.map_err(|error| error.to_string())
}

fn same(
    way: &str,
    found: &Result<Outcome, String>,
    expected: &Result<Outcome, String>,
) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let (Ok(found), Ok(expected)) = (found, expected) else {
        let text = |outcome: &Result<Outcome, String>| outcome.as_ref().err().cloned().unwrap_or_default();
        return Err(format!("{way}: error '{}' instead of '{}'", text(found), text(expected)));
    };
    let differs = [
        ("receipts", found.receipts != expected.receipts),
        ("delta", found.delta != expected.delta),
        ("hints", found.hints != expected.hints || found.preimages != expected.preimages),
        ("touched", found.touched != expected.touched),
        ("accesses", found.accesses != expected.accesses),
    ];
    let differs: Vec<_> = differs.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part).collect();
    Err(format!("{way}: other {differs:?}; {:?} instead of {:?}", found.accesses, expected.accesses))
}

/// A state whose rows cannot be read; its code can.
#[derive(Clone)]
struct Rowless(MemoryState);

impl StateReader for Rowless {
    fn account(&self, _: &Address) -> Result<Option<AccountValue>, StorageError> {
        Err(StorageError::NotInitialized)
    }

    fn slot(&self, _: &Address, _: &B256) -> Result<U256, StorageError> {
        Err(StorageError::NotInitialized)
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.0.code(hash)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.0.header_digest(number)
    }
}
