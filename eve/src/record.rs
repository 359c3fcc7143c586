//! [`Record`]: what a validator must find again after a crash.

use serde::{Deserialize, Serialize};
use slipstream_types::{BatchNumber, Certificate, Epoch, bounded::BoundedVec};

use super::{
    core::RECENT_MAX,
    message::{Ballot, Prepared},
};

/// Durable before anything is said that follows from it. Outcomes that were told are kept beside it, by the driver.
///
/// One `prepare` is enough: what it does not remember is of a lower view, in which nothing is signed any more, or of a lower number, which is
/// decided. A commit needs no place of its own: it follows from `prepared`, of which a view has one for each number. A view's beginning is recorded
/// with what it adopts, and so before the first prepare in it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Of what epoch all of it is.
    pub epoch: Epoch,
    /// The view.
    pub view: u64,
    /// The views below are left, and this one has not begun.
    pub changing: bool,
    /// The last prepare that was signed.
    pub prepare: Option<Ballot>,
    /// The last batch that a quorum prepared, until it is decided.
    pub prepared: Option<Prepared>,
    /// What the view must decide first. Recorded with the beginning of the view, and so before anything is prepared in it.
    pub adopted: Option<Prepared>,
    /// Without its data it does not know what it signed: it votes only above that batch, and orders only in views above that one.
    pub amnesia: Option<(BatchNumber, u64)>,
    /// The last decision, and those before it that were not committed yet: nobody else may have them after a power cut everywhere.
    pub decided: BoundedVec<Certificate, RECENT_MAX>,
}
