//! Defences that a world leaves out at the seams of a node: its start, its jobs and its transport. The daemon leaves
//! out the other defences itself. See [`Planted`].

use anyhow::Result;
use slipstream_sync::{
    Defences, Planted, SyncError,
    engine::Local,
    protocol::{ANSWER_BYTES_MAX, Codes, Request, Summary},
    work::{Done, Job, RestoreJob, RestoreOutcome, RestoreResult, Worker},
};
use slipstream_types::{Digest, Waypoint, codec, keccak256};

use super::chain::Chain;

/// Returns the worker of a node. Without the defence, a node checks its waypoint only at its start.
pub(super) fn worker(
    defences: Defences,
    waypoint: Option<Waypoint>,
    make: impl Fn(Option<Waypoint>) -> Result<Worker, SyncError>,
) -> Result<Worker, SyncError> {
    let worker = make(waypoint)?;
    let ignores = waypoint.is_some() && defences.lacks(Planted::NoWaypoint);
    if ignores { make(None) } else { Ok(worker) }
}

/// Returns what a node's engine begins with. Without the defence, the engine does not know that it began a restore.
pub(super) fn local(defences: Defences, local: Local) -> Local {
    let begun = local.begun.filter(|_| !defences.lacks(Planted::ForgottenRestore));
    Local { begun, ..local }
}

/// Runs a job on a worker. Without a defence, any code counts as the code that was asked for, or any chunk as added.
pub(super) fn run(defences: Defences, worker: &Worker, job: Job) -> Done {
    match job {
        Job::Restore(RestoreJob::Codes { answer, hashes }) if defences.lacks(Planted::UnhashedCode) => {
            let hashes = hashes_of(&answer).unwrap_or(hashes);
            worker.run(Job::Restore(RestoreJob::Codes { answer, hashes }))
        }
        Job::Restore(RestoreJob::Chunk { request: Request::Chunk { .. }, .. })
            if defences.lacks(Planted::UnprovenChunk) =>
        {
            accepted(worker.run(job))
        }
        job => worker.run(job),
    }
}

/// The hashes of the code in an answer; `None` if it cannot be read.
fn hashes_of(answer: &[u8]) -> Option<Vec<Digest>> {
    let codes: Codes = codec::decode("codes", answer, ANSWER_BYTES_MAX).ok()?;
    Some(codes.codes.iter().map(|code| Digest::from(keccak256(&code[..]))).collect())
}

/// The result of a chunk that counts as added, whether its proof failed or not.
fn accepted(mut done: Done) -> Done {
    if let Done::Restored(Ok(RestoreResult { step: RestoreOutcome::Chunk { checked, .. }, .. })) = &mut done {
        *checked = Ok(());
    }
    done
}

/// Returns a summary as it arrives at a node. Without the defence, a summary of any chain looks like one of the node's own.
pub(super) fn summary(defences: Defences, answer: Vec<u8>) -> Result<Vec<u8>> {
    if !defences.lacks(Planted::ForeignSummary) {
        return Ok(answer);
    }
    let Ok(summary) = codec::decode::<Summary>("summary", &answer, ANSWER_BYTES_MAX) else {
        return Ok(answer);
    };
    let genesis = Chain::canonical().genesis.header()?.digest();
    Ok(codec::encode("summary", &Summary { genesis, ..summary })?)
}
