//! [`Effect`]: the effect of an answer once it is on its way.

use super::{feed::Awaited, logs::Poll, subscriptions::Begun};

/// Dropped before it is [`told`](Effect::told), it is as if nobody had asked.
pub(crate) enum Effect {
    /// A filter moves on.
    Poll(Poll),
    /// A subscription begins once its answer is on its way.
    Subscription(Begun),
    /// The answer itself is a receipt that is not there yet. Never left to the sender of the answer: see `send_sync`.
    Receipt(Awaited),
}

impl Effect {
    /// The answer is on its way.
    pub(crate) fn told(self) {
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
