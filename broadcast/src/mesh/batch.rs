//! [`Batch`]: a certified batch that is spread.

use std::{collections::BTreeSet, sync::Arc};

use slipstream_network::PeerId;
use slipstream_types::{
    BatchHeader, Blob, Certificate, Digest, PublicKey, accumulator::Accumulator, bounded::BoundedVec,
};
use tokio::time::{Duration, Instant};

use super::{
    Source,
    effect::Delivery,
    payload::{Payload, State},
};
use crate::message::{Announced, Message, Part, SignedPlan, Wants};

/// How long a body waits for its hints, which save an executor more than that.
const HINTS_PATIENCE: Duration = Duration::from_millis(30);
/// How long a body may take, beside its time at 8 Mbit/s: then it is left to sync to fetch it.
const BODY_PATIENCE: Duration = Duration::from_secs(2);
/// How long a batch without a body's plan waits for one: somebody on the way may have left it out.
const PLAN_PATIENCE: Duration = Duration::from_millis(300);

/// Whom this node has told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Telling {
    /// Nobody yet.
    Nobody,
    /// Some; those that nobody else tells until then are told as well.
    Some(Instant),
    /// Everybody.
    All,
}

/// See the module. Its certificate was checked.
pub(super) struct Batch {
    pub(super) header: Arc<BatchHeader>,
    pub(super) digest: Digest,
    /// The ledger up to it; none of one that this node published, until it is the head.
    pub(super) accumulator: Option<Accumulator>,
    pub(super) certificate: Certificate,
    /// Who told of it first.
    from: PeerId,
    pub(super) plans: Vec<SignedPlan>,
    pub(super) payloads: Vec<Payload>,
    /// Peers that know of it.
    pub(super) told: BTreeSet<PeerId>,
    began_at: Instant,
    pub(super) telling: Telling,
    body: Option<(Blob, Instant)>,
    /// And whose they are.
    hints: Option<(Blob, PublicKey)>,
    pub(super) is_delivered: bool,
}

impl Batch {
    pub(super) fn new(
        from: PeerId,
        (header, digest, accumulator): (BatchHeader, Digest, Option<Accumulator>),
        certificate: Certificate,
        now: Instant,
    ) -> Batch {
        Batch {
            header: Arc::new(header),
            digest,
            accumulator,
            certificate,
            from,
            plans: Vec::new(),
            payloads: Vec::new(),
            told: BTreeSet::new(),
            began_at: now,
            telling: Telling::Nobody,
            body: None,
            hints: None,
            is_delivered: false,
        }
    }

    /// Becomes a source of a payload, whatever of it came before.
    pub(super) fn take_source(&mut self, signed: SignedPlan, source: Source, now: Instant) {
        self.payloads.retain(|payload| payload.id != source.id);
        // Nobody needs another plan of it, and a message has room for few.
        self.plans.retain(|plan| plan.part != source.part);
        self.plans.push(signed);
        let mut payload = Payload::new((source.id, source.part), self.from, source.codec, now);
        payload.state = State::Whole;
        self.payloads.push(payload);
    }

    /// When the rest is told.
    pub(super) fn tell_at(&self) -> Option<Instant> {
        match self.telling {
            Telling::Some(at) => Some(at),
            Telling::Nobody | Telling::All => None,
        }
    }

    /// The message that tells of it.
    pub(super) fn message(&self) -> Option<Message> {
        Some(Message::Batch(Box::new(Announced {
            header: BatchHeader::clone(&self.header),
            certificate: self.certificate.clone(),
            plans: BoundedVec::new(self.plans.clone()).ok()?,
        })))
    }

    /// Notes a part that is here.
    pub(super) fn keep(&mut self, (part, signer): (Part, PublicKey), blob: Blob, now: Instant) {
        match part {
            Part::Body => self.body = Some((blob, now)),
            Part::Hints => self.hints = Some((blob, signer)),
        }
    }

    /// When to look again whether it is to be delivered as it is.
    pub(super) fn deliver_at(&self, wants: Wants) -> Option<Instant> {
        if self.is_delivered {
            return None;
        }
        Some(match &self.body {
            _ if !wants.body => self.began_at,
            Some((_, at)) if self.waits_for_hints(wants) => *at + HINTS_PATIENCE,
            Some((_, at)) => *at,
            None => match self.coming(Part::Body) {
                Some(payload) => {
                    let transfer = Duration::from_micros(payload.codec.plan().bytes.into());
                    self.began_at + BODY_PATIENCE + transfer
                }
                None => self.began_at + PLAN_PATIENCE,
            },
        })
    }

    fn waits_for_hints(&self, wants: Wants) -> bool {
        wants.hints && self.hints.is_none() && self.coming(Part::Hints).is_some()
    }

    fn coming(&self, part: Part) -> Option<&Payload> {
        self.payloads.iter().find(|payload| payload.part == part && payload.is_coming())
    }

    /// What is delivered; what comes later is only passed on.
    pub(super) fn deliver(&mut self) -> Delivery {
        self.is_delivered = true;
        let (hints, signer) = self.hints.take().unzip();
        Delivery {
            from: signer.unwrap_or(self.from),
            header: BatchHeader::clone(&self.header),
            certificate: self.certificate.clone(),
            body: self.body.take().map(|(body, _)| body),
            hints,
        }
    }
}
