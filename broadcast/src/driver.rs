//! [`Broadcaster`]: the thin driver that gives the mesh a network, a clock and threads.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use slipstream_network::{FairLimits, FairQueue, PeerId, Transport};
use slipstream_types::{BatchHeader, BatchNumber, Blob, Certificate, SecretKey, bounded::BoundedVec};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    BroadcastConfig,
    mesh::{Delivery, Effect, Head, LeadRequest, Mesh, MeshStatus, Source},
    message::{Announced, MESSAGE_BYTES_MAX, Part, SignedPlan, Wants},
    work::{Coded, Coding, Outcome, Work, Workers},
};

/// Limits of the messages that wait for the mesh: one peer may have the chunks of some payloads there.
const INBOX: FairLimits =
    FairLimits { peer_items_max: 512, peer_bytes_max: MESSAGE_BYTES_MAX + (16 << 20), bytes_max: 192 << 20 };
/// Maximum number of messages that are handled before effects are carried out and other events handled.
const MESSAGES_AT_ONCE: usize = 64;
/// Maximum number of batches that wait to be coded. More would wait only if this node could not keep up at all.
const FRESH_MAX: usize = 64;

/// Sleeps until a time, or for ever without one.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The mesh's view of the ledger, and the receiver of its batches.
pub trait Ledger: Send + Sync + 'static {
    /// Changes with every commit.
    fn watch(&self) -> watch::Receiver<BatchNumber>;

    /// Returns the end of the ledger.
    ///
    /// # Errors
    /// If it cannot be read.
    fn head(&self) -> Result<Head, LedgerError>;

    /// Reports that a batch is being assembled: by `until` the mesh delivers it or gives it up.
    fn expect(&self, number: BatchNumber, until: Instant);

    /// Reports that a peer has, or soon will have, a batch that must be fetched.
    fn heard(&self, peer: PeerId, number: BatchNumber);

    /// Reports that an expected batch does not come.
    fn give_up(&self, number: BatchNumber);

    /// Takes an assembled batch.
    fn deliver(&self, delivery: Delivery);
}

/// Why the ledger could not be read.
pub type LedgerError = Box<dyn std::error::Error + Send + Sync>;

/// A batch that this node decided with others.
#[derive(Clone, Debug)]
pub struct NewBatch {
    /// Whether this node spreads the batch under a plan of its own. Other validators lend their bodies to the node that
    /// does.
    pub leads: bool,
    /// Header of the new batch.
    pub header: BatchHeader,
    /// Certificate of the new batch.
    pub certificate: Certificate,
    /// The batch's transactions, as a blob.
    pub body: Blob,
    /// The keys that executing it reads, if the maker recorded them.
    pub hints: Option<Blob>,
}

/// The driver of the mesh; see the module.
pub struct Broadcaster {
    mesh: Mutex<Mesh>,
    transport: Arc<dyn Transport>,
    config: BroadcastConfig,
    /// Signs plans, in epochs in which it is a validator's key.
    key: SecretKey,
    workers: Arc<dyn Workers>,
    inbox: FairQueue,
    fresh: Mutex<VecDeque<NewBatch>>,
    /// Notified when something was put into the mesh, or waits for it.
    poked: Notify,
}

impl Broadcaster {
    /// Makes the broadcaster of a node whose ledger ends at `head`. The seed is a secret.
    pub fn new(
        config: BroadcastConfig,
        wants: Wants,
        head: Head,
        transport: Arc<dyn Transport>,
        (key, seed): (SecretKey, [u8; 32]),
        workers: Arc<dyn Workers>,
    ) -> Arc<Broadcaster> {
        let mesh = Mesh::new(config.clone(), wants, head, seed);
        Arc::new(Broadcaster {
            mesh: Mutex::new(mesh),
            transport,
            config,
            key,
            workers,
            inbox: FairQueue::new(INBOX),
            fresh: Mutex::new(VecDeque::new()),
            poked: Notify::new(),
        })
    }

    /// Takes a peer's message. If too many of the peer's messages wait, the oldest is dropped, and requested again if
    /// it is needed.
    pub fn on_message(&self, peer: PeerId, message: Vec<u8>) {
        let dropped = self.inbox.push(peer, message);
        if dropped > 0 {
            tracing::debug!(peer = %peer.short(), dropped, "dropped mesh messages: too many were waiting");
        }
    }

    /// Sets the parts of new batches that the node wants from now on.
    pub fn set_wants(&self, wants: Wants) {
        self.mesh.lock().handle_wants(wants);
        self.poked.notify_one();
    }

    /// Reports the traffic of the mesh.
    pub fn status(&self) -> MeshStatus {
        self.mesh.lock().status()
    }

    /// Spreads a batch as a validator of its epoch; does nothing on other nodes.
    pub fn publish(&self, fresh: NewBatch) {
        let mut waiting = self.fresh.lock();
        if waiting.len() == FRESH_MAX
            && let Some(dropped) = waiting.pop_front()
        {
            tracing::error!(number = %dropped.header.number, "cannot spread a batch because too many wait; peers must fetch it");
        }
        waiting.push_back(fresh);
        self.poked.notify_one();
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
            biased;
            () = shutdown.cancelled() => Ok(()),
            done = self.drive(&*ledger, &mut jobs) => done,
        };
        jobs.shutdown().await;
        done
    }

    async fn drive(&self, ledger: &dyn Ledger, jobs: &mut JoinSet<Outcome>) -> Result<(), LedgerError> {
        let mut head = ledger.watch();
        // Catches up with batches committed since the mesh was made.
        self.mesh.lock().handle_head(ledger.head()?, Instant::now());
        let mut peer_watch = self.transport.peer_changes().watch();
        self.look_for_peers();
        loop {
            self.begin_fresh(ledger, jobs)?;
            self.act(ledger, jobs);
            let mut due = self.mesh.lock().poll_timeout();
            if due.is_some_and(|due| due <= Instant::now()) {
                // Comes before the inputs below, which may never run out.
                self.mesh.lock().handle_timeout(Instant::now());
                self.act(ledger, jobs);
                due = self.mesh.lock().poll_timeout();
            }
            tokio::select! {
                biased;
                Some(outcome) = jobs.join_next() => self.finish(outcome?),
                changed = head.changed() => {
                    changed?;
                    self.mesh.lock().handle_head(ledger.head()?, Instant::now());
                }
                () = peer_watch.changed() => self.look_for_peers(),
                (peer, message) = self.inbox.pop() => self.take(peer, &message),
                () = self.poked.notified() => {}
                () = sleep_until(due) => {}
            }
        }
    }

    fn look_for_peers(&self) {
        self.mesh.lock().handle_peers(&self.transport.peers(), Instant::now());
    }

    /// Takes this message and some that wait behind it.
    fn take(&self, peer: PeerId, message: &[u8]) {
        self.take_one(peer, message);
        for _ in 1..MESSAGES_AT_ONCE {
            let Some((peer, message)) = self.inbox.try_pop() else { return };
            self.take_one(peer, &message);
        }
    }

    fn take_one(&self, peer: PeerId, message: &[u8]) {
        if !self.mesh.lock().knows(&peer) {
            // The peer connected since peers were last looked up, or is gone.
            self.look_for_peers();
        }
        self.mesh.lock().handle_message(peer, message, Instant::now());
    }

    /// Begins with a decided batch: the leader codes body and hints, each as soon as a thread is free.
    fn begin_fresh(&self, ledger: &dyn Ledger, jobs: &mut JoinSet<Outcome>) -> Result<(), LedgerError> {
        loop {
            let Some(fresh) = self.fresh.lock().pop_front() else { return Ok(()) };
            let NewBatch { leads, header, certificate, body, hints } = fresh;
            if self.mesh.lock().set_of(header.epoch).is_none() {
                // The first batch of an epoch may be decided before the mesh has seen the end of the previous epoch.
                self.mesh.lock().handle_head(ledger.head()?, Instant::now());
            }
            let body: Arc<[u8]> = body.into_bytes().into();
            if !leads {
                self.mesh.lock().handle_lent(header, certificate, body, Instant::now());
                continue;
            }
            let hints = hints.map(|hints| (Part::Hints, hints.into_bytes().into()));
            for (part, payload) in [Some((Part::Body, body)), hints].into_iter().flatten() {
                let (header, certificate) = (header.clone(), certificate.clone());
                self.code(jobs, Coding { part, payload, header, certificate });
            }
        }
    }

    fn code(&self, jobs: &mut JoinSet<Outcome>, coding: Coding) {
        jobs.spawn(self.workers.run(Work::code(self.config.clone(), coding)));
    }

    fn finish(&self, outcome: Outcome) {
        match outcome {
            Outcome::Done(id, done) => self.mesh.lock().handle_done(id, done, Instant::now()),
            Outcome::Coded(Ok(coded)) => self.publish_coded(*coded),
            Outcome::Coded(Err((number, error))) => {
                tracing::error!(%number, %error, "cannot spread a batch; peers must fetch it");
            }
        }
    }

    fn publish_coded(&self, Coded { part, plan, codec, header, certificate }: Coded) {
        let Some(set) = self.mesh.lock().set_of(header.epoch) else { return };
        let Some(signer) = set.index_of(&self.key.public()) else { return };
        let signed = SignedPlan::sign(&header, (part, plan), certificate.view, (signer, &self.key));
        // A plan coded here is within its bounds.
        let Ok(signed) = signed else { return };
        let Ok(id) = signed.id(&header.digest()) else { return };
        let Ok(plans) = BoundedVec::new(vec![signed]) else { return };
        let announced = Announced { header, certificate, plans };
        self.mesh.lock().handle_published(announced, vec![Source { id, part, codec }], Instant::now());
    }

    fn act(&self, ledger: &dyn Ledger, jobs: &mut JoinSet<Outcome>) {
        loop {
            let effect = self.mesh.lock().poll_effect();
            let Some(effect) = effect else { return };
            match effect {
                Effect::Send { peer, message, priority } => self.transport.send(peer, message, priority),
                Effect::Run { id, job } => _ = jobs.spawn(self.workers.run(Work::job(id, job))),
                Effect::Lead(lead) => {
                    let LeadRequest { header, certificate, body } = *lead;
                    self.code(jobs, Coding { part: Part::Body, payload: body, header, certificate });
                }
                Effect::Expect { number, until } => ledger.expect(number, until),
                Effect::Heard { peer, number } => ledger.heard(peer, number),
                Effect::GaveUp(number) => ledger.give_up(number),
                Effect::Deliver(delivery) => ledger.deliver(*delivery),
                Effect::Credit { peer, bytes } => self.transport.credit(peer, bytes),
                Effect::Ban { peer, reason, duration } => self.transport.ban(peer, &reason, duration),
            }
        }
    }
}
