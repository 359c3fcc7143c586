//! What validators say to each other, in BCS. Every length is bounded by its type before anything is allocated.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use slipstream_types::{
    BatchHeader, BatchNumber, Blob, Certificate, CodecError, Signature, blob::BLOB_BYTES_MAX, codec, limits,
};

/// The longest request: a body and hints that LZ4 could not shrink, the parent's certificate, and the rest.
const REQUEST_BYTES_MAX: usize = BLOB_BYTES_MAX;
/// The longest answer: a certificate by all validators, which names as many next ones. A vote has 67 bytes.
pub(crate) const RESPONSE_BYTES_MAX: usize = 32 << 10;

/// What a proposer asks of a validator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Check, execute and vote.
    Propose(Box<Proposal>),
    /// The batch that you voted for is certified.
    Decide(Box<Certificate>),
    /// How far are you, and what time is it? Answered by [`Response::Standing`].
    Standing,
}

impl Request {
    /// The batch that it is about.
    pub(crate) fn number(&self) -> Option<BatchNumber> {
        match self {
            Request::Propose(proposal) => Some(proposal.header.number),
            Request::Decide(certificate) => Some(certificate.info.number),
            Request::Standing => None,
        }
    }
}

/// A batch that is to be the next.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Proposal {
    /// What the batch is and does, as its proposer found.
    pub(crate) header: BatchHeader,
    /// Its transactions.
    pub(crate) body: Blob,
    /// The working set, as advice.
    pub(crate) hints: Option<Blob>,
    /// The parent's certificate, so that a validator that missed its `Decide` need not wait for sync.
    pub(crate) parent: Option<Certificate>,
}

/// What a validator answers. A refusal is the transport's, with its reason as text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Response {
    /// It executed the proposal and got the same.
    Vote {
        /// Its position in the set.
        index: u16,
        /// On the ledger info.
        signature: Signature,
    },
    /// It lacks batches and catches up through sync.
    Behind {
        /// Its head.
        head: BatchNumber,
    },
    /// It has the decided batch, or leaves it to sync.
    Decided {
        /// Its head.
        head: BatchNumber,
    },
    /// It was asked how it stands.
    Standing {
        /// Of the highest batch that it can prove; none at the beginning of the chain.
        certificate: Option<Box<Certificate>>,
        /// Its clock, in milliseconds since the Unix epoch.
        now_ms: u64,
    },
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    codec::encode("consensus message", message)
}

pub(crate) fn decode_request(bytes: &[u8]) -> Result<Request, CodecError> {
    decode("consensus request", bytes, REQUEST_BYTES_MAX)
}

pub(crate) fn decode_response(bytes: &[u8]) -> Result<Response, CodecError> {
    decode("consensus response", bytes, RESPONSE_BYTES_MAX)
}

fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8], bytes_max: usize) -> Result<T, CodecError> {
    codec::decode(what, bytes, bytes_max)
}

// The two blobs of a proposal and a certificate fit.
const _: () = assert!(REQUEST_BYTES_MAX > limits::BODY_BYTES_MAX + limits::HINTS_BYTES_MAX + (1 << 20));
// So does a certificate with the next set: 66 bytes a signature, 52 a validator.
const _: () = assert!(RESPONSE_BYTES_MAX > limits::VALIDATORS_MAX * (66 + 52) + 1_024);

#[cfg(test)]
mod tests {
    use slipstream_types::SecretKey;

    use super::*;

    // Both directions decode to what was encoded, and an answer that is too long is refused unread.
    #[test]
    fn round_trip_and_bound() {
        let signature = SecretKey::from_seed([1; 32]).sign(b"x");
        for response in [
            Response::Vote { index: 3, signature },
            Response::Behind { head: BatchNumber(7) },
            Response::Decided { head: BatchNumber(8) },
            Response::Standing { certificate: None, now_ms: u64::MAX },
        ] {
            let bytes = encode(&response).unwrap();
            assert_eq!(decode_response(&bytes).unwrap(), response);
            assert!(decode_response(&bytes[..bytes.len() - 1]).is_err());
        }
        assert!(matches!(
            decode_response(&[0; RESPONSE_BYTES_MAX + 1]),
            Err(CodecError::TooLong { len: 32_769, max: RESPONSE_BYTES_MAX, .. })
        ));
    }
}
