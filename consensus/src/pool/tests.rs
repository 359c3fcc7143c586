//! The pool's order and limits beside a model that recomputes everything from scratch, and the rules one by one.

use std::{cmp::Reverse, collections::BTreeMap};

use alloy_primitives::{Address, B256, U256};
use proptest::prelude::*;
use slipstream_executor::Room;
use slipstream_types::ChainConfig;

use super::{
    Pool, PoolError, PoolStatus,
    account_queue::{AccountState, Terms},
    candidates::Cursor,
    index::Index,
};
use crate::{
    config::PoolConfig,
    testing::{Account, genesis, store},
};

const UNLIMITED: Room = Room { gas: u64::MAX, bytes: usize::MAX };

fn sender(index: u8) -> Address {
    Address::repeat_byte(index + 1)
}

fn terms(id: u64, from: u8, nonce: u64, fee: u128) -> Terms {
    Terms {
        hash: B256::from(U256::from(id)),
        sender: sender(from),
        nonce,
        gas_limit: 21_000,
        bytes: 100,
        cost_max: U256::from(10),
        max_fee_wei: fee,
        tip_cap_wei: fee,
        tip_wei: fee,
    }
}

fn state(nonce: u64, balance: u64) -> AccountState {
    AccountState { nonce, balance: U256::from(balance) }
}

fn index(transactions_max: usize) -> Index<u64> {
    Index::new(PoolConfig { transactions_max, bytes_max: 10_000, per_sender_max: 8, price_bump_percent: 10 })
}

/// Everything that can execute, in the order in which it is proposed.
fn all<T: Clone>(pool: &Index<T>) -> Vec<T> {
    let mut cursor = Cursor::default();
    std::iter::from_fn(|| pool.draw(&mut cursor, UNLIMITED)).collect()
}

/// A batch in which every transaction uses so much of its gas limit.
fn filled(pool: &Index<u64>, mut room: Room, gas_used: u64) -> Vec<u64> {
    let mut cursor = Cursor::default();
    let draw = || {
        let drawn = pool.draw(&mut cursor, room)?;
        room.gas -= gas_used;
        room.bytes -= 100;
        Some(drawn)
    };
    std::iter::from_fn(draw).collect()
}

/// The same rules, without any structure to keep up to date.
struct Model {
    config: PoolConfig,
    entries: Vec<(Terms, u64)>,
    accounts: BTreeMap<Address, AccountState>,
    sequence: u64,
}

type Rank = (bool, u128, Reverse<u64>, Address);

impl Model {
    fn of(&self, sender: Address) -> Vec<&(Terms, u64)> {
        let mut own: Vec<_> = self.entries.iter().filter(|(terms, _)| terms.sender == sender).collect();
        own.sort_by_key(|(terms, _)| terms.nonce);
        own
    }

    fn ready(&self, sender: Address) -> Vec<&(Terms, u64)> {
        let AccountState { mut nonce, balance } = self.accounts[&sender];
        let mut left = balance;
        let mut ready = Vec::new();
        for entry in self.of(sender) {
            if entry.0.nonce != nonce || entry.0.cost_max > left {
                break;
            }
            left -= entry.0.cost_max;
            nonce += 1;
            ready.push(entry);
        }
        ready
    }

    fn tail(&self, sender: Address) -> Option<(Rank, u64)> {
        let (terms, sequence) = self.of(sender).pop()?;
        let is_ready = self.ready(sender).iter().any(|(ready, _)| ready.nonce == terms.nonce);
        Some(((is_ready, terms.tip_wei, Reverse(*sequence), sender), terms.nonce))
    }

    fn insert(&mut self, new: Terms) -> bool {
        let account = self.accounts[&new.sender];
        let known = self.entries.iter().any(|(terms, _)| terms.hash == new.hash);
        let distant = new.nonce < account.nonce || new.nonce - account.nonce >= self.config.per_sender_max;
        if known || distant || new.cost_max > account.balance {
            return false;
        }
        let before = self.entries.clone();
        if let Some((old, _)) = self.of(new.sender).into_iter().find(|(old, _)| old.nonce == new.nonce) {
            let enough = |old: u128, new: u128| {
                new > old && new * 100 >= old * u128::from(100 + self.config.price_bump_percent)
            };
            if !enough(old.max_fee_wei, new.max_fee_wei) || !enough(old.tip_cap_wei, new.tip_cap_wei) {
                return false;
            }
            let hash = old.hash;
            self.entries.retain(|(terms, _)| terms.hash != hash);
        }
        let sequence = self.sequence;
        self.entries.push((new.clone(), sequence));
        let is_ready = self.ready(new.sender).iter().any(|(terms, _)| terms.hash == new.hash);
        self.entries.pop();
        while self.entries.len() >= self.config.transactions_max
            || self.bytes() + new.bytes > self.config.bytes_max
        {
            let Some((rank, nonce)) = self.accounts.keys().filter_map(|sender| self.tail(*sender)).min()
            else {
                self.entries = before;
                return false;
            };
            let own = rank.3 == new.sender && nonce < new.nonce;
            if own || (rank.0, rank.1) >= (is_ready, new.tip_wei) {
                self.entries = before;
                return false;
            }
            self.entries.retain(|(terms, _)| (terms.sender, terms.nonce) != (rank.3, nonce));
        }
        self.entries.push((new, sequence));
        self.sequence += 1;
        true
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(|(terms, _)| terms.bytes).sum()
    }

    fn candidates(&self) -> Vec<B256> {
        let mut queues: Vec<_> = self.accounts.keys().map(|sender| self.ready(*sender)).collect();
        let mut order = Vec::new();
        loop {
            queues.retain(|queue| !queue.is_empty());
            let best = queues.iter_mut().max_by_key(|queue| {
                let (terms, sequence) = queue[0];
                (terms.tip_wei, Reverse(*sequence))
            });
            let Some(best) = best else { return order };
            order.push(best.remove(0).0.hash);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert { from: u8, nonce: u64, fee: u128, bytes: usize, cost: u64 },
    Advance { from: u8, nonces: u64, balance: u64 },
    Remove { id: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..4u8, 0..12u64, 0..30u128, 50..400usize, 1..40u64)
            .prop_map(|(from, nonce, fee, bytes, cost)| Step::Insert { from, nonce, fee, bytes, cost }),
        2 => (0..4u8, 0..3u64, 0..120u64).prop_map(|(from, nonces, balance)| Step::Advance { from, nonces, balance }),
        1 => (0..60u64).prop_map(|id| Step::Remove { id }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    // Whatever comes in whatever order: what is taken, what is evicted, what can execute and in which order is as the model
    // says, and no limit is ever passed.
    #[test]
    fn behaves_as_the_model(steps in proptest::collection::vec(step(), 1..120)) {
        let config = PoolConfig { transactions_max: 10, bytes_max: 2_000, per_sender_max: 6, price_bump_percent: 10 };
        let accounts = (0..4).map(|from| (sender(from), state(0, 100))).collect();
        let mut model = Model { config: config.clone(), entries: Vec::new(), accounts, sequence: 0 };
        let mut index: Index<B256> = Index::new(config.clone());
        for (id, step) in (0u64..).zip(steps) {
            match step {
                Step::Insert { from, nonce, fee, bytes, cost } => {
                    let terms = Terms { bytes, cost_max: U256::from(cost), ..terms(id, from, nonce, fee) };
                    let account = model.accounts[&terms.sender];
                    let taken = index.insert(terms.clone(), terms.hash, account).is_ok();
                    prop_assert_eq!(taken, model.insert(terms));
                }
                Step::Advance { from, nonces, balance } => {
                    let account = model.accounts.get_mut(&sender(from)).unwrap();
                    *account = state(account.nonce + nonces, balance);
                    index.advance(&sender(from), *account);
                    let nonce = account.nonce;
                    model.entries.retain(|(terms, _)| terms.sender != sender(from) || terms.nonce >= nonce);
                }
                Step::Remove { id } => {
                    let hash = B256::from(U256::from(id));
                    let removed = index.remove(&hash).is_some();
                    prop_assert_eq!(removed, model.entries.iter().any(|(terms, _)| terms.hash == hash));
                    model.entries.retain(|(terms, _)| terms.hash != hash);
                }
            }
            let ordered = model.candidates();
            let status = PoolStatus {
                pending: ordered.len(),
                queued: model.entries.len() - ordered.len(),
                bytes: model.bytes(),
            };
            prop_assert_eq!(index.status(), status);
            prop_assert!(status.pending + status.queued <= config.transactions_max && status.bytes <= config.bytes_max);
            prop_assert_eq!(all(&index), ordered);
            for (terms, _) in &model.entries {
                prop_assert_eq!(index.get(&terms.hash), Some(&terms.hash));
            }
        }
    }
}

// A replacement pays ten percent more on both fees; one that does not is told what it takes.
#[test]
fn replacement_needs_both_fees() {
    let mut pool = index(10);
    pool.insert(terms(1, 0, 0, 105), 1, state(0, 100)).unwrap();
    let cheap_tip = Terms { tip_cap_wei: 115, ..terms(2, 0, 0, 116) };
    assert!(matches!(
        pool.insert(cheap_tip, 2, state(0, 100)),
        Err(PoolError::ReplacementUnderpriced { max_fee_wei: 116, tip_wei: 116, .. })
    ));
    pool.insert(terms(3, 0, 0, 116), 3, state(0, 100)).unwrap();
    assert_eq!(all(&pool), [3]);
    assert_eq!(pool.status(), PoolStatus { pending: 1, queued: 0, bytes: 100 });
    assert!(matches!(
        pool.insert(terms(3, 0, 0, 116), 3, state(0, 100)),
        Err(PoolError::AlreadyKnown { .. })
    ));
}

// A gap waits and is closed; too far ahead, behind and unpayable are refused by name.
#[test]
fn nonces_and_funds() {
    let mut pool = index(10);
    let account = state(5, 100);
    pool.insert(terms(1, 0, 6, 1), 1, account).unwrap();
    assert_eq!(pool.status(), PoolStatus { pending: 0, queued: 1, bytes: 100 });
    assert_eq!(pool.pending_nonce(&sender(0)), Some(5));
    pool.insert(terms(2, 0, 5, 1), 2, account).unwrap();
    assert_eq!(all(&pool), [2, 1]);
    assert_eq!(pool.pending_nonce(&sender(0)), Some(7));
    assert!(matches!(
        pool.insert(terms(3, 0, 4, 1), 3, account),
        Err(PoolError::NonceTooLow { nonce: 4, next: 5 })
    ));
    let distant = pool.insert(terms(3, 0, 13, 1), 3, account);
    assert!(matches!(distant, Err(PoolError::NonceTooHigh { nonce: 13, next: 5, max: 8 })));
    let dear = Terms { cost_max: U256::from(101), ..terms(3, 0, 7, 1) };
    assert!(matches!(pool.insert(dear, 3, account), Err(PoolError::InsufficientFunds { .. })));
}

// Of a full pool the worst last transaction goes, one that cannot execute before any that can; who pays no more than the
// worst is refused, and a refusal changes nothing.
#[test]
fn full_pool_keeps_the_best() {
    let mut pool = index(3);
    pool.insert(terms(1, 0, 0, 50), 1, state(0, 100)).unwrap();
    pool.insert(terms(2, 0, 1, 5), 2, state(0, 100)).unwrap();
    pool.insert(terms(3, 1, 1, 900), 3, state(0, 100)).unwrap();
    pool.insert(terms(4, 2, 0, 7), 4, state(0, 100)).unwrap();
    assert!(!pool.contains(&B256::from(U256::from(3))), "it waited for a nonce");
    let cheap = pool.insert(terms(5, 3, 0, 5), 5, state(0, 100));
    assert!(matches!(cheap, Err(PoolError::Underpriced { tip_wei: 5, lowest_wei: 5 })));
    assert_eq!(all(&pool), [1, 4, 2]);
    pool.insert(terms(6, 3, 0, 6), 6, state(0, 100)).unwrap();
    assert_eq!(all(&pool), [1, 4, 6]);
    // A large one would have to drive out several: the last of them pays more, so all of them stay.
    let large = Terms { bytes: 9_950, ..terms(7, 4, 0, 20) };
    assert!(pool.insert(large, 7, state(0, 100)).is_err());
    assert_eq!(all(&pool), [1, 4, 6]);
}

// What does not fit is passed over with what its sender has after it; whoever comes behind goes on.
#[test]
fn what_does_not_fit_is_passed_over() {
    let mut pool = index(10);
    for (id, from, nonce, fee, gas_limit) in [
        (1, 0, 0, 90, 60_000),
        (2, 0, 1, 80, 21_000),
        (3, 1, 0, 70, 100_000),
        (4, 1, 1, 60, 21_000),
        (5, 2, 0, 50, 50_000),
        (6, 3, 0, 40, 21_000),
    ] {
        pool.insert(Terms { gas_limit, ..terms(id, from, nonce, fee) }, id, state(0, 100)).unwrap();
    }
    let room = Room { gas: 100_000, bytes: 10_000 };
    assert_eq!(filled(&pool, room, 21_000), [1, 2, 5, 6], "58,000 gas are left for the fifth");
    assert_eq!(filled(&pool, room, 10_000), [1, 2, 5, 6]);
    assert_eq!(filled(&pool, Room { gas: 103_000, ..room }, 1_000), [1, 2, 3, 4, 5, 6]);
    assert_eq!(filled(&pool, Room { bytes: 299, ..room }, 21_000), [1, 2]);
    // Nothing is remembered: by its tip the passed-over one is first as soon as it is the best.
    pool.advance(&sender(0), state(2, 100));
    assert_eq!(filled(&pool, room, 21_000), [3, 4, 5, 6]);
}

// What is drawn and then left out takes what its sender has after it along.
#[test]
fn who_is_left_out_is_not_drawn_again() {
    let mut pool = index(10);
    for (id, from, nonce, fee) in [(1, 0, 0, 90), (2, 0, 1, 80), (3, 1, 0, 70), (4, 1, 1, 60)] {
        pool.insert(terms(id, from, nonce, fee), id, state(0, 100)).unwrap();
    }
    let mut cursor = Cursor::default();
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), Some(1));
    cursor.leave_out();
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), Some(3));
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), Some(4));
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), None);
}

// The pool goes on living between two draws: what is gone is not drawn, and nobody is drawn twice.
#[test]
fn the_pool_may_change_between_draws() {
    let mut pool = index(10);
    for (id, from, nonce, fee) in [(1, 0, 0, 90), (2, 0, 1, 80), (3, 1, 0, 70), (4, 2, 0, 60)] {
        pool.insert(terms(id, from, nonce, fee), id, state(0, 100)).unwrap();
    }
    let mut cursor = Cursor::default();
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), Some(1));
    pool.remove(&B256::from(U256::from(2)));
    pool.remove(&B256::from(U256::from(3)));
    pool.insert(terms(5, 3, 0, 900), 5, state(0, 100)).unwrap();
    pool.insert(terms(6, 3, 1, 50), 6, state(0, 100)).unwrap();
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), Some(4), "the new best one waits for the next batch");
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), None);
    assert_eq!(all(&pool), [5, 1, 4, 6]);
}

// A pool full of what does not fit costs one batch a bounded number of looks.
#[test]
fn misfits_cost_a_bounded_search() {
    let mut pool = index(20_000);
    for id in 0..20_000u64 {
        let sender = Address::left_padding_from(&id.to_be_bytes());
        let large = Terms { sender, gas_limit: 90_000, bytes: 0, ..terms(id, 0, 0, 9) };
        pool.insert(large, id, state(0, 100)).unwrap();
    }
    pool.insert(Terms { bytes: 0, ..terms(20_000, 0, 0, 8) }, 20_000, state(0, 100)).unwrap_err();
    let mut cursor = Cursor::default();
    assert_eq!(pool.draw(&mut cursor, Room { gas: 90_000, ..UNLIMITED }), Some(0));
    assert_eq!(pool.draw(&mut cursor, Room { gas: 69_000, ..UNLIMITED }), None);
    assert_eq!(cursor.misfits, 16_384);
    assert_eq!(pool.draw(&mut cursor, Room { gas: 90_000, ..UNLIMITED }), None);
}

// What could execute for so many sweeps goes, with what follows it; what became executable later, or waits, stays.
#[test]
fn what_is_never_executed_expires() {
    let mut pool = index(10);
    pool.insert(terms(1, 0, 0, 9), 1, state(0, 100)).unwrap();
    pool.insert(terms(2, 1, 1, 9), 2, state(0, 100)).unwrap();
    assert_eq!((pool.sweep(3), pool.sweep(3)), (0, 0));
    pool.insert(terms(3, 0, 1, 9), 3, state(0, 100)).unwrap();
    pool.insert(terms(4, 0, 3, 9), 4, state(0, 100)).unwrap();
    pool.insert(terms(5, 1, 0, 9), 5, state(0, 100)).unwrap();
    pool.insert(terms(6, 2, 0, 9), 6, state(0, 100)).unwrap();
    assert_eq!((pool.sweep(3), pool.sweep(3)), (0, 2));
    assert_eq!(pool.pending_nonce(&sender(0)), Some(0));
    assert_eq!(pool.status(), PoolStatus { pending: 3, queued: 1, bytes: 400 });
    // A batch that moves the sender on begins its time anew.
    pool.advance(&sender(1), state(1, 100));
    assert_eq!((pool.sweep(3), pool.sweep(3)), (0, 1), "the third sender's");
    assert_eq!(all(&pool), [2]);
    assert_eq!((pool.sweep(3), pool.sweep(3)), (0, 1));
}

/// Goal: what asks for more gas than the chain gives one transaction is refused with the text that clients know.
#[test]
fn a_gas_limit_above_the_cap_is_refused() {
    let genesis = genesis(1);
    let chain = ChainConfig { transaction_gas_max: 20_999, ..genesis.chain.clone() };
    let pool = Pool::new(PoolConfig::default(), chain, store(&genesis)).unwrap();
    let refused = pool.add(Account::new(0).transfer(0, 7)).unwrap_err();
    assert_eq!(refused.to_string(), "transaction gas limit too high (cap: 20999, tx: 21000)");
    assert!(!refused.is_retryable());
}
