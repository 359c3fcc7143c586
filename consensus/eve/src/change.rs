//! How a view ends and the next begins.

use slipstream_types::BatchNumber;

use crate::{
    core::Core,
    effect::{Receivers, Timer},
    limits::RECENT_MAX,
    message::{Message, NewView, Prepared, Seat, View, ViewChange},
    planted::{Fault, lacks},
    state::{Phase, Term},
};

/// Maximum number of doublings of patience. It keeps the number of milliseconds in range. It is far beyond any real
/// delay: however slow machines and links are, some view outlasts them.
const DOUBLINGS_MAX: u32 = 32;
/// The longest patience, in milliseconds: a century, which a clock can still add to the present time.
const PATIENCE_MS_MAX: u64 = 100 * 365 * 24 * 3_600_000;
/// Stalls that by themselves end a primary's term. A stall is two ticks of [`Timer::Tell`] without a decision, though a
/// batch is due. A primary that takes almost the whole patience, 2 s, loses its view to stalls within 10 s. A primary
/// that takes half a second for a full batch has no stall.
const WAITS_MAX: u64 = 8;

impl Core {
    /// Asks for another primary.
    pub(crate) fn complain(&mut self) {
        if self.view.complains || self.is_silent() || self.is_over() {
            return;
        }
        self.view.complains = true;
        self.tell(Receivers::Others);
        self.hear_complaints();
    }

    /// Ends this validator's complaint after a decision, or once its cause is over. A complaint that stayed would let
    /// one more complaint end the view much later. The complaint continues while `max(u, r) + 1` others are neglected,
    /// one of which is honest.
    pub(crate) fn end_complaint(&mut self) {
        let neglected = self
            .others
            .heard
            .values()
            .filter(|status| status.view == self.view.number && status.neglected)
            .count();
        let goes_on = self.is_neglected() || neglected >= self.set.matching();
        if self.view.complains && !goes_on {
            self.view.complains = false;
            self.tell(Receivers::Others);
        }
    }

    /// Asks for the next primary once the present one has had its share of decisions.
    pub(crate) fn rotate(&mut self) {
        let rotate = self.settings.rotate_after;
        if rotate > 0 && self.term.decided >= rotate && !self.is_over() {
            self.complain();
        }
    }

    /// Counts a stall: nothing was decided for two ticks of [`Timer::Tell`], though a batch is due. A stall shortens
    /// the primary's term, so a primary just faster than patience keeps its view for fewer batches. Until the first
    /// decision after a view change, patience alone counts. Patience doubles until it outlasts the time that a batch
    /// takes here. A term that ends earlier would defeat that.
    pub(crate) fn wait(&mut self) {
        if self.view.attempts > 0 {
            return;
        }
        let share = self.settings.rotate_after.div_ceil(WAITS_MAX);
        self.term.decided = self.term.decided.saturating_add(share);
        self.rotate();
    }

    /// Joins a complaint that an honest validator made, and leaves a view that a quorum wants to end.
    pub(crate) fn hear_complaints(&mut self) {
        let complains = |status: &&crate::Status| {
            status.view > self.view.number || status.view == self.view.number && status.complains
        };
        let others = self.others.heard.values().filter(complains).count();
        if !self.view.complains && others >= self.set.matching() {
            return self.complain();
        }
        if self.view.complains && others + 1 >= self.set.quorum() {
            self.leave(self.view.number + 1);
        }
    }

    /// Leaves all views below `view`. Nothing is signed in them any more.
    fn leave(&mut self, view: View) {
        self.view.number = view;
        self.view.phase = Phase::Changing;
        self.view.complains = false;
        self.view.attempts = self.view.attempts.saturating_add(1);
        self.drop_view();
        // The next view may adopt the next batch's outcome. Everything above that batch is dropped.
        self.rollback(self.decisions.last.next());
        self.reset_patience();
        self.say_change();
    }

    /// Drops the state of a view: votes and statements count only in their own view.
    fn drop_view(&mut self) {
        self.term = Term::default();
        let decided = self.decisions.last;
        self.execution.orders.retain(|number, _| *number <= decided);
    }

    fn reset_patience(&mut self) {
        self.timers.cancel(Timer::Patience);
    }

    /// Sends what this validator knows of the views that it left.
    pub(crate) fn say_change(&mut self) {
        if self.is_silent() {
            return;
        }
        let change = self.own_change();
        self.say(Message::ViewChange(Box::new(change.clone())));
        self.others.changes.insert(self.seat, change);
        self.try_new_view();
    }

    pub(crate) fn own_change(&self) -> ViewChange {
        let decided = self.decisions.proof.clone();
        let proven = decided.as_ref().map_or(BatchNumber::GENESIS, |proof| proof.info.number);
        let prepared = self.memory.prepared.clone().filter(|prepared| prepared.info.number > proven);
        ViewChange::new(self.view.number, self.seat, decided, prepared, &self.domain, &self.key)
    }

    pub(crate) fn take_change(&mut self, from: Seat, change: ViewChange) {
        let is_late =
            change.view < self.view.number || change.view == self.view.number && !self.is_changing();
        let is_old = self.others.changes.get(&from).is_some_and(|known| known.view >= change.view);
        if change.seat != from || is_late || is_old {
            return;
        }
        if !change.is_valid(&self.set, &self.domain) {
            return self.mute(from);
        }
        if let Some(status) = self.others.heard.get_mut(&from)
            && status.view < change.view
        {
            (status.view, status.changing, status.complains) = (change.view, true, false);
        }
        if let Some(certificate) = change.decided.clone() {
            self.learn(certificate);
        }
        if let Some(prepared) = &change.prepared {
            self.recall_prepared(prepared);
        }
        self.others.changes.insert(from, change);
        self.follow_changes();
        self.try_new_view();
    }

    /// Follows an honest validator to a later view. A quorum's complaints led that validator there.
    fn follow_changes(&mut self) {
        let others = self.others.changes.iter().filter(|(seat, _)| **seat != self.seat);
        let mut views: Vec<_> = others.map(|(_, change)| change.view).collect();
        views.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(&view) = views.get(self.set.matching() - 1)
            && view > self.view.number
            && !self.is_silent()
            && !self.is_over()
        {
            self.leave(view);
        }
    }

    /// Begins the view that this validator leads, once a quorum has sent view changes.
    fn try_new_view(&mut self) {
        if !self.is_changing() || !self.is_primary() || self.is_silent() {
            return;
        }
        let here = self.others.changes.values().filter(|change| change.view == self.view.number);
        let changes: Vec<_> = here.take(self.set.quorum()).cloned().collect();
        if changes.len() >= self.set.quorum() {
            let new = NewView::new(self.view.number, changes, &self.domain, &self.key);
            self.say(Message::NewView(Box::new(new.clone())));
            self.begin(new);
        }
    }

    pub(crate) fn take_new_view(&mut self, from: Seat, new: NewView) {
        let is_new = new.view > self.view.number || new.view == self.view.number && self.is_changing();
        if !is_new || self.set.primary(new.view) == self.seat {
            return;
        }
        match new.is_valid(&self.set, &self.domain) {
            true => self.begin(new),
            false => self.mute(from),
        }
    }

    fn begin(&mut self, new: NewView) {
        if new.view > self.view.number {
            self.view.attempts = self.view.attempts.saturating_add(1);
        }
        (self.view.number, self.view.phase, self.view.complains) = (new.view, Phase::BEGUN, false);
        self.drop_view();
        self.reset_patience();
        if let Some(certificate) = new.decided().cloned() {
            self.learn(certificate);
        }
        if let Some(prepared) = new.prepared() {
            self.recall_prepared(prepared);
        }
        let adopted =
            new.prepared().filter(|it| it.info.number > self.decisions.last && !lacks(Fault::IgnorePrepared));
        let adopted = adopted.cloned();
        let kept = adopted
            .as_ref()
            .filter(|it| self.has_adopted(it))
            .map_or(self.decisions.last, |it| it.info.number);
        self.rollback(kept);
        let settled = adopted.as_ref().map_or(self.decisions.last, |it| it.info.number);
        self.execution.careful_to = settled.next();
        self.term.adopted = adopted;
        self.others.changes.retain(|_, change| change.view > new.view);
        self.others.new_view = Some(new);
        self.tell(Receivers::Others);
    }

    fn has_adopted(&self, adopted: &Prepared) -> bool {
        let number = adopted.info.number;
        number == self.decisions.last.next()
            && self.execution.outcomes.get(&number).is_some_and(|(_, info)| *info == adopted.info)
    }

    /// Takes a verified certificate that came inside another message.
    fn learn(&mut self, certificate: slipstream_types::Certificate) {
        let number = certificate.info.number;
        self.handle_certificate(&certificate);
        if number == self.decisions.last.next()
            && !self.is_over()
            && self.decisions.pending.len() < RECENT_MAX
        {
            self.decide(certificate);
        }
    }

    /// Whether the primary is expected to act.
    pub(crate) fn expects(&self) -> bool {
        let is_open = |number: &BatchNumber| *number > self.decisions.last;
        self.is_changing()
            || self.wanted
            || self.view.complains
            || self.term.adopted.is_some()
            || self.term.slots.keys().any(is_open)
            || self.execution.orders.keys().any(is_open)
    }

    /// How long a primary may take for one batch at present, in milliseconds.
    pub fn patience_ms(&self) -> u64 {
        let factor = 1 << self.view.attempts.min(DOUBLINGS_MAX);
        self.settings.view_timeout_ms.saturating_mul(factor).min(PATIENCE_MS_MAX)
    }

    /// Sets the patience timer while the primary is expected to act, and cancels it otherwise.
    pub(crate) fn watch(&mut self) {
        let expects = self.expects() && !self.is_over() && !self.is_silent();
        if expects && !self.timers.is_set(Timer::Patience) {
            self.timers.set(Timer::Patience, self.patience_ms());
        } else if !expects {
            self.reset_patience();
        }
    }
}
