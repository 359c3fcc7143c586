//! Hints of peers. Decoding never panics and stays below its bound. Decoded hints, including values, survive encoding
//! and decoding unchanged.

use std::collections::{BTreeMap, BTreeSet};

use slipstream_types::{
    Address,
    hints::{HintContext, TransactionParts, decode, encode_with_values},
};

const KEYS_MAX: usize = 4_096;

/// Three transactions, two of which name addresses in their call data.
fn context() -> HintContext {
    let address = Address::repeat_byte;
    let input = [&[0; 4][..], &address(5).into_word()[..], &address(6).into_word()[..]].concat();
    let transaction = |at: u8| TransactionParts {
        sender: address(at),
        nonce: 1,
        to: (at > 1).then_some(address(9)),
        input: if at == 2 { &input } else { &[] },
        access_list: &[],
    };
    HintContext::new(address(0xfe), (1..=3).map(transaction))
}

pub(crate) fn run(bytes: &[u8]) {
    let context = context();
    let Ok(decoded) = decode(bytes, &context, KEYS_MAX) else { return };
    let keys: BTreeSet<_> = decoded.hints.keys().collect();
    assert!(keys.len() <= KEYS_MAX);
    assert!(decoded.values.len() <= KEYS_MAX);
    let (conflicts, values) = (decoded.conflicts.as_ref(), &decoded.values);
    let again = encode_with_values(&decoded.hints, &[], conflicts, values, &context);
    let again = decode(&again, &context, KEYS_MAX).expect("decoded hints are within the bound");
    assert_eq!(again.hints.keys().collect::<BTreeSet<_>>(), keys);
    assert_eq!(again.conflicts.is_some(), decoded.conflicts.is_some());
    // A key that is named twice can have two values: the last one counts.
    let rows = |values: Vec<_>| values.into_iter().collect::<BTreeMap<_, _>>();
    assert_eq!(rows(again.values), rows(decoded.values));
}

/// Returns hints that name what the transactions touch, with values.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let context = context();
    let empty = encode_with_values(&Default::default(), &[], None, &[], &context);
    vec![empty, vec![0; 16], vec![1, 3, 9, 1, 0, 2, 5, 1, 1, 0, 0, 7]]
}
