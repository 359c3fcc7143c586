//! Goal: the state's rows, and the absence of others, are proved; every other claim is refused by name.

use slipstream_light::{
    ANSWER_BYTES_MAX, Account, AccountProof, BatchTag, Encoded, LightError, Question, SLOTS_MAX, SlotProof,
};
use slipstream_types::{
    B256, BatchNumber, Digest, Epoch, StateKey, U256, bounded::BoundedVec, tree::StateRangeError,
};

use crate::chain::{CONTRACT, Chain, NOBODY, RICH, account, ask, keys, slot};

/// Goal: present and absent accounts and slots are verified as the state has them, through JSON and back.
#[test]
fn presence_and_absence_are_proved() {
    let chain = Chain::new(1, 12);
    let client = chain.client();
    let check = |address, slots: &[B256], expected: &[u64], balance: Option<U256>| {
        let proof = chain.good(12, address, slots);
        let text = serde_json::to_string(&proof).unwrap();
        let read = AccountProof::from_json(&text).unwrap();
        assert_eq!(read, proof);
        let verified = client.verify(&ask(12, address, slots), &read).unwrap();
        assert_eq!(verified.slots, expected.iter().copied().map(U256::from).collect::<Vec<_>>());
        assert_eq!(verified.account.map(|account| account.balance), balance);
        assert_eq!((verified.number, verified.certified), (BatchNumber::new(12), BatchNumber::new(12)));
        assert_eq!(verified.hash, chain.headers[12].digest());
        verified
    };
    let rich = check(RICH, &[], &[], Some(U256::from(10).pow(U256::from(20))));
    assert_eq!(rich.account.unwrap().nonce, 3);
    let slots = [slot(1), slot(20), slot(21), B256::repeat_byte(0xff)];
    let contract = check(CONTRACT, &slots, &[2, 20 << 20, 0, 0], Some(U256::ZERO));
    assert!(contract.account.unwrap().code_hash.is_some());
    check(NOBODY, &[slot(1)], &[0], None);
}

/// Goal: a later certificate proves the state of an earlier batch: that batch's state, not the certified batch's.
#[test]
fn an_earlier_state_is_proved_under_a_later_certificate() {
    let mut chain = Chain::new(1, 5);
    chain.grow(Epoch(0), &[(StateKey::Account(NOBODY), account(7))]);
    chain.grow(
        Epoch(0),
        &[(StateKey::Account(NOBODY), account(8)), (StateKey::Slot(CONTRACT, slot(1)), None)],
    );
    chain.grow(Epoch(0), &[]);
    let client = chain.client();
    let certificate = chain.certify(8, None, &keys(1, 4), &[0, 1, 2]);
    for (number, balance) in [(5, None), (6, Some(U256::from(7))), (7, Some(U256::from(8)))] {
        let proof = chain.proof(number, certificate.clone(), NOBODY, &[]);
        let verified = client.verify(&ask(number, NOBODY, &[]), &proof).unwrap();
        assert_eq!(verified.account.map(|account| account.balance), balance);
        assert_eq!(verified.certified, BatchNumber::new(8));
    }
    // A row of one state is not valid in another.
    let mut mixed = chain.proof(7, certificate, NOBODY, &[]);
    mixed.account_proof = chain.good(6, NOBODY, &[]).account_proof;
    assert!(matches!(client.verify(&ask(7, NOBODY, &[]), &mixed), Err(LightError::Account { .. })));
}

/// Goal: a true proof of something else is refused, because it does not answer the question.
#[test]
fn a_proof_answers_its_question_alone() {
    let chain = Chain::new(1, 9);
    let client = chain.client();
    let proof = chain.good(9, CONTRACT, &[slot(1), slot(2)]);
    let refuse = |question: Question<'_>| client.verify(&question, &proof).unwrap_err();
    assert!(matches!(refuse(ask(9, RICH, &[slot(1), slot(2)])), LightError::OtherAddress { .. }));
    for slots in [&[slot(2), slot(1)][..], &[slot(1)], &[], &[slot(1), slot(2), slot(2)]] {
        assert!(matches!(refuse(ask(9, CONTRACT, slots)), LightError::OtherSlots { .. }));
    }
    assert!(matches!(refuse(ask(8, CONTRACT, &[slot(1), slot(2)])), LightError::OtherBatch { .. }));
}

/// Goal: the caller sets the greatest age of the newest state; exactly this age is accepted, and a slow clock does no
/// harm.
#[test]
fn the_newest_state_is_as_new_as_the_caller_asks() {
    let chain = Chain::new(1, 9);
    let client = chain.client();
    // A fresh certificate does not make an old state new.
    let proof = chain.proof(4, chain.certify(9, None, &keys(1, 4), &[0, 1, 2]), RICH, &[]);
    let made_ms = chain.headers[4].timestamp_ms;
    let ask = |now_ms| {
        let at = BatchTag::Latest { now_ms, age_ms_max: 400 };
        client.verify(&Question { address: RICH, slots: &[], at }, &proof)
    };
    assert!(ask(made_ms - 50).is_ok() && ask(made_ms + 400).is_ok());
    let refused = ask(made_ms + 401).unwrap_err();
    assert!(matches!(refused, LightError::TooOld { age_ms: 401, .. }), "{refused}");
}

/// Goal: false values of an account are refused, and the error names the account.
#[test]
fn altered_values_are_refused() {
    let chain = Chain::new(1, 9);
    let client = chain.client();
    let (question, good) = (ask(9, CONTRACT, &[]), chain.good(9, CONTRACT, &[]));
    let shown = good.account.unwrap();
    let claims = [
        Some(Account { balance: U256::from(1), ..shown }),
        Some(Account { nonce: 1, ..shown }),
        Some(Account { code_hash: None, balance: U256::from(1), ..shown }),
        Some(Account { code_hash: Some(Digest([1; 32])), ..shown }),
        None,
    ];
    for account in claims {
        let proof = AccountProof { account, ..good.clone() };
        let refused = client.verify(&question, &proof).unwrap_err();
        let LightError::Account { source, .. } = refused else { panic!("{refused}") };
        assert!(matches!(*source, StateRangeError::WrongRoot { .. }), "{source}");
    }
    let absent = chain.good(9, NOBODY, &[]);
    let zeros = Account { nonce: 0, balance: U256::ZERO, code_hash: None };
    for account in [zeros, Account { balance: U256::from(5), ..zeros }] {
        let proof = AccountProof { account: Some(account), ..absent.clone() };
        assert!(client.verify(&ask(9, NOBODY, &[]), &proof).is_err());
    }
}

/// Goal: a proof cannot hide a slot, make one up, or serve for another slot.
#[test]
fn slots_are_neither_hidden_nor_made_up() {
    let chain = Chain::new(1, 9);
    let client = chain.client();
    let slots = [slot(5), slot(30)];
    let good = chain.good(9, CONTRACT, &slots);
    type Change = dyn Fn(&mut Vec<SlotProof>);
    let bend = |change: &Change| {
        let mut storage = good.storage.to_vec();
        change(&mut storage);
        let storage = BoundedVec::new(storage).unwrap();
        let proof = AccountProof { storage, ..good.clone() };
        client.verify(&ask(9, CONTRACT, &slots), &proof)
    };
    assert!(bend(&|_| {}).is_ok());
    let changes: [&Change; 5] = [
        &|storage| storage[0].value = U256::ZERO,
        &|storage| storage[0].value += U256::from(1),
        &|storage| storage[1].value = U256::from(1),
        &|storage| {
            let (first, second) = (storage[0].proof.clone(), storage[1].proof.clone());
            (storage[0].proof, storage[1].proof) = (second, first);
        },
        &|storage| storage[0].proof = Encoded::default(),
    ];
    for change in changes {
        assert!(matches!(bend(change), Err(LightError::Slot { .. })));
    }
}

/// Goal: headers that are not in the certified ledger at their number are refused, even those of another chain with the
/// same validators.
#[test]
fn headers_of_elsewhere_are_refused() {
    let (chain, other) = (Chain::new(1, 9), Chain::new(2, 9));
    let client = chain.client();
    let question = ask(9, RICH, &[]);
    let good = chain.good(9, RICH, &[]);

    let foreign = other.good(9, RICH, &[]);
    assert!(matches!(client.verify(&question, &foreign), Err(LightError::OtherChain { .. })));
    // With this chain's proof of the genesis in it.
    let spliced = AccountProof { genesis_proof: good.genesis_proof.clone(), ..foreign.clone() };
    assert!(matches!(client.verify(&question, &spliced), Err(LightError::OtherChain { .. })));
    let spliced = AccountProof { header: foreign.header, header_proof: foreign.header_proof, ..good.clone() };
    assert!(matches!(client.verify(&question, &spliced), Err(LightError::Header { .. })));
    // A header with another number than its position.
    let mut moved = good.clone();
    moved.header.0.number = BatchNumber::new(8);
    moved.header_proof = chain.header_proof(8, 9);
    assert!(matches!(client.verify(&ask(8, RICH, &[]), &moved), Err(LightError::Header { .. })));
    // A header that the certificate does not cover.
    let ahead = AccountProof {
        certificate: Encoded(chain.certify(7, None, &keys(1, 4), &[0, 1, 2])),
        genesis_proof: chain.header_proof(0, 7),
        header_proof: chain.header_proof(7, 7),
        ..good
    };
    assert!(matches!(client.verify(&question, &ahead), Err(LightError::Header { .. })));
}

/// Goal: answers that are too long or malformed are refused before they are decoded.
#[test]
fn malformed_answers_are_refused_before_they_are_decoded() {
    let chain = Chain::new(1, 3);
    let good = serde_json::to_value(chain.good(3, RICH, &[slot(1)])).unwrap();
    let read = |value: &serde_json::Value| AccountProof::from_json(&value.to_string());
    assert!(read(&good).is_ok());
    let long = format!("0x{}", "00".repeat(40_000));
    let changes: [(&str, serde_json::Value); 12] = [
        ("certificate", long.clone().into()),
        ("header", long.clone().into()),
        ("headerProof", long.clone().into()),
        ("accountProof", long.into()),
        ("header", good["header"].as_str().unwrap()[2..].into()),
        ("header", format!("{}00", good["header"].as_str().unwrap()).into()),
        ("header", "0x".into()),
        ("header", 5.into()),
        ("account", serde_json::json!({ "nonce": "0x03", "balance": "0x0", "codeHash": null })),
        (
            "account",
            serde_json::json!({ "nonce": "0x10000000000000000", "balance": "0x0", "codeHash": null }),
        ),
        ("account", serde_json::json!({ "nonce": "0x3", "balance": 0, "codeHash": null })),
        ("more", "0x".into()),
    ];
    for (field, value) in changes {
        let mut bent = good.clone();
        bent[field] = value.clone();
        assert!(matches!(read(&bent), Err(LightError::Malformed(_))), "{field}: {value}");
    }
    let many = vec![good["storage"][0].clone(); SLOTS_MAX + 1];
    let mut bent = good;
    bent["storage"] = many.into();
    assert!(matches!(read(&bent), Err(LightError::Malformed(_))));
    let huge = " ".repeat(ANSWER_BYTES_MAX + 1);
    assert!(matches!(AccountProof::from_json(&huge), Err(LightError::TooLong { .. })));
}
