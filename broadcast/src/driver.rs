//! [`Broadcaster`]: the thin driver that gives the mesh a network, a clock and threads.

use std::sync::Arc;

use parking_lot::Mutex;
use slipstream_coding::{CodecKind, EncodeError, Parameters, RLNC_BYTES_MAX, encode};
use slipstream_network::{FairLimits, FairQueue, PeerId, Transport};
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, Certificate, CodecError, SecretKey, bounded::BoundedVec,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use crate::{
    BroadcastConfig,
    mesh::{Delivery, Done, Effect, Head, JobId, Mesh, MeshStatus, Source},
    message::{Announced, MESSAGE_BYTES_MAX, Part, SignedPlan, Wants},
};

/// Messages that wait for the mesh: of one peer the chunks of some payloads.
const INBOX: FairLimits =
    FairLimits { peer_items_max: 512, peer_bytes_max: MESSAGE_BYTES_MAX + (16 << 20), bytes_max: 192 << 20 };
/// Messages after which effects are done and other events looked at.
const MESSAGES_AT_ONCE: usize = 64;
/// How often is looked whether the peers changed: the transport does not tell.
const PEERS_POLL: Duration = Duration::from_millis(100);

/// What the mesh has to know of the ledger.
pub trait Ledger: Send + Sync + 'static {
    /// Changes with every commit.
    fn watch(&self) -> watch::Receiver<BatchNumber>;

    /// Its end.
    ///
    /// # Errors
    /// If it cannot be read.
    fn head(&self) -> Result<Head, LedgerError>;

    /// A batch is being put together, and will be delivered, complete or not.
    fn expect(&self, number: BatchNumber);

    /// Takes a batch that was put together.
    fn deliver(&self, delivery: Delivery);
}

/// Why the ledger could not be read.
pub type LedgerError = Box<dyn std::error::Error + Send + Sync>;

/// Why a batch was not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// A payload is out of bounds.
    #[error("batch {number} cannot be published: {source}")]
    Encode {
        /// The batch.
        number: BatchNumber,
        /// Why.
        source: EncodeError,
    },
    /// A message is out of bounds.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A thread ended.
    #[error("the thread that codes payloads ended: {0}")]
    Worker(String),
}

/// A batch that this node decided with others.
#[derive(Clone, Debug)]
pub struct Fresh {
    /// Whether this node spreads it, under a plan of its own. Who does not lends its body to whoever does.
    pub leads: bool,
    /// Its header.
    pub header: BatchHeader,
    /// Its certificate.
    pub certificate: Certificate,
    /// Its transactions.
    pub body: Blob,
    /// What executing it reads.
    pub hints: Option<Blob>,
}

/// See the module.
pub struct Broadcaster {
    mesh: Mutex<Mesh>,
    transport: Arc<dyn Transport>,
    config: BroadcastConfig,
    inbox: FairQueue,
    /// Something was put into the mesh from outside its loop.
    poked: Notify,
}

enum Ended {
    Job(JobId, Done),
}

impl Broadcaster {
    /// A broadcaster of a node whose ledger ends so. The seed is a secret.
    pub fn new(
        config: BroadcastConfig,
        wants: Wants,
        head: Head,
        transport: Arc<dyn Transport>,
        seed: [u8; 32],
    ) -> Arc<Broadcaster> {
        let mesh = Mesh::new(transport.local(), config.clone(), wants, head, seed);
        Arc::new(Broadcaster {
            mesh: Mutex::new(mesh),
            transport,
            config,
            inbox: FairQueue::new(INBOX),
            poked: Notify::new(),
        })
    }

    /// Takes a message of a peer. When too many of its wait the oldest is dropped, and is asked for again if it is needed.
    pub fn on_message(&self, peer: PeerId, message: Vec<u8>) {
        let dropped = self.inbox.push(peer, message);
        if dropped > 0 {
            tracing::debug!(peer = %peer.short(), dropped, "messages of the mesh were dropped: too many wait");
        }
    }

    /// From now on the node wants these parts of new batches.
    pub fn set_wants(&self, wants: Wants) {
        self.mesh.lock().set_wants(wants);
        self.poked.notify_one();
    }

    /// What was moved.
    pub fn status(&self) -> MeshStatus {
        self.mesh.lock().status().clone()
    }

    /// Spreads a batch as a validator of its epoch; nothing happens if the key is none's.
    ///
    /// # Errors
    /// If a payload cannot be coded.
    pub async fn publish(&self, fresh: Fresh, key: &SecretKey) -> Result<(), PublishError> {
        let Fresh { leads, header, certificate, body, hints } = fresh;
        let (number, view) = (header.number, certificate.view);
        if !leads {
            let body = body.into_bytes().into();
            self.mesh.lock().lend(header, certificate, body, Instant::now());
            self.poked.notify_one();
            return Ok(());
        }
        let Some(set) = self.mesh.lock().set_of(header.epoch) else { return Ok(()) };
        let Some(signer) = set.index_of(&key.public()) else { return Ok(()) };
        let parts = [Some((Part::Body, body)), hints.map(|hints| (Part::Hints, hints))];
        let config = self.config.clone();
        let coding = tokio::task::spawn_blocking(move || {
            let parts = parts.into_iter().flatten();
            parts
                .map(|(part, blob)| Ok((part, code(&config, blob)?)))
                .collect::<Result<Vec<_>, EncodeError>>()
        });
        let coded = coding.await.map_err(|error| PublishError::Worker(error.to_string()))?;
        let coded = coded.map_err(|source| PublishError::Encode { number, source })?;
        let (mut plans, mut sources) = (Vec::new(), Vec::new());
        for (part, (plan, codec)) in coded {
            let signed = SignedPlan::sign(&header, (part, plan), view, (signer, key))?;
            sources.push(Source { id: signed.id(&header.digest())?, part, codec });
            plans.push(signed);
        }
        let announced = Announced { header, certificate, plans: BoundedVec::new(plans)? };
        self.mesh.lock().publish(announced, sources, Instant::now());
        self.poked.notify_one();
        Ok(())
    }

    /// Takes part in the mesh until `shutdown`.
    ///
    /// # Errors
    /// If the ledger cannot be read, or a thread ended.
    pub async fn run(
        self: Arc<Self>,
        ledger: Arc<dyn Ledger>,
        shutdown: CancellationToken,
    ) -> Result<(), LedgerError> {
        let mut jobs = JoinSet::new();
        let done = tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            done = self.drive(&*ledger, &mut jobs) => done,
        };
        jobs.shutdown().await;
        done
    }

    async fn drive(&self, ledger: &dyn Ledger, jobs: &mut JoinSet<Ended>) -> Result<(), LedgerError> {
        let mut head = ledger.watch();
        let mut look_at = Instant::now();
        loop {
            if Instant::now() >= look_at {
                self.mesh.lock().handle_peers(&self.transport.peers(), Instant::now());
                look_at = Instant::now() + PEERS_POLL;
            }
            self.act(ledger, jobs);
            let due = self.mesh.lock().poll_timeout().map_or(look_at, |at| at.min(look_at));
            tokio::select! {
                Some(ended) = jobs.join_next() => {
                    let Ended::Job(id, done) = ended?;
                    self.mesh.lock().handle_done(id, done, Instant::now());
                }
                changed = head.changed() => {
                    changed?;
                    self.mesh.lock().handle_head(ledger.head()?, Instant::now());
                }
                (peer, message) = self.inbox.pop() => self.take(peer, &message),
                () = self.poked.notified() => {}
                () = tokio::time::sleep_until(due) => self.mesh.lock().handle_timeout(Instant::now()),
            }
        }
    }

    /// Takes the message at hand and some that wait behind it.
    fn take(&self, peer: PeerId, message: &[u8]) {
        let mut mesh = self.mesh.lock();
        mesh.handle_message(peer, message, Instant::now());
        for _ in 1..MESSAGES_AT_ONCE {
            let Some((peer, message)) = self.inbox.try_pop() else { return };
            mesh.handle_message(peer, &message, Instant::now());
        }
    }

    fn act(&self, ledger: &dyn Ledger, jobs: &mut JoinSet<Ended>) {
        loop {
            let effect = self.mesh.lock().poll_effect();
            let Some(effect) = effect else { return };
            match effect {
                Effect::Send { peer, message, priority } => self.transport.send(peer, message, priority),
                Effect::Run { id, job } => {
                    jobs.spawn_blocking(move || Ended::Job(id, job.run()));
                }
                Effect::Expect(number) => ledger.expect(number),
                Effect::Deliver(delivery) => ledger.deliver(*delivery),
                Effect::Ban { peer, reason, duration } => self.transport.ban(peer, &reason, duration),
            }
        }
    }
}

fn code(
    config: &BroadcastConfig,
    blob: Blob,
) -> Result<(slipstream_coding::Plan, Box<dyn slipstream_coding::Codec>), EncodeError> {
    let payload: Arc<[u8]> = blob.into_bytes().into();
    let kind = match config.codec {
        _ if payload.len() < config.coded_bytes_min as usize => CodecKind::Gossip,
        // Too much arithmetic.
        CodecKind::Rlnc if payload.len() > RLNC_BYTES_MAX => CodecKind::ReedSolomon,
        kind => kind,
    };
    let parameters = Parameters::default_for(payload.len());
    encode(kind, payload, &parameters)
}
