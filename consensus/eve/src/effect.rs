//! Effects and outputs: the work that the core asks of its driver.

use slipstream_types::{BatchNumber, Certificate, Digest};

use super::{
    message::{Evidence, Message, SignedOrder},
    record::Record,
};

/// A task that the driver carries out at once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Make and execute the next batch as soon as one is due, keep its outcome durably, then call `handle_built`.
    Build {
        /// Identifies the work, for the call that returns its result.
        work: Work,
        /// [`Order::parent`](super::Order::parent) of the batch.
        parent: Digest,
    },
    /// Execute an ordered batch on the outcome of the one before, keep its outcome durably, then call `handle_executed`.
    Execute {
        /// Identifies the work, for the call that returns its result.
        work: Work,
        /// The order to execute.
        order: SignedOrder,
    },
    /// Forget everything executed above that batch, and stop executing or building. Keep orders and their bodies: a body goes once its
    /// batch is committed or its view is over. Keep outcomes on disk: they go once their number is committed.
    Rollback {
        /// The last that stays.
        to: BatchNumber,
    },
    /// Others agreed on an outcome that this validator does not have: get it from them, then call `handle_fetched`. Sync may be
    /// faster.
    Fetch {
        /// The certificate of the decided batch.
        certificate: Box<Certificate>,
    },
    /// Call `handle_timer` after so many milliseconds. Replaces an earlier one of that name.
    SetTimer(Timer, u64),
    /// Cancel the timer of that name.
    CancelTimer(Timer),
}

/// One execution. Results of another generation are of a history that was rolled back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Work {
    /// Grows with every rollback.
    pub generation: u64,
    /// The view that the work is for.
    pub view: u64,
    /// Number of the batch.
    pub number: BatchNumber,
    /// Execute one transaction after the other, whatever the configuration: parallel results have diverged, or may have.
    pub sequential: bool,
}

/// Names a moment that the core waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Timer {
    /// The primary had its time.
    Patience,
    /// Say how far one is.
    Tell,
    /// Extra protection: all tokens had their time to come.
    Protect,
}

/// An output that rests on a record. The driver emits it only once that record is durable.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Output {
    /// Say it. The driver sends body and hints beside an [`Message::Order`].
    Send(To, Message),
    /// Commit the outcome that is held or was fetched for it.
    Commit(Box<Certificate>),
    /// Keep it and tell the operator.
    Convict(Evidence),
}

/// The receivers of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum To {
    /// All other validators of the set.
    Others,
    /// The validator with this index.
    Seat(u16),
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
    /// No honest primary orders this.
    Refused,
    /// The head moved meanwhile: `handle_committed` follows.
    Overtaken,
    /// Its body is not here (any more): it is asked for again.
    Missing,
}
