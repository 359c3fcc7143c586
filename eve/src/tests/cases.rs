//! Attacks of a hostile validator on one core, and things that a crash might make it forget.

use slipstream_types::{
    Address, BatchNumber, Certificate, CommitStatement, Digest, Epoch, LedgerInfo, SecretKey, ValidatorSet,
    bounded::BoundedVec,
};

use crate::{
    Ballot, Core, Evidence, Message, NewView, Order, Output, Prepared, Record, Settings, Setup, SignedOrder,
    Status, To, Verify, ViewChange, Vote,
    planted::{Fault, PLANTED},
};

const DOMAIN: Digest = Digest::ZERO;
const SETTINGS: Settings =
    Settings { view_timeout_ms: 1_000, rotate_after: 0, protect_after: 0, protect_wait_ms: 10 };

fn key(seat: u16) -> SecretKey {
    slipstream_testkit::key(seat as u8 + 1)
}

fn set() -> ValidatorSet {
    slipstream_testkit::set(0, &slipstream_testkit::keys(1..=4), Address::ZERO)
}

fn info(number: u64, name: &str) -> LedgerInfo {
    let accumulator_root = Digest::tagged(name, &number.to_le_bytes());
    LedgerInfo { accumulator_root, ..slipstream_testkit::info(0, number) }
}

/// Seat 3 of four, with that record.
fn core(record: Option<Record>) -> Core {
    Core::new(Setup {
        set: set(),
        key: key(3),
        seat: 3,
        domain: DOMAIN,
        settings: SETTINGS,
        head: info(0, "genesis"),
        record,
        outcomes: Vec::new(),
        orders: Vec::new(),
    })
}

fn status(decided: u64, view: u64) -> Message {
    let decided = BatchNumber::new(decided);
    Message::Status(Status { view, changing: false, complains: false, decided, ordered: decided })
}

/// One that heard of two others that nothing is decided.
fn awake() -> Core {
    let mut core = core(None);
    (0..2).for_each(|seat| core.handle_message(seat, status(0, 0)));
    assert!(!core.is_observing());
    core
}

fn said(core: &mut Core) -> Vec<Message> {
    let outputs = std::iter::from_fn(|| core.flush()).flat_map(|flush| flush.outputs);
    let message = |output| match output {
        Output::Send(To::Others, message) => Some(message),
        _ => None,
    };
    outputs.filter_map(message).collect()
}

fn order(view: u64, number: u64) -> SignedOrder {
    let order = Order {
        epoch: Epoch(0),
        view,
        number: BatchNumber::new(number),
        parent: Digest::ZERO,
        timestamp_ms: 0,
        transactions: Digest::ZERO,
    };
    SignedOrder::new(order, &DOMAIN, &key(set().primary(view)))
}

fn verify(before: &LedgerInfo, info: LedgerInfo) -> Message {
    verify_in(0, before, info)
}

fn verify_in(view: u64, before: &LedgerInfo, info: LedgerInfo) -> Message {
    let order = order(view, info.number.get());
    Message::Verify(Box::new(Verify { order, before: before.digest(), info }))
}

/// Goal: equal outcomes count only if they stand on what is decided.
#[test]
fn outcomes_on_another_batch_are_not_prepared() {
    let mut core = awake();
    said(&mut core);
    let wrong = info(9, "another history");
    for seat in 0..3 {
        core.handle_message(seat, verify(&wrong, info(1, "b")));
    }
    assert_eq!(said(&mut core), []);
    for seat in 0..2 {
        core.handle_message(seat, verify(&info(0, "genesis"), info(1, "a")));
    }
    let said = said(&mut core);
    let [Message::Prepare(vote)] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!(vote.ballot.token, info(1, "a").digest());
}

fn prepare(seat: u16, number: u64, name: &str) -> Vote {
    prepare_in(0, seat, number, name)
}

fn prepare_in(view: u64, seat: u16, number: u64, name: &str) -> Vote {
    let ballot = Ballot { view, number: BatchNumber::new(number), token: info(number, name).digest() };
    Vote { ballot, signature: ballot.sign_prepare(&DOMAIN, &key(seat)) }
}

/// Goal: two votes on one number convict; honest votes on two numbers do not, however they are dressed up.
#[test]
fn only_contradictions_convict() {
    let set = set();
    let convicts = |evidence: &Evidence| evidence.is_valid(&set, &DOMAIN);
    let [a, b] = [prepare(1, 5, "a"), prepare(1, 5, "b")];
    assert!(convicts(&Evidence::Prepares(1, Box::new([a, b]))));
    assert!(!convicts(&Evidence::Prepares(2, Box::new([a, b]))), "another's votes");
    assert!(!convicts(&Evidence::Prepares(1, Box::new([a, a]))), "one vote");
    let mut later = prepare(1, 6, "a");
    later.ballot.number = BatchNumber::new(5);
    assert!(!convicts(&Evidence::Prepares(1, Box::new([a, later]))), "an honest vote on the next batch");

    let commit = |number, name| {
        let info = info(number, name);
        let signature = CommitStatement::new(0, info.digest()).sign(&key(1));
        (info, signature)
    };
    let commits = |a, b| Evidence::Commits(1, 0, Box::new([a, b]));
    assert!(convicts(&commits(commit(5, "a"), commit(5, "b"))));
    assert!(!convicts(&commits(commit(5, "a"), commit(6, "b"))));
    let (mut dressed, signature) = commit(6, "b");
    dressed.number = BatchNumber::new(5);
    assert!(!convicts(&commits(commit(5, "a"), (dressed, signature))));
}

/// Goal: one liar's claims of a long chain neither end nor silence a validator that begins.
#[test]
fn a_liar_does_not_silence_who_begins() {
    let mut core = core(None);
    core.handle_message(0, status(u64::MAX, u64::MAX));
    core.handle_message(1, status(0, 0));
    assert!(!core.is_observing() && !core.is_silent());
    core.handle_message(2, status(u64::MAX, 0));
    core.handle_wanted(true);
    core.handle_timer(crate::Timer::Patience);
    assert!(core.complains());
}

/// Goal: a validator that lost its data remembers that it did, over a crash, until it is past what it may have signed.
#[test]
fn lost_data_is_not_forgotten() {
    let mut first = core(None);
    (0..2).for_each(|seat| first.handle_message(seat, status(7, 2)));
    assert!(!first.is_observing() && first.is_silent());
    let record = std::iter::from_fn(|| first.flush()).filter_map(|flush| flush.record).last();
    let again = core(Some(record.expect("it is on record")));
    assert!(!again.is_observing() && again.is_silent());
    assert_eq!(again.amnesia, Some((BatchNumber::new(9), 3)));
}

/// The prepares of seats 0 to 2.
fn prepared(view: u64, number: u64, name: &str) -> Prepared {
    let signatures = (0..3).map(|seat| (seat, prepare_in(view, seat, number, name).signature)).collect();
    Prepared { view, info: info(number, name), signatures: BoundedVec::new(signatures).unwrap() }
}

fn new_view(view: u64, shown: [Option<&Prepared>; 3]) -> NewView {
    let change = |(seat, prepared): (u16, Option<&Prepared>)| {
        ViewChange::new(view, seat, None, prepared.cloned(), &DOMAIN, &key(seat))
    };
    NewView::new(view, (0..).zip(shown).map(change).collect(), &DOMAIN, &key(set().primary(view)))
}

/// Whoever shows it: of two prepared outcomes of one number, a view prepares that of the higher view.
fn the_higher_views_outcome_is_adopted() -> bool {
    let views: Vec<Prepared> =
        ["first", "second", "third"].iter().zip(0..).map(|(name, view)| prepared(view, 1, name)).collect();
    let shown: Vec<Option<&Prepared>> = views.iter().map(Some).chain([None]).collect();
    let places = (0..64).map(|it| [it % 4, it / 4 % 4, it / 16]);
    places.into_iter().all(|places| {
        let highest = places.iter().filter(|place| **place < 3).max();
        let new = new_view(4, places.map(|place| shown[place]));
        let mut core = awake();
        said(&mut core);
        core.handle_message(0, Message::NewView(Box::new(new)));
        let prepares = said(&mut core).into_iter().find_map(|message| match message {
            Message::Prepare(vote) => Some(vote.ballot.token),
            _ => None,
        });
        prepares == highest.map(|place| views[*place].info.digest())
    })
}

/// Goal: an outcome that an earlier view may have decided is not replaced by one of a view still earlier, wherever it stands in the new
/// view.
#[test]
fn of_two_prepared_outcomes_a_view_adopts_the_higher_views() {
    assert!(the_higher_views_outcome_is_adopted());
    for fault in [Fault::AdoptLower, Fault::AdoptLast, Fault::IgnorePrepared] {
        PLANTED.set(Some(fault));
        let holds = the_higher_views_outcome_is_adopted();
        PLANTED.set(None);
        assert!(!holds, "{fault:?} goes unnoticed");
    }
}

/// Goal: what a validator shows when it leaves a view is what it saw prepared last, over a crash too.
#[test]
fn a_validator_shows_what_it_saw_prepared_last() {
    let mut core = awake();
    let before = info(0, "genesis");
    let mut record = None;
    for (view, name) in [(0, "early"), (1, "late")] {
        for seat in 0..3 {
            core.handle_message(seat, verify_in(view, &before, info(1, name)));
            core.handle_message(seat, Message::Prepare(prepare_in(view, seat, 1, name)));
        }
        for seat in 0..3 {
            let (view, number) = (view + 1, BatchNumber::GENESIS);
            let left = Status { view, changing: true, complains: false, decided: number, ordered: number };
            core.handle_message(seat, Message::Status(left));
        }
        let flushes: Vec<_> = std::iter::from_fn(|| core.flush()).collect();
        let outputs = flushes.iter().flat_map(|flush| &flush.outputs);
        let shows = outputs.filter_map(|output| match output {
            Output::Send(_, Message::ViewChange(change)) => change.prepared.as_ref(),
            _ => None,
        });
        let mut shown: Vec<_> = shows.map(|it| (it.view, it.info.clone())).collect();
        // It says so again to each that asks.
        shown.dedup();
        assert_eq!(shown, [(view, info(1, name))]);
        record = flushes.into_iter().rev().find_map(|flush| flush.record);
        // The others show nothing, so that the next view is free.
        core.handle_message((view + 1) as u16, Message::NewView(Box::new(new_view(view + 1, [None; 3]))));
    }
    let kept = record.expect("it left a view").prepared.map(|it| (it.view, it.info));
    assert_eq!(kept, Some((1, info(1, "late"))));
}

/// Goal: of what was prepared in several views the last counts, and what is decided binds more than what is prepared.
#[test]
fn the_last_that_was_prepared_is_adopted() {
    let keys: Vec<SecretKey> = (0..3).map(key).collect();
    let decided = |number, name| {
        let signers = keys.iter().enumerate().map(|(seat, key)| (seat as u16, key));
        Certificate::signed(info(number, name), 0, signers).unwrap()
    };
    let begin = |told: [(Option<Certificate>, Option<Prepared>); 3]| {
        let change = |(seat, (decided, prepared)): (usize, _)| {
            ViewChange::new(3, seat as u16, decided, prepared, &DOMAIN, &key(seat as u16))
        };
        let changes = told.into_iter().enumerate().map(change).collect();
        let new = NewView::new(3, changes, &DOMAIN, &key(3));
        assert!(new.is_valid(&set(), &DOMAIN));
        new
    };
    let (early, late) = (prepared(0, 1, "early"), prepared(1, 1, "late"));
    let new = begin([(None, Some(early.clone())), (None, Some(late.clone())), (None, None)]);
    assert_eq!(new.prepared(), Some(&late));
    let new = begin([(Some(decided(1, "late")), None), (None, Some(early)), (None, None)]);
    assert_eq!((new.prepared(), new.decided().map(|it| it.info.number)), (None, Some(BatchNumber::new(1))));
    let above = prepared(2, 2, "above");
    let new = begin([(Some(decided(1, "late")), Some(above.clone())), (None, Some(late)), (None, None)]);
    assert_eq!(new.prepared(), Some(&above));
}
