//! Chooses the next batch to order or execute, and the outcome that it builds on.

use std::time::Instant;

use slipstream_types::{BatchNumber, Digest, LedgerInfo};

use crate::{
    core::Core,
    effect::{Effect, NoOutcome, Work},
    limits::{AHEAD, UNCOMMITTED_MAX, WINDOW},
    message::{Evidence, Message, Order, Seat, SignedOrder, Verify},
    setup::{KeptOutcome, Outcome},
};

impl Core {
    /// Whether this validator lacks the order and would execute it, if its primary signed it. A caller that has the
    /// body stores the body first, then passes the order.
    pub fn wants(&self, order: &Order) -> bool {
        let open = self.top().next()..=self.head.number.after(WINDOW);
        order.epoch == self.set.epoch
            && order.view == self.view.number
            && !self.is_changing()
            && open.contains(&order.number)
            && self.term.refused.is_none_or(|refused| order.number < refused)
            && self.term.adopted.as_ref().is_none_or(|adopted| order.number > adopted.info.number)
            && !self.execution.orders.contains_key(&order.number)
            && !self.execution.outcomes.contains_key(&order.number)
    }

    pub(crate) fn take_order(&mut self, from: Seat, signed: SignedOrder) {
        let number = signed.order.number;
        match self.execution.orders.get(&number).filter(|known| known.order.view == signed.order.view) {
            Some(known) if known.order != signed.order => {
                let pair = Box::new([known.clone(), signed]);
                self.convict(Evidence::Orders(pair));
            }
            Some(_) => {}
            None if signed.order.view != self.view.number => {}
            None if !signed.is_signed(&self.set, &self.domain) => self.mute(from),
            None if self.wants(&signed.order) => self.keep(signed),
            None => {}
        }
    }

    /// Handles a wanted order whose body is missing or does not match. Such an order is refused, because a primary could
    /// send any number of them.
    pub fn handle_misfit(&mut self, signed: &SignedOrder, now: Instant) {
        self.timers.note(now);
        let number = signed.order.number;
        match self.wants(&signed.order) {
            true if number > self.decisions.last => self.refuse(number),
            // Others have the outcome.
            true => self.decisions.overdue = Some(number),
            false => {}
        }
        self.advance();
    }

    /// Refuses an order that no honest primary would have sent. Neither this order nor its successors are executed in
    /// this view.
    fn refuse(&mut self, number: BatchNumber) {
        self.drop_orders(number);
        self.term.refused = Some(number);
        self.complain();
    }

    fn keep(&mut self, signed: SignedOrder) {
        let number = signed.order.number;
        self.term.links.insert(number, signed.order.digest(&self.domain));
        while self.term.links.len() > 2 * WINDOW as usize {
            self.term.links.pop_first();
        }
        self.execution.orders.insert(number, signed);
    }

    /// Call when the primary's own batch is built, executed and durable.
    pub fn handle_built(&mut self, work: Work, order: SignedOrder, info: LedgerInfo, now: Instant) {
        self.timers.note(now);
        let number = work.number;
        let is_open =
            !self.is_changing() && order.order.view == self.view.number && number > self.decisions.last;
        if self.execution.working != Some(work) {
            // A rollback removed the outcome below. But this outcome is on disk, and a restart would announce it. So no
            // other outcome of this number may be announced.
            if is_open
                && !self.execution.orders.contains_key(&number)
                && !self.execution.outcomes.contains_key(&number)
            {
                self.keep(order.clone());
                self.say(Message::Order(order));
                self.rollback(self.top());
                self.advance();
            }
            return;
        }
        self.execution.working = None;
        if is_open {
            self.keep(order.clone());
            self.say(Message::Order(order.clone()));
            self.has_outcome(order, info);
        }
        self.advance();
    }

    /// Call when an order was executed and its outcome is durable, or when the order has no outcome.
    pub fn handle_executed(&mut self, work: Work, result: Result<LedgerInfo, NoOutcome>, now: Instant) {
        self.timers.note(now);
        if self.execution.working != Some(work) {
            return;
        }
        self.execution.working = None;
        match (self.execution.orders.get(&work.number).cloned(), result) {
            (Some(order), Ok(info)) => self.has_outcome(order, info),
            (_, Err(NoOutcome::Refused)) => {
                self.decisions.overdue = Some(work.number);
                if work.number <= self.decisions.last {
                    self.execution.orders.remove(&work.number);
                } else {
                    self.refuse(work.number);
                }
            }
            (_, Err(NoOutcome::Missing)) => {
                self.term.spent |= work.number > self.decisions.last;
                self.execution.orders.remove(&work.number);
            }
            // The head has moved: `handle_committed` follows.
            (_, Err(NoOutcome::Overtaken)) | (None, Ok(_)) => {}
        }
        self.advance();
    }

    /// Call when the fetched outcome is here and durable.
    pub fn handle_fetched(&mut self, number: BatchNumber, now: Instant) {
        self.timers.note(now);
        if let Some(certificate) = self.decisions.pending.get(&number).filter(|_| number == self.top().next())
        {
            self.execution.outcomes.insert(number, (None, certificate.info.clone()));
        }
        self.advance();
    }

    /// Call when the store has a new head.
    pub fn handle_committed(&mut self, head: LedgerInfo, now: Instant) {
        self.timers.note(now);
        let number = head.number;
        if number <= self.head.number {
            return;
        }
        let ours = self.execution.outcomes.get(&number).is_some_and(|(_, info)| *info == head);
        self.head = head;
        if !ours {
            // Sync was faster, and what was executed ahead may build on another state.
            self.rollback(number);
        }
        self.execution.outcomes.retain(|it, _| *it > number && ours);
        self.execution.orders.retain(|it, _| *it > number);
        self.decisions.pending.retain(|it, _| *it > number);
        self.decisions.fetching.take_if(|it| *it <= number);
        if number > self.decisions.last {
            self.progress(number);
        }
        self.advance();
    }

    /// Resumes with the orders and outcomes that were kept over a restart.
    pub(crate) fn restore(&mut self, outcomes: Vec<Outcome>, kept: Vec<KeptOutcome>) {
        let epoch = self.set.epoch;
        let is_here = |order: &SignedOrder| {
            (order.order.epoch, order.order.view) == (epoch, self.view.number) && !self.is_changing()
        };
        let orders: Vec<_> = kept.into_iter().map(|kept| kept.order).filter(is_here).collect();
        let mut doubtful = None;
        for order in orders {
            let number = order.order.number;
            if self.execution.orders.get(&number).is_some_and(|known| known.order != order.order) {
                doubtful = Some(doubtful.unwrap_or(number).min(number));
            }
            self.keep(order);
        }
        if let Some(number) = doubtful {
            // The primary announced one of the contradicting orders, and nothing says which.
            self.drop_orders(number);
        }
        for Outcome { order, info } in outcomes {
            let is_next = info.number == self.top().next() && info.epoch == epoch;
            // A decided outcome may be of an earlier view.
            if is_next
                && (info.number <= self.decisions.last
                    || self.execution.orders.get(&info.number) == Some(&order))
            {
                self.has_outcome(order, info);
            }
        }
        self.rollback(self.top());
    }

    fn has_outcome(&mut self, order: SignedOrder, info: LedgerInfo) {
        let number = info.number;
        self.execution.outcomes.insert(number, (Some(order), info));
        if !self.is_silent() {
            self.verify(number);
        }
    }

    /// Sends this validator's outcome of an order.
    fn verify(&mut self, number: BatchNumber) {
        if let Some(verify) =
            self.own_verify(number).filter(|_| number > self.decisions.last && !self.is_changing())
        {
            let (before, info) = (verify.before, verify.info.clone());
            self.term.slots.entry(number).or_default().verify(self.seat, before, info);
            self.say(Message::Verify(Box::new(verify)));
        }
    }

    /// The outcome of this validator's own execution, if its order is of this view.
    pub(crate) fn own_verify(&self, number: BatchNumber) -> Option<Verify> {
        let (order, info) = self.execution.outcomes.get(&number)?;
        let order = order.clone().filter(|order| order.order.view == self.view.number)?;
        let before = number.previous()?;
        let head = (before == self.head.number).then_some(&self.head);
        let before = self.execution.outcomes.get(&before).map(|(_, info)| info).or(head)?.digest();
        Some(Verify { order, before, info: info.clone(), took_ms: 0 })
    }

    /// Sends the outcomes that this validator withheld while it did not know what it had signed.
    pub(crate) fn speak(&mut self) {
        let numbers: Vec<_> = self.execution.outcomes.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.verify(number));
    }

    /// The last batch that has an outcome here, or the head.
    pub(crate) fn top(&self) -> BatchNumber {
        self.execution.outcomes.last_key_value().map_or(self.head.number, |(number, _)| *number)
    }

    /// Forgets what was executed above a batch, and stops work in progress.
    pub(crate) fn rollback(&mut self, to: BatchNumber) {
        self.execution.outcomes.retain(|number, _| *number <= to);
        self.execution.working = None;
        self.decisions.fetching = None;
        self.execution.generation += 1;
        self.effects.push_back(Effect::Rollback { to });
    }

    /// Settles decided batches, then executes or builds the next batch if it can.
    pub(crate) fn pursue(&mut self) {
        self.settle();
        let top = self.top();
        let number = top.next();
        let last = self.execution.outcomes.get(&top).map_or(&self.head, |(_, info)| info);
        if self.execution.working.is_some() || self.decisions.fetching.is_some() || self.ends(last) {
            return;
        }
        let sequential = number <= self.execution.careful_to;
        let work = Work { generation: self.execution.generation, view: self.view.number, number, sequential };
        if let Some(order) = self.execution.orders.get(&number).cloned() {
            let parent = number.before(1);
            let is_linked = self.term.links.get(&parent).is_none_or(|link| order.order.parent == *link);
            if number > self.decisions.last && !is_linked {
                return self.refuse(number);
            }
            self.execution.working = Some(work);
            self.effects.push_back(Effect::Execute { work, order });
        } else if self.may_order(number) {
            let parent = self.term.links.get(&top).copied().unwrap_or(Digest::ZERO);
            self.execution.working = Some(work);
            self.effects.push_back(Effect::Build { work, parent });
        }
    }

    /// Drops the orders from that number on, so that they are not executed.
    fn drop_orders(&mut self, from: BatchNumber) {
        self.execution.orders.retain(|number, _| *number < from);
        self.term.spent = true;
    }

    fn may_order(&self, number: BatchNumber) -> bool {
        self.is_primary()
            && !self.is_changing()
            && !self.is_silent()
            && self.memory.amnesia.is_none_or(|lost| self.view.number > lost.view)
            && number > self.decisions.last
            && !self.term.spent
            && number <= self.decisions.last.after(AHEAD)
            && number <= self.head.number.after(UNCOMMITTED_MAX)
            && self.term.adopted.as_ref().is_none_or(|adopted| number > adopted.info.number)
    }
}
