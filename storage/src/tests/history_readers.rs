//! Goal: readers of past states get those states and no others while batches are committed. Callers name a state by
//! number or by hash, and read its rows together or one by one. Some keep it until it leaves the window.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::{
    history::{check_all, commit, ledgers, let_go},
    *,
};
use crate::{StateHistory, StorageError, View};

const BATCHES: u64 = 150;
const READERS: u64 = 3;
/// Comparisons that the writer waits for after each step, so that a busy machine reads between commits too.
const COMPARISONS: u64 = 6;
/// Views that a reader keeps while the head moves on.
const VIEWS_KEPT: usize = 8;
/// Rows that a reader reads one by one.
const SINGLE_ROWS: u64 = 8;
/// Accounts that come and go, and the slots of each.
const OWNERS: u64 = 5;
const SLOTS: u8 = 3;

struct Random(u64);

impl Random {
    fn below(&mut self, max: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % max
    }
}

/// Signals everybody to end, when its thread ends or panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Batches that create, change and destroy accounts, and set and clear slots. One slot has the batch's number, and
/// every seventh batch is empty. So neighbouring states differ, or differ only in their header.
fn changes() -> Vec<Vec<(StateKey, Option<StateValue>)>> {
    let mut random = Random(1);
    let batch = |n: u64| {
        if n.is_multiple_of(7) {
            return Vec::new();
        }
        let mut changes = BTreeMap::from([(slot_key(0xcc, 9), slot(n))]);
        for _ in 0..random.below(4) {
            let (owner, index) = (random.below(OWNERS) as u8, random.below(SLOTS.into()) as u8);
            match random.below(4) {
                0 => {
                    changes.insert(account_key(owner), None);
                    changes.extend((0..SLOTS).map(|index| (slot_key(owner, index), None)));
                }
                1 => _ = changes.insert(account_key(owner), account(n)),
                2 => _ = changes.insert(slot_key(owner, index), slot(n)),
                _ => _ = changes.insert(slot_key(owner, index), None),
            }
        }
        changes.into_iter().collect()
    };
    (1..=BATCHES).map(batch).collect()
}

/// The data that readers and the writer share.
struct Race<'a> {
    store: &'a Store,
    kept: StateHistory,
    ledgers: &'a [Ledger],
    /// All keys of any state.
    keys: &'a [StateKey],
    /// The last batch that the writer has begun to commit.
    begun: AtomicU64,
    /// Comparisons that found the model's state.
    right: AtomicU64,
    is_over: AtomicBool,
}

impl Race<'_> {
    /// Returns the first state in the window of the newest head that can exist. From there on no read may fail.
    fn first(&self) -> u64 {
        self.kept.first(BatchNumber::new(self.begun.load(Ordering::Acquire))).get()
    }

    /// Picks a batch up to the head, mostly near an end of what is kept, held or sealed.
    fn pick(&self, random: &mut Random) -> u64 {
        let head = self.store.head().unwrap().header.number.get();
        let number = match random.below(5) {
            0 => self.first() + random.below(3),
            1 => head.saturating_sub(random.below(3)),
            2 => head.saturating_sub(small().held_batches - 2 + random.below(5)),
            3 => self.store.0.history.past_rows.sealed().get() + random.below(2),
            _ => random.below(head + 1).max(self.first()),
        };
        number.min(head)
    }

    /// Returns the state after a batch, by number or by hash; `None` only if it left the window.
    fn view(&self, number: u64, by_hash: bool) -> Option<View> {
        let mut asked = BatchNumber::new(number);
        if by_hash {
            let digest = self.ledgers[number as usize].head.digest();
            asked = self.store.find_header(&digest).unwrap().expect("the header is kept");
        }
        let view = self.store.view_of(asked).unwrap();
        assert!(view.is_some() || number < self.first(), "state {number} is not there");
        view
    }

    /// Compares a view with the model's state of that batch, and counts it if it could be read. Reading may fail only
    /// once the state left the window.
    fn check(&self, number: u64, view: &View, random: &mut Random) {
        match self.compare(&self.ledgers[number as usize], view, random) {
            Ok(()) => _ = self.right.fetch_add(1, Ordering::Relaxed),
            Err(StorageError::StateNotKept { .. }) => {
                assert!(number < self.first(), "state {number} cannot be read");
            }
            Err(error) => panic!("state {number}: {error}"),
        }
    }

    fn compare(&self, ledger: &Ledger, view: &View, random: &mut Random) -> Result<(), StorageError> {
        let number = ledger.head.number;
        assert_eq!(view.head(), &ledger.head);
        for (key, row) in self.keys.iter().zip(view.rows(self.keys)?) {
            assert_eq!(row, ledger.state.get(key).copied(), "{key:?} behind batch {number}");
        }
        for _ in 0..SINGLE_ROWS {
            let key = &self.keys[random.below(self.keys.len() as u64) as usize];
            let row = match key {
                StateKey::Account(address) => view.account(address)?.map(StateValue::Account),
                StateKey::Slot(address, index) => {
                    Some(view.slot(address, index)?).filter(|value| !value.is_zero()).map(StateValue::Slot)
                }
            };
            assert_eq!(row, ledger.state.get(key).copied(), "{key:?} alone behind batch {number}");
        }
        assert_eq!(view.header_digest(number)?, Some(ledger.head.digest()));
        Ok(())
    }

    fn read(&self, seed: u64) {
        let _over = Over(&self.is_over);
        let (mut random, mut views) = (Random(seed), VecDeque::new());
        while !self.is_over.load(Ordering::Acquire) {
            let (number, view) = match random.below(4) {
                0 => {
                    let view = self.store.view().unwrap();
                    (view.head().number.get(), view)
                }
                by => {
                    let number = self.pick(&mut random);
                    let Some(view) = self.view(number, by == 1) else { continue };
                    (number, view)
                }
            };
            self.check(number, &view, &mut random);
            views.push_back((number, view));
            if views.len() > VIEWS_KEPT
                && let Some((number, view)) = views.pop_front()
            {
                self.check(number, &view, &mut random);
            }
        }
    }

    /// Commits one by one and in groups. Now and then it releases all states but the head's, as a restart does.
    fn write(&self, made: &[Made]) {
        let _over = Over(&self.is_over);
        let (mut done, mut step) = (0, 0);
        while done < made.len() {
            let part = &made[done..(done + 1 + step % 5).min(made.len())];
            done += part.len();
            self.begun.store(done as u64, Ordering::Release);
            match step % 4 {
                0 => part.iter().for_each(|made| {
                    let speculation = self.store.speculate(&made.delta).unwrap();
                    self.store.commit(made.batch(), Some(speculation)).unwrap();
                }),
                group => commit(self.store, part, group),
            }
            if step % 8 == 7 {
                let_go(self.store);
            }
            step += 1;
            let enough = step as u64 * COMPARISONS;
            while self.right.load(Ordering::Relaxed) < enough && !self.is_over.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn states_stay_right_while_batches_are_committed() {
    let (made, ledgers) = ledgers(&changes());
    let mut keys: Vec<StateKey> = ledgers.iter().flat_map(|ledger| ledger.state.keys().copied()).collect();
    keys.sort_unstable();
    keys.dedup();
    for kept in [StateHistory::All, StateHistory::Batches(20), StateHistory::Batches(3)] {
        on_both(&StorageConfig { state_history: kept, ..config() }, |fixture| {
            let race = Race {
                store: fixture.store(),
                kept,
                ledgers: &ledgers,
                keys: &keys,
                begun: AtomicU64::new(0),
                right: AtomicU64::new(0),
                is_over: AtomicBool::new(false),
            };
            std::thread::scope(|scope| {
                for seed in 1..=READERS {
                    let race = &race;
                    scope.spawn(move || race.read(seed));
                }
                race.write(&made);
            });
            check_all(fixture.store(), &ledgers, kept.first(BatchNumber::new(BATCHES)).get());
        });
    }
}
