//! [`Queue`]: the events of a world, in an order that depends only on their insertion.

use std::collections::BTreeMap;

/// Virtual time: microseconds since a world began.
pub(super) type Moment = u64;

/// Names a future event, so that it can be cancelled.
pub(super) type Ticket = (Moment, u64);

/// Events by time; equal times in insertion order.
#[derive(Debug)]
pub(super) struct Queue<E> {
    events: BTreeMap<Ticket, E>,
    next: u64,
}

impl<E> Queue<E> {
    pub(super) fn new() -> Queue<E> {
        Queue { events: BTreeMap::new(), next: 0 }
    }

    pub(super) fn push(&mut self, at: Moment, event: E) -> Ticket {
        let ticket = (at, self.next);
        self.next += 1;
        self.events.insert(ticket, event);
        ticket
    }

    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.events.remove(&ticket);
    }

    pub(super) fn pop(&mut self) -> Option<(Moment, E)> {
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }
}
