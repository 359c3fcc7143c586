//! What the mesh asks its driver for, and what comes back.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use slipstream_coding::{Check, Checked};
use slipstream_network::{PeerId, Priority};
use slipstream_types::{BatchHeader, BatchNumber, Blob, Certificate, batch::content_digest};
use tokio::time::Instant;

use crate::message::Part;

/// Names a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(pub u64);

/// Something to do. Order matters only among the messages to one peer.
#[derive(Debug)]
pub enum Effect {
    /// Send a message.
    Send {
        /// To whom.
        peer: PeerId,
        /// The message.
        message: Bytes,
        /// What overtakes what on the way to one peer.
        priority: Priority,
    },
    /// Run a job on another thread, and hand what comes of it to [`super::Mesh::handle_done`].
    Run {
        /// Its name.
        id: JobId,
        /// What to do.
        job: Job,
    },
    /// A batch is certified and on its way here: until then sync need not fetch it.
    Expect {
        /// Which one.
        number: BatchNumber,
        /// Until when.
        until: Instant,
    },
    /// A peer has a batch, or soon will, that does not come here by the mesh.
    Heard {
        /// Who.
        peer: PeerId,
        /// Which one.
        number: BatchNumber,
    },
    /// A batch that was expected does not come.
    GaveUp(BatchNumber),
    /// A batch is here.
    Deliver(Box<Delivery>),
    /// A peer sent so many bytes that were of use.
    Credit {
        /// Who.
        peer: PeerId,
        /// Bytes.
        bytes: usize,
    },
    /// Whoever should spread a batch does not: this validator codes its body and signs a plan of its own, and hands them to
    /// [`super::Mesh::publish`].
    Lead(Box<Lead>),
    /// The peer sent what no honest node sends.
    Ban {
        /// Who.
        peer: PeerId,
        /// What it sent.
        reason: String,
        /// For how long.
        duration: Duration,
    },
}

/// A certified batch that has to be spread by this node.
#[derive(Clone, Debug)]
pub struct Lead {
    /// Its header.
    pub header: BatchHeader,
    /// Its certificate.
    pub certificate: Certificate,
    /// Its transactions, as a blob's bytes.
    pub body: Arc<[u8]>,
}

/// A certified batch. Its parts are what a validator signed, and the body is the header's; what hints are worth is for whoever takes them to see.
#[derive(Clone, PartialEq, Debug)]
pub struct Delivery {
    /// Who is to answer for it: the validator whose hints these are; without hints, the peer that told of it first.
    pub from: PeerId,
    /// Its header.
    pub header: BatchHeader,
    /// Its certificate.
    pub certificate: Certificate,
    /// Its transactions.
    pub body: Blob,
    /// What executing it reads, if it is wanted and came in time.
    pub hints: Option<Blob>,
}

/// Work that takes longer than a message should wait.
#[derive(Debug)]
pub enum Job {
    /// Check chunks, or put a payload together.
    Check(Check),
    /// See whether a payload is what the header says.
    Open {
        /// Which part it is.
        part: Part,
        /// Whose.
        header: Arc<BatchHeader>,
        /// The bytes whose digest was signed.
        payload: Arc<[u8]>,
    },
}

/// What came of a job.
#[derive(Debug)]
pub enum Done {
    /// Of [`Job::Check`].
    Checked(Checked),
    /// Of [`Job::Open`]: the payload, or why it is none of the batch.
    Opened(Result<Blob, String>),
}

impl Job {
    /// Does it.
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
                return Err("its digest is not the header's".into());
            }
        }
        // Nothing certified says what hints must be, and whoever executes looks at the rest.
        Part::Hints => drop(blob.content(part.kind()).map_err(text)?),
    }
    Ok(blob)
}
