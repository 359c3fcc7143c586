//! [`Caller`]: the sender of a request, and the way by which later effects of an answer are told.

use super::subscriptions::Listening;
use crate::{origin::Origin, probation::Probation};

/// The sender of a request.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) origin: Origin,
    /// `None` over HTTP, where later news has no way back.
    pub(crate) listening: Option<Listening>,
    /// Asked once the call turns out to be long; `None` if it may be.
    pub(crate) probation: Option<Probation>,
}

impl From<Origin> for Caller {
    fn from(origin: Origin) -> Self {
        Self { origin, listening: None, probation: None }
    }
}
