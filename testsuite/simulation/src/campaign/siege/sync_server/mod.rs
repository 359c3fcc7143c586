//! Attacks by peers that a joining node syncs from: they fetch true answers, and alter or withhold them.

mod changes;
mod kinds;

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context, Result};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use slipnet::scenario::fault::PeerLie;
use slipstream_network::{
    Handler, Network, NetworkConfig, Payload, PeerAddress, PeerId, Protocol, Refusal, RequestLimits,
    Transport,
};
use slipstream_storage::StateChunk;
use slipstream_sync::protocol::{
    ANSWER_BYTES_MAX, Origin, REQUEST_BYTES_MAX, RangeDeltaRequest, Request, SnapshotOffer, Summary,
};
use slipstream_types::{Blob, BlobKind, Digest, PublicKey, SecretKey, bounded::BoundedVec, codec};
use tokio::time::sleep;

pub(super) use self::kinds::all;
use self::{
    changes::{bargains, lures, told},
    kinds::{Liars, shows_in},
};
use super::{
    attack::{Attack, AttackContext, AttackInfo, AttackSurface, Crowd, Tally},
    quic::keep,
    wire::fresh_key,
};
use crate::lies;

/// Almost an asking node's whole deadline of 10 s.
const LATE: Duration = Duration::from_millis(9_500);
/// The pause that a busy server requests.
const BUSY: Duration = Duration::from_secs(1);
/// The pause between the chunks of a dripping server: far below the 30 s after which a stalled restore is given up.
const DRIP_INTERVAL: Duration = Duration::from_secs(4);
const DRIP_BYTES: u32 = 1 << 10;
/// The number of keys that are tried to find one that ranks first.
const KEYS_GROUND: usize = 4_096;
const OVERSIZED_BYTES: usize = 40 << 20;
const GARBAGE_BYTES: usize = 64;
/// The bytes of rows added to a range delta: the answer stays within the asking node's limit.
const PADDING_BYTES_MAX: u32 = 16 << 10;
const UPSTREAM: RequestLimits =
    RequestLimits { deadline: Duration::from_secs(10), response_bytes_max: ANSWER_BYTES_MAX };
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

impl Attack for Liars {
    fn info(&self) -> AttackInfo {
        let info = AttackInfo::new(AttackSurface::Server, self.lie.of_program(), self.about)
            .joined(shows_in(self.lie));
        match self.lie {
            PeerLie::StallingServers => info.quick(),
            PeerLie::FalseGenesis => info.joined_by_waypoint().quick(),
            _ => info,
        }
    }

    fn start(&self, field: AttackContext) -> BoxFuture<'static, Result<()>> {
        let lie = self.lie;
        let Crowd { count, first } = field.target.liars.unwrap_or(Crowd { count: self.count, first: 0 });
        Box::pin(async move {
            let victim: PublicKey =
                field.target.joiner.parse().context("cannot parse the joining node's key")?;
            let mut networks = Vec::new();
            let mut entries = Vec::new();
            let crowd = SharedGenesis::default();
            for index in 0..count {
                let key = match lie {
                    PeerLie::SnapshotLureGround => ground_key(&victim),
                    _ => fresh_key(),
                };
                let (network, address) = listen(&field, (lie, crowd.clone()), &key, first + index).await?;
                entries.push(PeerAddress { id: key.public(), address }.to_string());
                networks.push(network);
            }
            field.set(entries);
            keep(networks).await;
            Ok(())
        })
    }
}

/// Returns the key, out of many, that ranks first where the asking node orders equal peers by a number derived from its
/// public key.
fn ground_key(asker: &PublicKey) -> SecretKey {
    let seed = Digest::tagged("slipstream/exploration/1", &asker.0).0;
    let seed = seed.iter().fold(0, |seed, byte| u64::rotate_left(seed, 8) ^ u64::from(*byte));
    let keys = (0..KEYS_GROUND).map(|_| fresh_key());
    keys.min_by_key(|key| place(seed, &key.public())).unwrap_or_else(fresh_key)
}

/// Returns a peer's rank among equals for a seed: SplitMix64 over the words of its key.
fn place(seed: u64, peer: &PublicKey) -> u64 {
    let (words, _) = peer.0.as_chunks::<8>();
    words.iter().fold(0, |mixed, word| {
        let value = mixed ^ u64::from_le_bytes(*word);
        let mut mixed = seed.wrapping_add(value.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// Starts a liar, and connects it with its source of true answers.
async fn listen(
    field: &AttackContext,
    (lie, crowd): (PeerLie, SharedGenesis),
    key: &SecretKey,
    index: usize,
) -> Result<(Arc<Network>, SocketAddr)> {
    let upstream: PeerAddress = field.target.upstream.parse()?;
    let liar = Arc::new(Liar {
        lie,
        upstream: upstream.id,
        network: OnceLock::new(),
        tally: field.tally.clone(),
        stranger: fresh_key(),
        crowd,
    });
    let listen = SocketAddr::from((AttackContext::address(index), 0));
    let mut config = NetworkConfig { listen, peers: vec![upstream.into()], ..NetworkConfig::default() };
    if field.target.liars.is_some() {
        // A scenario passes the liars to a node: they dial no other node.
        config.outbound = 0;
    }
    let network = Network::start(&config, key, liar.clone()).await?;
    let connected = async {
        while !network.peers().contains(&upstream.id) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(CONNECT_DEADLINE, connected)
        .await
        .context("the liar did not connect to the validator in time")?;
    // Set only here, once.
    let _ = liar.network.set(network.clone());
    let address = network.local_address();
    Ok((network, address))
}

/// The handler of one liar. It and its network reference each other; both last as long as the process.
struct Liar {
    lie: PeerLie,
    upstream: PeerId,
    network: OnceLock<Arc<Network>>,
    tally: Arc<Tally>,
    /// The key of a stranger, which is no validator's.
    stranger: SecretKey,
    crowd: SharedGenesis,
}

/// A false genesis, made once for all liars of the process.
#[derive(Clone, Default)]
struct SharedGenesis(Arc<Mutex<Option<Blob>>>);

impl SharedGenesis {
    fn of(&self, genesis: &Blob) -> Result<Blob> {
        let mut made = self.0.lock();
        match &*made {
            Some(blob) => Ok(blob.clone()),
            None => Ok(made.insert(lies::crowded(genesis)?).clone()),
        }
    }
}

impl Liar {
    async fn respond(&self, peer: PeerId, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        let request: Request = codec::decode("sync request", payload, REQUEST_BYTES_MAX)
            .map_err(|error| Refusal::malformed(error.to_string()))?;
        // The node that supplies the truth would ban the liar for a lie, and so cut it off.
        if peer == self.upstream {
            return self.truth(&request).await.map_err(|error| Refusal::failed(error.to_string()));
        }
        self.tally.tried();
        let is_lure = matches!(self.lie, PeerLie::SnapshotLure | PeerLie::SnapshotLureGround);
        if is_lure && request != Request::Summary {
            self.tally.done();
            sleep(LATE).await;
            return Err(Refusal::busy(Duration::ZERO, "ask again in a moment"));
        }
        if self.lie == PeerLie::BusyServers && request != Request::Summary {
            self.tally.done();
            return Err(Refusal::busy(BUSY, "ask again in a second"));
        }
        self.answer(request).await.map_err(|error| Refusal::failed(error.to_string()))
    }

    async fn answer(&self, mut request: Request) -> Result<Vec<u8>> {
        let answer = match (self.lie, &mut request) {
            (PeerLie::SnapshotLure | PeerLie::SnapshotLureGround, Request::Summary) => {
                self.summary(lures).await?
            }
            (PeerLie::SnapshotDrip, Request::Summary) => self.summary(bargains).await?,
            (PeerLie::GarbageAnswers, _) => (0..GARBAGE_BYTES).map(|_| rand::random()).collect(),
            (PeerLie::StallingServers, Request::Summary | Request::Epochs { .. }) => {
                self.truth(&request).await?
            }
            (PeerLie::StallingServers, _) => {
                self.tally.done();
                std::future::pending().await
            }
            (PeerLie::SnapshotDrip, Request::Chunk { bytes_max, .. }) => {
                sleep(DRIP_INTERVAL).await;
                *bytes_max = DRIP_BYTES;
                self.truth(&request).await?
            }
            (PeerLie::OversizedAnswers, _) => vec![0; OVERSIZED_BYTES],
            (PeerLie::ShortRanges, Request::Range(range)) if range.batches_max > 1 => {
                range.batches_max /= 2;
                self.truth(&request).await?
            }
            (PeerLie::ShiftedRanges, Request::Range(range)) => {
                range.first = range.first.next();
                self.truth(&request).await?
            }
            (PeerLie::LateAnswers, asked) if *asked != Request::Summary => {
                sleep(LATE).await;
                self.truth(&request).await?
            }
            (PeerLie::FalseGenesis, Request::Origin { .. }) => {
                let truth = self.truth(&request).await?;
                let mut origin: Origin = codec::decode("origin", &truth, ANSWER_BYTES_MAX)?;
                origin.genesis = self.crowd.of(&origin.genesis)?;
                codec::encode("origin", &origin)?
            }
            (PeerLie::PaddedRangeDeltas, Request::RangeDelta(asked)) => {
                let asked = *asked;
                let truth = self.truth(&request).await?;
                let Some(padded) = self.padded(&truth, asked).await? else { return Ok(truth) };
                padded
            }
            _ => {
                let truth = self.truth(&request).await?;
                // Some answers have nothing that the lie changes.
                let Some(lie) = told(self.lie, &request, &truth, &self.stranger)? else { return Ok(truth) };
                lie
            }
        };
        self.tally.done();
        Ok(answer)
    }

    /// Returns an honest node's answer.
    async fn truth(&self, request: &Request) -> Result<Vec<u8>> {
        let network = self.network.get().context("the liar is not connected yet")?;
        let payload = codec::encode("sync request", request)?;
        Ok(network.request(self.upstream, Protocol::SYNC, payload, UPSTREAM).await?)
    }

    async fn true_summary(&self) -> Result<Summary> {
        let truth = self.truth(&Request::Summary).await?;
        Ok(codec::decode("summary", &truth, ANSWER_BYTES_MAX)?)
    }

    /// Returns a true summary with other snapshots.
    async fn summary(&self, offers: fn(&Summary) -> Vec<SnapshotOffer>) -> Result<Vec<u8>> {
        let mut summary = self.true_summary().await?;
        summary.snapshots = BoundedVec::new(offers(&summary))?;
        Ok(codec::encode("summary", &summary)?)
    }

    /// Returns a range delta with unchanged rows of the same snapshot, taken from there because the asking node does
    /// not have them yet.
    async fn padded(&self, truth: &[u8], asked: RangeDeltaRequest) -> Result<Option<Vec<u8>>> {
        let RangeDeltaRequest { to, first, last, .. } = asked;
        let chunk = Request::Chunk { number: to, first, last, bytes_max: PADDING_BYTES_MAX };
        let chunk: StateChunk = Blob::from_bytes(self.truth(&chunk).await?)?.open(BlobKind::StateChunk)?;
        lies::pad(truth, chunk.rows.into_inner())
    }
}

impl Handler for Liar {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _protocol: Protocol,
        payload: Vec<u8>,
    ) -> slipstream_network::BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move { self.respond(peer, &payload).await.map(Payload::from) })
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> slipstream_network::BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Goal: a scenario can use exactly the existing kinds of liars.
    #[test]
    fn scenarios_know_all_liars() {
        let known: BTreeSet<&str> = PeerLie::ALL.iter().map(|lie| lie.of_program()).collect();
        let there: BTreeSet<&str> = all().map(|attack| attack.info().name).collect();
        assert_eq!(known, there);
    }

    #[test]
    fn a_ground_key_comes_before_others() {
        let asker = fresh_key().public();
        let seed = Digest::tagged("slipstream/exploration/1", &asker.0).0;
        let seed = seed.iter().fold(0, |seed, byte| u64::rotate_left(seed, 8) ^ u64::from(*byte));
        let ground = place(seed, &ground_key(&asker).public());
        let before = (0..100).filter(|_| place(seed, &fresh_key().public()) < ground).count();
        assert!(before < 5, "{before} of 100 fresh keys come before it");
    }
}
