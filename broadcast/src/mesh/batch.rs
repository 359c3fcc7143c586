//! [`Batch`]: a certified batch that is being spread.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use slipstream_network::PeerId;
use slipstream_types::{
    BatchHeader, Blob, Certificate, Digest, PublicKey, ValidatorSet, accumulator::Accumulator,
    bounded::BoundedVec, limits,
};
use tokio::time::{Duration, Instant};

use super::{
    Source,
    effect::Delivery,
    payload::{Payload, State},
};
use crate::message::{Announced, Message, PLANS_MAX, Part, PayloadId, SignedPlan, Wants};

/// How long a body waits for its hints, which save an executor more time than that.
const HINTS_PATIENCE: Duration = Duration::from_millis(30);
/// How long a body may take, beyond the time that its certified bytes take at 8 Mbit/s. After that, sync fetches it.
const BODY_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of validators other than a batch's leader whose plans of the body are taken.
const LENDERS_MAX: usize = 2;
/// Maximum number of plans of one part that one validator may sign in one view. A liar's true plan must be among them,
/// and an honest validator that restarts may cut the same content in another way.
const SIGNED_MAX: usize = 2;
/// How long a batch without a body's plan waits for one: a peer on the way may have left it out.
const PLAN_PATIENCE: Duration = Duration::from_millis(300);

/// The peers to which this node has announced the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AnnouncementStage {
    /// To no peer yet.
    Nobody,
    /// To some peers. At this time, it is announced to the peers to which nobody seems to have announced it.
    Some(Instant),
    /// To all peers.
    All,
}

/// The parts of the batch that were handed over to the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DeliveryStage {
    /// No part was handed over yet.
    Nothing,
    /// Only the report that the body is missing: sync fetches the batch, unless the body still arrives.
    GaveUp,
    /// All wanted parts, or the batch is here by other ways.
    All,
}

/// The parts of a batch that a peer knows.
#[derive(Default)]
pub(super) struct PeerKnowledge {
    pub(super) plans: BTreeSet<PayloadId>,
    /// Views whose certificate the peer has.
    views: BTreeSet<u64>,
}

/// A certified batch; see the module. Its certificates were checked.
pub(super) struct Batch {
    pub(super) header: Arc<BatchHeader>,
    pub(super) digest: Digest,
    /// The accumulator of the ledger up to the batch. `None` for a batch that this node published, until it is the
    /// head.
    pub(super) accumulator: Option<Accumulator>,
    /// The batch's checked certificates, by their views: more than one if the view changed while the batch was agreed
    /// on.
    certificates: BTreeMap<u64, Certificate>,
    /// The peers that announced the batch, the first one first.
    pub(super) tellers: Vec<PeerId>,
    pub(super) plans: Vec<(PayloadId, SignedPlan)>,
    pub(super) payloads: Vec<Payload>,
    /// The peers that know of the batch, each with what it knows.
    pub(super) told: BTreeMap<PeerId, PeerKnowledge>,
    /// Payloads with a plan that are not assembled here, and since when.
    pub(super) declined: BTreeMap<PayloadId, Instant>,
    pub(super) began_at: Instant,
    pub(super) telling: AnnouncementStage,
    /// When this node itself spreads the batch, unless the leader has begun.
    pub(super) lead_at: Option<Instant>,
    /// The body, the signer of its plan, and when it arrived.
    body: Option<(Blob, PublicKey, Instant)>,
    hints: Option<(Blob, PublicKey)>,
    pub(super) handed: DeliveryStage,
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
            certificates: BTreeMap::from([(certificate.view, certificate)]),
            tellers: Vec::new(),
            plans: Vec::new(),
            payloads: Vec::new(),
            told: BTreeMap::new(),
            declined: BTreeMap::new(),
            began_at: now,
            telling: AnnouncementStage::Nobody,
            lead_at: None,
            body: None,
            hints: None,
            handed: DeliveryStage::Nothing,
        }
    }

    /// Makes this node a source of a payload, even if some of the payload came before.
    pub(super) fn take_source(
        &mut self,
        signed: SignedPlan,
        signer: PublicKey,
        source: Source,
        now: Instant,
    ) {
        self.declined.remove(&source.id);
        // This node's own plan comes before those of others, so that a message has room for it.
        self.plans.retain(|(id, _)| *id != source.id);
        self.plans.insert(0, (source.id, signed));
        let mut payload = Payload::new((source.id, source.part), signer, source.codec, now);
        payload.state = State::Whole;
        if let Some(before) = self.payloads.iter().position(|payload| payload.id == source.id) {
            payload.sides = self.payloads.swap_remove(before).sides;
        }
        self.payloads.push(payload);
        if self.telling == AnnouncementStage::All {
            self.telling = AnnouncementStage::Some(now);
        }
    }

    /// Whether there is room for a plan. The leaders of the batch's views have room of their own. For a body, two other
    /// validators may add plans too, in case the leader is silent and one of them lies.
    pub(super) fn has_room(&self, plan: &SignedPlan, set: &ValidatorSet) -> bool {
        let leads = |plan: &SignedPlan| plan.signer == set.primary(plan.view);
        let alike = || self.plans.iter().map(|(_, known)| known).filter(|known| known.part == plan.part);
        let has_room = match plan.part {
            _ if leads(plan) => true,
            Part::Body => alike().filter(|known| !leads(known)).count() < LENDERS_MAX,
            // Hints are what one executor saw, so each validator's differ: only the leader's are spread.
            Part::Hints => false,
        };
        let of_signer = alike().filter(|known| (known.signer, known.view) == (plan.signer, plan.view));
        self.certificates.contains_key(&plan.view) && has_room && of_signer.count() < SIGNED_MAX
    }

    /// Notes a checked certificate.
    pub(super) fn certified(&mut self, certificate: Certificate) {
        self.certificates.entry(certificate.view).or_insert(certificate);
    }

    /// Its certificate in a view.
    pub(super) fn certificate_of(&self, view: u64) -> Option<&Certificate> {
        self.certificates.get(&view)
    }

    /// Any of its certificates, and the number of them.
    pub(super) fn certificate(&self) -> Option<(&Certificate, usize)> {
        Some((self.certificates.values().next()?, self.certificates.len()))
    }

    /// The payload with this id.
    pub(super) fn payload(&mut self, id: &PayloadId) -> Option<&mut Payload> {
        self.payloads.iter_mut().find(|payload| payload.id == *id)
    }

    /// Whether the body is spread under a plan that this node serves or has no reason to doubt. Peers' claims to have
    /// the body prove nothing.
    pub(super) fn is_spread(&self, liars: &BTreeSet<PublicKey>) -> bool {
        let of_body = |payload: &&Payload| payload.part == Part::Body;
        let is_good = |it: &Payload| it.state != State::Over && !liars.contains(&it.signer);
        self.payloads.iter().filter(of_body).any(is_good)
    }

    /// When to tell the remaining peers.
    pub(super) fn tell_at(&self) -> Option<Instant> {
        match self.telling {
            AnnouncementStage::Some(at) => Some(at),
            AnnouncementStage::Nobody | AnnouncementStage::All => None,
        }
    }

    /// The messages that announce the batch to a peer: the whole announcement, or only plans that are new to the peer,
    /// with their view's certificate.
    pub(super) fn tell(&mut self, peer: PeerId) -> Vec<Message> {
        let number = self.header.number;
        let told = self.told.entry(peer).or_default();
        let mut news: BTreeMap<u64, Vec<SignedPlan>> = BTreeMap::new();
        if told.views.is_empty() {
            // This node's own plan comes first, if it has one.
            let first = self.plans.first().map(|(_, plan)| plan.view);
            let first = first.filter(|view| self.certificates.contains_key(view));
            news.extend(first.or(self.certificates.keys().next().copied()).map(|view| (view, Vec::new())));
        }
        for (id, plan) in &self.plans {
            if told.plans.insert(*id) {
                news.entry(plan.view).or_default().push(plan.clone());
            }
        }
        let mut messages = Vec::new();
        for (view, mut plans) in news {
            if told.views.insert(view)
                && let Some(certificate) = self.certificates.get(&view)
            {
                let rest = plans.split_off(plans.len().min(PLANS_MAX));
                let plans = BoundedVec::new(std::mem::replace(&mut plans, rest)).unwrap_or_default();
                let (header, certificate) = (BatchHeader::clone(&self.header), certificate.clone());
                messages.push(Message::Batch(Box::new(Announced { header, certificate, plans })));
            }
            messages.extend(plans.into_iter().map(|plan| Message::Plan { number, plan: Box::new(plan) }));
        }
        messages
    }

    /// Notes that a peer showed a certificate of the batch.
    pub(super) fn shown(&mut self, peer: PeerId, view: u64) {
        if self.certificates.contains_key(&view) {
            self.told.entry(peer).or_default().views.insert(view);
        }
    }

    /// Whether a peer knows a plan.
    pub(super) fn knows(&self, peer: &PeerId, id: &PayloadId) -> bool {
        self.told.get(peer).is_some_and(|told| told.plans.contains(id))
    }

    /// Forgets a peer that left, or was cut off.
    pub(super) fn forget(&mut self, peer: &PeerId) {
        self.told.remove(peer);
        self.tellers.retain(|teller| teller != peer);
        self.payloads.iter_mut().for_each(|payload| payload.forget(peer));
    }

    /// Forgets what a restarted peer knew. The chunks that it got on request stay counted.
    pub(super) fn restarted(&mut self, peer: &PeerId) {
        self.told.remove(peer);
        self.payloads.iter_mut().for_each(|payload| payload.restarted(peer));
    }

    /// Keeps a part that is here.
    pub(super) fn keep(&mut self, (part, signer): (Part, PublicKey), blob: Blob, now: Instant) {
        match part {
            _ if self.handed == DeliveryStage::All => {}
            Part::Body => self.body = Some((blob, signer, now)),
            Part::Hints => self.hints = Some((blob, signer)),
        }
    }

    /// When to hand over the present parts, or to report a missing body. Returns `None` for a node that wants no bodies.
    pub(super) fn deliver_at(&self, wants: Wants) -> Option<Instant> {
        match (&self.body, self.handed) {
            (_, DeliveryStage::All) => None,
            (Some((.., at)), _) if self.waits_for_hints(wants) => Some(*at + HINTS_PATIENCE),
            (Some((.., at)), _) => Some(*at),
            (None, DeliveryStage::Nothing) if wants.body => Some(self.give_up_at()),
            (None, _) => None,
        }
    }

    /// Maximum bytes of a compressed part: incompressible content grows by a byte in 255, and by its head.
    pub(super) fn bytes_max(&self, part: Part) -> u64 {
        let content = match part {
            Part::Body => u64::from(self.header.tx_bytes),
            Part::Hints => limits::HINTS_BYTES_MAX as u64,
        };
        content + content / 255 + 64
    }

    /// The time until which the body may arrive.
    pub(super) fn give_up_at(&self) -> Instant {
        match self.coming(Part::Body) {
            Some(payload) => {
                self.began_at + BODY_PATIENCE + Duration::from_micros(payload.codec.plan().bytes.into())
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

    /// The delivery, if the body is here. Parts that arrive later are only passed on.
    pub(super) fn deliver(&mut self) -> Option<Delivery> {
        let (certificate, _) = self.certificate()?;
        let (header, certificate) = (BatchHeader::clone(&self.header), certificate.clone());
        let (body, body_signer, _) = self.body.take()?;
        self.handed = DeliveryStage::All;
        let (hints, signer) = self.hints.take().unzip();
        // The peer that announced it may have left meanwhile.
        let from = signer.or(self.tellers.first().copied()).unwrap_or(body_signer);
        Some(Delivery { from, header, certificate, body, hints })
    }
}
