//! Finds out whether a validator may have signed statements that it does not know of. While it may have, it is silent.

use slipstream_types::{BatchNumber, Certificate, Epoch};

use crate::{
    core::Core,
    effect::Receivers,
    message::{Ballot, Prepared, Signatures, Silence, Status, View},
    record::Amnesia,
};

impl Core {
    /// Why this validator signs nothing now, or `None` if it signs.
    pub fn silence(&self) -> Option<Silence> {
        if let Some(epoch) = self.memory.ahead {
            return Some(Silence::LostLedger { epoch });
        }
        let lost = self.memory.amnesia.filter(|lost| self.decisions.last < lost.number);
        let lost = lost.map(|lost| Silence::LostVotes { until: lost.number });
        lost.or(self.memory.observing.then_some(Silence::Listening))
    }

    /// Whether this validator may have signed something that it does not know of.
    pub(crate) fn is_silent(&self) -> bool {
        self.silence().is_some()
    }

    /// Ends the listening of a validator without a record, once a quorum has sent statuses.
    ///
    /// The validator is new if the epoch has no decision yet. Otherwise it may have taken part and lost its data. It
    /// then signs only for batches beyond those that may have been voted on, and orders only in views in which it
    /// cannot have ordered. A claim counts only up to what `max(u, r) + 1` others claim, so no liar can silence the
    /// validator. Losing data before the epoch's first decision counts as a lie.
    pub(crate) fn wake(&mut self) {
        if self.others.heard.len() + 1 < self.set.quorum() {
            return;
        }
        self.memory.observing = false;
        let decided = self.heard_by_enough(|status| status.decided).max(self.decisions.last);
        let view = self.heard_by_enough(|status| status.view);
        let begins = self.head.number == BatchNumber::GENESIS
            || self.set.epoch > Epoch(0) && self.head.epoch < self.set.epoch;
        if !begins || decided > self.head.number {
            self.forget(decided, view);
        }
    }

    /// The highest value that `max(u, r) + 1` others reached, one of which is honest.
    fn heard_by_enough<T: Ord + Copy + Default>(&self, measure: impl Fn(&Status) -> T) -> T {
        let mut measures: Vec<_> = self.others.heard.values().map(measure).collect();
        measures.sort_unstable_by(|a, b| b.cmp(a));
        let enough = self.set.matching().min(measures.len());
        enough.checked_sub(1).map_or(T::default(), |last| measures[last])
    }

    /// Takes a verified certificate, such as one from sync. A certificate with this validator's own signature shows
    /// whether the record lacks that vote.
    pub fn handle_certificate(&mut self, certificate: &Certificate) {
        if certificate.info.epoch == self.set.epoch {
            let signatures = &certificate.signatures;
            self.recall_vote(certificate.info.number, certificate.view, signatures);
        }
    }

    /// Checks a prepared outcome for a vote that the record lacks, as [`Core::handle_certificate`] checks a
    /// certificate.
    pub(crate) fn recall_prepared(&mut self, prepared: &Prepared) {
        let (view, number) = (prepared.view, prepared.info.number);
        // This validator may have prepared an outcome that it keeps, without a record of the vote. Votes on a decided
        // batch no longer count.
        if number > self.decisions.last
            && !self.memory.may_have_prepared.contains(&Ballot {
                view,
                number,
                token: prepared.info.digest(),
            })
        {
            self.recall_vote(number, view, &prepared.signatures);
        }
    }

    /// Checks for a lost vote. This validator writes its votes to its disk before it sends them. So its data is an old
    /// copy if it does not know a vote of its own.
    fn recall_vote(&mut self, number: BatchNumber, view: View, signatures: &Signatures) {
        let has_signed = signatures.iter().any(|(seat, _)| *seat == self.seat);
        if self.settings.recalls_votes && has_signed && number > self.memory.voted {
            self.memory.voted = number;
            self.forget(number, view);
        }
    }

    /// Goes silent, because this validator may have signed for the given number and view. It may also have signed for
    /// those that the others have reached meanwhile.
    fn forget(&mut self, number: BatchNumber, view: View) {
        let decided = self.heard_by_enough(|status| status.decided).max(number);
        let view = self.heard_by_enough(|status| status.view).max(view);
        // The others' statuses may lack their last decision, and the view that followed it.
        let lost = Amnesia { number: decided.after(2), view: view.saturating_add(1) };
        let known = self.memory.amnesia.unwrap_or(lost);
        let (number, view) = (lost.number.max(known.number), lost.view.max(known.view));
        self.memory.amnesia = Some(Amnesia { number, view });
        self.tell(Receivers::Others);
    }
}
