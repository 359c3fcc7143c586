//! Starting from a waypoint alone: peers send the genesis, and the waypoint proves it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::stream::{FuturesUnordered, StreamExt};
use slipstream_network::{PeerId, Protocol, RequestLimits, Transport};
use slipstream_types::{
    BatchNumber, BlobKind, Genesis, Waypoint, accumulator::AccumulatorError, codec, limits,
};
use tokio::time::{Instant, MissedTickBehavior};

use crate::{
    SyncError, engine,
    protocol::{Origin, Request},
};

/// How long one peer may take.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// How often the node looks which peers are there, and whether one may still know the waypoint. No peer is asked more
/// often.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How often the log tells a waiting operator what peers say.
const REPORT_INTERVAL: Duration = Duration::from_secs(3);
/// How long to wait if all configured peers have another ledger: the waypoint is probably mistyped.
const CONTRADICTED_PATIENCE: Duration = Duration::from_secs(3);
/// Maximum number of peers remembered as seen; further ones bring no more hope.
const MET_MAX: usize = 1_024;
/// Maximum number of peers whose answers stand in one line.
const TOLD_MAX: usize = 16;
/// Maximum bytes of an answer: the longest genesis and its proof.
const ORIGIN_BYTES_MAX: usize = limits::GENESIS_BYTES_MAX + (64 << 10);
/// Maximum bytes of answers that wait for their check. Without a bound each of 55 peers could send a whole genesis, 1.7
/// GiB in all.
const UNCHECKED_BYTES_MAX: usize = 2 * ORIGIN_BYTES_MAX;

/// Why a peer did not give the genesis.
#[derive(Debug, thiserror::Error)]
enum GenesisRefusal {
    #[error("its ledger has {found}")]
    OtherLedger { found: Waypoint },
    /// The waypoint is right but the genesis beside it is not. That is a lie, because the waypoint commits to the
    /// genesis.
    #[error("it sent a genesis that does not belong to the waypoint's ledger: {0}")]
    FalseGenesis(AccumulatorError),
    /// This node cannot tell whether the genesis is true.
    #[error("this program cannot read the genesis that it sent: {0}; a newer program may be needed")]
    Unreadable(String),
    #[error("its genesis waits until this node has checked shorter ones")]
    PutOff,
    #[error("{0}")]
    Other(String),
}

fn unreadable(error: impl ToString) -> GenesisRefusal {
    GenesisRefusal::Unreadable(error.to_string())
}

fn other(error: impl ToString) -> GenesisRefusal {
    GenesisRefusal::Other(error.to_string())
}

/// How long to ask peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// At most this long: the node can begin without peers.
    AtMost(Duration),
    /// As long as a peer may still know the waypoint. With configured peers, that is until all of them contradict it.
    /// Without them, it is until this long after the last new peer came.
    WhileHopeful(Duration),
}

/// Fetches the genesis of the ledger that a waypoint names from any peer, and checks it. The ledger info must have the
/// waypoint's hash, and the genesis must be leaf 0 of its accumulator. Every few seconds it logs the peers and their answers.
/// If the first peers have another ledger, it goes on: another peer may still come.
///
/// # Errors
/// [`SyncError::OtherLedger`] if all configured peers contradict the waypoint. Without configured peers, the same if
/// all peers connected at the end of the patience contradict it. Otherwise [`SyncError::UnknownWaypoint`] at that end.
/// Both have what each peer last said.
pub async fn fetch_genesis(
    transport: &dyn Transport,
    waypoint: &Waypoint,
    patience: Patience,
) -> Result<Genesis, SyncError> {
    let now = Instant::now();
    let mut asking = GenesisFetch {
        transport,
        waypoint: *waypoint,
        answers: BTreeMap::new(),
        met: BTreeSet::new(),
        started: now,
        met_at: now,
        report_at: now + REPORT_INTERVAL,
    };
    let verdict = match asking.ask_all(patience).await {
        Ok(genesis) => return Ok(genesis),
        Err(verdict) => verdict,
    };
    let (waypoint, answers) = (*waypoint, asking.describe());
    Err(match verdict {
        Verdict::Contradicted => SyncError::OtherLedger { waypoint, answers },
        Verdict::Unknown => SyncError::UnknownWaypoint { waypoint, answers },
    })
}

/// Why asking ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Contradicted,
    Unknown,
}

/// The peers that were asked, and their answers.
struct GenesisFetch<'a> {
    transport: &'a dyn Transport,
    waypoint: Waypoint,
    /// The last answer of each configured or connected peer; `None` before its first answer.
    answers: BTreeMap<PeerId, Option<GenesisRefusal>>,
    /// The peers that have come so far.
    met: BTreeSet<PeerId>,
    started: Instant,
    /// When the last new peer came.
    met_at: Instant,
    report_at: Instant,
}

impl GenesisFetch<'_> {
    /// Asks each peer as soon as it is there, and again after its answer. No slow peer keeps another from being asked.
    async fn ask_all(&mut self, patience: Patience) -> Result<Genesis, Verdict> {
        let (transport, waypoint) = (self.transport, self.waypoint);
        let mut asked = FuturesUnordered::new();
        let mut unchecked = UncheckedAnswers::default();
        // One check runs at a time: a peer whose genesis is expensive to check takes one thread, and not one for each
        // of its keys.
        let mut checking = FuturesUnordered::new();
        // Peers that are being asked, or whose answers are not checked yet.
        let mut busy = BTreeSet::new();
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut has_looked = false;
        loop {
            if checking.is_empty() {
                checking.extend(unchecked.pop().map(|(peer, origin)| check_aside(peer, origin, waypoint)));
            }
            tokio::select! {
                _ = looks.tick() => {
                    match self.verdict(patience).filter(|_| has_looked) {
                        Some(verdict) if checking.is_empty() => return Err(verdict),
                        // Answers that have come are still checked, but no peer is asked for more: false geneses could
                        // go on without end.
                        Some(_) => {}
                        None => {
                            for peer in self.meet().into_iter().filter(|peer| busy.insert(*peer)) {
                                asked.push(async move { (peer, ask(transport, peer, &waypoint).await) });
                            }
                        }
                    }
                    has_looked = true;
                    if Instant::now() >= self.report_at {
                        self.report();
                    }
                }
                Some((peer, answer)) = asked.next() => {
                    match answer.and_then(|origin| unchecked.push(peer, origin)) {
                        Ok(put_off) => put_off.into_iter().for_each(|peer| {
                            busy.remove(&peer);
                            self.answers.insert(peer, Some(GenesisRefusal::PutOff));
                        }),
                        Err(refused) => {
                            busy.remove(&peer);
                            self.answers.insert(peer, Some(refused));
                        }
                    }
                }
                Some((peer, checked)) = checking.next() => match checked {
                    Ok(genesis) => return Ok(genesis),
                    Err(refused) => {
                        if let GenesisRefusal::FalseGenesis(_) = refused {
                            transport.ban(peer, &refused.to_string(), engine::BAN);
                        }
                        busy.remove(&peer);
                        self.answers.insert(peer, Some(refused));
                    }
                },
            }
        }
    }

    /// Updates the peers that are there. Returns those that are worth asking.
    fn meet(&mut self) -> Vec<PeerId> {
        let (mut peers, configured) = (self.transport.peers(), self.configured());
        self.answers.retain(|peer, _| peers.contains(peer) || configured.contains(peer));
        for peer in &peers {
            self.answers.entry(*peer).or_insert(None);
            if self.met.len() < MET_MAX && self.met.insert(*peer) {
                self.met_at = Instant::now();
            }
        }
        // A peer whose answer could not be read would answer the same.
        peers.retain(|peer| !matches!(self.answers.get(peer), Some(Some(GenesisRefusal::Unreadable(_)))));
        peers
    }

    fn report(&mut self) {
        self.report_at = Instant::now() + REPORT_INTERVAL;
        let waited_s = self.started.elapsed().as_secs();
        tracing::info!(waypoint = %self.waypoint, waited_s, answers = %self.describe(), "no peer has sent the genesis yet");
    }

    /// The reason to stop asking; `None` while asking goes on.
    fn verdict(&self, patience: Patience) -> Option<Verdict> {
        let configured = self.configured();
        let waited = self.started.elapsed();
        let is_over = match patience {
            Patience::AtMost(limit) => waited >= limit,
            Patience::WhileHopeful(patience) => configured.is_empty() && self.met_at.elapsed() >= patience,
        };
        if !configured.is_empty() {
            let soon = match patience {
                Patience::AtMost(limit) => limit.min(CONTRADICTED_PATIENCE),
                Patience::WhileHopeful(_) => CONTRADICTED_PATIENCE,
            };
            return match self.contradict(&configured) && waited >= soon {
                true => Some(Verdict::Contradicted),
                false => is_over.then_some(Verdict::Unknown),
            };
        }
        // Peers that are not configured prove nothing to a node that can begin alone.
        let connected = self.transport.peers();
        let may_begin = matches!(patience, Patience::AtMost(_));
        let verdict = match !may_begin && !connected.is_empty() && self.contradict(&connected) {
            true => Verdict::Contradicted,
            false => Verdict::Unknown,
        };
        is_over.then_some(verdict)
    }

    /// Whether all of these peers said that they have another ledger.
    fn contradict(&self, peers: &[PeerId]) -> bool {
        let contradicts =
            |answer: &Option<GenesisRefusal>| matches!(answer, Some(GenesisRefusal::OtherLedger { .. }));
        peers.iter().all(|peer| self.answers.get(peer).is_some_and(contradicts))
    }

    /// The peers that the operator named.
    fn configured(&self) -> Vec<PeerId> {
        self.transport.contacts().configured.iter().map(|configured| configured.peer.id).collect()
    }

    /// What each peer last said, the configured peers first.
    fn describe(&self) -> String {
        let configured = self.configured();
        if self.answers.is_empty() && configured.is_empty() {
            return "no peer is connected".into();
        }
        let others = self.answers.keys().filter(|peer| !configured.contains(peer));
        let all: Vec<_> = configured.iter().chain(others).collect();
        let said = |peer: &&PeerId| match self.answers.get(peer) {
            Some(Some(refused)) => format!("{}: {refused}", peer.short()),
            Some(None) => format!("{}: has not answered yet", peer.short()),
            None => format!("{}: is not connected", peer.short()),
        };
        let mut told: Vec<_> = all.iter().copied().take(TOLD_MAX).map(|peer| said(&peer)).collect();
        if all.len() > TOLD_MAX {
            told.push(format!("and {} more", all.len() - TOLD_MAX));
        }
        told.join("; ")
    }
}

/// Asks a peer. Checks all of its answer but the genesis, which takes long.
async fn ask(transport: &dyn Transport, peer: PeerId, waypoint: &Waypoint) -> Result<Origin, GenesisRefusal> {
    let request = Request::Origin { number: waypoint.number };
    let payload = codec::encode("sync request", &request).map_err(other)?;
    let limits = RequestLimits { deadline: ANSWER_DEADLINE, response_bytes_max: ORIGIN_BYTES_MAX };
    let bytes = transport.request(peer, Protocol::SYNC, payload, limits).await.map_err(other)?;
    let origin: Origin = codec::decode("origin", &bytes, ORIGIN_BYTES_MAX).map_err(other)?;
    let found = Waypoint::of(&origin.info);
    if found == *waypoint { Ok(origin) } else { Err(GenesisRefusal::OtherLedger { found }) }
}

/// Answers whose genesis waits for its check, the shortest content first, because a check's time grows with that
/// length. So the true genesis waits for no longer one, except one whose check has begun.
#[derive(Default)]
struct UncheckedAnswers {
    answers: BTreeMap<(usize, PeerId), Origin>,
    bytes: usize,
}

impl UncheckedAnswers {
    /// Adds an answer. Returns the peers whose answers find no room: longer ones, or this one.
    ///
    /// # Errors
    /// If its blob is no genesis.
    fn push(&mut self, peer: PeerId, origin: Origin) -> Result<Vec<PeerId>, GenesisRefusal> {
        let length = origin.genesis.content_len(BlobKind::Genesis).map_err(unreadable)?;
        self.bytes += origin.genesis.len();
        self.answers.insert((length, peer), origin);
        let mut put_off = Vec::new();
        while self.bytes > UNCHECKED_BYTES_MAX
            && let Some(((_, peer), origin)) = self.answers.pop_last()
        {
            self.bytes -= origin.genesis.len();
            put_off.push(peer);
        }
        Ok(put_off)
    }

    fn pop(&mut self) -> Option<(PeerId, Origin)> {
        let ((_, peer), origin) = self.answers.pop_first()?;
        self.bytes -= origin.genesis.len();
        Some((peer, origin))
    }
}

/// Checks a genesis on a thread of its own: the root of a large one takes a second, in which this thread serves other
/// work.
async fn check_aside(
    peer: PeerId,
    origin: Origin,
    waypoint: Waypoint,
) -> (PeerId, Result<Genesis, GenesisRefusal>) {
    let checked = tokio::task::spawn_blocking(move || check(&origin, &waypoint)).await;
    (peer, checked.map_err(other).flatten())
}

fn check(origin: &Origin, waypoint: &Waypoint) -> Result<Genesis, GenesisRefusal> {
    let content = origin.genesis.content(BlobKind::Genesis).map_err(unreadable)?;
    let genesis = Genesis::decode(&content).map_err(unreadable)?;
    let leaf = genesis.header().map_err(unreadable)?.digest();
    let leaves = waypoint.number.leaves();
    let proved =
        origin.proof.verify(origin.info.accumulator_root, leaves, BatchNumber::GENESIS.get(), &[leaf]);
    proved.map_err(GenesisRefusal::FalseGenesis)?;
    Ok(genesis)
}

#[cfg(test)]
mod tests;
