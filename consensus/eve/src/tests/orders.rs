//! Orders and outcomes that reach one core: which of them count, and who is muted or convicted for them.

use slipstream_types::{BatchNumber, CommitStatement, Digest, Epoch, LedgerInfo};

use super::cases::{
    DOMAIN, awake, certificate, info, key, now, order, prepare, prepare_in, said, set, verify, verify_in,
};
use crate::{
    Core, Effect, Evidence, Message, Order, Output, SignedOrder, Timer, Verify, Work, limits::TELL_MS,
};

fn number(number: u64) -> BatchNumber {
    BatchNumber::new(number)
}

fn work(core: &mut Core) -> Option<Work> {
    std::iter::from_fn(|| core.poll_effect())
        .filter_map(|effect| match effect {
            Effect::Build { work, .. } | Effect::Execute { work, .. } => Some(work),
            _ => None,
        })
        .last()
}

/// Counts the executors whose outcome of batch 1 counts.
fn counted(core: &Core) -> usize {
    core.term.slots.get(&number(1)).map_or(0, |slot| slot.verifies.len())
}

fn told(order: SignedOrder, info: LedgerInfo) -> Message {
    Message::Verify(Box::new(Verify { order, before: self::info(0, "genesis").digest(), info, took_ms: 0 }))
}

/// Goal: an outcome counts only under an order of this epoch that its primary signed, and only for the ordered batch.
#[test]
fn outcomes_count_under_their_primarys_order_alone() {
    let signed = |order: Order| SignedOrder::new(order, &DOMAIN, &key(0));
    let (right, outcome) = (order(0, 1), info(1, "a"));
    let unsigned = SignedOrder { signature: order(0, 2).signature, ..right.clone() };
    for (what, message, muted) in [
        ("right", told(right.clone(), outcome.clone()), false),
        ("unsigned", told(unsigned, outcome.clone()), true),
        (
            "an order of another epoch",
            told(signed(Order { epoch: Epoch(1), ..right.order.clone() }), outcome.clone()),
            false,
        ),
        (
            "an outcome of another epoch",
            told(right.clone(), LedgerInfo { epoch: Epoch(1), ..outcome.clone() }),
            false,
        ),
        ("an outcome of another batch", told(right.clone(), info(2, "a")), false),
        ("an order of another view", told(order(4, 1), outcome), false),
    ] {
        let mut core = awake();
        core.handle_message(1, message, now());
        assert_eq!(
            (counted(&core), core.tick.muted.contains(&1)),
            (usize::from(what == "right"), muted),
            "{what}"
        );
    }
}

/// Goal: a validator whose message fails verification is ignored until the next tick, and the costly messages of each
/// are bounded.
#[test]
fn who_says_what_does_not_verify_is_not_heard_for_a_while() {
    let mut core = awake();
    core.handle_message(1, Message::Decided(Box::new(certificate(1, 0..2))), now());
    assert_eq!(core.decided(), number(0), "two are no quorum");
    core.handle_message(1, Message::Decided(Box::new(certificate(1, 0..3))), now());
    assert_eq!(core.decided(), number(0), "it is muted");
    core.handle_message(2, Message::Decided(Box::new(certificate(1, 0..3))), now());
    assert_eq!(core.decided(), number(1));
    core.handle_timer(Timer::Tell, now());
    core.handle_message(1, Message::Decided(Box::new(certificate(2, 0..3))), now());
    assert_eq!(core.decided(), number(2));

    let mut core = awake();
    for _ in 0..16 {
        core.handle_message(1, Message::Decided(Box::new(certificate(9, 0..3))), now());
    }
    core.handle_message(1, Message::Decided(Box::new(certificate(1, 0..3))), now());
    assert_eq!(core.decided(), number(0), "too many costly messages in {TELL_MS} ms");
    core.handle_message(2, Message::Decided(Box::new(certificate(1, 0..3))), now());
    assert_eq!(core.decided(), number(1));
}

/// Goal: a primary that orders two batches of one number is convicted, whichever way the second arrives.
#[test]
fn a_second_order_of_one_number_convicts() {
    let second = SignedOrder::new(Order { timestamp_ms: 7, ..order(0, 1).order }, &DOMAIN, &key(0));
    for message in [Message::Order(second.clone()), told(second, info(1, "b"))] {
        let mut core = awake();
        core.handle_message(0, Message::Order(order(0, 1)), now());
        core.handle_message(1, message, now());
        let outputs: Vec<_> =
            std::iter::from_fn(|| core.poll_flush()).flat_map(|flush| flush.outputs).collect();
        let convicts = |output: &Output| matches!(output, Output::Convict(Evidence::Orders(_)));
        assert!(outputs.iter().any(convicts), "{outputs:?}");
    }
}

/// Goal: honest validators' statements of two views, or of two epochs, convict nobody.
#[test]
fn statements_of_two_views_or_epochs_convict_nobody() {
    let (set, convicts) = (set(), |evidence: Evidence, set: &_| evidence.is_valid(set, &DOMAIN));
    let prepares = |second| Evidence::Prepares(1, Box::new([prepare(1, 5, "a"), second]));
    assert!(convicts(prepares(prepare(1, 5, "b")), &set));
    assert!(!convicts(prepares(prepare_in(1, 1, 5, "b")), &set), "of two views");
    let orders = |second| Evidence::Orders(Box::new([order(0, 1), second]));
    assert!(!convicts(orders(order(1, 1)), &set), "of two primaries");
    let commits = |epoch| {
        let commit = |name| {
            let info = LedgerInfo { epoch: Epoch(epoch), ..info(5, name) };
            let signature = CommitStatement::new(0, info.digest()).sign(&key(1));
            (info, signature)
        };
        Evidence::Commits(1, 0, Box::new([commit("a"), commit("b")]))
    };
    assert!(
        convicts(commits(0), &set) && !convicts(commits(1), &set),
        "of another epoch, in which seats are others'"
    );
}

/// Goal: a validator executes neither an order that breaks the chain of orders nor the orders after it, and complains
/// about the primary.
#[test]
fn an_order_off_its_chain_is_not_executed() {
    let mut core = awake();
    let first = order(0, 1);
    let next = |parent| SignedOrder::new(Order { parent, ..order(0, 2).order }, &DOMAIN, &key(0));
    core.handle_message(0, Message::Order(first.clone()), now());
    let begun = work(&mut core).unwrap();
    core.handle_message(0, Message::Order(next(Digest([9; 32]))), now());
    core.handle_executed(begun, Ok(info(1, "a")), now());
    assert_eq!((work(&mut core), core.complains()), (None, true));
    // It stays refused, even beside one that would fit.
    assert!(!core.wants(&next(first.order.digest(&DOMAIN)).order));
    assert!(!core.wants(&order(0, 3).order));
}

/// Goal: if no outcome can have enough executors, the core wants the next primary at once. That primary's orders are
/// executed sequentially.
#[test]
fn executors_that_differ_end_the_view() {
    let mut core = awake();
    core.handle_message(0, Message::Order(order(0, 1)), now());
    let begun = work(&mut core).unwrap();
    core.handle_executed(begun, Ok(info(1, "own")), now());
    for (seat, name) in [(0, "a"), (1, "b")] {
        core.handle_message(seat, verify(&info(0, "genesis"), info(1, name)), now());
        assert!(!core.complains(), "{name}: another could agree");
    }
    core.handle_message(2, verify(&info(0, "genesis"), info(1, "c")), now());
    assert!(core.complains());
}

/// Goal: an outcome of an earlier view counts for nothing in a view that began since.
#[test]
fn outcomes_of_an_earlier_view_are_not_told_in_a_later_one() {
    let mut core = awake();
    core.handle_message(0, Message::Order(order(0, 1)), now());
    let begun = work(&mut core).unwrap();
    core.handle_message(1, Message::NewView(Box::new(super::cases::new_view(1, [None; 3]))), now());
    said(&mut core);
    core.handle_executed(begun, Ok(info(1, "a")), now());
    core.handle_built(begun, order(0, 1), info(1, "a"), now());
    let said = said(&mut core);
    let is_told = |message: &Message| matches!(message, Message::Order(_) | Message::Verify(_));
    assert!(!said.iter().any(is_told), "{said:?}");
    core.handle_message(0, verify_in(0, &info(0, "genesis"), info(1, "a")), now());
    assert_eq!(counted(&core), 0);
}
