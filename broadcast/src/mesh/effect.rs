//! What the mesh asks its driver for, and what comes back.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use slipstream_coding::{Check, Checked};
use slipstream_network::{PeerId, Priority};
use slipstream_types::{BatchHeader, BatchNumber, Blob, Certificate, batch::content_digest};

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
    /// A batch is certified and on its way here: it will be delivered.
    Expect(BatchNumber),
    /// A batch is here, as far as it could be put together.
    Deliver(Box<Delivery>),
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

/// A certified batch. Its parts are what a validator signed; whether they are the header's is for whoever takes it to check.
#[derive(Clone, PartialEq, Debug)]
pub struct Delivery {
    /// Who is to answer for it: the validator whose hints these are; without hints, the peer that told of it first.
    pub from: PeerId,
    /// Its header.
    pub header: BatchHeader,
    /// Its certificate.
    pub certificate: Certificate,
    /// Its transactions; none if they are not wanted, or did not come in time.
    pub body: Option<Blob>,
    /// What executing it reads, likewise.
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
