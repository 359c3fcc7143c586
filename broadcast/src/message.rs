//! What nodes of the mesh say to each other.
//!
//! Everything that is passed on is bound to something signed: a header to its certificate, a payload's [`Plan`] to the validator
//! that signed it, a chunk to the plan. So whoever receives what fits nothing knows that the sender made it up.

use std::fmt;

use serde::{Deserialize, Serialize};
use slipstream_coding::{Held, Plan};
use slipstream_types::{
    BatchHeader, BatchNumber, BlobKind, Certificate, CodecError, Digest, Epoch, PublicKey, SecretKey,
    Signature, ValidatorSet,
    bounded::{BoundedBytes, BoundedVec},
    codec,
};

/// Bytes of the longest message: a payload that is sent whole, which is a blob of the longest kind, and what stands before it.
pub const MESSAGE_BYTES_MAX: usize = CHUNK_BYTES_MAX + 64;
/// Bytes of the longest chunk: a whole body or whole hints with their blob's prefix, incompressible.
const CHUNK_BYTES_MAX: usize = (24 << 20) + (1 << 20);
/// Plans in one message.
pub(crate) const PLANS_MAX: usize = 4;
/// Payloads that one notice names.
pub(crate) const NOTICE_MAX: usize = 16;
/// Bytes of the longest notice.
const NOTICE_BYTES_MAX: usize = 16 + 32 * NOTICE_MAX;

/// A part of a batch that is spread as a payload of its own.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Its transactions: a blob of kind body.
    Body,
    /// What executing it reads: a blob of kind hints.
    Hints,
}

impl Part {
    /// All of them, in the order in which they are wanted.
    pub const ALL: [Part; 2] = [Part::Body, Part::Hints];

    /// What the payload is a blob of.
    pub fn kind(self) -> BlobKind {
        match self {
            Part::Body => BlobKind::Body,
            Part::Hints => BlobKind::Hints,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name())
    }
}

/// Which parts a node wants to be sent. Nobody sends it others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Wants {
    /// It executes batches.
    pub body: bool,
    /// It executes them with hints.
    pub hints: bool,
}

impl Wants {
    /// Whether a part is among them.
    pub fn has(self, part: Part) -> bool {
        match part {
            Part::Body => self.body,
            Part::Hints => self.hints,
        }
    }
}

/// Names a payload with its plan: equal for all validators that cut the same bytes in the same way, whoever signs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PayloadId(pub Digest);

/// What is promised of a payload of a certified batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SignedPlan {
    /// Which part it is.
    pub part: Part,
    /// How it is cut.
    pub plan: Plan,
    /// The view whose certificate its signer holds.
    pub view: u64,
    /// The validator's index in the set of the batch's epoch.
    pub signer: u16,
    /// Of epoch, view and the payload's name.
    pub signature: Signature,
}

impl SignedPlan {
    /// Signs a plan as a validator of the batch's epoch.
    ///
    /// # Errors
    /// None for a plan that was made by this program.
    pub fn sign(
        header: &BatchHeader,
        (part, plan): (Part, Plan),
        view: u64,
        (signer, key): (u16, &SecretKey),
    ) -> Result<SignedPlan, CodecError> {
        let statement = Self::statement(header.epoch, view, &payload_id(&header.digest(), part, &plan)?);
        Ok(SignedPlan { part, plan, view, signer, signature: key.sign(statement.as_bytes()) })
    }

    /// What is signed. Epoch and view are in it so that a signature says when it was made; the payload's name binds the header, and with
    /// it the chain, the part, and all of the plan.
    fn statement(epoch: Epoch, view: u64, id: &PayloadId) -> Digest {
        let bytes = [&epoch.0.to_le_bytes()[..], &view.to_le_bytes(), id.0.as_bytes()].concat();
        Digest::tagged("slipstream/signed-plan/1", &bytes)
    }

    /// The payload's name, given the digest of the batch's header.
    ///
    /// # Errors
    /// None for a plan that was decoded.
    pub fn id(&self, header: &Digest) -> Result<PayloadId, CodecError> {
        payload_id(header, self.part, &self.plan)
    }

    /// The key of the validator that it is signed by; none if it is not.
    pub fn signed_by(&self, set: &ValidatorSet, id: &PayloadId) -> Option<PublicKey> {
        let key = set.validators.get(usize::from(self.signer))?.public_key;
        let statement = Self::statement(set.epoch, self.view, id);
        key.verify(statement.as_bytes(), &self.signature).then_some(key)
    }
}

fn payload_id(header: &Digest, part: Part, plan: &Plan) -> Result<PayloadId, CodecError> {
    let bytes = codec::encode("plan", &(header, part, plan))?;
    Ok(PayloadId(Digest::tagged("slipstream/payload/1", &bytes)))
}

/// A batch that is certified, and how its payloads are cut.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Announced {
    /// Its header.
    pub header: BatchHeader,
    /// Its own certificate.
    pub certificate: Certificate,
    /// At least those of the payloads whose chunks the sender sends.
    pub plans: BoundedVec<SignedPlan, PLANS_MAX>,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// There is a new batch.
    Batch(Box<Announced>),
    /// A chunk of a payload whose plan the receiver was told, or told.
    Chunk {
        /// Of which payload.
        id: PayloadId,
        /// As its codec writes it.
        chunk: BoundedBytes<CHUNK_BYTES_MAX>,
    },
    /// One more plan for a batch that the receiver knows.
    Plan {
        /// Of which batch.
        number: BatchNumber,
        /// The plan.
        plan: Box<SignedPlan>,
    },
    /// The sender has these payloads, or needs them no more: it wants no chunks of them, and who lacks one can ask it.
    Have(BoundedVec<PayloadId, NOTICE_MAX>),
    /// The sender asks for the chunks of a payload that it lacks.
    Lack {
        /// Of which payload.
        id: PayloadId,
        /// What it has.
        held: Held,
    },
    /// What the sender wants from now on.
    Wants {
        /// Which parts.
        wants: Wants,
        /// The receiver is to say the same of itself: what it said before may have come too early.
        asks: bool,
    },
}

/// What the first bytes of a message say, for refusing it before it is decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peeked {
    Batch(BatchNumber),
    Chunk(PayloadId),
    /// What a peer has or wants: said once, and short.
    Notice,
    Other,
}

impl Message {
    /// The bytes that are sent.
    ///
    /// # Errors
    /// None for messages within their bounds.
    pub fn encode(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode("message of the mesh", self)
    }

    /// Takes bytes as they came from a peer.
    ///
    /// # Errors
    /// If they are too many, or no message.
    pub fn decode(bytes: &[u8]) -> Result<Message, CodecError> {
        codec::decode("message of the mesh", bytes, MESSAGE_BYTES_MAX)
    }

    /// Looks at the first bytes.
    pub(crate) fn peek(bytes: &[u8]) -> Peeked {
        match bytes.split_first() {
            Some((0, rest)) => rest
                .first_chunk()
                .map_or(Peeked::Other, |number| Peeked::Batch(BatchNumber::new(u64::from_le_bytes(*number)))),
            Some((1, rest)) => {
                rest.first_chunk().map_or(Peeked::Other, |id| Peeked::Chunk(PayloadId(Digest(*id))))
            }
            Some((3 | 5, _)) if bytes.len() <= NOTICE_BYTES_MAX => Peeked::Notice,
            _ => Peeked::Other,
        }
    }
}
