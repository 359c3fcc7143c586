//! [`Tracing`]: a machine that runs transactions and calls under the tracers of geth and of parity.

mod correct;
mod meter;
mod tracers;

use std::fmt::Display;

use alloy_rpc_types_eth::TransactionInfo;
use revm::{
    DatabaseRef, Inspector,
    context::{BlockEnv, TxEnv, result::ResultAndState},
    state::EvmState,
};

use self::meter::{Meter, Weights};
pub use self::tracers::TraceTypes;
pub(crate) use self::tracers::{CallsTracer, GethTracer, ReplayTracer};
use super::{
    adapter,
    machine::{ExecutedTransaction, InspectorContext, Machine, RunError},
    observe::Observations,
};
use crate::{error::TraceError, overrides::BlockOverrides, request::CallRequest, transaction::Transaction};

/// Maximum bytes of an account and of a slot in a state trace, with the values before and after, and their text.
const ACCOUNT_BYTES: usize = 1_024;
const SLOT_BYTES: usize = 512;
/// Bytes per byte of code: one in the tracer, one in the answer, and two digits in its text.
const CODE_BYTE: usize = 4;
/// Assumed length of code that a tracer has yet to load: the maximum length of code.
const CODE_BYTES_MAX: usize = 0x6000;

/// A kind of trace.
pub(crate) trait Tracer {
    /// The inspector that observes the execution.
    type Inspector: for<'a> Inspector<InspectorContext<'a>>;
    /// The trace that the inspector makes.
    type Trace;

    /// # Errors
    /// If the tracer does not exist.
    fn inspector(&self) -> Result<Self::Inspector, TraceError>;

    /// The weights of the inspector's records.
    ///
    /// # Errors
    /// If the tracer does not exist.
    fn weights(&self) -> Result<Weights, TraceError>;

    /// Whether the trace shows accounts and slots, so that their bytes count too.
    fn shows_state(&self) -> bool;

    /// # Errors
    /// If the state cannot be read.
    fn finish<DB: DatabaseRef<Error: Display>>(
        &self,
        inspector: Self::Inspector,
        done: &TracedRun<'_>,
        database: &mut DB,
    ) -> Result<Self::Trace, TraceError>;
}

/// A transaction that has run and is not committed yet.
pub(crate) struct TracedRun<'a> {
    tx: &'a TxEnv,
    block: &'a BlockEnv,
    info: TransactionInfo,
    result: &'a ResultAndState,
}

/// A machine that traces, with a limit in bytes. After an error it cannot be used any more.
pub(crate) struct Tracing<'a> {
    machine: Machine<'a>,
    bytes_max: usize,
    bytes_left: usize,
}

impl<'a> Tracing<'a> {
    /// Limits all traces together to `bytes_max`.
    pub(crate) fn new(machine: Machine<'a>, bytes_max: usize) -> Tracing<'a> {
        Tracing { machine, bytes_max, bytes_left: bytes_max }
    }

    /// Bytes left for further traces.
    pub(crate) fn bytes_left(&self) -> usize {
        self.bytes_left
    }

    /// Runs a transaction without a trace.
    pub(crate) fn run(&mut self, transaction: &Transaction) -> Result<ExecutedTransaction, RunError> {
        self.machine.run(transaction)
    }

    /// Runs a transaction and traces it.
    pub(crate) fn trace<L: Tracer>(
        self,
        transaction: &Transaction,
        info: TransactionInfo,
        look: &L,
    ) -> Result<(Tracing<'a>, ExecutedTransaction, L::Trace), TraceError> {
        self.look(adapter::tx_env(transaction), info, look)
    }

    /// Runs a call and traces it. If the call offers no fee, BASEFEE is zero or its override.
    pub(crate) fn call<L: Tracer>(
        mut self,
        request: &CallRequest,
        block: &BlockOverrides,
        gas_limit: u64,
        look: &L,
    ) -> Result<(Tracing<'a>, ExecutedTransaction, L::Trace), TraceError> {
        self.machine.prepare_call(request, block);
        let env = self.machine.env;
        let info = TransactionInfo { block_number: Some(env.number), ..TransactionInfo::default() };
        self.look(adapter::call_env(request, env, gas_limit), info, look)
    }

    /// Adds the result to the state.
    pub(crate) fn commit(&mut self, executed: ExecutedTransaction) {
        self.machine.commit(executed);
    }

    fn look<L: Tracer>(
        self,
        tx: TxEnv,
        info: TransactionInfo,
        look: &L,
    ) -> Result<(Tracing<'a>, ExecutedTransaction, L::Trace), TraceError> {
        let Tracing { machine, bytes_max, bytes_left } = self;
        let too_long = TraceError::TooLong { max: bytes_max };
        // Weights come first: they give the best error for an unknown tracer.
        let weights = look.weights()?;
        let mut machine = machine.inspected_by(Meter::new(look.inspector()?, weights, bytes_left));
        let result = machine.inspect(tx.clone());
        let (mut machine, mut meter) = machine.alone();
        if meter.left().is_none() {
            return Err(too_long);
        }
        let result = result.map_err(|error| TraceError::Execute(error.of_call()))?;
        if look.shows_state() {
            meter.take(state_bytes(&result.state));
        }
        let bytes_left = meter.left().ok_or(too_long)?;
        let context = &mut machine.evm.ctx;
        let done = TracedRun { tx: &tx, block: &context.block, info, result: &result };
        let trace = look.finish(meter.inner, &done, &mut context.journaled_state.database)?;
        let executed = ExecutedTransaction::new(result, Observations::default());
        Ok((Tracing { machine, bytes_max, bytes_left }, executed, trace))
    }
}

/// Upper bound of the bytes that a trace of a transaction's loaded and changed rows takes.
fn state_bytes(state: &EvmState) -> usize {
    let account = |account: &revm::state::Account| {
        let code = match &account.info.code {
            Some(code) => code.len(),
            None if account.info.is_empty_code_hash() => 0,
            None => CODE_BYTES_MAX,
        };
        ACCOUNT_BYTES + account.storage.len() * SLOT_BYTES + code * CODE_BYTE
    };
    state.values().map(account).sum()
}
