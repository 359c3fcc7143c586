//! [`Record`]: the state that a validator must recover after a crash.

use serde::{Deserialize, Serialize};
use slipstream_types::{BatchNumber, Certificate, Epoch, LedgerInfo, bounded::BoundedVec};

use crate::{
    limits::RECENT_MAX,
    message::{Ballot, Prepared, View},
};

/// A validator's durable state, written before the validator sends anything that depends on it. The driver stores
/// announced outcomes separately.
///
/// One `prepare` suffices. An earlier prepare is of a lower view, in which this validator signs no more, or of a lower
/// number, which is decided. A commit needs no field: it follows from `prepared`, because a view prepares at most one
/// outcome of each number. The beginning of a view is recorded together with the outcome that the view adopts, before
/// the view's first prepare.
///
/// A record is written when it forbids more than the last written one. In a view without faults that is once for each
/// batch, before the commit. The prepare then needs no record, because the driver keeps the prepared outcome. After a
/// restart the validator prepares no other outcome of that view and number. A decision alone forces no record either:
/// until the next record, `prepared` stands for it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The epoch of all other fields except `voted`.
    pub epoch: Epoch,
    /// The view that the validator is in.
    pub view: View,
    /// Whether the validator has left the views below and waits for this one to begin.
    pub changing: bool,
    /// The last prepare that was signed, unless the driver keeps its outcome.
    pub prepare: Option<Ballot>,
    /// The last batch that a quorum prepared.
    pub prepared: Option<Prepared>,
    /// The outcome that the view must decide first. It is recorded with the beginning of the view, before any prepare of the
    /// view.
    pub adopted: Option<Prepared>,
    /// The votes that the validator may have signed before it lost its data.
    pub amnesia: Option<Amnesia>,
    /// The last decision and the uncommitted decisions before it. After a power cut at all validators, this may be
    /// their only copy.
    pub decided: BoundedVec<Certificate, RECENT_MAX>,
    /// The highest number that the validator has signed for, in this epoch or an earlier one.
    pub voted: BatchNumber,
}

/// Votes that a validator may have signed before it lost its data: up to a number and a view. It votes only above that
/// number, and orders only in views above that view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Amnesia {
    /// The last number.
    pub number: BatchNumber,
    /// The last view.
    pub view: View,
}

impl Record {
    /// The highest batch that this validator may have signed for, or knows to be decided. A ledger that ends below that
    /// batch has lost data.
    pub fn voted_up_to(&self) -> BatchNumber {
        let numbers = [
            self.prepare.as_ref().map(|ballot| ballot.number),
            self.prepared.as_ref().map(|prepared| prepared.info.number),
            self.adopted.as_ref().map(|adopted| adopted.info.number),
            self.amnesia.map(|lost| lost.number),
            self.decided.iter().map(|certificate| certificate.info.number).max(),
        ];
        numbers.into_iter().flatten().fold(self.voted, BatchNumber::max)
    }

    /// Whether this record must be durable before the validator sends what depends on it, given that `last` is durable.
    pub(crate) fn binds_beyond(&self, last: &Record) -> bool {
        let place = |record: &Record| (record.epoch, record.view, record.changing);
        let is_new = |own: Option<&Prepared>, last: &Option<Prepared>| own.is_some() && own != last.as_ref();
        let is_adopted = |ballot: &Ballot| {
            self.adopted
                .as_ref()
                .is_some_and(|it| (it.info.number, it.info.digest()) == (ballot.number, ballot.token))
        };
        place(self) != place(last)
            || self.prepare.is_some_and(|it| Some(it) != last.prepare && !is_adopted(&it))
            || is_new(self.prepared.as_ref(), &last.prepared)
            || is_new(self.adopted.as_ref(), &last.adopted)
            || self.amnesia.is_some() && self.amnesia != last.amnesia
    }

    /// The record as it binds a validator whose ledger ends at `head`. If batches between the head and the record's
    /// votes are missing, the ledger has lost data. The record may then name outcomes that are not those of the head.
    pub(crate) fn beside(mut self, head: &LedgerInfo) -> Record {
        let mut known = head.number;
        while self.decided.iter().any(|certificate| certificate.info.number == known.next()) {
            known = known.next();
        }
        let last = self.decided.iter().map(|certificate| certificate.info.number).max();
        // A validator prepares only the next batch to be decided, and sees only that batch prepared.
        let signed = [self.prepare.map(|ballot| ballot.number), Some(self.voted)];
        let is_behind = last.is_some_and(|last| last > known)
            || signed.into_iter().flatten().any(|number| number > known.next());
        if is_behind {
            let Amnesia { number, view } = self.amnesia.unwrap_or_default();
            self.amnesia =
                Some(Amnesia { number: self.voted_up_to().max(number), view: self.view.max(view) });
        }
        self
    }
}
