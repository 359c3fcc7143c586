//! Goal: hints come back as what they were, whatever their keys are made of, and no bytes of a stranger make the decoder panic or
//! name more than it is allowed to.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*, sample::Index};
use slipstream_types::{
    Address, B256, Conflicts, Hints, U256,
    hints::{AccountHints, Decoded, HintContext, Preimage, TransactionParts, decode, encode, keys_max},
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

/// One of few addresses, so that the same one is sender here and key there.
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

/// A slot, and what was hashed for it: a plain word, or a field of a mapping's entry, up to four deep.
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

/// What `hints` come back as: the accounts of every batch are added.
fn expected(hints: &Hints, calls: &[Call]) -> Keys {
    let mut expected = keys(hints);
    expected.entry(Address::repeat_byte(0xfe)).or_default();
    for call in calls {
        expected.entry(call.sender).or_default();
        expected.entry(call.to.unwrap_or_else(|| call.sender.create(7))).or_default();
    }
    expected
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
    fn bytes_of_strangers_are_refused_or_bounded(
        (hints, preimages) in hints(),
        calls in vec(call(), 0..9),
        edits in vec((any::<Index>(), any::<u8>()), 0..6),
        cut in any::<Index>(),
        garbage in vec(any::<u8>(), 0..400),
    ) {
        let context = context(&calls);
        let mut bytes = encode(&hints, &preimages, Some(&conflicts(calls.len())), &context);
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let section = [&[1, 1, garbage.len() as u8 | 0x80, (garbage.len() >> 7) as u8], &garbage[..]].concat();
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())], &section[..], &garbage[..]] {
            for most in [0, 30, 5_000] {
                let Ok(Decoded { hints, conflicts }) = decode(bytes, &context, most) else { continue };
                prop_assert!(hints.keys().count() <= most);
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

/// Goal: what a mapping's entry costs is a few bytes, since that is the point of the format.
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
    // A section that this version does not know is passed over, and no section is an error.
    for bytes in [&[1][..], &[1, 9, 2, 0xff, 0xff]] {
        let decoded = decode(bytes, &context, most).unwrap();
        assert_eq!(decoded.hints.keys().count(), 1, "the fee recipient");
    }
}

/// Every form of a key once; pinned by the vectors.
pub(crate) fn sample() -> Vec<u8> {
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
    encode(&Hints { accounts }, &preimages, Some(&conflicts), &context(&calls))
}
