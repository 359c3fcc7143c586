use alloy_primitives::{Bytes, TxKind};
use slipstream_testkit::{Wallet, header, info, keys, next_header, set, sign};
use slipstream_types::{BatchHeader, Path, certificate::CertificateError, hints::has_values};

use super::*;

fn batch(header: BatchHeader) -> RangeBatch {
    RangeBatch { header, body: None, receipts: None, delta: None, hints: None }
}

fn account(balance: u64) -> StateValue {
    StateValue::Account(AccountValue { nonce: 1, balance: U256::from(balance), ..AccountValue::default() })
}

/// Goal: an honest decoder accepts the blobs, and they are longer than their content.
#[test]
fn literal_blobs_hold_the_truth() {
    for length in [0, 1, 14, 15, 16, 269, 270, 271, 100_000] {
        let content = vec![7; length];
        let blob = literal(BlobKind::Body, &content).unwrap();
        assert_eq!(blob.content(BlobKind::Body).unwrap(), content, "{length}");
        assert!(blob.len() > length);
    }
}

/// Goal: a crowded genesis decodes, and belongs to another chain.
#[test]
fn a_crowded_genesis_is_another_one() {
    let genesis = slipstream_testkit::genesis(&keys(0..1), 0);
    let blob = Blob::compress(BlobKind::Genesis, &genesis.content().unwrap()).unwrap();
    let crowded = crowded(&blob).unwrap().content(BlobKind::Genesis).unwrap();
    let crowded = Genesis::decode(&crowded).unwrap();
    assert_eq!(crowded.accounts.len(), genesis.accounts.len() + CROWD as usize);
    assert_eq!(crowded.validators, genesis.validators);
}

/// Goal: grafted batches link to each other, and the first keeps the true parent.
#[test]
fn grafted_batches_follow_each_other() {
    let first = header(5, Digest([3; 32]));
    let second = next_header(&first, Digest::ZERO);
    let third = next_header(&second, Digest::ZERO);
    let mut batches = [first.clone(), second, third].map(batch);
    graft(&mut batches);
    assert_eq!(batches[0].header.parent, first.parent);
    assert_ne!(batches[0].header.digest(), first.digest());
    for pair in batches.windows(2) {
        assert_eq!(pair[1].header.parent, pair[0].header.digest());
    }
}

/// Goal: only the signatures show that a stranger signed.
#[test]
fn strangers_sit_in_the_seats_of_validators() {
    let validators = keys(0..4);
    let set = set(0, &validators, Address::ZERO);
    let certificate = sign(info(0, 5), &validators[..3]);
    certificate.verify(&set).unwrap();
    let strange = signed_by(&keys(9..10)[0], &certificate).unwrap();
    let refused = strange.verify(&set).unwrap_err();
    assert!(matches!(refused, CertificateError::BadSignature { index: 0, .. }), "{refused}");
    assert_eq!(strange.info.number, certificate.info.number);
    assert_ne!(strange.info.state_root, certificate.info.state_root);
}

/// Goal: the delta with more money is well formed, and differs from the certified one.
#[test]
fn money_is_given_in_a_delta_of_good_form() {
    let entries = [1, 2].map(|at| DeltaEntry {
        key: StateKey::Account(Address::repeat_byte(at)),
        value: Some(account(u64::from(at))),
    });
    let delta = Delta::new(entries.to_vec(), vec![vec![1, 2, 3]]).unwrap();
    let sealed = Blob::seal(BlobKind::Delta, &delta).unwrap();
    let mut rich = RangeBatch { delta: Some(sealed), ..batch(header(5, Digest::ZERO)) };
    assert!(give_money(&mut rich).unwrap());
    let told = Delta::open(rich.delta.as_ref().unwrap()).unwrap();
    assert_eq!(told.codes(), delta.codes());
    for (told, truth) in told.entries().iter().zip(delta.entries()) {
        let (Some(StateValue::Account(told)), Some(StateValue::Account(truth))) = (told.value, truth.value)
        else {
            panic!("{told:?}")
        };
        assert_eq!(told.balance, truth.balance + U256::from(1));
    }
    assert!(!give_money(&mut batch(header(5, Digest::ZERO))).unwrap());
}

/// Goal: exactly one row is hidden or changed, and an empty chunk gives no lie.
#[test]
fn one_row_is_hidden_or_changed() {
    let rows: Vec<_> =
        (1..=3).map(|at| (StateKey::Account(Address::repeat_byte(at)), account(u64::from(at)))).collect();
    let chunk = |rows: &[(StateKey, StateValue)]| {
        let rows = BoundedVec::new(rows.to_vec()).unwrap();
        let chunk = StateChunk { first: Path::MIN, last: Path::MAX, rows, proof: Default::default() };
        Blob::seal(BlobKind::StateChunk, &chunk).unwrap().into_bytes()
    };
    let told = |lie| {
        let told = row(&chunk(&rows), lie, |count| count - 2).unwrap().unwrap();
        let told: StateChunk = Blob::from_bytes(told).unwrap().open(BlobKind::StateChunk).unwrap();
        told.rows.into_inner()
    };
    assert_eq!(told(RowLie::Hidden), [rows[0], rows[2]]);
    let changed = (rows[1].0, account(3));
    assert_eq!(told(RowLie::Changed), [rows[0], changed, rows[2]]);
    assert_eq!(row(&chunk(&[]), RowLie::Hidden, |_| 0).unwrap(), None);
}

/// Goal: a padded range delta keeps all changes, and adds unchanged rows between its ends, in order. Without such rows
/// there is no lie.
#[test]
fn a_padded_range_delta_tells_unchanged_rows_too() {
    let mut keys: Vec<StateKey> = (1..=5).map(|at| StateKey::Account(Address::repeat_byte(at))).collect();
    keys.sort_by_key(StateKey::path);
    let entry = |at: usize| DeltaEntry { key: keys[at], value: Some(account(at as u64)) };
    let chunk = RangeDeltaChunk {
        first: Path::MIN,
        last: keys[3].path(),
        entries: BoundedVec::new(vec![entry(1), entry(3)]).unwrap(),
        proof: Default::default(),
    };
    let truth = Blob::seal(BlobKind::RangeDelta, &chunk).unwrap().into_bytes();
    let rows =
        |places: &[usize]| places.iter().map(|at| (keys[*at], account(*at as u64))).collect::<Vec<_>>();
    let told = pad(&truth, rows(&[4, 3, 2, 0])).unwrap().unwrap();
    let told: RangeDeltaChunk = Blob::from_bytes(told).unwrap().open(BlobKind::RangeDelta).unwrap();
    assert_eq!(told.entries.to_vec(), [0, 1, 2, 3].map(entry));
    assert_eq!((told.first, told.last, told.proof), (chunk.first, chunk.last, chunk.proof));
    assert_eq!(pad(&truth, rows(&[1, 3, 4])).unwrap(), None);
}

/// Goal: a certificate with too few signatures has no foreign ones, and is refused for their number alone.
#[test]
fn too_few_signatures_are_no_quorum() {
    let validators = keys(0..4);
    for (set_of, signers) in [(4, 3), (1, 1)] {
        let set = set(0, &validators[..set_of], Address::ZERO);
        let certificate = sign(info(0, 5), &validators[..signers]);
        certificate.verify(&set).unwrap();
        let weak = under_signed(&certificate).unwrap();
        assert_eq!((&weak.info, weak.signatures.len()), (&certificate.info, usize::from(signers > 1)));
        weak.verify(&set).unwrap_err();
    }
}

/// Goal: none of the requested codes is sent, whether one or several were requested.
#[test]
fn other_code_is_sent() {
    let code = |byte| Code::new(vec![byte]).unwrap();
    for codes in [vec![code(1)], vec![code(1), code(2), code(3)]] {
        let mut answer = Codes { codes: BoundedVec::new(codes.clone()).unwrap() };
        other_code(&mut answer).unwrap();
        assert_eq!(answer.codes.len(), codes.len());
        assert!(answer.codes.iter().zip(&codes).all(|(told, asked)| told != asked));
    }
}

/// Goal: false hints decode to the true keys, with a row for each.
#[test]
fn false_hints_have_the_true_keys() {
    let mut wallet = Wallet::new(1, 1, 21_000);
    let raw = wallet.sign(TxKind::Call(Address::repeat_byte(5)), 1, Bytes::new());
    let transactions = [Transaction::decode_any(&raw).unwrap()];
    let header = header(5, Digest::ZERO);
    let context = hint_context(header.proposer, &transactions);
    let read = AccountHints {
        address: Address::repeat_byte(8),
        code: true,
        slots: vec![U256::from(4).into(), U256::from(300).into()],
    };
    let content = hints::encode(&Hints { accounts: vec![read] }, &[], None, &context);
    assert!(!has_values(&content));
    let decoded = |content: &[u8]| hints::decode(content, &context, hints::keys_max(0)).unwrap();
    let truth = decoded(&content);
    let body = Body::new(vec![raw]).unwrap();
    let whole = RangeBatch {
        body: Some(Blob::seal(BlobKind::Body, &body).unwrap()),
        hints: Some(Blob::compress(BlobKind::Hints, &content).unwrap()),
        ..batch(header)
    };
    let lie = false_hints(&whole).unwrap().unwrap().content(BlobKind::Hints).unwrap();
    let told = decoded(&lie);
    assert_eq!(told.hints, truth.hints);
    assert!(has_values(&lie) && told.values.len() == truth.hints.keys().count());
    assert!(told.values.iter().all(|(_, row)| row.is_some()), "{:?}", told.values);
    assert_eq!(false_hints(&RangeBatch { hints: None, ..whole }).unwrap(), None);
}
