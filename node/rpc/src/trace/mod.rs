//! Traces: batches that are re-executed under geth's or parity's tracers, and calls that run under them.
//!
//! A trace is valid only if each re-executed transaction has the outcome that its receipt records ([`Rerun`]).
//! Re-execution needs the state after the preceding batch, so traces reach as far back as states are kept. The time and
//! memory of one request have their own limits, and traces have their own threads.

mod debug;
mod filter;
mod parity;

use std::time::Duration;

use alloy_rpc_types_eth::BlockId;
use slipstream_executor::{
    BatchEnv, Interrupt,
    trace::{PastTransaction, Rerun, TraceError, TransactionInfo},
};
use slipstream_storage::View;
use slipstream_types::BatchNumber;

use super::{
    RpcContext,
    batches::Batch,
    call::CallLimit,
    errors::RpcError,
    lanes::Lane,
    params::{Hash, Number},
    table::{CallContext, Table},
};

/// The limits on the traces of one request.
#[derive(Clone, Copy, Debug)]
pub struct TraceLimits {
    /// The time of a trace, as `api.trace_time_max_ms` sets it.
    pub time_max: Duration,
    /// The bytes of a trace, as `api.trace_mib_max` sets them.
    pub bytes_max: usize,
}

/// Adds the tracing methods to the table.
pub(super) fn add(table: &mut Table) {
    table.add_long(Lane::Traces, "debug_traceTransaction", debug::transaction);
    table.add_long(Lane::Traces, "debug_traceCall", debug::call);
    table.add_long(Lane::Traces, "debug_traceBlockByNumber", debug::block::<Number>);
    table.add_long(Lane::Traces, "debug_traceBlockByHash", debug::block::<Hash>);
    table.add_long(Lane::Traces, "trace_block", parity::block);
    table.add_long(Lane::Traces, "trace_transaction", parity::transaction);
    table.add_long(Lane::Traces, "trace_get", parity::get);
    table.add_long(Lane::Traces, "trace_filter", filter::filter);
    table.add_long(Lane::Traces, "trace_call", parity::call);
    table.add_long(Lane::Traces, "trace_callMany", parity::call_many);
    table.add_long(Lane::Traces, "trace_rawTransaction", parity::raw);
    table.add_long(Lane::Traces, "trace_replayTransaction", parity::replay);
    table.add_long(Lane::Traces, "trace_replayBlockTransactions", parity::replay_block);
}

/// The time and memory of one request.
struct Request<'a> {
    context: &'a RpcContext,
    asker: &'a CallContext<'a>,
    limit: CallLimit,
    interrupt: Interrupt,
}

impl<'a> Request<'a> {
    fn begin(context: &'a RpcContext, asker: &'a CallContext<'a>) -> Request<'a> {
        let limit = CallLimit { time_max: context.trace_limits.time_max, key: "api.trace_time_max_ms" };
        Request { context, asker, limit, interrupt: limit.interrupt(asker) }
    }

    fn bytes_max(&self) -> usize {
        self.context.trace_limits.bytes_max
    }

    fn refusal(&self, error: TraceError) -> RpcError {
        let text = error.to_string();
        match error {
            TraceError::Execute(error) => self.limit.refusal(error, self.asker),
            TraceError::TooLong { .. } => RpcError::TooMuch(format!(
                "{text}: ask for less at once, or with fewer details, or set `api.trace_mib_max`"
            )),
            TraceError::Differs { .. } => RpcError::Damaged(text),
            TraceError::JavaScript | TraceError::UnknownTracer | TraceError::Tracer(_) => {
                RpcError::InvalidParams(text)
            }
        }
    }
}

/// A batch that can be re-executed.
struct Executable {
    batch: Batch,
    view: View,
    env: BatchEnv,
}

impl Executable {
    /// # Errors
    /// If a part of the batch, or the state before it, is not stored.
    fn open(context: &RpcContext, batch: Batch) -> Result<Executable, RpcError> {
        let number = batch.number();
        if number == BatchNumber::GENESIS {
            return Err(RpcError::Rejected("genesis is not traceable".into()));
        }
        batch.body()?;
        batch.receipts()?;
        let view = context.state_at(BlockId::number(number.before(1).get()))?;
        let env = BatchEnv::within(&context.chain, &batch.header);
        Ok(Executable { batch, view, env })
    }

    fn transactions(&self) -> usize {
        self.batch.header.tx_count as usize
    }

    /// Starts to re-execute the batch, for traces of at most `bytes_max` bytes in total.
    fn rerun<'a>(&'a self, request: &Request<'_>, bytes_max: usize) -> Result<Rerun<'a>, RpcError> {
        let rerun = Rerun::new(&self.view, &self.env, bytes_max, &request.interrupt);
        rerun.map_err(|error| request.refusal(error))
    }

    /// Runs `look` on a transaction of the batch and its receipt.
    fn with<T>(
        &self,
        request: &Request<'_>,
        index: usize,
        look: impl FnOnce(&PastTransaction<'_>) -> Result<T, TraceError>,
    ) -> Result<T, RpcError> {
        let transaction = self.batch.transaction(index, &request.context.chain)?;
        let receipt = self.batch.receipt(index)?;
        let (Some(transaction), Some(receipt)) = (transaction, receipt) else {
            return Err(RpcError::Rejected("transaction not found".into()));
        };
        let info = TransactionInfo {
            hash: Some(transaction.hash),
            index: Some(index as u64),
            block_hash: Some(self.batch.hash),
            block_number: Some(self.env.number),
            base_fee: Some(self.env.base_fee_wei),
            ..TransactionInfo::default()
        };
        look(&PastTransaction { transaction: &transaction, receipt, info })
            .map_err(|error| request.refusal(error))
    }

    /// The trace of one transaction, after those before it.
    fn one<'a, T>(
        &'a self,
        request: &Request<'_>,
        index: usize,
        look: impl FnOnce(Rerun<'a>, &PastTransaction<'_>) -> Result<(Rerun<'a>, T), TraceError>,
    ) -> Result<T, RpcError> {
        let mut rerun = self.rerun(request, request.bytes_max())?;
        for before in 0..index.min(self.transactions()) {
            self.with(request, before, |past| rerun.pass(past))?;
        }
        self.with(request, index, |past| Ok(look(rerun, past)?.1))
    }

    /// The traces of all transactions, in order and of at most `bytes_max` bytes, and how many of these bytes are left.
    fn all<'a, T>(
        &'a self,
        request: &Request<'_>,
        bytes_max: usize,
        look: impl Fn(Rerun<'a>, &PastTransaction<'_>) -> Result<(Rerun<'a>, T), TraceError>,
    ) -> Result<(Vec<T>, usize), RpcError> {
        let mut rerun = self.rerun(request, bytes_max)?;
        let mut traces = Vec::new();
        for index in 0..self.transactions() {
            let (next, trace) = self.with(request, index, |past| look(rerun, past))?;
            rerun = next;
            traces.push(trace);
        }
        Ok((traces, rerun.bytes_left()))
    }
}
