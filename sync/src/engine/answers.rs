//! Takes peers' answers. Checks cheap ones here; the worker checks the others.

use std::{collections::VecDeque, sync::Arc};

use slipstream_network::{NetworkError, PeerId};
use slipstream_storage::Span;
use slipstream_types::{BatchNumber, codec};
use tokio::time::Instant;

use super::{
    Engine, backfill,
    bootstrap::{Bootstrap, DeltaBase, EarlyChunk},
    effect::{Effect, RequestId},
    epochs::EPOCH_ENDS,
    jobs::{Check, RestoreAnswer, RestoreTask, Running},
    streams::{Flight, Key, Subject},
};
use crate::{
    error::{Fault, Violation},
    peers::ServiceKind,
    plan::Stage,
    planted::Planted,
    protocol::{ANSWER_BYTES_MAX, RangeRequest, Request, Summary},
    work::{Job, RestoreJob},
};

/// Maximum number of range answers that are checked at once. Each check uses all cores for its digests, so more would
/// only take memory.
const CHECKS_MAX: usize = 2;

/// Range answers that wait between the network and their check.
#[derive(Debug, Default)]
pub(super) struct CheckQueue {
    waiting: VecDeque<RangeAnswer>,
}

#[derive(Debug)]
struct RangeAnswer {
    first: BatchNumber,
    flight: Flight,
    at: Instant,
    answer: Vec<u8>,
    request: RangeRequest,
}

impl CheckQueue {
    /// Whether the answer for a key waits for its check or is being checked.
    pub(super) fn has(&self, key: &Key, running: &Running<Check>) -> bool {
        let Key::Range(first) = key else { return false };
        let waits = self.waiting.iter().any(|arrived| arrived.first == *first);
        waits || running.iter().any(|check| check.first == *first)
    }

    /// Bytes of the waiting answers.
    pub(super) fn bytes(&self) -> u64 {
        self.waiting.iter().map(|arrived| arrived.answer.len() as u64).sum()
    }
}

impl Engine {
    pub(super) fn answered(&mut self, id: RequestId, answer: Result<Vec<u8>, NetworkError>, now: Instant) {
        let Some(flight) = self.streams.land(id) else { return };
        let what = describe(&flight);
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                if matches!(flight.about, Subject::Wanted(_)) {
                    self.streams.links.failed(&flight.peer, now);
                }
                if let Subject::Wanted(key @ Key::Range(_)) = flight.about
                    && self.defences.lacks(Planted::LostRange)
                {
                    self.settle(&key, now);
                }
                let fault = Fault::Network(error);
                if self.past_failed(flight.about, &flight.peer, &fault, now) {
                    return;
                }
                if let (Subject::Wanted(key), Some(restore)) = (flight.about, &mut self.restore)
                    && Bootstrap::owns(&key)
                {
                    restore.suppliers_mut().failed(flight.peer);
                }
                if let (Subject::Wanted(Key::Offer), Some(restore)) = (flight.about, &mut self.restore)
                    && fault.is_refusal()
                    && !fault.is_busy()
                {
                    restore.offer_refused();
                }
                if let Some(wanted) = fault.retry_after() {
                    let reason = format!("{what}: {fault}");
                    return self.book.busy(&flight.peer, service_kind(&flight), now, wanted, reason);
                }
                if self.is_range_delta_refused(&flight, &fault) {
                    return self.range_delta_refused(&flight, &what, &fault, now);
                }
                return self.punish(flight.peer, &what, &fault, now);
            }
        };
        if matches!(flight.about, Subject::Wanted(_)) {
            self.streams.links.came(&flight.peer, now);
        }
        let taken = match flight.about {
            Subject::Summary => {
                self.streams.links.round_trip(&flight.peer, now, &flight.sent);
                self.take_summary(flight.peer, &answer, now).map(|()| self.judge_claim(&flight, now))
            }
            Subject::Epochs { first } => {
                self.epochs.arrived(flight.peer, first, answer);
                Ok(())
            }
            Subject::Past { request, .. } => {
                self.past_arrived(request, flight.clone(), answer, now);
                Ok(())
            }
            Subject::States { .. } => {
                self.states_arrived(flight.clone(), answer, now);
                Ok(())
            }
            Subject::Wanted(key) => self.take(key, &flight, answer, now),
        };
        if let Err(fault) = taken {
            self.punish(flight.peer, &what, &fault, now);
        }
    }

    /// Whether a peer refuses a chunk of the range delta in progress.
    fn is_range_delta_refused(&self, flight: &Flight, fault: &Fault) -> bool {
        let takes_one = self.restore.as_ref().is_some_and(|restore| restore.range_delta().is_some());
        takes_one && fault.is_refusal() && matches!(flight.about, Subject::Wanted(Key::Chunk(_)))
    }

    /// Handles a refused range-delta chunk. A peer may keep its promises and still be unable to merge the deltas of a
    /// long range. Such a refusal breaks no promise, but the peer would refuse again. So for a while nothing asks that
    /// peer for range deltas. If no other peer has the range delta, the node takes a shorter one or another way.
    fn range_delta_refused(&mut self, flight: &Flight, what: &str, fault: &Fault, now: Instant) {
        let Some(restore) = &self.restore else { return };
        tracing::info!(peer = %flight.peer.short(), what, %fault, "the peer cannot serve the range delta");
        let (number, Some(DeltaBase { from, .. })) = (restore.number(), restore.range_delta()) else {
            return;
        };
        self.ignored_offers.cannot_merge(flight.peer, now);
        if self.book.serving_range_delta(from, number).all(|peer| self.ignored_offers.is_unmerged(&peer, now))
        {
            self.range_delta_too_long(number, now);
            self.abandon();
        }
    }

    fn take_summary(&mut self, peer: PeerId, answer: &[u8], now: Instant) -> Result<(), Fault> {
        let summary: Summary = codec::decode("summary", answer, ANSWER_BYTES_MAX)?;
        if summary.genesis != self.genesis {
            return Err(Violation::WrongChain { found: summary.genesis, expected: self.genesis }.into());
        }
        if !summary.forks.is_empty() {
            self.effects.push_back(Effect::Hear { peer, forks: summary.forks.clone() });
        }
        if let Some(certificate) = &summary.head {
            if certificate.info.epoch > self.trust.epoch() {
                self.unproven.insert(peer, summary);
                return Ok(());
            }
            if !self.defences.lacks(Planted::UnsignedSummary) {
                self.trust.verify(certificate)?;
                self.learn_end(certificate);
            }
        }
        self.book.summarize(peer, now, summary);
        Ok(())
    }

    fn take(&mut self, key: Key, flight: &Flight, answer: Vec<u8>, now: Instant) -> Result<(), Fault> {
        let Some(wanted) = self.streams.get(&key) else { return Ok(()) };
        let request = wanted.request.clone();
        match (key, &mut self.restore) {
            (Key::Survey, _) => self.take_survey(&request, &answer),
            (Key::Range(first), _) => {
                self.take_range(first, flight, request, answer, now);
                Ok(())
            }
            (Key::Offer, Some(restore)) => {
                let len = answer.len();
                let early = restore.offered(&answer, self.genesis, &self.trust)?;
                restore.moved(now);
                if let Some(certificate) = restore.certificate().cloned() {
                    self.learn_end(&certificate);
                }
                self.settle(&key, now);
                self.credit(flight, now, now, len);
                match early {
                    Some((from, headers)) => self.take_headers(&from, headers, now),
                    None => Ok(()),
                }
            }
            (Key::Headers, Some(_)) => self.take_headers(flight, answer, now),
            (Key::Chunk(first), Some(restore)) => {
                let chunk = EarlyChunk { first, flight: flight.clone(), at: now, request, answer };
                if let Some(chunk) = restore.chunk(chunk, &self.jobs.restore) {
                    self.add_chunk(chunk);
                }
                Ok(())
            }
            (Key::Siblings(_) | Key::Codes, Some(_)) => {
                self.take_beside(key, flight, request, answer, now);
                Ok(())
            }
            // The restore that asked for it is over.
            (Key::Offer | Key::Headers | Key::Chunk(_) | Key::Siblings(_) | Key::Codes, None) => Ok(()),
        }
    }

    /// Takes the answer to a range request. Drops it while another peer's answer is being checked, because this one
    /// matters only if the other is wrong.
    fn take_range(
        &mut self,
        first: BatchNumber,
        flight: &Flight,
        request: Request,
        answer: Vec<u8>,
        now: Instant,
    ) {
        let Request::Range(request) = request else { return };
        if self.checking.has(&Key::Range(first), &self.jobs.checks) {
            return;
        }
        if self.defences.lacks(Planted::CreditFirst) {
            self.credit(flight, now, now, answer.len());
        }
        let flight = flight.clone();
        self.checking.waiting.push_back(RangeAnswer { first, flight, at: now, answer, request });
    }

    /// Takes siblings or code. The worker has at most one of each at a time.
    fn take_beside(&mut self, key: Key, flight: &Flight, request: Request, answer: Vec<u8>, now: Instant) {
        if self.jobs.restore.has(&key) {
            return;
        }
        let bytes = answer.len();
        let job = match &request {
            Request::RangeProof { first, last, .. } => {
                let span = Span { first: *first, last: *last };
                RestoreJob::Siblings { answer, span, from: flight.peer }
            }
            Request::Codes { hashes, .. } => RestoreJob::Codes { answer, hashes: hashes.to_vec() },
            _ => return,
        };
        let kept = RestoreAnswer { key, flight: flight.clone(), at: now, bytes, request };
        self.run(RestoreTask::Answer(Box::new(kept)), Job::Restore(job));
    }

    /// Hands rows to the worker.
    pub(super) fn add_chunk(&mut self, chunk: EarlyChunk) {
        let EarlyChunk { first, flight, at, request, answer } = chunk;
        let (key, bytes) = (Key::Chunk(first), answer.len());
        let kept = RestoreAnswer { key, flight, at, bytes, request: request.clone() };
        self.run(RestoreTask::Answer(Box::new(kept)), Job::Restore(RestoreJob::Chunk { answer, request }));
    }

    /// Takes the headers of a snapshot. They wait until the offer that verifies them is here.
    fn take_headers(&mut self, flight: &Flight, answer: Vec<u8>, now: Instant) -> Result<(), Fault> {
        let Some(restore) = &mut self.restore else { return Ok(()) };
        let Some(answer) = restore.keep_headers(flight, answer) else {
            self.settle(&Key::Headers, now);
            return Ok(());
        };
        // The sender pays for a lie, and the headers are wanted again.
        let job = match restore.headers(&answer) {
            Ok(job) => job,
            Err(fault) => {
                self.punish(flight.peer, &describe_key(&Key::Headers), &fault, now);
                return Ok(());
            }
        };
        self.settle(&Key::Headers, now);
        self.credit(flight, now, now, answer.len());
        if let Some((header, job)) = job {
            self.course.mark(header.number, header.totals);
            self.run(RestoreTask::Begin, job);
        }
        Ok(())
    }

    /// Hands the next answers to the worker, up to [`CHECKS_MAX`].
    pub(super) fn start_checks(&mut self) {
        while self.jobs.checks.len() < CHECKS_MAX {
            let Some(arrived) = self.checking.waiting.pop_front() else { return };
            let RangeAnswer { first, flight, at, answer, request } = arrived;
            let due = flight.head.since(request.first).saturating_add(1);
            let trust = Arc::clone(&self.trust);
            self.run(Check { first, flight, at }, Job::CheckRange { answer, request, due, trust });
        }
    }

    /// Settles a wanted key whose answer has arrived. Peers that were late with that answer lose score, and rank lower
    /// until they deliver again.
    pub(super) fn settle(&mut self, key: &Key, now: Instant) {
        for peer in self.streams.settle(key, &mut self.effects) {
            self.streams.links.overtaken(&peer, now);
            self.book.overtaken(&peer, now);
        }
    }

    /// Credits a peer. Call only after the proofs were checked.
    pub(super) fn credit(&mut self, flight: &Flight, arrived: Instant, now: Instant, bytes: usize) {
        let took = arrived.saturating_duration_since(flight.sent.at);
        self.book.credit(&flight.peer, service_kind(flight), now, bytes, took);
        self.streams.links.delivered(&flight.peer, now, arrived, &flight.sent, bytes);
        self.stages.worked(Stage::Fetch, now, took, bytes as u64);
        self.counters.bytes_received += bytes as u64;
    }
}

/// Returns the kind of service that a request uses.
fn service_kind(flight: &Flight) -> Option<ServiceKind> {
    match flight.about {
        Subject::Summary | Subject::Epochs { .. } => None,
        Subject::Past { .. } | Subject::States { .. } | Subject::Wanted(Key::Survey | Key::Range(_)) => {
            Some(ServiceKind::Batches)
        }
        Subject::Wanted(Key::Offer | Key::Headers | Key::Siblings(_) | Key::Chunk(_) | Key::Codes) => {
            Some(ServiceKind::Snapshots)
        }
    }
}

fn describe(flight: &Flight) -> String {
    match flight.about {
        Subject::Summary => "summary".into(),
        Subject::Epochs { .. } => EPOCH_ENDS.into(),
        Subject::Past { request, .. } => backfill::describe(request.first),
        Subject::States { .. } => backfill::REVERSE_DELTA.into(),
        Subject::Wanted(key) => describe_key(&key),
    }
}

/// Describes a key's subject, for use in reasons.
pub(super) fn describe_key(key: &Key) -> String {
    match key {
        Key::Survey => "headers across the gap".into(),
        Key::Offer => "snapshot offer".into(),
        Key::Headers => "snapshot headers".into(),
        Key::Range(first) => format!("batches from {first} on"),
        Key::Siblings(_) => "range proof".into(),
        Key::Chunk(_) => "state chunk".into(),
        Key::Codes => "contract code".into(),
    }
}
