//! A store is read while another handle has it open and continues. That handle could be another process'.

use super::*;
use crate::{ReadOnly, StorageError};

/// Goal: a reader sees what the store has at the moment of opening, present and past, and writes nothing.
#[test]
fn a_store_is_looked_at_while_it_is_in_use() {
    let dir = store_dir();
    let config = config();
    let look = || ReadOnly::open(&config, dir.path());
    assert!(matches!(look().err().unwrap(), StorageError::NotInitialized), "there is none");
    let store = Store::open(&config, dir.path()).unwrap();
    assert!(matches!(look().err().unwrap(), StorageError::NotInitialized));
    store.initialize(&genesis()).unwrap();
    let mut ledger = Ledger::new();
    let mut states = vec![ledger.state.clone()];
    // More states than are held in memory, so that some are sealed and some are in the log.
    for n in 1..30 {
        ledger.commit(&store, &[(account_key(n % 5), account(u64::from(n))), (slot_key(0xcc, n), slot(77))]);
        states.push(ledger.state.clone());
    }
    let files = || {
        let mut names: Vec<_> =
            std::fs::read_dir(dir.path().join("db")).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let looked = look().unwrap();
    assert_eq!(looked.head(), ledger.head.number);
    assert_eq!(looked.states_from().unwrap(), store.states_from().unwrap());
    for (number, state) in (0..).zip(&states) {
        let number = BatchNumber::new(number);
        assert_eq!(looked.header(number).unwrap(), store.header(number).unwrap());
        assert_eq!(looked.certificate(number).unwrap(), store.certificate(number).unwrap());
        for kind in [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints] {
            assert_eq!(looked.blob(kind, number).unwrap(), store.blob(kind, number).unwrap(), "{number}");
        }
        for n in 0..5 {
            let row = looked.account(&address(n), number).unwrap().map(StateValue::Account);
            assert_eq!(row, state.get(&account_key(n)).copied(), "account {n} behind batch {number}");
        }
        for n in [1, 7, 29] {
            let expected = match state.get(&slot_key(0xcc, n)) {
                Some(StateValue::Slot(value)) => *value,
                _ => U256::ZERO,
            };
            let found = looked.slot(&address(0xcc), &B256::repeat_byte(n), number).unwrap();
            assert_eq!(found, expected, "slot {n} behind batch {number}");
        }
    }
    let hash = transaction_hash(BatchNumber::new(3), 1);
    assert_eq!(looked.transaction_places(&hash).unwrap(), store.transaction_places(&hash).unwrap());
    let code = store.view().unwrap().account(&address(0xcc)).unwrap().unwrap().code_hash.unwrap();
    assert_eq!(looked.code(&code).unwrap(), store.view().unwrap().code(&code).unwrap());

    ledger.commit(&store, &[(account_key(1), account(99))]);
    assert_eq!(looked.head().next(), ledger.head.number, "it stays as it was");
    let beyond = looked.account(&address(1), ledger.head.number);
    assert!(matches!(beyond, Err(StorageError::StateNotKept { .. })), "{beyond:?}");
    assert_eq!(look().unwrap().head(), ledger.head.number);

    // The store itself writes beside the reader, as long as it is open.
    store.close();
    drop(store);
    let before = files();
    assert_eq!(look().unwrap().head(), ledger.head.number);
    assert_eq!(files(), before, "looking writes nothing");
}
