//! [`NonceBook`]: assigns nonces to transactions, through refusals, lost answers and nodes that forget. Sans-I/O.
//!
//! ```text
//!  push (due) ──▶ Waiting ──take──▶ Sent ──accepted──▶ Accepted ──the chain passed it──▶ gone
//!                    ▲               │                    │
//!                    ├── not taken yet, after a delay ────┘ not executed for RESEND_AFTER: sent again
//!                    └── refused for good: another transaction plugs the nonce, so that later ones are not held up
//! ```
//!
//! The owner of a book calls [`NonceBook::push`] in the order of the schedule, and [`NonceBook::take`] for the
//! transactions to send. It passes each answer to [`NonceBook::settle`], and passes the nonces that
//! [`NonceBook::doubtful`] requests to [`NonceBook::observe`]. Times count from the start of the run and come from
//! outside.
//!
//! Invariants:
//! * The nonces of an account have no gap: `first`, `first + 1`, and so on.
//! * Each pushed transaction ends as accepted or given up, once; a displaced one keeps its place in the count.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, VecDeque},
    time::Duration,
};

/// The most attempts of one transaction after its first.
pub(super) const RETRIES_MAX: u32 = 20;
/// The delay between two attempts: a full pool empties with the next batch.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(250);
/// The delay after which an accepted transaction is sent again if the chain has not executed it: the node may have
/// forgotten it.
pub(super) const RESEND_AFTER: Duration = Duration::from_secs(5);
/// The most transactions of one account that are resent at once: more would fill a pool that dropped them because it
/// was full.
const RESEND_MAX: usize = 16;
/// The most accounts that are queried at once.
const DOUBTFUL_MAX: usize = 100;

/// The use of a nonce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The plan's transaction of this index.
    Planned(u32),
    /// A transfer of nothing to oneself, which replaces a transaction that was refused for good.
    Plug,
}

/// A transaction to send now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Attempt {
    /// The account's index in the book.
    pub(super) account: usize,
    pub(super) nonce: u64,
    pub(super) purpose: Purpose,
    /// The number of earlier attempts.
    pub(super) tried: u32,
}

/// A node's answer to a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The node accepted it, now or before.
    Accepted,
    /// The node may accept it later.
    Later,
    /// The node did not answer: it may have accepted it.
    Lost,
    /// The node will never accept it.
    Never,
    /// The nonce belongs to another transaction, or to an earlier attempt whose answer was lost.
    NonceTaken,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting { not_before: Duration },
    Sent,
    Accepted { at: Duration },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    purpose: Purpose,
    tried: u32,
    /// Whether a node accepted it: a transaction is counted once, even if it is resent.
    is_counted: bool,
    /// Whether an attempt had no answer.
    may_have_arrived: bool,
    state: State,
}

impl Slot {
    fn new(purpose: Purpose, not_before: Duration) -> Slot {
        let state = State::Waiting { not_before };
        Slot { purpose, tried: 0, is_counted: false, may_have_arrived: false, state }
    }
}

#[derive(Clone, Debug)]
struct Account {
    /// The nonce of the first slot: the last known next nonce on the chain.
    first: u64,
    slots: VecDeque<Slot>,
    /// Whether the account is given up: it cannot even pay for a plug, or nodes refuse everything from it.
    is_retired: bool,
}

impl Account {
    fn slot(&mut self, nonce: u64) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(nonce.checked_sub(self.first)?).ok()?)
    }
}

/// The outcomes of all transactions so far.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Counts {
    /// Transactions of the plan that were pushed.
    pub(super) pushed: u64,
    /// The pushed transactions that a node accepted.
    pub(super) accepted: u64,
    /// The pushed transactions that no node accepts.
    pub(super) given_up: u64,
    /// Nonces that were plugged.
    pub(super) plugged: u64,
    /// Transactions that were resent because the chain did not execute them.
    pub(super) resent: u64,
    /// Transactions that got another nonce because another sender used theirs.
    pub(super) displaced: u64,
}

/// The nonces of some accounts.
pub(super) struct NonceBook {
    accounts: Vec<Account>,
    /// Waiting slots by time. An entry is stale unless its slot still waits for that time.
    waiting: BinaryHeap<Reverse<(Duration, usize, u64)>>,
    /// Accounts whose first slot was accepted, by the time at which it was. Entries may be stale, as in `waiting`.
    accepted: BTreeSet<(Duration, usize)>,
    /// Accounts whose nonce another sender seems to use.
    conflicts: BTreeSet<usize>,
    /// Transactions that were given up although a node may have accepted them.
    in_doubt: Vec<u32>,
    counts: Counts,
}

impl NonceBook {
    /// Makes a book of accounts with these next nonces.
    pub(super) fn new(nonces: impl IntoIterator<Item = u64>) -> NonceBook {
        let account = |first| Account { first, slots: VecDeque::new(), is_retired: false };
        NonceBook {
            accounts: nonces.into_iter().map(account).collect(),
            waiting: BinaryHeap::new(),
            accepted: BTreeSet::new(),
            conflicts: BTreeSet::new(),
            in_doubt: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Adds the account's next transaction, due at this time.
    pub(super) fn push(&mut self, account: usize, index: u32, due: Duration) {
        self.counts.pushed += 1;
        if self.accounts[account].is_retired {
            self.counts.given_up += 1;
        } else {
            self.append(account, Purpose::Planned(index), due);
        }
    }

    fn append(&mut self, account: usize, purpose: Purpose, not_before: Duration) {
        let entry = &mut self.accounts[account];
        let nonce = entry.first + entry.slots.len() as u64;
        entry.slots.push_back(Slot::new(purpose, not_before));
        self.waiting.push(Reverse((not_before, account, nonce)));
    }

    /// Takes the transactions to send now, at most `max`, longest waiting first.
    pub(super) fn take(&mut self, now: Duration, max: usize) -> Vec<Attempt> {
        let mut sends = Vec::new();
        while sends.len() < max {
            let Some(&Reverse((not_before, account, nonce))) = self.waiting.peek() else { break };
            if not_before > now {
                break;
            }
            self.waiting.pop();
            let Some(slot) = self.accounts[account].slot(nonce) else { continue };
            if slot.state != (State::Waiting { not_before }) {
                continue;
            }
            slot.state = State::Sent;
            sends.push(Attempt { account, nonce, purpose: slot.purpose, tried: slot.tried });
        }
        sends
    }

    /// Processes the answer to an attempt from [`NonceBook::take`].
    pub(super) fn settle(&mut self, send: Attempt, verdict: Verdict, now: Duration) {
        let Attempt { account, nonce, purpose, tried } = send;
        let Some(slot) = self.accounts[account].slot(nonce) else { return };
        if slot.state != State::Sent || slot.purpose != purpose {
            return;
        }
        slot.may_have_arrived |= verdict == Verdict::Lost;
        let is_filled = slot.is_counted || slot.may_have_arrived || purpose == Purpose::Plug;
        match verdict {
            Verdict::Accepted => self.accept(account, nonce, now),
            Verdict::NonceTaken if is_filled => self.accept(account, nonce, now),
            Verdict::Never => self.refuse(account, nonce, now),
            Verdict::Later | Verdict::Lost | Verdict::NonceTaken => {
                if verdict == Verdict::NonceTaken {
                    self.conflicts.insert(account);
                }
                match tried < RETRIES_MAX {
                    true => self.again(account, nonce, now + RETRY_DELAY),
                    false => self.refuse(account, nonce, now),
                }
            }
        }
    }

    fn accept(&mut self, account: usize, nonce: u64, now: Duration) {
        let first = self.accounts[account].first;
        let Some(slot) = self.accounts[account].slot(nonce) else { return };
        slot.state = State::Accepted { at: now };
        let is_new = !std::mem::replace(&mut slot.is_counted, true);
        if is_new && matches!(slot.purpose, Purpose::Planned(_)) {
            self.counts.accepted += 1;
        }
        if nonce == first {
            self.accepted.insert((now, account));
        }
    }

    fn again(&mut self, account: usize, nonce: u64, not_before: Duration) {
        let Some(slot) = self.accounts[account].slot(nonce) else { return };
        slot.tried += 1;
        slot.state = State::Waiting { not_before };
        self.waiting.push(Reverse((not_before, account, nonce)));
    }

    /// Gives up a slot that is refused for good. A plug replaces it if others wait behind it.
    fn refuse(&mut self, account: usize, nonce: u64, now: Duration) {
        let Some(slot) = self.accounts[account].slot(nonce) else { return };
        if slot.is_counted {
            // A node accepted it once, and a node refuses it now. Only the chain can tell what the first node did with
            // it.
            return self.accept(account, nonce, now);
        }
        if slot.purpose == Purpose::Plug {
            return self.retire(account);
        }
        self.counts.given_up += 1;
        if let (Purpose::Planned(index), true) = (slot.purpose, slot.may_have_arrived) {
            self.in_doubt.push(index);
        }
        let entry = &mut self.accounts[account];
        if nonce + 1 == entry.first + entry.slots.len() as u64 {
            entry.slots.pop_back();
            return;
        }
        self.counts.plugged += 1;
        if let Some(slot) = entry.slot(nonce) {
            *slot = Slot::new(Purpose::Plug, now);
            self.waiting.push(Reverse((now, account, nonce)));
        }
    }

    /// Gives up all of the account's transactions that no node has accepted.
    fn retire(&mut self, account: usize) {
        let entry = &mut self.accounts[account];
        entry.is_retired = true;
        for slot in entry.slots.drain(..).filter(|slot| !slot.is_counted) {
            let Purpose::Planned(index) = slot.purpose else { continue };
            self.counts.given_up += 1;
            if slot.may_have_arrived {
                self.in_doubt.push(index);
            }
        }
        self.conflicts.remove(&account);
    }

    /// Returns the accounts whose nonces the owner should query from the chain and pass to [`NonceBook::observe`]; at
    /// most a hundred.
    pub(super) fn doubtful(&self, now: Duration) -> Vec<usize> {
        let Some(before) = now.checked_sub(RESEND_AFTER) else {
            return self.conflicts.iter().copied().take(DOUBTFUL_MAX).collect();
        };
        let old = self.accepted.range(..=(before, usize::MAX)).map(|(_, account)| *account);
        let all: BTreeSet<usize> = self.conflicts.iter().copied().chain(old).take(DOUBTFUL_MAX).collect();
        all.into_iter().collect()
    }

    /// Records that the chain has executed all nonces of the account below `chain_nonce`.
    pub(super) fn observe(&mut self, account: usize, chain_nonce: u64, now: Duration) {
        self.conflicts.remove(&account);
        self.forget_accepted(account);
        let mut displaced = Vec::new();
        let entry = &mut self.accounts[account];
        while entry.first < chain_nonce {
            entry.first += 1;
            let Some(slot) = entry.slots.pop_front() else { continue };
            let Purpose::Planned(index) = slot.purpose else { continue };
            let is_waiting = matches!(slot.state, State::Waiting { .. });
            match slot.is_counted {
                true => {}
                // The transaction reached no node, so another sender's transaction has its nonce.
                false if is_waiting && !slot.may_have_arrived => displaced.push(index),
                false => self.counts.accepted += 1,
            }
        }
        // Later transactions stay in their slots, because the nonces of slots do not change.
        self.counts.displaced += displaced.len() as u64;
        for index in displaced {
            self.append(account, Purpose::Planned(index), now);
        }
        self.resend(account, now);
    }

    /// Resends the account's next transactions if the chain has not executed the first one long after a node accepted
    /// it.
    fn resend(&mut self, account: usize, now: Duration) {
        let entry = &mut self.accounts[account];
        let Some(Slot { state: State::Accepted { at }, .. }) = entry.slots.front() else { return };
        if now < *at + RESEND_AFTER {
            self.accepted.insert((*at, account));
            return;
        }
        for (slot, nonce) in entry.slots.iter_mut().take(RESEND_MAX).zip(entry.first..) {
            let State::Accepted { at } = slot.state else { break };
            if now < at + RESEND_AFTER {
                break;
            }
            slot.tried += 1;
            slot.state = State::Waiting { not_before: now };
            self.counts.resent += 1;
            self.waiting.push(Reverse((now, account, nonce)));
        }
    }

    fn forget_accepted(&mut self, account: usize) {
        self.accepted.retain(|(_, other)| *other != account);
    }

    /// Returns when there is something to send next, if nothing else happens before.
    pub(super) fn wake_to_send(&self) -> Option<Duration> {
        self.waiting.peek().map(|Reverse((at, ..))| *at)
    }

    /// Returns when there is an account to query next; immediately if another sender seems to use its nonce.
    pub(super) fn wake_to_ask(&self) -> Option<Duration> {
        if !self.conflicts.is_empty() {
            return Some(Duration::ZERO);
        }
        self.accepted.first().map(|(at, _)| *at + RESEND_AFTER)
    }

    /// Whether every pushed transaction was accepted or given up.
    pub(super) fn is_settled(&self) -> bool {
        self.counts.accepted + self.counts.given_up == self.counts.pushed
    }

    /// Returns the plan indices of transactions that were given up although a node may have accepted them. These may
    /// still be committed.
    pub(super) fn given_up_in_doubt(&self) -> &[u32] {
        &self.in_doubt
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests;
