//! Plans of a batch's payloads: which are taken up, declined, or found to be lies.

use slipstream_coding::open;
use slipstream_network::{PeerId, Priority};
use slipstream_types::{BatchNumber, bounded::BoundedVec};
use tokio::time::Instant;

use super::{LAZY, Mesh, batch::AnnouncementStage, payload::Payload};
use crate::message::{Message, Part, PayloadId, SignedPlan};

/// Maximum bytes that all payloads together may come to hold.
const BYTES_MAX: usize = 256 << 20;

impl Mesh {
    /// Takes plans of a known batch.
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
                Err(reason) => return self.ban(from, reason, now),
            }
        }
        let Some(batch) = self.batches.get_mut(&number) else { return };
        batch.told.entry(from).or_default();
        if is_news {
            if batch.telling == AnnouncementStage::All {
                batch.telling = AnnouncementStage::Some(now + LAZY);
            }
            self.expect(number);
        }
    }

    /// Notes a payload's plan. Returns true if peers should hear of it. An error is the sender's fault: it did not
    /// check what it passes on.
    fn add_plan(
        &mut self,
        from: PeerId,
        number: BatchNumber,
        plan: SignedPlan,
        now: Instant,
    ) -> Result<bool, String> {
        let epoch = self.batches.get(&number).map(|batch| batch.header.epoch);
        let Some(set) = epoch.and_then(|epoch| self.set_of(epoch)) else { return Ok(false) };
        let Some(batch) = self.batches.get_mut(&number) else { return Ok(false) };
        let id = plan.id(&batch.digest).map_err(|error| error.to_string())?;
        if batch.plans.iter().any(|(known, _)| *known == id) {
            batch.told.entry(from).or_default().plans.insert(id);
            match batch.payload(&id) {
                Some(payload) => payload.told_by(from),
                None => self.decline(from, (id, plan.part)),
            }
            return Ok(false);
        }
        let signer = set.validators.get(usize::from(plan.signer)).map(|validator| validator.public_key);
        let is_liar = signer.is_some_and(|signer| self.liars.contains(&signer));
        if is_liar || !batch.has_room(&plan, &set) {
            // The sender may lack what this node knows, and the same payload may come under an honest plan.
            self.charge(from, 0, now);
            return Ok(false);
        }
        let Some(signer) = plan.signed_by(&set, &id) else {
            return Err(format!("the plan of batch {number}'s {} lacks a valid signature", plan.part));
        };
        let bytes_max = batch.bytes_max(plan.part);
        batch.told.entry(from).or_default().plans.insert(id);
        batch.plans.push((id, plan.clone()));
        if u64::from(plan.plan.bytes) > bytes_max {
            self.lied(signer, number, "it signed a plan with more bytes than possible", now);
            return Ok(true);
        }
        self.take_up(number, (id, &plan), Some(from), now);
        Ok(true)
    }

    /// Declines a payload that this node does not assemble. Notifies the peer that announced the payload and would send
    /// it.
    fn decline(&mut self, from: PeerId, (id, part): (PayloadId, Part)) {
        if self.wants.has(part)
            && let Ok(ids) = BoundedVec::new(vec![id])
        {
            self.send(from, &Message::Have(ids), Priority::First);
        }
    }

    /// Begins to assemble a payload, or to lend it, if there is reason to.
    pub(super) fn take_up(
        &mut self,
        number: BatchNumber,
        (id, plan): (PayloadId, &SignedPlan),
        from: Option<PeerId>,
        now: Instant,
    ) {
        let own = self.own.get(&number).filter(|_| plan.part == Part::Body).cloned();
        // A validator commits before the hints are made, and passes them on all the same.
        let is_needed = self.wants.has(plan.part) && number > self.head.number;
        let is_passed_on = self.wants.has(plan.part) && self.own.contains_key(&number);
        let Some(batch) = self.batches.get_mut(&number) else { return };
        if batch.payload(&id).is_some() {
            return;
        }
        self.places.insert(id, number);
        if !is_needed && !is_passed_on && own.is_none() {
            batch.declined.insert(id, now);
            return from.into_iter().for_each(|from| self.decline(from, (id, plan.part)));
        }
        let epoch = batch.header.epoch;
        let set = self.set_of(epoch);
        let signer = set.as_ref().and_then(|set| set.validators.get(usize::from(plan.signer)));
        let Some(signer) = signer.map(|validator| validator.public_key) else { return };
        let Ok(codec) = open(&plan.plan) else {
            return self.lied(signer, number, "it signed an invalid plan", now);
        };
        if !self.make_room(codec.held_bytes_max()) {
            self.status.refused += 1;
            tracing::warn!(%number, part = %plan.part, bytes = plan.plan.bytes, "the mesh has no room for a payload; fetching it instead");
            self.batches.entry(number).and_modify(|batch| _ = batch.declined.insert(id, now));
            return from.into_iter().for_each(|from| self.decline(from, (id, plan.part)));
        }
        let mut payload = Payload::new((id, plan.part), signer, codec, now);
        payload.is_wanted = is_needed;
        payload.wait_for(self.chunk_bytes.unwrap_or(payload.codec.chunk_bytes()), now);
        if let Some(from) = from {
            payload.told_by(from);
        }
        self.batches.entry(number).and_modify(|batch| batch.payloads.push(payload));
        if let Some(own) = own {
            self.begin_lending(id, own, now);
        }
    }

    /// Makes room for `bytes` more, if necessary by dropping the oldest payloads kept for others. Returns whether there
    /// is room.
    fn make_room(&mut self, bytes: usize) -> bool {
        let held = |mesh: &Mesh| {
            let payloads = mesh.batches.values().flat_map(|batch| &batch.payloads);
            payloads.map(Payload::held_bytes).sum::<usize>()
        };
        while held(self) + bytes > BYTES_MAX {
            let mut kept = self.batches.range_mut(..=self.head.number);
            let Some((_, oldest)) = kept.find(|(_, batch)| !batch.payloads.is_empty()) else { return false };
            for payload in oldest.payloads.drain(..) {
                self.places.remove(&payload.id);
            }
        }
        true
    }
}
