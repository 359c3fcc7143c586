//! [`PeerRecord`]: a peer's own statement of the addresses at which it is reached.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use slipstream_types::{Digest, SecretKey, Signature, bounded::BoundedVec};

use crate::PeerId;

/// Maximum number of addresses of one record: both families, and a move from one address to another. More would turn one key into
/// many targets.
pub(crate) const RECORD_ADDRESSES_MAX: usize = 4;

/// Tag of the signed digest; see [`Digest::tagged`].
const TAG: &str = "slipstream/peer-record/1";

type Addresses = BoundedVec<SocketAddr, RECORD_ADDRESSES_MAX>;

/// A received record: only its bounds are checked. BCS: id 32, issued_ms u64, addresses (0 ‖ 4 bytes or 1 ‖ 16 bytes,
/// port u16), signature 64.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct UncheckedRecord {
    id: PeerId,
    issued_ms: u64,
    addresses: Addresses,
    signature: Signature,
}

/// A peer's addresses, signed by its own key for one chain. Every value of this type has a checked signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PeerRecord(Arc<UncheckedRecord>);

/// The rule that a record breaks. Honest peers never pass on such a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("a record has no address")]
    Empty,
    #[error("a record's addresses are out of ascending order, or one is repeated")]
    Order,
    #[error("a record has an address in another form, or with port 0")]
    Form,
    #[error("a record is not signed by its own key for this chain")]
    Signature,
}

impl PeerRecord {
    /// Signs a record. Sorts the addresses, and leaves out those beyond [`RECORD_ADDRESSES_MAX`].
    ///
    /// # Errors
    /// If the addresses are empty, or include one that records may not have.
    pub(crate) fn issue(
        key: &SecretKey,
        chain: &Digest,
        addresses: &[SocketAddr],
        issued_ms: u64,
    ) -> Result<PeerRecord, RecordError> {
        let mut addresses = addresses.to_vec();
        addresses.sort_unstable();
        addresses.truncate(RECORD_ADDRESSES_MAX);
        let addresses = Addresses::new(addresses).map_err(|_| RecordError::Form)?;
        let mut record =
            UncheckedRecord { id: key.public(), issued_ms, addresses, signature: Signature([0; 64]) };
        record.check_form()?;
        record.signature = key.sign(record.digest(chain).as_bytes());
        Ok(PeerRecord(Arc::new(record)))
    }

    /// A record without a valid signature, for tests.
    #[cfg(test)]
    pub(crate) fn made_up(id: PeerId, addresses: &[SocketAddr], issued_ms: u64) -> PeerRecord {
        let addresses = Addresses::new(addresses.to_vec()).unwrap();
        PeerRecord(Arc::new(UncheckedRecord { id, issued_ms, addresses, signature: Signature([0; 64]) }))
    }

    pub(crate) fn id(&self) -> PeerId {
        self.0.id
    }

    /// When the peer signed it, in milliseconds since 1970.
    pub(crate) fn issued_ms(&self) -> u64 {
        self.0.issued_ms
    }

    /// At least one address, in ascending order.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.0.addresses
    }

    /// Returns the record in the form that is sent and stored.
    pub(crate) fn unchecked(&self) -> UncheckedRecord {
        UncheckedRecord::clone(&self.0)
    }
}

impl UncheckedRecord {
    pub(crate) fn id(&self) -> PeerId {
        self.id
    }

    pub(crate) fn issued_ms(&self) -> u64 {
        self.issued_ms
    }

    /// Checks form and signature: takes some 50 microseconds.
    pub(crate) fn check(self, chain: &Digest) -> Result<PeerRecord, RecordError> {
        self.check_form()?;
        if !self.id.verify(self.digest(chain).as_bytes(), &self.signature) {
            return Err(RecordError::Signature);
        }
        Ok(PeerRecord(Arc::new(self)))
    }

    /// Checks only the form, for a record that this node checked before and stored on its own disk.
    pub(crate) fn check_kept(self) -> Result<PeerRecord, RecordError> {
        self.check_form()?;
        Ok(PeerRecord(Arc::new(self)))
    }

    /// Checks that the addresses are in canonical form: a record has only one encoding.
    fn check_form(&self) -> Result<(), RecordError> {
        if self.addresses.is_empty() {
            return Err(RecordError::Empty);
        }
        let is_plain = |address: &SocketAddr| {
            let is_mapped = matches!(address.ip(), IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
            address.port() != 0 && !is_mapped
        };
        if !self.addresses.iter().all(is_plain) {
            return Err(RecordError::Form);
        }
        match self.addresses.is_sorted_by(|one, next| one < next) {
            true => Ok(()),
            false => Err(RecordError::Order),
        }
    }

    /// The signed digest: chain, key, time and addresses, each as address family (4 or 6), IP and port.
    fn digest(&self, chain: &Digest) -> Digest {
        let mut signed = [chain.0.as_slice(), &self.id.0, &self.issued_ms.to_le_bytes()].concat();
        for address in self.addresses.iter() {
            match address.ip() {
                IpAddr::V4(ip) => signed.extend([&[4], ip.octets().as_slice()].concat()),
                IpAddr::V6(ip) => signed.extend([&[6], ip.octets().as_slice()].concat()),
            }
            signed.extend(address.port().to_le_bytes());
        }
        Digest::tagged(TAG, &signed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slipstream_types::codec;

    use super::*;

    const CHAIN: Digest = Digest([7; 32]);

    fn key() -> SecretKey {
        SecretKey::from_seed([1; 32])
    }

    fn record() -> UncheckedRecord {
        let addresses = ["8.8.8.8:7400", "[2a00:1450::1]:7401"].map(|text| text.parse().unwrap());
        PeerRecord::issue(&key(), &CHAIN, &addresses, 5).unwrap().unchecked()
    }

    #[test]
    fn a_record_is_its_keys_word_for_one_chain() {
        let record = record();
        assert!(record.clone().check(&CHAIN).is_ok());
        assert_eq!(record.clone().check(&Digest([8; 32])), Err(RecordError::Signature));
        let another = UncheckedRecord { id: SecretKey::from_seed([2; 32]).public(), ..record };
        assert_eq!(another.check(&CHAIN), Err(RecordError::Signature));
    }

    #[test]
    fn only_one_form_of_a_record_is_taken() {
        let issue = |addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            PeerRecord::issue(&key(), &CHAIN, &addresses, 5).map(|record| record.addresses().len())
        };
        assert_eq!(issue(&[]), Err(RecordError::Empty));
        assert_eq!(issue(&["8.8.8.8:0"]), Err(RecordError::Form));
        assert_eq!(issue(&["[::ffff:8.8.8.8]:1"]), Err(RecordError::Form));
        assert_eq!(issue(&["8.8.8.8:1", "8.8.8.8:1"]), Err(RecordError::Order));
        assert_eq!(issue(&["8.8.8.8:2", "8.8.8.8:1", "1.1.1.1:1"]), Ok(3));
        let mut swapped = record();
        let addresses: Vec<_> = swapped.addresses.iter().rev().copied().collect();
        swapped.addresses = Addresses::new(addresses).unwrap();
        assert_eq!(swapped.check(&CHAIN), Err(RecordError::Order));
    }

    proptest! {
        /// Goal: a record with any flipped bit is refused: by decoding, by the form, or by the signature.
        #[test]
        fn a_flipped_bit_is_noticed(at in 0usize..8 * 131) {
            let mut bytes = codec::encode("record", &record()).unwrap();
            prop_assert_eq!(bytes.len(), 131);
            bytes[at / 8] ^= 1 << (at % 8);
            let decoded: Result<UncheckedRecord, _> = codec::decode("record", &bytes, 512);
            prop_assert!(decoded.map_or(true, |record| record.check(&CHAIN).is_err()));
        }
    }

    /// Goal: the format in docs/formats.md does not change unnoticed.
    #[test]
    fn the_format_is_pinned() {
        let bytes = codec::encode("record", &record()).unwrap();
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let (head, signature) = text.split_at(text.len() - 128);
        let expected = format!(
            "{}050000000000000002{}{}",
            key().public(),
            "0008080808e81c",
            "012a001450000000000000000000000001e91c"
        );
        assert_eq!(head, expected);
        assert_eq!(&signature[..16], "c705e9c27558fbc0", "the signature is part of the format");
    }
}
