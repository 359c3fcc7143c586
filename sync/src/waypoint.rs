//! Starting from a waypoint alone: peers send the genesis, the waypoint proves it.

use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use slipstream_network::{Protocol, RequestLimits, Transport};
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
/// waypoint's hash, and the genesis must be leaf 0 of its accumulator.
///
/// # Errors
/// [`SyncError::UnknownWaypoint`] after `patience`, with what each peer said.
pub async fn fetch_genesis(
    transport: &dyn Transport,
    waypoint: &Waypoint,
    patience: Duration,
) -> Result<Genesis, SyncError> {
    let started = Instant::now();
    let mut answers = Vec::new();
    loop {
        let peers = transport.peers();
        if !peers.is_empty() {
            answers.clear();
        }
        let mut contradicted = !peers.is_empty();
        // All at once: a slow peer must not keep an honest one from answering.
        let mut asked: FuturesUnordered<_> = peers
            .into_iter()
            .map(|peer| async move { (peer, ask(transport, peer, waypoint).await) })
            .collect();
        while let Some((peer, answer)) = asked.next().await {
            match answer {
                Ok(genesis) => return Ok(genesis),
                Err(refusal) => {
                    contradicted &= matches!(refusal, Refused::OtherLedger { .. });
                    answers.push(format!("{}: {refusal}", peer.short()));
                }
            }
        }
        let patience = if contradicted { patience.min(CONTRADICTED_PATIENCE) } else { patience };
        if started.elapsed() >= patience {
            let answers = if answers.is_empty() { "no peer is connected".into() } else { answers.join("; ") };
            return Err(SyncError::UnknownWaypoint { waypoint: *waypoint, answers });
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
}

async fn ask(
    transport: &dyn Transport,
    peer: slipstream_network::PeerId,
    waypoint: &Waypoint,
) -> Result<Genesis, Refused> {
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
