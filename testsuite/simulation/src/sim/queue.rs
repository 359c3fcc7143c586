//! [`Queue`]: the events of a world, in an order that depends only on their insertion.

use std::collections::BTreeMap;

/// Virtual time: microseconds since a world began.
pub(super) type Moment = u64;

/// Names an event that is to come, so that it can be taken back.
pub(super) type Ticket = (Moment, u64);

/// Events by their time; those of the same time in the order in which they were put in.
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
