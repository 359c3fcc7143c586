//! Views that begin, and validators that return: what they adopt, what they remember, and what they no longer do.

use std::time::Duration;

use slipstream_types::{BatchNumber, Epoch};

use super::cases::{
    DOMAIN, SETTINGS, awake, certificate, core, info, key, new_view, now, order, prepare, prepared,
    prepared_by, record, said, set, status, verify,
};
use crate::{
    Core, Effect, KeptOutcome, Message, Order, Output, Receivers, Record, Setup, SignedOrder, Silence, Timer,
    ViewChange, Vote, limits::TELL_MS,
};

fn number(number: u64) -> BatchNumber {
    BatchNumber::new(number)
}

/// The validator of that seat.
fn seated(seat: u16, head: u64, record: Option<Record>, orders: Vec<SignedOrder>) -> Core {
    let kept =
        |order: SignedOrder| KeptOutcome { token: info(order.order.number.get(), "kept").digest(), order };
    Core::new(
        Setup {
            set: set(),
            key: key(seat),
            seat,
            domain: DOMAIN,
            settings: SETTINGS,
            head: info(head, "a"),
            certificate: None,
            record,
            outcomes: Vec::new(),
            kept: orders.into_iter().map(kept).collect(),
        },
        now(),
    )
}

fn begin(core: &mut Core, view: u64, shown: [Option<&crate::Prepared>; 3]) {
    core.handle_message(set().primary(view), Message::NewView(Box::new(new_view(view, shown))), now());
}

fn last_record(core: &mut Core) -> Option<Record> {
    std::iter::from_fn(|| core.poll_flush()).filter_map(|flush| flush.record).last()
}

fn prepares(messages: Vec<Message>) -> Vec<BatchNumber> {
    let number = |message| match message {
        Message::Prepare(vote) => Some(vote.ballot.number),
        _ => None,
    };
    messages.into_iter().filter_map(number).collect()
}

fn effects(core: &mut Core) -> Vec<Effect> {
    std::iter::from_fn(|| core.poll_effect()).collect()
}

/// Goal: a view begins once. Its primary cannot begin it again with other view changes, which hide what the first ones
/// showed.
#[test]
fn a_view_begins_once() {
    let mut core = awake();
    let late = prepared(0, 1, "late");
    begin(&mut core, 1, [Some(&late), None, None]);
    assert_eq!(core.term.adopted, Some(late.clone()));
    begin(&mut core, 1, [None; 3]);
    assert_eq!(core.term.adopted, Some(late));
}

/// Goal: the furthest prepared batch is adopted, whatever its view: the batches below it are decided. It is prepared
/// only under its own number.
#[test]
fn the_furthest_prepared_batch_is_adopted_as_what_it_is() {
    let (furthest, latest) = (prepared(0, 2, "furthest"), prepared(1, 1, "latest"));
    let mut core = awake();
    said(&mut core);
    begin(&mut core, 2, [Some(&latest), Some(&furthest), None]);
    assert_eq!(core.term.adopted.as_ref().map(|it| it.info.number), Some(number(2)));
    assert_eq!(prepares(said(&mut core)), [], "batch 1 is not known to be decided here");
    core.handle_message(0, Message::Decided(Box::new(certificate(1, 0..3))), now());
    assert_eq!(prepares(said(&mut core)), [number(2)]);
}

/// Goal: the record shows what a view adopts, and that a view was left, before any message about it is sent.
#[test]
fn how_a_view_begins_and_ends_is_on_record() {
    let late = prepared(0, 1, "late");
    let mut core = awake();
    begin(&mut core, 1, [Some(&late), None, None]);
    let written = last_record(&mut core).unwrap();
    assert_eq!((written.view, written.changing, written.adopted.as_ref()), (1, false, Some(&late)));
    let again = self::core(Some(written));
    assert_eq!((again.view(), again.term.adopted), (1, Some(late)));
    let change = |seat| ViewChange::new(2, seat, None, None, &DOMAIN, &key(seat));
    (0..2).for_each(|seat| core.handle_message(seat, Message::ViewChange(Box::new(change(seat))), now()));
    let written = last_record(&mut core).unwrap();
    assert_eq!((written.view, written.changing), (2, true));
    let again = self::core(Some(written));
    assert_eq!((again.view(), again.is_changing()), (2, true));
}

/// Goal: after a view change, batches are executed one transaction after the other until one is decided: executors may
/// have differed.
#[test]
fn the_first_batches_of_a_later_view_are_executed_with_care() {
    let sequential = |core: &mut Core, view| {
        core.handle_message(set().primary(view), Message::Order(order(view, 1)), now());
        let work = effects(core).into_iter().find_map(|effect| match effect {
            Effect::Execute { work, .. } => Some(work),
            _ => None,
        });
        work.expect("it is executed").sequential
    };
    assert!(!sequential(&mut awake(), 0));
    let mut core = awake();
    begin(&mut core, 1, [None; 3]);
    assert!(sequential(&mut core, 1));
}

/// Goal: patience doubles with each view without a decision, and a decision resets it.
#[test]
fn patience_doubles_until_something_is_decided() {
    let mut core = awake();
    let first = core.patience_ms();
    for view in 1..5 {
        begin(&mut core, view + u64::from(view >= 3), [None; 3]);
        assert_eq!(core.patience_ms(), first << view, "{view}");
    }
    core.handle_message(0, Message::Decided(Box::new(certificate(1, 0..3))), now());
    assert_eq!(core.patience_ms(), first);
}

/// Goal: a core's timers fire at their deadlines, one with each call, the earliest first. An early call changes nothing.
#[test]
fn timers_fire_at_their_deadlines() {
    let mut core = awake();
    core.handle_wanted(true, now());
    let [patience, tell] = [1_000, TELL_MS].map(|ms| now() + Duration::from_millis(ms));
    assert_eq!(core.timers().clone(), [(Timer::Patience, patience), (Timer::Tell, tell)].into());
    core.handle_timeout(tell - Duration::from_millis(1));
    assert_eq!(core.poll_timeout(), Some(tell));
    core.handle_timeout(patience);
    assert_eq!((core.poll_timeout(), core.complains()), (Some(patience), false));
    core.handle_timeout(patience);
    assert!(core.complains());
}

/// Goal: a driver that starts long after its core was made finds the deadlines ahead of it.
#[test]
fn deadlines_count_from_the_start() {
    let (mut core, later) = (awake(), now() + Duration::from_secs(3_600));
    core.handle_start(later);
    assert_eq!(core.poll_timeout(), Some(later + Duration::from_millis(TELL_MS)));
}

/// Goal: a view that begins after failed views has its whole, doubled patience, even if terms are short.
#[test]
fn a_new_view_has_its_whole_patience() {
    let mut core = awake();
    core.settings.rotate_after = 1;
    begin(&mut core, 1, [None; 3]);
    core.handle_wanted(true, now());
    (0..20).for_each(|_| core.handle_timer(Timer::Tell, now()));
    assert!(!core.complains());
    core.handle_timer(Timer::Patience, now());
    assert!(core.complains());
}

/// Goal: a validator without a record votes at once only at the beginning of the chain or of its epoch. Nothing can
/// have been decided then.
#[test]
fn who_has_no_record_in_the_middle_of_an_epoch_has_lost_it() {
    for (head, silence) in [(0, None), (7, Some(Silence::LostVotes { until: number(9) }))] {
        let mut core = seated(3, head, None, Vec::new());
        (0..2).for_each(|seat| core.handle_message(seat, status(head, 0), now()));
        assert_eq!(core.silence(), silence, "{head}");
    }
    let mut core = Core::new(
        Setup {
            set: slipstream_types::ValidatorSet { epoch: Epoch(1), ..set() },
            key: key(3),
            seat: 3,
            domain: DOMAIN,
            settings: SETTINGS,
            head: info(7, "the end of epoch 0"),
            certificate: None,
            record: None,
            outcomes: Vec::new(),
            kept: Vec::new(),
        },
        now(),
    );
    (0..2).for_each(|seat| core.handle_message(seat, status(7, 0), now()));
    assert_eq!(core.silence(), None);
}

/// Goal: in a view without faults one record is written for each batch, before the commit. The kept outcome stands for
/// the prepare, and the recorded prepared outcome for the decision.
#[test]
fn a_batch_costs_one_record() {
    let mut core = awake();
    let records =
        |core: &mut Core| std::iter::from_fn(|| core.poll_flush()).filter_map(|flush| flush.record).count();
    assert_eq!(records(&mut core), 1, "the first of all");
    core.handle_message(0, Message::Order(order(0, 1)), now());
    let work = effects(&mut core).into_iter().find_map(|effect| match effect {
        Effect::Execute { work, .. } => Some(work),
        _ => None,
    });
    core.handle_executed(work.expect("it is executed"), Ok(info(1, "a")), now());
    core.handle_message(0, verify(&info(0, "genesis"), info(1, "a")), now());
    assert_eq!((core.memory.prepare.map(|it| it.ballot.number), records(&mut core)), (Some(number(1)), 0));
    (0..2).for_each(|seat| core.handle_message(seat, Message::Prepare(prepare(seat, 1, "a")), now()));
    assert_eq!(records(&mut core), 1);
    let ballot = prepare(0, 1, "a").ballot;
    let commit = |seat: u16| Message::Commit(Vote { ballot, signature: ballot.sign_commit(&key(seat)) });
    (0..2).for_each(|seat| core.handle_message(seat, commit(seat), now()));
    assert_eq!((core.decided(), records(&mut core)), (number(1), 0));
}

/// Goal: an outcome other than the kept one is on record before it is prepared.
#[test]
fn what_others_executed_is_on_record_before_it_is_prepared() {
    let mut core = awake();
    last_record(&mut core);
    (0..2).for_each(|seat| core.handle_message(seat, verify(&info(0, "genesis"), info(1, "a")), now()));
    let prepared = prepare(3, 1, "a").ballot;
    assert_eq!(last_record(&mut core).and_then(|record| record.prepare), Some(prepared));
}

/// Goal: for the view and number of a kept outcome, a restarted validator prepares no other: it may have prepared the
/// kept one. A proof of that prepare is no sign of lost data.
#[test]
fn what_is_kept_binds_who_restarts() {
    let restarted = || seated(3, 0, Some(Record { view: 0, ..record(0, 0) }), vec![order(0, 1)]);
    let says = |core: &mut Core, name| {
        (0..3).for_each(|seat| core.handle_message(seat, verify(&info(0, "a"), info(1, name)), now()));
        (prepares(said(core)), core.complains())
    };
    assert_eq!(says(&mut restarted(), "kept"), (vec![number(1)], false));
    assert_eq!(says(&mut restarted(), "other"), (vec![], true));
    for (name, silence) in [("kept", None), ("other", Some(Silence::LostVotes { until: number(3) }))] {
        let mut core = restarted();
        let shown = prepared_by([0, 1, 3], 0, 1, name);
        core.handle_message(1, Message::NewView(Box::new(new_view(1, [Some(&shown), None, None]))), now());
        assert_eq!(core.silence(), silence, "{name}");
    }
}

/// Goal: once an outcome that a validator may have prepared is decided, the record counts it as signed. A later proof
/// of that prepare is no sign of lost data.
#[test]
fn a_prepare_without_a_record_is_no_lost_vote() {
    let mut core = seated(3, 0, Some(Record { view: 0, ..record(0, 0) }), vec![order(0, 1)]);
    last_record(&mut core);
    core.handle_message(0, Message::Decided(Box::new(certificate(1, 0..3))), now());
    assert_eq!(last_record(&mut core).map(|record| record.voted), Some(number(1)));
    let shown = prepared_by([0, 1, 3], 0, 1, "kept");
    begin(&mut core, 1, [Some(&shown), None, None]);
    assert_eq!((core.view(), core.silence()), (1, None));
}

/// Goal: a kept outcome binds nobody if the record does not show its view as begun: the validator prepares what the
/// view adopts.
#[test]
fn what_a_view_adopts_is_prepared_whatever_was_kept() {
    let leaves = Some(Record { view: 1, changing: true, ..record(0, 0) });
    let mut core = seated(3, 0, leaves, vec![order(1, 1)]);
    said(&mut core);
    let late = prepared(0, 1, "late");
    begin(&mut core, 1, [Some(&late), None, None]);
    assert_eq!((prepares(said(&mut core)), core.complains()), (vec![number(1)], false));
}

/// Goal: a validator without a record learns how far the others are, once between two ticks, even right after one. Its
/// own tick comes at a fixed distance from theirs, so it would hear nothing while the chain makes progress.
#[test]
fn who_listens_is_answered_at_any_moment() {
    let answers = |core: &mut Core, message: Message| {
        said(core);
        core.handle_message(1, message, now());
        let outputs = std::iter::from_fn(|| core.poll_flush()).flat_map(|flush| flush.outputs);
        outputs
            .filter(|output| matches!(output, Output::Send(Receivers::Seat(1), Message::Status(_))))
            .count()
    };
    let listens = Message::Status(seated(1, 0, None, Vec::new()).status());
    let mut core = awake();
    core.handle_message(0, Message::Decided(Box::new(certificate(1, 0..3))), now());
    assert_eq!(answers(&mut core, listens.clone()), 1, "between two ticks");
    core.handle_timer(Timer::Tell, now());
    assert_eq!(answers(&mut core, listens.clone()), 1, "right after one");
    assert_eq!(answers(&mut core, listens), 0, "it has heard it");
    core.handle_timer(Timer::Tell, now());
    assert_eq!(answers(&mut core, status(0, 0)), 0, "it votes, and asks for nothing");
}

/// Goal: a validator that lost its data orders in no view that may have been its own, even once it votes again. It may
/// have ordered something else in such a view.
#[test]
fn who_lost_its_data_orders_only_in_later_views() {
    let builds = |core: &mut Core| effects(core).iter().any(|effect| matches!(effect, Effect::Build { .. }));
    let mut core = seated(0, 7, None, Vec::new());
    (1..3).for_each(|seat| core.handle_message(seat, status(7, 0), now()));
    core.handle_wanted(true, now());
    core.handle_committed(info(9, "a"), now());
    assert_eq!((core.silence(), core.is_primary(), builds(&mut core)), (None, true, false));
    // With its record, and nothing lost, it would.
    let mut whole = seated(0, 7, Some(Record { view: 0, ..record(0, 7) }), Vec::new());
    whole.handle_wanted(true, now());
    assert!(builds(&mut whole));
}

/// Goal: a primary that kept two orders of one number over a crash repeats neither: it announced one, and cannot find
/// out which. Orders of another view do not count.
#[test]
fn a_primary_that_returns_tells_no_second_order() {
    let record = || Some(Record { view: 0, ..record(0, 0) });
    let other = SignedOrder::new(Order { timestamp_ms: 7, ..order(0, 1).order }, &DOMAIN, &key(0));
    let mut core = seated(0, 0, record(), vec![order(0, 1), other]);
    assert!(core.execution.orders.is_empty() && core.term.spent, "nothing says which of them was told");
    core.handle_wanted(true, now());
    let built = effects(&mut core).iter().any(|effect| matches!(effect, Effect::Build { .. }));
    assert!(!built, "a third would be one more");
    let core = seated(0, 0, record(), vec![order(0, 1)]);
    assert_eq!(core.execution.orders.keys().copied().collect::<Vec<_>>(), [number(1)]);
    let core = seated(0, 0, record(), vec![order(4, 1)]);
    assert!(core.execution.orders.is_empty() && !core.term.spent, "of a view that it is not in");
}

/// Goal: a core that learns of a head other than its own outcome forgets everything that builds on its outcome.
#[test]
fn another_head_rolls_back_what_was_executed() {
    let mut core = awake();
    core.handle_message(0, Message::Order(order(0, 1)), now());
    let work = effects(&mut core).into_iter().find_map(|effect| match effect {
        Effect::Execute { work, .. } => Some(work),
        _ => None,
    });
    core.handle_executed(work.unwrap(), Ok(info(1, "own")), now());
    effects(&mut core);
    core.handle_committed(info(1, "others'"), now());
    let rolled_back = Effect::Rollback { to: number(1) };
    assert!(core.execution.outcomes.is_empty() && effects(&mut core).contains(&rolled_back));
    core.handle_timer(Timer::Tell, now());
    assert_eq!(core.decided(), number(1));
}

/// Goal: nothing is built or voted on after the last batch of an epoch.
#[test]
fn an_epoch_ends_with_its_last_batch() {
    let last = slipstream_types::LedgerInfo {
        next_validators: Some(slipstream_types::ValidatorSet { epoch: Epoch(1), ..set() }),
        ..info(1, "last")
    };
    let mut core = seated(0, 0, Some(Record { view: 0, ..record(0, 0) }), Vec::new());
    core.handle_wanted(true, now());
    effects(&mut core);
    core.handle_committed(last, now());
    assert!(!effects(&mut core).iter().any(|effect| matches!(effect, Effect::Build { .. })));
    for seat in 1..4 {
        core.handle_message(seat, Message::Prepare(super::cases::prepare(seat, 2, "behind")), now());
    }
    assert_eq!(core.votes(), (0, 0));
}
