//! What the proposer's driver does besides voting: make a batch when one is due, collect a quorum of votes on it, announce it.
//!
//! ```text
//!  Build ─▶ due? (Cadence) ─▶ may this clock be signed? (Heads, ClockCheck ◀─ Standing) ─▶ built ─▶ Propose to all (Delivery)
//!                                                                  votes of a quorum ─▶ Decided, Decide to all, commit
//! ```

use std::{collections::BTreeSet, time::Duration};

use slipstream_types::{B256, BatchNumber, Certificate, ValidatorSet};
use tokio::{sync::mpsc, time::Instant};

use super::{
    Decided,
    cadence::Cadence,
    delivery::{Delivery, Outgoing},
    driver::{Done, Driver, Tag, Timer},
    inquiry::{ClockCheck, Heads, Reading},
    lanes::{Landed, Parcel},
    ledger::{Built, Executed},
};
use crate::{
    config::ConsensusConfig,
    error::{ConsensusError, ProposalError},
    pool::Pool,
    protocol::{
        messages::{self, Proposal, Request, Response},
        votes::Verdict,
    },
};

/// Pause before the proposer tries again after a failure that may pass.
pub(super) const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Pause before a validator that refused, is behind or is unreachable is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How often a proposer that gets no quorum of votes or answers says so.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

/// What a proposer has besides what every validator has.
pub(super) struct Proposing {
    pool: Pool,
    transactions_max: usize,
    cadence: Cadence,
    /// Until this proposer knows how far the chain is.
    heads: Option<Heads>,
    clock: ClockCheck,
    /// Those that were asked how they stand, until it is time to ask them again.
    inquired: BTreeSet<u16>,
    delivery: Delivery,
    /// The machine waits for a batch.
    is_wanted: bool,
    /// When the batch was begun that is being made.
    begun: Instant,
    /// What the batch on its way found not to be executable.
    rejected: Vec<B256>,
    /// The last certificate made or found here.
    parent: Option<Certificate>,
    decided: mpsc::Sender<Decided>,
}

impl Proposing {
    pub(super) fn new(
        config: &ConsensusConfig,
        pool: Pool,
        decided: mpsc::Sender<Decided>,
        set: &ValidatorSet,
        others: Vec<u16>,
        voted: Option<BatchNumber>,
    ) -> Proposing {
        Proposing {
            pool,
            transactions_max: config.batch_transactions_max.get(),
            cadence: Cadence::new(config),
            heads: (voted.is_none() && !others.is_empty()).then(Heads::default),
            clock: ClockCheck::new(set),
            inquired: BTreeSet::new(),
            delivery: Delivery::new(others.into_iter()),
            is_wanted: false,
            begun: Instant::now(),
            rejected: Vec::new(),
            parent: None,
            decided,
        }
    }

    /// The pool, while its transactions are waited for.
    pub(super) fn awaited_pool(&self) -> Option<Pool> {
        self.is_wanted.then(|| self.pool.clone())
    }

    fn wants_answers(&self) -> bool {
        self.heads.is_some() || self.clock.wants_answers()
    }
}

impl Driver {
    /// Goes on with whatever the proposer can do now.
    pub(super) fn pursue(&mut self) -> Result<(), ConsensusError> {
        let Some(proposing) = &mut self.proposing else { return Ok(()) };
        let own = self.core.tip().number();
        proposing.heads.take_if(|heads| heads.are_known(&self.ledger.set, own));
        if proposing.heads.is_none() {
            if !self.core.has_started() {
                proposing.parent = self.ledger.store.certificate(own)?;
            }
            self.core.start();
            self.settle()?;
        }
        self.build_if_due();
        self.deliver();
        self.inquire();
        Ok(())
    }

    /// The machine waits for the next batch.
    pub(super) fn want_batch(&mut self) {
        if let Some(proposing) = &mut self.proposing {
            proposing.is_wanted = true;
        }
    }

    fn build_if_due(&mut self) {
        let Some(proposing) = self.proposing.as_mut().filter(|proposing| proposing.is_wanted) else { return };
        if self.timers.is_set(Timer::Retry) {
            return;
        }
        let now = Instant::now();
        match proposing.cadence.due(proposing.pool.status().pending) {
            None => return self.timers.cancel(Timer::Batch),
            Some(due) if due > now => return self.timers.set_at(Timer::Batch, due),
            Some(_) => self.timers.cancel(Timer::Batch),
        }
        let now_ms = self.clock.now_ms();
        if !proposing.clock.may_sign(Reading { at: now, now_ms }) {
            return;
        }
        (proposing.is_wanted, proposing.begun) = (false, now);
        let (ledger, pool) = (self.ledger.clone(), proposing.pool.clone());
        let (max, may_be_empty) = (proposing.transactions_max, proposing.cadence.may_be_empty(now));
        let build = move || ledger.build(&pool, max, now_ms, may_be_empty);
        self.bench.add("build", move || Done::Built(build().map(|built| built.map(Box::new))));
    }

    /// The batch is made, or there was nothing to make.
    pub(super) fn built(
        &mut self,
        result: Result<Option<Box<Built>>, ConsensusError>,
    ) -> Result<(), ConsensusError> {
        self.want_batch();
        let Some(proposing) = &mut self.proposing else { return Ok(()) };
        let built = match result {
            Ok(Some(built)) => built,
            Ok(None) => return Ok(()),
            Err(error) => return self.fail(error),
        };
        let Some(executed) = built.executed else {
            proposing.pool.reject(&built.rejected);
            return Ok(());
        };
        let (header, info) = (executed.sealed.header.clone(), executed.info.clone());
        if self.held.push(executed).is_ok() {
            proposing.is_wanted = false;
            proposing.rejected = built.rejected;
            proposing.cadence.made(proposing.begun);
            self.core.handle_built(header, info);
        }
        Ok(())
    }

    /// Brings the batch that was signed to the others.
    pub(super) fn propose(&mut self, number: BatchNumber) -> Result<(), ConsensusError> {
        let (Some(proposing), Some(made)) = (&mut self.proposing, self.held.get(number)) else {
            return Ok(());
        };
        if !self.lanes.seats().is_empty() {
            // A parent that sync committed is certified, too, but its certificate is not worth a read.
            let parent = proposing.parent.clone().filter(|parent| parent.info.number.next() == number);
            let sealed = &made.sealed;
            let (header, body, hints) = (sealed.header.clone(), sealed.body.clone(), sealed.hints.clone());
            let proposal = Proposal { header, body, hints, parent };
            proposing.delivery.open(number, messages::encode(&Request::Propose(Box::new(proposal)))?);
        }
        self.timers.set(Timer::Quorum, COMPLAINT_INTERVAL);
        Ok(())
    }

    /// A quorum has voted for the batch.
    ///
    /// The others and the fullnodes can commit while this one does: should it fail to, it proposes the same batch again, and they say
    /// again what they said.
    pub(super) fn conclude(&mut self, certificate: Certificate) -> Result<(), ConsensusError> {
        let Some(proposing) = &mut self.proposing else { return Ok(()) };
        let number = certificate.info.number;
        self.timers.cancel(Timer::Quorum);
        proposing.delivery.decide(messages::encode(&Request::Decide(Box::new(certificate.clone())))?);
        proposing.parent = Some(certificate.clone());
        let Some(mut executed) = self.held.take(&certificate.info) else {
            let source = Box::new(ProposalError::Overtaken { number });
            self.core.handle_commit_failed(ConsensusError::Repropose { number, source });
            return Ok(());
        };
        announce(&proposing.decided, &executed, certificate.clone());
        let (ledger, pool) = (self.ledger.clone(), proposing.pool.clone());
        let rejected = std::mem::take(&mut proposing.rejected);
        let mut commit = move || {
            ledger.commit(&mut executed, &certificate)?;
            if !pool.on_batch(number, &executed.delta) {
                pool.catch_up()?;
            }
            pool.reject(&rejected);
            Ok(())
        };
        self.bench.add("commit", move || Done::Committed(commit()));
        Ok(())
    }

    /// Sync has committed a batch of that number: no more votes are needed.
    pub(super) fn withdraw(&mut self) {
        if let Some(proposing) = &mut self.proposing {
            proposing.delivery.close();
        }
        self.timers.cancel(Timer::Quorum);
    }

    /// Sends what the others have yet to hear of the batch.
    fn deliver(&mut self) {
        let Some(proposing) = &mut self.proposing else { return };
        for (seat, Outgoing { number, payload, proposes }) in proposing.delivery.outgoing() {
            let tag = if proposes { Tag::Propose } else { Tag::Decide };
            self.lanes.post(seat, Parcel { tag, number: Some(number), payload });
        }
    }

    /// Asks how the others stand, while that is to be known.
    fn inquire(&mut self) {
        let Some(proposing) = &mut self.proposing else { return };
        if !proposing.wants_answers() {
            return self.timers.cancel(Timer::Inquiry);
        }
        if !self.timers.is_set(Timer::Inquiry) {
            self.timers.set(Timer::Inquiry, COMPLAINT_INTERVAL);
        }
        // An enum without content cannot fail to encode.
        let Ok(payload) = messages::encode(&Request::Standing) else { return };
        for seat in self.lanes.seats() {
            if proposing.inquired.insert(seat) {
                self.lanes.post(seat, Parcel { tag: Tag::Standing, number: None, payload: payload.clone() });
            }
        }
    }

    /// A request to another validator has ended.
    pub(super) fn landed(&mut self, Landed { seat, tag, number, answer }: Landed<Tag>) {
        let response = match answer.map(|bytes| messages::decode_response(&bytes)) {
            Some(Ok(response)) => Some(response),
            Some(Err(error)) => {
                self.lanes.complain(seat, number, &error);
                None
            }
            None => None,
        };
        match (tag, number) {
            (Tag::Standing, _) => {
                self.timers.set(Timer::Standing(seat), RETRY_PAUSE);
                if let Some(Response::Standing { certificate, now_ms }) = response {
                    self.stands(seat, certificate.as_deref(), now_ms);
                }
            }
            (Tag::Propose, Some(number)) => {
                let voted = response.is_some_and(|response| self.voted(seat, number, response));
                self.ended(seat, number, voted);
            }
            (Tag::Decide, Some(number)) => self.ended(seat, number, false),
            (Tag::Propose | Tag::Decide, None) => {}
        }
    }

    /// Whether the answer to a proposal is the validator's vote.
    fn voted(&mut self, seat: u16, number: BatchNumber, response: Response) -> bool {
        let Response::Vote { index, signature } = response else {
            tracing::debug!(validator = seat, ?response, "no vote");
            return false;
        };
        if index != seat {
            tracing::debug!(validator = seat, index, "a vote in another's name");
            return false;
        }
        let is_open = self.core.proposing().is_some_and(|(open, _)| open == number);
        if is_open && self.core.handle_vote(seat, signature) == Some(Verdict::Invalid) {
            tracing::warn!(%number, index, "a validator's signature does not verify");
        }
        true
    }

    fn ended(&mut self, seat: u16, number: BatchNumber, voted: bool) {
        let Some(proposing) = &mut self.proposing else { return };
        if proposing.delivery.ended(seat, number, voted) {
            self.timers.set(Timer::Propose(seat), RETRY_PAUSE);
        }
    }

    /// How another validator stands, as it says.
    fn stands(&mut self, seat: u16, certificate: Option<&Certificate>, their_ms: u64) {
        let Some(proposing) = &mut self.proposing else { return };
        if let Some(heads) = &mut proposing.heads {
            heads.heard(seat, certificate, &self.ledger.set, self.core.tip().number());
        }
        let now = Reading { at: Instant::now(), now_ms: self.clock.now_ms() };
        if proposing.clock.heard(seat, their_ms, now) {
            proposing.clock.complain();
            self.timers.set(Timer::Inquiry, COMPLAINT_INTERVAL);
        }
    }

    /// A moment has come.
    pub(super) fn timer(&mut self, timer: Timer) {
        let Some(proposing) = &mut self.proposing else { return };
        match timer {
            // Looked at before every input anyway.
            Timer::Batch => {}
            Timer::Retry => self.core.handle_retry(),
            Timer::Propose(seat) => proposing.delivery.rested(seat),
            Timer::Standing(seat) => {
                proposing.inquired.remove(&seat);
            }
            Timer::Inquiry => {
                let own = self.core.tip().number();
                proposing.heads.iter().for_each(|heads| heads.complain(&self.ledger.set, own));
                proposing.clock.complain();
            }
            Timer::Quorum => {
                if let Some((number, votes)) = self.core.proposing() {
                    tracing::warn!(
                        %number, votes, quorum = self.ledger.set.quorum(),
                        "no quorum yet: the chain stands until more validators vote"
                    );
                    self.timers.set(Timer::Quorum, COMPLAINT_INTERVAL);
                }
            }
        }
    }
}

/// Hands the batch on without waiting: who is too slow to announce batches must not slow down making them.
fn announce(to: &mpsc::Sender<Decided>, executed: &Executed, certificate: Certificate) {
    let sealed = &executed.sealed;
    let (number, transactions) = (sealed.header.number, sealed.header.tx_count);
    tracing::debug!(%number, transactions, "batch certified");
    let (header, body, hints) = (sealed.header.clone(), sealed.body.clone(), sealed.hints.clone());
    if to.try_send(Decided { header, certificate, body, hints }).is_err() {
        tracing::warn!(%number, "nobody took the decided batch for announcing it; fullnodes get it through sync");
    }
}
