//! The messages between validators, in BCS. Types bound every length before anything is allocated.

use serde::{Deserialize, Serialize};
use slipstream_eve::{Message, SignedOrder};
use slipstream_network::MESSAGE_BYTES_MAX;
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, BlobKind, CodecError, Digest, Epoch, ValidatorSet, batch::content_digest,
    blob::BLOB_BYTES_MAX, codec, limits,
};

/// The name of a request in errors.
const REQUEST: &str = "consensus request";
/// The longest request: a body and hints that LZ4 could not shrink, and the rest.
pub(super) const REQUEST_BYTES_MAX: usize = BLOB_BYTES_MAX;
/// The first byte of a request that is an order.
const ORDER_VARIANT: u8 = 0;
/// Bytes of a [`SignedOrder`]. All its fields have a fixed length, so it can be read without the rest of the request.
const ORDER_BYTES: usize = 3 * 8 + 32 + 8 + 32 + 64;
/// The longest answer other than an outcome.
pub(super) const TAKEN_BYTES_MAX: usize = 16;
/// The longest outcome in an answer. Sync brings a batch whose parts are longer together.
pub(super) const OUTCOME_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// A message from one validator to another. The channel proves its sender.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// A [`Message::Order`], which [`Request::Say`] must not carry, with the ordered batch.
    Order(Box<Ordered>),
    /// Any other message, with its sender's epoch: in another epoch its signatures mean nothing.
    Say(Epoch, Box<Message>),
    /// Asks for the outcome that a batch's token names.
    Outcome {
        /// Number of the batch.
        number: BatchNumber,
        /// Digest of the ledger info.
        token: Digest,
    },
}

/// An order with the ordered batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ordered {
    /// The order, which names the body by its digest.
    pub order: SignedOrder,
    /// The batch's transactions, as a blob.
    pub body: Blob,
    /// The working set, as advice.
    pub hints: Option<Blob>,
}

impl Ordered {
    /// Bytes of body and hints in memory.
    pub(super) fn bytes(&self) -> usize {
        self.body.len() + self.hints.as_ref().map_or(0, |hints| hints.len())
    }
}

/// The answer to a [`Request`]. The transport carries a refusal, with its reason as text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Response {
    /// The validator took the message.
    Taken,
    /// The outcome that the request asked for.
    Outcome(Box<OutcomeParts>),
    /// The validator does not have that outcome.
    Lacks,
}

/// A batch with its outcome. The receiver checks it against a certificate.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OutcomeParts {
    /// The header, which commits to the other fields.
    pub header: BatchHeader,
    /// The batch's transactions, as a blob.
    pub body: Blob,
    /// The receipts of its transactions.
    pub receipts: Blob,
    /// The net changes of the state.
    pub delta: Blob,
}

/// Encodes a request or an answer.
///
/// # Errors
/// If it is longer than BCS allows.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    codec::encode("consensus message", message)
}

/// Decodes a request, without unpacking any of it.
///
/// # Errors
/// If the bytes are no request.
pub fn decode_request(bytes: &[u8]) -> Result<Request, CodecError> {
    let request: Request = codec::decode(REQUEST, bytes, REQUEST_BYTES_MAX)?;
    match &request {
        Request::Say(_, message) if matches!(**message, Message::Order(_)) => {
            Err(CodecError::Invalid { what: REQUEST, rule: "an order comes with its body" })
        }
        _ => Ok(request),
    }
}

/// The error of an order whose kind is not encoded in one byte.
pub(super) const ODD_ORDER: CodecError =
    CodecError::Invalid { what: REQUEST, rule: "an order begins with its kind, in one byte" };

/// Reads the order that a request begins with, if the request is an order. The body after it is ignored.
///
/// # Errors
/// If it is cut off.
pub(super) fn order_of(request: &[u8]) -> Result<Option<SignedOrder>, CodecError> {
    let Some(order) = request.strip_prefix(&[ORDER_VARIANT]) else { return Ok(None) };
    let order = order.get(..ORDER_BYTES).unwrap_or(order);
    codec::decode("order", order, ORDER_BYTES).map(Some)
}

/// Checks that the order comes from the primary of its view. Nobody else sends orders.
pub(super) fn check_author(order: &SignedOrder, seat: u16, set: &ValidatorSet) -> Result<(), CodecError> {
    let rule = "an order comes from the primary of its view";
    let is_author = set.primary(order.order.view) == seat;
    is_author.then_some(()).ok_or(CodecError::Invalid { what: REQUEST, rule })
}

/// Checks that the primary of its view signed the order.
pub(super) fn check_signature(
    order: &SignedOrder,
    set: &ValidatorSet,
    domain: &Digest,
) -> Result<(), CodecError> {
    let rule = "an order is signed by the primary of its view";
    order.is_signed(set, domain).then_some(()).ok_or(CodecError::Invalid { what: REQUEST, rule })
}

impl Ordered {
    /// Checks that the body is the one that the order names.
    pub(super) fn check_body(&self) -> Result<(), CodecError> {
        let content = self.body.content(BlobKind::Body)?;
        match content_digest(BlobKind::Body, &content) == self.order.order.transactions {
            true => Ok(()),
            false => {
                Err(CodecError::Invalid { what: REQUEST, rule: "an order comes with the body that it names" })
            }
        }
    }
}

/// Decodes the response to a request.
///
/// # Errors
/// If the bytes are no response.
pub fn decode_response(bytes: &[u8]) -> Result<Response, CodecError> {
    codec::decode("consensus response", bytes, OUTCOME_BYTES_MAX)
}

// The two blobs of an order fit into a request.
const _: () = assert!(REQUEST_BYTES_MAX > limits::BODY_BYTES_MAX + limits::HINTS_BYTES_MAX + (1 << 20));

#[cfg(test)]
mod tests {
    use slipstream_eve::Order;
    use slipstream_types::SecretKey;

    use super::*;
    use crate::testing::{genesis, validator_key};

    /// An order in a set of one, signed with `key`.
    fn ordered(content: &[u8], named: &[u8], key: &SecretKey) -> Ordered {
        let order = Order {
            epoch: Epoch(0),
            view: 0,
            number: BatchNumber::new(1),
            parent: Digest::ZERO,
            timestamp_ms: 1,
            transactions: content_digest(BlobKind::Body, named),
        };
        let order = SignedOrder::new(order, &Digest::ZERO, key);
        Ordered { order, body: Blob::compress(BlobKind::Body, content).unwrap(), hints: None }
    }

    /// Goal: encoded messages decode again. An order is accepted only with its primary's signature and its own body.
    #[test]
    fn requests_are_whole() {
        let genesis = genesis(1);
        let (set, key) = (genesis.validator_set(), validator_key(0));
        let whole = ordered(b"body", b"body", &key);
        let check =
            |it: &Ordered| check_signature(&it.order, &set, &Digest::ZERO).and_then(|()| it.check_body());
        check(&whole).unwrap();
        let bare = Request::Say(Epoch(0), Box::new(Message::Order(whole.order.clone())));
        let error = decode_request(&encode(&bare).unwrap()).unwrap_err().to_string();
        assert!(error.contains("an order comes with its body"), "{error}");
        for (wrong, rule) in [
            (ordered(b"body", b"other", &key), "the body that it names"),
            (ordered(b"body", b"body", &SecretKey::from_seed([99; 32])), "is signed by the primary"),
        ] {
            let error = check(&wrong).unwrap_err().to_string();
            assert!(error.contains(rule), "{error}");
        }
        let request = Request::Order(Box::new(whole.clone()));
        let bytes = encode(&request).unwrap();
        assert_eq!(decode_request(&bytes).unwrap(), request);
        assert_eq!(order_of(&bytes).unwrap(), Some(whole.order));
        assert_eq!(order_of(&bytes[..1 + ORDER_BYTES]).unwrap(), order_of(&bytes).unwrap());
        order_of(&bytes[..ORDER_BYTES]).unwrap_err();
        let other = Request::Outcome { number: BatchNumber::new(1), token: Digest::ZERO };
        assert_eq!(order_of(&encode(&other).unwrap()).unwrap(), None);
        for answer in [Response::Taken, Response::Lacks] {
            let bytes = encode(&answer).unwrap();
            assert!(bytes.len() <= TAKEN_BYTES_MAX);
            assert_eq!(decode_response(&bytes).unwrap(), answer);
        }
    }
}
