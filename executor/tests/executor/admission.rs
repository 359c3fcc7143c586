//! Tests of the transactions that the chain admits.

use crate::support::*;
use alloy_consensus::{SignableTransaction, Transaction as _, TxEip1559, TxEip7702, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, Signature, TxKind, U256, uint};
use slipstream_executor::{
    Admission, Envelope, Rejection, Senders, Transaction, TransactionError, check_static, decode_body,
};
use slipstream_types::{
    Body, ChainConfig,
    chain::Fork,
    limits::{TRANSACTION_BYTES_MAX, TRANSACTION_GAS_MAX},
};

/// The order of secp256k1.
const N: U256 = uint!(0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141_U256);

#[test]
fn admits_every_supported_type_and_recovers_the_sender() {
    let to = account(2);
    let raws = [
        (sign(1, legacy(7, to)), 0),
        (sign(1, with_access_list(7, to, Default::default())), 1),
        (sign(1, dynamic(7, to)), 2),
        (sign(1, delegation(7, to, 3, COUNTER)), 4),
    ];
    for (raw, tx_type) in raws {
        let transaction = Transaction::decode(&raw, STRICT).unwrap();
        assert_eq!(transaction.tx_type(), tx_type);
        assert_eq!(transaction.sender, account(1));
        assert_eq!((transaction.nonce(), transaction.gas_limit()), (7, 200_000));
        assert_eq!((transaction.to(), transaction.max_fee_wei()), (Some(to), FEE));
        assert_eq!(transaction.hash, alloy_primitives::keccak256(&raw));
        assert_eq!(transaction.cost_max(), U256::from(200_000 * FEE));
    }
}

#[test]
fn tips_follow_the_base_fee() {
    let (old, new) = (decode(sign(1, legacy(0, account(2)))), decode(sign(1, dynamic(0, account(2)))));
    assert_eq!((old.tip_wei(10), new.tip_wei(10)), (Some(FEE - 10), Some(TIP)));
    let base_fee = FEE as u64 - 1;
    assert_eq!((old.tip_wei(base_fee), new.tip_wei(base_fee)), (Some(1), Some(1)));
    assert_eq!((old.tip_wei(base_fee + 2), new.tip_wei(base_fee + 2)), (None, None));
}

#[test]
fn refuses_blob_transactions_in_both_forms() {
    let raw = sign(1, blob(0));
    assert_eq!(Transaction::decode(&raw, STRICT), Err(TransactionError::BlobTransaction));
    // The pooled form wraps transaction and blobs in one more list. It gets the same error, not "malformed".
    assert_eq!(Transaction::decode(&[3, 0xc0], STRICT), Err(TransactionError::BlobTransaction));
    assert_eq!(Transaction::decode_any(&raw).unwrap().tx_type(), 3);
}

#[test]
fn refuses_other_chains_and_none() {
    let raw = sign(1, TxEip1559 { chain_id: 1, ..dynamic(0, account(2)) });
    let wrong = TransactionError::WrongChainId { expected: CHAIN_ID, found: 1 };
    assert_eq!(Transaction::decode(&raw, STRICT), Err(wrong));
    let raw = sign(1, TxLegacy { chain_id: None, ..legacy(0, account(2)) });
    assert_eq!(Transaction::decode(&raw, STRICT), Err(TransactionError::NoChainId { expected: CHAIN_ID }));
}

/// The admission rule of a chain whose genesis allows transactions without a chain id.
fn lax() -> Admission {
    let chain = ChainConfig { chain_id: CHAIN_ID, unprotected_transactions: true, ..ChainConfig::default() };
    Admission::from(&chain)
}

/// Goal: where the genesis allows it, a legacy transaction without a chain id is decoded like any other, in every way;
/// nothing else changes.
#[test]
fn a_chain_may_admit_unprotected_transactions() {
    let raw = sign(1, TxLegacy { chain_id: None, ..legacy(7, account(2)) });
    let transaction = Transaction::decode(&raw, lax()).unwrap();
    assert_eq!((transaction.sender, transaction.tx_type(), transaction.nonce()), (account(1), 0, 7));
    assert_eq!(
        (transaction.envelope.chain_id(), transaction.hash),
        (None, alloy_primitives::keccak256(&raw))
    );
    assert_eq!(transaction, Transaction::decode_any(&raw).unwrap());
    let unrecovered = Transaction::decode_known(&raw, lax(), Address::ZERO).unwrap();
    assert_eq!(unrecovered.recovered().unwrap(), transaction);

    // A known sender saves the recovery, but does not bypass the rule.
    let senders = Senders::default();
    assert_eq!(senders.decode(&raw, lax()).unwrap(), transaction);
    assert_eq!(senders.decode(&raw, lax()).unwrap(), transaction);
    let no_chain_id = TransactionError::NoChainId { expected: CHAIN_ID };
    assert_eq!(senders.decode(&raw, STRICT), Err(no_chain_id.clone()));
    assert_eq!(Transaction::decode_known(&raw, STRICT, account(1)), Err(no_chain_id.clone()));
    let body = Body::new(vec![sign(2, dynamic(0, account(2))), raw]).unwrap();
    assert_eq!(decode_body(&body, lax()).unwrap()[1], transaction);
    let error = decode_body(&body, STRICT).unwrap_err();
    assert_eq!((error.index, error.source), (1, no_chain_id));

    for same in [sign(1, legacy(7, account(2))), sign(1, dynamic(7, account(2)))] {
        assert_eq!(Transaction::decode(&same, lax()), Transaction::decode(&same, STRICT));
    }
    for raw in [
        sign(1, TxLegacy { chain_id: Some(1), ..legacy(7, account(2)) }),
        sign(1, TxEip1559 { chain_id: 1, ..dynamic(7, account(2)) }),
    ] {
        let wrong = TransactionError::WrongChainId { expected: CHAIN_ID, found: 1 };
        assert_eq!(Transaction::decode(&raw, lax()), Err(wrong));
    }
    assert_eq!(Transaction::decode(&sign(1, blob(0)), lax()), Err(TransactionError::BlobTransaction));
}

/// Goal: an unprotected transaction has one encoding, too: mainnet's oldest blocks hold some with a high s, which no
/// chain here admits.
#[test]
fn unprotected_transactions_have_one_encoding() {
    let tx = TxLegacy { chain_id: None, ..legacy(0, account(2)) };
    let low = sign_hash(1, tx.signature_hash());
    let raw = Envelope::from(tx.clone().into_signed(low)).encoded_2718();
    let high = Signature::new(low.r(), N - low.s(), !low.v());
    let twin = Envelope::from(tx.into_signed(high)).encoded_2718();
    assert_eq!(Transaction::decode_any(&twin).unwrap().sender, account(1));
    assert_eq!(Transaction::decode(&twin, lax()), Err(TransactionError::InvalidSignature));
    let unrecovered = Transaction::decode_known(&twin, lax(), Address::ZERO).unwrap();
    assert_eq!(unrecovered.recovered(), Err(TransactionError::InvalidSignature));

    // v is one byte, before r and s, each of 32 bytes after its length.
    let at = raw.len() - 67;
    assert_eq!(raw[at], 27 + u8::from(low.v()));
    for other in [0x80, 1, 26, 29, 34] {
        let mut raw = raw.clone();
        raw[at] = other;
        let refused = Transaction::decode(&raw, lax());
        assert!(matches!(refused, Err(TransactionError::Malformed(_))), "v {other}: {refused:?}");
    }
}

#[test]
fn refuses_too_long_and_malformed_envelopes() {
    let input = vec![0; TRANSACTION_BYTES_MAX].into();
    let raw = sign(1, TxEip1559 { input, ..dynamic(0, account(2)) });
    let too_long = TransactionError::TooLong { len: raw.len(), max: TRANSACTION_BYTES_MAX };
    assert_eq!(Transaction::decode(&raw, STRICT), Err(too_long));

    let good = sign(1, dynamic(0, account(2)));
    let mut trailing = good.clone();
    trailing.push(0);
    let truncated = &good[..good.len() - 1];
    for raw in [&[][..], &[5, 0xc0], &[0, 0xc0], &[0x7f], &trailing, truncated] {
        let refused = Transaction::decode(raw, STRICT);
        assert!(matches!(refused, Err(TransactionError::Malformed(_))), "{refused:?}");
    }
}

/// Goal: high-s signatures are refused. Each is the n - s twin of a signature with the same sender, so admitting both
/// would give one transaction two hashes.
#[test]
fn refuses_high_s_signatures() {
    let tx = dynamic(0, account(2));
    let low = sign_hash(1, tx.signature_hash());
    let high = Signature::new(low.r(), N - low.s(), !low.v());
    let raw = Envelope::from(tx.into_signed(high)).encoded_2718();
    assert_eq!(Transaction::decode(&raw, STRICT), Err(TransactionError::InvalidSignature));
}

#[test]
fn bodies_are_decoded_in_order_and_the_first_bad_envelope_is_named() {
    let raw = |nonce| sign(1 + (nonce % 5) as u8, dynamic(nonce, Address::ZERO));
    let raws: Vec<_> = (0..100).map(raw).collect();
    let decoded = decode_body(&Body::new(raws.clone()).unwrap(), STRICT).unwrap();
    assert!(decoded.iter().map(|transaction| transaction.nonce()).eq(0..100));
    assert!(decoded.iter().zip(&raws).all(|(transaction, raw)| transaction.raw == *raw));

    let mut bad = raws;
    bad[41] = sign(1, blob(0));
    bad[97] = vec![1];
    let error = decode_body(&Body::new(bad).unwrap(), STRICT).unwrap_err();
    assert_eq!((error.index, error.source), (41, TransactionError::BlobTransaction));
}

/// Goal: each sender is recovered once. A cached sender saves only the recovery.
#[test]
fn a_known_sender_is_not_recovered_again() {
    let senders = Senders::default();
    let raw = sign(1, dynamic(0, account(2)));
    let first = senders.decode(&raw, STRICT).unwrap();
    assert_eq!(first, Transaction::decode(&raw, STRICT).unwrap());
    assert_eq!(senders.get(&first.hash), Some(first.sender));
    // This address signed nothing, so an answer with it comes from the cache.
    senders.keep(&Transaction { sender: account(9), ..first });
    assert_eq!(senders.decode(&raw, STRICT).unwrap().sender, account(9));
    let elsewhere = senders.decode(&raw, Admission::protected(CHAIN_ID + 1));
    assert!(matches!(elsewhere, Err(TransactionError::WrongChainId { .. })), "{elsewhere:?}");
    let mut forged = sign(1, dynamic(1, account(2)));
    *forged.last_mut().unwrap() ^= 1;
    let forged = senders.decode(&forged, STRICT);
    assert!(forged.is_err() || forged.unwrap().sender != account(1));
    assert_eq!(senders.decode(&sign(2, dynamic(0, account(2))), STRICT).unwrap().sender, account(2));
}

// Goal: transactions that no state can make valid are named; others pass.
#[test]
fn names_what_can_never_execute() {
    let to = account(2);
    let base = || TxEip1559 { gas_limit: 21_000, ..dynamic(0, to) };
    let create = |len: usize, gas_limit| TxEip1559 {
        to: TxKind::Create,
        input: vec![0; len].into(),
        gas_limit,
        ..base()
    };
    let chain = |fork| ChainConfig { fork, ..ChainConfig::default() };
    let check = |raw, fork| check_static(&decode(raw), &chain(fork).first_rules());
    let prague = |tx: TxEip1559| check(sign(1, tx), Fork::Prague);
    let intrinsic = |tx| match prague(tx) {
        Err(Rejection::IntrinsicGas { needed, .. }) => needed,
        other => panic!("{other:?}"),
    };

    assert_eq!(prague(base()), Ok(()));
    assert_eq!(intrinsic(TxEip1559 { gas_limit: 20_999, ..base() }), 21_000);
    let data = |gas_limit| TxEip1559 { input: vec![1; 100].into(), gas_limit, ..base() };
    // 16 gas a byte initially, at least 40 a byte in all (EIP-7623).
    assert_eq!(intrinsic(data(22_599)), 22_600);
    assert_eq!(intrinsic(data(24_999)), 25_000);
    assert_eq!(prague(data(25_000)), Ok(()));
    assert_eq!(check(sign(1, data(22_600)), Fork::Cancun), Ok(()));
    assert_eq!(intrinsic(create(0, 52_999)), 53_000);
    assert_eq!(prague(create(49_152, 1_000_000)), Ok(()));
    assert_eq!(prague(create(49_153, 1_000_000)), Err(Rejection::InitCodeTooLong));
    let tip = TxEip1559 { max_priority_fee_per_gas: FEE + 1, ..base() };
    assert_eq!(prague(tip), Err(Rejection::TipAboveFeeCap));
    assert_eq!(prague(TxEip1559 { nonce: u64::MAX, ..base() }), Err(Rejection::LastNonce));

    let authorized = delegation(0, to, 3, COUNTER);
    let none = TxEip7702 { authorization_list: vec![], ..authorized.clone() };
    assert_eq!(check(sign(1, none), Fork::Prague), Err(Rejection::NoAuthorizations));
    assert_eq!(check(sign(1, authorized.clone()), Fork::Cancun), Err(Rejection::UnsupportedType));
    assert_eq!(check(sign(1, authorized), Fork::Prague), Ok(()));
    let asks = |gas_limit| decode(sign(1, TxEip1559 { gas_limit, ..base() }));
    for max in [TRANSACTION_GAS_MAX, 50_000] {
        let chain = ChainConfig { transaction_gas_max: max, ..chain(Fork::Prague) };
        assert_eq!(check_static(&asks(max), &chain.first_rules()), Ok(()));
        let too_high = Rejection::GasLimitTooHigh { gas_limit: max + 1, max };
        assert_eq!(check_static(&asks(max + 1), &chain.first_rules()), Err(too_high));
    }
}

/// Goal: an authorization for another chain, which anybody can copy from there, has no authority here.
#[test]
fn authorities_are_those_of_this_chain() {
    let transaction = decode(sign(1, delegation(0, account(2), 3, COUNTER)));
    assert_eq!(transaction.authorities(CHAIN_ID).collect::<Vec<_>>(), [(account(3), 0)]);
    assert_eq!(transaction.authorities(CHAIN_ID + 1).count(), 0);
}
