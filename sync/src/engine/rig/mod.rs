//! [`Rig`]: an engine under a script. Peers do what the script says, time passes when it says so, and jobs run at once on a real store.
//!
//! ```text
//!  Rig::at_head(10).peer(A, serves(1..=40)).step()      engine ─ Effect ─▶ jobs: done at once by a real Worker
//!     ├─ asked(A): what A was asked for                         └────────▶ requests: open until the script answers them
//!     └─ answer(A), refuse(A), wait(seconds), until(Timer::Hedge)
//! ```
//! The chain, its certificates and the answers to requests are real; the script makes up only the promises of summaries.

mod clock;
mod promise;
mod setup;

use std::time::Duration;

use slipstream_network::{NetworkError, PeerId, Refusal};
use slipstream_storage::Store;
use slipstream_types::{BatchNumber, BlobKind, PublicKey, codec};
use tokio::time::Instant;

use self::chain::Chain;
pub(super) use self::{
    promise::{Promise, pruned, serves},
    setup::{FAR, HEAD, Node, chain, chain_of_epochs, long_chain},
};
use super::{Effect, Engine, JobId, RequestId};
use crate::{
    Mode, PeerStatus, SyncStatus,
    protocol::Request,
    serve,
    work::{Job, Worker},
};

#[path = "../../../tests/sync/chain.rs"]
#[allow(dead_code, reason = "the tests of the whole follower use the rest")]
pub(super) mod chain;

pub(super) const A: PeerId = PublicKey([1; 32]);
pub(super) const B: PeerId = PublicKey([2; 32]);
pub(super) const C: PeerId = PublicKey([3; 32]);

/// How long a busy peer asks to be left alone.
const SECOND: Duration = Duration::from_secs(1);
/// The round trip to a distant peer.
const ROUND_TRIP: Duration = Duration::from_millis(150);

/// A request without an answer.
#[derive(Debug)]
pub(super) struct Open {
    id: RequestId,
    pub(super) peer: PeerId,
    pub(super) request: Request,
    deadline: Duration,
    ends: Instant,
}

/// See the module.
pub(super) struct Rig {
    pub(super) engine: Engine,
    pub(super) now: Instant,
    pub(super) open: Vec<Open>,
    pub(super) bans: Vec<(PeerId, String)>,
    /// Peers that do not answer requests for their summary.
    pub(super) quiet: Vec<PeerId>,
    /// Whether jobs wait in `held` until [`Rig::work`].
    pub(super) holds_jobs: bool,
    held: Vec<(JobId, Job)>,
    peers: Vec<(PeerId, Promise)>,
    worker: Worker,
    pub(super) store: Store,
    chain: &'static Chain,
}

impl Rig {
    /// A node that applies deltas, with its head at batch `head`.
    pub(super) fn at_head(head: u64) -> Rig {
        Node::new(Mode::Delta, head).rig()
    }

    /// The node after a kill, with another setup, on the same store.
    pub(super) fn restarted(self, node: Node) -> Rig {
        node.rig_with(self.chain, self.store)
    }

    /// Sets the bytes of memory that range deltas may take.
    pub(super) fn range_delta_bytes(self, bytes: u64) -> Rig {
        Rig { worker: self.worker.with_range_delta_bytes(bytes), ..self }
    }

    /// Connects a peer, or changes what it promises from its next summary on.
    pub(super) fn peer(mut self, peer: PeerId, promise: Promise) -> Rig {
        self.meet(peer, promise);
        self
    }

    /// As [`Rig::peer`].
    pub(super) fn meet(&mut self, peer: PeerId, promise: Promise) {
        self.peers.retain(|(other, _)| *other != peer);
        self.peers.push((peer, promise));
        self.connect();
    }

    /// Lets a connected peer have more, without reporting it.
    pub(super) fn grow(&mut self, peer: PeerId, promise: Promise) -> &mut Rig {
        self.peers.iter_mut().filter(|(other, _)| *other == peer).for_each(|(_, it)| *it = promise.clone());
        self
    }

    /// Lets a quiet peer answer requests for its summary. That shows its round trip.
    pub(super) fn tell(&mut self, peer: PeerId) -> &mut Rig {
        let promise = self.peers.iter().find(|(other, _)| *other == peer).map(|(_, promise)| promise.clone());
        let summary = promise.unwrap().summary(self.chain);
        for open in self.take(|open| open.peer == peer && open.request == Request::Summary) {
            let answer = codec::encode("summary", &summary).unwrap();
            self.engine.handle_answer(open.id, Ok(answer), self.now);
        }
        self.step()
    }

    /// Lets a peer announce a batch that it checked and has not committed.
    pub(super) fn rumour(&mut self, peer: PeerId, number: u64) -> &mut Rig {
        self.engine.handle_rumour(peer, BatchNumber::new(number), self.now);
        self.step()
    }

    /// Disconnects a peer.
    pub(super) fn lose(&mut self, peer: PeerId) {
        self.peers.retain(|(other, _)| *other != peer);
        self.fail(peer, |peer, _| NetworkError::Closed { peer });
        self.connect();
    }

    fn connect(&mut self) {
        let mut connected: Vec<PeerId> = self.peers.iter().map(|(peer, _)| *peer).collect();
        connected.sort();
        self.engine.handle_peers(&connected, self.now);
    }

    /// Carries out effects until the engine waits for the script. No time passes.
    pub(super) fn step(&mut self) -> &mut Rig {
        while let Some(effect) = self.engine.poll_effect() {
            match effect {
                Effect::Send { id, peer, request: Request::Summary, .. } if !self.quiet.contains(&peer) => {
                    if let Some((_, promise)) = self.peers.iter().find(|(other, _)| *other == peer) {
                        let answer = codec::encode("summary", &promise.summary(self.chain)).unwrap();
                        self.engine.handle_answer(id, Ok(answer), self.now);
                    }
                }
                Effect::Send { id, peer, request, deadline, .. } => {
                    self.open.push(Open { id, peer, request, deadline, ends: self.now + deadline });
                }
                Effect::Cancel { id } => self.open.retain(|open| open.id != id),
                Effect::Run { id, job } if self.holds_jobs => self.held.push((id, job)),
                Effect::Run { id, job } => self.run(id, job),
                Effect::Ban { peer, reason, .. } => {
                    self.bans.push((peer, reason));
                    self.lose(peer);
                }
                Effect::Hear { .. } => {}
            }
        }
        self
    }

    fn run(&mut self, id: JobId, job: Job) {
        let done = self.worker.run(job);
        self.engine.handle_done(id, done, Duration::from_millis(1), self.now).unwrap();
    }

    /// Runs the held jobs.
    pub(super) fn work(&mut self) -> &mut Rig {
        for (id, job) in std::mem::take(&mut self.held) {
            self.run(id, job);
        }
        self.step()
    }

    /// Runs the checks among the held jobs.
    pub(super) fn work_checks(&mut self) -> &mut Rig {
        let is_check = |(_, job): &(JobId, Job)| matches!(job, Job::CheckRange { .. });
        let (checks, held) = std::mem::take(&mut self.held).into_iter().partition(is_check);
        self.held = held;
        let checks: Vec<(JobId, Job)> = checks;
        checks.into_iter().for_each(|(id, job)| self.run(id, job));
        self.step()
    }

    /// Reverses the order of the held jobs.
    pub(super) fn reverse_held(&mut self) {
        self.held.reverse();
    }

    /// Number of held jobs.
    pub(super) fn held_jobs(&self) -> usize {
        self.held.len()
    }

    /// The unanswered requests to a peer.
    pub(super) fn asked(&self, peer: PeerId) -> Vec<&Request> {
        self.open.iter().filter(|open| open.peer == peer).map(|open| &open.request).collect()
    }

    /// The peers that were asked for the batches from `first` on, in that order.
    pub(super) fn asked_for_range(&self, first: u64) -> Vec<PeerId> {
        let is_it = |request: &Request| matches!(request, Request::Range(range) if range.first == BatchNumber::new(first));
        self.open.iter().filter(|open| is_it(&open.request)).map(|open| open.peer).collect()
    }

    /// Checks that a peer is asked for the batches from `first` on.
    #[track_caller]
    pub(super) fn expect_range(&mut self, peer: PeerId, first: u64) -> &mut Rig {
        let asked = self.asked_for_range(first);
        assert!(asked.contains(&peer), "{first} is asked of {asked:?}; open are {:#?}", self.open);
        self
    }

    /// Answers all of the peer's requests, including follow-ups.
    pub(super) fn serve(&mut self, peer: PeerId) -> &mut Rig {
        while self.open.iter().any(|open| open.peer == peer) {
            self.answer(peer);
        }
        self
    }

    /// Answers all of the peer's open requests.
    pub(super) fn answer(&mut self, peer: PeerId) -> &mut Rig {
        self.answer_if(peer, |_| true)
    }

    /// Lets a distant peer answer its requests, one round trip after the other, until the node's head is `head`.
    /// Returns the number of round trips.
    #[track_caller]
    pub(super) fn rounds(&mut self, peer: PeerId, head: u64) -> usize {
        let mut rounds = 0;
        self.step();
        while self.head() < head {
            assert!(
                !self.asked(peer).is_empty(),
                "it waits for nothing, at {}: {:#?}",
                self.head(),
                self.status()
            );
            self.wait(ROUND_TRIP).answer(peer);
            rounds += 1;
        }
        rounds
    }

    /// Answers the peer's open requests that `which` selects.
    pub(super) fn answer_if(&mut self, peer: PeerId, which: impl Fn(&Request) -> bool) -> &mut Rig {
        for open in self.take(|open| open.peer == peer && which(&open.request)) {
            let payload = codec::encode("request", &open.request).unwrap();
            let answer = serve::answer(&self.chain.store, &payload);
            let answer = answer.map_err(|refusal| NetworkError::Refused { peer, refusal });
            self.engine.handle_answer(open.id, answer, self.now);
        }
        self.step()
    }

    /// Answers the first of the peer's open requests that `which` selects. Returns false if it has none.
    pub(super) fn answer_one(&mut self, peer: PeerId, which: impl Fn(&Request) -> bool) -> bool {
        let first = self.open.iter().find(|open| open.peer == peer && which(&open.request));
        let Some(request) = first.map(|open| open.request.clone()) else { return false };
        self.answer_if(peer, |other| *other == request);
        true
    }

    /// Answers all of the peer's open requests with these bytes.
    pub(super) fn lie(&mut self, peer: PeerId, bytes: &[u8]) -> &mut Rig {
        for open in self.take(|open| open.peer == peer) {
            self.engine.handle_answer(open.id, Ok(bytes.to_vec()), self.now);
        }
        self.step()
    }

    /// Refuses all of the peer's open requests as busy.
    pub(super) fn busy(&mut self, peer: PeerId) -> &mut Rig {
        self.fail(peer, |peer, _| NetworkError::Refused { peer, refusal: Refusal::busy(SECOND, "busy") });
        self.step()
    }

    /// Refuses the peer's open requests that `which` selects: the peer cannot serve them.
    pub(super) fn refuse_if(&mut self, peer: PeerId, which: impl Fn(&Request) -> bool) -> &mut Rig {
        for open in self.take(|open| open.peer == peer && which(&open.request)) {
            let refused = NetworkError::Refused { peer, refusal: Refusal::not_kept("too large") };
            self.engine.handle_answer(open.id, Err(refused), self.now);
        }
        self.step()
    }

    fn fail(&mut self, peer: PeerId, why: impl Fn(PeerId, Duration) -> NetworkError) {
        for open in self.take(|open| open.peer == peer) {
            self.engine.handle_answer(open.id, Err(why(peer, open.deadline)), self.now);
        }
    }

    fn take(&mut self, which: impl Fn(&Open) -> bool) -> Vec<Open> {
        let (taken, left) = std::mem::take(&mut self.open).into_iter().partition(which);
        self.open = left;
        taken
    }

    /// Lets a peer announce a batch.
    pub(super) fn announce(&mut self, from: PeerId, number: u64) -> &mut Rig {
        self.engine.handle_broadcast(from, announcement_of(self.chain, number), self.now);
        self.step()
    }

    /// Lets others in this process begin to assemble a batch.
    pub(super) fn coming(&mut self, number: u64) -> &mut Rig {
        self.engine.handle_expected(BatchNumber::new(number), self.now + Duration::from_secs(2));
        self.step()
    }

    /// Lets the others give that batch up.
    pub(super) fn not_coming(&mut self, number: u64) -> &mut Rig {
        self.engine.handle_given_up(BatchNumber::new(number), self.now);
        self.step()
    }

    /// Lets others in this process commit a batch.
    pub(super) fn commit(&mut self, number: u64) -> &mut Rig {
        self.chain.commit_to(&self.store, BatchNumber::new(number));
        self.engine.handle_head(BatchNumber::new(number), self.now);
        self.step()
    }

    /// The engine's head; the store has the same one.
    pub(super) fn head(&self) -> u64 {
        assert_eq!(self.store.head().unwrap().header.number, self.engine.head());
        self.engine.head().get()
    }

    pub(super) fn status(&self) -> SyncStatus {
        self.engine.status(self.now)
    }

    /// Checks that no peer is banned, and that only this peer counts as failing.
    #[track_caller]
    pub(super) fn blame_only(&self, peer: PeerId) {
        let status = self.status();
        let is_fine = |status: &PeerStatus| (status.failures > 0) == (status.id == peer);
        assert!(self.bans.is_empty() && status.peers.iter().all(is_fine), "{:#?}", status.peers);
    }

    /// Checks that no peer is banned or counts as failing.
    #[track_caller]
    pub(super) fn blames_nobody(&self) {
        let status = self.status();
        assert!(self.bans.is_empty(), "{:?}", self.bans);
        assert!(status.peers.iter().all(|peer| peer.failures == 0), "{:#?}", status.peers);
    }
}

/// The announcement of a batch of [`chain()`].
pub(super) fn announcement(number: u64) -> Vec<u8> {
    announcement_of(chain(), number)
}

fn announcement_of(chain: &Chain, number: u64) -> Vec<u8> {
    let (store, number) = (&chain.store, BatchNumber::new(number));
    let blob = |kind| store.blob(kind, number).unwrap();
    let (header, certificate) = (store.header(number).unwrap(), store.certificate(number).unwrap());
    let body = blob(BlobKind::Body).unwrap();
    crate::announcement(header.unwrap(), certificate.unwrap(), body, blob(BlobKind::Hints)).unwrap()
}
