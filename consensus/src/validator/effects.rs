//! Carries out the core's effects at once, and emits its outputs once their record is durable.

use std::sync::Arc;

use slipstream_eve::{Effect, Evidence, Flush, Message, Output, Receivers, SignedOrder};
use slipstream_types::{BatchNumber, Certificate, bounded::BoundedVec};

use super::{
    DecidedBatch,
    driver::Driver,
    executed::DurableOutcome,
    inputs::{Tag, Timer, WorkResult},
    kept::{self, KeptOutcomes},
    lanes::Parcel,
    message::{self, Ordered, Request, TAKEN_BYTES_MAX},
    records::{EVIDENCE, VOTES},
    status::Conviction,
    working::DueExecution,
};
use crate::{error::ConsensusError, planted::Planted};

impl Driver {
    /// Carries out the core's effects.
    pub(super) fn settle(&mut self) {
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Build { work, parent } => self.working.begin(DueExecution::Build { work, parent }),
                Effect::Execute { work, order } => {
                    self.working.begin(DueExecution::Execute { work, order: Box::new(order) });
                }
                Effect::Rollback { to } => {
                    self.working.clear();
                    self.roll_back(to);
                    self.bodies.settle(self.committed, self.core.decided(), self.core.view());
                }
                Effect::Fetch { certificate } => self.fetches.add(*certificate),
            }
        }
        match self.core.poll_timeout() {
            Some(at) => self.timers.set_at(Timer::Core, at.into()),
            None => self.timers.cancel(Timer::Core),
        }
    }

    fn roll_back(&mut self, to: BatchNumber) {
        self.held.roll_back(to);
        if self.ledger.lacks(Planted::DroppedOutcomes) {
            self.kept = KeptOutcomes::default();
            let store = self.ledger.store.clone();
            let drop =
                move || WorkResult::Committed(kept::remove(&store, BatchNumber::new(0)..=BatchNumber::MAX));
            self.commits.add("drop outcomes", drop);
        }
    }

    /// Makes durable what the core must not forget, then emits the outputs; one flush after the other.
    pub(super) fn flush(&mut self) -> Result<(), ConsensusError> {
        while (self.flushing.is_none() || self.ledger.lacks(Planted::OvertakingVotes))
            && let Some(Flush { record, outputs }) = self.core.poll_flush()
        {
            match record {
                None => self.carry_out(outputs)?,
                Some(record) => {
                    let overtakes = self.flushing.is_some();
                    let waiting = self.flushing.get_or_insert_default();
                    waiting.extend(outputs);
                    if self.ledger.lacks(Planted::EarlyVotes) {
                        let early = std::mem::take(waiting);
                        self.carry_out(early)?;
                    }
                    let ledger = self.ledger.clone();
                    let save = move || match ledger.lacks(Planted::UnsavedVotes) {
                        true => WorkResult::Recorded(Ok(())),
                        false => WorkResult::Recorded(VOTES.save(&ledger.store, &record)),
                    };
                    let queue = if overtakes { &mut self.lookups } else { &mut self.records };
                    queue.add("vote", save);
                }
            }
        }
        Ok(())
    }

    pub(super) fn carry_out(&mut self, outputs: Vec<Output>) -> Result<(), ConsensusError> {
        for output in outputs {
            match output {
                Output::Send(to, message) => self.send(to, message)?,
                Output::Commit(certificate) => self.commit(*certificate),
                Output::Convict(evidence) => self.convict(evidence),
            }
        }
        Ok(())
    }

    fn send(&mut self, to: Receivers, mut message: Message) -> Result<(), ConsensusError> {
        if let Message::Verify(verify) = &mut message {
            verify.took_ms = self.working.pace.lock().took_ms(verify.info.number);
        }
        let request = match message {
            Message::Order(order) => match self.ordered_batch(&order) {
                Some(ordered) => Request::Order(Box::new(Arc::unwrap_or_clone(ordered))),
                // The batch is committed here by now. A validator that lacks it gets it through sync.
                None => return Ok(()),
            },
            message => Request::Say(self.ledger.set.epoch, Box::new(message)),
        };
        let payload = Arc::new(message::encode(&request)?);
        let number = self.core.decided().next();
        let parcel = Parcel { tag: Tag::Say, number, payload, answer_bytes_max: TAKEN_BYTES_MAX };
        match to {
            Receivers::Seat(seat) => self.lanes.post(seat, parcel),
            Receivers::Others => {
                for seat in self.lanes.seats() {
                    self.lanes.post(seat, parcel.clone());
                }
            }
        }
        Ok(())
    }

    /// The batch of an order, executed or not.
    pub(super) fn ordered_batch(&self, order: &SignedOrder) -> Option<Arc<Ordered>> {
        let of = |parts: &Arc<DurableOutcome>| Ordered {
            order: order.clone(),
            body: parts.sealed.body.clone(),
            hints: parts.sealed.hints.clone(),
        };
        let waiting = self.bodies.get(&order.order.digest(&self.ledger.domain));
        waiting.cloned().or_else(|| self.kept.of_order(order).map(of).map(Arc::new))
    }

    /// Commits a decided batch, whether it is held in memory or was rolled back in between.
    ///
    /// Fullnodes can commit it at the same time.
    fn commit(&mut self, certificate: Certificate) {
        let (number, token) = (certificate.info.number, certificate.info.digest());
        if let Some(executed) = self.held.get(number, &token).cloned() {
            self.announce(&executed.parts, &certificate);
            if self.ledger.lacks(Planted::EarlyCommit) {
                self.follow(executed.tip.clone());
            }
            let (ledger, pool) = (self.ledger.clone(), self.pool.clone());
            self.commits
                .add("commit", move || WorkResult::Committed(ledger.commit(&executed, &certificate, &pool)));
        } else if let Some(parts) = self.kept.get(number, &token).cloned() {
            self.announce(&parts, &certificate);
            let ledger = self.ledger.clone();
            self.commits
                .add("commit", move || WorkResult::Committed(ledger.commit_parts(&parts, &certificate)));
        } else if number > self.committed {
            tracing::warn!(%number, "this node lacks the outcome of a decided batch; sync fetches it");
        }
    }

    /// Hands the batch on at once: a slow announcer must not slow down batch building. The primary of the batch's view
    /// spreads it; the other validators help.
    fn announce(&self, parts: &DurableOutcome, certificate: &Certificate) {
        let sealed = &parts.sealed;
        let (number, transactions) = (sealed.header.number, sealed.header.tx_count);
        tracing::debug!(%number, transactions, view = certificate.view, "batch decided");
        let decided = DecidedBatch {
            leads: self.ledger.set.primary(certificate.view) == self.seat,
            header: sealed.header.clone(),
            certificate: certificate.clone(),
            body: sealed.body.clone(),
            hints: sealed.hints.clone(),
        };
        if self.decided.try_send(decided).is_err() {
            tracing::warn!(%number, "cannot announce the decided batch; fullnodes get it through sync");
        }
    }

    /// Keeps a proof of misbehaviour, and reports it to the operator.
    fn convict(&mut self, evidence: Evidence) {
        let Conviction { author, view, number, kind } = Conviction::of(&evidence, &self.ledger.set);
        let key = self.ledger.set.validators.get(usize::from(author)).map(|it| it.public_key);
        tracing::warn!(
            validator = author, ?key, view, %number, ?kind,
            "a validator signed two conflicting statements: the proof is at /v1/consensus/evidence"
        );
        if self.convictions.contains(&evidence) {
            return;
        }
        let all = self.convictions.iter().cloned().chain([evidence]).collect();
        // The first proofs stay: a liar can make any number of them.
        let Ok(convictions) = BoundedVec::new(all) else { return };
        self.convictions = convictions;
        self.show_evidence();
        if self.ledger.lacks(Planted::ForgottenEvidence) {
            return;
        }
        let (store, convictions) = (self.ledger.store.clone(), self.convictions.clone());
        self.records.add("evidence", move || WorkResult::Convicted(EVIDENCE.save(&store, &convictions)));
    }
}
