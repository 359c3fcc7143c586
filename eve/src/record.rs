//! [`Record`]: the state that a validator must find again after a crash.

use serde::{Deserialize, Serialize};
use slipstream_types::{BatchNumber, Certificate, Epoch, bounded::BoundedVec};

use super::{
    core::{Core, RECENT_MAX},
    message::{Ballot, Prepared},
    planted::{Fault, lacks},
};

/// Durable before the validator says anything that follows from it. The driver keeps told outcomes beside it.
///
/// One `prepare` suffices. An earlier one is of a lower view, in which this validator signs no more, or of a lower number, which is
/// decided. A commit follows from `prepared`, of which a view has one for each number, so it needs no field. The beginning of a view is
/// recorded together with what it adopts, and so before the view's first prepare.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Of what epoch all of it is.
    pub epoch: Epoch,
    /// The view that the validator is in.
    pub view: u64,
    /// The views below are left, and this one has not begun.
    pub changing: bool,
    /// The last prepare that was signed.
    pub prepare: Option<Ballot>,
    /// The last batch that a quorum prepared, until it is decided.
    pub prepared: Option<Prepared>,
    /// The outcome that the view must decide first. It is recorded with the beginning of the view, before any prepare of the
    /// view.
    pub adopted: Option<Prepared>,
    /// The last number and view that it may have signed for, before it lost its data. It votes only above, and orders only in
    /// views above.
    pub amnesia: Option<(BatchNumber, u64)>,
    /// The last decision and the uncommitted ones before it: after a power cut everywhere, nobody else may have them.
    pub decided: BoundedVec<Certificate, RECENT_MAX>,
}

impl Core {
    /// The record as of now.
    pub(crate) fn record(&self) -> Record {
        let uncommitted = self.recent.values().filter(|it| it.info.number > self.head.number);
        let mut decided: Vec<_> = uncommitted.cloned().collect();
        if decided.is_empty() {
            decided.extend(self.proof.clone());
        }
        if lacks(Fault::ForgetDecisions) {
            decided.clear();
        }
        let view = if lacks(Fault::ForgetView) { 0 } else { self.view };
        Record {
            epoch: self.set.epoch,
            view,
            changing: self.changing,
            prepare: self.prepare.filter(|_| !lacks(Fault::ForgetPrepare)),
            prepared: self.prepared.clone(),
            adopted: self.adopted.clone(),
            amnesia: self.amnesia,
            decided: BoundedVec::new(decided).expect("recent decisions are bounded"),
        }
    }
}
