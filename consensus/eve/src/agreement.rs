//! Votes once enough executors report equal tokens, and certifies a batch once a quorum has voted.

use slipstream_types::{BatchNumber, Certificate, Digest, LedgerInfo};

use crate::{
    core::Core,
    effect::{Effect, Output, Timer},
    limits::{RECENT_MAX, WINDOW},
    message::{Ballot, Evidence, Message, Prepared, Seat, Verify, View, Vote},
    planted::{Fault, lacks},
    slot::{Executed, Slot, quorum},
    state::Protection,
    vote_memory::OwnPrepare,
};

impl Core {
    /// Whether statements of this view and number count now.
    fn is_open(&self, view: View, number: BatchNumber) -> bool {
        let open = self.decisions.last.next()..=self.decisions.last.after(WINDOW);
        (view == self.view.number || lacks(Fault::AnyView))
            && !self.is_changing()
            && open.contains(&number)
            && !self.is_over()
    }

    pub(crate) fn take_verify(&mut self, from: Seat, verify: Verify) {
        let Verify { order, before, info, .. } = verify;
        let number = order.order.number;
        let is_whole = info.number == number && info.epoch == self.set.epoch;
        if !self.is_open(order.order.view, number) || !is_whole || order.order.epoch != self.set.epoch {
            return;
        }
        let executed = Executed { before, token: info.digest() };
        if self.term.slots.get(&number).is_some_and(|slot| slot.verifies.get(&from) == Some(&executed)) {
            return;
        }
        let known = self.execution.orders.get(&number);
        if known.is_none_or(|known| known.order != order.order) {
            if !order.is_signed(&self.set, &self.domain) {
                return self.mute(from);
            }
            if let Some(known) = known.filter(|known| known.order.view == order.order.view).cloned() {
                self.convict(Evidence::Orders(Box::new([known, order])));
            }
        }
        self.term.slots.entry(number).or_default().verify(from, before, info);
    }

    pub(crate) fn take_prepare(&mut self, from: Seat, vote: Vote) {
        let (key, domain) = (self.set.validators[usize::from(from)].public_key, self.domain);
        let Some(slot) = self.open_slot(&vote.ballot) else { return };
        match slot.prepares.get(&from) {
            Some(first) if first.ballot != vote.ballot => {
                let second = Box::new([*first, vote]);
                self.convict(Evidence::Prepares(from, second));
            }
            Some(_) => {}
            None if vote.ballot.is_prepared_by(&domain, &key, &vote.signature) => {
                slot.prepares.insert(from, vote);
                // The vote shows that its sender is no longer silent. The status that reports this may be lost.
                if let Some(status) = self.others.heard.get_mut(&from) {
                    status.silence = None;
                }
            }
            None => self.mute(from),
        }
    }

    pub(crate) fn take_commit(&mut self, from: Seat, vote: Vote) {
        let key = self.set.validators[usize::from(from)].public_key;
        let Some(slot) = self.open_slot(&vote.ballot) else { return };
        match slot.commits.get(&from).copied() {
            Some(first) if first.ballot != vote.ballot => {
                let number = vote.ballot.number;
                let known = |vote: Vote| Some((self.info(number, &vote.ballot.token)?, vote.signature));
                if let (Some(first), Some(second)) = (known(first), known(vote)) {
                    self.convict(Evidence::Commits(from, vote.ballot.view, Box::new([first, second])));
                }
            }
            Some(_) => {}
            None if vote.ballot.is_committed_by(&key, &vote.signature) => {
                slot.commits.insert(from, vote);
            }
            None => self.mute(from),
        }
    }

    fn open_slot(&mut self, ballot: &Ballot) -> Option<&mut Slot> {
        let is_open = self.is_open(ballot.view, ballot.number);
        is_open.then(|| self.term.slots.entry(ballot.number).or_default())
    }

    /// Takes a decision that another validator shows.
    pub(crate) fn take_decided(&mut self, from: Seat, certificate: Certificate) {
        // Sync brings batches further ahead.
        if certificate.info.number != self.decisions.last.next()
            || self.decisions.pending.len() >= WINDOW as usize
        {
            return;
        }
        match certificate.verify(&self.set) {
            Ok(()) => {
                self.handle_certificate(&certificate);
                self.decide(certificate);
            }
            Err(_) => self.mute(from),
        }
    }

    /// Signs the votes that it can sign on the next batch, and takes each decision that has a quorum.
    pub(crate) fn agree(&mut self) {
        loop {
            let number = self.decisions.last.next();
            if !self.is_changing() && !self.is_over() && !self.is_silent() {
                self.try_prepare(number);
                self.try_commit(number);
            }
            let Some(certificate) =
                self.certificate(number).filter(|_| self.decisions.pending.len() < WINDOW as usize)
            else {
                return;
            };
            self.decide(certificate);
        }
    }

    fn quorum(&self, fault: Fault) -> usize {
        self.set.quorum() - usize::from(lacks(fault))
    }

    fn try_prepare(&mut self, number: BatchNumber) {
        let place = |ballot: &Ballot| (ballot.view, ballot.number);
        let signed =
            self.memory.prepare.map(|it| it.ballot).filter(|it| place(it) >= (self.view.number, number));
        let slot = self.term.slots.get(&number);
        if signed.is_some_and(|it| place(&it) != (self.view.number, number))
            || slot.is_some_and(|slot| slot.prepares.contains_key(&self.seat))
        {
            return;
        }
        // After a restart this validator repeats the vote that it signed.
        let Some(token) = signed.map(|it| it.token).or_else(|| self.candidate(number)) else { return };
        let ballot = Ballot { view: self.view.number, number, token };
        // The record has had the view's adopted outcome since the view began. Before that, nothing was signed in the
        // view.
        let is_free = signed.is_some() || self.term.adopted.is_some() || lacks(Fault::ForgetKeptPrepares);
        if !is_free && self.memory.may_have_prepared.contradicts(&ballot) {
            return self.complain();
        }
        let is_kept = self.execution.outcomes.get(&number).is_some_and(|(order, info)| {
            order.as_ref().is_some_and(|order| order.order.view == self.view.number) && info.digest() == token
        });
        self.memory.prepare = Some(OwnPrepare { ballot, is_kept });
        self.memory.voted = self.memory.voted.max(number);
        let vote = Vote { ballot, signature: ballot.sign_prepare(&self.domain, &self.key) };
        self.term.slots.entry(number).or_default().prepares.insert(self.seat, vote);
        self.say(Message::Prepare(vote));
    }

    /// Returns the outcome that this validator may prepare.
    fn candidate(&mut self, number: BatchNumber) -> Option<Digest> {
        if let Some(adopted) = &self.term.adopted {
            return (adopted.info.number == number).then(|| adopted.info.digest());
        }
        // An outcome on a batch other than the decided one belongs to another history.
        let tally = self.term.slots.get(&number)?.tally(self.decided_token());
        let executors = self.set.validators.len();
        if tally.alike + executors.saturating_sub(tally.all) < self.set.matching() {
            self.complain();
            return None;
        }
        let enough = if lacks(Fault::OneToken) { 1 } else { self.set.matching() };
        let token = tally.best.filter(|_| tally.alike >= enough)?;
        let (differ, all) = (tally.alike < tally.all, tally.all == executors);
        self.is_protected(number, differ, all).then_some(token)
    }

    /// Eve's extra protection: after enough decisions without a divergence, waits for all executors' tokens, and
    /// complains if one differs.
    fn is_protected(&mut self, number: BatchNumber, differ: bool, all: bool) -> bool {
        let after = self.settings.protect_after;
        if after == 0 || self.seen.clean < after {
            return true;
        }
        if differ {
            self.seen.clean = 0;
            self.complain();
            return false;
        }
        match self.term.protection.filter(|it| it.number == number) {
            _ if all => true,
            Some(Protection { is_over, .. }) => is_over,
            None => {
                self.term.protection = Some(Protection { number, is_over: false });
                self.timers.set(Timer::Protect, self.settings.protect_wait_ms);
                false
            }
        }
    }

    fn try_commit(&mut self, number: BatchNumber) {
        let Some(slot) = self.term.slots.get(&number) else { return };
        if slot.commits.contains_key(&self.seat) {
            return;
        }
        let Some((token, signatures)) = quorum(&slot.prepares, self.quorum(Fault::FewPrepares)) else {
            return;
        };
        let Some(info) = self.info(number, &token) else { return };
        self.memory.prepared = Some(Prepared { view: self.view.number, info, signatures });
        self.memory.voted = self.memory.voted.max(number);
        let ballot = Ballot { view: self.view.number, number, token };
        let vote = Vote { ballot, signature: ballot.sign_commit(&self.key) };
        self.term.slots.entry(number).or_default().commits.insert(self.seat, vote);
        self.say(Message::Commit(vote));
    }

    fn certificate(&self, number: BatchNumber) -> Option<Certificate> {
        let (token, signatures) =
            quorum(&self.term.slots.get(&number)?.commits, self.quorum(Fault::FewCommits))?;
        Some(Certificate { info: self.info(number, &token)?, view: self.view.number, signatures })
    }

    /// Returns the ledger info that a token names.
    fn info(&self, number: BatchNumber, token: &Digest) -> Option<LedgerInfo> {
        let said = self.term.slots.get(&number).and_then(|slot| slot.infos.get(token));
        let mut prepared =
            [&self.term.adopted, &self.memory.prepared].into_iter().flatten().map(|it| &it.info);
        said.or_else(|| prepared.find(|info| info.digest() == *token)).cloned()
    }

    /// Takes the decision of the next batch.
    pub(crate) fn decide(&mut self, certificate: Certificate) {
        let number = certificate.info.number;
        if certificate.view == self.view.number {
            self.term.decided += 1;
        }
        self.decisions.recent.insert(number, certificate.clone());
        while self.decisions.recent.len() > RECENT_MAX {
            self.decisions.recent.pop_first();
        }
        self.decisions.pending.insert(number, certificate.clone());
        let was_adopted = self.term.adopted.as_ref().is_some_and(|adopted| adopted.info.number == number);
        if was_adopted || certificate.view != self.view.number || self.is_changing() {
            // No order of this batch will come.
            self.decisions.overdue = Some(number);
        }
        self.decisions.proof = Some(certificate);
        self.progress(number);
        self.rotate();
    }

    /// Moves the last decision to `decided`, and drops the state that this settles.
    pub(crate) fn progress(&mut self, decided: BatchNumber) {
        self.decisions.last = decided;
        self.term.slots.retain(|number, _| *number > decided);
        let settled = self.memory.may_have_prepared.settle(decided);
        self.memory.voted = self.memory.voted.max(settled.unwrap_or_default());
        self.term.adopted.take_if(|adopted| adopted.info.number <= decided);
        self.memory.amnesia.take_if(|lost| decided >= lost.number && self.view.number > lost.view);
        self.view.attempts = 0;
        self.term.refused.take_if(|refused| *refused <= decided);
        self.timers.cancel(Timer::Patience);
        if self.term.protection.take().is_some() {
            self.timers.cancel(Timer::Protect);
        }
        self.end_complaint();
    }

    /// Hands out decided and executed batches, in order. Fetches the outcome of a batch that was executed differently,
    /// or late.
    pub(crate) fn settle(&mut self) {
        while let Some((&number, certificate)) = self.decisions.pending.first_key_value() {
            let outcome = self.execution.outcomes.get(&number).map(|(_, info)| info.digest());
            match outcome {
                Some(token) if token == certificate.info.digest() || lacks(Fault::CommitAnything) => {
                    let certificate = Box::new(certificate.clone());
                    self.decisions.pending.remove(&number);
                    self.decisions.fetching = None;
                    self.seen.clean += 1;
                    self.output(Output::Commit(certificate));
                }
                Some(_) => {
                    // If the primary sent two orders, this validator may have executed the other one. That is no wrong
                    // execution.
                    let is_primary = |author: Seat, view: View| self.set.primary(view) == author;
                    let is_its_lie = |(author, view, lie): &(Seat, View, BatchNumber)| {
                        *lie == number && is_primary(*author, *view)
                    };
                    if !self.seen.convicted.iter().any(is_its_lie) {
                        self.seen.divergences += 1;
                    }
                    self.seen.clean = 0;
                    self.decisions.overdue = Some(number);
                    self.execution.orders.remove(&number);
                    self.rollback(number.before(1));
                }
                // The batch is being executed here, or will be.
                None if self.execution.orders.contains_key(&number) => return,
                None => {
                    // If a later batch is decided too, this validator is late: it catches up faster without executing.
                    let is_late = self.decisions.overdue == Some(number) || self.decisions.pending.len() > 1;
                    if is_late && number == self.top().next() && self.decisions.fetching != Some(number) {
                        let certificate = Box::new(certificate.clone());
                        // Otherwise work in progress could bring another outcome of that number.
                        self.rollback(self.top());
                        self.decisions.fetching = Some(number);
                        self.effects.push_back(Effect::Fetch { certificate });
                    }
                    return;
                }
            }
        }
    }
}
