//! The kinds of traces, and the weights of the records that each keeps.

use std::fmt::Display;

use alloy_rpc_types_trace::{
    geth::{
        GethDebugBuiltInTracerType, GethDebugTracerType, GethDebugTracingOptions, GethDefaultTracingOptions,
        GethTrace, mux::MuxConfig,
    },
    parity::{LocalizedTransactionTrace, TraceResults, TraceType},
};
use revm::DatabaseRef;
use revm_inspectors::tracing::{
    DebugInspector, MuxInspector, TracingInspector, TracingInspectorConfig, TransactionContext,
};

use super::{TracedRun, Tracer, correct, meter::Weights};
use crate::error::TraceError;

/// Maximum number of tracers in one `muxTracer`: each keeps its own records.
const MUX_MAX: usize = 8;

/// The kinds of traces that a replay in parity's format returns.
pub type TraceTypes = alloy_primitives::map::HashSet<TraceType>;

/// Traces with one of geth's tracers.
pub(crate) struct GethTracer<'a>(pub(crate) &'a GethDebugTracingOptions);

/// Traces for parity's flat list of calls.
pub(crate) struct CallsTracer;

/// Traces for parity's replays.
pub(crate) struct ReplayTracer<'a>(pub(crate) &'a TraceTypes);

/// Weights of a tracer that keeps only calls. Data is kept once, and takes two digits per byte in the text.
const CALLS: Weights = Weights { call: 4_096, depth: 24, data_byte: 4, ..Weights::NONE };

/// Weights of a `vmTrace`: an instruction's pushes and its writes to memory, and the code of each call.
const VM_STEPS: Weights = Weights { step: 1_536, written_byte: 4, code_byte: 4, ..Weights::NONE };

fn tracer_error(error: impl Display) -> TraceError {
    TraceError::Tracer(error.to_string())
}

impl GethTracer<'_> {
    /// Returns the tracer. `None` is the struct logger, which an empty name selects too.
    fn tracer(&self) -> Option<&GethDebugTracerType> {
        self.0.tracer.as_ref().filter(|tracer| !tracer.as_str().is_empty())
    }

    /// The tracers of a `muxTracer`. In geth, tracers without options ignore their configuration, so the configuration
    /// is removed here.
    fn mux(&self) -> Result<MuxConfig, TraceError> {
        use GethDebugBuiltInTracerType as BuiltIn;
        let mut config = self.0.tracer_config.clone().into_mux_config().map_err(tracer_error)?;
        for (tracer, own) in &mut config.0 {
            if let GethDebugTracerType::BuiltInTracer(BuiltIn::FourByteTracer | BuiltIn::NoopTracer) = tracer
            {
                *own = None;
            }
        }
        Ok(config)
    }
}

impl Tracer for GethTracer<'_> {
    type Inspector = DebugInspector;
    type Trace = GethTrace;

    fn inspector(&self) -> Result<DebugInspector, TraceError> {
        let mux = GethDebugTracerType::BuiltInTracer(GethDebugBuiltInTracerType::MuxTracer);
        if self.tracer() == Some(&mux) {
            let config = self.mux()?;
            let inspector = MuxInspector::try_from_config(config.clone()).map_err(tracer_error)?;
            return Ok(DebugInspector::Mux(inspector, config));
        }
        DebugInspector::new(self.0.clone()).map_err(tracer_error)
    }

    fn weights(&self) -> Result<Weights, TraceError> {
        use GethDebugBuiltInTracerType as BuiltIn;
        let tracer = match self.tracer() {
            None => return Ok(CALLS + step_weights(&self.0.config)),
            Some(GethDebugTracerType::BuiltInTracer(tracer)) => tracer,
            Some(_) => return Err(TraceError::JavaScript),
        };
        match tracer {
            BuiltIn::NoopTracer => Ok(Weights::NONE),
            BuiltIn::FourByteTracer => Ok(Weights { call: 256, ..Weights::NONE }),
            BuiltIn::CallTracer | BuiltIn::FlatCallTracer | BuiltIn::PreStateTracer => Ok(CALLS),
            BuiltIn::MuxTracer => {
                let tracers = self.mux()?.0.len();
                if tracers > MUX_MAX {
                    let text = format!("a muxTracer has at most {MUX_MAX} tracers, not {tracers}");
                    return Err(TraceError::Tracer(text));
                }
                Ok((0..tracers).fold(Weights::NONE, |sum, _| sum + CALLS))
            }
            _ => Err(TraceError::UnknownTracer),
        }
    }

    fn shows_state(&self) -> bool {
        use GethDebugBuiltInTracerType as BuiltIn;
        self.tracer().is_some_and(|tracer| match tracer {
            GethDebugTracerType::BuiltInTracer(tracer) => {
                matches!(tracer, BuiltIn::PreStateTracer | BuiltIn::MuxTracer)
            }
            _ => false,
        })
    }

    fn finish<DB: DatabaseRef<Error: Display>>(
        &self,
        mut inspector: DebugInspector,
        done: &TracedRun<'_>,
        database: &mut DB,
    ) -> Result<GethTrace, TraceError> {
        let context = TransactionContext {
            block_hash: done.info.block_hash,
            tx_index: done.info.index.map(|index| index as usize),
            tx_hash: done.info.hash,
        };
        if let DebugInspector::Default(steps, _) = &mut inspector {
            correct::count_gas(steps);
        }
        let trace = inspector.get_result(Some(context), done.tx, done.block, done.result, database);
        let mut trace = trace.map_err(tracer_error)?;
        let gas_used = done.result.result.tx_gas_used();
        correct::correct(&mut trace, gas_used, &*database).map_err(tracer_error)?;
        Ok(trace)
    }
}

impl Tracer for CallsTracer {
    type Inspector = TracingInspector;
    type Trace = Vec<LocalizedTransactionTrace>;

    fn inspector(&self) -> Result<TracingInspector, TraceError> {
        Ok(TracingInspector::new(TracingInspectorConfig::default_parity()))
    }

    fn weights(&self) -> Result<Weights, TraceError> {
        Ok(CALLS)
    }

    fn shows_state(&self) -> bool {
        false
    }

    fn finish<DB: DatabaseRef<Error: Display>>(
        &self,
        mut inspector: TracingInspector,
        done: &TracedRun<'_>,
        _: &mut DB,
    ) -> Result<Vec<LocalizedTransactionTrace>, TraceError> {
        inspector.set_transaction_gas_limit(done.tx.gas_limit);
        Ok(inspector.into_parity_builder().into_localized_transaction_traces(done.info))
    }
}

impl Tracer for ReplayTracer<'_> {
    type Inspector = TracingInspector;
    type Trace = TraceResults;

    fn inspector(&self) -> Result<TracingInspector, TraceError> {
        Ok(TracingInspector::new(TracingInspectorConfig::from_parity_config(self.0)))
    }

    fn weights(&self) -> Result<Weights, TraceError> {
        Ok(if self.0.contains(&TraceType::VmTrace) { CALLS + VM_STEPS } else { CALLS })
    }

    fn shows_state(&self) -> bool {
        // A `vmTrace` shows the code that ran.
        self.0.contains(&TraceType::StateDiff) || self.0.contains(&TraceType::VmTrace)
    }

    fn finish<DB: DatabaseRef<Error: Display>>(
        &self,
        mut inspector: TracingInspector,
        done: &TracedRun<'_>,
        database: &mut DB,
    ) -> Result<TraceResults, TraceError> {
        inspector.set_transaction_gas_limit(done.tx.gas_limit);
        let builder = inspector.into_parity_builder();
        builder.into_trace_results_with_state(done.result, self.0, &*database).map_err(tracer_error)
    }
}

/// Weights of the struct logger. A word is kept, then copied into the answer, where it takes 66 characters with quotes
/// and comma. A slot is two words.
fn step_weights(config: &GethDefaultTracingOptions) -> Weights {
    let if_shown = |is_shown: bool, bytes: usize| if is_shown { bytes } else { 0 };
    Weights {
        step: 1_024,
        stack_word: if_shown(config.is_stack_enabled(), 134),
        memory_byte: if_shown(config.is_memory_enabled(), 7),
        returned_byte: if_shown(config.is_return_data_enabled(), 4),
        slot: if_shown(config.is_storage_enabled(), 276),
        steps_max: config.limit.filter(|limit| *limit > 0),
        ..Weights::NONE
    }
}
