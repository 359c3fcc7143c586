//! Shards of a Reed-Solomon code under a Merkle root.
//!
//! A shard is verified alone, against the root, and passed on as it came. Any `data` shards give the payload, which is
//! compared with the signed digest.
//!
//! A node needs the payload to check whether the shards under a root belong to *one* payload. Safety needs no earlier
//! check: nodes that decode from different shards compare the result with one digest, so they accept the same payload.
//! If a source's shards are no code word, some nodes fail to decode. These nodes then know that the plan's signer lied,
//! and get the payload whole.

mod merkle;
mod shards;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use rand::RngCore;
use slipstream_types::{Digest, PublicKey, bounded::BoundedBytes};

use self::shards::Shape;
use crate::{
    codec::{Accepted, Check, CheckResult, Checked, Codec, Held, Malformed, Verdict, Work, note_holders},
    error::EncodeError,
    limits::{SHARD_MAP_BYTES_MAX, SHARDS_MAX},
    peers::Peers,
    plan::{Commitment, Plan, payload_digest},
    whole::WholePayload,
};

/// A set of shards: shard `i` is bit `i % 8` of byte `i / 8`.
type ShardMap = [u8; SHARD_MAP_BYTES_MAX];

/// The map of a peer without shards.
const NONE: ShardMap = [0; SHARD_MAP_BYTES_MAX];

fn insert(map: &mut ShardMap, index: usize) {
    map[index / 8] |= 1 << (index % 8);
}

fn contains(map: &ShardMap, index: usize) -> bool {
    map[index / 8] >> (index % 8) & 1 == 1
}

fn count(map: &ShardMap) -> usize {
    map.iter().map(|byte| byte.count_ones() as usize).sum()
}

/// A chunk whose path was checked, and the number of peers that it went to.
#[derive(Debug)]
struct Shard {
    chunk: Arc<[u8]>,
    sent: u32,
}

/// One payload that travels as shards.
#[derive(Debug)]
pub(crate) struct ReedSolomon {
    whole: WholePayload,
    shape: Shape,
    root: Digest,
    /// Shards that are here, by index.
    shards: BTreeMap<usize, Shard>,
    /// Whether the root is known to be that of the payload's shards; all of them are here then.
    is_vouched: bool,
    /// The known shards of each peer; all of them if the peer has the payload.
    peers: Peers<ShardMap>,
}

fn shape(bytes: usize, data: u16, parity: u16) -> Result<Shape, EncodeError> {
    if data == 0 || parity == 0 || usize::from(data) + usize::from(parity) > SHARDS_MAX {
        return Err(EncodeError::Shards { data, parity });
    }
    Ok(Shape { bytes, data: data.into(), parity: parity.into() })
}

impl ReedSolomon {
    /// Makes the codec of a source: cuts the payload and commits to its shards.
    pub(crate) fn encode(
        payload: Arc<[u8]>,
        data: u16,
        parity: u16,
        plan: impl FnOnce(Commitment) -> Plan,
    ) -> Result<Self, EncodeError> {
        let shape = shape(payload.len(), data, parity)?;
        let cut = shards::cut(&shape, &payload);
        let (root, chunks) = cut.map_err(|_| EncodeError::Shards { data, parity })?;
        let plan = plan(Commitment::ReedSolomon { root, data, parity });
        let mut codec = Self::new(WholePayload::known(plan, payload), shape, root);
        codec.vouched(chunks);
        Ok(codec)
    }

    /// Makes the codec of a receiver.
    pub(crate) fn open(plan: Plan, root: Digest, data: u16, parity: u16) -> Result<Self, EncodeError> {
        let shape = shape(plan.bytes as usize, data, parity)?;
        Ok(Self::new(WholePayload::expected(plan, 1), shape, root))
    }

    fn new(whole: WholePayload, shape: Shape, root: Digest) -> Self {
        Self { whole, shape, root, shards: BTreeMap::new(), is_vouched: false, peers: Peers::new() }
    }

    /// Takes all chunks of the payload.
    fn vouched(&mut self, chunks: Vec<Arc<[u8]>>) {
        self.is_vouched = true;
        for (index, chunk) in chunks.into_iter().enumerate() {
            self.shards.entry(index).or_insert(Shard { chunk, sent: 0 });
        }
    }

    fn note(&mut self, peer: &PublicKey, index: usize) {
        if let Some(known) = self.peers.of(peer, NONE) {
            insert(known, index);
        }
    }

    /// Issues a check that decodes the payload and compares its digest.
    fn decode(&mut self) -> Check {
        let chunks: Vec<_> = self.shards.iter().map(|(index, shard)| (*index, shard.chunk.clone())).collect();
        let (shape, digest) = (self.shape, self.whole.plan().digest);
        self.whole.issue(Work::Decode { chunks: 0 }, move || {
            let payload = shards::join(&shape, &chunks).filter(|payload| payload_digest(payload) == digest);
            payload.map_or(CheckResult::Contradiction, |payload| CheckResult::Decoded(payload.into()))
        })
    }

    /// Issues a check that cuts the payload again and compares the root.
    fn vouch(&mut self, payload: Arc<[u8]>) -> Check {
        let (shape, root) = (self.shape, self.root);
        self.whole.issue(Work::Vouch, move || match shards::cut(&shape, &payload) {
            Ok((found, chunks)) if found == root => CheckResult::Vouched(chunks),
            _ => CheckResult::Contradiction,
        })
    }
}

impl Codec for ReedSolomon {
    fn plan(&self) -> &Plan {
        self.whole.plan()
    }

    fn accept(&mut self, from: PublicKey, chunk: &[u8]) -> Accepted {
        if self.whole.is_closed() {
            return Accepted::Duplicate;
        }
        let index = match shards::index(&self.shape, chunk) {
            Ok(index) => index,
            Err(malformed) => return Accepted::Malformed(malformed),
        };
        if self.shards.contains_key(&index) {
            self.note(&from, index);
            return Accepted::Duplicate;
        }
        if self.shards.len() >= self.shape.data {
            return Accepted::Surplus;
        }
        if !shards::leads_to(&self.root, &self.shape, index, chunk) {
            return Accepted::Malformed(Malformed::Path { index });
        }
        self.note(&from, index);
        self.shards.insert(index, Shard { chunk: chunk.into(), sent: 0 });
        Accepted::Useful
    }

    fn supply(&mut self, from: Option<PublicKey>, payload: Arc<[u8]>) -> Accepted {
        self.whole.offer(from, &payload, || payload.clone())
    }

    fn work(&self) -> Option<Work> {
        let decode = || (self.shards.len() >= self.shape.data).then_some(Work::Decode { chunks: 0 });
        self.whole.work(self.is_vouched, decode)
    }

    fn check(&mut self, _: &mut dyn RngCore) -> Option<Check> {
        match self.work()? {
            Work::Compare => self.whole.compare(),
            Work::Vouch => {
                let payload = self.whole.payload()?.clone();
                Some(self.vouch(payload))
            }
            Work::Decode { .. } | Work::Verify { .. } => Some(self.decode()),
        }
    }

    fn checked(&mut self, checked: Checked) -> Vec<Verdict> {
        match self.whole.redeem(checked) {
            Some(CheckResult::Compared(is_right)) => {
                let verdicts = self.whole.compared(is_right);
                note_holders(self, &verdicts);
                verdicts
            }
            Some(CheckResult::Decoded(payload)) => {
                self.whole.complete(payload);
                Vec::new()
            }
            Some(CheckResult::Vouched(chunks)) => {
                self.vouched(chunks);
                Vec::new()
            }
            Some(CheckResult::Contradiction) => {
                self.shards.clear();
                self.whole.contradict()
            }
            Some(CheckResult::Forged(_)) | None => Vec::new(),
        }
    }

    fn next_chunk(&mut self, to: &PublicKey, rng: &mut dyn RngCore) -> Option<Vec<u8>> {
        let known = self.peers.of(to, NONE)?;
        if count(known) >= self.shape.data {
            return None;
        }
        // Takes one of the shards that went to the fewest peers, so that a peer's neighbours do not all send it the
        // same shard.
        let lacking = self.shards.iter_mut().filter(|(index, _)| !contains(known, **index));
        let (index, shard) = lacking.min_by_key(|(_, shard)| (shard.sent, rng.next_u32()))?;
        shard.sent += 1;
        insert(known, *index);
        Some(shard.chunk.to_vec())
    }

    fn held(&self) -> Held {
        if self.whole.payload().is_some() {
            return Held::Whole;
        }
        let mut map = NONE;
        self.shards.keys().for_each(|index| insert(&mut map, *index));
        let bytes = map[..self.shape.shards().div_ceil(8)].to_vec();
        BoundedBytes::new(bytes).map_or(Held::Chunks(0), Held::Shards)
    }

    fn peer_holds(&mut self, peer: &PublicKey, held: &Held, lost: bool) {
        let map = match held {
            Held::Whole => [u8::MAX; SHARD_MAP_BYTES_MAX],
            Held::Shards(bytes) => {
                let mut map = NONE;
                map.iter_mut().zip(bytes.iter()).for_each(|(to, from)| *to = *from);
                map
            }
            // Peers report this for a payload in shards only if they have nothing.
            Held::Chunks(_) => NONE,
        };
        let Some(known) = self.peers.of(peer, NONE) else { return };
        if lost {
            *known = map;
        } else {
            known.iter_mut().zip(map).for_each(|(known, more)| *known |= more);
        }
    }

    fn forget(&mut self, peer: &PublicKey) {
        self.peers.forget(peer);
        self.whole.forget(peer);
    }

    fn chunk_bytes(&self) -> usize {
        self.shape.chunk_bytes()
    }

    fn chunks_needed(&self) -> usize {
        self.shape.data
    }

    fn chunks_held(&self) -> usize {
        if self.whole.payload().is_some() { self.shape.data } else { self.shards.len().min(self.shape.data) }
    }

    fn chunks_waiting(&self) -> usize {
        self.whole.candidates()
    }

    fn payload(&self) -> Option<Arc<[u8]>> {
        self.whole.payload().cloned()
    }

    fn held_bytes(&self) -> usize {
        self.whole.held_bytes() + self.shards.len() * self.shape.chunk_bytes()
    }

    fn held_bytes_max(&self) -> usize {
        self.whole.held_bytes_max() + self.shape.shards() * self.shape.chunk_bytes()
    }
}
