//! Bounds what other validators cost this one, ignores senders whose messages fail verification, and reports proven
//! lies.

use crate::{
    core::Core,
    effect::Output,
    message::{Evidence, Message, Seat},
};

/// Maximum number of contradictions that are kept and reported.
const CONVICTED_MAX: usize = 64;
/// Maximum number of costly messages of one validator in [`TELL_MS`](crate::limits::TELL_MS). A costly message causes
/// many signature checks, or many answers.
const COSTLY_MAX: u8 = 16;

impl Core {
    /// Counts a costly message. Returns whether its sender stays within [`COSTLY_MAX`] until the next
    /// [`Timer::Tell`](crate::Timer::Tell).
    pub(crate) fn may_cost(&mut self, from: Seat) -> bool {
        let cost = self.tick.costs.entry(from).or_default();
        *cost = cost.saturating_add(1);
        *cost <= COSTLY_MAX
    }

    /// Ignores a validator until the next [`Timer::Tell`](crate::Timer::Tell). Its message failed a check that costs
    /// this validator more than the message cost its sender.
    pub(crate) fn mute(&mut self, from: Seat) {
        self.tick.muted.insert(from);
    }

    pub(crate) fn take_evidence(&mut self, from: Seat, evidence: Evidence) {
        match evidence.is_valid(&self.set, &self.domain) {
            true => self.convict(evidence),
            false => self.mute(from),
        }
    }

    /// Reports a validator that gave two statements where it may give one.
    pub(crate) fn convict(&mut self, evidence: Evidence) {
        let (view, number) = evidence.place();
        let place = (evidence.author(&self.set), view, number);
        if self.seen.convicted.len() < CONVICTED_MAX
            && !self.seen.convicted.contains(&place)
            && evidence.is_valid(&self.set, &self.domain)
        {
            self.seen.convicted.insert(place);
            self.output(Output::Convict(evidence.clone()));
            self.say(Message::Evidence(evidence));
        }
    }
}
