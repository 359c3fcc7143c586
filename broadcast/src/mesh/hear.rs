//! Takes announced batches: checks their truth, and chooses the peers to tell next.

use std::sync::Arc;

use rand::RngCore;
use slipstream_network::{PeerId, Priority};
use slipstream_types::{
    BatchHeader, BatchNumber, Certificate, Digest, PublicKey, accumulator::Accumulator, bounded::BoundedVec,
};
use tokio::time::{Duration, Instant};

use super::{
    AHEAD_MAX, KEPT, LAZY, Mesh, Source,
    batch::{AnnouncementStage, Batch, DeliveryStage},
    effect::{Effect, LeadRequest},
    payload::Payload,
};
use crate::message::{Announced, Message, PayloadId};

/// Time that sync waits beyond the mesh's own patience, so that the mesh reports first.
const EXPECT_SLACK: Duration = Duration::from_millis(50);
/// How long a batch is left to its leader before another validator spreads it.
const LEADER_PATIENCE: Duration = Duration::from_millis(300);
/// Maximum number of views of a batch whose certificates are checked: it was agreed on in one view, or in few consecutive ones.
const VIEWS_MAX: usize = 2;

impl Mesh {
    /// Announces, as a validator, a batch that was agreed on. `sources` are the payloads of which this node is a
    /// source, in the order of the plans. The node may announce other payloads of the batch later.
    pub fn handle_published(&mut self, announced: Announced, sources: Vec<Source>, now: Instant) {
        let Announced { header, certificate, plans } = announced;
        let (number, epoch) = (header.number, header.epoch);
        let Some(set) = self.set_of(epoch) else { return };
        let Some(batch) = self.take_own(header, certificate, now) else { return };
        let ids: Vec<_> = sources.iter().map(|source| source.id).collect();
        for (signed, source) in plans.into_inner().into_iter().zip(sources) {
            let Some(signer) = set.validators.get(usize::from(signed.signer)) else { continue };
            batch.take_source(signed, signer.public_key, source, now);
        }
        batch.lead_at = None;
        // Other validators lend what this one spreads.
        let validators = set.validators.iter().map(|validator| validator.public_key);
        for id in &ids {
            self.places.insert(*id, number);
        }
        validators.for_each(|validator| self.tell(validator, number));
        self.tell_some(number, now);
        ids.into_iter().for_each(|id| self.begin_at_source(id));
    }

    /// Lends the body of a batch that another validator spreads: serves it as well, under the other's plan. If nobody
    /// spreads the batch, this node does.
    pub fn handle_lent(
        &mut self,
        header: BatchHeader,
        certificate: Certificate,
        body: Arc<[u8]>,
        now: Instant,
    ) {
        let number = header.number;
        let Some(batch) = self.take_own(header, certificate, now) else { return };
        if batch.telling == AnnouncementStage::Nobody {
            batch.telling = AnnouncementStage::Some(now + LAZY);
        }
        batch.lead_at = Some(now + LEADER_PATIENCE);
        let plans = batch.plans.clone();
        self.own.insert(number, body);
        for (id, plan) in plans {
            self.take_up(number, (id, &plan), None, now);
        }
    }

    /// Spreads the body of a lent batch, if nobody else does.
    pub(super) fn lead(&mut self, number: BatchNumber, now: Instant) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        if batch.lead_at.take_if(|at| *at <= now).is_none() || batch.is_spread(&self.liars) {
            return;
        }
        let Some(body) = self.own.get(&number).cloned() else { return };
        let Some((certificate, _)) = batch.certificate() else { return };
        let (header, certificate) = (BatchHeader::clone(&batch.header), certificate.clone());
        tracing::info!(%number, "no other validator spreads a decided batch; this node spreads it");
        self.effects.push_back(Effect::Lead(Box::new(LeadRequest { header, certificate, body })));
    }

    /// The entry of a batch that this node has from consensus, unless it is too old.
    fn take_own(
        &mut self,
        header: BatchHeader,
        certificate: Certificate,
        now: Instant,
    ) -> Option<&mut Batch> {
        let (number, digest) = (header.number, header.digest());
        if self.head.number.since(number) >= KEPT {
            return None;
        }
        let (place, own) = ((header, digest, None), certificate.clone());
        let batch = self.batches.entry(number).or_insert_with(|| Batch::new(place, certificate, now));
        batch.handed = DeliveryStage::All;
        if batch.digest != digest {
            return None;
        }
        batch.certified(own);
        Some(batch)
    }

    /// Takes an announcement, the cheap checks first.
    pub(super) fn hear(&mut self, from: PeerId, announced: Announced, now: Instant) {
        let number = announced.header.number;
        let (epoch, known) = (announced.header.epoch.0, self.head.set.epoch.0);
        if epoch > known.saturating_add(1) || number > self.head.number.after(AHEAD_MAX) {
            return self.hear_far(from, &announced, now);
        }
        if !self.batches.contains_key(&number) && !self.admit(from, &announced, now) {
            return;
        }
        let Some(batch) = self.batches.get_mut(&number) else { return };
        if batch.digest != announced.header.digest() {
            // Either the chain has a fork, or the peer made the batch up; nothing shows which.
            return self.charge(from, 0, now);
        }
        if batch.tellers.contains(&from) {
            // Once is enough: repetitions are charged.
            self.charge(from, 0, now);
        } else {
            batch.tellers.push(from);
            if !self.wants.body && number > self.head.number {
                self.effects.push_back(Effect::Heard { peer: from, number });
            }
        }
        self.learn_view(from, number, &announced.certificate, now);
        self.add_plans(from, number, announced.plans.into_inner(), now);
        self.tell_some(number, now);
        self.deliver(number, now);
        self.look_again(number.next(), now);
    }

    /// Passes a batch far ahead on to sync, which finds out whether the ledger is that long, and fetches it.
    fn hear_far(&mut self, from: PeerId, announced: &Announced, now: Instant) {
        self.say_needless(from, announced);
        self.charge(from, 0, now);
        let number = announced.header.number;
        if self.peers.get_mut(&from).is_some_and(|peer| peer.is_heard_far(now)) {
            self.effects.push_back(Effect::Heard { peer: from, number });
        }
    }

    /// Checks that a batch is certified and follows the ledger, and begins its entry.
    fn admit(&mut self, from: PeerId, announced: &Announced, now: Instant) -> bool {
        let (header, certificate) = (&announced.header, &announced.certificate);
        let (number, set) = (header.number, Arc::clone(&self.head.set));
        if number <= self.head.number {
            // The batch came here by other ways.
            self.charge(from, 0, now);
            self.say_needless(from, announced);
            return false;
        }
        let is_next = number == self.head.number.next();
        if header.epoch < set.epoch || (is_next && header.epoch > set.epoch) {
            // The next batch is of this epoch, and no batch of an old epoch comes after the head.
            self.charge(from, 0, now);
            return false;
        }
        let waiting = self.waiting.get(&number).into_iter().flatten().filter(|(peer, _)| *peer == from);
        let views: Vec<u64> = waiting.map(|(_, announced)| announced.certificate.view).collect();
        if views.contains(&certificate.view) || views.len() >= VIEWS_MAX {
            self.charge(from, 0, now);
            return false;
        }
        let checked = is_of(header, certificate).and_then(|()| match header.epoch > set.epoch {
            // Its validators are known once the batch before it is here.
            true => Ok(()),
            false => certificate.verify(&set).map_err(|error| format!("has an invalid certificate: {error}")),
        });
        if let Err(reason) = checked {
            self.ban(from, format!("the announced batch {number} {reason}"), now);
            return false;
        }
        if header.epoch > set.epoch {
            self.wait(from, announced);
            return false;
        }
        let before = number.before(1);
        let announced_parent = || {
            let parent = self.batches.get(&before)?;
            Some((parent.digest, parent.accumulator.as_ref()?))
        };
        let parent = match before == self.head.number {
            true => Some((self.head.digest, &self.head.accumulator)),
            false => announced_parent(),
        };
        let Some(parent) = parent else {
            self.wait(from, announced);
            return false;
        };
        match follows(header, certificate, parent) {
            Ok((digest, accumulator)) => {
                let place = (header.clone(), digest, Some(accumulator));
                let batch = Batch::new(place, certificate.clone(), now);
                self.batches.insert(number, batch);
                self.expect(number);
                true
            }
            Err(reason) => {
                self.ban(from, format!("the announced batch {number} {reason}"), now);
                false
            }
        }
    }

    /// Makes sync leave a batch to the mesh for as long as it may take.
    pub(super) fn expect(&mut self, number: BatchNumber) {
        let Some(batch) = self.batches.get(&number) else { return };
        if self.wants.body && number > self.head.number && batch.handed == DeliveryStage::Nothing {
            let until = batch.give_up_at() + EXPECT_SLACK;
            self.effects.push_back(Effect::Expect { number, until });
        }
    }

    /// Tells a peer to send nothing of a batch: the batch is committed here, or fetched with the batches before it.
    fn say_needless(&mut self, peer: PeerId, announced: &Announced) {
        let digest = announced.header.digest();
        let ids: Vec<_> = announced.plans.iter().filter_map(|plan| plan.id(&digest).ok()).collect();
        if let Ok(ids) = BoundedVec::new(ids)
            && !ids.is_empty()
        {
            self.send(peer, &Message::Have(ids), Priority::First);
        }
    }

    /// Keeps an announcement until the batch before it is here. Each peer has room of its own, because anybody can
    /// invent batches of an epoch whose validators are not known yet.
    fn wait(&mut self, from: PeerId, announced: &Announced) {
        self.waiting.entry(announced.header.number).or_default().push((from, announced.clone()));
    }

    /// Takes up the announcements that waited for the batch before this number.
    pub(super) fn look_again(&mut self, number: BatchNumber, now: Instant) {
        for (from, announced) in self.waiting.remove(&number).unwrap_or_default() {
            if self.peers.contains_key(&from) {
                self.hear(from, announced, now);
            }
        }
    }

    /// Notes another view in which a batch was agreed on: plans of its leader count as well.
    fn learn_view(&mut self, from: PeerId, number: BatchNumber, certificate: &Certificate, now: Instant) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        let Some((known, views)) = batch.certificate() else { return };
        let is_new = batch.certificate_of(certificate.view).is_none() && views < VIEWS_MAX;
        let set = &self.head.set;
        if is_new && certificate.info == known.info && certificate.info.epoch == set.epoch {
            match certificate.verify(set) {
                Ok(()) => batch.certified(certificate.clone()),
                Err(error) => {
                    let reason = format!("a certificate of batch {number} is invalid: {error}");
                    return self.ban(from, reason, now);
                }
            }
        }
        if let Some(batch) = self.batches.get_mut(&number) {
            batch.shown(from, certificate.view);
        }
    }

    /// Announces a batch at once to some peers that have not announced it, first to those that take what they are sent.
    /// The rest may hear of it from others first.
    pub(super) fn tell_some(&mut self, number: BatchNumber, now: Instant) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        if batch.telling != AnnouncementStage::Nobody {
            return;
        }
        batch.telling = AnnouncementStage::Some(now + LAZY);
        let told = &batch.told;
        let others = self.peers.iter().filter(|(peer, _)| !told.contains_key(peer));
        let mut others: Vec<_> =
            others.map(|(peer, it)| (!it.comes_first(self.wants), self.rng.next_u32(), *peer)).collect();
        others.sort_unstable();
        others.truncate(self.config.degree.into());
        others.into_iter().for_each(|(_, _, peer)| self.tell(peer, number));
    }

    /// Announces a batch to the peers to which nobody seems to have announced it.
    pub(super) fn tell_the_rest(&mut self, number: BatchNumber, now: Instant) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        if batch.tell_at().is_none_or(|at| at > now) {
            return;
        }
        batch.telling = AnnouncementStage::All;
        let peers: Vec<_> = self.peers.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.tell(peer, number));
    }

    /// Sends a peer what it does not know of a batch.
    pub(super) fn tell(&mut self, peer: PeerId, number: BatchNumber) {
        if !self.peers.contains_key(&peer) {
            return;
        }
        let Some(batch) = self.batches.get_mut(&number) else { return };
        let messages = batch.tell(peer);
        messages.iter().for_each(|message| self.send(peer, message, Priority::First));
    }

    /// Notes that a validator signed a lie. For the rest of the epoch this node ignores the validator's signatures. It
    /// also spreads the bodies that it has, if nobody else does.
    pub(super) fn lied(&mut self, signer: PublicKey, number: BatchNumber, what: &str, now: Instant) {
        // A signer that left with its epoch can do no harm in the next one.
        if self.head.set.index_of(&signer).is_none() || !self.liars.insert(signer) {
            return;
        }
        self.status.liars += 1;
        tracing::error!(validator = %signer, %number, what, "a validator signed a false statement about a batch; \
            ignoring its signatures until the epoch ends");
        for number in self.own.keys() {
            if let Some(batch) = self.batches.get_mut(number).filter(|batch| !batch.is_spread(&self.liars)) {
                batch.lead_at.get_or_insert(now + LAZY);
            }
        }
    }

    /// The payload with this id.
    pub(super) fn payload(&mut self, id: &PayloadId) -> Option<&mut Payload> {
        self.batches.get_mut(self.places.get(id)?)?.payload(id)
    }
}

/// Checks that a certificate is about a header, as far as possible without the ledger before it.
fn is_of(header: &BatchHeader, certificate: &Certificate) -> Result<(), String> {
    let info = &certificate.info;
    let is_certified = info.number == header.number
        && info.epoch == header.epoch
        && info.state_root == header.state_root
        && info.timestamp_ms == header.timestamp_ms;
    if is_certified { Ok(()) } else { Err("has the certificate of another batch".into()) }
}

/// Checks that a header follows its parent, and that the certificate is for the header's position in the ledger.
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
    match certificate.info.accumulator_root == accumulator.root() {
        true => Ok((digest, accumulator)),
        false => Err("has the certificate of another ledger"),
    }
}
