//! A certificate that verifies has a quorum of signatures, in order and without repetition. They are on the honest
//! ledger info and view, because no key here signed anything else.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use slipstream_testkit::keys;
use slipstream_types::{
    Address, BatchNumber, Certificate, Digest, Epoch, Failures, LedgerInfo, SecretKey, ValidatorSet,
};

use crate::claim::claim;
pub(super) use crate::claim::seeds;

const VALIDATORS: u8 = 7;

/// The certificate, and the failures that the set must tolerate if the fuzzer made the claim.
#[derive(Serialize, Deserialize)]
struct Claim {
    certificate: Certificate,
    failures: Failures,
}

static KEYS: LazyLock<Vec<SecretKey>> = LazyLock::new(|| keys(0..VALIDATORS));

fn set(failures: Failures) -> ValidatorSet {
    ValidatorSet { failures, ..slipstream_testkit::set(3, &KEYS, Address::ZERO) }
}

fn info(ends: bool) -> LedgerInfo {
    let next = ValidatorSet { epoch: Epoch(4), ..set(Failures { any: 2, commission: 2 }) };
    LedgerInfo {
        epoch: Epoch(3),
        number: BatchNumber::new(40),
        accumulator_root: Digest::tagged("fuzz", b"accumulator"),
        state_root: Digest::tagged("fuzz", b"state"),
        timestamp_ms: 1_700_000_000_000,
        next_validators: ends.then_some(next),
    }
}

/// Makes a certificate: `a` chooses the signers, `b` the view, the tolerated failures and whether the epoch ends.
fn honest(a: u8, b: u8) -> Claim {
    let signers = (0..u16::from(VALIDATORS)).zip(KEYS.iter()).filter(|(index, _)| a & 1 << index != 0);
    let certificate = Certificate::signed(info(b & 1 != 0), u64::from(b >> 4), signers);
    let failures = Failures { any: u16::from(b >> 1 & 3), commission: u16::from(b >> 3 & 1) };
    Claim { certificate: certificate.expect("seven are within the limit"), failures }
}

pub(crate) fn run(bytes: &[u8]) {
    if let [1, a, b] = bytes {
        let Claim { certificate, failures } = honest(*a, *b);
        let set = set(failures);
        let is_quorum = set.check().is_ok() && (a & 0x7f).count_ones() as usize >= set.quorum();
        assert_eq!(certificate.verify(&set).is_ok(), is_quorum, "an honest certificate is judged wrongly");
    }
    let Some(Claim { certificate, failures }) = claim(bytes, honest) else { return };
    let set = set(failures);
    if certificate.verify(&set).is_ok() {
        assert!(set.check().is_ok() && certificate.signatures.len() >= set.quorum(), "a certificate without a quorum verifies");
        assert!(certificate.signatures.is_sorted_by(|a, b| a.0 < b.0), "a signature counts twice");
        assert!(
            [info(false), info(true)].contains(&certificate.info) && certificate.view < 16,
            "a certificate of an unsigned outcome verifies"
        );
    }
}
