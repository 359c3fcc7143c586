//! Goal: a state with uncommitted batches on it reads like the state after their commit. That holds for any committed
//! batch below, and after any rollback. The predicted roots equal the later ones.

use std::sync::Arc;

use crate::{
    store::{certified_genesis, store},
    support::*,
};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use proptest::{collection::vec, option, prelude::*};
use slipstream_executor::{ExecutionState, Layer, Overlay, ReadSet, State};
use slipstream_storage::{CommitBatch, Speculation, StateReader, Store, View};
use slipstream_types::{
    AccountValue, BatchHeader, BatchNumber, Delta, Digest, Epoch, StateKey, StateValue, delta::DeltaEntry,
};

const ADDRESSES: u8 = 4;

/// The changes of one batch to a few keys.
#[derive(Clone, Debug)]
struct Plan {
    /// Values of keys, numbered as in [`key`]; `None` deletes.
    changes: Vec<(u8, Option<u8>)>,
    reads: Vec<u8>,
    /// Code that the first account gets.
    code: Option<u8>,
    /// Whether it joins the layer before it.
    joins: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let keys = 0..3 * ADDRESSES;
    (vec((keys.clone(), option::of(1..4_u8)), 0..6), vec(keys, 0..6), option::of(0..3_u8), any::<bool>())
        .prop_map(|(changes, reads, code, joins)| Plan { changes, reads, code, joins })
}

fn address(index: u8) -> Address {
    Address::repeat_byte(0xa0 + index)
}

/// Accounts first, then two slots of each.
fn key(index: u8) -> StateKey {
    match index.checked_sub(ADDRESSES) {
        None => StateKey::Account(address(index)),
        Some(slot) => StateKey::Slot(address(slot / 2), B256::with_last_byte(slot % 2)),
    }
}

fn keys() -> impl Iterator<Item = StateKey> {
    (0..3 * ADDRESSES).map(key)
}

fn code(index: u8) -> Vec<u8> {
    vec![0x60, index, 0x50, 0x00]
}

fn hash(index: u8) -> Digest {
    keccak256(code(index)).into()
}

impl Plan {
    fn delta(&self) -> Delta {
        let mut entries: Vec<DeltaEntry> = Vec::new();
        let account = |nonce: u8, code_hash| {
            let nonce = nonce.into();
            Some(StateValue::Account(AccountValue { nonce, balance: U256::from(1), code_hash }))
        };
        if let Some(code) = self.code {
            entries.push(DeltaEntry { key: key(0), value: account(1, Some(hash(code))) });
        }
        for (index, value) in &self.changes {
            let key = key(*index);
            let value = value.and_then(|value| match key {
                StateKey::Account(_) => account(value, None),
                StateKey::Slot(..) => Some(StateValue::Slot(U256::from(value))),
            });
            if entries.iter().all(|entry| entry.key != key) {
                entries.push(DeltaEntry { key, value });
            }
        }
        Delta::new(entries, self.code.map(code).into_iter().collect()).unwrap()
    }

    /// The reads of the batch's execution, on the state before it.
    fn touched(&self, before: &View) -> ReadSet {
        let rows =
            self.reads.iter().map(|index| (key(*index), StateReader::row(before, &key(*index)).unwrap()));
        ReadSet { rows: rows.collect(), codes: Vec::new() }
    }
}

/// Committed batches, with the state before and after each.
struct Committed {
    headers: Vec<BatchHeader>,
    deltas: Vec<Delta>,
    touched: Vec<ReadSet>,
    /// One more than the batches: the first is the genesis.
    views: Vec<View>,
}

fn commit(store: &Store, plans: &[Plan]) -> Committed {
    let views = vec![store.view().unwrap()];
    let mut committed = Committed { headers: Vec::new(), deltas: Vec::new(), touched: Vec::new(), views };
    for plan in plans {
        let (head, delta) = (store.head().unwrap(), plan.delta());
        let header = BatchHeader {
            number: head.header.number.next(),
            parent: head.digest,
            epoch: Epoch(0),
            state_root: store.speculate(&delta).unwrap().root(),
            ..head.header
        };
        committed.touched.push(plan.touched(&committed.views[committed.headers.len()]));
        store.commit(CommitBatch::new(&header, &delta), None).unwrap();
        committed.headers.push(header);
        committed.deltas.push(delta);
        committed.views.push(store.view().unwrap());
    }
    committed
}

/// Compares all rows, codes and digests.
fn assert_same(found: &dyn ExecutionState, expected: &View, batches: u64) {
    let keys: Vec<StateKey> = keys().collect();
    assert_eq!(found.rows(&keys).unwrap(), expected.rows(&keys).unwrap());
    for index in 0..3 {
        let code = StateReader::code(expected, &hash(index)).unwrap();
        assert_eq!(found.code(&hash(index)).unwrap(), code);
        let analysed = found.analysed(&hash(index)).map(|code| code.bytes());
        assert!(analysed.is_none_or(|analysed| Some(analysed) == code));
    }
    for number in 0..=batches + 1 {
        let digest = expected.header_digest(BatchNumber::new(number)).unwrap();
        assert_eq!(found.header_digest(BatchNumber::new(number)).unwrap(), digest);
    }
}

impl Committed {
    fn layer(&self, index: usize) -> Layer {
        Layer::of(&self.headers[index], Some(&self.touched[index]), &self.deltas[index])
    }

    fn overlay(&self, plans: &[Plan]) -> Overlay {
        let mut overlay = Overlay::default();
        for (index, plan) in plans.iter().enumerate() {
            match plan.joins {
                true => {
                    overlay.extend(&self.headers[index], Some(&self.touched[index]), &self.deltas[index]);
                }
                false => overlay.push(Arc::new(self.layer(index))),
            }
        }
        overlay
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn an_overlay_reads_like_the_state_after_the_commit(plans in vec(plan(), 1..7)) {
        let committed = commit(&store(&certified_genesis()), &plans);
        let count = plans.len();
        for executed in 1..=count {
            let overlay = committed.overlay(&plans[..executed]);
            prop_assert_eq!(overlay.batches(), executed);
            prop_assert_eq!(overlay.header(), Some(&committed.headers[executed - 1]));
            // From the batch below all layers, from one among them, and from the last.
            for base in &committed.views[..=executed] {
                let state = State::on(base, &overlay).unwrap();
                prop_assert_eq!(state.tip(), committed.headers[executed - 1].digest());
                assert_same(&state.reader(), &committed.views[executed], executed as u64);
            }
            // A view beyond the layers, or out of their reach, gives no state.
            for base in &committed.views[executed + 1..] {
                prop_assert!(State::on(base, &overlay).is_none());
            }
        }
    }

    #[test]
    fn layers_are_forgotten_from_both_ends(plans in vec(plan(), 1..7), cut in 0..7_usize) {
        let committed = commit(&store(&certified_genesis()), &plans);
        let (whole, count) = (committed.overlay(&plans), plans.len());
        let cut = cut.min(count);

        // Dropping the committed layers leaves the same state over the committed one.
        let mut rest = whole.clone();
        rest.forget_up_to(BatchNumber::new(cut as u64));
        assert_same(&State::on(&committed.views[cut], &rest).unwrap().reader(), &committed.views[count], count as u64);
        let is_kept = rest.batches() == count;
        prop_assert_eq!(State::on(&committed.views[0], &rest).is_some(), is_kept || rest.batches() == 0);

        // Rolling back to a batch that ends a layer restores the state after that batch, and another branch can follow.
        let Some(kept) = whole.up_to(BatchNumber::new(cut as u64)) else { return Ok(()) };
        let mut rolled = whole.clone();
        rolled.roll_back(committed.headers[cut - 1].digest());
        prop_assert_eq!(rolled.tip(), kept.tip());
        for overlay in [&kept, &rolled] {
            assert_same(&State::on(&committed.views[0], overlay).unwrap().reader(), &committed.views[cut], cut as u64);
        }
        let other = BatchHeader {
            number: BatchNumber::new(cut as u64 + 1),
            parent: committed.headers[cut - 1].digest(),
            timestamp_ms: 77,
            ..committed.headers[cut - 1].clone()
        };
        let mut branched = whole.clone();
        branched.push(Arc::new(Layer::of(&other, None, &Delta::default())));
        prop_assert_eq!(branched.batches(), cut + 1);
        let digest = State::on(&committed.views[0], &branched).unwrap().reader().header_digest(other.number);
        prop_assert_eq!(digest.unwrap(), Some(other.digest()));
        let keys: Vec<StateKey> = keys().collect();
        let rows = State::on(&committed.views[0], &branched).unwrap().reader().rows(&keys).unwrap();
        prop_assert_eq!(rows, committed.views[cut].rows(&keys).unwrap());
    }

    #[test]
    fn a_chain_of_speculations_has_the_roots_of_the_commits(plans in vec(plan(), 1..7), cut in 0..7_usize) {
        let genesis = certified_genesis();
        let (expected, ahead) = (commit(&store(&genesis), &plans), store(&genesis));
        let follow = |chain: &mut Vec<Speculation>, from: usize| {
            for index in from..plans.len() {
                let delta = &expected.deltas[index];
                let next = match chain.last() {
                    Some(before) => ahead.speculate_after(&before.state(), delta),
                    None => ahead.speculate(delta),
                };
                chain.push(next.unwrap());
                assert_eq!(chain.last().unwrap().root(), expected.headers[index].state_root);
            }
        };
        let mut chain = Vec::new();
        follow(&mut chain, 0);
        // Rolls back, executes another batch, rolls back again, and executes as before.
        let cut = cut.min(plans.len());
        chain.truncate(cut);
        let aside = match chain.last() {
            Some(before) => ahead.speculate_after(&before.state(), &Delta::default()),
            None => ahead.speculate(&Delta::default()),
        };
        let before = cut.checked_sub(1).map_or(expected.views[0].head(), |last| &expected.headers[last]);
        prop_assert_eq!(aside.unwrap().root(), before.state_root);
        follow(&mut chain, cut);
        for (index, speculation) in chain.into_iter().enumerate() {
            let (header, delta) = (&expected.headers[index], &expected.deltas[index]);
            ahead.commit(CommitBatch::new(header, delta), Some(speculation)).unwrap();
        }
        let all: Vec<StateKey> = keys().collect();
        prop_assert_eq!(ahead.view().unwrap().rows(&all).unwrap(), expected.views[plans.len()].rows(&all).unwrap());
    }
}

/// Goal: a caller that executes ahead can bound the size of an overlay.
#[test]
fn an_overlay_says_what_it_takes() {
    let plans =
        [Plan { changes: vec![(1, Some(1)), (5, Some(2))], reads: vec![7], code: Some(1), joins: false }];
    let committed = commit(&store(&certified_genesis()), &plans);
    let (one, two) = (committed.layer(0), committed.overlay(&plans));
    assert!(one.bytes() > 4 * 50 && two.bytes() == one.bytes(), "{} {}", one.bytes(), two.bytes());
    assert_eq!(Overlay::default().bytes(), 0);
    let mut none = two.clone();
    none.forget_above(BatchNumber::GENESIS);
    assert_eq!((none.batches(), none.tip()), (0, None));
    assert_eq!(Bytes::from(code(1)).len(), 4);
}

/// Goal: a batch that does not follow the layer's last batch is always detected.
#[test]
#[should_panic(expected = "does not continue the layer")]
fn a_layer_is_not_extended_past_a_gap() {
    let (_, header, _) = chain();
    let mut layer = Layer::of(&header, None, &Delta::default());
    layer.extend(&BatchHeader { number: BatchNumber::new(2), ..header }, None, &Delta::default());
}

/// Goal: batches that only read, as much as their gas allows, do not fill the memory. Written rows are always kept.
#[test]
fn a_layer_keeps_what_was_written_and_some_of_what_was_read() {
    let (_, header, _) = chain();
    let slot = |index: u64| StateKey::Slot(address(0), B256::from(U256::from(index)));
    let read = |range: std::ops::Range<u64>| ReadSet {
        rows: range.map(|index| (slot(index), Some(StateValue::Slot(U256::from(index + 1))))).collect(),
        codes: Vec::new(),
    };
    let write = |index: u64| {
        let entry = DeltaEntry { key: slot(index), value: Some(StateValue::Slot(U256::from(7))) };
        Delta::new(vec![entry], Vec::new()).unwrap()
    };
    let mut layer = Layer::of(&header, Some(&read(0..60_000)), &write(70_000));
    let full = layer.bytes();
    assert!((16 << 20..17 << 20).contains(&full), "{full}");
    let next = BatchHeader { number: BatchNumber::new(1), parent: layer.tip(), ..header.clone() };
    layer.extend(&next, Some(&read(90_000..150_000)), &write(80_000));
    assert!(layer.bytes() < full + 1_000, "{} after {full}", layer.bytes());

    let mut overlay = Overlay::default();
    overlay.push(Arc::new(layer));
    // Rows outside the layer come from below, which is empty here.
    let below = slipstream_storage::MemoryState::default();
    let state = State::over(&below, header.parent, &overlay).unwrap().reader();
    let value = |index: u64| state.slot(&address(0), &B256::from(U256::from(index))).unwrap();
    assert_eq!((value(0), value(59_999)), (U256::from(1), U256::ZERO));
    assert_eq!((value(70_000), value(80_000)), (U256::from(7), U256::from(7)));
}
