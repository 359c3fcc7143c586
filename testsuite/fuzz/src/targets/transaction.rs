//! Raw transactions, as wallets send them. A transaction that decodes is the only encoding of its content. The pool
//! accepts or refuses it, and keeps an accepted transaction unchanged.

use alloy_primitives::TxKind;
use slipstream_consensus::{Pool, PoolConfig};
use slipstream_executor::Transaction;
use slipstream_types::{Address, Bytes, keccak256};

use super::world::{BATCHES, CHAIN, CONTRACT, GAS, WALLET, wallet};

pub(super) fn run(bytes: &[u8]) {
    let chain = &CHAIN.genesis.chain;
    let Ok(transaction) = Transaction::decode(bytes, chain) else { return };
    assert_eq!(&transaction.raw[..], bytes, "the transaction keeps another encoding");
    assert_eq!(transaction.hash, keccak256(bytes));
    let known = Transaction::decode_known(bytes, chain, transaction.sender).expect("it was decoded");
    assert_eq!(known, transaction);
    let any = Transaction::decode_any(bytes).expect("a chain admits no more than any chain");
    assert_eq!((any.hash, any.sender), (transaction.hash, transaction.sender));
    let pool = Pool::new(PoolConfig::default(), chain.clone(), CHAIN.store.clone());
    let pool = pool.expect("memory is readable");
    let hash = transaction.hash;
    match pool.add(transaction.clone()) {
        Ok(()) => assert_eq!(pool.get(&hash), Some(transaction), "the accepted transaction is missing or changed"),
        Err(_) => assert!(!pool.contains(&hash), "the refused transaction is in the pool"),
    }
}

/// Returns the wallet's next transactions, one without a chain id, and one of another chain.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut own = wallet(&CHAIN.genesis);
    for _ in 0..2 * BATCHES {
        own.sign(TxKind::Create, 0, Bytes::new());
    }
    let mut other = slipstream_testkit::Wallet::new(WALLET, 5, GAS);
    let to = TxKind::Call(Address::repeat_byte(7));
    vec![
        own.sign(to, 5, Bytes::new()),
        own.sign(TxKind::Call(CONTRACT), 0, Bytes::from_static(&[3; 70])),
        own.sign(TxKind::Create, 0, Bytes::from_static(&[0x5f, 0x5f, 0xf3])),
        own.sign_unprotected(to, 5, Bytes::new()),
        other.sign(to, 5, Bytes::new()),
    ]
}
