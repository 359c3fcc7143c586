//! [`Work`]: tasks too long for a message to wait for, and [`Workers`] that do them.

use std::sync::Arc;

use slipstream_coding::{Codec, CodecKind, EncodeError, Parameters, Plan, RLNC_BYTES_MAX, encode};
use slipstream_network::BoxFuture;
use slipstream_types::{BatchHeader, BatchNumber, Certificate};

use crate::{
    BroadcastConfig,
    mesh::{Done, Job, JobId},
    message::Part,
};

/// A pool of threads that does the work.
pub trait Workers: Send + Sync + 'static {
    /// Does the work elsewhere, and resolves to the result of [`Work::run`].
    fn run(&self, work: Work) -> BoxFuture<'static, Outcome>;
}

/// The runtime's threads for blocking work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads;

impl Workers for Threads {
    fn run(&self, work: Work) -> BoxFuture<'static, Outcome> {
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || work.run()).await {
                Ok(outcome) => outcome,
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The runtime is shutting down.
                Err(_) => std::future::pending().await,
            }
        })
    }
}

/// A task of tens of microseconds to some hundred milliseconds.
#[derive(Debug)]
pub struct Work(Kind);

#[derive(Debug)]
enum Kind {
    Job(JobId, Job),
    Code(BroadcastConfig, Box<Coding>),
}

/// A payload to be coded at its source.
#[derive(Debug)]
pub(crate) struct Coding {
    pub(crate) part: Part,
    pub(crate) payload: Arc<[u8]>,
    pub(crate) header: BatchHeader,
    pub(crate) certificate: Certificate,
}

/// The result of work.
#[derive(Debug)]
pub enum Outcome {
    /// The result of a job of the mesh.
    Done(JobId, Done),
    /// The result of coding a payload of a batch.
    Coded(Result<Box<Coded>, (BatchNumber, EncodeError)>),
}

/// A coded payload of a batch.
#[derive(Debug)]
pub struct Coded {
    pub(crate) part: Part,
    pub(crate) plan: Plan,
    pub(crate) codec: Box<dyn Codec>,
    pub(crate) header: BatchHeader,
    pub(crate) certificate: Certificate,
}

impl Work {
    pub(crate) fn job(id: JobId, job: Job) -> Work {
        Work(Kind::Job(id, job))
    }

    pub(crate) fn code(config: BroadcastConfig, coding: Coding) -> Work {
        Work(Kind::Code(config, Box::new(coding)))
    }

    /// The job of the mesh in this work; `None` if it codes a payload.
    pub fn of_mesh(&self) -> Option<&Job> {
        match &self.0 {
            Kind::Job(_, job) => Some(job),
            Kind::Code(..) => None,
        }
    }

    /// Does the work on the calling thread.
    pub fn run(self) -> Outcome {
        match self.0 {
            Kind::Job(id, job) => Outcome::Done(id, job.run()),
            Kind::Code(config, coding) => {
                let Coding { part, payload, header, certificate } = *coding;
                Outcome::Coded(match code(&config, payload) {
                    Ok((plan, codec)) => Ok(Box::new(Coded { part, plan, codec, header, certificate })),
                    Err(error) => Err((header.number, error)),
                })
            }
        }
    }
}

fn code(config: &BroadcastConfig, payload: Arc<[u8]>) -> Result<(Plan, Box<dyn Codec>), EncodeError> {
    let kind = match config.codec {
        _ if payload.len() < config.coded_bytes_min as usize => CodecKind::Gossip,
        // RLNC takes too much arithmetic for longer payloads.
        CodecKind::Rlnc if payload.len() > RLNC_BYTES_MAX => CodecKind::ReedSolomon,
        CodecKind::Gossip | CodecKind::ReedSolomon | CodecKind::Rlnc => config.codec,
    };
    let parameters = Parameters::default_for(payload.len());
    encode(kind, payload, &parameters)
}
