//! Effects and outputs: the work that the core gives its driver.

use slipstream_types::{BatchNumber, Certificate, Digest};

use crate::{
    message::{Evidence, Message, Seat, SignedOrder, View},
    record::Record,
};

/// A task that the driver carries out at once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Build and execute the next batch as soon as one is due, make its outcome durable, then call `handle_built`.
    Build {
        /// Identifies the work, for the call that returns its result.
        work: Work,
        /// [`Order::parent`](super::Order::parent) of the batch.
        parent: Digest,
    },
    /// Execute an ordered batch on the outcome of the batch before, make its outcome durable, then call
    /// `handle_executed`.
    Execute {
        /// Identifies the work, for the call that returns its result.
        work: Work,
        /// The order to execute.
        order: SignedOrder,
    },
    /// Forget everything executed above that batch, and stop executing or building. Keep an order and its body until
    /// its batch is committed or its view is over. Keep outcomes on disk until their number is committed.
    Rollback {
        /// The last batch that stays executed.
        to: BatchNumber,
    },
    /// Fetch an outcome that the others agreed on and this validator lacks, then call `handle_fetched`. Sync may be
    /// faster.
    Fetch {
        /// The certificate of the decided batch.
        certificate: Box<Certificate>,
    },
}

/// One execution. A result of another generation belongs to a history that was rolled back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Work {
    /// Grows with every rollback.
    pub generation: u64,
    /// The view that the work is for.
    pub view: View,
    /// Number of the batch.
    pub number: BatchNumber,
    /// Whether to execute one transaction after the other, even if the configuration allows parallel execution.
    /// Parallel results have diverged, or may have.
    pub sequential: bool,
}

/// Names a moment that the core waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Timer {
    /// The primary's time for a batch is over.
    Patience,
    /// The status is due.
    Tell,
    /// Extra protection: the time for all tokens to arrive is over.
    Protect,
}

/// An output that rests on a record. The driver emits it only once that record is durable.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Output {
    /// Send the message. With a [`Message::Order`] the driver also sends the body and the hints.
    Send(Receivers, Message),
    /// Commit the held or fetched outcome that this certificate decides.
    Commit(Box<Certificate>),
    /// Keep the evidence and report it to the operator.
    Convict(Evidence),
}

/// The receivers of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Receivers {
    /// All other validators of the set.
    Others,
    /// The validator with this index.
    Seat(Seat),
}

/// The record and outputs of one moment. The driver writes the record first; once it is durable, it emits the outputs in
/// order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Flush {
    /// The record to make durable, or `None` if it is unchanged.
    pub record: Option<Record>,
    /// The outputs to emit once the record is durable.
    pub outputs: Vec<Output>,
}

/// Why an order has no outcome here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoOutcome {
    /// No honest primary would send this order.
    Refused,
    /// The head moved meanwhile: `handle_committed` follows.
    Overtaken,
    /// The order's body is missing here, or was dropped. It is requested again.
    Missing,
}
