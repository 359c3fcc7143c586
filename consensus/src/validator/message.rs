//! What validators send each other, in BCS. Every length is bounded by its type before anything is allocated.

use serde::{Deserialize, Serialize};
use slipstream_eve::{Message, SignedOrder};
use slipstream_network::MESSAGE_BYTES_MAX;
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, BlobKind, CodecError, Digest, batch::content_digest,
    blob::BLOB_BYTES_MAX, codec, limits,
};

/// The longest request: a body and hints that LZ4 could not shrink, and the rest.
pub(super) const REQUEST_BYTES_MAX: usize = BLOB_BYTES_MAX;
/// The longest answer that is no outcome.
pub(super) const TAKEN_BYTES_MAX: usize = 16;
/// The longest answer that is one. Sync brings a batch whose parts are longer together.
pub(super) const OUTCOME_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// What one validator sends another. The channel proves whose it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// [`Message::Order`], which does not come in [`Request::Say`], and what is ordered.
    Order(Box<Ordered>),
    /// Any other message.
    Say(Box<Message>),
    /// What came of a batch where it came to this?
    Outcome {
        /// The batch.
        number: BatchNumber,
        /// Digest of the ledger info.
        token: Digest,
    },
}

/// An order and what it is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Ordered {
    /// Names the body by its digest.
    pub(super) order: SignedOrder,
    /// The transactions.
    pub(super) body: Blob,
    /// The working set, as advice.
    pub(super) hints: Option<Blob>,
}

impl Ordered {
    /// Bytes of it in memory.
    pub(super) fn bytes(&self) -> usize {
        self.body.len() + self.hints.as_ref().map_or(0, |hints| hints.len())
    }
}

/// The answer to a [`Request`]. A refusal is the transport's, with its reason as text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Response {
    /// It was heard.
    Taken,
    /// As asked for.
    Outcome(Box<OutcomeParts>),
    /// The validator does not have that outcome.
    Lacks,
}

/// A batch with what came of it. Whoever gets it checks it against a certificate.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct OutcomeParts {
    /// Commits to the rest.
    pub(super) header: BatchHeader,
    /// The transactions.
    pub(super) body: Blob,
    /// What they did.
    pub(super) receipts: Blob,
    /// What changed.
    pub(super) delta: Blob,
}

pub(super) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    codec::encode("consensus message", message)
}

/// Decodes a request whose parts belong together: an order comes with its own body, and only so.
pub(super) fn decode_request(bytes: &[u8]) -> Result<Request, CodecError> {
    let what = "consensus request";
    let request: Request = codec::decode(what, bytes, REQUEST_BYTES_MAX)?;
    match &request {
        Request::Say(message) if matches!(**message, Message::Order(_)) => {
            Err(CodecError::Invalid { what, rule: "an order comes with its body" })
        }
        Request::Order(ordered) => {
            let content = ordered.body.content(BlobKind::Body)?;
            match content_digest(BlobKind::Body, &content) == ordered.order.order.transactions {
                true => Ok(request),
                false => {
                    Err(CodecError::Invalid { what, rule: "an order comes with the body that it names" })
                }
            }
        }
        _ => Ok(request),
    }
}

pub(super) fn decode_response(bytes: &[u8]) -> Result<Response, CodecError> {
    codec::decode("consensus response", bytes, OUTCOME_BYTES_MAX)
}

// The two blobs of an order fit.
const _: () = assert!(REQUEST_BYTES_MAX > limits::BODY_BYTES_MAX + limits::HINTS_BYTES_MAX + (1 << 20));

#[cfg(test)]
mod tests {
    use slipstream_eve::Order;
    use slipstream_types::{Epoch, SecretKey};

    use super::*;

    fn ordered(content: &[u8], named: &[u8]) -> Request {
        let order = Order {
            epoch: Epoch(0),
            view: 0,
            number: BatchNumber(1),
            parent: Digest::ZERO,
            timestamp_ms: 1,
            transactions: content_digest(BlobKind::Body, named),
        };
        let order = SignedOrder::new(order, &Digest::ZERO, &SecretKey::from_seed([1; 32]));
        let body = Blob::compress(BlobKind::Body, content).unwrap();
        Request::Order(Box::new(Ordered { order, body, hints: None }))
    }

    /// Goal: what was encoded is decoded, and an order is taken with its own body only.
    #[test]
    fn requests_are_whole() {
        let whole = ordered(b"body", b"body");
        assert_eq!(decode_request(&encode(&whole).unwrap()).unwrap(), whole);
        let Request::Order(inner) = &whole else { panic!() };
        let bare = Request::Say(Box::new(Message::Order(inner.order.clone())));
        for wrong in [ordered(b"body", b"other"), bare] {
            let error = decode_request(&encode(&wrong).unwrap()).unwrap_err().to_string();
            assert!(error.contains("an order comes with"), "{error}");
        }
        for answer in [Response::Taken, Response::Lacks] {
            let bytes = encode(&answer).unwrap();
            assert!(bytes.len() <= TAKEN_BYTES_MAX);
            assert_eq!(decode_response(&bytes).unwrap(), answer);
        }
    }
}
