//! Tests the book against simulated nodes, in virtual time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const ZERO: Duration = Duration::ZERO;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a book of one account at nonce 5 whose three transactions are due at once.
fn three() -> NonceBook {
    let mut book = NonceBook::new([5]);
    for index in 0..3 {
        book.push(0, index, ZERO);
    }
    book
}

fn nonces(sends: &[Attempt]) -> Vec<u64> {
    sends.iter().map(|send| send.nonce).collect()
}

#[test]
fn what_is_due_is_taken_in_order_and_not_before() {
    let mut book = NonceBook::new([5, 9]);
    book.push(0, 0, at(10));
    book.push(1, 1, at(20));
    book.push(0, 2, at(30));
    assert_eq!((book.take(at(9), 9), book.wake_to_send()), (Vec::new(), Some(at(10))));
    let sends = book.take(at(30), 2);
    assert_eq!(sends.iter().map(|send| (send.account, send.nonce)).collect::<Vec<_>>(), [(0, 5), (1, 9)]);
    assert_eq!(nonces(&book.take(at(30), 2)), [6]);
}

#[test]
fn a_refusal_for_now_is_tried_again_later_with_the_same_nonce() {
    let mut book = three();
    let sends = book.take(ZERO, 9);
    book.settle(sends[0], Verdict::Later, ZERO);
    book.settle(sends[1], Verdict::Accepted, ZERO);
    assert_eq!(book.take(RETRY_DELAY - at(1), 9), []);
    let again = book.take(RETRY_DELAY, 9);
    assert_eq!((again[0].nonce, again[0].tried, again.len()), (5, 1, 1));
}

#[test]
fn a_refusal_for_good_is_plugged_so_that_later_ones_go_on() {
    let mut book = three();
    let sends = book.take(ZERO, 9);
    book.settle(sends[0], Verdict::Never, ZERO);
    let plug = book.take(ZERO, 9);
    assert_eq!((plug[0].purpose, plug[0].nonce), (Purpose::Plug, 5));
    book.settle(plug[0], Verdict::Accepted, ZERO);
    book.settle(sends[1], Verdict::Accepted, ZERO);
    // The last one holds up no other, so it is not plugged.
    book.settle(sends[2], Verdict::Never, ZERO);
    assert_eq!(book.take(at(9_999), 9), []);
    let Counts { accepted, given_up, plugged, .. } = book.counts();
    assert_eq!((accepted, given_up, plugged, book.is_settled()), (1, 2, 1, true));
}

/// Goal: a transaction given up after a missing answer may still be committed, and is listed; one that was refused
/// explicitly is not.
#[test]
fn what_is_given_up_after_a_silence_is_in_doubt() {
    let mut book = three();
    let mut now = ZERO;
    while !book.is_settled() {
        for send in book.take(now, 9) {
            let verdict = if send.nonce == 6 { Verdict::Lost } else { Verdict::Later };
            book.settle(send, verdict, now);
        }
        now += RETRY_DELAY;
        assert!(now < at(60_000), "{:?}", book.counts());
    }
    assert_eq!((book.counts().given_up, book.given_up_in_doubt()), (3, &[1][..]));
}

#[test]
fn an_account_that_cannot_pay_for_a_plug_is_retired() {
    let mut book = three();
    let sends = book.take(ZERO, 1);
    book.settle(sends[0], Verdict::Never, ZERO);
    let plug = book.take(ZERO, 9).into_iter().find(|send| send.purpose == Purpose::Plug).unwrap();
    book.settle(plug, Verdict::Never, ZERO);
    book.push(0, 3, ZERO);
    assert_eq!((book.counts().given_up, book.is_settled()), (4, true));
    assert_eq!(book.take(at(9_999), 9), []);
}

#[test]
fn a_lost_answer_and_a_used_nonce_mean_that_it_had_arrived() {
    let mut book = three();
    let sends = book.take(ZERO, 1);
    book.settle(sends[0], Verdict::Lost, ZERO);
    let again = book.take(RETRY_DELAY, 9).into_iter().find(|send| send.nonce == 5).unwrap();
    book.settle(again, Verdict::NonceTaken, RETRY_DELAY);
    assert_eq!((book.counts().accepted, book.doubtful(RETRY_DELAY)), (1, Vec::new()));
}

#[test]
fn whoever_loses_its_nonce_to_somebody_else_gets_the_next_free_one() {
    let mut book = three();
    let sends = book.take(ZERO, 1);
    book.settle(sends[0], Verdict::NonceTaken, ZERO);
    assert_eq!(book.doubtful(ZERO), [0]);
    book.observe(0, 7, ZERO);
    assert_eq!(book.counts().displaced, 2);
    let sends = book.take(RETRY_DELAY, 9);
    let planned: Vec<_> = sends.iter().map(|send| (send.nonce, send.purpose)).collect();
    assert_eq!(planned, [(7, Purpose::Planned(2)), (8, Purpose::Planned(0)), (9, Purpose::Planned(1))]);
}

#[test]
fn what_a_node_forgot_is_sent_again_and_counted_once() {
    let mut book = three();
    for send in book.take(ZERO, 9) {
        book.settle(send, Verdict::Accepted, ZERO);
    }
    assert_eq!((book.wake_to_ask(), book.doubtful(RESEND_AFTER - at(1))), (Some(RESEND_AFTER), Vec::new()));
    assert_eq!(book.doubtful(RESEND_AFTER), [0]);
    book.observe(0, 6, RESEND_AFTER);
    let again = book.take(RESEND_AFTER, 9);
    assert_eq!(nonces(&again), [6, 7]);
    for send in again {
        book.settle(send, Verdict::Accepted, RESEND_AFTER);
    }
    book.observe(0, 8, at(20_000));
    assert_eq!((book.counts().accepted, book.counts().resent, book.doubtful(at(90_000))), (3, 2, Vec::new()));
}

/// A node that executes its pool from the next nonce on, and refuses or forgets by dice.
#[derive(Default)]
struct Node {
    next: u64,
    pool: BTreeMap<u64, Purpose>,
    executed: Vec<Purpose>,
}

impl Node {
    /// Returns its answer to a transaction; mostly acceptance.
    fn answer(&mut self, send: Attempt, dice: u8) -> Verdict {
        if send.nonce < self.next {
            return Verdict::NonceTaken;
        }
        match dice {
            0..=9 => Verdict::Later,
            10..=14 => Verdict::Lost,
            15..=17 if send.purpose != Purpose::Plug => Verdict::Never,
            18..=29 => {
                self.pool.insert(send.nonce, send.purpose);
                Verdict::Lost
            }
            _ => {
                self.pool.insert(send.nonce, send.purpose);
                Verdict::Accepted
            }
        }
    }

    fn execute(&mut self) {
        while let Some(purpose) = self.pool.remove(&self.next) {
            self.executed.push(purpose);
            self.next += 1;
        }
    }
}

proptest! {
    /// Goal: whatever nodes refuse, lose and forget, every accepted transaction is executed once in the end, and the
    /// nonces have no gap.
    #[test]
    fn no_refusal_leaves_a_gap(dice in prop::collection::vec((0..100u8, 0..100u8), 1..200), count in 1..40u32) {
        let mut book = NonceBook::new([0]);
        let mut node = Node::default();
        for index in 0..count {
            book.push(0, index, at(u64::from(index) * 20));
        }
        let mut dice = dice.into_iter().chain(std::iter::repeat((99, 99)));
        let mut now = ZERO;
        for _ in 0..5_000 {
            for send in book.take(now, 5) {
                let (answer, forgets) = dice.next().expect("without end");
                let verdict = node.answer(send, answer);
                book.settle(send, verdict, now);
                if forgets < 5 {
                    node.pool.clear();
                }
            }
            node.execute();
            for account in book.doubtful(now) {
                book.observe(account, node.next, now);
            }
            let wakes = book.wake_to_send().into_iter().chain(book.wake_to_ask());
            let Some(wake) = wakes.min() else { break };
            now = wake.max(now + at(1));
        }
        prop_assert!(book.is_settled(), "{:?}", book.counts());
        prop_assert!(node.pool.is_empty(), "a gap at {}: {:?}", node.next, node.pool);
        let mut planned: Vec<_> = node.executed.iter().filter(|purpose| **purpose != Purpose::Plug).collect();
        let executed = planned.len();
        planned.sort_by_key(|purpose| format!("{purpose:?}"));
        planned.dedup();
        prop_assert_eq!(planned.len(), executed, "one was executed twice");
        let Counts { accepted, given_up, .. } = book.counts();
        prop_assert_eq!(accepted + given_up, u64::from(count));
        prop_assert!(executed as u64 >= accepted, "{executed} of {accepted}");
    }
}
