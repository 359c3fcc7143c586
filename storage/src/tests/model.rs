use proptest::prelude::*;

use super::*;
use crate::View;

pub(super) type Changes = Vec<(StateKey, Option<StateValue>)>;

/// A few accounts with a few slots each, so that keys are set, changed and deleted again.
pub(super) fn changes() -> impl Strategy<Value = Changes> {
    let entry =
        (0..8u8, prop::option::of(0..6u8), 0..4u64).prop_map(|(i, slot_index, value)| match slot_index {
            None => (account_key(i), if value == 0 { None } else { account(value) }),
            Some(index) => (slot_key(i, index), slot(value)),
        });
    prop::collection::btree_map(0..1_000u32, entry, 0..30)
        .prop_map(|entries| entries.into_values().collect::<BTreeMap<_, _>>().into_iter().collect())
}

fn check_view(view: &View, state: &BTreeMap<StateKey, StateValue>) {
    let keys: Vec<StateKey> =
        (0..9).flat_map(|i| (0..6).map(move |slot| slot_key(i, slot)).chain([account_key(i)])).collect();
    let expected: Vec<_> = keys.iter().map(|key| state.get(key).copied()).collect();
    assert_eq!(view.rows(&keys).unwrap(), expected);
    for (key, expected) in keys.iter().zip(expected) {
        let found = match key {
            StateKey::Account(address) => view.account(address).unwrap().map(StateValue::Account),
            StateKey::Slot(address, slot) => {
                Some(view.slot(address, slot).unwrap()).filter(|value| !value.is_zero()).map(StateValue::Slot)
            }
        };
        assert_eq!(found, expected);
    }
}

fn run(batches: Vec<Changes>, on_disk: bool) {
    let mut fixture = Fixture::initialized(&config(), on_disk);
    let mut ledger = Ledger::new();
    let mut views = Vec::new();
    for (index, changes) in batches.iter().enumerate() {
        if index % 5 == 4 {
            views.clear();
            fixture.reopen();
        }
        let made = ledger.make(changes, Vec::new());
        let speculation = (index % 2 == 0).then(|| fixture.store().speculate(&made.delta).unwrap());
        fixture.store().commit(made.batch(), speculation).unwrap();
        ledger.advance(&made);
        let head = fixture.store().head().unwrap();
        assert_eq!((&head.header, &head.accumulator), (&ledger.head, &ledger.accumulator));
        views.push((fixture.store().view().unwrap(), ledger.state.clone()));
        for (view, state) in &views {
            check_view(view, state);
        }
    }
    let last = fixture.store().view().unwrap();
    assert_eq!(last.header_digest(ledger.head.number).unwrap(), Some(ledger.head.digest()));
    assert_eq!(last.header_digest(ledger.head.number.next()).unwrap(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn the_memory_store_is_its_model(batches in prop::collection::vec(changes(), 1..16)) {
        run(batches, false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn the_disk_store_is_its_model(batches in prop::collection::vec(changes(), 6..12)) {
        run(batches, true);
    }
}
