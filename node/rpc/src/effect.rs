//! [`Effect`]: what takes effect once an answer is on its way.

use super::{feed::Awaited, logs::Poll, subscriptions::Begun};

/// An effect that is dropped before it is [`told`](Effect::told) leaves everything as if the request had not been made.
pub enum Effect {
    /// Advances a filter.
    Poll(Poll),
    /// Starts a subscription once its answer is on its way.
    Subscription(Begun),
    /// The answer itself is a receipt that is still awaited. Never handed to the sender of the answer: see `send_sync`.
    Receipt(Awaited),
}

impl Effect {
    /// Applies the effect; call when the answer is on its way.
    pub fn told(self) {
        match self {
            Effect::Poll(poll) => poll.told(),
            Effect::Subscription(begun) => begun.told(),
            Effect::Receipt(_) => {}
        }
    }
}

impl From<Poll> for Effect {
    fn from(poll: Poll) -> Self {
        Effect::Poll(poll)
    }
}
