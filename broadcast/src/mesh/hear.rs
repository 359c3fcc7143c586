//! Batches that are told of: whether they are true, and who is told next.

use std::sync::Arc;

use rand::seq::IteratorRandom;
use slipstream_coding::open;
use slipstream_network::{PeerId, Priority};
use slipstream_types::{
    BatchHeader, BatchNumber, Certificate, Digest, PublicKey, accumulator::Accumulator, bounded::BoundedVec,
};
use tokio::time::{Duration, Instant};

use super::{
    AHEAD_MAX, KEPT, Mesh, Source,
    batch::{Batch, Telling},
    effect::{Delivery, Effect},
    payload::Payload,
};
use crate::message::{Announced, Message, Part, PayloadId, SignedPlan};

/// Peers whose announcement of one batch waits for the batch before it.
const WAITING_MAX: usize = 3;
/// How long it is left to others to tell the peers that this node did not tell at once.
const LAZY: Duration = Duration::from_millis(150);
/// Payloads of one part of a batch: a second one only if validators disagree.
const PAYLOADS_MAX: usize = 2;
/// Bytes of all payloads that may come to be held. Only validators can fill it, by signing plans of what they never send.
const BYTES_MAX: usize = 256 << 20;

impl Mesh {
    /// A validator tells of a batch that it committed, with the payloads of which it is a source, in the order of the plans.
    pub fn publish(&mut self, announced: Announced, sources: Vec<Source>, now: Instant) {
        let Announced { header, certificate, plans } = announced;
        let number = header.number;
        let Some(batch) = self.take_own(header, certificate, now) else { return };
        let ids: Vec<_> = sources.iter().map(|source| source.id).collect();
        for (signed, source) in plans.into_inner().into_iter().zip(sources) {
            batch.take_source(signed, source, now);
        }
        for id in &ids {
            self.places.insert(*id, number);
        }
        self.tell_some(number, now);
        ids.into_iter().for_each(|id| self.begin_at_source(id));
    }

    /// A validator has the body of a batch that another one spreads: it serves it as well, under the other's plan. Should nobody tell of
    /// the batch, this node does.
    pub fn lend(&mut self, header: BatchHeader, certificate: Certificate, body: Arc<[u8]>, now: Instant) {
        let number = header.number;
        let Some(batch) = self.take_own(header, certificate, now) else { return };
        if batch.telling == Telling::Nobody {
            batch.telling = Telling::Some(now + LAZY);
        }
        let plans = batch.plans.clone();
        self.own.insert(number, body);
        for plan in plans {
            self.take_up(number, &plan, None, now);
        }
    }

    /// The entry of a batch that this node has from consensus, unless it is too old.
    fn take_own(
        &mut self,
        header: BatchHeader,
        certificate: Certificate,
        now: Instant,
    ) -> Option<&mut Batch> {
        let (number, digest) = (header.number, header.digest());
        if number.0 + KEPT <= self.head.number.0 {
            return None;
        }
        let place = (header, digest, None);
        let batch =
            self.batches.entry(number).or_insert_with(|| Batch::new(self.local, place, certificate, now));
        batch.is_delivered = true;
        (batch.digest == digest).then_some(batch)
    }

    /// Takes an announcement, the cheap checks first.
    pub(super) fn hear(&mut self, from: PeerId, announced: Announced, now: Instant) {
        let number = announced.header.number;
        if announced.header.epoch > self.head.set.epoch || number.0 > self.head.number.0 + AHEAD_MAX {
            // Sync finds out whether there is so much that is new, and fetches it.
            self.say_needless(from, &announced);
            return self.effects.push_back(Effect::Deliver(Box::new(Delivery {
                from,
                header: announced.header,
                certificate: announced.certificate,
                body: None,
                hints: None,
            })));
        }
        if !self.batches.contains_key(&number) && !self.admit(from, &announced, now) {
            return;
        }
        let Announced { header, plans, .. } = announced;
        if self.batches.get(&number).is_none_or(|batch| batch.digest != header.digest()) {
            // A second header of a number: there is a fork, or the peer made it up; nothing tells which.
            return self.charge(from, 0, now);
        }
        self.add_plans(from, number, plans.into_inner(), now);
        if number <= self.head.number {
            self.need_no_more(number, now);
        }
        self.tell_some(number, now);
        self.deliver(number, now);
        self.look_again(number.next(), now);
    }

    /// Checks that a batch is certified and follows the ledger, and takes it up.
    fn admit(&mut self, from: PeerId, announced: &Announced, now: Instant) -> bool {
        let (header, certificate) = (&announced.header, &announced.certificate);
        let number = header.number;
        if number <= self.head.number {
            // It came by other ways.
            self.charge(from, 0, now);
            self.say_needless(from, announced);
            return false;
        }
        let before = number.0 - 1;
        let announced_parent = || {
            let parent = self.batches.get(&BatchNumber(before))?;
            Some((parent.digest, parent.accumulator.as_ref()?))
        };
        let parent = match before == self.head.number.0 {
            true => Some((self.head.digest, &self.head.accumulator)),
            false => announced_parent(),
        };
        let Some(parent) = parent else {
            self.wait(from, announced.clone());
            return false;
        };
        match follows(header, certificate, parent) {
            Ok((digest, accumulator)) => match certificate.verify(&self.head.set) {
                Ok(()) => {
                    let place = (header.clone(), digest, Some(accumulator));
                    self.batches.insert(number, Batch::new(from, place, certificate.clone(), now));
                    if self.wants.body {
                        self.effects.push_back(Effect::Expect(number));
                    }
                    true
                }
                Err(error) => {
                    self.ban(from, error.to_string());
                    false
                }
            },
            Err(reason) => {
                self.ban(from, format!("batch {number} that was told of {reason}"));
                false
            }
        }
    }

    /// Tells a peer that it need send nothing of a batch: it is committed here, or fetched with those before it.
    fn say_needless(&mut self, peer: PeerId, announced: &Announced) {
        let digest = announced.header.digest();
        let ids = announced.plans.iter().filter_map(|plan| plan.id(&digest).ok()).collect();
        if let Ok(ids) = BoundedVec::new(ids) {
            self.send(peer, &Message::Have(ids), Priority::First);
        }
    }

    /// Keeps an announcement until the batch before it is here: of each peer one.
    fn wait(&mut self, from: PeerId, announced: Announced) {
        let waiting = self.waiting.entry(announced.header.number).or_default();
        if waiting.len() < WAITING_MAX && waiting.iter().all(|(other, _)| *other != from) {
            waiting.push((from, announced));
        }
    }

    /// Takes up what waited for the batch before this number.
    pub(super) fn look_again(&mut self, number: BatchNumber, now: Instant) {
        for (from, announced) in self.waiting.remove(&number).unwrap_or_default() {
            if self.peers.contains_key(&from) {
                self.hear(from, announced, now);
            }
        }
    }

    /// Takes plans of a batch that is known.
    pub(super) fn add_plans(
        &mut self,
        from: PeerId,
        number: BatchNumber,
        plans: Vec<SignedPlan>,
        now: Instant,
    ) {
        let mut is_news = false;
        for plan in plans {
            match self.add_plan(from, number, plan, now) {
                Ok(is_new) => is_news |= is_new,
                Err(reason) => return self.ban(from, reason),
            }
        }
        let Some(batch) = self.batches.get_mut(&number) else { return };
        batch.told.insert(from);
        if is_news && batch.telling == Telling::All {
            batch.telling = Telling::Some(now + LAZY);
        }
    }

    /// Takes note of a payload's plan. True if peers are to hear of it. An error is the sender's fault: it did not look at what it passes on.
    fn add_plan(
        &mut self,
        from: PeerId,
        number: BatchNumber,
        plan: SignedPlan,
        now: Instant,
    ) -> Result<bool, String> {
        let Some(batch) = self.batches.get(&number) else { return Ok(false) };
        let id = plan.id(&batch.digest).map_err(|error| error.to_string())?;
        if let Some(payload) = self.payload(&id) {
            payload.told_by(from);
            return Ok(false);
        }
        let batch = &self.batches[&number];
        if batch.plans.iter().any(|known| known.id(&batch.digest) == Ok(id)) {
            return Ok(false);
        }
        let set = &self.head.set;
        if batch.header.epoch != set.epoch {
            return Ok(false);
        }
        let signer = plan.signed_by(set, &id);
        let signer =
            signer.ok_or_else(|| format!("the plan of batch {number}'s {} is not signed", plan.part))?;
        // Hints are what an executor saw, so that each validator's differ: those of the one that had them first are spread.
        let is_due = plan.part != Part::Hints || plan.signer == set.primary(plan.view);
        let alike = batch.plans.iter().filter(|known| known.part == plan.part).count();
        if !is_due || alike >= PAYLOADS_MAX || self.liars.contains(&signer) {
            return Ok(false);
        }
        self.take_up(number, &plan, Some(from), now);
        self.batches.entry(number).and_modify(|batch| batch.plans.push(plan));
        Ok(true)
    }

    /// Begins to put a payload together, or to lend it, if there is reason to.
    fn take_up(&mut self, number: BatchNumber, plan: &SignedPlan, from: Option<PeerId>, now: Instant) {
        let own = self.own.get(&number).filter(|_| plan.part == Part::Body).cloned();
        let is_needed = self.wants.has(plan.part) && number > self.head.number;
        let Some(batch) = self.batches.get(&number).filter(|_| is_needed || own.is_some()) else { return };
        let Ok(id) = plan.id(&batch.digest) else { return };
        let signer = self.head.set.validators.get(usize::from(plan.signer));
        let Some(signer) = signer.map(|validator| validator.public_key) else { return };
        if batch.payloads.iter().any(|payload| payload.id == id) {
            return;
        }
        let Ok(codec) = open(&plan.plan) else {
            return self.lied(signer, number, "it signed a plan that nothing can be cut by");
        };
        if self.held_bytes_max() + codec.held_bytes_max() > BYTES_MAX {
            return;
        }
        let mut payload = Payload::new((id, plan.part), signer, codec, now);
        if let Some(from) = from {
            payload.told_by(from);
        }
        self.places.insert(id, number);
        self.batches.entry(number).and_modify(|batch| batch.payloads.push(payload));
        if let Some(own) = own {
            self.begin_lending(id, own);
        }
    }

    fn held_bytes_max(&self) -> usize {
        let payloads = self.batches.values().flat_map(|batch| &batch.payloads);
        payloads.map(|payload| payload.codec.held_bytes_max()).sum()
    }

    /// Tells some peers of a batch at once, of those that have told nothing of it; the rest has time to hear of it from others.
    pub(super) fn tell_some(&mut self, number: BatchNumber, now: Instant) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        if batch.telling != Telling::Nobody {
            return;
        }
        batch.telling = Telling::Some(now + LAZY);
        let told = &batch.told;
        let others = self.peers.keys().filter(|peer| !told.contains(peer)).copied();
        let chosen = others.choose_multiple(&mut self.rng, self.config.degree.into());
        chosen.into_iter().for_each(|peer| self.tell(peer, number));
    }

    /// Tells those that nobody seems to have told.
    pub(super) fn tell_the_rest(&mut self, number: BatchNumber, now: Instant) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        if batch.tell_at().is_none_or(|at| at > now) {
            return;
        }
        batch.telling = Telling::All;
        let peers: Vec<_> = self.peers.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.tell(peer, number));
    }

    /// Tells a peer what it does not know of a batch: all of it, or plans of parts that it wants.
    pub(super) fn tell(&mut self, peer: PeerId, number: BatchNumber) {
        let Some(neighbour) = self.peers.get(&peer) else { return };
        let wants = neighbour.wants;
        let Some(batch) = self.batches.get_mut(&number) else { return };
        let mut messages = Vec::new();
        if batch.told.insert(peer) {
            messages.extend(batch.message());
            batch.payloads.iter_mut().for_each(|payload| payload.side(peer).is_told = true);
        }
        for payload in &mut batch.payloads {
            let (id, part) = (payload.id, payload.part);
            let side = payload.side(peer);
            if !side.is_told && wants.has(part) {
                side.is_told = true;
                let plan = batch.plans.iter().find(|plan| plan.id(&batch.digest) == Ok(id));
                messages.extend(plan.map(|plan| Message::Plan { number, plan: Box::new(plan.clone()) }));
            }
        }
        messages.iter().for_each(|message| self.send(peer, message, Priority::First));
    }

    /// A validator signed what is false: what else it signs in this epoch is not taken.
    pub(super) fn lied(&mut self, signer: PublicKey, number: BatchNumber, what: &str) {
        self.status.liars += 1;
        tracing::error!(validator = %signer, %number, what, "a validator signed what is false about a batch");
        self.liars.insert(signer);
    }

    /// The payload of a name.
    pub(super) fn payload(&mut self, id: &PayloadId) -> Option<&mut Payload> {
        let batch = self.batches.get_mut(self.places.get(id)?)?;
        batch.payloads.iter_mut().find(|payload| payload.id == *id)
    }
}

/// Checks that a header is the one that a certificate is about, on top of its parent.
fn follows(
    header: &BatchHeader,
    certificate: &Certificate,
    (parent, before): (Digest, &Accumulator),
) -> Result<(Digest, Accumulator), &'static str> {
    if header.parent != parent {
        return Err("does not follow the ledger");
    }
    let digest = header.digest();
    let mut accumulator = before.clone();
    accumulator.append(digest);
    let info = &certificate.info;
    let is_certified = info.number == header.number
        && info.epoch == header.epoch
        && info.state_root == header.state_root
        && info.timestamp_ms == header.timestamp_ms
        && info.accumulator_root == accumulator.root();
    if is_certified { Ok((digest, accumulator)) } else { Err("has another certificate") }
}
