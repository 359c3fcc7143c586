//! Goal: no bit of an answer can be changed. The tests flip single bits of every part at places that proptest chooses;
//! an answer that still verifies must be the same.

use std::sync::LazyLock;

use proptest::prelude::*;
use slipstream_light::{AccountProof, LightClient, WaypointProof};
use slipstream_types::{Certificate, Epoch, LedgerInfo, Waypoint, codec};

use crate::chain::{CONTRACT, Chain, ask, keys, set, slot};

const HEAD: u64 = 21;

static CHAIN: LazyLock<Chain> = LazyLock::new(|| {
    let mut chain = Chain::new(1, 20);
    chain.grow(Epoch(0), &[]);
    chain
});

/// Flips one bit of the answer's binary form; returns the result if that is still an answer.
fn flip<T: serde::Serialize + serde::de::DeserializeOwned>(
    value: &T,
    at: prop::sample::Index,
    bit: u8,
) -> Option<T> {
    let mut bytes = codec::encode("answer", value).unwrap();
    let at = at.index(bytes.len());
    bytes[at] ^= 1 << bit;
    codec::decode("answer", &bytes, bytes.len()).ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn a_flipped_bit_of_a_proof_is_refused(
        (number, at, bit) in (0..=HEAD, any::<prop::sample::Index>(), 0..8u8),
    ) {
        let slots = [slot(3), slot(99)];
        let certificate = CHAIN.certify(HEAD, None, &keys(1, 4), &[0, 1, 3]);
        let good = CHAIN.proof(number, certificate, CONTRACT, &slots);
        let (client, question) = (CHAIN.client(), ask(number, CONTRACT, &slots));
        prop_assert!(client.verify(&question, &good).is_ok());
        if let Some(bent) = flip::<AccountProof>(&good, at, bit) {
            prop_assert!(bent == good || client.verify(&question, &bent).is_err());
        }
    }

    #[test]
    fn a_flipped_bit_of_an_epoch_change_is_refused((at, bit) in (any::<prop::sample::Index>(), 0..8u8)) {
        let good = CHAIN.certify(HEAD, Some(set(1, &keys(11, 4))), &keys(1, 4), &[1, 2, 3]);
        let mut client = CHAIN.client();
        if let Some(bent) = flip::<Certificate>(&good, at, bit) {
            prop_assert!(client.learn(&[bent]).is_err());
            prop_assert_eq!(client.epoch(), Epoch(0));
        }
        prop_assert!(client.learn(&[good]).is_ok());
    }

    #[test]
    fn a_flipped_bit_of_what_comes_with_a_waypoint_is_refused((at, bit) in (any::<prop::sample::Index>(), 0..8u8)) {
        let good = CHAIN.waypoint_proof(HEAD, Some(set(1, &keys(11, 4))));
        let waypoint = Waypoint::of(&good.ledger_info.0);
        prop_assert!(LightClient::from_waypoint(&waypoint, &good).is_ok());
        if let Some(bent) = flip::<WaypointProof>(&good, at, bit) {
            prop_assert!(LightClient::from_waypoint(&waypoint, &bent).is_err());
        }
    }

    #[test]
    fn garbage_is_refused_and_nothing_panics(text in ".{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(AccountProof::from_json(&text).is_err());
        prop_assert!(WaypointProof::from_json(&text).is_err());
        let _ = codec::decode::<AccountProof>("answer", &bytes, bytes.len());
        let _ = codec::decode::<LedgerInfo>("answer", &bytes, bytes.len());
    }
}
