//! Starting from a waypoint alone: peers send the genesis, the waypoint proves it.

use std::{collections::BTreeMap, time::Duration};

use futures::stream::{FuturesUnordered, StreamExt};
use slipstream_network::{PeerId, Protocol, RequestLimits, Transport};
use slipstream_types::{BatchNumber, BlobKind, Genesis, Waypoint, codec};
use tokio::time::Instant;

use crate::{
    SyncError,
    protocol::{ANSWER_BYTES_MAX, Origin, Request},
};

/// How long one peer may take.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between rounds over all peers.
const ROUND_PAUSE: Duration = Duration::from_millis(250);
/// How often an operator who waits is told what peers say.
const REPORT_INTERVAL: Duration = Duration::from_secs(3);
/// When all peers have another ledger, waiting for more of them is short: the waypoint is probably mistyped.
const CONTRADICTED_PATIENCE: Duration = Duration::from_secs(3);

/// Why a peer did not give the genesis.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("its ledger has {found}")]
    OtherLedger { found: Waypoint },
    #[error("{0}")]
    Other(String),
}

fn other(error: impl ToString) -> Refused {
    Refused::Other(error.to_string())
}

/// Fetches the genesis of the ledger that a waypoint names, from any peer, and checks it: the ledger info must have the
/// waypoint's hash, and the genesis must be leaf 0 of its accumulator. Whom it asked and what each answered is logged every
/// few seconds.
///
/// # Errors
/// [`SyncError::OtherLedger`] if all peers contradict the waypoint, [`SyncError::UnknownWaypoint`] after `patience`; both with
/// what each peer said.
pub async fn fetch_genesis(
    transport: &dyn Transport,
    waypoint: &Waypoint,
    patience: Duration,
) -> Result<Genesis, SyncError> {
    let mut asking = Asking {
        transport,
        waypoint: *waypoint,
        answers: BTreeMap::new(),
        started: Instant::now(),
        report_at: Instant::now() + REPORT_INTERVAL,
    };
    loop {
        if let Some(genesis) = asking.round().await {
            return Ok(genesis);
        }
        let (waypoint, answers, waited) = (*waypoint, asking.describe(), asking.started.elapsed());
        if asking.is_contradicted() && waited >= patience.min(CONTRADICTED_PATIENCE) {
            return Err(SyncError::OtherLedger { waypoint, answers });
        }
        if waited >= patience {
            return Err(SyncError::UnknownWaypoint { waypoint, answers });
        }
        asking.pause().await;
    }
}

/// What peers were asked and what they said.
struct Asking<'a> {
    transport: &'a dyn Transport,
    waypoint: Waypoint,
    /// The last answer of each peer; none of one that has not answered yet.
    answers: BTreeMap<PeerId, Option<Refused>>,
    started: Instant,
    report_at: Instant,
}

impl Asking<'_> {
    /// Asks all peers at once: a slow one must not keep an honest one from answering.
    async fn round(&mut self) -> Option<Genesis> {
        let (transport, waypoint) = (self.transport, self.waypoint);
        let peers = transport.peers();
        if !peers.is_empty() {
            self.answers.retain(|peer, _| peers.contains(peer));
        }
        for peer in &peers {
            self.answers.entry(*peer).or_insert(None);
        }
        let mut asked: FuturesUnordered<_> = peers
            .into_iter()
            .map(|peer| async move { (peer, ask(transport, peer, &waypoint).await) })
            .collect();
        loop {
            tokio::select! {
                answer = asked.next() => match answer? {
                    (_, Ok(genesis)) => return Some(genesis),
                    (peer, Err(refused)) => _ = self.answers.insert(peer, Some(refused)),
                },
                () = tokio::time::sleep_until(self.report_at) => self.report(),
            }
        }
    }

    /// Waits a little for other peers, or other answers.
    async fn pause(&mut self) {
        tokio::time::sleep(ROUND_PAUSE).await;
        if Instant::now() >= self.report_at {
            self.report();
        }
    }

    fn report(&mut self) {
        self.report_at = Instant::now() + REPORT_INTERVAL;
        let waited_s = self.started.elapsed().as_secs();
        tracing::info!(waypoint = %self.waypoint, waited_s, answers = %self.describe(), "no peer has sent the genesis yet");
    }

    fn is_contradicted(&self) -> bool {
        let contradicts = |answer: &Option<Refused>| matches!(answer, Some(Refused::OtherLedger { .. }));
        // Who has gone does not count: others may still come.
        let peers = self.transport.peers();
        !peers.is_empty() && peers.iter().all(|peer| self.answers.get(peer).is_some_and(contradicts))
    }

    fn describe(&self) -> String {
        if self.answers.is_empty() {
            return "no peer is connected".into();
        }
        let answers = self.answers.iter().map(|(peer, answer)| match answer {
            Some(refused) => format!("{}: {refused}", peer.short()),
            None => format!("{}: has not answered yet", peer.short()),
        });
        answers.collect::<Vec<_>>().join("; ")
    }
}

async fn ask(transport: &dyn Transport, peer: PeerId, waypoint: &Waypoint) -> Result<Genesis, Refused> {
    let request = Request::Origin { number: waypoint.number };
    let payload = codec::encode("sync request", &request).map_err(other)?;
    let limits = RequestLimits { deadline: ANSWER_DEADLINE, response_bytes_max: ANSWER_BYTES_MAX };
    let bytes = transport.request(peer, Protocol::SYNC, payload, limits).await.map_err(other)?;
    check(&bytes, waypoint)
}

fn check(bytes: &[u8], waypoint: &Waypoint) -> Result<Genesis, Refused> {
    let origin: Origin = codec::decode("origin", bytes, ANSWER_BYTES_MAX).map_err(other)?;
    let found = Waypoint::of(&origin.info);
    if found != *waypoint {
        return Err(Refused::OtherLedger { found });
    }
    let content = origin.genesis.content(BlobKind::Genesis).map_err(other)?;
    let genesis = Genesis::decode(&content).map_err(other)?;
    let leaf = genesis.header().map_err(other)?.digest();
    let leaves = waypoint.number.0.saturating_add(1);
    let proved = origin.proof.verify(origin.info.accumulator_root, leaves, BatchNumber(0).0, &[leaf]);
    proved.map_err(other)?;
    Ok(genesis)
}
