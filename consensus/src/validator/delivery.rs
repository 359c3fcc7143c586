//! [`Delivery`]: what each other validator has yet to hear of the proposer's batch.
//!
//! A validator has one such request in flight. It finishes that one even if the quorum did without it, and then hears of the newest
//! batch, so that a slow or silent one costs one request and never holds up the others. It is asked for its vote until it gives it or
//! there is a decision, and told a decision once: the next proposal carries the certificate.

use std::collections::BTreeMap;

use slipstream_types::BatchNumber;

/// What is brought to all.
struct Round {
    number: BatchNumber,
    propose: Vec<u8>,
    decide: Option<Vec<u8>>,
}

/// How far one validator is with the round.
#[derive(Clone, Copy, Default, Debug)]
struct Reached {
    /// A request is in flight, of this round or an earlier one.
    is_busy: bool,
    /// It is left alone for a moment.
    rests: bool,
    voted: bool,
    told: bool,
}

/// One request to be sent now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Outgoing {
    pub(super) number: BatchNumber,
    pub(super) payload: Vec<u8>,
    /// Whether it demands a vote. The other kind tells a decision.
    pub(super) proposes: bool,
}

/// See the module.
pub(super) struct Delivery {
    round: Option<Round>,
    others: BTreeMap<u16, Reached>,
}

impl Delivery {
    pub(super) fn new(others: impl Iterator<Item = u16>) -> Delivery {
        Delivery { round: None, others: others.map(|seat| (seat, Reached::default())).collect() }
    }

    /// Begins to ask for votes on another batch.
    pub(super) fn open(&mut self, number: BatchNumber, propose: Vec<u8>) {
        self.round = Some(Round { number, propose, decide: None });
        for reached in self.others.values_mut() {
            *reached = Reached { is_busy: reached.is_busy, ..Reached::default() };
        }
    }

    /// The open batch is decided.
    pub(super) fn decide(&mut self, decision: Vec<u8>) {
        if let Some(round) = &mut self.round {
            round.decide = Some(decision);
        }
    }

    /// Asks nobody any more.
    pub(super) fn close(&mut self) {
        self.round = None;
    }

    /// What is to be sent now, by validator.
    pub(super) fn outgoing(&mut self) -> Vec<(u16, Outgoing)> {
        let Some(round) = &self.round else { return Vec::new() };
        let number = round.number;
        let next = |(seat, reached): (&u16, &mut Reached)| {
            let (payload, proposes) = match &round.decide {
                _ if reached.is_busy => return None,
                Some(decide) if !reached.told => (decide, false),
                None if !reached.voted && !reached.rests => (&round.propose, true),
                _ => return None,
            };
            reached.is_busy = true;
            reached.told = !proposes;
            Some((*seat, Outgoing { number, payload: payload.clone(), proposes }))
        };
        self.others.iter_mut().filter_map(next).collect()
    }

    /// The request to a validator has ended. True if it is to be left alone for a moment: then [`Delivery::rested`] follows.
    pub(super) fn ended(&mut self, seat: u16, number: BatchNumber, voted: bool) -> bool {
        let Some(reached) = self.others.get_mut(&seat) else { return false };
        reached.is_busy = false;
        if self.round.as_ref().is_none_or(|round| round.number != number) {
            return false;
        }
        reached.voted |= voted;
        reached.rests = !reached.voted && !reached.told;
        reached.rests
    }

    /// The moment is over.
    pub(super) fn rested(&mut self, seat: u16) {
        if let Some(reached) = self.others.get_mut(&seat) {
            reached.rests = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is sent to whom: `p` proposes, `d` tells a decision.
    fn sent(delivery: &mut Delivery) -> Vec<(u16, u64, char)> {
        let outgoing = delivery.outgoing().into_iter();
        outgoing.map(|(seat, it)| (seat, it.number.0, if it.proposes { 'p' } else { 'd' })).collect()
    }

    /// Goal: each validator is asked until it votes, told the decision once, and has one request in flight, so that one that is
    /// slow misses a decision rather than the next batch.
    #[test]
    fn each_hears_the_newest() {
        let (one, two) = (BatchNumber(1), BatchNumber(2));
        let mut delivery = Delivery::new(1..4);
        assert_eq!(sent(&mut delivery), []);
        delivery.open(one, vec![1]);
        assert_eq!(sent(&mut delivery), [(1, 1, 'p'), (2, 1, 'p'), (3, 1, 'p')]);
        assert!(!delivery.ended(1, one, true), "it has voted");
        assert!(delivery.ended(2, one, false));
        assert_eq!(sent(&mut delivery), [], "one rests, one is busy");
        delivery.rested(2);
        assert_eq!(sent(&mut delivery), [(2, 1, 'p')]);
        assert!(!delivery.ended(2, one, true));
        delivery.decide(vec![2]);
        assert_eq!(sent(&mut delivery), [(1, 1, 'd'), (2, 1, 'd')]);
        assert!(!delivery.ended(1, one, false) && !delivery.ended(2, one, false));
        assert_eq!(sent(&mut delivery), [], "a decision is told once");
        delivery.open(two, vec![3]);
        assert_eq!(sent(&mut delivery), [(1, 2, 'p'), (2, 2, 'p')]);
        assert!(!delivery.ended(3, one, true), "its vote on another batch says nothing of this one");
        assert_eq!(sent(&mut delivery), [(3, 2, 'p')]);
        delivery.close();
        for seat in 1..4 {
            assert!(!delivery.ended(seat, two, false));
        }
        assert_eq!(sent(&mut delivery), []);
    }

    /// Goal: a decision does not wait for a validator's rest.
    #[test]
    fn a_decision_wakes() {
        let number = BatchNumber(1);
        let mut delivery = Delivery::new(1..2);
        delivery.open(number, vec![1]);
        assert_eq!(sent(&mut delivery), [(1, 1, 'p')]);
        assert!(delivery.ended(1, number, false));
        delivery.decide(vec![2]);
        assert_eq!(sent(&mut delivery), [(1, 1, 'd')]);
    }
}
