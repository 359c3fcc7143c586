//! [`Driver`]: the actor. It turns what happens into the machine's inputs; `effects` carries out what the machine wants.

use std::sync::Arc;

use slipstream_network::{PeerId, Transport};
use slipstream_storage::StorageError;
use slipstream_types::{BatchNumber, Blob, Certificate, Clock, SecretKey};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    ConsensusStatus, Decided, Mail,
    bench::Bench,
    held::Held,
    lanes::{Landed, Lanes},
    ledger::{Built, Executed, Ledger},
    proposing::Proposing,
    records::{Records, VoteRecord},
    said::Said,
    timers::Timers,
};
use crate::{
    config::ConsensusConfig,
    error::{ConsensusError, ProposalError, RecordError},
    pool::Pool,
    protocol::{
        fixed::FixedProposer,
        messages::{RESPONSE_BYTES_MAX, Request, Response},
    },
};

/// Batches that are executed and not committed.
const HELD_MAX: usize = 1;

/// What a driver is made of.
pub(super) struct Parts {
    pub(super) config: ConsensusConfig,
    pub(super) ledger: Arc<Ledger>,
    pub(super) pool: Pool,
    pub(super) key: SecretKey,
    pub(super) seat: u16,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) decided: mpsc::Sender<Decided>,
    pub(super) mail: mpsc::Receiver<Mail>,
    pub(super) status: Arc<watch::Sender<ConsensusStatus>>,
}

/// A validator's one task. See the module above.
pub struct Driver {
    pub(super) seat: u16,
    pub(super) key: SecretKey,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) core: FixedProposer,
    pub(super) records: Records,
    pub(super) held: Held,
    pub(super) bench: Bench<Done>,
    pub(super) lanes: Lanes<Tag>,
    pub(super) timers: Timers<Timer>,
    /// Of the proposer only.
    pub(super) proposing: Option<Proposing>,
    /// The open request: one is answered before the next is looked at.
    pub(super) asked: Option<Asked>,
    mail: mpsc::Receiver<Mail>,
    head: watch::Receiver<BatchNumber>,
    /// The refusals that were logged.
    pub(super) said: Said,
    status: Arc<watch::Sender<ConsensusStatus>>,
}

/// A request that is to be answered.
pub(super) struct Asked {
    peer: PeerId,
    number: Option<BatchNumber>,
    /// Body and hints of what it proposes.
    pub(super) order: Option<(Blob, Option<Blob>)>,
    answer: oneshot::Sender<Result<Response, ProposalError>>,
}

/// What came of work on a thread that may block.
pub(super) enum Done {
    Executed(BatchNumber, Result<Box<Executed>, ProposalError>),
    Built(Result<Option<Box<Built>>, ConsensusError>),
    Recorded(Result<VoteRecord, RecordError>),
    /// The open request's decision.
    Decided(Box<Executed>, Result<(), ProposalError>),
    /// The proposer's own batch.
    Committed(Result<(), StorageError>),
    /// The highest certificate here, and the time.
    Standing(Result<(Option<Certificate>, u64), StorageError>),
}

/// What a request to another validator is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tag {
    Propose,
    Decide,
    Standing,
}

/// What is waited for by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// The next batch is due.
    Batch,
    /// A proposer that failed tries again.
    Retry,
    /// There is no quorum of votes still.
    Quorum,
    /// There are no answers of a quorum still.
    Inquiry,
    /// A validator is asked for its vote again.
    Propose(u16),
    /// A validator is asked how it stands again.
    Standing(u16),
}

/// Whatever happens.
enum Input {
    Done(Result<Done, ConsensusError>),
    Mail(Mail),
    Landed(Result<Landed<Tag>, ConsensusError>),
    Timer(Timer),
    /// The store's head moved, or the pool has something: looked at before every input anyway.
    Look,
    Shutdown,
}

impl Driver {
    /// # Errors
    /// If the record or the head cannot be read.
    pub(super) fn new(parts: Parts) -> Result<Driver, ConsensusError> {
        let Parts { config, ledger, pool, key, seat, transport, clock, decided, mail, status } = parts;
        let records = Records::open(ledger.store.clone())?;
        let head = ledger.store.watch_head();
        let last = records.last();
        let own = last.and_then(|record| record.proposal()).map(|(header, _)| header.clone());
        let tip = ledger.tip()?;
        let core = FixedProposer::new(ledger.set.clone(), tip, last.map(|record| record.vote()), own);
        let others =
            ledger.set.validators.iter().enumerate().filter(|(index, _)| *index != usize::from(seat));
        let others = others.map(|(index, other)| (index as u16, other.public_key));
        let timeout_ms = config.vote_timeout_ms.get();
        let lanes = Lanes::new(transport, timeout_ms, RESPONSE_BYTES_MAX, others);
        let proposing = (seat == 0)
            .then(|| Proposing::new(&config, pool, decided, &ledger.set, lanes.seats(), core.voted()));
        let driver = Driver {
            seat,
            key,
            clock,
            ledger,
            core,
            records,
            held: Held::new(HELD_MAX),
            bench: Bench::new(),
            lanes,
            timers: Timers::new(),
            proposing,
            asked: None,
            mail,
            head,
            said: Said::default(),
            status,
        };
        driver.report();
        Ok(driver)
    }

    /// Votes, and proposes if this validator is the proposer, until shutdown; what is under way then is finished first.
    ///
    /// # Errors
    /// When going on would be useless or unsafe, the store above all, or a vote that panicked; the node should stop.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), ConsensusError> {
        let ended = self.work(&shutdown).await;
        // Whoever opens the store next must find what this validator was writing.
        self.bench.finish().await;
        ended
    }

    async fn work(&mut self, shutdown: &CancellationToken) -> Result<(), ConsensusError> {
        loop {
            self.follow_head()?;
            self.settle()?;
            self.pursue()?;
            self.report();
            match self.next_input(shutdown).await {
                Input::Shutdown => return Ok(()),
                input => self.take(input)?,
            }
        }
    }

    async fn next_input(&mut self, shutdown: &CancellationToken) -> Input {
        let pool = self.proposing.as_ref().and_then(Proposing::awaited_pool);
        let arrived = async {
            match &pool {
                Some(pool) => pool.arrived().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => Input::Shutdown,
            done = self.bench.next() => Input::Done(done),
            Some(mail) = self.mail.recv(), if self.asked.is_none() => Input::Mail(mail),
            landed = self.lanes.landed() => Input::Landed(landed),
            timer = self.timers.next() => Input::Timer(timer),
            Ok(()) = self.head.changed() => Input::Look,
            () = arrived => Input::Look,
        }
    }

    fn take(&mut self, input: Input) -> Result<(), ConsensusError> {
        // Sync may have been faster than whatever this is.
        self.follow_head()?;
        match input {
            Input::Done(done) => self.done(done?)?,
            Input::Mail(mail) => self.open(mail),
            Input::Landed(landed) => self.landed(landed?),
            Input::Timer(timer) => self.timer(timer),
            Input::Look | Input::Shutdown => {}
        }
        Ok(())
    }

    /// Tells the machine of another head.
    fn follow_head(&mut self) -> Result<(), ConsensusError> {
        let number = *self.head.borrow_and_update();
        if number > self.core.tip().number() {
            let tip = self.ledger.tip()?;
            self.held.settle(tip.number());
            self.core.handle_committed(tip);
        }
        Ok(())
    }

    /// A validator asks.
    fn open(&mut self, Mail { peer, request, answer }: Mail) {
        let number = request.number();
        let asked = |order| Some(Asked { peer, number, order, answer });
        match request {
            Request::Propose(proposal) => {
                self.asked = asked(Some((proposal.body, proposal.hints)));
                self.core.handle_request(proposal.parent, Some(proposal.header));
            }
            Request::Decide(certificate) => {
                self.asked = asked(None);
                self.core.handle_request(Some(*certificate), None);
            }
            Request::Standing => {
                self.asked = asked(None);
                let (store, clock) = (self.ledger.store.clone(), self.clock.clone());
                let standing = move || Ok((store.latest_certificate()?, clock.now_ms()));
                self.bench.add("vote", move || Done::Standing(standing()));
            }
        }
    }

    fn done(&mut self, done: Done) -> Result<(), ConsensusError> {
        match done {
            Done::Executed(number, result) => {
                let held = result.and_then(|executed| {
                    let info = executed.info.clone();
                    self.held.push(*executed).map_err(|_| ProposalError::Overtaken { number })?;
                    Ok(info)
                });
                self.core.handle_executed(number, held);
            }
            Done::Built(result) => self.built(result)?,
            Done::Recorded(result) => {
                let result = result.map(|record| self.records.written(record));
                self.core.handle_recorded(result);
            }
            Done::Decided(executed, Err(error)) => {
                self.held.put_back(*executed);
                self.core.handle_decision_failed(error);
            }
            Done::Committed(Err(error)) => self.core.handle_commit_failed(error.into()),
            // The head says so.
            Done::Decided(_, Ok(())) | Done::Committed(Ok(())) => {}
            Done::Standing(result) => {
                let standing = |(certificate, now_ms): (Option<Certificate>, u64)| Response::Standing {
                    certificate: certificate.map(Box::new),
                    now_ms,
                };
                self.answer(result.map(standing).map_err(ProposalError::from));
            }
        }
        Ok(())
    }

    /// Answers the open request. Nobody may be listening any more.
    pub(super) fn answer(&mut self, result: Result<Response, ProposalError>) {
        let Some(Asked { peer, number, answer, .. }) = self.asked.take() else { return };
        if let Err(error) = &result {
            let peer = peer.short();
            // A proposer asks ten times a second.
            match self.said.is_new(number, &error.to_string()) {
                true => tracing::warn!(%peer, %error, "consensus message refused"),
                false => tracing::debug!(%peer, %error, "consensus message refused"),
            }
        }
        _ = answer.send(result);
    }

    fn report(&self) {
        let voted = self.core.voted();
        let (proposing, votes) = self.core.proposing().unzip();
        let votes = votes.unwrap_or_default();
        self.status.send_if_modified(|status| {
            let is_new = (status.voted, status.proposing, status.votes) != (voted, proposing, votes);
            (status.voted, status.proposing, status.votes) = (voted, proposing, votes);
            is_new
        });
    }
}
