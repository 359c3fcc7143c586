//! Hashes the part of a [`Core`] that determines its next steps, for model checkers that search its states.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
};

use slipstream_types::{BatchNumber, Certificate, LedgerInfo};

use crate::{
    core::Core,
    effect::Timer,
    message::{Prepared, Seat, Status, View, ViewChange, Vote},
};

impl Core {
    /// Hashes the state that decides this validator's next steps. Call it between two steps of the driver. Two
    /// validators with equal hashes sign, commit and fetch alike, apart from who signed a quorum.
    ///
    /// The hash leaves out state that has no effect:
    ///
    /// * key, set, domain and settings, which do not change;
    /// * the signers of a quorum: any quorum on one statement has the same effect;
    /// * the votes that led to this validator's prepare or commit, once it has sent that vote: it sends each once.
    ///   Executors may make it forget another token's ledger info, which only keeps it from committing;
    /// * the messages that began a view, once it has begun. Also the view changes of validators that left for the view,
    ///   unless this validator is the one to begin it. A second view change could add only a decision, which also
    ///   arrives by itself;
    /// * links, certificates and doubts of committed batches;
    /// * `attempts`, which sets how long a timer runs, and `careful_to`, which sets how a batch is executed;
    /// * `tick`, except its muted seats. It limits repetition between two ticks of [`Timer::Tell`]. Model checkers let
    ///   that timer tick twice at a time, and let nobody send more than a core takes between the ticks;
    /// * `generation`, which marks the results of rolled-back work: in a model checker, work ends at once;
    /// * `divergences` and `convicted`, which are for the operator;
    /// * `clean` and the term's count of decisions. They serve protection and rotation, which must be off
    ///   (`protect_after` and `rotate_after` 0).
    pub fn hash_conduct(&self, hasher: &mut impl Hasher) {
        let head = self.head.number;
        (
            self.seat,
            &self.head,
            self.view.number,
            self.is_changing(),
            self.view.complains,
            self.decisions.last,
        )
            .hash(hasher);
        self.decisions.proof.as_ref().map(certified).hash(hasher);
        for certificate in
            self.decisions.recent.range(head.next()..).chain(&self.decisions.pending).map(|(_, it)| it)
        {
            certified(certificate).hash(hasher);
        }
        let overdue = self.decisions.overdue.filter(|it| *it > head);
        (self.decisions.pending.len(), self.decisions.fetching, overdue, self.memory.prepare).hash(hasher);
        // A decided batch is no longer shown.
        self.memory
            .prepared
            .as_ref()
            .filter(|it| it.info.number > self.decisions.last)
            .map(shown)
            .hash(hasher);
        self.memory.may_have_prepared.hash(hasher);
        self.term.adopted.as_ref().map(shown).hash(hasher);
        self.hash_slots(hasher);
        (&self.execution.orders, &self.execution.outcomes).hash(hasher);
        self.term.links.range(head..).for_each(|it| it.hash(hasher));
        self.execution.working.map(|it| (it.view, it.number)).hash(hasher);
        (self.term.refused, self.term.spent, self.memory.observing, self.memory.amnesia).hash(hasher);
        (self.memory.ahead, self.memory.voted, self.is_neglected()).hash(hasher);
        (self.wanted, self.timers.is_set(Timer::Patience), self.term.protection, &self.tick.muted)
            .hash(hasher);
        for (seat, status) in &self.others.heard {
            self.heeded(status).map(|it| (seat, it)).hash(hasher);
        }
        let begins = self.is_changing() && self.is_primary();
        for change in self.others.changes.values().filter(|it| begins || it.view > self.view.number) {
            left(change).hash(hasher);
        }
    }

    fn hash_slots(&self, hasher: &mut impl Hasher) {
        self.term.slots.len().hash(hasher);
        for (number, slot) in &self.term.slots {
            number.hash(hasher);
            let own = |votes: &BTreeMap<Seat, Vote>| votes.contains_key(&self.seat);
            let (has_prepared, has_committed) = (own(&slot.prepares), own(&slot.commits));
            (has_prepared, has_committed).hash(hasher);
            if !has_prepared {
                slot.verifies.hash(hasher);
            }
            if !has_prepared || !has_committed {
                slot.infos.len().hash(hasher);
                slot.infos.keys().for_each(|token| token.hash(hasher));
            }
            if !has_committed {
                slot.prepares.len().hash(hasher);
                slot.prepares.iter().for_each(|(seat, vote)| (seat, vote.ballot).hash(hasher));
            }
            slot.commits.len().hash(hasher);
            slot.commits.iter().for_each(|(seat, vote)| (seat, vote.ballot).hash(hasher));
        }
    }

    /// The part of a status that still counts once this validator takes part: a complaint about this view, or a later
    /// view.
    fn heeded(&self, status: &Status) -> Option<(View, bool, BatchNumber)> {
        let decided = if self.memory.observing { status.decided } else { BatchNumber::GENESIS };
        let counts = self.memory.observing
            || status.view > self.view.number
            || status.view == self.view.number && status.complains;
        counts.then_some((status.view, status.complains, decided))
    }
}

fn certified(certificate: &Certificate) -> (View, &LedgerInfo) {
    (certificate.view, &certificate.info)
}

fn shown(prepared: &Prepared) -> (View, &LedgerInfo) {
    (prepared.view, &prepared.info)
}

type OutcomeRef<'a> = Option<(View, &'a LedgerInfo)>;

fn left(change: &ViewChange) -> (View, Seat, OutcomeRef<'_>, OutcomeRef<'_>) {
    (change.view, change.seat, change.decided.as_ref().map(certified), change.prepared.as_ref().map(shown))
}
