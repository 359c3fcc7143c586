//! Goal: only certificates by the previous validators change the validators, and validators of past epochs no longer
//! count.

use slipstream_light::{EpochEndFault, LightClient, LightError};
use slipstream_types::{BatchNumber, Certificate, Epoch, Failures, SecretKey, ValidatorSet, Waypoint};

use crate::chain::{Chain, RICH, ask, keys, set};

/// Makes a chain whose epochs 0, 1 and 2 end with the batches 4, 7 and 10. Returns it with each epoch's validators and the
/// certificates that end the epochs.
fn changing() -> (Chain, [Vec<SecretKey>; 4], Vec<Certificate>) {
    let validators = [keys(1, 4), keys(11, 7), keys(21, 4), keys(1, 5)];
    let mut chain = Chain::new(1, 4);
    for (epoch, batches) in [(1, 3), (2, 3), (3, 4)] {
        (0..batches).for_each(|_| chain.grow(Epoch(epoch), &[]));
    }
    let end = |epoch: usize, number: u64| {
        let mut next = set(epoch as u64 + 1, &validators[epoch + 1]);
        if epoch == 0 {
            // Its own failures: six of the seven are a quorum, whereas thirds would need five.
            next.failures = Failures { any: 1, commission: 4 };
        }
        let quorum: &[u16] = if epoch == 1 { &[0, 1, 3, 4, 5, 6] } else { &[0, 1, 3] };
        chain.certify(number, Some(next), &validators[epoch], quorum)
    };
    let ends = vec![end(0, 4), end(1, 7), end(2, 10)];
    (chain, validators, ends)
}

/// Goal: a client that followed from the genesis accepts proofs of the newest epoch, and refuses those of earlier
/// epochs even if well signed.
#[test]
fn epochs_are_followed_one_after_the_other() {
    let (chain, validators, ends) = changing();
    let mut client = chain.client();
    let newest = chain.proof(14, chain.certify(14, None, &validators[3], &[0, 1, 2, 4]), RICH, &[]);
    let question = ask(14, RICH, &[]);
    let ahead = client.verify(&question, &newest).unwrap_err();
    assert!(matches!(ahead, LightError::UnknownEpoch { epoch: Epoch(3), known: Epoch(0) }), "{ahead}");

    let old = chain.proof(4, ends[0].clone(), RICH, &[]);
    assert!(client.verify(&ask(4, RICH, &[]), &old).is_ok());
    assert_eq!(client.learn(&ends[..1]).unwrap(), 1);
    assert_eq!((client.epoch(), client.waypoint()), (Epoch(1), Waypoint::of(&ends[0].info)));
    let over = client.verify(&ask(4, RICH, &[]), &old).unwrap_err();
    assert!(matches!(over, LightError::PastEpoch { epoch: Epoch(0), known: Epoch(1) }), "{over}");
    assert_eq!(client.learn(&ends[1..]).unwrap(), 2);
    assert!(client.verify(&question, &newest).is_ok());
    // The state of an old epoch counts, under a certificate of the newest.
    let old = chain.proof(4, chain.certify(14, None, &validators[3], &[0, 1, 2, 4]), RICH, &[]);
    assert!(client.verify(&ask(4, RICH, &[]), &old).is_ok());
    assert!(matches!(client.learn(&ends[2..]), Err(LightError::PastEpoch { .. })), "none ends twice");
}

/// Goal: only a quorum of an epoch's own validators ends the epoch.
#[test]
fn an_epoch_ends_by_its_own_validators_alone() {
    let (chain, validators, ends) = changing();
    let refused = |known: usize, end: &Certificate| {
        let mut client = chain.client();
        client.learn(&ends[..known]).unwrap();
        let before = client.clone();
        let error = client.learn(std::slice::from_ref(end)).unwrap_err();
        assert_eq!(client, before, "what is refused changes nothing");
        error
    };
    let next = |epoch: u64| Some(set(epoch + 1, &keys(91, 4)));
    // An epoch that is not reached yet, or is over.
    assert!(matches!(refused(0, &ends[1]), LightError::UnknownEpoch { .. }));
    assert!(matches!(refused(2, &ends[0]), LightError::PastEpoch { .. }));
    // Signed by the validators of the previous epoch, of the next one, by none, by too few.
    for (keys, signers) in [
        (&validators[0], &[0, 1, 2, 3][..]),
        (&validators[2], &[0, 1, 2, 3][..]),
        (&keys(91, 7), &[0, 1, 2, 3, 4, 5, 6][..]),
        (&validators[1], &[0, 1, 2, 3, 4][..]),
        (&validators[1], &[0, 0, 1, 2, 3, 4][..]),
        (&validators[1], &[][..]),
    ] {
        let error = refused(1, &chain.certify(7, next(1), keys, signers));
        assert!(matches!(error, LightError::Certificate(_)), "{error}");
    }
    // A batch before the epoch began.
    let mut early = chain.info(4, next(1));
    early.epoch = Epoch(1);
    let early = crate::chain::sign(early, &validators[1], &[0, 1, 2, 3, 4]);
    assert!(matches!(refused(1, &early), LightError::OutsideEpoch { .. }));
    // Without next validators, or with wrong ones.
    let faulty = |next| match refused(1, &chain.certify(7, next, &validators[1], &[0, 1, 2, 3, 4, 5])) {
        LightError::EpochEnd { number, fault, .. } => {
            assert_eq!(number, BatchNumber::new(7));
            fault
        }
        other => panic!("{other}"),
    };
    assert_eq!(faulty(None), EpochEndFault::NoValidators);
    assert_eq!(faulty(next(2)), EpochEndFault::OtherEpoch { found: Epoch(3) });
    assert!(matches!(faulty(Some(set(2, &[]))), EpochEndFault::Set(_)));
    let twice: Vec<_> = keys(31, 3).into_iter().chain(keys(31, 1)).collect();
    assert!(matches!(faulty(Some(set(2, &twice))), EpochEndFault::Set(_)));
}

/// Goal: an epoch's own set determines the number of signatures for a certificate, in each epoch and from each
/// beginning. Thirds would give other numbers.
#[test]
fn every_epoch_counts_the_failures_of_its_own_set() {
    let own = |epoch: u64, keys: &[SecretKey], any, commission| ValidatorSet {
        failures: Failures { any, commission },
        ..set(epoch, keys)
    };
    let validators = [keys(11, 7), keys(21, 5), keys(31, 4)];
    let sets = [own(1, &validators[0], 1, 4), own(2, &validators[1], 2, 0), own(3, &validators[2], 0, 3)];
    let mut chain = Chain::new(1, 4);
    (1..=3).for_each(|epoch| (0..3).for_each(|_| chain.grow(Epoch(epoch), &[])));
    let mut client = chain.client();
    let mut end = chain.certify(4, Some(sets[0].clone()), &keys(1, 4), &[0, 1, 3]);
    for (index, (set, keys)) in sets.iter().zip(&validators).enumerate() {
        client.learn(std::slice::from_ref(&end)).unwrap();
        assert_eq!(client.validators(), set);
        let proof = chain.waypoint_proof(end.info.number.get(), Some(set.clone()));
        let begun = LightClient::from_waypoint(&client.waypoint(), &proof).unwrap();
        let (inside, last) = (6 + 3 * index as u64, 7 + 3 * index as u64);
        let all: Vec<u16> = (0..set.quorum() as u16).collect();
        let few = &all[1..];
        assert_ne!(set.failures, Failures::thirds(keys.len()));
        for client in [&client, &begun] {
            let verify = |signers: &[u16]| {
                let certificate = chain.certify(inside, None, keys, signers);
                client.verify(&ask(inside, RICH, &[]), &chain.proof(inside, certificate, RICH, &[]))
            };
            assert!(verify(&all).is_ok(), "epoch {}", set.epoch);
            assert!(matches!(verify(few), Err(LightError::Certificate(_))), "epoch {}", set.epoch);
        }
        let Some(next) = sets.get(index + 1) else { return };
        let early = chain.certify(last, Some(next.clone()), keys, few);
        assert!(matches!(client.clone().learn(&[early]), Err(LightError::Certificate(_))));
        end = chain.certify(last, Some(next.clone()), keys, &all);
    }
}

/// Goal: a fork that fewer than a quorum signed proves nothing, even if everything else fits.
#[test]
fn a_fork_of_fewer_than_a_quorum_is_refused() {
    let mut fork = Chain::new(1, 8);
    fork.grow(Epoch(0), &[(slipstream_types::StateKey::Account(RICH), crate::chain::account(0))]);
    let client = fork.client();
    let validators = keys(1, 4);
    for signers in [&[][..], &[2], &[0, 1], &[0, 0, 1], &[1, 1, 1, 1], &[1, 0, 2]] {
        let proof = fork.proof(9, fork.certify(9, None, &validators, signers), RICH, &[]);
        let error = client.verify(&ask(9, RICH, &[]), &proof).unwrap_err();
        assert!(matches!(error, LightError::Certificate(_)), "{signers:?}: {error}");
    }
    let strangers = fork.certify(9, None, &keys(41, 4), &[0, 1, 2, 3]);
    let proof = fork.proof(9, strangers, RICH, &[]);
    assert!(matches!(client.verify(&ask(9, RICH, &[]), &proof), Err(LightError::Certificate(_))));
}
