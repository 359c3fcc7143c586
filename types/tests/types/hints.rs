//! Goal: hints survive a round trip, whatever their keys are made of. Untrusted bytes never make the decoder panic or
//! exceed its limit.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*, sample::Index};
use slipstream_types::{
    AccountValue, Address, B256, Conflicts, Digest, Hints, StateKey, StateValue, U256,
    hints::{
        AccountHints, DecodedHints, HintContext, Preimage, RowBefore, TransactionParts, decode, encode,
        encode_with_values, has_values, keys_max,
    },
    keccak256,
};

/// A transaction to an address, with addresses and other words as its arguments.
#[derive(Clone, Debug)]
struct Call {
    sender: Address,
    to: Option<Address>,
    input: Vec<u8>,
}

impl Call {
    fn parts(&self) -> TransactionParts<'_> {
        let Call { sender, to, input } = self;
        TransactionParts { sender: *sender, nonce: 7, to: *to, input, access_list: &[] }
    }
}

fn context(calls: &[Call]) -> HintContext {
    HintContext::new(Address::repeat_byte(0xfe), calls.iter().map(Call::parts))
}

/// One of few addresses, so that the same one is sometimes a sender and sometimes a key.
fn address() -> impl Strategy<Value = Address> {
    prop_oneof![3 => (1..40u8).prop_map(Address::repeat_byte), 1 => any::<[u8; 20]>().prop_map(Address::from)]
}

fn word() -> impl Strategy<Value = B256> {
    prop_oneof![
        address().prop_map(|address| address.into_word()),
        (0..9u64).prop_map(|number| U256::from(number).into()),
        any::<u64>().prop_map(|number| U256::from(number).into()),
        any::<[u8; 32]>().prop_map(B256::from),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    (address(), proptest::option::of(address()), vec(word(), 0..4), 0..5usize).prop_map(
        |(sender, to, words, cut)| {
            let input = [&[1, 2, 3, 4], &words.concat()[..]].concat();
            Call { sender, to, input: input[cut.min(input.len())..].to_vec() }
        },
    )
}

/// A slot with its preimages: a plain word, or a field of a mapping's entry, up to four deep.
fn slot() -> impl Strategy<Value = (B256, Vec<Preimage>)> {
    (word(), vec(word(), 0..5), 0..20u64, any::<bool>()).prop_map(|(root, keys, field, slot_first)| {
        let mut preimages = Vec::new();
        let mut slot = root;
        for key in keys {
            let (first, second) = if slot_first { (slot, key) } else { (key, slot) };
            let hash = keccak256([first, second].concat());
            preimages.push(Preimage { first, second, hash });
            slot = hash;
        }
        (B256::from(U256::from_be_bytes(slot.0).wrapping_add(U256::from(field))), preimages)
    })
}

fn hints() -> impl Strategy<Value = (Hints, Vec<Preimage>)> {
    let account = (address(), any::<bool>(), vec(slot(), 0..12));
    (vec(account, 0..12), vec(any::<Index>(), 0..4)).prop_map(|(accounts, forgotten)| {
        let mut preimages = Vec::new();
        let mut account = |(address, code, slots): (Address, bool, Vec<(B256, Vec<Preimage>)>)| {
            let slots = slots.into_iter().map(|(slot, hashed)| {
                preimages.extend(hashed);
                slot
            });
            AccountHints { address, code, slots: slots.collect() }
        };
        let hints = Hints { accounts: accounts.into_iter().map(&mut account).collect() };
        for at in forgotten {
            if !preimages.is_empty() {
                preimages.swap_remove(at.index(preimages.len()));
            }
        }
        (hints, preimages)
    })
}

fn conflicts(transactions: usize) -> Conflicts {
    let of = |at: u32| (0..at).filter(|earlier| (at * 7 + earlier).is_multiple_of(5)).collect();
    Conflicts {
        predecessors: (0..transactions as u32).map(of).collect(),
        gas: (0..transactions as u64).map(|at| at * 21_000).collect(),
    }
}

/// The rows of some keys before the batch: few codes, which repeat, and numbers of all lengths.
fn before(keys: &BTreeSet<StateKey>, seed: u64) -> Vec<RowBefore> {
    let draw = |key: &StateKey| keccak256(format!("{seed} {key:?}"));
    let row = |key: &StateKey| {
        let drawn = draw(key);
        let number = U256::from_be_bytes(drawn.0) >> (usize::from(drawn[1]) + 1);
        match key {
            _ if drawn[0] < 60 => None,
            StateKey::Account(_) => {
                let code_hash = (drawn[2] < 128).then(|| Digest([drawn[2] % 4; 32]));
                let nonce = u64::from(drawn[3]).pow(u32::from(drawn[4] % 8));
                Some(StateValue::Account(AccountValue { nonce, balance: number, code_hash }))
            }
            StateKey::Slot(address, _) if drawn[0] < 90 => Some(StateValue::Slot(address.into_word().into())),
            StateKey::Slot(..) => (!number.is_zero()).then_some(StateValue::Slot(number)),
        }
    };
    let is_known = |key: &&StateKey| draw(key)[5] < 230;
    keys.iter().filter(is_known).map(|key| (*key, row(key))).collect()
}

type Keys = BTreeMap<Address, (bool, BTreeSet<B256>)>;

fn keys(hints: &Hints) -> Keys {
    let mut keys = Keys::new();
    for account in &hints.accounts {
        let (code, slots) = keys.entry(account.address).or_default();
        *code |= account.code;
        slots.extend(&account.slots);
    }
    keys
}

/// The keys that `hints` should decode to: every batch's accounts are added.
fn expected(hints: &Hints, calls: &[Call]) -> Keys {
    let mut expected = keys(hints);
    expected.entry(Address::repeat_byte(0xfe)).or_default();
    for call in calls {
        expected.entry(call.sender).or_default();
        expected.entry(call.to.unwrap_or_else(|| call.sender.create(7))).or_default();
    }
    expected
}

/// Goal: a slot that is named twice is written once, whether it is a word, a number or a mapping's entry.
#[test]
fn a_slot_that_is_named_twice_is_written_once() {
    let hash = keccak256([7; 64]);
    let entry = Preimage { first: B256::repeat_byte(7), second: B256::repeat_byte(7), hash };
    let slots = [B256::repeat_byte(9), U256::from(5).into(), hash];
    let account = |slots: Vec<B256>| AccountHints { address: Address::repeat_byte(1), code: false, slots };
    let context = context(&[]);
    let written = |accounts| encode(&Hints { accounts }, &[entry], None, &context);
    let once = written(vec![account(slots.to_vec())]);
    assert_eq!(written(vec![account([slots, slots].concat())]), once);
    assert_eq!(written(vec![account(slots.to_vec()), account(slots.to_vec())]), once);
}

proptest! {
    #[test]
    fn hints_come_back((hints, preimages) in hints(), calls in vec(call(), 0..20), with_conflicts: bool) {
        let context = context(&calls);
        let conflicts = with_conflicts.then(|| conflicts(calls.len()));
        let bytes = encode(&hints, &preimages, conflicts.as_ref(), &context);
        prop_assert_eq!(&bytes, &encode(&hints, &preimages, conflicts.as_ref(), &context));
        let expected = expected(&hints, &calls);
        let count = expected.values().map(|(_, slots)| 1 + slots.len()).sum();
        let decoded = decode(&bytes, &context, count).unwrap();
        prop_assert_eq!(keys(&decoded.hints), expected);
        prop_assert_eq!(decoded.hints.keys().count(), count, "nothing is named twice");
        prop_assert_eq!(decoded.conflicts, conflicts);
        prop_assert!(decode(&bytes, &context, count - 1).is_err(), "the bound holds");
    }

    #[test]
    fn values_come_back_beside_what_was_there(
        (hints, preimages) in hints(),
        calls in vec(call(), 0..20),
        seed: u64,
    ) {
        let context = context(&calls);
        let without = encode(&hints, &preimages, Some(&conflicts(calls.len())), &context);
        let expected = decode(&without, &context, 5_000).unwrap();
        let before = before(&expected.hints.keys().collect(), seed);
        let conflicts = conflicts(calls.len());
        let bytes = encode_with_values(&hints, &preimages, Some(&conflicts), &before, &context);
        prop_assert!(bytes.starts_with(&without));
        prop_assert_eq!([&without[..], &bytes].map(has_values), [false, true]);
        let decoded = decode(&bytes, &context, 5_000).unwrap();
        let order: Vec<_> = decoded.hints.keys().filter(|key| before.iter().any(|(it, _)| it == key)).collect();
        prop_assert_eq!(decoded.values.iter().map(|(key, _)| *key).collect::<Vec<_>>(), order);
        prop_assert_eq!(decoded.values.into_iter().collect::<BTreeMap<_, _>>(), before.into_iter().collect());
        prop_assert_eq!((decoded.hints, decoded.conflicts), (expected.hints, expected.conflicts));
    }

    #[test]
    fn bytes_of_strangers_are_refused_or_bounded(
        (hints, preimages) in hints(),
        calls in vec(call(), 0..9),
        edits in vec((any::<Index>(), any::<u8>()), 0..6),
        cut in any::<Index>(),
        garbage in vec(any::<u8>(), 0..400),
    ) {
        let context = context(&calls);
        let before = before(&hints.keys().collect(), 1);
        let conflicts = conflicts(calls.len());
        let mut bytes = encode_with_values(&hints, &preimages, Some(&conflicts), &before, &context);
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let section = |tag| {
            [&[1, tag, garbage.len() as u8 | 0x80, (garbage.len() >> 7) as u8], &garbage[..]].concat()
        };
        let cut = &bytes[..cut.index(bytes.len())];
        for bytes in [&bytes[..], cut, &section(1), &section(3), &garbage[..]] {
            for most in [0, 30, 5_000] {
                let Ok(DecodedHints { hints, conflicts, values }) = decode(bytes, &context, most) else { continue };
                prop_assert!(hints.keys().count() <= most);
                prop_assert!(values.len() <= most);
                if let Some(conflicts) = conflicts {
                    prop_assert!(conflicts.fits(calls.len()));
                    for (at, predecessors) in conflicts.predecessors.iter().enumerate() {
                        prop_assert!(predecessors.iter().all(|earlier| (*earlier as usize) < at));
                    }
                }
            }
        }
    }
}

/// Goal: a mapping's entry costs only a few bytes, which is the purpose of the format.
#[test]
fn entries_of_mappings_cost_bytes_not_words() {
    let token = Address::repeat_byte(0xaa);
    let holders: Vec<Address> = (1..=100).map(Address::repeat_byte).collect();
    let hash =
        |first: B256, second: B256| Preimage { first, second, hash: keccak256([first, second].concat()) };
    let number = |number: u64| B256::from(U256::from(number));
    let balances = holders.iter().map(|holder| hash(holder.into_word(), number(2)));
    let owners: Vec<Preimage> = holders.iter().map(|holder| hash(holder.into_word(), number(3))).collect();
    let allowances = owners.iter().map(|owner| hash(token.into_word(), owner.hash));
    let read: Vec<Preimage> = balances.chain(allowances).collect();
    let account = AccountHints { address: token, code: true, slots: read.iter().map(|it| it.hash).collect() };
    let calls: Vec<Call> =
        holders.iter().map(|holder| Call { sender: *holder, to: Some(token), input: vec![] }).collect();
    let preimages = [owners, read].concat();
    let bytes = encode(&Hints { accounts: vec![account] }, &preimages, None, &context(&calls));
    assert!(bytes.len() < 100 * (1 + 6) + 20, "{} bytes for 200 slots", bytes.len());
}

#[test]
fn versions_and_sections_of_the_future_are_told_apart() {
    let context = context(&[]);
    let most = keys_max(0);
    assert!(decode(&[2], &context, most).unwrap_err().to_string().contains("version"));
    assert!(decode(&[], &context, most).is_err());
    // Decoding skips an unknown section, and accepts an empty list of sections.
    for bytes in [&[1][..], &[1, 9, 2, 0xff, 0xff]] {
        let decoded = decode(bytes, &context, most).unwrap();
        assert_eq!(decoded.hints.keys().count(), 1, "the fee recipient");
    }
}

/// Goal: untrusted values must match exactly the keys, and are refused otherwise.
#[test]
fn values_that_do_not_fit_the_keys_are_refused() {
    let context = context(&[]);
    // The only key is the fee recipient.
    let read = |rows: &[u8]| decode(&[&[1, 3, rows.len() as u8], rows].concat(), &context, 9);
    assert_eq!(read(&[0]).unwrap().values, [(StateKey::Account(Address::repeat_byte(0xfe)), None)]);
    assert_eq!(read(&[1]).unwrap().values, []);
    for (rows, rule) in [
        (&[][..], "fewer keys"),
        (&[0, 0], "more keys"),
        (&[4, 0, 0], "no earlier account"),
        (&[2, 0, 33], "256 bits"),
        (&[2, 0, 2, 1], "end early"),
        (&[3, 1, 2], "end early"),
    ] {
        let error = read(rows).unwrap_err().to_string();
        assert!(error.contains(rule), "{rows:?}: {error}");
    }
}

/// Every form of a key once, with and without rows before the batch; the vectors pin both.
pub(crate) fn sample() -> [Vec<u8>; 2] {
    let [sender, token, pool] = [0x11, 0x22, 0x33].map(Address::repeat_byte);
    let number = |number: u64| B256::from(U256::from(number));
    let hash =
        |first: B256, second: B256| Preimage { first, second, hash: keccak256([first, second].concat()) };
    let balance = hash(sender.into_word(), number(2));
    let owner = hash(sender.into_word(), number(3));
    let allowance = hash(pool.into_word(), owner.hash);
    let vyper = hash(number(5), pool.into_word());
    let field = B256::from(U256::from_be_bytes(hash(number(9), number(4)).hash.0) + U256::from(1));
    let words = hash(B256::repeat_byte(0xab), B256::repeat_byte(0xcd));
    let slots =
        vec![number(0), number(7), balance.hash, allowance.hash, field, words.hash, B256::repeat_byte(0xee)];
    let accounts = vec![
        AccountHints { address: token, code: true, slots },
        AccountHints { address: pool, code: false, slots: vec![vyper.hash] },
    ];
    let preimages = [balance, owner, allowance, vyper, hash(number(9), number(4)), words];
    let calls = [Call { sender, to: Some(token), input: vec![] }, Call { sender, to: None, input: vec![] }];
    let conflicts = Conflicts { predecessors: vec![vec![], vec![0]], gas: vec![21_000, 60_500] };
    let context = context(&calls);
    let hints = Hints { accounts };
    let keys = encode(&hints, &preimages, Some(&conflicts), &context);
    let code_hash = Some(Digest([0x44; 32]));
    let account = |nonce, balance: u64, code_hash| {
        Some(StateValue::Account(AccountValue { nonce, balance: U256::from(balance), code_hash }))
    };
    let before = [
        (StateKey::Account(sender), account(300, 0x1234, None)),
        (StateKey::Account(token), account(1, 0, code_hash)),
        (StateKey::Account(pool), account(1, 0, code_hash)),
        (StateKey::Account(Address::repeat_byte(0xfe)), None),
        (StateKey::Slot(token, number(0)), None),
        (StateKey::Slot(token, number(7)), Some(StateValue::Slot(U256::from(0xabcd)))),
        (StateKey::Slot(token, balance.hash), Some(StateValue::Slot(pool.into_word().into()))),
    ];
    let with_values = encode_with_values(&hints, &preimages, Some(&conflicts), &before, &context);
    [keys, with_values]
}
