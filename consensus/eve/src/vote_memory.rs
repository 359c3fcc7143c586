//! [`VoteMemory`]: the statements that a validator signed or may have signed, as far as it knows them.

use std::collections::{BTreeMap, BTreeSet};

use slipstream_types::{BatchNumber, Digest, Epoch};

use crate::{
    message::{Ballot, Prepared, View},
    record::{Amnesia, Record},
    setup::KeptOutcome,
};

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct VoteMemory {
    /// The last prepare that this validator signed.
    pub(crate) prepare: Option<OwnPrepare>,
    pub(crate) may_have_prepared: MayHavePrepared,
    /// The last batch that a quorum prepared, kept until a quorum prepares the next. A view change shows it until its
    /// number is decided.
    pub(crate) prepared: Option<Prepared>,
    /// The highest number that this validator knows that it signed for, in any epoch.
    pub(crate) voted: BatchNumber,
    /// Whether the validator has no record, and so does not know what it signed.
    pub(crate) observing: bool,
    /// The epoch of the record, if that is later than the ledger's: the votes of this epoch are lost.
    pub(crate) ahead: Option<Epoch>,
    /// The votes that this validator may have signed before it lost its data.
    pub(crate) amnesia: Option<Amnesia>,
    /// Whether this validator was silent at the last [`Core::advance`](crate::Core::advance).
    pub(crate) was_silent: bool,
    /// The last record that was handed out.
    pub(crate) recorded: Option<Record>,
}

/// A prepare that this validator signed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OwnPrepare {
    pub(crate) ballot: Ballot,
    /// Whether the driver keeps the outcome. A restart then learns from that outcome what was signed.
    pub(crate) is_kept: bool,
}

/// The outcomes that were kept before a start, by view and number. This validator may have prepared them, though its
/// record does not say so. See [`Record::prepare`].
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct MayHavePrepared(BTreeMap<(View, BatchNumber), BTreeSet<Digest>>);

impl MayHavePrepared {
    /// Collects the outcomes of one epoch: the same view number in another epoch is another view.
    pub(crate) fn of(kept: &[KeptOutcome], epoch: Epoch) -> MayHavePrepared {
        let mut all = MayHavePrepared::default();
        for KeptOutcome { order, token } in kept.iter().filter(|kept| kept.order.order.epoch == epoch) {
            all.0.entry((order.order.view, order.order.number)).or_default().insert(*token);
        }
        all
    }

    /// Whether this validator may have signed this prepare before it started.
    pub(crate) fn contains(&self, ballot: &Ballot) -> bool {
        self.tokens(ballot).is_some_and(|tokens| tokens.contains(&ballot.token))
    }

    /// Whether this validator may have signed another prepare of the same view and number.
    pub(crate) fn contradicts(&self, ballot: &Ballot) -> bool {
        self.tokens(ballot).is_some_and(|tokens| tokens.iter().any(|token| *token != ballot.token))
    }

    fn tokens(&self, ballot: &Ballot) -> Option<&BTreeSet<Digest>> {
        self.0.get(&(ballot.view, ballot.number))
    }

    /// Forgets decided outcomes. Returns the highest number forgotten, up to which this validator may have signed.
    pub(crate) fn settle(&mut self, decided: BatchNumber) -> Option<BatchNumber> {
        let settled = self.0.keys().map(|(_, number)| *number).filter(|number| *number <= decided).max();
        self.0.retain(|(_, number), _| *number > decided);
        settled
    }
}
