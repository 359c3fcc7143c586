//! Bounds what other validators cost this one, ignores who says what does not verify, and tells what proves a lie.

use crate::{
    core::Core,
    effect::Output,
    message::{Evidence, Message},
    planted::{Fault, lacks},
};

/// Contradictions that are kept and told.
const CONVICTED_MAX: usize = 64;
/// Messages of one validator in [`TELL_MS`](crate::core::TELL_MS) that cost many signature checks, or many answers.
const COSTLY_MAX: u8 = 16;

impl Core {
    /// Counts a costly message; says whether its sender stays within [`COSTLY_MAX`] until the next [`Timer::Tell`](crate::Timer::Tell).
    pub(crate) fn may_cost(&mut self, from: u16) -> bool {
        let cost = self.costs.entry(from).or_default();
        *cost = cost.saturating_add(1);
        *cost <= COSTLY_MAX
    }

    /// A check failed that costs more than it costs to make it fail: the validator is not listened to for a while.
    pub(crate) fn mute(&mut self, from: u16) {
        self.muted.insert(from);
    }

    pub(crate) fn take_evidence(&mut self, from: u16, evidence: Evidence) {
        match evidence.is_valid(&self.set, &self.domain) {
            true => self.convict(evidence),
            false => self.mute(from),
        }
    }

    /// A validator gave two statements where it may give one.
    pub(crate) fn convict(&mut self, evidence: Evidence) {
        let (view, number) = evidence.place();
        let place = (evidence.author(&self.set), view, number);
        if self.convicted.len() < CONVICTED_MAX
            && !lacks(Fault::ForgetEvidence)
            && !self.convicted.contains(&place)
            && evidence.is_valid(&self.set, &self.domain)
        {
            self.convicted.insert(place);
            self.output(Output::Convict(evidence.clone()));
            self.say(Message::Evidence(evidence));
        }
    }
}
