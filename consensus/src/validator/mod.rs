//! A validator: it votes on what the proposer proposes, and if it is the proposer, proposes.
//!
//! ```text
//!  node, peers ── Validator::handle ──▶ mailbox ─┐                      ┌─▶ answers (oneshot), status (watch)
//!  store's head ─────────────────────────────────┤                      ├─▶ Bench: execute, build, commit, record
//!  Bench: results ───────────────────────────────┼─▶ Driver ⇄ protocol ─┼─▶ Lanes: requests to the other validators
//!  Lanes: answers ───────────────────────────────┤   (one task)         ├─▶ Timers
//!  Timers, pool, shutdown ───────────────────────┘                      └─▶ Decided ──▶ node announces it to fullnodes
//! ```
//!
//! [`Validator`] is a handle; the [`Driver`] is the actor that owns everything: the machine of `protocol` that decides, the key, the
//! records, what was executed and is not committed. Inputs come one after another, so that nothing of it has a lock.

mod bench;
mod cadence;
mod delivery;
mod driver;
mod effects;
mod held;
mod inquiry;
mod lanes;
mod ledger;
mod proposing;
mod records;
mod said;
#[cfg(test)]
mod tests;
mod timers;

use std::sync::Arc;

use serde::Serialize;
use slipstream_executor::Session;
use slipstream_network::{PeerId, Refusal, Transport};
use slipstream_storage::Store;
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, Certificate, ChainConfig, Clock, SecretKey, ValidatorSet,
};
use tokio::sync::{mpsc, oneshot, watch};

pub use self::driver::Driver;
use self::{driver::Parts, ledger::Ledger};
use crate::{
    config::ConsensusConfig,
    error::{ConsensusError, ProposalError},
    pool::Pool,
    protocol::messages::{self, Request, Response},
};

/// Requests that wait for the driver. More of them wait with their askers: the network bounds how many each peer may have.
const MAILBOX_MAX: usize = 4;

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

/// A peer's request, and where its answer goes. Nobody may be waiting for it any more.
struct Mail {
    peer: PeerId,
    request: Request,
    answer: oneshot::Sender<Result<Response, ProposalError>>,
}

/// A handle to one member of the validator set. A clone is another handle to the same one.
#[derive(Clone)]
pub struct Validator {
    set: Arc<ValidatorSet>,
    mailbox: mpsc::Sender<Mail>,
    status: Arc<watch::Sender<ConsensusStatus>>,
}

impl Validator {
    /// A validator of `set` with that key, over an initialised store: the handle to it, and the driver that does its work once it
    /// [runs](Driver::run). Batches that it proposes and that are decided go to `decided`; if nobody takes them from there, they are
    /// dropped, and fullnodes learn of them through sync. With `executor.hints: values` its batches' hints carry values.
    ///
    /// # Errors
    /// If the key is not one of the set's, its vote record cannot be read.
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
    ) -> Result<(Validator, Driver), ConsensusError> {
        let Some(index) = set.index_of(&key.public()) else {
            return Err(ConsensusError::NotAValidator {
                key: key.public(),
                epoch: set.epoch,
                validators: set.validators.len(),
            });
        };
        let contract = store.genesis()?.validators_contract;
        let ledger = Arc::new(Ledger { chain, store, set: set.clone(), session, contract });
        let status = Arc::new(watch::Sender::new(ConsensusStatus {
            index,
            validators: set.validators.len(),
            quorum: set.quorum(),
            proposer: index == 0,
            voted: None,
            proposing: None,
            votes: 0,
            refused: 0,
        }));
        let (mailbox, mail) = mpsc::channel(MAILBOX_MAX);
        let parts = Parts {
            config,
            ledger,
            pool,
            key,
            seat: index,
            transport,
            clock,
            decided,
            mail,
            status: status.clone(),
        };
        let driver = Driver::new(parts)?;
        Ok((Validator { set: Arc::new(set), mailbox, status }, driver))
    }

    /// Answers a request of the consensus protocol. A refusal names what is wrong. What was begun for a request goes on even if
    /// the future is dropped.
    pub async fn handle(&self, peer: PeerId, payload: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let answer = match self.open(peer, &payload) {
            Ok(request) => {
                drop(payload);
                self.ask(peer, request).await
            }
            Err(error) => {
                // Strangers must not fill the log.
                tracing::debug!(peer = %peer.short(), %error, "consensus message refused");
                Err(error)
            }
        };
        let encoded =
            answer.and_then(|response| messages::encode(&response).map_err(ProposalError::Malformed));
        encoded.map_err(|error| {
            self.status.send_modify(|status| status.refused += 1);
            let text = error.to_string();
            match error {
                ProposalError::Malformed(_) => Refusal::malformed(text),
                ProposalError::NotAValidator { .. } => Refusal::not_kept(text),
                _ => Refusal::failed(text),
            }
        })
    }

    /// Whether the peer's requests are looked at at all.
    pub fn takes_from(&self, peer: &PeerId) -> bool {
        self.set.index_of(peer).is_some()
    }

    fn open(&self, peer: PeerId, payload: &[u8]) -> Result<Request, ProposalError> {
        let epoch = self.set.epoch;
        // Checked before the payload is decoded: strangers cost nothing.
        if !self.takes_from(&peer) {
            return Err(ProposalError::NotAValidator { peer, epoch });
        }
        let request = messages::decode_request(payload).map_err(ProposalError::Malformed)?;
        let proposer = self.set.validators[0].public_key;
        if matches!(request, Request::Propose(_)) && peer != proposer {
            return Err(ProposalError::NotProposer { peer, epoch, proposer });
        }
        Ok(request)
    }

    async fn ask(&self, peer: PeerId, request: Request) -> Result<Response, ProposalError> {
        let (answer, answered) = oneshot::channel();
        self.mailbox.send(Mail { peer, request, answer }).await.map_err(|_| ProposalError::Stopping)?;
        answered.await.unwrap_or(Err(ProposalError::Stopping))
    }

    /// What it is doing.
    pub fn status(&self) -> ConsensusStatus {
        self.status.borrow().clone()
    }
}
