//! Hands out the records that must be durable before the core sends what depends on them.

use slipstream_types::bounded::BoundedVec;

use crate::{
    core::Core,
    effect::Flush,
    planted::{Fault, lacks},
    record::Record,
};

impl Core {
    /// Returns the next record to make durable, with the outputs to send after it. Nothing of a later flush may
    /// overtake an earlier one.
    pub fn poll_flush(&mut self) -> Option<Flush> {
        let record = self.record();
        // A record of a later epoch stays until that epoch begins.
        let is_new = !self.memory.observing
            && self.memory.ahead.is_none()
            && self.memory.recorded.as_ref().is_none_or(|recorded| {
                // A prepare without a record of its own counts in `voted` once its batch is decided.
                record.binds_beyond(recorded) || self.memory.voted.min(self.decisions.last) > recorded.voted
            });
        if !is_new && self.outputs.is_empty() {
            return None;
        }
        let outputs = std::mem::take(&mut self.outputs);
        let record = is_new.then_some(record);
        if record.is_some() {
            self.memory.recorded.clone_from(&record);
        }
        Some(Flush { record, outputs })
    }

    /// The record of the present state.
    pub(crate) fn record(&self) -> Record {
        let uncommitted = self.decisions.recent.values().filter(|it| it.info.number > self.head.number);
        let mut decided: Vec<_> = uncommitted.cloned().collect();
        if decided.is_empty() {
            decided.extend(self.decisions.proof.clone());
        }
        if lacks(Fault::ForgetDecisions) {
            decided.clear();
        }
        let view = if lacks(Fault::ForgetView) { 0 } else { self.view.number };
        let prepare = self.memory.prepare.filter(|it| !it.is_kept);
        Record {
            epoch: self.set.epoch,
            view,
            changing: self.is_changing(),
            prepare: prepare.filter(|_| !lacks(Fault::ForgetPrepare)).map(|it| it.ballot),
            prepared: self.memory.prepared.clone(),
            adopted: self.term.adopted.clone(),
            amnesia: self.memory.amnesia,
            decided: BoundedVec::new(decided).expect("recent decisions are bounded"),
            voted: self.memory.voted,
        }
    }
}
