use slipstream_storage::StorageConfig;
use slipstream_types::{Address, Digest, LedgerInfo, SecretKey, certificate::CertificateError};

use super::*;

fn keys(epoch: u64) -> Vec<SecretKey> {
    slipstream_testkit::keys((1..=4).map(|seat| (10 * epoch + seat) as u8))
}

fn set(epoch: u64, keys: &[SecretKey]) -> ValidatorSet {
    slipstream_testkit::set(epoch, keys, Address::ZERO)
}

fn genesis() -> Genesis {
    slipstream_testkit::genesis(&keys(0), 1)
}

/// The certificate of an epoch's batch, signed by three of four keys.
fn certificate(number: u64, epoch: u64, keys: &[SecretKey], next: Option<ValidatorSet>) -> Certificate {
    let info = LedgerInfo {
        accumulator_root: Digest([number as u8; 32]),
        timestamp_ms: number,
        next_validators: next,
        ..slipstream_testkit::info(epoch, number)
    };
    slipstream_testkit::sign(info, &keys[..3])
}

/// Epoch 0 ends with batch 10, epoch 1 with batch 20, and so on.
fn end(epoch: u64) -> Certificate {
    certificate(10 * (epoch + 1), epoch, &keys(epoch), Some(set(epoch + 1, &keys(epoch + 1))))
}

fn within(number: u64, epoch: u64) -> Certificate {
    certificate(number, epoch, &keys(epoch), None)
}

fn reason(result: Result<(), Violation>) -> &'static str {
    match result.unwrap_err() {
        Violation::WrongEpochEnd { reason, .. } => reason,
        violation => panic!("{violation}"),
    }
}

#[test]
fn validators_are_followed_from_epoch_to_epoch() {
    let mut trust = Trust::of_genesis(&genesis());
    trust.verify(&within(9, 0)).unwrap();
    trust.verify(&within(30, 0)).unwrap();
    for ends in [vec![end(0)], vec![end(0), end(1)], vec![end(1), end(2)], Vec::new()] {
        trust.learn(&ends).unwrap();
    }
    assert_eq!(trust.epoch(), Epoch(3));
    for certificate in [within(10, 0), end(0), within(11, 1), end(1), within(21, 2), within(31, 3)] {
        assert_eq!(trust.verify(&certificate), Ok(()));
    }
    let unknown = TrustError::UnknownEpoch { number: BatchNumber::new(41), epoch: Epoch(4), known: Epoch(3) };
    assert_eq!(trust.verify(&within(41, 4)), Err(unknown));
}

/// Goal: the next validators are known for the batch that ends an epoch, and for no other.
#[test]
fn the_end_of_an_epoch_names_the_next_validators() {
    let mut trust = Trust::of_genesis(&genesis());
    assert_eq!(trust.end_of(Epoch(0), BatchNumber::new(10)), None);
    trust.learn(&[end(0), end(1)]).unwrap();
    for (epoch, number) in [(0, 10), (1, 20)] {
        assert_eq!(
            trust.end_of(Epoch(epoch), BatchNumber::new(number)),
            Some(&set(epoch + 1, &keys(epoch + 1)))
        );
        assert_eq!(trust.end_of(Epoch(epoch), BatchNumber::new(number - 1)), None);
        assert_eq!(trust.end_of(Epoch(epoch), BatchNumber::new(number + 1)), None);
    }
    assert_eq!(trust.end_of(Epoch(2), BatchNumber::new(30)), None);
}

/// Goal: the keys of a past epoch are worth nothing outside it.
#[test]
fn a_certificate_counts_only_in_its_epoch() {
    let mut trust = Trust::of_genesis(&genesis());
    trust.learn(&[end(0), end(1)]).unwrap();
    for (number, epoch) in [(11, 0), (u64::MAX, 0), (10, 1), (0, 1), (21, 1), (20, 2), (0, 2)] {
        let violation = Violation::OutsideEpoch { number: BatchNumber::new(number), epoch: Epoch(epoch) };
        assert_eq!(trust.verify(&within(number, epoch)), Err(violation.into()), "{number} {epoch}");
    }
    let signature =
        |index| Violation::from(CertificateError::BadSignature { number: BatchNumber::new(15), index });
    assert_eq!(trust.verify(&certificate(15, 1, &keys(0), None)), Err(signature(0).into()));
}

#[test]
fn wrong_epoch_ends_are_refused_and_change_nothing() {
    let mut trust = Trust::of_genesis(&genesis());
    assert!(reason(trust.learn(&[end(1)])).contains("missing"));
    assert!(reason(trust.learn(&[within(10, 0)])).contains("no validators"));
    let forged = certificate(10, 0, &keys(1), Some(set(1, &keys(1))));
    assert!(matches!(
        trust.learn(&[forged]),
        Err(Violation::Certificate(CertificateError::BadSignature { index: 0, .. }))
    ));
    for next in [set(0, &keys(1)), set(2, &keys(1)), set(1, &[])] {
        assert!(reason(trust.learn(&[certificate(10, 0, &keys(0), Some(next))])).contains("next epoch"));
    }
    assert_eq!(trust, Trust::of_genesis(&genesis()));

    // The ends before the refused one were signed by their own quorums.
    assert!(reason(trust.learn(&[end(0), end(2)])).contains("missing"));
    assert_eq!(trust.epoch(), Epoch(1));
    let known = trust.clone();
    let replaced = |number, keys_after| certificate(number, 0, &keys(0), Some(set(1, &keys(keys_after))));
    assert!(reason(trust.learn(&[replaced(10, 7)])).contains("another"));
    assert!(reason(trust.learn(&[replaced(9, 1)])).contains("another"));
    assert!(matches!(trust.learn(&[replaced(11, 1)]), Err(Violation::OutsideEpoch { .. })));
    let wrong_set = certificate(20, 1, &keys(0), Some(set(2, &keys(0))));
    assert!(matches!(trust.learn(&[wrong_set]), Err(Violation::Certificate(_))));
    assert_eq!(trust, known);
}

/// Goal: signatures on a known statement cost nothing, whoever sends them and however often.
#[test]
fn known_ends_are_not_verified_again() {
    let mut trust = Trust::of_genesis(&genesis());
    trust.learn(&[end(0), end(1)]).unwrap();
    let known = trust.clone();
    let unsigned = Certificate { signatures: Default::default(), ..end(0) };
    for again in [end(0), unsigned, end(1)] {
        assert_eq!(trust.learn_end(&again), Ok(false));
    }
    assert_eq!(trust, known);
    assert_eq!(trust.learn_end(&end(2)), Ok(true));
    assert!(trust.continues(&known) && !known.continues(&trust));
}

#[test]
fn what_a_store_knows_is_verified_again() {
    let store = Store::memory(&StorageConfig::default());
    store.initialize(&genesis()).unwrap();
    assert_eq!(Trust::of(&store).unwrap(), Trust::of_genesis(&genesis()));
    // More ends than are read at once, with the same validators again and again.
    let last = READ_ENDS as u64 + 2;
    let ends: Vec<_> =
        (0..last).map(|e| certificate(e + 1, e, &keys(0), Some(set(e + 1, &keys(0))))).collect();
    ends.iter().for_each(|end| store.put_epoch_end(end).unwrap());
    let mut learnt = Trust::of_genesis(&genesis());
    learnt.learn(&ends).unwrap();
    assert_eq!(learnt.epoch(), Epoch(last));
    assert_eq!(Trust::of(&store).unwrap(), learnt);

    store.put_epoch_end(&certificate(1_000, last, &keys(1), Some(set(last + 1, &keys(1))))).unwrap();
    let refused = Trust::of(&store).unwrap_err();
    assert!(matches!(refused, SyncError::WrongEpochEnd { .. }), "{refused}");
}
