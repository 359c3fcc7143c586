//! The pool's order and limits beside a model that recomputes everything from scratch.

use std::{cmp::Reverse, collections::BTreeMap};

use alloy_primitives::{Address, B256, U256};
use proptest::prelude::*;
use tokio::time::Instant;

use super::{
    super::{
        account_queue::{AccountState, Terms, Worth},
        candidates::Ahead,
        index::{Arrival, Index},
    },
    UNLIMITED, all, sender, state, terms,
};
use crate::config::PoolConfig;

/// The same rules, without any structure to keep up to date, and at one moment.
struct Model {
    config: PoolConfig,
    entries: Vec<(Terms, u64)>,
    accounts: BTreeMap<Address, AccountState>,
    floor_wei: u128,
    sequence: u64,
}

type Rank = (Worth, Reverse<u64>, Address);

impl Model {
    fn of(&self, sender: Address) -> Vec<&(Terms, u64)> {
        let mut own: Vec<_> = self.entries.iter().filter(|(terms, _)| terms.sender == sender).collect();
        own.sort_by_key(|(terms, _)| terms.nonce);
        own
    }

    fn ready(&self, sender: Address) -> Vec<&(Terms, u64)> {
        let AccountState { mut nonce, balance, .. } = self.accounts[&sender];
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

    /// The worth of one entry.
    fn worth(&self, of: &Terms) -> Worth {
        let ready = self.ready(of.sender);
        match ready.iter().position(|(terms, _)| terms.nonce == of.nonce) {
            None => Worth::Waiting(Reverse(self.of(of.sender).len() - ready.len())),
            Some(index) => Worth::Ready {
                floor_wei: ready[..=index].iter().map(|(terms, _)| terms.tip_wei).min().unwrap(),
                is_within_slots: index < 16,
            },
        }
    }

    fn tail(&self, sender: Address) -> Option<(Rank, u64)> {
        let (terms, sequence) = self.of(sender).pop()?;
        Some(((self.worth(terms), Reverse(*sequence), sender), terms.nonce))
    }

    fn lowest(&self, spared: Option<Address>) -> Option<(Rank, u64)> {
        let senders = self.accounts.keys().filter(|sender| Some(**sender) != spared);
        senders.filter_map(|sender| self.tail(*sender)).min()
    }

    fn remove(&mut self, sender: Address, nonce: u64) {
        self.entries.retain(|(terms, _)| (terms.sender, terms.nonce) != (sender, nonce));
    }

    fn insert(&mut self, new: Terms) -> bool {
        let before = (self.entries.clone(), self.floor_wei);
        let taken = self.try_insert(new);
        if !taken {
            (self.entries, self.floor_wei) = before;
        }
        taken
    }

    fn try_insert(&mut self, new: Terms) -> bool {
        let account = self.accounts[&new.sender];
        let known = self.entries.iter().any(|(terms, _)| terms.hash == new.hash);
        let distant = new.nonce < account.nonce || new.nonce - account.nonce >= self.config.per_sender_max;
        if known || distant || new.cost_max > account.balance {
            return false;
        }
        let old = self.of(new.sender).into_iter().find(|(old, _)| old.nonce == new.nonce).cloned();
        if let Some((old, _)) = &old {
            let enough = |old: u128, new: u128| {
                new > old && new * 100 >= old * u128::from(100 + self.config.price_bump_percent)
            };
            if !enough(old.max_fee_wei, new.max_fee_wei) || !enough(old.tip_cap_wei, new.tip_cap_wei) {
                return false;
            }
        }
        let is_live = |(authority, nonce): &&(Address, u64)| self.accounts[authority].nonce <= *nonce;
        let named_by =
            |terms: &Terms| terms.authorities.iter().filter(is_live).map(|(of, _)| *of).collect::<Vec<_>>();
        let named = self.entries.iter().any(|(terms, _)| named_by(terms).contains(&new.sender));
        let others = self.of(new.sender).len() - usize::from(old.is_some());
        if (account.has_code || named) && (others > 0 || new.nonce != account.nonce)
            || new.authorities.iter().any(|(authority, nonce)| {
                self.accounts[authority].nonce <= *nonce && self.of(*authority).len() > 1
            })
        {
            return false;
        }
        let (kept, sequence) = (self.entries.clone(), self.sequence);
        self.remove(new.sender, new.nonce);
        self.entries.push((new.clone(), sequence));
        let worth = self.worth(&new);
        self.entries = kept;
        if old.is_none() && !self.pays(&new, worth) {
            return false;
        }
        while self.is_full_for(&new, worth, old.as_ref().map(|(old, _)| old)) {
            let spared = old.as_ref().map(|_| new.sender);
            let Some(((victim, _, sender), nonce)) = self.lowest(spared) else { return false };
            if sender == new.sender && nonce < new.nonce || victim >= worth {
                return false;
            }
            if let Worth::Ready { floor_wei, .. } = victim {
                self.floor_wei = self.floor_wei.max(floor_wei);
            }
            self.remove(sender, nonce);
        }
        self.remove(new.sender, new.nonce);
        self.entries.push((new, sequence));
        self.sequence += 1;
        self.trim();
        true
    }

    fn pays(&self, new: &Terms, worth: Worth) -> bool {
        let PoolConfig { transactions_max, bytes_max, .. } = self.config;
        let roomy = self.entries.len() < transactions_max / 2 && self.bytes() < bytes_max / 2;
        let dearer = self.floor_wei + (self.floor_wei * 10).div_ceil(100);
        match worth {
            _ if roomy => true,
            Worth::Ready { floor_wei, is_within_slots: true } => floor_wei >= self.floor_wei,
            Worth::Ready { floor_wei, .. } => floor_wei >= dearer,
            Worth::Waiting(_) => new.tip_wei >= dearer,
        }
    }

    /// Counts the waiting transactions and their bytes.
    fn waiting(&self) -> (usize, usize) {
        let waits = |terms: &&Terms| matches!(self.worth(terms), Worth::Waiting(_));
        let waiting: Vec<_> = self.entries.iter().map(|(terms, _)| terms).filter(waits).collect();
        (waiting.len(), waiting.iter().map(|terms| terms.bytes).sum())
    }

    fn is_full_for(&self, new: &Terms, worth: Worth, old: Option<&Terms>) -> bool {
        let PoolConfig { transactions_max, bytes_max, .. } = self.config;
        let (mut waiting, mut waiting_bytes) = self.waiting();
        let (mut count, mut bytes) = (self.entries.len(), self.bytes());
        if let Some(old) = old {
            (count, bytes) = (count - 1, bytes - old.bytes);
            if matches!(self.worth(old), Worth::Waiting(_)) {
                (waiting, waiting_bytes) = (waiting - 1, waiting_bytes - old.bytes);
            }
        }
        let waits = matches!(worth, Worth::Waiting(_));
        count >= transactions_max
            || bytes + new.bytes > bytes_max
            || waits && (waiting >= transactions_max / 4 || waiting_bytes + new.bytes > bytes_max / 4)
    }

    /// Evicts waiting transactions beyond their share.
    fn trim(&mut self) {
        loop {
            let (waiting, waiting_bytes) = self.waiting();
            if waiting <= self.config.transactions_max / 4 && waiting_bytes <= self.config.bytes_max / 4 {
                return;
            }
            let ((_, _, sender), nonce) = self.lowest(None).unwrap();
            self.remove(sender, nonce);
        }
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(|(terms, _)| terms.bytes).sum()
    }

    /// The candidates of a batch after those that hold the transactions `ahead`.
    fn candidates(&self, ahead: &Ahead) -> Vec<B256> {
        let is_left = |terms: &Terms| ahead.get(&terms.sender).is_none_or(|next| terms.nonce >= *next);
        let mut queues: Vec<_> = self.accounts.keys().map(|sender| self.ready(*sender)).collect();
        queues.iter_mut().for_each(|queue| queue.retain(|(terms, _)| is_left(terms)));
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
    Insert {
        from: u8,
        nonce: u64,
        fee: u128,
        caps: (u128, u128),
        bytes: usize,
        cost: u64,
        authority: Option<u8>,
    },
    Advance {
        from: u8,
        nonces: u64,
        balance: u64,
        has_code: bool,
    },
    Remove {
        id: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let authority = prop_oneof![9 => Just(None), 1 => (0..4u8).prop_map(Some)];
    // The caps of fee and tip exceed the tip, each by any amount.
    let caps = (0..30u128, 0..30u128);
    let insert = (0..4u8, 0..12u64, 0..30u128, caps, 50..400usize, 1..40u64, authority);
    let advance = (0..4u8, 0..3u64, 0..120u64, 0..8u8);
    prop_oneof![
        8 => insert.prop_map(|(from, nonce, fee, caps, bytes, cost, authority)| {
            Step::Insert { from, nonce, fee, caps, bytes, cost, authority }
        }),
        2 => advance.prop_map(|(from, nonces, balance, code)| {
            Step::Advance { from, nonces, balance, has_code: code == 0 }
        }),
        1 => (0..60u64).prop_map(|id| Step::Remove { id }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    // In any order of events the pool takes, evicts, offers and ranks as the model does, and stays within every limit.
    #[test]
    fn behaves_as_the_model(steps in proptest::collection::vec(step(), 1..120)) {
        let config = PoolConfig { transactions_max: 10, bytes_max: 2_000, per_sender_max: 6, ..PoolConfig::default() };
        let accounts = (0..4).map(|from| (sender(from), state(0, 100))).collect();
        let mut model = Model { config: config.clone(), entries: Vec::new(), accounts, floor_wei: 0, sequence: 0 };
        let arrival = Arrival { at: Instant::now(), is_local: false };
        let mut index: Index<B256> = Index::new(config.clone(), arrival.at);
        for (id, step) in (0u64..).zip(steps) {
            match step {
                Step::Insert { from, nonce, fee, caps, bytes, cost, authority } => {
                    let authorities = authority.map(|of| (sender(of), nonce)).into_iter().collect();
                    let (max_fee_wei, tip_cap_wei) = (fee + caps.0, fee + caps.1);
                    let terms = Terms {
                        max_fee_wei,
                        tip_cap_wei,
                        bytes,
                        cost_max: U256::from(cost),
                        authorities,
                        ..terms(id, from, nonce, fee)
                    };
                    let account = model.accounts[&terms.sender];
                    let taken = index.insert(terms.clone(), terms.hash, account, arrival).is_ok();
                    prop_assert_eq!(taken, model.insert(terms));
                }
                Step::Advance { from, nonces, balance, has_code } => {
                    let account = model.accounts.get_mut(&sender(from)).unwrap();
                    *account = AccountState { has_code, ..state(account.nonce + nonces, balance) };
                    index.advance(&sender(from), *account);
                    let nonce = account.nonce;
                    model.entries.retain(|(terms, _)| terms.sender != sender(from) || terms.nonce >= nonce);
                    while has_code && model.of(sender(from)).len() > 1 {
                        let last = model.of(sender(from)).pop().unwrap().0.nonce;
                        model.remove(sender(from), last);
                    }
                    model.trim();
                }
                Step::Remove { id } => {
                    let hash = B256::from(U256::from(id));
                    let removed = index.remove(&hash).is_some();
                    prop_assert_eq!(removed, model.entries.iter().any(|(terms, _)| terms.hash == hash));
                    model.entries.retain(|(terms, _)| terms.hash != hash);
                    model.trim();
                }
            }
            let ordered = model.candidates(&Ahead::new());
            let (pending, queued, bytes) = index.counts();
            prop_assert_eq!((pending, queued, bytes), (ordered.len(), model.entries.len() - ordered.len(), model.bytes()));
            prop_assert!(pending + queued <= config.transactions_max && bytes <= config.bytes_max);
            prop_assert!(queued <= config.transactions_max / 4);
            prop_assert_eq!(all(&index), ordered);
            // Every second sender has half of its ready transactions in batches that are not committed yet.
            let ready = model.accounts.keys().map(|sender| (*sender, model.accounts[sender].nonce, model.ready(*sender).len()));
            let ahead: Ahead = ready
                .filter(|(_, _, len)| *len > 0)
                .step_by(2)
                .map(|(sender, nonce, len)| (sender, nonce + (len as u64).div_ceil(2)))
                .collect();
            let mut cursor = index.cursor(ahead.clone());
            let drawn: Vec<B256> = std::iter::from_fn(|| index.draw(&mut cursor, UNLIMITED)).collect();
            prop_assert_eq!(drawn, model.candidates(&ahead));
            for (terms, _) in &model.entries {
                prop_assert_eq!(index.get(&terms.hash), Some(&terms.hash));
            }
        }
    }
}
