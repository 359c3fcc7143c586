//! The messages of the mesh.
//!
//! Everything passed on is bound to something signed: a header to its certificate, a payload's [`Plan`] to its signing
//! validator, a chunk to the plan. So if content fits nothing signed, the receiver knows that its sender made it up.

use std::fmt;

use serde::{Deserialize, Serialize};
use slipstream_coding::{Held, Plan};
use slipstream_types::{
    BatchHeader, BatchNumber, BlobKind, Certificate, CodecError, Digest, Epoch, PublicKey, SecretKey,
    Signature, ValidatorSet,
    bounded::{BoundedBytes, BoundedVec},
    codec, limits,
};

/// Bytes of the longest message: a payload that is sent whole, which is a blob of the longest kind, with the bytes
/// before it.
pub const MESSAGE_BYTES_MAX: usize = CHUNK_BYTES_MAX + 64;
/// Bytes of the longest chunk: a whole body or whole hints with their blob's prefix, incompressible.
const CHUNK_BYTES_MAX: usize = limits::PAYLOAD_BYTES_MAX + limits::BLOB_EXCESS_BYTES_MAX;
/// Maximum number of plans in one message.
pub(crate) const PLANS_MAX: usize = 4;
/// Maximum number of payloads that one notice names.
pub(crate) const NOTICE_MAX: usize = 16;
/// Bytes of the longest notice.
const NOTICE_BYTES_MAX: usize = 16 + 32 * NOTICE_MAX;

/// A part of a batch that is spread as a payload of its own.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Its transactions: a blob of kind body.
    Body,
    /// The keys that executing it reads: a blob of kind hints.
    Hints,
}

impl Part {
    /// All parts, in the order in which they are wanted.
    pub const ALL: &'static [Part] = <Part as strum::VariantArray>::VARIANTS;

    /// The kind of blob that the payload holds.
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

/// The parts that a node wants; its peers send it only these.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Wants {
    /// Bodies, because the node executes batches.
    pub body: bool,
    /// Hints, because the node executes batches with them.
    pub hints: bool,
}

impl Wants {
    /// Whether a part is wanted.
    pub fn has(self, part: Part) -> bool {
        match part {
            Part::Body => self.body,
            Part::Hints => self.hints,
        }
    }
}

/// Names a payload with its plan. The name is equal for all validators that cut the same bytes in the same way,
/// whichever of them signs it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PayloadId(pub Digest);

/// A validator's signed plan of a payload of a certified batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SignedPlan {
    /// The part of the batch that the payload carries.
    pub part: Part,
    /// How the payload is cut.
    pub plan: Plan,
    /// The view whose certificate its signer holds.
    pub view: u64,
    /// The validator's index in the set of the batch's epoch.
    pub signer: u16,
    /// The validator's signature on epoch, view and the payload's name.
    pub signature: Signature,
}

impl SignedPlan {
    /// Signs a plan as a validator of the batch's epoch.
    ///
    /// # Errors
    /// Never fails for a plan that this program made.
    pub fn sign(
        header: &BatchHeader,
        (part, plan): (Part, Plan),
        view: u64,
        (signer, key): (u16, &SecretKey),
    ) -> Result<SignedPlan, CodecError> {
        let statement = Self::statement(header.epoch, view, &payload_id(&header.digest(), part, &plan)?);
        Ok(SignedPlan { part, plan, view, signer, signature: key.sign(statement.as_bytes()) })
    }

    /// The signed statement. Its epoch and view show when the signature was made. The payload's name binds the header
    /// (and so the chain), the part, and the whole plan.
    fn statement(epoch: Epoch, view: u64, id: &PayloadId) -> Digest {
        let bytes = [&epoch.0.to_le_bytes()[..], &view.to_le_bytes(), id.0.as_bytes()].concat();
        Digest::tagged("slipstream/signed-plan/1", &bytes)
    }

    /// The payload's name, given the digest of the batch's header.
    ///
    /// # Errors
    /// Never fails for a plan that was decoded.
    pub fn id(&self, header: &Digest) -> Result<PayloadId, CodecError> {
        payload_id(header, self.part, &self.plan)
    }

    /// The validator's key that signed it, or `None` if the signature is invalid.
    pub fn signed_by(&self, set: &ValidatorSet, id: &PayloadId) -> Option<PublicKey> {
        let key = set.validators.get(usize::from(self.signer))?.public_key;
        let statement = Self::statement(set.epoch, self.view, id);
        key.verify_once(statement.as_bytes(), &self.signature).then_some(key)
    }
}

fn payload_id(header: &Digest, part: Part, plan: &Plan) -> Result<PayloadId, CodecError> {
    let bytes = codec::encode("plan", &(header, part, plan))?;
    Ok(PayloadId(Digest::tagged("slipstream/payload/1", &bytes)))
}

/// A certified batch, with the plans by which its payloads are cut.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Announced {
    /// Header of the batch.
    pub header: BatchHeader,
    /// Certificate of that batch itself.
    pub certificate: Certificate,
    /// The plans, at least those of the payloads whose chunks the sender sends.
    pub plans: BoundedVec<SignedPlan, PLANS_MAX>,
}

/// A message between nodes of the mesh.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, strum::VariantNames)]
pub enum Message {
    /// A new batch.
    Batch(Box<Announced>),
    /// A chunk of a payload whose plan the receiver got, or sent.
    Chunk {
        /// Identifies the payload.
        id: PayloadId,
        /// The chunk as its codec writes it.
        chunk: BoundedBytes<CHUNK_BYTES_MAX>,
    },
    /// One more plan for a batch that the receiver knows.
    Plan {
        /// Number of the batch.
        number: BatchNumber,
        /// The new plan, with its signature.
        plan: Box<SignedPlan>,
    },
    /// The sender has these payloads, or no longer needs them. The sender wants no chunks of them, and peers that lack
    /// one of them can ask the sender.
    Have(BoundedVec<PayloadId, NOTICE_MAX>),
    /// The sender asks for the chunks of a payload that it lacks.
    Lack {
        /// Identifies the payload.
        id: PayloadId,
        /// The part of the payload that it has.
        held: Held,
    },
    /// The sender's wants from now on.
    Wants {
        /// The parts that it wants.
        wants: Wants,
        /// Whether the receiver must answer with its own wants: the receiver's earlier message may have come too early.
        asks: bool,
    },
}

/// The first bytes of a message, read to refuse it before decoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeekedMessage {
    Batch(BatchNumber),
    Chunk(PayloadId),
    /// A short notice of what a peer has or wants, which is sent once.
    Notice,
    Other,
}

impl Message {
    /// Encodes the message.
    ///
    /// # Errors
    /// Never fails for messages within their bounds.
    pub fn encode(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode("message of the mesh", self)
    }

    /// Decodes a peer's bytes.
    ///
    /// # Errors
    /// If there are too many bytes, or they are not a message.
    pub fn decode(bytes: &[u8]) -> Result<Message, CodecError> {
        codec::decode("message of the mesh", bytes, MESSAGE_BYTES_MAX)
    }

    /// Reads the first bytes.
    pub(crate) fn peek(bytes: &[u8]) -> PeekedMessage {
        match bytes.split_first() {
            Some((0, rest)) => rest.first_chunk().map_or(PeekedMessage::Other, |number| {
                PeekedMessage::Batch(BatchNumber::new(u64::from_le_bytes(*number)))
            }),
            Some((1, rest)) => rest
                .first_chunk()
                .map_or(PeekedMessage::Other, |id| PeekedMessage::Chunk(PayloadId(Digest(*id)))),
            Some((3 | 5, _)) if bytes.len() <= NOTICE_BYTES_MAX => PeekedMessage::Notice,
            _ => PeekedMessage::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantNames as _;

    use super::*;

    /// Goal: a variant's position is its tag on the wire. New variants come last, and raise the ALPN version.
    #[test]
    fn tags_follow_the_order() {
        assert_eq!(Message::VARIANTS, ["Batch", "Chunk", "Plan", "Have", "Lack", "Wants"]);
    }

    /// Goal: what a peer can take with each message is documented.
    #[test]
    fn every_message_has_its_row() {
        let page = include_str!("../../docs/security.md");
        let rows: String = page.lines().filter(|line| line.starts_with("| mesh ")).collect();
        for name in Message::VARIANTS {
            assert!(rows.contains(&format!("`{name}`")), "docs/security.md has no row for `{name}`");
        }
    }
}
