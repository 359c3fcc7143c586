//! [`Caller`]: who asks, and where what an answer brings about is told later.

use super::subscriptions::Listening;
use crate::origin::Origin;

/// Who asks.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) origin: Origin,
    /// None where nothing can be told later: over HTTP.
    pub(crate) listening: Option<Listening>,
}

impl From<Origin> for Caller {
    fn from(origin: Origin) -> Self {
        Self { origin, listening: None }
    }
}
