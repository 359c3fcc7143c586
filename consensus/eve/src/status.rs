//! Status messages report a validator's progress; the answers to them are the only retransmission.

use crate::{
    core::Core,
    effect::{Output, Receivers},
    message::{Message, Seat, SignedOrder, Status},
    planted::{Fault, lacks},
};

/// Maximum number of missing orders in one answer, and of missing decisions.
const ANSWERS_MAX: u64 = 2;

impl Core {
    pub(crate) fn status(&self) -> Status {
        let mut ordered = self.top();
        while self.execution.orders.contains_key(&ordered.next()) {
            ordered = ordered.next();
        }
        Status {
            view: self.view.number,
            changing: self.is_changing(),
            complains: self.view.complains,
            decided: self.decisions.last,
            ordered,
            neglected: self.is_neglected(),
            silence: self.silence(),
        }
    }

    /// Sends this validator's status.
    pub(crate) fn tell(&mut self, to: Receivers) {
        if self.set.validators.len() > 1 && !lacks(Fault::NeverTell) {
            let status = self.status();
            self.output(Output::Send(to, Message::Status(status)));
        }
    }

    /// Whether this validator should send its status to the others again.
    pub(crate) fn is_to_tell(&self) -> bool {
        let alike =
            |status: &Status| (status.view, status.decided) == (self.view.number, self.decisions.last);
        let settled =
            self.others.heard.len() + 1 == self.set.validators.len() && self.others.heard.values().all(alike);
        // An observer asks for the others' progress by sending its status, even while they decide.
        self.memory.observing || self.stands() && (self.expects() || self.is_silent() || !settled)
    }

    /// Whether nothing was decided since the last tick of [`Timer::Tell`](crate::Timer::Tell).
    fn stands(&self) -> bool {
        self.decisions.last == self.tick.decided
    }

    pub(crate) fn take_status(&mut self, from: Seat, status: Status) {
        self.others.heard.insert(from, status);
        if self.memory.observing {
            self.wake();
        }
        self.hear_complaints();
        if self.may_cost(from) {
            self.answer(from, status);
        }
    }

    /// Sends what the other validator lacks.
    fn answer(&mut self, from: Seat, status: Status) {
        let send = |message| Output::Send(Receivers::Seat(from), message);
        // While the chain makes progress, validators send a status only on request, and an observer would wait for one
        // for ever. The observer's tick comes at a fixed distance from this validator's tick. So the answer must not
        // depend on what was decided since this validator's last tick.
        if status.silence.is_some() && self.tick.greeted.insert(from) {
            self.tell(Receivers::Seat(from));
        }
        if status.decided < self.decisions.last {
            let missed = status.decided.after(1).through(status.decided.after(ANSWERS_MAX));
            let recent: Vec<_> =
                missed.filter_map(|number| self.decisions.recent.get(&number).cloned()).collect();
            for certificate in recent {
                self.output(send(Message::Decided(Box::new(certificate))));
            }
        }
        if self.is_changing() && status.view <= self.view.number && !self.is_silent() {
            let change = self.own_change();
            self.output(send(Message::ViewChange(Box::new(change))));
        }
        if status.view < self.view.number || status.changing {
            let new = self.others.new_view.clone().filter(|new| new.view >= status.view);
            if let Some(new) = new.filter(|_| self.tick.answered.insert(from)) {
                self.output(send(Message::NewView(Box::new(new))));
            }
        } else if status.view == self.view.number && !self.is_changing() {
            self.repeat(from, status);
        }
    }

    /// Repeats the statements of this view that the other validator lacks.
    fn repeat(&mut self, from: Seat, status: Status) {
        let send = |message| Output::Send(Receivers::Seat(from), message);
        let lacks_some = self.execution.orders.keys().any(|number| *number > status.ordered);
        if self.is_primary() && lacks_some && self.tick.answered.insert(from) {
            let lacks = |order: &&SignedOrder| order.order.number > status.ordered;
            let orders: Vec<_> =
                self.execution.orders.values().filter(lacks).take(ANSWERS_MAX as usize).cloned().collect();
            orders.into_iter().for_each(|order| self.output(send(Message::Order(order))));
        }
        if self.is_silent() {
            return;
        }
        let decided = self.decisions.last;
        let told = self.execution.outcomes.keys().filter(|number| **number > decided);
        let own = told.filter_map(|number| Some(Message::Verify(Box::new(self.own_verify(*number)?))));
        let mut said: Vec<_> = own.collect();
        if let Some(slot) = self.term.slots.get(&decided.next()) {
            said.extend(slot.prepares.get(&self.seat).map(|vote| Message::Prepare(*vote)));
            said.extend(slot.commits.get(&self.seat).map(|vote| Message::Commit(*vote)));
        }
        said.into_iter().for_each(|message| self.output(send(message)));
    }
}
