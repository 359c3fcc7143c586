//! Goal: a certificate holds exactly a quorum's signatures on one ledger info in one view, by the epoch's validators, in order, once
//! each. Each case changes a valid certificate and names the error that refuses it.

use slipstream_types::{
    BatchNumber, Certificate, CommitStatement, Digest, Epoch, Failures, LedgerInfo, SecretKey, Signature,
    ValidatorSet, bounded::BoundedVec, certificate::CertificateError, codec, limits::VALIDATORS_MAX,
    validators::ValidatorSetError,
};

use crate::common::{digest, keys, validators};

const VIEW: u64 = 5;

/// The parts that a case may change: the signers, the statement that they sign, the certificate's content, and the set that
/// verifies it.
struct Case {
    keys: Vec<SecretKey>,
    set: ValidatorSet,
    info: LedgerInfo,
    view: u64,
    signatures: Vec<(u16, Signature)>,
}

impl Case {
    /// Seven validators of epoch 3; `signers` signed, in this order.
    fn new(signers: &[u16]) -> Case {
        let keys = keys(7);
        let info = LedgerInfo {
            epoch: Epoch(3),
            number: BatchNumber::new(40),
            accumulator_root: digest(1),
            state_root: digest(2),
            timestamp_ms: 1_700_000_000_000,
            next_validators: None,
        };
        let set = validators(&keys);
        let mut case = Case { keys, set, info, view: VIEW, signatures: Vec::new() };
        signers.iter().for_each(|&index| case.sign(index, VIEW));
        case
    }

    /// A valid certificate, which a quorum signed.
    fn good() -> Case {
        Case::new(&[0, 1, 2, 4, 6])
    }

    fn statement(&self, view: u64) -> CommitStatement {
        CommitStatement::new(view, self.info.digest())
    }

    /// Adds a signature of this validator in this view.
    fn sign(&mut self, index: u16, view: u64) {
        let signature = self.statement(view).sign(&self.keys[usize::from(index)]);
        self.signatures.push((index, signature));
    }

    /// Replaces the signature at this place of the list.
    fn forge(&mut self, place: usize, signature: Signature) {
        self.signatures[place].1 = signature;
    }

    fn verify(&self) -> Result<(), CertificateError> {
        let signatures = BoundedVec::new(self.signatures.clone()).unwrap();
        let certificate = Certificate { info: self.info.clone(), view: self.view, signatures };
        let bytes = codec::encode("certificate", &certificate).unwrap();
        assert_eq!(codec::decode::<Certificate>("certificate", &bytes, bytes.len()).unwrap(), certificate);
        certificate.verify(&self.set)
    }
}

/// Returns the name of the error.
fn name(error: &CertificateError) -> &'static str {
    match error {
        CertificateError::WrongEpoch { .. } => "epoch",
        CertificateError::BadSet { .. } => "set",
        CertificateError::NoQuorum { .. } => "quorum",
        CertificateError::BadIndex { .. } => "index",
        CertificateError::BadSignature { .. } => "signature",
    }
}

type Change = fn(&mut Case);

/// Case name, signers, the change after signing, and the name of the refusal.
const REFUSED: &[(&str, &[u16], Change, &str)] = &[
    // Too few.
    ("nobody signed", &[], |_| {}, "quorum"),
    ("one signed", &[3], |_| {}, "quorum"),
    ("one less than a quorum signed", &[0, 1, 2, 3], |_| {}, "quorum"),
    ("a larger quorum is asked for", &[0, 1, 2, 4, 6], |case| case.set.failures = failures(1, 2), "quorum"),
    ("all have to sign", &[0, 1, 2, 3, 4, 5], |case| case.set.failures = failures(0, 6), "quorum"),
    ("a quorum of the smaller set before", &[0, 1, 2], |_| {}, "quorum"),
    // Repeated, out of order, unknown.
    ("the first is repeated", &[0, 0, 1, 2, 3], |_| {}, "index"),
    ("the last is repeated", &[0, 1, 2, 3, 3], |_| {}, "index"),
    ("one signed for all", &[0, 0, 0, 0, 0], |_| {}, "index"),
    ("one is repeated beside a quorum", &[0, 1, 2, 3, 4, 4], |_| {}, "index"),
    ("the first two are swapped", &[1, 0, 2, 3, 4], |_| {}, "index"),
    ("descending", &[4, 3, 2, 1, 0], |_| {}, "index"),
    ("the last comes first", &[6, 0, 1, 2, 3], |_| {}, "index"),
    ("the index after the last", &[0, 1, 2, 3, 4], |case| case.signatures[4].0 = 7, "index"),
    ("the largest index", &[0, 1, 2, 3, 4], |case| case.signatures[4].0 = u16::MAX, "index"),
    (
        "the largest index twice",
        &[0, 1, 2, 3, 4, 5],
        |case| {
            (case.signatures[4].0, case.signatures[5].0) = (u16::MAX, u16::MAX);
        },
        "index",
    ),
    (
        "as many as a certificate may have, all of one",
        &[],
        |case| {
            (0..VALIDATORS_MAX).for_each(|_| case.sign(0, VIEW));
        },
        "index",
    ),
    // Removed validators, and those of other sets.
    ("the last was removed", &[0, 1, 2, 3, 6], |case| keep(case, 6), "index"),
    (
        "the first was removed, all moved up",
        &[0, 1, 2, 3, 4],
        |case| {
            let rest = case.set.validators[1..].to_vec();
            case.set = ValidatorSet::new(Epoch(3), BoundedVec::new(rest).unwrap());
        },
        "signature",
    ),
    ("one was replaced", &[0, 1, 2, 4, 6], |case| replace(case, 4), "signature"),
    (
        "all were replaced",
        &[0, 1, 2, 4, 6],
        |case| (0..7).for_each(|index| replace(case, index)),
        "signature",
    ),
    (
        "the set has another order",
        &[0, 1, 2, 4, 6],
        |case| {
            let mut turned = case.set.validators.to_vec();
            turned.rotate_left(1);
            case.set.validators = BoundedVec::new(turned).unwrap();
        },
        "signature",
    ),
    (
        "a stranger signed for a validator",
        &[0, 1, 2, 4, 6],
        |case| {
            case.forge(4, case.statement(VIEW).sign(&stranger()));
        },
        "signature",
    ),
    (
        "strangers signed",
        &[0, 1, 2, 4, 6],
        |case| {
            (0..5).for_each(|place| case.forge(place, case.statement(VIEW).sign(&stranger())));
        },
        "signature",
    ),
    ("a validator signed for another", &[0, 1, 2, 4, 6], |case| case.signatures[4].0 = 5, "signature"),
    (
        "two signatures are swapped",
        &[0, 1, 2, 4, 6],
        |case| {
            (case.signatures[0].1, case.signatures[1].1) = (case.signatures[1].1, case.signatures[0].1);
        },
        "signature",
    ),
    (
        "one signature under every index",
        &[0, 1, 2, 4, 6],
        |case| {
            (1..5).for_each(|place| case.forge(place, case.signatures[0].1));
        },
        "signature",
    ),
    (
        "a bad one beside a quorum",
        &[0, 1, 2, 4, 6],
        |case| {
            case.signatures.insert(3, (3, Signature([0; 64])));
        },
        "signature",
    ),
    // Other epochs.
    ("the epoch before", &[0, 1, 2, 4, 6], |case| case.set.epoch = Epoch(4), "epoch"),
    ("a future epoch", &[0, 1, 2, 4, 6], |case| case.set.epoch = Epoch(2), "epoch"),
    ("the last epoch that there can be", &[0, 1, 2, 4, 6], |case| case.info.epoch = Epoch(u64::MAX), "epoch"),
    (
        "signed for the epoch before, passed off as this one",
        &[],
        |case| {
            signed_as(case, |info| info.epoch = Epoch(2));
        },
        "signature",
    ),
    (
        "signed for the next epoch, passed off as this one",
        &[],
        |case| {
            signed_as(case, |info| info.epoch = Epoch(4));
        },
        "signature",
    ),
    // Views.
    ("signed in an older view", &[], |case| in_views(case, [4; 5]), "signature"),
    ("signed in a newer view", &[], |case| in_views(case, [6; 5]), "signature"),
    ("signed without a view, by a fixed proposer's set", &[], |case| in_views(case, [0; 5]), "signature"),
    ("one of an older view", &[], |case| in_views(case, [5, 5, 5, 5, 4]), "signature"),
    ("one of a newer view", &[], |case| in_views(case, [6, 5, 5, 5, 5]), "signature"),
    ("every one of its own view", &[], |case| in_views(case, [3, 4, 5, 6, 7]), "signature"),
    ("the view was altered", &[0, 1, 2, 4, 6], |case| case.view = 4, "signature"),
    ("the view was left out", &[0, 1, 2, 4, 6], |case| case.view = 0, "signature"),
    ("the largest view", &[0, 1, 2, 4, 6], |case| case.view = u64::MAX, "signature"),
    (
        "the view's bytes the other way round",
        &[0, 1, 2, 4, 6],
        |case| case.view = VIEW.swap_bytes(),
        "signature",
    ),
    // Another statement than the signed one.
    ("another batch", &[0, 1, 2, 4, 6], |case| case.info.number = BatchNumber::new(41), "signature"),
    ("another ledger", &[0, 1, 2, 4, 6], |case| case.info.accumulator_root = digest(9), "signature"),
    ("another state", &[0, 1, 2, 4, 6], |case| case.info.state_root = digest(9), "signature"),
    ("another time", &[0, 1, 2, 4, 6], |case| case.info.timestamp_ms += 1, "signature"),
    (
        "validators that nobody signed",
        &[0, 1, 2, 4, 6],
        |case| {
            case.info.next_validators = Some(ValidatorSet { epoch: Epoch(4), ..case.set.clone() });
        },
        "signature",
    ),
    (
        "the next validators were left out",
        &[],
        |case| {
            let next = ValidatorSet { epoch: Epoch(4), ..case.set.clone() };
            signed_as(case, |info| info.next_validators = Some(next.clone()));
        },
        "signature",
    ),
    (
        "the next validators may fail more often",
        &[],
        |case| {
            let next = ValidatorSet { epoch: Epoch(4), ..case.set.clone() };
            signed_as(case, |info| info.next_validators = Some(next.clone()));
            case.info.next_validators = Some(ValidatorSet { failures: failures(3, 0), ..next });
        },
        "signature",
    ),
    // Another form than this statement's.
    (
        "the info's digest was signed, as before there were views",
        &[0, 1, 2, 4, 6],
        |case| {
            let bare = |case: &Case, key: usize| case.keys[key].sign(case.info.digest().as_bytes());
            [0, 1, 2, 4, 6].iter().enumerate().for_each(|(place, key)| case.forge(place, bare(case, *key)));
        },
        "signature",
    ),
    (
        "a vote under another tag",
        &[0, 1, 2, 4, 6],
        |case| {
            let content = [&VIEW.to_le_bytes()[..], case.info.digest().as_bytes()].concat();
            let prepare = Digest::tagged("slipstream/prepare/1", &content);
            case.forge(0, case.keys[0].sign(prepare.as_bytes()));
        },
        "signature",
    ),
    ("zeros for a signature", &[0, 1, 2, 4, 6], |case| case.forge(2, Signature([0; 64])), "signature"),
    ("ones for a signature", &[0, 1, 2, 4, 6], |case| case.forge(2, Signature([0xff; 64])), "signature"),
    ("one bit of a signature", &[0, 1, 2, 4, 6], |case| case.signatures[4].1.0[63] ^= 1, "signature"),
    // Sets without guarantees.
    ("a set that may fail wholly", &[], |case| case.set.failures = failures(7, 0), "set"),
    ("a set of which half may fail", &[0, 1, 2], |case| case.set.failures = failures(4, 0), "set"),
    ("a set too small for its liars", &[0, 1, 2, 3, 4], |case| case.set.failures = failures(2, 3), "set"),
    (
        "numbers that pass what an index can be",
        &[0],
        |case| {
            case.set.failures = failures(u16::MAX, u16::MAX);
        },
        "set",
    ),
    ("a set of nobody", &[], |case| keep(case, 0), "set"),
];

fn failures(any: u16, commission: u16) -> Failures {
    Failures { any, commission }
}

fn stranger() -> SecretKey {
    SecretKey::from_seed([200; 32])
}

fn keep(case: &mut Case, count: usize) {
    let rest = case.set.validators[..count].to_vec();
    case.set.validators = BoundedVec::new(rest).unwrap();
    case.set.failures = if count == 0 { failures(0, 0) } else { Failures::thirds(count) };
}

fn replace(case: &mut Case, index: usize) {
    let mut validators = case.set.validators.to_vec();
    validators[index].public_key = SecretKey::from_seed([100 + index as u8; 32]).public();
    case.set.validators = BoundedVec::new(validators).unwrap();
}

/// A quorum signs an altered info; the certificate shows it unaltered.
fn signed_as(case: &mut Case, alter: impl Fn(&mut LedgerInfo)) {
    let shown = case.info.clone();
    alter(&mut case.info);
    [0, 1, 2, 4, 6].into_iter().for_each(|index| case.sign(index, VIEW));
    case.info = shown;
}

/// The validators of a quorum sign, each in its view.
fn in_views(case: &mut Case, views: [u64; 5]) {
    [0, 1, 2, 4, 6].into_iter().zip(views).for_each(|(index, view)| case.sign(index, view));
}

#[test]
fn what_is_no_certificate_is_refused_by_name() {
    assert!(REFUSED.len() >= 40, "{} cases", REFUSED.len());
    for (what, signers, change, refusal) in REFUSED {
        let mut case = Case::new(signers);
        change(&mut case);
        let error = case.verify().expect_err(what);
        assert_eq!(name(&error), *refusal, "{what}: {error}");
        assert!(error.to_string().contains("batch 4"), "the batch is named: {error}");
    }
}

#[test]
fn every_quorum_of_one_view_is_a_certificate() {
    assert_eq!(Case::good().verify(), Ok(()));
    assert_eq!(Case::new(&[0, 1, 2, 3, 4, 5, 6]).verify(), Ok(()));
    for signers in 0_u8..1 << 7 {
        let members: Vec<u16> = (0..7).filter(|index| signers & 1 << index != 0).collect();
        assert_eq!(Case::new(&members).verify().is_ok(), members.len() >= 5, "{members:?}");
    }
    for view in [0, 1, u64::MAX] {
        let mut case = Case::new(&[]);
        case.view = view;
        in_views(&mut case, [view; 5]);
        assert_eq!(case.verify(), Ok(()), "view {view}");
    }
}

#[test]
fn two_quorums_share_an_honest_validator_and_matching_votes_one() {
    for n in 1..=13_usize {
        for (any, commission) in (0..n as u16).flat_map(|any| (0..n as u16).map(move |r| (any, r))) {
            let mut set = validators(&keys(n as u8));
            set.failures = failures(any, commission);
            let (u, r) = (usize::from(any), usize::from(commission));
            if n < 2 * u + r + 1 {
                assert_eq!(
                    set.check(),
                    Err(ValidatorSetError::TooFew { validators: n, failures: set.failures })
                );
                continue;
            }
            assert_eq!(set.check(), Ok(()));
            assert!(2 * set.quorum() > n + r, "two quorums share more than {r} of {n}");
            assert!(set.quorum() <= n - u, "the others are enough when {u} of {n} fail");
            assert!(set.matching() > r && set.matching() <= set.quorum());
        }
    }
}

#[test]
fn a_set_names_every_key_once() {
    let mut members = validators(&keys(4)).validators.to_vec();
    members[3] = members[1].clone();
    let key = members[1].public_key;
    let set = ValidatorSet::new(Epoch(1), BoundedVec::new(members).unwrap());
    assert_eq!(set.check(), Err(ValidatorSetError::Repeated { key }));
    assert_eq!(ValidatorSet::new(Epoch(1), BoundedVec::default()).check(), Err(ValidatorSetError::Empty));
}
