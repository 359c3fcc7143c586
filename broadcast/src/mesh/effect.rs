//! The mesh's requests to its driver, and their results.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use slipstream_coding::{Check, Checked};
use slipstream_network::{PeerId, Priority};
use slipstream_types::{BatchHeader, BatchNumber, Blob, Certificate, batch::content_digest};
use tokio::time::Instant;

use crate::message::Part;

/// Identifies a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(pub u64);

/// A task for the driver. Order matters only among the messages to one peer.
#[derive(Debug)]
pub enum Effect {
    /// Send a message to one peer.
    Send {
        /// The receiver.
        peer: PeerId,
        /// The encoded message.
        message: Bytes,
        /// Its priority among the messages to that peer.
        priority: Priority,
    },
    /// Run a job on another thread, and hand its result to [`super::Mesh::handle_done`].
    Run {
        /// Identifies the job in [`super::Mesh::handle_done`].
        id: JobId,
        /// The work to do.
        job: Job,
    },
    /// A batch is certified and on its way here: sync need not fetch it before `until`.
    Expect {
        /// Number of the batch.
        number: BatchNumber,
        /// When the mesh gives up on the batch.
        until: Instant,
    },
    /// A peer has a batch, or soon will, that the mesh does not bring here.
    Heard {
        /// The peer that has the batch.
        peer: PeerId,
        /// Number of the batch.
        number: BatchNumber,
    },
    /// An expected batch does not come.
    GaveUp(BatchNumber),
    /// A batch is here, with its body.
    Deliver(Box<Delivery>),
    /// A peer sent useful bytes.
    Credit {
        /// The peer that sent them.
        peer: PeerId,
        /// Number of useful bytes.
        bytes: usize,
    },
    /// The leader of this batch is silent. This validator therefore codes the body, signs a plan of its own, and hands both
    /// to [`super::Mesh::handle_published`].
    Lead(Box<LeadRequest>),
    /// A peer sent what no honest node sends.
    Ban {
        /// The peer to ban.
        peer: PeerId,
        /// The fault, in words.
        reason: String,
        /// How long the ban lasts.
        duration: Duration,
    },
}

/// A certified batch that this node has to spread.
#[derive(Clone, Debug)]
pub struct LeadRequest {
    /// Header of the batch.
    pub header: BatchHeader,
    /// Certificate of the batch.
    pub certificate: Certificate,
    /// Its transactions, as a blob's bytes.
    pub body: Arc<[u8]>,
}

/// A certified batch. A validator signed its parts, and the body matches the header. The receiver must judge the hints
/// itself.
#[derive(Clone, PartialEq, Debug)]
pub struct Delivery {
    /// The peer that answers for the hints: the validator that vouches for them; without hints, the first peer that
    /// announced the batch.
    pub from: PeerId,
    /// Header of the batch.
    pub header: BatchHeader,
    /// Certificate of the batch.
    pub certificate: Certificate,
    /// The batch's transactions, as a blob.
    pub body: Blob,
    /// The hints, if this node wants them and they came in time.
    pub hints: Option<Blob>,
}

/// Work that takes too long for the mesh's messages to wait for it.
#[derive(Debug)]
pub enum Job {
    /// Check chunks, or put a payload together.
    Check(Check),
    /// Compare a payload with the header.
    Open {
        /// The part of the batch that the payload carries.
        part: Part,
        /// Header of the payload's batch.
        header: Arc<BatchHeader>,
        /// The bytes whose digest was signed.
        payload: Arc<[u8]>,
    },
}

/// The result of a job.
#[derive(Debug)]
pub enum Done {
    /// Result of [`Job::Check`].
    Checked(Checked),
    /// Result of [`Job::Open`]: the payload, or why it is not the batch's.
    Opened(Result<Blob, String>),
}

impl Job {
    /// Does the job on the calling thread.
    pub fn run(self) -> Done {
        match self {
            Job::Check(check) => Done::Checked(check.run()),
            Job::Open { part, header, payload } => Done::Opened(open(part, &header, &payload)),
        }
    }
}

fn open(part: Part, header: &BatchHeader, payload: &[u8]) -> Result<Blob, String> {
    let text = |error: slipstream_types::CodecError| error.to_string();
    let blob = Blob::from_bytes(payload.to_vec()).map_err(text)?;
    match part {
        Part::Body => {
            let content = blob.content(part.kind()).map_err(text)?;
            if content_digest(part.kind(), &content) != header.transactions_root {
                return Err("its digest differs from the header's".into());
            }
        }
        // Hints have no certified rule for their content; execution checks the rest.
        Part::Hints => drop(blob.content(part.kind()).map_err(text)?),
    }
    Ok(blob)
}
