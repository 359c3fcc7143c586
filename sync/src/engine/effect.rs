//! [`Effect`]: the engine's requests to its driver.

use std::{collections::VecDeque, time::Duration};

use slipstream_network::PeerId;
use slipstream_types::schedule::Forks;

use crate::{protocol::Request, work::Job};

/// Identifies a request in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// Identifies a job in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(pub u64);

/// The engine's requests, in the order in which the driver performs them.
pub(super) type Effects = VecDeque<Effect>;

/// A request to the driver, which may skip one only when the node stops.
#[derive(Debug)]
pub enum Effect {
    /// Ask a peer. [`super::Engine::handle_answer`] gets the outcome, including a missed deadline.
    Send {
        /// Identifies the request in the answer.
        id: RequestId,
        /// The peer to ask.
        peer: PeerId,
        /// The request to send.
        request: Request,
        /// How long the answer may take.
        deadline: Duration,
        /// Maximum bytes that the answer may have, as the request implies.
        bytes_max: usize,
    },
    /// Cancel a request: nobody waits for its answer any more.
    Cancel {
        /// Identifies the request.
        id: RequestId,
    },
    /// Run a job beside the engine. [`super::Engine::handle_done`] gets the result.
    Run {
        /// Identifies the job in its result.
        id: JobId,
        /// The work to do.
        job: Job,
    },
    /// Cut a peer off.
    Ban {
        /// The peer to ban.
        peer: PeerId,
        /// The reason, which the peer and the log get.
        reason: String,
        /// How long the ban lasts.
        duration: Duration,
    },
    /// Note a peer's schedule of forks to come. It is an unverified claim.
    Hear {
        /// The peer that claims it.
        peer: PeerId,
        /// The peer's whole schedule of forks.
        forks: Forks,
    },
}
