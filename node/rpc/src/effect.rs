//! [`Effect`]: a change that happens once an answer is on its way.

use super::{feed::ReceiptWait, logs::PendingPoll, subscriptions::PendingSubscription};

/// An effect of an answer. Dropping it without [`told`](Effect::told) leaves everything as if the request had not been
/// made.
pub enum Effect {
    /// Advances a filter.
    Poll(PendingPoll),
    /// Starts a subscription once its answer is on its way.
    Subscription(PendingSubscription),
    /// The answer itself is a receipt that is still awaited. Never handed to the sender of the answer: see `send_sync`.
    Receipt(ReceiptWait),
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

impl From<PendingPoll> for Effect {
    fn from(poll: PendingPoll) -> Self {
        Effect::Poll(poll)
    }
}
