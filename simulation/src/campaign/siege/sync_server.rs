//! Attacks by peers that a joining node syncs from: they know the truth, and do with it what they like.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context, Result};
use futures::future::BoxFuture;
use slipnet::devnet::SyncMode;
use slipstream_network::{
    Handler, Network, NetworkConfig, Payload, PeerAddress, PeerId, Protocol, Refusal, RequestLimits,
    Transport,
};
use slipstream_sync::protocol::{
    ANSWER_BYTES_MAX, REQUEST_BYTES_MAX, Range, RangeBatch, Request, SNAPSHOTS_MAX, SnapshotOffer, Summary,
};
use slipstream_types::{
    BatchNumber, Blob, BlobKind, Digest, PublicKey, SecretKey, bounded::BoundedVec, codec,
};
use tokio::time::sleep;

use super::{
    attack::{Attack, Face, Facts, Field, Tally},
    quic::keep,
    wire::fresh_key,
};

pub(super) const ALL: &[&dyn Attack] =
    &[&LURE, &GROUND_KEY, &DRIP, &STALLERS, &HINTS, &OVERSIZED, &LITERAL, &CORRUPT];

/// The rest of an asker's deadline of 10 s.
const LATE: Duration = Duration::from_millis(9_500);
/// Between the chunks of a dripping server: far below the 30 s after which a standing restore is given up.
const DRIP_INTERVAL: Duration = Duration::from_secs(4);
const DRIP_BYTES: u32 = 1 << 10;
/// Keys that are tried for one that ranks first.
const KEYS_GROUND: usize = 4_096;
const HINT_BYTES: usize = 4 << 20;
const HINTED_BATCHES: usize = 8;
const OVERSIZED_BYTES: usize = 40 << 20;
const UPSTREAM: RequestLimits =
    RequestLimits { deadline: Duration::from_secs(10), response_bytes_max: ANSWER_BYTES_MAX };
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// A liar's way with requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lie {
    /// Offers a snapshot that is free and endless, holds every request, and is busy then.
    Lure,
    /// Serves the snapshot in pieces of a kibibyte, one every few seconds.
    Drip,
    /// Tells the truth about what it has, and answers nothing else.
    Stall,
    /// Adds hints that nobody asked for.
    Hints,
    /// Answers 40 MiB of zeros to every request.
    Oversized,
    /// Sends true parts with their compression undone.
    Literal,
    /// Changes a byte of every chunk and part.
    Corrupt,
}

/// So many peers that lie alike.
struct Liars {
    name: &'static str,
    about: &'static str,
    item: u8,
    lie: Lie,
    count: usize,
    is_ground: bool,
}

static LURE: Liars = Liars {
    name: "snapshot-lure",
    about: "a server that offers a snapshot of 0 bytes and 2^64-1 rows, holds every request for 9.5 s and is busy then",
    item: 2,
    lie: Lie::Lure,
    count: 1,
    is_ground: false,
};

static GROUND_KEY: Liars = Liars {
    name: "snapshot-lure-ground",
    about: "three of them under keys that are ground to be asked first by nodes whose draws come from their public key",
    item: 2,
    lie: Lie::Lure,
    count: 3,
    is_ground: true,
};

static DRIP: Liars = Liars {
    name: "snapshot-drip",
    about: "a server of a cheap snapshot that sends a kibibyte of it every 4 s",
    item: 2,
    lie: Lie::Drip,
    count: 1,
    is_ground: false,
};

static STALLERS: Liars = Liars {
    name: "stalling-servers",
    about: "six fresh servers that promise everything and answer nothing",
    item: 9,
    lie: Lie::Stall,
    count: 6,
    is_ground: false,
};

static HINTS: Liars = Liars {
    name: "unasked-hints",
    about: "two servers that add 4 MiB of hints that nobody asked for to each of eight batches",
    item: 7,
    lie: Lie::Hints,
    count: 2,
    is_ground: false,
};

static OVERSIZED: Liars = Liars {
    name: "oversized-answers",
    about: "four servers that answer 40 MiB, whatever was asked",
    item: 7,
    lie: Lie::Oversized,
    count: 4,
    is_ground: false,
};

static LITERAL: Liars = Liars {
    name: "literal-blobs",
    about: "a server of true batches whose compression it has undone",
    item: 11,
    lie: Lie::Literal,
    count: 1,
    is_ground: false,
};

static CORRUPT: Liars = Liars {
    name: "corrupt-answers",
    about: "three servers that change a byte of everything",
    item: 9,
    lie: Lie::Corrupt,
    count: 3,
    is_ground: false,
};

impl Attack for Liars {
    fn facts(&self) -> Facts {
        let mode = match self.lie {
            Lie::Lure | Lie::Drip | Lie::Stall | Lie::Oversized => SyncMode::Auto,
            // These lie about ranges, which shows best where ranges are the only way.
            Lie::Hints | Lie::Literal | Lie::Corrupt => SyncMode::Replay,
        };
        let facts = Facts::new(Face::Server, self.name, self.about).item(self.item).joined(mode);
        if self.lie == Lie::Stall { facts.quick() } else { facts }
    }

    fn start(&self, field: Field) -> BoxFuture<'static, Result<()>> {
        let (lie, count, is_ground) = (self.lie, self.count, self.is_ground);
        Box::pin(async move {
            let victim: PublicKey = field.target.joiner.parse().context("the joining node's key")?;
            let mut networks = Vec::new();
            let mut entries = Vec::new();
            for index in 0..count {
                let key = if is_ground { ground_key(&victim) } else { fresh_key() };
                let (network, address) = listen(&field, lie, &key, index).await?;
                entries.push(PeerAddress { id: key.public(), address }.to_string());
                networks.push(network);
            }
            field.set(entries);
            keep(networks).await;
            Ok(())
        })
    }
}

/// The key of many that comes first where equals are ordered by a number drawn from the asker's public key.
fn ground_key(asker: &PublicKey) -> SecretKey {
    let seed = Digest::tagged("slipstream/exploration/1", &asker.0).0;
    let seed = seed.iter().fold(0, |seed, byte| u64::rotate_left(seed, 8) ^ u64::from(*byte));
    let keys = (0..KEYS_GROUND).map(|_| fresh_key());
    keys.min_by_key(|key| place(seed, &key.public())).unwrap_or_else(fresh_key)
}

/// Where a peer stands among equals, for a seed: SplitMix64 over the words of its key.
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

/// Starts a liar that is connected with the truth.
async fn listen(
    field: &Field,
    lie: Lie,
    key: &SecretKey,
    index: usize,
) -> Result<(Arc<Network>, SocketAddr)> {
    let upstream: PeerAddress = field.target.upstream.parse()?;
    let liar =
        Arc::new(Liar { lie, upstream: upstream.id, network: OnceLock::new(), tally: field.tally.clone() });
    let listen = SocketAddr::from((Field::address(index), 0));
    let config = NetworkConfig { listen, peers: vec![upstream.into()], ..NetworkConfig::default() };
    let network = Network::start(&config, key, liar.clone()).await?;
    let connected = async {
        while !network.peers().contains(&upstream.id) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(CONNECT_DEADLINE, connected)
        .await
        .context("the liar does not reach the validator")?;
    // It is set once, here.
    let _ = liar.network.set(network.clone());
    let address = network.local_address();
    Ok((network, address))
}

/// The handler of one liar. It and its network hold each other: both last as long as the process.
struct Liar {
    lie: Lie,
    upstream: PeerId,
    network: OnceLock<Arc<Network>>,
    tally: Arc<Tally>,
}

impl Liar {
    async fn respond(&self, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.tally.tried();
        let request: Request = codec::decode("sync request", payload, REQUEST_BYTES_MAX)
            .map_err(|error| Refusal::malformed(error.to_string()))?;
        if self.lie == Lie::Lure && request != Request::Summary {
            self.tally.done();
            sleep(LATE).await;
            return Err(Refusal::busy(Duration::ZERO, "ask again in a moment"));
        }
        self.answer(request).await.map_err(|error| Refusal::failed(error.to_string()))
    }

    async fn answer(&self, mut request: Request) -> Result<Vec<u8>> {
        let answer = match (self.lie, &mut request) {
            (Lie::Lure, Request::Summary) => self.summary(lures).await?,
            (Lie::Drip, Request::Summary) => self.summary(bargains).await?,
            (Lie::Stall, Request::Summary | Request::Epochs { .. }) => self.truth(&request).await?,
            (Lie::Stall, _) => {
                self.tally.done();
                std::future::pending().await
            }
            (Lie::Drip, Request::Chunk { bytes_max, .. }) => {
                sleep(DRIP_INTERVAL).await;
                *bytes_max = DRIP_BYTES;
                self.truth(&request).await?
            }
            (Lie::Oversized, _) => vec![0; OVERSIZED_BYTES],
            (Lie::Hints | Lie::Literal | Lie::Corrupt, Request::Range(_)) => {
                let answer = self.truth(&request).await?;
                changed(&answer, self.lie)?
            }
            (Lie::Corrupt, Request::Chunk { .. }) => {
                let mut answer = self.truth(&request).await?;
                if let Some(last) = answer.last_mut() {
                    *last ^= 1;
                }
                answer
            }
            _ => return self.truth(&request).await,
        };
        self.tally.done();
        Ok(answer)
    }

    /// An honest node's answer.
    async fn truth(&self, request: &Request) -> Result<Vec<u8>> {
        let network = self.network.get().context("the liar is not connected yet")?;
        let payload = codec::encode("sync request", request)?;
        Ok(network.request(self.upstream, Protocol::SYNC, payload, UPSTREAM).await?)
    }

    /// A true summary but for its snapshots.
    async fn summary(&self, offers: fn(&Summary) -> Vec<SnapshotOffer>) -> Result<Vec<u8>> {
        let truth = self.truth(&Request::Summary).await?;
        let mut summary: Summary = codec::decode("summary", &truth, ANSWER_BYTES_MAX)?;
        summary.snapshots = BoundedVec::new(offers(&summary))?;
        Ok(codec::encode("summary", &summary)?)
    }
}

/// Snapshots of the newest batches, which only the liar has: they are free to fetch and endless.
fn lures(summary: &Summary) -> Vec<SnapshotOffer> {
    let head = summary.head.as_ref().map_or(BatchNumber::GENESIS, |head| head.info.number);
    let newest = (0..SNAPSHOTS_MAX as u64).map(|behind| head.before(behind));
    newest.map(|number| SnapshotOffer { number, rows: u64::MAX, bytes: 0 }).collect()
}

/// The true ones, for nothing.
fn bargains(summary: &Summary) -> Vec<SnapshotOffer> {
    summary.snapshots.iter().map(|offer| SnapshotOffer { bytes: 1, ..*offer }).collect()
}

/// A range with its batches changed.
fn changed(answer: &[u8], lie: Lie) -> Result<Vec<u8>> {
    let mut range: Range = codec::decode("range", answer, ANSWER_BYTES_MAX)?;
    let mut batches = range.batches.to_vec();
    for (index, batch) in batches.iter_mut().enumerate() {
        match lie {
            Lie::Hints if index < HINTED_BATCHES => batch.hints = Some(noise()?),
            Lie::Literal => each_part(batch, |kind, blob| literal(kind, &blob.content(kind)?))?,
            Lie::Corrupt => each_part(batch, |_, blob| {
                let mut bytes = blob.as_bytes().to_vec();
                if let Some(last) = bytes.last_mut() {
                    *last ^= 1;
                }
                Ok(Blob::from_bytes(bytes)?)
            })?,
            _ => {}
        }
    }
    range.batches = BoundedVec::new(batches)?;
    Ok(codec::encode("range", &range)?)
}

fn each_part(batch: &mut RangeBatch, change: impl Fn(BlobKind, &Blob) -> Result<Blob>) -> Result<()> {
    let parts = [
        (BlobKind::Body, &mut batch.body),
        (BlobKind::Receipts, &mut batch.receipts),
        (BlobKind::Delta, &mut batch.delta),
    ];
    for (kind, part) in parts {
        if let Some(blob) = part {
            *part = Some(change(kind, blob)?);
        }
    }
    Ok(())
}

/// Hints of random bytes.
fn noise() -> Result<Blob> {
    let noise: Vec<u8> = (0..HINT_BYTES / 8).flat_map(|_| rand::random::<u64>().to_le_bytes()).collect();
    Ok(Blob::compress(BlobKind::Hints, &noise)?)
}

/// A blob as long as its content: one LZ4 sequence of literals alone.
fn literal(kind: BlobKind, content: &[u8]) -> Result<Blob> {
    let mut bytes = vec![kind as u8];
    bytes.extend(u32::try_from(content.len())?.to_le_bytes());
    if let Some(mut more) = content.len().checked_sub(15) {
        bytes.push(0xf0);
        while more >= 255 {
            bytes.push(255);
            more -= 255;
        }
        bytes.push(more as u8);
    } else {
        bytes.push((content.len() as u8) << 4);
    }
    bytes.extend(content);
    Ok(Blob::from_bytes(bytes)?)
}

impl Handler for Liar {
    fn request<'a>(
        &'a self,
        _peer: PeerId,
        _protocol: Protocol,
        payload: Vec<u8>,
    ) -> slipstream_network::BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move { self.respond(&payload).await.map(Payload::from) })
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> slipstream_network::BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an honest decoder takes the blobs, and they are longer than compressed ones.
    #[test]
    fn literal_blobs_hold_the_truth() {
        for length in [0, 1, 14, 15, 16, 269, 270, 271, 100_000] {
            let content = vec![7; length];
            let blob = literal(BlobKind::Body, &content).unwrap();
            assert_eq!(blob.content(BlobKind::Body).unwrap(), content, "{length}");
            assert!(blob.len() >= length);
        }
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
