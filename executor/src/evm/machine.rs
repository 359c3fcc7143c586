//! [`Machine`]: revm set up for one batch.

use alloy_primitives::{Address, Bytes, Log as EvmLog};
use revm::{
    Database as _, DatabaseCommit, ExecuteEvm, InspectEvm, Inspector,
    context::{
        TxEnv,
        result::{EVMError, ExecutionResult, HaltReason, ResultAndState},
    },
    database::State,
    database_interface::bal::EvmDatabaseError,
    state::EvmState,
};
use slipstream_types::{Delta, Hints, hints::Preimage};

use super::{
    adapter,
    changes::{Changes, changes, delta_bytes_max},
    env::BatchEnv,
    interrupting::{self, Pace},
    observe::{self, Observations, ObservedContext, ObservedEvm},
    precompiles::moved_precompiles,
    recorder::{ReadError, Recorder},
    state::ExecutionState,
    system_calls, words,
    working_set::{ReadSet, WorkingSet},
};
use crate::{
    error::{ExecuteError, Rejection},
    interrupt::Interrupt,
    overrides::{BlockOverrides, Overrides},
    request::CallRequest,
    transaction::Transaction,
};

pub(crate) type Database<'a> = State<Recorder<'a>>;
pub(super) type Evm<'a, I = ()> = ObservedEvm<Database<'a>, I>;
/// The context that inspectors get.
pub(crate) type InspectorContext<'a> = ObservedContext<Database<'a>>;
type EvmError = EVMError<EvmDatabaseError<ReadError>>;

/// One batch in execution. A transaction's changes take effect once they are committed. An inspector sees only the runs
/// of [`Machine::inspect`] and [`Machine::inspect_call`].
pub(crate) struct Machine<'a, I = ()> {
    pub(super) evm: Evm<'a, I>,
    pub(super) env: &'a BatchEnv,
    interrupt: Interrupt,
    /// Whether transactions record observations.
    is_observed: bool,
}

/// The result of one transaction.
pub(crate) struct ExecutedTransaction {
    pub(crate) success: bool,
    pub(crate) gas_used: u64,
    /// Empty if the transaction failed.
    pub(crate) logs: Vec<EvmLog>,
    /// The returned data, or the revert data.
    pub(crate) output: Bytes,
    /// Why the transaction stopped, if it neither returned nor reverted.
    pub(crate) halt: Option<Halt>,
    /// An upper bound of the bytes that the transaction adds to the batch's delta; see `changes`.
    pub(crate) delta_bytes_max: usize,
    pub(super) state: EvmState,
    pub(super) observed: Observations,
}

/// Why a transaction neither returned nor reverted.
pub(crate) struct Halt {
    /// geth's text for the reason.
    pub(crate) reason: String,
    /// Whether more gas may help.
    pub(crate) out_of_gas: bool,
}

/// The results of a batch.
#[derive(Default)]
pub(crate) struct FinishedBatch {
    pub(crate) delta: Delta,
    /// The keys that the batch read.
    pub(crate) hints: Hints,
    /// The preimages of hashed slots among `hints`.
    pub(crate) preimages: Vec<Preimage>,
    /// The values that the batch read.
    pub(crate) touched: ReadSet,
}

/// Why a transaction was not run. The machine is unchanged.
pub(crate) enum RunError {
    /// The transaction's fault.
    Rejected(Rejection),
    /// The transaction is not at fault.
    Failed(ExecuteError),
}

impl RunError {
    /// The error of a call that was not run.
    pub(crate) fn of_call(self) -> ExecuteError {
        match self {
            RunError::Rejected(reason) => ExecuteError::InvalidCall(reason),
            RunError::Failed(error) => error,
        }
    }
}

impl<'a> Machine<'a> {
    /// Makes a machine for the batch's transactions. Also makes the system calls that come before them.
    pub(crate) fn new(state: &'a dyn ExecutionState, env: &'a BatchEnv) -> Result<Self, ExecuteError> {
        Self::bare(state, env).with_system_calls()
    }

    pub(crate) fn with_system_calls(mut self) -> Result<Self, ExecuteError> {
        system_calls::before_batch(&mut self.evm, self.env).map_err(failure)?;
        Ok(self)
    }

    /// Makes a machine for one call outside of transactions. The machine skips the checks of nonce, sender and gas
    /// limit, and takes a fee only if the call offers one. `interrupt` can end the call.
    pub(crate) fn for_call(
        state: &'a dyn ExecutionState,
        env: &'a BatchEnv,
        request: &CallRequest,
        interrupt: &Interrupt,
    ) -> Result<Self, ExecuteError> {
        let mut machine = Self::for_calls(state, env, &request.overrides, interrupt)?;
        machine.prepare_call(request, &request.overrides.block);
        Ok(machine)
    }

    /// As [`Machine::for_call`], for several calls; each must be [prepared](Machine::prepare_call). Applies only the
    /// overrides that belong to neither the state nor the environment.
    pub(crate) fn for_calls(
        state: &'a dyn ExecutionState,
        env: &'a BatchEnv,
        overrides: &Overrides,
        interrupt: &Interrupt,
    ) -> Result<Self, ExecuteError> {
        let mut machine = Self::interruptible(state, env, interrupt).overridden(overrides)?;
        let context = &mut machine.evm.ctx;
        context.cfg.disable_nonce_check = true;
        context.cfg.disable_eip3607 = true;
        context.cfg.disable_block_gas_limit = true;
        context.cfg.tx_gas_limit_cap = Some(u64::MAX);
        if let Some(number) = overrides.block.number {
            context.block.number = number;
        }
        Ok(machine)
    }

    /// Makes a machine that executes the batch's transactions again, and makes the system calls first. `interrupt` can
    /// end the execution.
    pub(crate) fn for_rerun(
        state: &'a dyn ExecutionState,
        env: &'a BatchEnv,
        interrupt: &Interrupt,
    ) -> Result<Self, ExecuteError> {
        Self::interruptible(state, env, interrupt).with_system_calls()
    }

    /// Makes a machine for consecutive calls in one batch, whose gas the caller bounds. The machine makes the system
    /// calls first. It skips the checks of senders, and checks nonces and fees only if `is_validated`.
    pub(crate) fn for_simulation(
        state: &'a dyn ExecutionState,
        env: &'a BatchEnv,
        overrides: &Overrides,
        is_validated: bool,
        interrupt: &Interrupt,
    ) -> Result<Self, ExecuteError> {
        let mut machine = Self::interruptible(state, env, interrupt).overridden(overrides)?;
        let context = &mut machine.evm.ctx;
        context.cfg.disable_nonce_check = !is_validated;
        context.cfg.disable_base_fee = !is_validated;
        context.cfg.disable_eip3607 = true;
        context.cfg.disable_block_gas_limit = true;
        if !is_validated {
            context.cfg.tx_gas_limit_cap = Some(u64::MAX);
        }
        machine.with_system_calls()
    }

    /// Applies the overrides of precompiles and of the blob price.
    fn overridden(mut self, overrides: &Overrides) -> Result<Self, ExecuteError> {
        self.evm.precompiles.move_as(moved_precompiles(&overrides.accounts, self.env)?);
        if let Some(price) = overrides.block.blob_base_fee_wei {
            self.evm.ctx.block.blob_excess_gas_and_price = Some(adapter::blob_price(price));
        }
        Ok(self)
    }

    /// Makes a machine that records no observations. `interrupt` can end its transactions.
    fn interruptible(state: &'a dyn ExecutionState, env: &'a BatchEnv, interrupt: &Interrupt) -> Self {
        let mut machine = Self::silent(state, env);
        if !interrupt.is_never() {
            machine.obey(interrupt);
            interrupting::install(&mut machine.evm);
        }
        machine
    }

    /// Attaches an inspector to the machine.
    pub(crate) fn inspected_by<I>(self, inspector: I) -> Machine<'a, I> {
        let Machine { evm, env, interrupt, is_observed } = self;
        Machine { evm: evm.with_inspector(inspector), env, interrupt, is_observed }
    }

    /// Makes a machine whose transactions return their effects and record no observations.
    pub(crate) fn silent(state: &'a dyn ExecutionState, env: &'a BatchEnv) -> Self {
        let database = State::builder().with_database(Recorder::new(state, env)).build();
        let evm = observe::build_silent(database, env, None);
        Self { evm, env, interrupt: Interrupt::never(), is_observed: false }
    }

    fn bare(state: &'a dyn ExecutionState, env: &'a BatchEnv) -> Self {
        Self::over(State::builder().with_database(Recorder::new(state, env)).build(), env, state)
    }

    /// Makes a machine for the batch's transactions that records their observations. The state's interrupt can end the
    /// transactions.
    pub(super) fn over(database: Database<'a>, env: &'a BatchEnv, state: &dyn ExecutionState) -> Self {
        let evm = observe::build(database, env, state.watch());
        let mut machine = Self { evm, env, interrupt: Interrupt::never(), is_observed: true };
        let interrupt = state.interrupt();
        if !interrupt.is_never() {
            machine.obey(&interrupt);
            interrupting::install_observed(&mut machine.evm);
        }
        machine
    }

    fn obey(&mut self, interrupt: &Interrupt) {
        self.interrupt = interrupt.clone();
        self.evm.ctx.journaled_state.database.database.interrupt = interrupt.clone();
    }
}

impl<'a, I> Machine<'a, I> {
    /// Detaches the inspector.
    pub(super) fn alone(self) -> (Machine<'a>, I) {
        let Machine { evm, env, interrupt, is_observed } = self;
        let Evm { ctx, inspector, instruction, precompiles, frame_stack } = evm;
        let evm = Evm { ctx, inspector: (), instruction, precompiles, frame_stack };
        (Machine { evm, env, interrupt, is_observed }, inspector)
    }

    /// Runs a transaction on the state committed so far.
    pub(crate) fn run(&mut self, transaction: &Transaction) -> Result<ExecutedTransaction, RunError> {
        self.transact(adapter::tx_env(transaction))
    }

    /// Runs a call; see [`Machine::for_call`].
    pub(crate) fn call(
        &mut self,
        request: &CallRequest,
        gas_limit: u64,
    ) -> Result<ExecutedTransaction, RunError> {
        self.transact(adapter::call_env(request, self.env, gas_limit))
    }

    /// Sets the fee of the next call. For a call that offers no fee, BASEFEE is zero or the override's value.
    pub(crate) fn prepare_call(&mut self, request: &CallRequest, block: &BlockOverrides) {
        let context = &mut self.evm.ctx;
        let is_free = request.max_fee_wei == 0;
        context.cfg.disable_base_fee = is_free;
        context.block.basefee = match is_free {
            true => block.base_fee_wei.unwrap_or(0),
            false => self.env.base_fee_wei,
        };
    }

    fn transact(&mut self, tx: TxEnv) -> Result<ExecutedTransaction, RunError> {
        let (done, observed) = self.run_by(tx, |evm, tx| evm.transact(tx))?;
        Ok(ExecutedTransaction::new(done, observed))
    }

    fn run_by(
        &mut self,
        tx: TxEnv,
        run: impl FnOnce(&mut Evm<'a, I>, TxEnv) -> Result<ResultAndState, EvmError>,
    ) -> Result<(ResultAndState, Observations), RunError> {
        let gas_limit = tx.gas_limit;
        let watch = self.evm.ctx.chain.watch.take();
        self.evm.ctx.chain =
            Observations { pace: Pace::new(self.interrupt.clone()), watch, ..Observations::default() };
        // revm leaves the error of an interrupted frame in place for the next transaction.
        let done = run(&mut self.evm, tx).inspect_err(|_| self.evm.ctx.error = Ok(()));
        let done = done.map_err(|error| match error {
            EVMError::Transaction(invalid) => {
                RunError::Rejected(adapter::rejection(invalid, gas_limit, self.env.gas_limit))
            }
            error => RunError::Failed(failure(error)),
        })?;
        let watch = self.evm.ctx.chain.watch.take();
        let observed =
            std::mem::replace(&mut self.evm.ctx.chain, Observations { watch, ..Observations::default() });
        Ok((done, observed))
    }

    /// The current nonce of an account.
    pub(crate) fn nonce(&mut self, address: Address) -> Result<u64, ExecuteError> {
        let account = self.evm.ctx.journaled_state.database.basic(address);
        let account = account.map_err(|error| failure(EVMError::Database(error)))?;
        Ok(account.map_or(0, |account| account.nonce))
    }

    /// Whether transactions record observations.
    pub(crate) fn is_observed(&self) -> bool {
        self.is_observed
    }

    /// Adds a transaction's changes to the batch.
    pub(crate) fn commit(&mut self, executed: ExecutedTransaction) {
        let database = &mut self.evm.ctx.journaled_state.database;
        database.database.remember(executed.observed.preimages);
        database.commit(executed.state);
    }

    /// Begins the transaction at this position. Only parts of a batch need the position.
    pub(crate) fn begin(&mut self, index: u32) {
        self.evm.ctx.journaled_state.database.database.begin(index);
    }

    /// Returns the changes and reads of the batch.
    pub(crate) fn finish(self) -> Result<FinishedBatch, ExecuteError> {
        let (changes, reads) = self.finish_part()?;
        Ok(FinishedBatch { delta: changes.into_delta()?, ..reads.finish() })
    }

    /// As [`Machine::finish`], for joining with the parts that other machines ran.
    pub(crate) fn finish_part(self) -> Result<(Changes, WorkingSet), ExecuteError> {
        let State { cache, database, .. } = self.evm.ctx.journaled_state.database;
        let reads = database.into_reads();
        Ok((changes(&cache, &reads, self.env.spec)?, reads))
    }
}

impl<'a, I: Inspector<InspectorContext<'a>>> Machine<'a, I> {
    /// Runs a transaction under the inspector. Returns revm's full result.
    pub(super) fn inspect(&mut self, tx: TxEnv) -> Result<ResultAndState, RunError> {
        Ok(self.run_by(tx, |evm, tx| evm.inspect_tx(tx))?.0)
    }

    /// As [`Machine::call`], under the inspector.
    pub(crate) fn inspect_call(
        &mut self,
        request: &CallRequest,
        gas_limit: u64,
    ) -> Result<ExecutedTransaction, RunError> {
        let tx = adapter::call_env(request, self.env, gas_limit);
        let (done, observed) = self.run_by(tx, |evm, tx| evm.inspect_tx(tx))?;
        Ok(ExecutedTransaction::new(done, observed))
    }
}

impl ExecutedTransaction {
    pub(super) fn new(done: ResultAndState, observed: Observations) -> ExecutedTransaction {
        let gas_used = done.result.tx_gas_used();
        let (success, logs, output, halt) = match done.result {
            ExecutionResult::Success { logs, output, .. } => (true, logs, output.into_data(), None),
            ExecutionResult::Revert { output, .. } => (false, Vec::new(), output, None),
            ExecutionResult::Halt { reason, .. } => {
                let out_of_gas = matches!(reason, HaltReason::OutOfGas(_));
                (false, Vec::new(), Bytes::new(), Some(Halt { reason: words::halt(&reason), out_of_gas }))
            }
        };
        let delta_bytes_max = delta_bytes_max(&done.state);
        ExecutedTransaction {
            success,
            gas_used,
            logs,
            output,
            halt,
            delta_bytes_max,
            state: done.state,
            observed,
        }
    }
}

fn failure(error: EvmError) -> ExecuteError {
    match error {
        EVMError::Database(EvmDatabaseError::Database(ReadError(error))) => error,
        error => ExecuteError::Evm(error.to_string()),
    }
}
