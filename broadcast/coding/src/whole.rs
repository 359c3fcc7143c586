//! The common part of all codecs: the plan, the running check, and payloads that arrive whole.

use std::{collections::VecDeque, sync::Arc};

use slipstream_types::PublicKey;

use crate::{
    codec::{Accepted, Check, CheckResult, Checked, Malformed, Ticket, Verdict, Work},
    plan::{Plan, payload_digest},
};

/// A whole payload that awaits comparison. Without a peer it is this node's own.
#[derive(Debug)]
struct Candidate {
    from: Option<PublicKey>,
    payload: Arc<[u8]>,
}

/// The state of a payload that does not depend on its codec.
#[derive(Debug)]
pub(crate) struct WholePayload {
    plan: Plan,
    ticket: Ticket,
    payload: Option<Arc<[u8]>>,
    waiting: VecDeque<Candidate>,
    comparing: Option<Candidate>,
    candidates_max: usize,
    is_contradicted: bool,
}

impl WholePayload {
    /// Makes the state of a receiver, which takes at most `candidates_max` candidates from peers.
    pub(crate) fn expected(plan: Plan, candidates_max: usize) -> Self {
        Self {
            plan,
            ticket: Ticket::default(),
            payload: None,
            waiting: VecDeque::new(),
            comparing: None,
            candidates_max,
            is_contradicted: false,
        }
    }

    /// Makes the state of a source.
    pub(crate) fn known(plan: Plan, payload: Arc<[u8]>) -> Self {
        Self { payload: Some(payload), ..Self::expected(plan, 0) }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn bytes(&self) -> usize {
        self.plan.bytes as usize
    }

    pub(crate) fn payload(&self) -> Option<&Arc<[u8]>> {
        self.payload.as_ref()
    }

    /// Whether chunks are no longer accepted: the payload is here, or the plan contradicts itself.
    pub(crate) fn is_closed(&self) -> bool {
        self.payload.is_some() || self.is_contradicted
    }

    /// Whether the plan was found to contradict itself.
    pub(crate) fn is_contradicted(&self) -> bool {
        self.is_contradicted
    }

    /// Whether a check is running.
    pub(crate) fn is_checking(&self) -> bool {
        self.ticket.is_out()
    }

    /// Takes a candidate, if it has the plan's length and there is room.
    pub(crate) fn offer(
        &mut self,
        from: Option<PublicKey>,
        payload: &[u8],
        keep: impl FnOnce() -> Arc<[u8]>,
    ) -> Accepted {
        if self.payload.is_some() {
            return Accepted::Duplicate;
        }
        if payload.len() != self.bytes() {
            let (found, expected) = (payload.len(), self.bytes());
            return Accepted::Malformed(Malformed::Length { found, expected });
        }
        let mut candidates = self.waiting.iter().chain(&self.comparing);
        if candidates.clone().any(|candidate| *candidate.payload == *payload) {
            return Accepted::Duplicate;
        }
        let of_peers = candidates.clone().filter(|candidate| candidate.from.is_some()).count();
        let is_full = from.is_some() && of_peers >= self.candidates_max;
        if is_full || candidates.any(|candidate| candidate.from == from) {
            return Accepted::Surplus;
        }
        self.waiting.push_back(Candidate { from, payload: keep() });
        Accepted::Waiting
    }

    /// Counts the candidates, including the one that is being compared.
    pub(crate) fn candidates(&self) -> usize {
        self.waiting.len() + usize::from(self.comparing.is_some())
    }

    /// Whether a candidate waits.
    pub(crate) fn has_candidate(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The next work of a codec whose chunks are checked: `chunks_work` is the work on chunks, which comes last.
    pub(crate) fn work(&self, is_vouched: bool, chunks_work: impl FnOnce() -> Option<Work>) -> Option<Work> {
        if self.is_checking() || self.is_contradicted() {
            return None;
        }
        if self.payload.is_some() {
            return (!is_vouched).then_some(Work::Vouch);
        }
        if self.has_candidate() { Some(Work::Compare) } else { chunks_work() }
    }

    /// Issues the check of the next candidate.
    pub(crate) fn compare(&mut self) -> Option<Check> {
        let candidate = self.comparing.insert(self.waiting.pop_front()?);
        let (payload, digest) = (candidate.payload.clone(), self.plan.digest);
        Some(
            self.ticket
                .issue(Work::Compare, move || CheckResult::Compared(payload_digest(&payload) == digest)),
        )
    }

    /// Issues a check of the codec's own.
    pub(crate) fn issue(&mut self, work: Work, job: impl FnOnce() -> CheckResult + Send + 'static) -> Check {
        self.ticket.issue(work, job)
    }

    /// Takes the result of the running check; ignores any other result.
    pub(crate) fn redeem(&mut self, checked: Checked) -> Option<CheckResult> {
        self.ticket.redeem(checked)
    }

    /// Takes the result of a comparison.
    pub(crate) fn compared(&mut self, is_right: bool) -> Vec<Verdict> {
        let Some(Candidate { from, payload }) = self.comparing.take() else { return Vec::new() };
        if is_right {
            self.complete(payload);
        }
        match from {
            Some(peer) if is_right => vec![Verdict::Useful(peer)],
            Some(peer) => vec![Verdict::Forged(peer)],
            None if is_right => Vec::new(),
            None => vec![Verdict::NotThis],
        }
    }

    /// Takes the payload, whose digest was found right.
    pub(crate) fn complete(&mut self, payload: Arc<[u8]>) {
        self.payload = Some(payload);
        self.waiting.clear();
    }

    /// Notes that the plan contradicts itself.
    pub(crate) fn contradict(&mut self) -> Vec<Verdict> {
        self.is_contradicted = true;
        vec![Verdict::WrongPlan]
    }

    /// Drops this peer's waiting candidates.
    pub(crate) fn forget(&mut self, peer: &PublicKey) {
        self.waiting.retain(|candidate| candidate.from.as_ref() != Some(peer));
    }

    /// Bytes of the payload and of the candidates for it.
    pub(crate) fn held_bytes(&self) -> usize {
        (self.candidates() + usize::from(self.payload.is_some())) * self.bytes()
    }

    /// The maximum of [`WholePayload::held_bytes`]. Either this node's own candidate is held as well as the peers'
    /// candidates, or the payload has replaced all candidates but one under comparison.
    pub(crate) fn held_bytes_max(&self) -> usize {
        (self.candidates_max + 1).max(2) * self.bytes()
    }
}
