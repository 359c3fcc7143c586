//! [`Rerun`]: executes a batch again, so that tracers can observe its transactions. This module also traces calls.

pub use alloy_rpc_types_eth::TransactionInfo;
pub use alloy_rpc_types_trace::{
    geth::{GethDebugTracingOptions, GethTrace},
    parity::{Action, LocalizedTransactionTrace, TraceOutput, TraceResults, TraceType},
};
use slipstream_types::Receipt;

use crate::{
    call::{CALL_GAS_MAX, OverriddenState},
    error::ExecuteError,
    evm::{
        BatchEnv, CallsTracer, ExecutedTransaction, ExecutionState, GethTracer, Machine, ReplayTracer,
        RunError, Tracer, Tracing,
    },
    interrupt::Interrupt,
    outcome,
    overrides::Overrides,
    request::CallRequest,
    transaction::Transaction,
};
pub use crate::{error::TraceError, evm::TraceTypes};

/// A transaction of a stored batch that is executed again.
#[derive(Clone, Copy, Debug)]
pub struct PastTransaction<'a> {
    /// The transaction to execute again.
    pub transaction: &'a Transaction,
    /// The receipt of its first execution.
    pub receipt: &'a Receipt,
    /// The transaction's batch, and its position in the batch.
    pub info: TransactionInfo,
}

/// A batch that is executed again. All its traces share one limit. After an error it cannot be used any more.
pub struct Rerun<'a>(Tracing<'a>);

impl<'a> Rerun<'a> {
    /// Begins on the state before the batch, and makes the system calls.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn new(
        state: &'a dyn ExecutionState,
        env: &'a BatchEnv,
        bytes_max: usize,
        interrupt: &Interrupt,
    ) -> Result<Rerun<'a>, TraceError> {
        Ok(Rerun(Tracing::new(Machine::for_rerun(state, env, interrupt)?, bytes_max)))
    }

    /// Bytes left for further traces.
    pub fn bytes_left(&self) -> usize {
        self.0.bytes_left()
    }

    /// Executes the next transaction without a trace.
    ///
    /// # Errors
    /// If the result differs from the receipt.
    pub fn pass(&mut self, past: &PastTransaction<'_>) -> Result<(), TraceError> {
        let executed = self.0.run(past.transaction).map_err(RunError::of_call)?;
        self.keep(executed, past)
    }

    /// Executes the next transaction under one of geth's tracers.
    ///
    /// # Errors
    /// If the result differs from the receipt, or the trace is too long.
    pub fn geth(
        self,
        past: &PastTransaction<'_>,
        options: &GethDebugTracingOptions,
    ) -> Result<(Rerun<'a>, GethTrace), TraceError> {
        self.look(past, &GethTracer(options))
    }

    /// Executes the next transaction and lists its calls, as parity's `trace_block` does.
    ///
    /// # Errors
    /// As [`Rerun::geth`].
    pub fn calls(
        self,
        past: &PastTransaction<'_>,
    ) -> Result<(Rerun<'a>, Vec<LocalizedTransactionTrace>), TraceError> {
        self.look(past, &CallsTracer)
    }

    /// Executes the next transaction as parity's `trace_replayTransaction` does.
    ///
    /// # Errors
    /// As [`Rerun::geth`].
    pub fn replay(
        self,
        past: &PastTransaction<'_>,
        types: &TraceTypes,
    ) -> Result<(Rerun<'a>, TraceResults), TraceError> {
        self.look(past, &ReplayTracer(types))
    }

    /// Traces a transaction that is in no batch, as if it came next in this one.
    ///
    /// # Errors
    /// If it cannot be executed here, or the trace is too long.
    pub fn attempt(self, transaction: &Transaction, types: &TraceTypes) -> Result<TraceResults, TraceError> {
        let info = TransactionInfo { hash: Some(transaction.hash), ..TransactionInfo::default() };
        Ok(self.0.trace(transaction, info, &ReplayTracer(types))?.2)
    }

    fn look<L: Tracer>(
        self,
        past: &PastTransaction<'_>,
        look: &L,
    ) -> Result<(Rerun<'a>, L::Trace), TraceError> {
        let (tracing, executed, trace) = self.0.trace(past.transaction, past.info, look)?;
        let mut rerun = Rerun(tracing);
        rerun.keep(executed, past)?;
        Ok((rerun, trace))
    }

    fn keep(&mut self, executed: ExecutedTransaction, past: &PastTransaction<'_>) -> Result<(), TraceError> {
        let found = outcome::receipt(past.transaction.tx_type(), &executed)?;
        if found != *past.receipt {
            let show = |receipt: &Receipt| {
                let Receipt { success, gas_used, logs, .. } = receipt;
                format!("status {}, {gas_used} gas, {} logs", u8::from(*success), logs.len())
            };
            let (expected, found) = (show(past.receipt), show(&found));
            return Err(TraceError::Differs { hash: past.transaction.hash, expected, found });
        }
        self.0.commit(executed);
        Ok(())
    }
}

/// Traces a call under one of geth's tracers.
///
/// # Errors
/// If it cannot be executed, or the trace is too long.
pub fn trace_call(
    state: &dyn ExecutionState,
    env: &BatchEnv,
    request: &CallRequest,
    options: &GethDebugTracingOptions,
    bytes_max: usize,
    interrupt: &Interrupt,
) -> Result<GethTrace, TraceError> {
    let state = OverriddenState::new(state, &request.overrides);
    let block = &request.overrides.block;
    let env = env.overridden(block, &state).map_err(ExecuteError::State)?;
    let tracing = Tracing::new(Machine::for_calls(&state, &env, &request.overrides, interrupt)?, bytes_max);
    let gas_limit = request.gas.unwrap_or(CALL_GAS_MAX).min(CALL_GAS_MAX);
    Ok(tracing.call(request, block, gas_limit, &GethTracer(options))?.2)
}

/// Traces calls as parity's `trace_callMany` does: each call sees the effects of earlier calls. The calls share the gas
/// limit of one call, and see the state with `overrides`.
///
/// # Errors
/// If a call cannot be executed, or the traces are too long.
pub fn replay_calls(
    state: &dyn ExecutionState,
    env: &BatchEnv,
    overrides: &Overrides,
    calls: &[(CallRequest, TraceTypes)],
    bytes_max: usize,
    interrupt: &Interrupt,
) -> Result<Vec<TraceResults>, TraceError> {
    let state = OverriddenState::new(state, overrides);
    let env = env.overridden(&overrides.block, &state).map_err(ExecuteError::State)?;
    let machine = Machine::for_calls(&state, &env, overrides, interrupt)?;
    let (mut tracing, mut gas_left) = (Tracing::new(machine, bytes_max), CALL_GAS_MAX);
    let mut traces = Vec::new();
    for (request, types) in calls {
        let gas_limit = request.gas.unwrap_or(CALL_GAS_MAX).min(gas_left);
        let (mut next, executed, trace) =
            tracing.call(request, &overrides.block, gas_limit, &ReplayTracer(types))?;
        gas_left = gas_left.saturating_sub(executed.gas_used);
        next.commit(executed);
        tracing = next;
        traces.push(trace);
    }
    Ok(traces)
}
