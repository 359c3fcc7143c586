//! Selects transactions: candidates for a batch, the best first, and offers to other nodes, sender by sender.

use std::ops::Bound;

use alloy_primitives::Address;
use slipstream_executor::RemainingCapacity;

use super::{
    super::{
        account_queue::{Circle, Entry},
        candidates::{Ahead, Cursor},
    },
    Index,
};

/// Maximum number of senders that one offer looks at, a few milliseconds.
const OFFER_SENDERS_MAX: usize = 8_192;
/// Maximum number of transactions of one sender in one offer, so that many senders have their turn.
const OFFER_PER_SENDER_MAX: usize = 16;

impl<T: Clone> Index<T> {
    /// Begins the draws for a batch after those that hold the transactions `ahead`.
    pub(in crate::pool) fn cursor(&self, ahead: Ahead) -> Cursor {
        let next = |(sender, nonce): (&Address, &u64)| {
            let entry = self.ready_at(sender, *nonce)?;
            Some((entry.head_key(), *nonce))
        };
        let opened = ahead.iter().filter_map(next).collect();
        Cursor { opened, ahead, ..Cursor::default() }
    }

    /// Returns the best executable transaction that fits and that the cursor has not seen. The previous draw counts as
    /// taken, unless it was left out.
    pub(in crate::pool) fn draw(&self, cursor: &mut Cursor, room: RemainingCapacity) -> Option<T> {
        if let Some((sender, nonce)) = cursor.drawn.take()
            && let Some(entry) = self.ready_at(&sender, nonce + 1)
        {
            cursor.opened.push((entry.head_key(), nonce + 1));
        }
        for _ in 0..cursor.patience(room) {
            let (sender, nonce) = self.next_ranked(cursor)?;
            // `None` if the pool dropped it since it was opened.
            if let Some(entry) = self.ready_at(&sender, nonce)
                && room.fits(entry.terms.gas_limit, entry.terms.bytes)
            {
                cursor.drawn = Some((sender, nonce));
                return Some(entry.payload.clone());
            }
            cursor.misfits += 1;
        }
        None
    }

    /// Moves the cursor on by one, in the order of tips.
    fn next_ranked(&self, cursor: &mut Cursor) -> Option<(Address, u64)> {
        let head = loop {
            let head = match &cursor.below {
                None => self.heads.last(),
                Some(below) => self.heads.range(..below).next_back(),
            };
            match head {
                Some(head) if cursor.ahead.contains_key(&head.2) => cursor.below = Some(*head),
                _ => break head,
            }
        };
        if cursor.opened.peek().is_some_and(|(key, _)| head.is_none_or(|head| key > head)) {
            return cursor.opened.pop().map(|((_, _, sender), nonce)| (sender, nonce));
        }
        let head = *head?;
        cursor.below = Some(head);
        let (_, _, sender) = head;
        self.account(&sender).map(|account| (sender, account.nonce))
    }

    pub(super) fn ready_at(&self, sender: &Address, nonce: u64) -> Option<&Entry<T>> {
        self.accounts.get(sender)?.ready(nonce)
    }

    /// Returns at most `max` transactions that arrived before `sequence` was read, including waiting ones. Takes a few
    /// of each sender, one sender after the other, from where the circle's last call ended.
    pub(in crate::pool) fn offer(&mut self, circle: Circle, sequence: u64, max: usize) -> Vec<T> {
        let after = self.offered[circle as usize];
        let behind = self.accounts.range((Bound::Excluded(after), Bound::Unbounded));
        let senders: Vec<Address> = behind
            .chain(self.accounts.range(..=after))
            .map(|(sender, _)| *sender)
            .take(OFFER_SENDERS_MAX)
            .collect();
        let mut offered = Vec::new();
        for sender in senders {
            if offered.len() >= max {
                break;
            }
            self.offered[circle as usize] = sender;
            if let Some(queue) = self.accounts.get_mut(&sender) {
                offered.extend(queue.offer(circle, sequence, OFFER_PER_SENDER_MAX.min(max - offered.len())));
            }
        }
        offered
    }
}
