//! Random linear network coding under Pedersen commitments on Ristretto, as in "Faster block/blob propagation in
//! Ethereum" (2024).
//!
//! The payload is cut into `N` pieces `v_i` of `M` scalars. The plan has the commitments `C_i = sum_j v_ij G_j`. A
//! chunk is a combination `sum_i b_i v_i` with its coefficients `b`; it fits if it commits to `sum_i b_i C_i`. Any
//! combination of fitting chunks fits too. Making another fitting chunk would take a known relation between the
//! generators.
//!
//! Differences from the paper: chunks are verified together ([`verify`]), with arithmetic whose time depends on the
//! data, all of which is public. Generators are hashed, so they have no known relations ([`generators`]). Factors of a
//! combination have 56 bits ([`chunk`]). A whole payload is compared with the digest before it is compared with the
//! commitments.

mod chunk;
mod decode;
mod generators;
mod matrix;
mod pieces;
mod scalar;
#[cfg(test)]
mod tests;
mod verifier;
mod verify;
mod waiting;

use std::{fmt, sync::Arc};

use curve25519_dalek::{RistrettoPoint, ristretto::CompressedRistretto};
use rand::RngCore;
use slipstream_types::{PublicKey, bounded::BoundedVec};

pub use self::verifier::Verifier;
use self::{
    chunk::Chunk,
    pieces::Shape,
    waiting::{ChunkPlace, Waiting},
};
use crate::{
    codec::{Accepted, Check, CheckResult, Checked, Codec, Held, Verdict, Work, note_holders},
    error::{EncodeError, PlanError},
    limits::{PIECE_SCALARS_MAX, PIECES_MAX, SPARES_MAX},
    peers::Peers,
    plan::{Commitment, Parameters, Plan, payload_digest},
    whole::WholePayload,
};

// A check adds up to this many products.
const _: () = assert!(PIECES_MAX + SPARES_MAX <= scalar::SUM_TERMS_MAX);

/// This node's knowledge of one peer.
#[derive(Debug, Clone, Copy)]
struct PeerHoldings {
    /// Minimum number of dimensions verified here that the peer has: chunks that came from it or were sent to it.
    has: usize,
    /// Chunks that the peer can still need.
    lacks: usize,
}

/// One payload that travels as combinations.
pub(crate) struct Rlnc {
    whole: WholePayload,
    shape: Shape,
    commitments: Arc<[RistrettoPoint]>,
    waiting: Waiting,
    /// Whether the payload is known to be the committed one.
    is_vouched: bool,
    peers: Peers<PeerHoldings>,
}

impl fmt::Debug for Rlnc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rlnc").field("whole", &self.whole).field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// Makes the generators for a payload of `payload_bytes` bytes ahead of time, so that the first payload does not wait
/// for them.
pub fn warm_up(payload_bytes: usize, parameters: &Parameters) {
    let pieces = usize::from(parameters.pieces).clamp(1, PIECES_MAX);
    let scalars = Shape::new(payload_bytes, pieces).scalars.min(PIECE_SCALARS_MAX);
    if generators::table(scalars).is_none() {
        generators::first(scalars);
    }
}

fn seed(rng: &mut dyn RngCore) -> [u8; 32] {
    let mut seed = [0; 32];
    rng.fill_bytes(&mut seed);
    seed
}

fn shape(bytes: usize, pieces: usize) -> Result<Shape, EncodeError> {
    let shape = Shape::new(bytes, pieces);
    if shape.scalars > PIECE_SCALARS_MAX {
        return Err(EncodeError::PieceTooLong { pieces, bytes, scalars: shape.scalars });
    }
    Ok(shape)
}

impl Rlnc {
    /// Makes the codec of a source: commits to the payload in `pieces` pieces, or in fewer if some would be all
    /// padding.
    pub(crate) fn encode(
        payload: Arc<[u8]>,
        pieces: u16,
        plan: impl FnOnce(Commitment) -> Plan,
    ) -> Result<Self, EncodeError> {
        if pieces == 0 || usize::from(pieces) > PIECES_MAX {
            return Err(EncodeError::Pieces(pieces));
        }
        let shape = shape(payload.len(), usize::from(pieces))?;
        let points: Arc<[_]> =
            (0..shape.pieces).map(|piece| verify::commit(&payload, &shape, piece)).collect();
        let commitments = points.iter().map(|point| point.compress().to_bytes()).collect();
        let commitments = BoundedVec::new(commitments).map_err(|_| EncodeError::Pieces(pieces))?;
        let whole = WholePayload::known(plan(Commitment::Rlnc { commitments }), payload);
        Ok(Self { is_vouched: true, ..Self::new(whole, shape, points) })
    }

    fn new(whole: WholePayload, shape: Shape, commitments: Arc<[RistrettoPoint]>) -> Self {
        let waiting = Waiting::new(shape);
        Self { whole, shape, commitments, waiting, is_vouched: false, peers: Peers::new() }
    }

    /// Makes the codec of a receiver.
    ///
    /// The identity is accepted like any other commitment: it commits to a piece of zeros.
    pub(crate) fn open(plan: Plan, commitments: &[[u8; 32]]) -> Result<Self, PlanError> {
        let (digest, pieces) = (plan.digest, commitments.len());
        if pieces == 0 {
            return Err(PlanError::Shape { digest, source: EncodeError::Pieces(0) });
        }
        let shape =
            shape(plan.bytes as usize, pieces).map_err(|source| PlanError::Shape { digest, source })?;
        if shape.pieces < pieces {
            return Err(PlanError::Empty { digest, bytes: plan.bytes, pieces });
        }
        let point = |(index, bytes): (usize, &[u8; 32])| {
            CompressedRistretto(*bytes).decompress().ok_or(PlanError::Point { digest, index })
        };
        let commitments = commitments.iter().enumerate().map(point).collect::<Result<_, _>>()?;
        Ok(Self::new(WholePayload::expected(plan, 1), shape, commitments))
    }

    fn known(&mut self, peer: &PublicKey) -> Option<&mut PeerHoldings> {
        let lacks = self.shape.pieces;
        self.peers.of(peer, PeerHoldings { has: 0, lacks })
    }

    fn useful(&mut self, peers: Vec<PublicKey>) -> Vec<Verdict> {
        for peer in &peers {
            if let Some(known) = self.known(peer) {
                known.has += 1;
            }
        }
        peers.into_iter().map(Verdict::Useful).collect()
    }

    /// Issues one verification of all waiting chunks.
    fn verify(&mut self, chunks: usize, seed: [u8; 32]) -> Check {
        let (shape, commitments) = (self.shape, self.commitments.clone());
        let waiting = self.waiting.take();
        self.whole.issue(Work::Verify { chunks }, move || {
            CheckResult::Forged(verify::forged(shape, &commitments, &waiting, seed))
        })
    }

    /// Issues a decoding of the verified and the waiting chunks. If the result does not have the digest, a waiting
    /// chunk is forged, or the plan contradicts itself.
    fn decode(&mut self, chunks: usize, seed: [u8; 32]) -> Check {
        let (shape, commitments, digest) = (self.shape, self.commitments.clone(), self.whole.plan().digest);
        let waiting = self.waiting.take();
        let all: Vec<_> = self.waiting.verified().iter().chain(&waiting).cloned().collect();
        self.whole.issue(Work::Decode { chunks }, move || {
            if let Some(payload) =
                decode::decode(&shape, &all).filter(|payload| payload_digest(payload) == digest)
            {
                return CheckResult::Decoded(payload.into());
            }
            let forged = verify::forged(shape, &commitments, &waiting, seed);
            if forged.contains(&true) { CheckResult::Forged(forged) } else { CheckResult::Contradiction }
        })
    }

    /// Issues a comparison of the payload with the commitments.
    fn vouch(&mut self, payload: Arc<[u8]>, seed: [u8; 32]) -> Check {
        let (shape, commitments) = (self.shape, self.commitments.clone());
        self.whole.issue(Work::Vouch, move || {
            match verify::is_committed(&payload, &shape, &commitments, seed) {
                true => CheckResult::Vouched(Vec::new()),
                false => CheckResult::Contradiction,
            }
        })
    }
}

impl Codec for Rlnc {
    fn plan(&self) -> &Plan {
        self.whole.plan()
    }

    fn accept(&mut self, from: PublicKey, chunk: &[u8]) -> Accepted {
        if self.whole.is_closed() {
            return Accepted::Duplicate;
        }
        let read = Chunk::coefficients(&self.shape, chunk);
        let place = read.map(|coefficients| (self.waiting.place(&coefficients), coefficients));
        let (place, coefficients) = match place {
            Ok((ChunkPlace::Dependent, _)) => return Accepted::Dependent,
            Ok(place) => place,
            Err(malformed) => return Accepted::Malformed(malformed),
        };
        match Chunk::scalars(&self.shape, chunk) {
            Ok(scalars) => self.waiting.add(from, Chunk { coefficients, scalars }, place),
            Err(malformed) => Accepted::Malformed(malformed),
        }
    }

    fn supply(&mut self, from: Option<PublicKey>, payload: Arc<[u8]>) -> Accepted {
        self.whole.offer(from, &payload, || payload.clone())
    }

    fn work(&self) -> Option<Work> {
        self.whole.work(self.is_vouched, || {
            let chunks = self.waiting.independent();
            if self.waiting.verified().len() + chunks == self.shape.pieces {
                return Some(Work::Decode { chunks });
            }
            (chunks > 0).then_some(Work::Verify { chunks })
        })
    }

    fn check(&mut self, rng: &mut dyn RngCore) -> Option<Check> {
        let work = self.work()?;
        let seed = seed(rng);
        match work {
            Work::Compare => self.whole.compare(),
            Work::Verify { chunks } => Some(self.verify(chunks, seed)),
            Work::Decode { chunks } => Some(self.decode(chunks, seed)),
            Work::Vouch => {
                let payload = self.whole.payload()?.clone();
                Some(self.vouch(payload, seed))
            }
        }
    }

    fn checked(&mut self, checked: Checked) -> Vec<Verdict> {
        match self.whole.redeem(checked) {
            None => Vec::new(),
            Some(CheckResult::Compared(is_right)) => {
                let verdicts = self.whole.compared(is_right);
                if is_right {
                    self.waiting.close();
                }
                note_holders(self, &verdicts);
                verdicts
            }
            Some(CheckResult::Forged(forged)) => {
                let (fit, forgers) = self.waiting.judge(&forged);
                let mut verdicts = self.useful(fit);
                verdicts.extend(forgers.into_iter().map(Verdict::Forged));
                verdicts
            }
            Some(CheckResult::Decoded(payload)) => {
                self.whole.complete(payload);
                let senders = self.waiting.close();
                self.useful(senders)
            }
            Some(CheckResult::Vouched(_)) => {
                self.is_vouched = true;
                self.waiting = Waiting::new(self.shape);
                Vec::new()
            }
            Some(CheckResult::Contradiction) => {
                self.waiting = Waiting::new(self.shape);
                self.whole.contradict()
            }
        }
    }

    fn next_chunk(&mut self, to: &PublicKey, rng: &mut dyn RngCore) -> Option<Vec<u8>> {
        if self.whole.is_contradicted() {
            return None;
        }
        let held = if self.is_vouched { self.shape.pieces } else { self.waiting.verified().len() };
        let known = self.known(to)?;
        if known.has >= held || known.lacks == 0 {
            return None;
        }
        known.has += 1;
        known.lacks -= 1;
        match self.whole.payload() {
            Some(payload) if self.is_vouched => Some(chunk::code(payload, &self.shape, rng)),
            _ => Some(chunk::recode(self.waiting.verified(), &self.shape, rng)),
        }
    }

    fn held(&self) -> Held {
        match self.whole.payload() {
            Some(_) => Held::Whole,
            None => Held::Chunks(u16::try_from(self.waiting.verified().len()).unwrap_or(u16::MAX)),
        }
    }

    fn peer_holds(&mut self, peer: &PublicKey, held: &Held, lost: bool) {
        let pieces = self.shape.pieces;
        let holds = match held {
            Held::Whole => pieces,
            Held::Chunks(chunks) => usize::from(*chunks).min(pieces),
            // Peers never report shards for a payload under RLNC.
            Held::Shards(_) => return,
        };
        let Some(known) = self.known(peer) else { return };
        if lost {
            *known = PeerHoldings { has: known.has.min(holds), lacks: pieces - holds };
        } else {
            known.lacks = known.lacks.min(pieces - holds);
        }
    }

    fn forget(&mut self, peer: &PublicKey) {
        self.peers.forget(peer);
        self.whole.forget(peer);
        self.waiting.forget(peer);
    }

    fn chunk_bytes(&self) -> usize {
        self.shape.chunk_bytes()
    }

    fn chunks_needed(&self) -> usize {
        self.shape.pieces
    }

    fn chunks_held(&self) -> usize {
        if self.whole.payload().is_some() { self.shape.pieces } else { self.waiting.verified().len() }
    }

    fn chunks_waiting(&self) -> usize {
        self.waiting.len() + self.whole.candidates()
    }

    fn payload(&self) -> Option<Arc<[u8]>> {
        self.whole.payload().cloned()
    }

    fn held_bytes(&self) -> usize {
        self.whole.held_bytes() + self.waiting.held_bytes()
    }

    fn held_bytes_max(&self) -> usize {
        self.whole.held_bytes_max() + Waiting::held_bytes_max(&self.shape)
    }
}
