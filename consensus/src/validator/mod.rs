//! A validator: it votes on what the proposer proposes, and if it is the proposer, proposes.

mod inquiry;
mod ledger;
mod messenger;
mod proposer;
mod said;
#[cfg(test)]
mod tests;
mod voter;

use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use slipstream_executor::Session;
use slipstream_network::{PeerId, Refusal, Transport};
use slipstream_storage::Store;
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, Certificate, ChainConfig, Clock, SecretKey, ValidatorSet,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::{ledger::Ledger, said::Said, voter::Voter};
use crate::{
    config::ConsensusConfig,
    error::{ConsensusError, ProposalError},
    pool::Pool,
    protocol::messages::{self, Request, Response},
};

/// A certified batch, as its proposer hands it to whoever announces it to the fullnodes. The proposer may not have committed it yet.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The batch.
    pub header: BatchHeader,
    /// Its proof.
    pub certificate: Certificate,
    /// Its transactions.
    pub body: Blob,
    /// Its working set.
    pub hints: Option<Blob>,
}

/// What a validator is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConsensusStatus {
    /// Position in the set.
    pub index: u16,
    /// Size of the set.
    pub validators: usize,
    /// Signatures that make a certificate.
    pub quorum: usize,
    /// Whether this validator proposes.
    pub proposer: bool,
    /// The last batch that it voted for.
    pub voted: Option<BatchNumber>,
    /// The batch that it collects votes for.
    pub proposing: Option<BatchNumber>,
    /// The votes that this batch has.
    pub votes: usize,
    /// Proposals and decisions of others that it refused since it started.
    pub refused: u64,
}

/// One member of the validator set.
pub struct Validator {
    config: ConsensusConfig,
    ledger: Arc<Ledger>,
    pool: Pool,
    index: u16,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    decided: mpsc::Sender<Decided>,
    /// Held for the whole of a vote, by the blocking task that executes it, so that proposals are voted on one at a time.
    voter: Arc<tokio::sync::Mutex<Voter>>,
    /// Why voting ended, which ends [`Validator::run`].
    panicked: watch::Sender<Option<String>>,
    status: Mutex<ConsensusStatus>,
    /// The refusals that were logged.
    said: Mutex<Said>,
}

impl Validator {
    /// A validator of `set` with that key, over an initialised store. Batches that it proposes and that are decided go to
    /// `decided`; if nobody takes them from there, they are dropped, and fullnodes learn of them through sync. With
    /// `executor.hints: values` its batches' hints carry values.
    ///
    /// # Errors
    /// If the key is not one of the set's, its vote record or cannot be read.
    #[allow(clippy::too_many_arguments, reason = "a validator is wired together once, by node")]
    pub fn new(
        config: ConsensusConfig,
        session: Arc<Session>,
        chain: ChainConfig,
        store: Store,
        pool: Pool,
        key: SecretKey,
        set: ValidatorSet,
        transport: Arc<dyn Transport>,
        clock: Arc<dyn Clock>,
        decided: mpsc::Sender<Decided>,
    ) -> Result<Arc<Validator>, ConsensusError> {
        let Some(index) = set.index_of(&key.public()) else {
            return Err(ConsensusError::NotAValidator {
                key: key.public(),
                epoch: set.epoch,
                validators: set.validators.len(),
            });
        };
        let ledger = Arc::new(Ledger { chain, store, set, session });
        let voter = Voter::new(ledger.clone(), clock.clone(), key, index)?;
        let status = Mutex::new(ConsensusStatus {
            index,
            validators: ledger.set.validators.len(),
            quorum: ledger.set.quorum(),
            proposer: index == 0,
            voted: voter.voted(),
            proposing: None,
            votes: 0,
            refused: 0,
        });
        let voter = Arc::new(tokio::sync::Mutex::new(voter));
        let said = Mutex::default();
        Ok(Arc::new(Validator {
            config,
            ledger,
            pool,
            index,
            transport,
            clock,
            decided,
            voter,
            panicked: watch::Sender::new(None),
            status,
            said,
        }))
    }

    /// Proposes batches until shutdown, if this validator is the proposer; the others only answer ([`Validator::handle`]).
    ///
    /// # Errors
    /// When going on would be useless or unsafe, the store above all, or a vote that panicked; the node should stop.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) -> Result<(), ConsensusError> {
        let mut panicked = self.panicked.subscribe();
        let work = async {
            if self.index == 0 {
                return proposer::run(self.clone(), shutdown).await;
            }
            shutdown.cancelled().await;
            Ok(())
        };
        let panicked = async { panicked.wait_for(Option::is_some).await.map(|reason| reason.clone()) };
        tokio::select! {
            // First, because it says more than what comes of it.
            biased;
            Ok(Some(reason)) = panicked => Err(ConsensusError::Task { task: "vote", reason }),
            result = work => result,
        }
    }

    /// Answers a request of the consensus protocol. A refusal names what is wrong.
    pub async fn handle(&self, peer: PeerId, payload: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let (number, answer) = match self.open(peer, &payload) {
            Ok(request) => (request.number(), self.answer(request).await),
            Err(error) => (None, Err(error)),
        };
        drop(payload);
        let encoded =
            answer.and_then(|response| messages::encode(&response).map_err(ProposalError::Malformed));
        encoded.map_err(|error| {
            self.status.lock().refused += 1;
            let (peer, text) = (peer.short(), error.to_string());
            if !error.is_of_the_batch() || !self.said.lock().is_new(number, &text) {
                // Strangers must not fill the log, and a proposer asks ten times a second.
                tracing::debug!(%peer, %error, "consensus message refused");
            } else {
                tracing::warn!(%peer, %error, "consensus message refused");
            }
            match error {
                ProposalError::Malformed(_) => Refusal::malformed(text),
                ProposalError::NotAValidator { .. } => Refusal::not_kept(text),
                _ => Refusal::failed(text),
            }
        })
    }

    /// Whether the peer's requests are looked at at all.
    pub fn takes_from(&self, peer: &PeerId) -> bool {
        self.ledger.set.index_of(peer).is_some()
    }

    fn open(&self, peer: PeerId, payload: &[u8]) -> Result<Request, ProposalError> {
        let epoch = self.ledger.set.epoch;
        // Checked before the payload is decoded: strangers cost nothing.
        if !self.takes_from(&peer) {
            return Err(ProposalError::NotAValidator { peer, epoch });
        }
        let request = messages::decode_request(payload).map_err(ProposalError::Malformed)?;
        let proposer = self.ledger.set.validators[0].public_key;
        if matches!(request, Request::Propose(_)) && peer != proposer {
            return Err(ProposalError::NotProposer { peer, epoch, proposer });
        }
        Ok(request)
    }

    async fn answer(&self, request: Request) -> Result<Response, ProposalError> {
        let vote = move |voter: &mut Voter| match &request {
            Request::Propose(proposal) => voter.vote(proposal),
            Request::Decide(certificate) => voter.decide(certificate),
            Request::Standing => voter.standing(),
        };
        let (response, voted) = self.with_voter(move |voter| Ok((vote(voter), voter.voted()))).await?;
        self.status.lock().voted = voted;
        response
    }

    /// Runs on a thread that may block, with the signing right. The work ends even if the caller's future is dropped; if it
    /// panics, so does [`Validator::run`] end.
    async fn with_voter<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Voter) -> Result<R, ProposalError> + Send + 'static,
    ) -> Result<R, ProposalError> {
        let mut voter = self.voter.clone().lock_owned().await;
        let work = tokio::task::spawn_blocking(move || voter.work(work));
        let panicked = self.panicked.clone();
        // A task of its own, because the caller may not be there any more to see the panic.
        let watched = tokio::spawn(async move {
            let ended = work.await;
            if let Err(error) = &ended
                && error.is_panic()
            {
                panicked.send_replace(Some(error.to_string()));
            }
            ended
        });
        watched.await.ok().and_then(Result::ok).unwrap_or(Err(ProposalError::Stopping))
    }

    /// What it is doing.
    pub fn status(&self) -> ConsensusStatus {
        self.status.lock().clone()
    }
}
