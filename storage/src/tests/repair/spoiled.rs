//! [`Wrong`]: faults of rows and code that a repair has to find.

use super::*;

/// A fault of a row or a code; its numbers choose which.
#[derive(Clone, Debug)]
pub(super) enum Wrong {
    Change(usize, u8),
    Remove(usize),
    Add(u8, u8),
    Garbage(usize),
    RemoveCode(usize),
    ChangeCode(usize),
}

pub(super) fn wrong() -> impl Strategy<Value = Wrong> {
    prop_oneof![
        (any::<usize>(), 1..=255u8).prop_map(|(at, by)| Wrong::Change(at, by)),
        any::<usize>().prop_map(Wrong::Remove),
        (any::<u8>(), any::<u8>()).prop_map(|(address, slot)| Wrong::Add(address, slot)),
        any::<usize>().prop_map(Wrong::Garbage),
        any::<usize>().prop_map(Wrong::RemoveCode),
        any::<usize>().prop_map(Wrong::ChangeCode),
    ]
}

/// Applies faults to what a store holds.
pub(super) fn spoil(backend: &MemoryBackend, right: &Content, wrong: &[Wrong]) {
    let paths: Vec<&Path> = right.keys().collect();
    let path = |at: &usize| paths[at % paths.len()];
    let codes: Vec<Vec<u8>> = (1..=HEAD as u8).map(code_of).collect();
    let code = |at: &usize| keccak256(&codes[at % codes.len()]);
    let mut writes = WriteBatch::default();
    for wrong in wrong {
        match wrong {
            Wrong::Change(at, by) => {
                let mut row = right[path(at)].clone();
                *row.last_mut().unwrap() ^= by;
                writes.put(Column::StateA, path(at).0, row);
            }
            Wrong::Remove(at) => writes.delete(Column::StateA, path(at).0),
            Wrong::Add(i, slot) => {
                let key = slot_key(*i, *slot);
                writes.put(
                    Column::StateA,
                    key.path().0,
                    schema::encode_row(&key, &super::slot(9_999).unwrap()),
                );
            }
            // An account whose code is missing everywhere, under a path that may not be its own.
            Wrong::Garbage(at) => {
                let garbage = AccountValue { code_hash: Some(Digest([7; 32])), ..AccountValue::default() };
                let row = schema::encode_row(&account_key(3), &StateValue::Account(garbage));
                writes.put(Column::StateA, path(at).0, row);
            }
            Wrong::RemoveCode(at) => writes.delete(Column::Codes, code(at).0),
            Wrong::ChangeCode(at) => writes.put(Column::Codes, code(at).0, *b"nonsense"),
        }
    }
    backend.write(writes, true).unwrap();
}
