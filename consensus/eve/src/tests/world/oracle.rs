//! [`Oracle`]: checks that honest validators never contradict themselves by what they sign and commit, over all
//! restarts.

use std::collections::BTreeMap;

use slipstream_types::{BatchNumber, Digest, LedgerInfo, ValidatorSet};

use crate::Message;

/// What honest validators executed, signed and committed so far.
#[derive(Default)]
pub(super) struct Oracle {
    /// The outcome that each outcome was executed on.
    parents: BTreeMap<Digest, Digest>,
    /// The first commit at each number.
    decided: BTreeMap<BatchNumber, Digest>,
    /// Statements that honest validators signed: kind, seat, view, number.
    said: BTreeMap<(u8, u16, u64, BatchNumber), Digest>,
    /// The views that honest validators left for.
    left: BTreeMap<u16, u64>,
    /// Whether a validator lost its data, so that it may contradict what it forgot.
    pub(super) wiped: bool,
}

impl Oracle {
    /// Notes that an outcome was executed on another.
    pub(super) fn executed(&mut self, info: &LedgerInfo, before: &LedgerInfo) {
        self.parents.insert(info.digest(), before.digest());
    }

    /// Checks a certified batch that follows the last one of a validator: it is the only one of its number, and was
    /// executed on that one.
    pub(super) fn appended(&mut self, info: &LedgerInfo, last: &LedgerInfo) {
        let first = *self.decided.entry(info.number).or_insert(info.digest());
        assert_eq!(first, info.digest(), "two batches {} are certified", info.number);
        assert_eq!(
            self.parents.get(&info.digest()),
            Some(&last.digest()),
            "{} continues another batch",
            info.number
        );
    }

    /// Checks that no honest validator gives two statements where it may give one, over all restarts.
    pub(super) fn hear(&mut self, seat: u16, message: &Message, set: &ValidatorSet, domain: &Digest) {
        let (kind, view, number, what) = match message {
            Message::Prepare(vote) => (0, vote.ballot.view, vote.ballot.number, vote.ballot.token),
            Message::Commit(vote) => (1, vote.ballot.view, vote.ballot.number, vote.ballot.token),
            Message::Order(order) if set.primary(order.order.view) == seat => {
                (2, order.order.view, order.order.number, order.order.digest(domain))
            }
            Message::ViewChange(change) => {
                let left = self.left.entry(seat).or_default();
                *left = change.view.max(*left);
                return;
            }
            _ => return,
        };
        let left = self.left.get(&seat).copied().unwrap_or_default();
        assert!(
            self.wiped || kind == 2 || view >= left,
            "{seat} votes in view {view} after it left for {left}"
        );
        let first = *self.said.entry((kind, seat, view, number)).or_insert(what);
        assert!(
            self.wiped || first == what,
            "{seat} says two things of {number} in view {view}, kind {kind}"
        );
    }
}
