//! Corrects traces where geth's own tracers differ from the inspectors that replace them here.

use alloy_rpc_types_trace::geth::{CallFrame, DefaultFrame, GethTrace, PreStateFrame};
use revm::{DatabaseRef, bytecode::opcode};
use revm_inspectors::tracing::{
    TracingInspector,
    types::{CallTraceNode, TraceMemberOrder},
};

use super::super::words;

/// Counts gas as geth's struct logger does. A creation's cost excludes the gas that its code gets. Refunds are those of
/// the whole transaction so far, including the current SSTORE's own. revm counts refunds per frame.
pub(super) fn count_gas(inspector: &mut TracingInspector) {
    let nodes = inspector.traces_mut().nodes_mut();
    let limits: Vec<u64> = nodes.iter().map(|node| node.trace.gas_limit).collect();
    // Refunds before the frame began. A frame may take back earlier refunds, so the sums wrap.
    let mut refunds = vec![0_u64; nodes.len()];
    for (index, node) in nodes.iter_mut().enumerate() {
        let before = refunds[index];
        for step in &mut node.trace.steps {
            step.gas_refund_counter = step.gas_refund_counter.wrapping_add(before);
        }
        for (child, step) in calls(node) {
            let step = &mut node.trace.steps[step];
            if matches!(step.op.get(), opcode::CREATE | opcode::CREATE2) {
                step.gas_cost = step.gas_cost.saturating_sub(limits[child]);
            }
            refunds[child] = step.gas_refund_counter;
        }
        let steps = &mut node.trace.steps;
        for next in 1..steps.len() {
            if steps[next - 1].op.get() == opcode::SSTORE {
                steps[next - 1].gas_refund_counter = steps[next].gas_refund_counter;
            }
        }
    }
}

/// A frame's inner frames, each with the index of the instruction that began it.
fn calls(node: &CallTraceNode) -> Vec<(usize, usize)> {
    let (mut last, mut calls) = (None, Vec::new());
    for member in &node.ordering {
        match member {
            TraceMemberOrder::Step(step) => last = Some(*step),
            TraceMemberOrder::Call(call) => calls.extend(node.children.get(*call).copied().zip(last)),
            TraceMemberOrder::Log(_) => {}
        }
    }
    calls
}

/// Gives a trace geth's texts, and leaves out what geth leaves out.
///
/// # Errors
/// If the state before the transaction cannot be read.
pub(super) fn correct<DB: DatabaseRef>(
    trace: &mut GethTrace,
    gas_used: u64,
    database: &DB,
) -> Result<(), DB::Error> {
    match trace {
        GethTrace::Default(frame) => correct_steps(frame),
        GethTrace::CallTracer(frame) => correct_call(frame),
        // The first call's gas limit is the transaction's, and so is the gas used.
        GethTrace::FlatCallTracer(calls) => {
            if let Some(first) = calls.first_mut() {
                first.set_gas_used(gas_used);
            }
        }
        GethTrace::PreStateTracer(PreStateFrame::Diff(diff)) => {
            for address in diff.pre.keys().copied().collect::<Vec<_>>() {
                if database.basic_ref(address)?.is_none_or(|account| account.is_empty()) {
                    diff.pre.remove(&address);
                }
            }
        }
        GethTrace::MuxTracer(frames) => {
            for frame in frames.0.values_mut() {
                correct(frame, gas_used, database)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn correct_steps(frame: &mut DefaultFrame) {
    for step in &mut frame.struct_logs {
        step.error = step.error.take().and_then(|found| words::step(&found)).map(str::to_owned);
        if step.error.is_some() {
            step.storage = None;
        }
        step.refund_counter.take_if(|refund| *refund == 0);
        step.return_data.take_if(|data| data.is_empty());
        step.memory.take_if(|words| words.is_empty());
    }
}

/// Corrects a call and its inner calls, which are at most 1,024 deep.
fn correct_call(frame: &mut CallFrame) {
    if let Some(error) = &mut frame.error {
        *error = words::call(error).to_owned();
        // A failed call's logs were undone.
        frame.logs.clear();
    }
    frame.calls.iter_mut().for_each(correct_call);
}

#[cfg(test)]
mod tests {
    use alloy_rpc_types_trace::geth::{CallLogFrame, StructLog};
    use revm::primitives::Bytes;

    use super::*;

    /// Goal: a step shows geth's fields: an error in geth's words, and no empty fields.
    #[test]
    fn steps_are_as_geths() {
        let step = StructLog {
            refund_counter: Some(0),
            return_data: Some(Bytes::new()),
            memory: Some(Vec::new()),
            ..StructLog::default()
        };
        let failed = StructLog {
            error: Some("Some(StackUnderflow)".into()),
            storage: Some(Default::default()),
            refund_counter: Some(7),
            ..step.clone()
        };
        let halted = StructLog { error: Some("Some(InvalidJump)".into()), ..step.clone() };
        let mut frame = DefaultFrame { struct_logs: vec![step, failed, halted], ..DefaultFrame::default() };
        correct_steps(&mut frame);
        let failed = StructLog {
            error: Some("stack underflow".into()),
            refund_counter: Some(7),
            ..StructLog::default()
        };
        assert_eq!(frame.struct_logs, [StructLog::default(), failed, StructLog::default()]);
    }

    /// Goal: a failed call has no logs and geth's error, at any depth.
    #[test]
    fn calls_are_as_geths() {
        let failed = |error: &str| CallFrame {
            error: Some(error.into()),
            logs: vec![CallLogFrame::default()],
            ..CallFrame::default()
        };
        let mut frame = CallFrame {
            calls: vec![failed("out of gas: not enough gas for reentrancy sentry"), failed("Out of stack")],
            ..failed("execution reverted")
        };
        correct_call(&mut frame);
        let errors: Vec<_> = frame.calls.iter().map(|call| call.error.as_deref().unwrap()).collect();
        assert_eq!(errors, ["out of gas", "stack limit reached 1024 (1023)"]);
        assert_eq!(frame.error.as_deref(), Some("execution reverted"));
        assert!(frame.logs.is_empty() && frame.calls.iter().all(|call| call.logs.is_empty()));
    }
}
