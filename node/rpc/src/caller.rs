//! [`Caller`]: the sender of a request, and the route for later effects of its answer.

use super::subscriptions::SubscriberSocket;
use slipstream_fair::{Origin, Probation};

/// The sender of a request.
#[derive(Clone)]
pub struct Caller {
    /// Who calls.
    pub origin: Origin,
    /// `None` over HTTP, where no later news can be delivered.
    pub listening: Option<SubscriberSocket>,
    /// Consulted once the call turns out to be long; `None` if the call may be long anyway.
    pub probation: Option<Probation>,
}

impl From<Origin> for Caller {
    fn from(origin: Origin) -> Self {
        Self { origin, listening: None, probation: None }
    }
}
