//! [`Codec`]: one payload in transit, at its source or at a receiver.

use std::{fmt, sync::Arc};

use rand::RngCore;
use serde::{Deserialize, Serialize};
use slipstream_types::{PublicKey, bounded::BoundedBytes};

use crate::{limits::SHARD_MAP_BYTES_MAX, plan::Plan};

/// One payload in transit. Plain state: calls return at once, and long work is a [`Check`] that the caller runs
/// elsewhere.
///
/// The order of calls at a receiver: [`accept`](Codec::accept) for each chunk; [`check`](Codec::check) whenever a
/// worker is free; [`checked`](Codec::checked) with the result of [`Check::run`]. After `accept` and after `checked`,
/// [`next_chunk`](Codec::next_chunk) may have a chunk for a peer.
pub trait Codec: Send + fmt::Debug {
    /// The plan of the coded payload.
    fn plan(&self) -> &Plan;

    /// Takes a chunk that `from` sent. Compares lengths, encodings and coefficients, and the path to the plan's root if
    /// there is one; does no arithmetic on the curve.
    fn accept(&mut self, from: PublicKey, chunk: &[u8]) -> Accepted;

    /// Takes the whole payload, which was pulled from the peer `from` or is this node's own work (`None`). The next
    /// checks compare it with the plan; after that, its chunks can be sent. A node that has the payload need not
    /// [`encode`](crate::encode) it to serve chunks under another node's plan.
    fn supply(&mut self, from: Option<PublicKey>, payload: Arc<[u8]>) -> Accepted;

    /// Returns the next work, such as a verification or a decoding. Returns `None` until [`checked`](Codec::checked)
    /// has the result of the previous check. `rng` seeds the weights of a batch. Senders must not know the seed when
    /// they send chunks, so it must be this node's secret.
    ///
    /// The first chunk is verified at once; chunks that arrive meanwhile are verified in one batch. As soon as enough
    /// chunks are here, they are decoded, and the payload's digest shows whether they were right. After that comes one
    /// [`Work::Vouch`]: until it is done, only chunks that were verified before are passed on. A caller with no peer
    /// left to serve need not ask for this work.
    fn check(&mut self, rng: &mut dyn RngCore) -> Option<Check>;

    /// Returns the kind of work that [`check`](Codec::check) would return now. A caller with few workers lets a
    /// [`Work::Verify`] wait for more chunks: together they cost little more than one.
    fn work(&self) -> Option<Work>;

    /// Takes the result of a check, and returns its verdicts on peers.
    fn checked(&mut self, checked: Checked) -> Vec<Verdict>;

    /// Returns a chunk that `to` can use, or `None` if `to` has all chunks of this node. The codec knows what it sent
    /// to `to`, what it got from `to`, and what [`peer_holds`](Codec::peer_holds) reported. The chunk counts as sent.
    ///
    /// RLNC returns a fresh combination of the verified chunks. Reed-Solomon returns one of the verified shards that
    /// `to` does not have and that went to the fewest peers. Gossip returns the whole payload.
    fn next_chunk(&mut self, to: &PublicKey, rng: &mut dyn RngCore) -> Option<Vec<u8>>;

    /// The verified holdings of this node, for its peers.
    fn held(&self) -> Held;

    /// Records the holdings that a peer reports. With `lost`, the peer asks for what it lacks. Chunks that were sent to
    /// it, but that it does not hold, then count as lost and may be sent again.
    fn peer_holds(&mut self, peer: &PublicKey, held: &Held, lost: bool);

    /// Forgets a peer that left or was cut off, and drops its unverified chunks.
    fn forget(&mut self, peer: &PublicKey);

    /// Bytes of one chunk as sent.
    fn chunk_bytes(&self) -> usize;

    /// Number of chunks that are enough for the payload.
    fn chunks_needed(&self) -> usize;

    /// Number of verified and useful chunks here, at most [`chunks_needed`](Codec::chunks_needed); exactly that if the
    /// payload is here.
    fn chunks_held(&self) -> usize;

    /// Number of accepted chunks that are not verified yet, including those of a running check.
    fn chunks_waiting(&self) -> usize;

    /// The payload, once its digest is the plan's.
    fn payload(&self) -> Option<Arc<[u8]>>;

    /// Bytes of payload, chunks and coefficients that this codec holds now, including those of a running check.
    fn held_bytes(&self) -> usize;

    /// The maximum of [`held_bytes`](Codec::held_bytes).
    fn held_bytes_max(&self) -> usize;
}

/// The fate of a chunk on arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// Verified already, and new.
    Useful,
    /// Kept until a check has verified it.
    Waiting,
    /// This very chunk is here already, or the payload is.
    Duplicate,
    /// A combination of chunks that are verified here: it adds nothing. Its sender had less that is new here than it
    /// thought, or wastes bandwidth.
    Dependent,
    /// No room was left for it among the waiting chunks. This says nothing about its sender.
    Surplus,
    /// No node that follows the protocol sends this.
    Malformed(Malformed),
}

/// Why a chunk cannot belong to the plan. Its sender is to blame: relays check chunks before they pass them on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The chunk does not have the length that the plan implies.
    #[error("the chunk has {found} bytes, but the plan implies {expected}")]
    Length {
        /// Length of the chunk, in bytes.
        found: usize,
        /// Length that the plan implies, in bytes.
        expected: usize,
    },
    /// A scalar is not below the group's order.
    #[error("scalar {index} of the chunk is not canonical")]
    Scalar {
        /// Index of the scalar, coefficients first.
        index: usize,
    },
    /// All coefficients are zero.
    #[error("the chunk combines nothing")]
    Zero,
    /// A shard that the plan does not have.
    #[error("the chunk is shard {index} of {shards}")]
    Shard {
        /// Index that the chunk claims.
        index: usize,
        /// Number of shards in the plan.
        shards: usize,
    },
    /// The shard's path does not lead to the plan's root.
    #[error("the path of shard {index} does not lead to the signed root")]
    Path {
        /// Index of the shard.
        index: usize,
    },
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// A chunk of this peer fits the plan.
    Useful(PublicKey),
    /// A chunk of this peer contradicts the plan. It was not altered in transit: the peer made it, or passed it on unchecked.
    Forged(PublicKey),
    /// Content that this node supplied itself contradicts the plan: the call was wrong, and no peer is to blame.
    NotThis,
    /// The plan contradicts itself: its commitment and its digest are of different payloads. Its signer lied. No more
    /// chunks are accepted; a payload with the plan's digest stays, if it is here.
    WrongPlan,
}

/// Notes that each peer whose whole payload was right has all of it.
pub(crate) fn note_holders(codec: &mut impl Codec, verdicts: &[Verdict]) {
    for verdict in verdicts {
        if let Verdict::Useful(peer) = verdict {
            codec.peer_holds(peer, &Held::Whole, false);
        }
    }
}

/// The kind of work of a check, for metrics and for the costs that a simulation charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Verifies chunks together.
    Verify {
        /// Number of chunks.
        chunks: usize,
    },
    /// Puts the payload together and compares its digest. If that fails, verifies chunks to find the forged ones.
    Decode {
        /// Chunks of the payload that are not verified.
        chunks: usize,
    },
    /// Compares a whole payload with the digest.
    Compare,
    /// Compares the whole payload with the commitment, so that every chunk of it may be passed on.
    Vouch,
}

/// A verification or a decoding, detached from its codec. It holds its input, and while it runs perhaps as many bytes
/// again.
pub struct Check {
    work: Work,
    ticket: Arc<()>,
    job: Box<dyn FnOnce() -> CheckResult + Send>,
}

impl Check {
    /// The kind of work.
    pub fn work(&self) -> Work {
        self.work
    }

    /// Runs the check on the calling thread: from tens of microseconds to some tens of milliseconds.
    pub fn run(self) -> Checked {
        Checked { ticket: self.ticket, found: (self.job)() }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("work", &self.work).finish_non_exhaustive()
    }
}

/// The result of a [`Check`], for the codec that issued it; any other codec ignores it.
#[derive(Debug)]
pub struct Checked {
    ticket: Arc<()>,
    found: CheckResult,
}

/// The result of a check, before the codec takes it in.
#[derive(Debug)]
pub(crate) enum CheckResult {
    /// Whether a whole payload has the digest.
    Compared(bool),
    /// For each chunk, whether it contradicts the commitment.
    Forged(Vec<bool>),
    /// The payload, with the plan's digest.
    Decoded(Arc<[u8]>),
    /// The payload is the committed one. The value holds its chunks, if all receivers get the same ones.
    Vouched(Vec<Arc<[u8]>>),
    /// The committed payload has another digest than the plan's.
    Contradiction,
}

/// Identifies the running check.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Option<Arc<()>>);

impl Ticket {
    /// Whether a check is running.
    pub(crate) fn is_out(&self) -> bool {
        self.0.is_some()
    }

    /// Issues a check.
    pub(crate) fn issue(&mut self, work: Work, job: impl FnOnce() -> CheckResult + Send + 'static) -> Check {
        let ticket = self.0.insert(Arc::new(())).clone();
        Check { work, ticket, job: Box::new(job) }
    }

    /// Takes the result of the running check; `None` for any other.
    pub(crate) fn redeem(&mut self, checked: Checked) -> Option<CheckResult> {
        self.0.take_if(|ticket| Arc::ptr_eq(ticket, &checked.ticket))?;
        Some(checked.found)
    }
}

/// The part of a payload that a peer holds, as the peer reports it to others. Encoded in BCS; the type bounds the
/// length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, strum::VariantNames)]
pub enum Held {
    /// A number of chunks: for RLNC the number of dimensions, for gossip none or one.
    Chunks(u16),
    /// These shards: shard `i` is bit `i % 8` of byte `i / 8`.
    Shards(BoundedBytes<SHARD_MAP_BYTES_MAX>),
    /// The whole payload.
    Whole,
}

#[cfg(test)]
mod tests {
    use strum::VariantNames as _;

    use super::*;

    /// Goal: a variant's position is its tag on the wire. New variants come last, and raise the ALPN version.
    #[test]
    fn tags_follow_the_order() {
        assert_eq!(Held::VARIANTS, ["Chunks", "Shards", "Whole"]);
    }
}
