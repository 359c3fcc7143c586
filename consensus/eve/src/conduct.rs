//! Hashes the part of a [`Core`] that determines its next steps, for model checkers that search its states.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
};

use slipstream_types::{BatchNumber, Certificate, LedgerInfo};

use crate::{
    core::Core,
    message::{Prepared, Status, ViewChange, Vote},
};

impl Core {
    /// Hashes what decides this validator's next steps, between two steps of its driver. Two validators with equal
    /// hashes sign, commit and fetch alike, apart from who signed a quorum.
    ///
    /// The hash leaves out what has no effect:
    ///
    /// * key, set, domain and settings, which do not change;
    /// * the signers of a quorum: any quorum on one statement has the same effect;
    /// * the votes that led to its prepare once it prepared, and to its commit once it committed: it does each once.
    ///   Executors may make it forget what another token stood for, which only keeps it from committing;
    /// * how a view began, once it has. Also the view changes of those that left for it, unless this validator is to
    ///   begin it. A second view change could only teach a decision, which arrives by itself;
    /// * links, certificates and doubts of committed batches;
    /// * `attempts`, which sets how long a timer runs, and `careful_to`, which sets how a batch is executed;
    /// * `told`, `awaited`, `answered`, `greeted` and `costs`, which limit repetition between two ticks of
    ///   [`Timer::Tell`](crate::Timer::Tell). Model checkers let that timer tick twice at a time, and let nobody send
    ///   more than a core takes between the ticks;
    /// * `generation`, which tells results of rolled-back work apart: model checkers end work at once;
    /// * `divergences` and `convicted`, which are for the operator;
    /// * `clean` and `decided_in_view`, for protection and rotation, which must be off (`protect_after` and
    ///   `rotate_after` 0).
    pub fn hash_conduct(&self, hasher: &mut impl Hasher) {
        let head = self.head.number;
        (self.seat, &self.head, self.view, self.changing, self.complains, self.decided).hash(hasher);
        self.proof.as_ref().map(certified).hash(hasher);
        for certificate in self.recent.range(head.next()..).chain(&self.pending).map(|(_, it)| it) {
            certified(certificate).hash(hasher);
        }
        let overdue = self.overdue.filter(|it| *it > head);
        (self.pending.len(), self.fetching, overdue, self.prepare).hash(hasher);
        // A decided batch is no longer shown.
        self.prepared.as_ref().filter(|it| it.info.number > self.decided).map(shown).hash(hasher);
        (self.prepared_own, &self.may_have_prepared).hash(hasher);
        self.adopted.as_ref().map(shown).hash(hasher);
        self.hash_slots(hasher);
        (&self.orders, &self.outcomes).hash(hasher);
        self.links.range(head..).for_each(|it| it.hash(hasher));
        self.working.map(|it| (it.view, it.number)).hash(hasher);
        (self.refused, self.spent, self.observing, self.amnesia).hash(hasher);
        (self.ahead, self.voted, self.neglected).hash(hasher);
        (self.wanted, self.patient, self.protecting, &self.muted).hash(hasher);
        for (seat, status) in &self.heard {
            self.heeded(status).map(|it| (seat, it)).hash(hasher);
        }
        let begins = self.changing && self.is_primary();
        for change in self.changes.values().filter(|it| begins || it.view > self.view) {
            left(change).hash(hasher);
        }
    }

    fn hash_slots(&self, hasher: &mut impl Hasher) {
        self.slots.len().hash(hasher);
        for (number, slot) in &self.slots {
            number.hash(hasher);
            let own = |votes: &BTreeMap<u16, Vote>| votes.contains_key(&self.seat);
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
    fn heeded(&self, status: &Status) -> Option<(u64, bool, BatchNumber)> {
        let decided = if self.observing { status.decided } else { BatchNumber::GENESIS };
        let counts =
            self.observing || status.view > self.view || status.view == self.view && status.complains;
        counts.then_some((status.view, status.complains, decided))
    }
}

fn certified(certificate: &Certificate) -> (u64, &LedgerInfo) {
    (certificate.view, &certificate.info)
}

fn shown(prepared: &Prepared) -> (u64, &LedgerInfo) {
    (prepared.view, &prepared.info)
}

type Shown<'a> = Option<(u64, &'a LedgerInfo)>;

fn left(change: &ViewChange) -> (u64, u16, Shown<'_>, Shown<'_>) {
    (change.view, change.seat, change.decided.as_ref().map(certified), change.prepared.as_ref().map(shown))
}
