//! [`execute`]: runs a batch on several threads, with exactly the result of one thread.
//!
//! ```text
//!  Conflicts ─▶ Plan ─▶ Board ◀── take ready ── helpers: Speculator ── result ──▶ Board
//!                         ▲  │                      ▲ │ reads                      │
//!                         │  └─ next in order ─┐    │ ▼ publishes                  ▼ in the order of the batch
//!   StateReader ◀─ once ─ Versions ◀───────────┴──────────── leader: Batch: accept, or run again ──▶ Outcome
//! ```
//!
//! The calling thread leads. The leader goes through the batch in order, as [`execute`](crate::execute) does, on the
//! same machine. Helpers run transactions ahead of their turn on the values known by then (`Versions`). When the leader
//! comes to such a transaction, it compares every row that the helper read with the current row. If all rows agree, the
//! leader takes the result; otherwise it runs the transaction itself. So the result never depends on the helpers, or on
//! the given conflicts. Conflicts decide the order in which helpers take transactions, and how much of their work is
//! useful.
//!
//! Running ahead is for batches whose transactions depend on each other a lot. If conflicts leave a batch in many
//! components, the batch is dealt out in groups (`groups`) instead. Groups are handed over once and joined once.
//!
//! Sources: Eve's mixer (OSDI 2012) for the grouping, Block-STM (arXiv 2203.06871) for the versions and the check in
//! order. Unlike in Block-STM, a transaction runs at most twice, and the leader never waits to speculate.

mod board;
mod faults;
mod groups;
mod plan;
mod workers;

use slipstream_types::Conflicts;

use self::{
    board::{Board, Taken, Turn},
    groups::Groups,
    plan::Plan,
};
pub use self::{
    faults::InjectedFaults,
    workers::{ForcedMethod, Workers},
};
use crate::{
    error::ExecuteError,
    evm::{BatchEnv, ExecutionState, Machine, Speculator, Versions},
    outcome::{self, Batch, Outcome, Refusal, TransactionResult},
    transaction::Transaction,
};

/// Counts of what running ahead achieved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ParallelStats {
    /// Transactions whose result was taken from another thread.
    pub accepted: usize,
    /// Transactions that ran ahead and then again in their turn, because they had read values that others changed.
    pub repeated: usize,
    /// Number of groups that ran, one per thread; 0 if transactions ran ahead of their turn.
    pub groups: usize,
    /// Whether more than one thread was used.
    pub is_parallel: bool,
}

/// Executes a batch like [`execute`](crate::execute), with the same outcome or the same error, on the threads of
/// `workers`. `conflicts` comes from hints, or from predictions ([`conflicts`](crate::access::conflicts)).
///
/// # Errors
/// Those of [`execute`](crate::execute).
pub fn execute_parallel(
    state: &dyn ExecutionState,
    env: &BatchEnv,
    transactions: &[Transaction],
    conflicts: &Conflicts,
    workers: &Workers,
) -> Result<(Outcome, ParallelStats), ExecuteError> {
    let plan = Plan::new(transactions, conflicts);
    let eager = workers.eagerness();
    if eager.is_none() && !plan.has_enough_to_do() {
        return Ok((outcome::execute(state, env, transactions)?, ParallelStats::default()));
    }
    if eager != Some(ForcedMethod::Ahead)
        && let Some(groups) = Groups::new(&plan, transactions, env, workers.threads())
        && (eager.is_some() || (groups.is_worthwhile() && workers.may_group()))
    {
        if let Some(done) = groups.execute(state, env, transactions, workers)? {
            return Ok(done);
        }
        workers.pause_groups();
    } else if eager == Some(ForcedMethod::Ahead) || plan.is_worthwhile(workers.threads()) {
        return run_ahead_of_turn(state, env, transactions, plan, workers);
    }
    Ok((outcome::execute(state, env, transactions)?, ParallelStats::default()))
}

/// Executes a batch whose transactions depend on each other a lot: see the module.
fn run_ahead_of_turn(
    state: &dyn ExecutionState,
    env: &BatchEnv,
    transactions: &[Transaction],
    plan: Plan,
    workers: &Workers,
) -> Result<(Outcome, ParallelStats), ExecuteError> {
    let versions = Versions::new(state, env);
    let board = Board::new(plan);
    workers.lead(
        || help(&versions, &board, transactions),
        || {
            let _close = CloseAtEnd(&board);
            lead(&versions, &board, transactions, workers.faults())
        },
    )
}

/// Stops the helpers at the end, even if the leader panics.
struct CloseAtEnd<'a>(&'a Board);

impl Drop for CloseAtEnd<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Runs transactions ahead of their turn until the board is closed.
fn help(versions: &Versions<'_>, board: &Board, transactions: &[Transaction]) {
    let mut speculator = Speculator::new(versions);
    let mut waits = Waits::default();
    while !board.is_closed() {
        match board.take() {
            Some(taken) => {
                run_ahead(&mut speculator, versions, transactions, taken);
                waits = Waits::default();
            }
            None => waits.wait(),
        }
    }
}

fn run_ahead(
    speculator: &mut Speculator<'_>,
    versions: &Versions<'_>,
    transactions: &[Transaction],
    mut taken: Taken<'_>,
) {
    let index = taken.index();
    let transaction = &transactions[index];
    let Some((executed, reads)) = speculator.run(index as u32, transaction) else { return };
    let Ok(done) = TransactionResult::new(executed, transaction, versions.env().beneficiary, true) else {
        return;
    };
    versions.publish(index as u32, transaction.sender, &done.executed);
    taken.finish(done, reads);
}

fn lead(
    versions: &Versions<'_>,
    board: &Board,
    transactions: &[Transaction],
    faults: Option<&InjectedFaults>,
) -> Result<(Outcome, ParallelStats), ExecuteError> {
    let mut batch = Batch::new(Machine::sharing(versions)?, versions.env());
    let mut speculator = Speculator::new(versions);
    let mut stats = ParallelStats { is_parallel: true, ..ParallelStats::default() };
    for (index, transaction) in transactions.iter().enumerate() {
        let mut waits = Waits::default();
        let done = loop {
            match board.turn(index) {
                Turn::Own => break step(&mut batch, versions, board, index, transaction),
                Turn::Ready(result) => {
                    break settle(&mut batch, versions, &mut stats, index, transaction, *result, faults);
                }
                // A helper runs the transaction: do other useful work meanwhile.
                Turn::Running => match board.take() {
                    Some(taken) => run_ahead(&mut speculator, versions, transactions, taken),
                    None => waits.wait(),
                },
            }
        };
        done.map_err(|refusal| batch.error(index, transaction, refusal))?;
        if stats.repeated > REPEATED_MIN && stats.repeated > stats.accepted {
            board.close();
        }
    }
    Ok((batch.finish()?, stats))
}

/// Runs the transaction whose turn it is.
fn step(
    batch: &mut Batch<'_>,
    versions: &Versions<'_>,
    board: &Board,
    index: usize,
    transaction: &Transaction,
) -> Result<(), Refusal> {
    let done = batch.run(transaction)?;
    if !board.is_closed() {
        versions.publish(index as u32, transaction.sender, &done.executed);
        board.release(index);
    }
    batch.add(done)
}

/// Takes the result of the transaction whose turn it is, or runs the transaction again.
fn settle(
    batch: &mut Batch<'_>,
    versions: &Versions<'_>,
    stats: &mut ParallelStats,
    index: usize,
    transaction: &Transaction,
    result: board::Result,
    faults: Option<&InjectedFaults>,
) -> Result<(), Refusal> {
    let mut spoilt = None;
    if let Some((mut done, reads)) = result {
        if batch.accept(&mut done, &reads, transaction)? {
            stats.accepted += 1;
            return batch.add(done);
        }
        versions.retract(index as u32, transaction.sender, &done.executed);
        spoilt = faults.and_then(|faults| faults.strike(&transaction.hash)).map(|bug| (done.executed, bug));
    }
    stats.repeated += 1;
    let mut done = batch.run(transaction)?;
    if let Some((stale, bug)) = spoilt {
        done.executed.spoil(&stale, bug);
    }
    versions.publish(index as u32, transaction.sender, &done.executed);
    batch.add(done)
}

/// Number of repeated transactions before these count as a sign that the conflicts are wrong.
const REPEATED_MIN: usize = 8;
/// Polls that spin before the thread yields its core: the awaited work takes microseconds.
const SPINS_MAX: u32 = 256;

/// Number of times in a row that a thread found nothing to do.
#[derive(Default)]
struct Waits(u32);

impl Waits {
    fn wait(&mut self) {
        if self.0 < SPINS_MAX {
            self.0 += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
