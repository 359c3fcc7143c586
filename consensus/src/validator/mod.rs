//! A validator: the actor that drives `slipstream_eve::Core`, which decides.
//!
//! ```text
//!  peers ── Validator::handle ──▶ mailbox ─┐                 ┌─▶ answers (oneshot), status and view (watch)
//!  store's head ───────────────────────────┤                 ├─▶ executions: build, execute, adopt    ┐ three work queues, so that
//!  queues: results ────────────────────────┼─▶ Driver ⇄ Core ┼─▶ records: what must not be forgotten  │ votes on a batch travel while
//!  Lanes: answers ─────────────────────────┤  (one task)     ├─▶ commits; lookups for others          ┘ the next is executed
//!  Timers, pool, shutdown ─────────────────┘                 ├─▶ Lanes: messages to the other validators
//!                                                            └─▶ DecidedBatch ──▶ node announces it to fullnodes
//! ```
//!
//! [`Validator`] is a handle. The [`Driver`] is the actor that owns everything: the core, uncommitted batches
//! ([`uncommitted_chain`], and [`kept`] on disk), and bodies that wait for execution ([`bodies`]). Inputs come one
//! after another, so no part needs a lock. `inputs` passes events to the core, and `effects` carries out what the core
//! wants. `working` and `execution` make outcomes, and `fetching` gets those that others agreed on. `pace` bounds a
//! batch by time. After a start, `opening` finds the earlier state.
//!
//! The validator makes everything durable before it sends it: outcomes when it executes them, votes by
//! [`Flush`](slipstream_eve::Flush), one after another.

mod admission;
mod bodies;
mod build_timer;
mod building;
mod cadence;
mod driver;
mod effects;
mod executed;
mod execution;
mod fetching;
mod inputs;
mod kept;
mod lanes;
mod ledger;
mod logged_refusals;
mod message;
mod neglect;
mod opening;
mod pace;
mod records;
mod reporting;
mod silence;
mod status;
mod stop;
#[cfg(test)]
mod tests;
mod timers;
mod times;
mod tip;
mod uncommitted_chain;
mod work_queue;
mod working;

use std::{sync::Arc, time::Duration};

use slipstream_eve::{Evidence, Message, Record, SignedOrder};
use slipstream_executor::Session;
use slipstream_network::{PeerId, Refusal, Transport};
use slipstream_storage::Store;
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, Certificate, ChainConfig, Clock, Digest, Epoch, SecretKey, ValidatorSet,
};
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use self::kept::kept_tokens;
use self::{
    admission::{Admission, Uselessness},
    driver::DriverParts,
    inputs::Answer,
    ledger::Ledger,
    status::PublishedStatus,
};
pub use self::{
    driver::Driver,
    message::{Ordered, OutcomeParts, Request, Response, decode_request, decode_response, encode},
    records::{VOTE_RECORD, voted_up_to},
    silence::Silence,
    status::{ConsensusStatus, Conviction, EvidenceKind, PeerStanding, Position, Proof, Voting},
};
use crate::{
    config::ConsensusConfig,
    error::{ConsensusError, ProposalError, RecordError},
    planted::{Defences, Planted},
    pool::Pool,
    seams::Seams,
};

/// Maximum number of requests that wait for the driver. Further ones wait with their senders: the network bounds how many each peer
/// may have, and their bytes.
const MAILBOX_MAX: usize = 16;

/// Longest protocol message, in bytes, that is answered once it is in the mailbox. Votes are far shorter. A longer
/// message is answered when the driver has taken it out; until then its bytes count against its sender.
const SHORT_WORD_BYTES_MAX: usize = 4 << 10;

/// Time after which a validator may retry an order that found no room.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// A certified batch, handed on for announcement to the fullnodes. This validator may not have committed it yet.
#[derive(Clone, Debug)]
pub struct DecidedBatch {
    /// Whether this validator is the primary of the view that decided the batch: the primary spreads it, and the others
    /// help.
    pub leads: bool,
    /// Header of the decided batch.
    pub header: BatchHeader,
    /// Certificate of the decided batch.
    pub certificate: Certificate,
    /// The batch's transactions, as a blob.
    pub body: Blob,
    /// The batch's hints, if its maker recorded them.
    pub hints: Option<Blob>,
}

/// A request of the validator at that seat.
struct Mail {
    seat: u16,
    content: Content,
}

enum Content {
    /// An order whose body is still packed, the bytes of its message, and where to answer whether it is wanted.
    Offer(SignedOrder, usize, oneshot::Sender<Result<bool, ProposalError>>),
    /// A wanted order that came without the body that it names.
    Misfit(SignedOrder),
    /// An order with the body that it names.
    Order(Box<Ordered>, Answer),
    /// A message of the protocol, and where its answer goes if it was not answered yet.
    Word(Box<Message>, Option<Answer>),
    /// A request for the outcome of a batch, by its token.
    Outcome(BatchNumber, Digest, Answer),
}

/// A handle to one member of the validator set. Clones share the same validator.
#[derive(Clone)]
pub struct Validator {
    key: PeerId,
    set: Arc<ValidatorSet>,
    domain: Digest,
    defences: Defences,
    admission: Arc<Admission>,
    mailbox: mpsc::Sender<Mail>,
    shown: Arc<watch::Sender<PublishedStatus>>,
    view: watch::Receiver<u64>,
    evidence: watch::Receiver<Arc<Vec<Evidence>>>,
}

impl Validator {
    /// Makes a validator of `set` with that key, over an initialised store. Returns the handle, and the driver that
    /// works once it [runs](Driver::run). Each decided batch goes to `decided`; if nobody takes it, it is dropped, and
    /// fullnodes get it through sync. With `executor.hints: values` its batches' hints carry values.
    ///
    /// # Errors
    /// If the set lacks the key, or a record that the validator must not forget is unreadable.
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
        decided: mpsc::Sender<DecidedBatch>,
    ) -> Result<(Validator, Driver), ConsensusError> {
        let seams = Seams::default();
        Validator::simulated(seams, config, session, chain, store, pool, key, set, transport, clock, decided)
    }

    /// Does the same as [`Validator::new`], with the seams of a simulator.
    ///
    /// # Errors
    /// As [`Validator::new`].
    #[doc(hidden)]
    #[allow(clippy::too_many_arguments, reason = "as above")]
    pub fn simulated(
        seams: Seams,
        config: ConsensusConfig,
        session: Arc<Session>,
        chain: ChainConfig,
        store: Store,
        pool: Pool,
        key: SecretKey,
        set: ValidatorSet,
        transport: Arc<dyn Transport>,
        clock: Arc<dyn Clock>,
        decided: mpsc::Sender<DecidedBatch>,
    ) -> Result<(Validator, Driver), ConsensusError> {
        let public_key = key.public();
        let Some(index) = set.index_of(&public_key) else {
            return Err(ConsensusError::NotAValidator {
                key: public_key,
                epoch: set.epoch,
                validators: set.validators.len(),
            });
        };
        let genesis = store.genesis()?;
        let domain = Ledger::domain(genesis.header()?.digest(), &set);
        let defences = seams.defences;
        let ledger = Arc::new(Ledger {
            domain,
            chain,
            store,
            set: set.clone(),
            key,
            session,
            contract: genesis.validators_contract,
            seams,
        });
        let shown = Arc::new(watch::Sender::new(PublishedStatus::new(index, &set)));
        let (mailbox, mail) = mpsc::channel(MAILBOX_MAX);
        let (told, view) = watch::channel(0);
        let (proved, evidence) = watch::channel(Arc::default());
        let parts = DriverParts {
            config,
            ledger,
            pool,
            seat: index,
            transport,
            clock,
            decided,
            mail,
            shown: shown.clone(),
            view: told,
            evidence: proved,
        };
        let driver = Driver::new(parts)?;
        let (admission, set) = (Admission::new(set.validators.len()), Arc::new(set));
        let validator =
            Validator { key: public_key, set, domain, defences, admission, mailbox, shown, view, evidence };
        Ok((validator, driver))
    }

    /// Answers a request of the consensus protocol as soon as the driver has processed it. A vote is answered as soon
    /// as it is in the driver's mailbox. A refusal says what is wrong. Work that a request began continues even if the
    /// future is dropped.
    pub async fn handle(&self, peer: PeerId, payload: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let answer = self.answer(peer, payload).await;
        let encoded =
            answer.and_then(|response| message::encode(&response).map_err(ProposalError::Malformed));
        encoded.map_err(|error| {
            // Strangers must not fill the log.
            tracing::debug!(peer = %peer.short(), %error, "consensus message refused");
            self.shown.send_modify(|shown| shown.status.refused += 1);
            if let (ProposalError::Malformed(reason), Some(seat)) = (&error, self.set.index_of(&peer)) {
                self.admission.note(seat, &peer, Uselessness::Malformed, reason);
            }
            let text = error.to_string();
            match error {
                ProposalError::Malformed(_) => Refusal::malformed(text),
                ProposalError::NotAValidator { .. } | ProposalError::OtherEpoch { .. } => {
                    Refusal::not_kept(text)
                }
                ProposalError::Busy => Refusal::busy(BUSY_PAUSE, text),
                _ => Refusal::failed(text),
            }
        })
    }

    /// Whether the peer's requests are considered at all.
    pub fn takes_from(&self, peer: &PeerId) -> bool {
        self.set.index_of(peer).is_some()
    }

    async fn answer(&self, peer: PeerId, payload: Vec<u8>) -> Result<Response, ProposalError> {
        // Checked before the payload is decoded: strangers cost nothing.
        let epoch = self.set.epoch;
        let seat = self.set.index_of(&peer).ok_or(ProposalError::NotAValidator { peer, epoch })?;
        if let Some(order) = message::order_of(&payload).map_err(ProposalError::Malformed)? {
            return self.take_order(peer, seat, order, &payload).await;
        }
        let request = message::decode_request(&payload).map_err(ProposalError::Malformed)?;
        let is_short = payload.len() <= SHORT_WORD_BYTES_MAX;
        drop(payload);
        match request {
            Request::Say(found, word) => {
                self.check_epoch(found)?;
                if !is_short {
                    return self.ask(seat, |answer| Content::Word(word, Some(answer))).await;
                }
                self.post(seat, Content::Word(word, None)).await?;
                Ok(Response::Taken)
            }
            // The answer is as long as a batch, and is read from the disk.
            Request::Outcome { number, token } => {
                let _place = self.admission.place(seat).await;
                self.ask(seat, |answer| Content::Outcome(number, token, answer)).await
            }
            // An order in the usual encoding was taken above.
            Request::Order(_) => Err(ProposalError::Malformed(message::ODD_ORDER)),
        }
    }

    fn check_epoch(&self, found: Epoch) -> Result<(), ProposalError> {
        let epoch = self.set.epoch;
        (found == epoch).then_some(()).ok_or(ProposalError::OtherEpoch { found, epoch })
    }

    /// Takes an order. Nothing of its body is copied, unpacked or hashed before the driver wants it.
    async fn take_order(
        &self,
        peer: PeerId,
        seat: u16,
        order: SignedOrder,
        payload: &[u8],
    ) -> Result<Response, ProposalError> {
        self.check_epoch(order.order.epoch)?;
        message::check_author(&order, seat, &self.set).map_err(ProposalError::Malformed)?;
        // Views and committed numbers only grow.
        let is_old = {
            let shown = self.shown.borrow();
            order.order.view < shown.status.view || order.order.number <= shown.committed
        };
        let (mut is_wanted, mut _place) = (false, None);
        if !is_old {
            message::check_signature(&order, &self.set, &self.domain).map_err(ProposalError::Malformed)?;
            _place = Some(self.admission.place(seat).await);
            is_wanted = self.offer(seat, order.clone(), payload.len()).await?;
        }
        if !is_wanted {
            self.shown.send_modify(|shown| shown.note_unwanted(seat));
            let reason = format!("order of batch {} in view {}", order.order.number, order.order.view);
            self.admission.note(seat, &peer, Uselessness::Unwanted, &reason);
            return Ok(Response::Taken);
        }
        let opened = message::decode_request(payload).and_then(|request| match request {
            Request::Order(ordered) if self.defences.lacks(Planted::UncheckedBody) => Ok(ordered),
            Request::Order(ordered) => ordered.check_body().map(|()| ordered),
            _ => Err(message::ODD_ORDER),
        });
        match opened {
            Ok(ordered) => self.ask(seat, |answer| Content::Order(ordered, answer)).await,
            Err(error) => {
                // The primary signed it, and could send others for ever.
                self.post(seat, Content::Misfit(order)).await?;
                Err(ProposalError::Malformed(error))
            }
        }
    }

    async fn offer(&self, seat: u16, order: SignedOrder, bytes: usize) -> Result<bool, ProposalError> {
        let (answer, answered) = oneshot::channel();
        self.post(seat, Content::Offer(order, bytes, answer)).await?;
        answered.await.unwrap_or(Err(ProposalError::Stopping))
    }

    async fn ask(
        &self,
        seat: u16,
        content: impl FnOnce(Answer) -> Content,
    ) -> Result<Response, ProposalError> {
        let (answer, answered) = oneshot::channel();
        self.post(seat, content(answer)).await?;
        answered.await.unwrap_or(Err(ProposalError::Stopping))
    }

    async fn post(&self, seat: u16, content: Content) -> Result<(), ProposalError> {
        self.mailbox.send(Mail { seat, content }).await.map_err(|_| ProposalError::Stopping)
    }

    /// The validator's public key, as a peer.
    pub fn key(&self) -> PeerId {
        self.key
    }

    /// Reports the validator's present state.
    pub fn status(&self) -> ConsensusStatus {
        self.shown.borrow().status()
    }

    /// The view that the validator is in, or goes to. It determines the primary.
    pub fn watch_view(&self) -> watch::Receiver<u64> {
        self.view.clone()
    }

    /// Proofs that validators gave two statements where they may give one.
    pub fn evidence(&self) -> Vec<Proof> {
        self.evidence.borrow().iter().filter_map(|evidence| Proof::of(evidence, &self.set)).collect()
    }
}

/// The domain of signatures in an epoch of a chain.
pub fn domain(genesis: Digest, set: &ValidatorSet) -> Digest {
    Ledger::domain(genesis, set)
}

/// Loads the record that binds the votes of this store's validator.
pub(crate) fn votes(store: &Store) -> Result<Option<Record>, RecordError> {
    records::VOTES.load(store)
}
