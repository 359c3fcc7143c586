//! [`Batch`]: a certified batch that is spread.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use slipstream_network::PeerId;
use slipstream_types::{
    BatchHeader, Blob, Certificate, Digest, PublicKey, ValidatorSet, accumulator::Accumulator,
    bounded::BoundedVec,
};
use tokio::time::{Duration, Instant};

use super::{
    Source,
    effect::Delivery,
    payload::{Payload, State},
};
use crate::message::{Announced, Message, PLANS_MAX, Part, PayloadId, SignedPlan, Wants};

/// How long a body waits for its hints, which save an executor more than that.
const HINTS_PATIENCE: Duration = Duration::from_millis(30);
/// How long a body may take, beside the time of its certified bytes at 8 Mbit/s: then it is left to sync to fetch it.
const BODY_PATIENCE: Duration = Duration::from_secs(2);
/// What a body may be longer than its transactions are.
const BODY_SLACK_BYTES: u32 = 64 << 10;
/// Validators beside a batch's leader whose plan of its body is taken.
const LENDERS_MAX: usize = 2;
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

/// What was handed over of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Handed {
    /// Nothing yet.
    Nothing,
    /// That it does not come: sync fetches it, unless its body comes later after all.
    GaveUp,
    /// All that is wanted of it, or it is here by other ways.
    All,
}

/// See the module. Its certificate was checked.
pub(super) struct Batch {
    pub(super) header: Arc<BatchHeader>,
    pub(super) digest: Digest,
    /// The ledger up to it; none of one that this node published, until it is the head.
    pub(super) accumulator: Option<Accumulator>,
    pub(super) certificate: Certificate,
    /// The views of its certificates that were checked: more than one if the view changed while it was agreed on.
    pub(super) views: BTreeSet<u64>,
    /// Who told of it, the first one first.
    pub(super) tellers: Vec<PeerId>,
    pub(super) plans: Vec<(PayloadId, SignedPlan)>,
    pub(super) payloads: Vec<Payload>,
    /// Peers that know of it, and which plans they know.
    pub(super) told: BTreeMap<PeerId, BTreeSet<PayloadId>>,
    pub(super) began_at: Instant,
    pub(super) telling: Telling,
    /// When this node spreads it itself, unless whoever should has begun.
    pub(super) lead_at: Option<Instant>,
    body: Option<(Blob, Instant)>,
    /// And whose they are.
    hints: Option<(Blob, PublicKey)>,
    pub(super) handed: Handed,
}

impl Batch {
    pub(super) fn new(
        (header, digest, accumulator): (BatchHeader, Digest, Option<Accumulator>),
        certificate: Certificate,
        now: Instant,
    ) -> Batch {
        Batch {
            header: Arc::new(header),
            digest,
            accumulator,
            views: BTreeSet::from([certificate.view]),
            certificate,
            tellers: Vec::new(),
            plans: Vec::new(),
            payloads: Vec::new(),
            told: BTreeMap::new(),
            began_at: now,
            telling: Telling::Nobody,
            lead_at: None,
            body: None,
            hints: None,
            handed: Handed::Nothing,
        }
    }

    /// Becomes a source of a payload, whatever of it came before.
    pub(super) fn take_source(
        &mut self,
        signed: SignedPlan,
        signer: PublicKey,
        source: Source,
        now: Instant,
    ) {
        // Its own plan stands before those of others, so that a message has room for it.
        self.plans.retain(|(id, _)| *id != source.id);
        self.plans.insert(0, (source.id, signed));
        let mut payload = Payload::new((source.id, source.part), signer, source.codec, now);
        payload.state = State::Whole;
        if let Some(before) = self.payloads.iter().position(|payload| payload.id == source.id) {
            payload.sides = self.payloads.swap_remove(before).sides;
        }
        self.payloads.push(payload);
        if self.telling == Telling::All {
            self.telling = Telling::Some(now);
        }
    }

    /// Whether there is room for a plan. Whoever leads one of its views has places of its own, which no other validator takes; of a body two
    /// others may tell as well, should the leader be silent, and one of them false.
    pub(super) fn has_room(&self, plan: &SignedPlan, set: &ValidatorSet) -> bool {
        let leads = |plan: &SignedPlan| plan.signer == set.primary(plan.view);
        let alike = || self.plans.iter().map(|(_, known)| known).filter(|known| known.part == plan.part);
        if !self.views.contains(&plan.view) || alike().any(|known| known.signer == plan.signer) {
            return false;
        }
        match plan.part {
            _ if leads(plan) => true,
            Part::Body => alike().filter(|known| !leads(known)).count() < LENDERS_MAX,
            // Hints are what an executor saw, so that each validator's differ: the leader's are spread.
            Part::Hints => false,
        }
    }

    /// The payload of a name.
    pub(super) fn payload(&mut self, id: &PayloadId) -> Option<&mut Payload> {
        self.payloads.iter_mut().find(|payload| payload.id == *id)
    }

    /// Whether somebody spreads its body: this node can serve it under a plan, or a peer says that it has it by one.
    pub(super) fn is_spread(&self) -> bool {
        let of_body = |payload: &&Payload| payload.part == Part::Body;
        let is_good = |it: &Payload| it.state != State::Over || it.sides.values().any(|side| side.has);
        self.payloads.iter().filter(of_body).any(is_good)
    }

    /// When the rest is told.
    pub(super) fn tell_at(&self) -> Option<Instant> {
        match self.telling {
            Telling::Some(at) => Some(at),
            Telling::Nobody | Telling::All => None,
        }
    }

    /// What a peer is to be told that it does not know: all of it, or plans that are new to it.
    pub(super) fn tell(&mut self, peer: PeerId) -> Vec<Message> {
        let number = self.header.number;
        let is_new = !self.told.contains_key(&peer);
        let known = self.told.entry(peer).or_default();
        let news = self.plans.iter().filter(|(id, _)| known.insert(*id));
        let mut news: Vec<_> = news.map(|(_, plan)| plan.clone()).collect();
        let mut messages = Vec::new();
        if is_new {
            let rest = news.split_off(news.len().min(PLANS_MAX));
            let plans = BoundedVec::new(std::mem::replace(&mut news, rest)).unwrap_or_default();
            let (header, certificate) = (BatchHeader::clone(&self.header), self.certificate.clone());
            messages.push(Message::Batch(Box::new(Announced { header, certificate, plans })));
        }
        messages.extend(news.into_iter().map(|plan| Message::Plan { number, plan: Box::new(plan) }));
        messages
    }

    /// Whether a peer knows a plan.
    pub(super) fn knows(&self, peer: &PeerId, id: &PayloadId) -> bool {
        self.told.get(peer).is_some_and(|known| known.contains(id))
    }

    /// A peer left, or was cut off.
    pub(super) fn forget(&mut self, peer: &PeerId) {
        self.told.remove(peer);
        self.tellers.retain(|teller| teller != peer);
        self.payloads.iter_mut().for_each(|payload| payload.forget(peer));
    }

    /// A peer has started again: it knows nothing, and what it may ask for stays counted.
    pub(super) fn restarted(&mut self, peer: &PeerId) {
        self.told.remove(peer);
        self.payloads.iter_mut().for_each(|payload| payload.restarted(peer));
    }

    /// Notes a part that is here.
    pub(super) fn keep(&mut self, (part, signer): (Part, PublicKey), blob: Blob, now: Instant) {
        match part {
            _ if self.handed == Handed::All => {}
            Part::Body => self.body = Some((blob, now)),
            Part::Hints => self.hints = Some((blob, signer)),
        }
    }

    /// When to hand over what is here, or to say that it does not come; never for who wants no bodies.
    pub(super) fn deliver_at(&self, wants: Wants) -> Option<Instant> {
        match (&self.body, self.handed) {
            (_, Handed::All) => None,
            (Some((_, at)), _) if self.waits_for_hints(wants) => Some(*at + HINTS_PATIENCE),
            (Some((_, at)), _) => Some(*at),
            (None, Handed::Nothing) if wants.body => Some(self.give_up_at()),
            (None, _) => None,
        }
    }

    /// Until when the body may come.
    pub(super) fn give_up_at(&self) -> Instant {
        match self.coming(Part::Body) {
            Some(payload) => {
                let bytes = payload.codec.plan().bytes.min(self.header.tx_bytes + BODY_SLACK_BYTES);
                self.began_at + BODY_PATIENCE + Duration::from_micros(bytes.into())
            }
            None => self.began_at + PLAN_PATIENCE,
        }
    }

    fn waits_for_hints(&self, wants: Wants) -> bool {
        wants.hints && self.hints.is_none() && self.coming(Part::Hints).is_some()
    }

    fn coming(&self, part: Part) -> Option<&Payload> {
        self.payloads.iter().find(|payload| payload.part == part && payload.is_coming())
    }

    /// What is handed over, if its body is here; what comes later is only passed on.
    pub(super) fn deliver(&mut self) -> Option<Delivery> {
        let (body, _) = self.body.take()?;
        self.handed = Handed::All;
        let (hints, signer) = self.hints.take().unzip();
        Some(Delivery {
            from: signer.or(self.tellers.first().copied())?,
            header: BatchHeader::clone(&self.header),
            certificate: self.certificate.clone(),
            body,
            hints,
        })
    }
}
