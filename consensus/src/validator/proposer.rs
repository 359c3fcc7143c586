//! The proposer's loop: make a batch, record it, collect a quorum of votes on it, announce it, commit it.
//!
//! ```text
//!  run ── Round (request, votes, decision) ──watch──▶ one messenger task per other validator
//!   ▲ votes (bounded mpsc)                                │ Propose until answered, then Decide
//!   └─────────────────────────────────────────────────────┘
//! ```
//!
//! A slow or silent validator holds up its own messenger and nobody else.

use std::{sync::Arc, time::Duration};

use slipstream_types::{B256, BatchHeader, BatchNumber, Blob, Certificate, Signature};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Decided, Validator,
    inquiry::{ClockCheck, find_chain},
    ledger::{Built, Executed},
    messenger::{Messenger, Round},
    said::Said,
};
use crate::{
    error::{ConsensusError, ProposalError},
    protocol::{
        messages::{self, Proposal, Request},
        votes::{Verdict, Votes},
    },
};

/// Pause before the proposer tries again after a failure that may pass.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// How often a proposer that gets no quorum says so.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

/// Proposes until shutdown.
pub(super) async fn run(
    validator: Arc<Validator>,
    shutdown: CancellationToken,
) -> Result<(), ConsensusError> {
    let (rounds, follow) = watch::channel(None);
    let mut messengers = JoinSet::new();
    for (index, other) in validator.ledger.set.validators.iter().enumerate().skip(1) {
        let messenger = Messenger {
            validator: validator.clone(),
            index: index as u16,
            peer: other.public_key,
            said: Said::default(),
            silent: false,
        };
        messengers.spawn(messenger.run(follow.clone()));
    }
    drop(follow);
    let clock = ClockCheck::default();
    let mut proposer = Proposer { validator, rounds, parent: None, clock, shutdown };
    tokio::select! {
        result = proposer.run() => result,
        Some(Err(panic)) = messengers.join_next() => {
            Err(ConsensusError::Task { task: "messenger", reason: panic.to_string() })
        }
    }
}

struct Proposer {
    validator: Arc<Validator>,
    rounds: watch::Sender<Option<Arc<Round>>>,
    /// The last certificate made here.
    parent: Option<Certificate>,
    clock: ClockCheck,
    shutdown: CancellationToken,
}

impl Proposer {
    async fn run(&mut self) -> Result<(), ConsensusError> {
        if self.validator.voter.lock().await.voted().is_none() {
            find_chain(&self.validator, &self.shutdown).await?;
        }
        let ledger = &self.validator.ledger;
        self.parent = ledger.store.certificate(ledger.head_number()?)?;
        let mut last = Instant::now();
        while !self.shutdown.is_cancelled() {
            match self.step(&mut last).await {
                Ok(()) => {}
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "no batch was made; trying again");
                    self.pause(FAILURE_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn step(&mut self, last: &mut Instant) -> Result<(), ConsensusError> {
        if let Some((header, body)) = self.unfinished().await? {
            tracing::info!(number = %header.number, "proposing the open batch again that this validator has voted for");
            let executed = self.reexecute(header, body).await?;
            return self.certify(executed, Vec::new()).await;
        }
        if self.wait_for_work(*last).await {
            let started = Instant::now();
            if self.next_batch(*last).await? {
                *last = started;
            }
        }
        Ok(())
    }

    /// The batch that was proposed before a restart or a failure and is not committed. It must be proposed again, and no
    /// other: others may hold this validator's signature on it.
    async fn unfinished(&self) -> Result<Option<(BatchHeader, Blob)>, ConsensusError> {
        let head = self.validator.ledger.head_number()?;
        let unfinished = self.validator.voter.lock().await.unfinished(head);
        Ok(unfinished.filter(|(header, _)| header.number == head.next()))
    }

    async fn reexecute(&self, header: BatchHeader, body: Blob) -> Result<Executed, ConsensusError> {
        let ledger = self.validator.ledger.clone();
        let number = header.number;
        blocking("re-execution", move || ledger.execute(&header, &body, None))
            .await?
            .map_err(|source| ConsensusError::Repropose { number, source: Box::new(source) })
    }

    /// Waits until there is something to propose: false at shutdown.
    async fn wait_for_work(&self, last: Instant) -> bool {
        let config = &self.validator.config;
        let pool = &self.validator.pool;
        loop {
            let arrived = pool.arrived();
            let pending = pool.status().pending;
            let due = if pending >= config.batch_transactions_max.get() {
                Some(last)
            } else if pending > 0 {
                Some(last + Duration::from_millis(config.batch_interval_ms))
            } else {
                empty_due(config.empty_batch_interval_ms, last)
            };
            if self.shutdown.is_cancelled() {
                return false;
            }
            if due.is_some_and(|due| due <= Instant::now()) {
                return true;
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return false,
                () = arrived => {}
                () = sleep_until(due) => {}
            }
        }
    }

    /// Makes and certifies one batch: false if there was nothing to put into it.
    async fn next_batch(&mut self, last: Instant) -> Result<bool, ConsensusError> {
        let validator = self.validator.clone();
        let empty = empty_due(validator.config.empty_batch_interval_ms, last)
            .is_some_and(|due| due <= Instant::now());
        let Some(now_ms) = self.clock.now_ms(&validator, &self.shutdown).await else { return Ok(false) };
        let build = move || {
            let max = validator.config.batch_transactions_max.get();
            validator.ledger.build(&validator.pool, max, now_ms, empty)
        };
        let Some(Built { executed, rejected }) = blocking("build", build).await?? else {
            return Ok(false);
        };
        let Some(executed) = executed else {
            self.validator.pool.reject(&rejected);
            return Ok(false);
        };
        self.certify(executed, rejected).await?;
        Ok(true)
    }

    /// Brings one batch from its own vote to its commit. Returns early at shutdown: the record of the vote then makes the
    /// next start propose it again.
    async fn certify(&mut self, executed: Executed, rejected: Vec<B256>) -> Result<(), ConsensusError> {
        let number = executed.info.number;
        let own = self.vote(&executed).await?;
        let mut votes = Votes::new(executed.info.clone());
        let set = &self.validator.ledger.set;
        votes.add(set, self.validator.index, own);
        let (decide, decided) = watch::channel(None);
        let (sender, mut received) = mpsc::channel(set.validators.len());
        if set.validators.len() > 1 {
            let propose = self.proposal(&executed)?;
            self.rounds.send_replace(Some(Arc::new(Round {
                number,
                propose,
                decide: decided,
                votes: sender,
            })));
        }
        self.report(Some(number), votes.len());
        let Some(certificate) = self.collect(number, &mut votes, &mut received).await? else {
            self.report(None, 0);
            return Ok(());
        };
        // The others and the fullnodes can commit while this one does: should it fail to, it proposes the same batch again, and
        // they say again what they said.
        let encoded = messages::encode(&Request::Decide(Box::new(certificate.clone())))?;
        decide.send_replace(Some(encoded));
        self.parent = Some(certificate.clone());
        self.announce(&executed, certificate.clone());
        let committed = self.commit(executed, certificate, rejected).await;
        self.report(None, 0);
        committed
    }

    async fn vote(&self, executed: &Executed) -> Result<Signature, ConsensusError> {
        let info = executed.info.clone();
        let proposal = (executed.sealed.header.clone(), executed.sealed.body.clone());
        let number = info.number;
        let signed = self.validator.with_voter(move |voter| voter.sign(&info, Some(proposal))).await;
        self.validator.status.lock().voted = Some(number);
        match signed {
            Ok(signature) => Ok(signature),
            Err(ProposalError::AlreadyVoted { number, voted }) => {
                Err(ConsensusError::AlreadyVoted { number, voted })
            }
            Err(ProposalError::Record(error)) => Err(error.into()),
            Err(other) => Err(ConsensusError::Task { task: "vote", reason: other.to_string() }),
        }
    }

    fn proposal(&self, executed: &Executed) -> Result<Vec<u8>, ConsensusError> {
        let sealed = &executed.sealed;
        // A parent that sync committed is certified, too, but its certificate is not worth a read.
        let parent = self.parent.clone().filter(|parent| parent.info.number.next() == sealed.header.number);
        let proposal = Proposal {
            header: sealed.header.clone(),
            body: sealed.body.clone(),
            hints: sealed.hints.clone(),
            parent,
        };
        Ok(messages::encode(&Request::Propose(Box::new(proposal)))?)
    }

    /// Waits for a quorum; none at shutdown, or if sync committed a batch of that number.
    async fn collect(
        &self,
        number: BatchNumber,
        votes: &mut Votes,
        received: &mut mpsc::Receiver<(u16, Signature)>,
    ) -> Result<Option<Certificate>, ConsensusError> {
        let set = &self.validator.ledger.set;
        let mut head = self.validator.ledger.store.watch_head();
        let mut complaint = tokio::time::interval_at(Instant::now() + COMPLAINT_INTERVAL, COMPLAINT_INTERVAL);
        loop {
            if let Some(certificate) = votes.certificate(set) {
                return Ok(Some(certificate));
            }
            if *head.borrow_and_update() >= number {
                return Ok(None);
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(None),
                Some((index, signature)) = received.recv() => match votes.add(set, index, signature) {
                    Verdict::Counted => self.report(Some(number), votes.len()),
                    Verdict::Repeated => {}
                    Verdict::Invalid => tracing::warn!(%number, index, "a validator's signature does not verify"),
                },
                changed = head.changed() => if changed.is_err() { return Ok(None) },
                _ = complaint.tick() => tracing::warn!(
                    %number, votes = votes.len(), quorum = set.quorum(),
                    "no quorum yet: the chain stands until more validators vote"
                ),
            }
        }
    }

    async fn commit(
        &self,
        mut executed: Executed,
        certificate: Certificate,
        rejected: Vec<B256>,
    ) -> Result<(), ConsensusError> {
        let validator = self.validator.clone();
        let commit = move || {
            validator.ledger.commit(&mut executed, &certificate)?;
            if !validator.pool.on_batch(certificate.info.number, &executed.delta) {
                validator.pool.catch_up()?;
            }
            validator.pool.reject(&rejected);
            Ok(())
        };
        blocking("commit", commit).await?
    }

    /// Hands the batch on without waiting: who is too slow to announce batches must not slow down making them.
    fn announce(&self, executed: &Executed, certificate: Certificate) {
        let sealed = &executed.sealed;
        let (number, transactions) = (sealed.header.number, sealed.header.tx_count);
        tracing::debug!(%number, transactions, "batch certified");
        let (header, body, hints) = (sealed.header.clone(), sealed.body.clone(), sealed.hints.clone());
        let decided = Decided { header, certificate, body, hints };
        if self.validator.decided.try_send(decided).is_err() {
            tracing::warn!(%number, "nobody took the decided batch for announcing it; fullnodes get it through sync");
        }
    }

    fn report(&self, proposing: Option<BatchNumber>, votes: usize) {
        let mut status = self.validator.status.lock();
        (status.proposing, status.votes) = (proposing, votes);
    }

    async fn pause(&self, duration: Duration) {
        tokio::select! {
            () = self.shutdown.cancelled() => {}
            () = tokio::time::sleep(duration) => {}
        }
    }
}

/// Heavy work on a thread that may block; it goes on to its end even if the caller is cancelled.
async fn blocking<R: Send + 'static>(
    task: &'static str,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, ConsensusError> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|panic| ConsensusError::Task { task, reason: panic.to_string() })
}

/// When an empty batch is due; never if the interval is 0.
fn empty_due(interval_ms: u64, last: Instant) -> Option<Instant> {
    (interval_ms > 0).then(|| last + Duration::from_millis(interval_ms))
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
