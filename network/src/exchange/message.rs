//! The messages that peers exchange on [`Protocol::PEERS`](crate::Protocol::PEERS).

use serde::{Deserialize, Serialize};
use slipstream_types::{CodecError, Digest, bounded::BoundedVec, codec};

use super::record::{PeerRecord, UncheckedRecord};

/// Maximum bytes of a request: the requester's record is the largest part, at most 182.
pub(crate) const REQUEST_BYTES_MAX: usize = 256;
/// Maximum number of records of others in one answer: enough to find the next peers, and few enough that learning all takes many
/// questions.
pub(crate) const RECORDS_MAX: usize = 16;
/// Maximum bytes of an answer: so few that an answer needs no reserved room.
pub(crate) const ANSWER_BYTES_MAX: usize = 4 << 10;
/// Version of both messages.
const VERSION: u8 = 1;

/// A question for other peers, with the requester's own addresses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    version: u8,
    /// Digest of the genesis header: records of another chain are useless.
    pub(crate) chain: Digest,
    /// The requester's own record, if it is reached from outside.
    pub(crate) own: Option<UncheckedRecord>,
}

/// Records of some peers that the answering node has met itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    version: u8,
    /// The answering node's own record, if it is reached from outside.
    pub(crate) own: Option<UncheckedRecord>,
    /// Records of other peers.
    pub(crate) others: BoundedVec<UncheckedRecord, RECORDS_MAX>,
}

/// Why a message is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum MessageError {
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("this program does not know version {0} of peer exchange")]
    Version(u8),
}

impl Request {
    pub(crate) fn new(chain: Digest, own: Option<&PeerRecord>) -> Request {
        Request { version: VERSION, chain, own: own.map(PeerRecord::unchecked) }
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode("peer request", self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Request, MessageError> {
        check_version(bytes)?;
        Ok(codec::decode("peer request", bytes, REQUEST_BYTES_MAX)?)
    }
}

impl Answer {
    /// Makes an answer. Records beyond [`RECORDS_MAX`] are left out.
    pub(crate) fn new(
        own: Option<&PeerRecord>,
        others: impl Iterator<Item = PeerRecord>,
    ) -> Result<Answer, CodecError> {
        let others = others.take(RECORDS_MAX).map(|record| record.unchecked()).collect();
        Ok(Answer { version: VERSION, own: own.map(PeerRecord::unchecked), others: BoundedVec::new(others)? })
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode("peer answer", self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Answer, MessageError> {
        check_version(bytes)?;
        Ok(codec::decode("peer answer", bytes, ANSWER_BYTES_MAX)?)
    }
}

/// Checks the version, which comes first, so that other versions may differ in everything after it.
fn check_version(bytes: &[u8]) -> Result<(), MessageError> {
    match bytes.first() {
        Some(&version) if version != VERSION => Err(MessageError::Version(version)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;
    use slipstream_types::SecretKey;

    use super::*;
    use crate::exchange::RECORD_ADDRESSES_MAX;

    const CHAIN: Digest = Digest([7; 32]);

    /// A record of maximum length.
    fn record(n: u8) -> PeerRecord {
        let address = |at: usize| SocketAddr::new([0x2a00, 0, 0, 0, 0, 0, n.into(), at as u16].into(), 7400);
        let addresses: Vec<_> = (0..RECORD_ADDRESSES_MAX).map(address).collect();
        PeerRecord::issue(&SecretKey::from_seed([n; 32]), &CHAIN, &addresses, u64::MAX).unwrap()
    }

    #[test]
    fn the_longest_messages_fit_and_round_trip() {
        let own = record(1);
        let request = Request::new(CHAIN, Some(&own));
        let bytes = request.encode().unwrap();
        assert!(bytes.len() <= REQUEST_BYTES_MAX, "{}", bytes.len());
        assert_eq!(Request::decode(&bytes), Ok(request));
        let answer = Answer::new(Some(&own), (2..100).map(record)).unwrap();
        assert_eq!(answer.others.len(), RECORDS_MAX);
        let bytes = answer.encode().unwrap();
        assert!(bytes.len() <= ANSWER_BYTES_MAX, "{}", bytes.len());
        assert_eq!(Answer::decode(&bytes), Ok(answer));
    }

    proptest! {
        /// Goal: any bytes decode to a message that encodes to the same bytes, or are refused.
        #[test]
        fn any_bytes_are_a_message_or_refused(
            version in 0u8..3,
            bytes in prop::collection::vec(any::<u8>(), 0..5_000),
            flips in prop::collection::vec((0usize..400, any::<u8>()), 0..4),
        ) {
            let junk = [&[version], bytes.as_slice()].concat();
            let mut near = Answer::new(Some(&record(1)), [record(2)].into_iter()).unwrap().encode().unwrap();
            flips.iter().for_each(|(at, byte)| if let Some(it) = near.get_mut(*at) { *it = *byte; });
            for bytes in [junk, near] {
                if let Ok(answer) = Answer::decode(&bytes) {
                    prop_assert_eq!(answer.encode().unwrap(), bytes.clone());
                }
                if let Ok(request) = Request::decode(&bytes) {
                    prop_assert_eq!(request.encode().unwrap(), bytes);
                }
            }
        }
    }

    #[test]
    fn other_versions_and_junk_are_refused_by_name() {
        let mut bytes = Request::new(CHAIN, None).encode().unwrap();
        bytes[0] = 2;
        assert_eq!(Request::decode(&bytes), Err(MessageError::Version(2)));
        assert_eq!(Answer::decode(&[9, 9, 9]), Err(MessageError::Version(9)));
        for junk in [vec![], vec![1], vec![1; 100], vec![1; ANSWER_BYTES_MAX + 1]] {
            assert!(matches!(Answer::decode(&junk), Err(MessageError::Codec(_))), "{junk:?}");
        }
        // The length field announces seventeen records.
        let bytes = [&[1, 0, 17], [0; 1_000].as_slice()].concat();
        assert!(matches!(Answer::decode(&bytes), Err(MessageError::Codec(_))));
    }
}
