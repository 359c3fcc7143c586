//! Attacks of a hostile validator on one core, and things that a crash might make it forget.

use std::{sync::LazyLock, time::Instant};

use slipstream_types::{
    Address, BatchNumber, Certificate, CommitStatement, Digest, Epoch, LedgerInfo, SecretKey, ValidatorSet,
    bounded::BoundedVec,
};

use crate::{
    Amnesia, Ballot, Core, Evidence, Message, NewView, Order, Output, Prepared, Receivers, Record, Settings,
    Setup, SignedOrder, Silence, Status, Verify, ViewChange, Vote,
    planted::{Fault, PLANTED},
};

pub(super) const DOMAIN: Digest = Digest::ZERO;
pub(super) const SETTINGS: Settings = Settings {
    view_timeout_ms: 1_000,
    rotate_after: 0,
    protect_after: 0,
    protect_wait_ms: 10,
    recalls_votes: true,
};

/// The time of all inputs: it stands still.
pub(super) fn now() -> Instant {
    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
    *NOW
}

pub(super) fn key(seat: u16) -> SecretKey {
    slipstream_testkit::key(seat as u8 + 1)
}

pub(super) fn set() -> ValidatorSet {
    slipstream_testkit::set(0, &slipstream_testkit::keys(1..=4), Address::ZERO)
}

pub(super) fn info(number: u64, name: &str) -> LedgerInfo {
    let accumulator_root = Digest::tagged(name, &number.to_le_bytes());
    LedgerInfo { accumulator_root, ..slipstream_testkit::info(0, number) }
}

/// Seat 3 of four, with `record`.
pub(super) fn core(record: Option<Record>) -> Core {
    Core::new(
        Setup {
            set: set(),
            key: key(3),
            seat: 3,
            domain: DOMAIN,
            settings: SETTINGS,
            head: info(0, "genesis"),
            certificate: None,
            record,
            outcomes: Vec::new(),
            kept: Vec::new(),
        },
        now(),
    )
}

pub(super) fn status(decided: u64, view: u64) -> Message {
    let decided = BatchNumber::new(decided);
    Message::Status(Status {
        view,
        changing: false,
        complains: false,
        decided,
        ordered: decided,
        neglected: false,
        silence: None,
    })
}

/// A core that heard from two others that nothing is decided.
pub(super) fn awake() -> Core {
    let mut core = core(None);
    (0..2).for_each(|seat| core.handle_message(seat, status(0, 0), now()));
    assert_eq!(core.silence(), None);
    core
}

pub(super) fn said(core: &mut Core) -> Vec<Message> {
    let outputs = std::iter::from_fn(|| core.poll_flush()).flat_map(|flush| flush.outputs);
    let message = |output| match output {
        Output::Send(Receivers::Others, message) => Some(message),
        _ => None,
    };
    outputs.filter_map(message).collect()
}

pub(super) fn order(view: u64, number: u64) -> SignedOrder {
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

pub(super) fn verify(before: &LedgerInfo, info: LedgerInfo) -> Message {
    verify_in(0, before, info)
}

pub(super) fn verify_in(view: u64, before: &LedgerInfo, info: LedgerInfo) -> Message {
    let order = order(view, info.number.get());
    Message::Verify(Box::new(Verify { order, before: before.digest(), info, took_ms: 0 }))
}

/// Goal: equal outcomes count only if they build on the decided batch.
#[test]
fn outcomes_on_another_batch_are_not_prepared() {
    let mut core = awake();
    said(&mut core);
    let wrong = info(9, "another history");
    for seat in 0..3 {
        core.handle_message(seat, verify(&wrong, info(1, "b")), now());
    }
    assert_eq!(said(&mut core), []);
    for seat in 0..2 {
        core.handle_message(seat, verify(&info(0, "genesis"), info(1, "a")), now());
    }
    let said = said(&mut core);
    let [Message::Prepare(vote)] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!(vote.ballot.token, info(1, "a").digest());
}

pub(super) fn prepare(seat: u16, number: u64, name: &str) -> Vote {
    prepare_in(0, seat, number, name)
}

pub(super) fn prepare_in(view: u64, seat: u16, number: u64, name: &str) -> Vote {
    let ballot = Ballot { view, number: BatchNumber::new(number), token: info(number, name).digest() };
    Vote { ballot, signature: ballot.sign_prepare(&DOMAIN, &key(seat)) }
}

/// Goal: two votes on one number convict; honest votes on two numbers do not, however they are disguised.
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

/// Goal: one liar's claims of a long chain neither stop nor silence a validator that starts.
#[test]
fn a_liar_does_not_silence_who_begins() {
    let mut core = core(None);
    core.handle_message(0, status(u64::MAX, u64::MAX), now());
    core.handle_message(1, status(0, 0), now());
    assert_eq!(core.silence(), None);
    core.handle_message(2, status(u64::MAX, 0), now());
    core.handle_wanted(true, now());
    core.handle_timer(crate::Timer::Patience, now());
    assert!(core.complains());
}

/// Goal: a validator that lost its data remembers the loss, even over a crash, until it is past what it may have
/// signed.
#[test]
fn lost_data_is_not_forgotten() {
    let mut first = core(None);
    (0..2).for_each(|seat| first.handle_message(seat, status(7, 2), now()));
    assert_eq!(first.silence(), Some(Silence::LostVotes { until: BatchNumber::new(9) }));
    let record = std::iter::from_fn(|| first.poll_flush()).filter_map(|flush| flush.record).last();
    let again = core(Some(record.expect("it is on record")));
    assert_eq!(again.silence(), first.silence());
    assert_eq!(again.memory.amnesia, Some(Amnesia { number: BatchNumber::new(9), view: 3 }));
}

/// A record of that epoch, of a validator that has signed nothing in it.
pub(super) fn record(epoch: u64, voted: u64) -> Record {
    Record {
        epoch: Epoch(epoch),
        view: 2,
        changing: false,
        prepare: None,
        prepared: None,
        adopted: None,
        amnesia: None,
        decided: BoundedVec::default(),
        voted: BatchNumber::new(voted),
    }
}

pub(super) fn certificate(number: u64, seats: std::ops::Range<u16>) -> Certificate {
    let keys: Vec<_> = seats.clone().map(key).collect();
    Certificate::signed(info(number, "a"), 0, seats.zip(&keys)).unwrap()
}

/// Returns whether the core sends anything but its status though a batch is overdue, and its last record.
fn speaks(core: &mut Core) -> (bool, Option<Record>) {
    core.handle_wanted(true, now());
    core.handle_timer(crate::Timer::Patience, now());
    let flushes: Vec<_> = std::iter::from_fn(|| core.poll_flush()).collect();
    let said = flushes.iter().flat_map(|flush| &flush.outputs);
    let is_vote = |output: &Output| !matches!(output, Output::Send(_, Message::Status(_)));
    let speaks = core.complains() || said.clone().any(is_vote);
    (speaks, flushes.into_iter().filter_map(|flush| flush.record).next_back())
}

/// Goal: a validator notices that its ledger went back to an epoch before that of its votes. There it signs nothing,
/// and its record stays as it is.
#[test]
fn a_record_of_a_later_epoch_means_a_lost_ledger() {
    let mut core = core(Some(record(1, 9)));
    assert_eq!(core.silence(), Some(Silence::LostLedger { epoch: Epoch(1) }));
    (0..3).for_each(|seat| core.handle_message(seat, status(0, 0), now()));
    assert_eq!(speaks(&mut core), (false, None));
}

/// Goal: a validator notices a ledger that ends before its votes, or before the last decision that it knows. The state
/// that a crash leaves is accepted.
#[test]
fn a_ledger_that_went_back_silences_its_validator() {
    let decided = |number| Record {
        decided: BoundedVec::new(vec![certificate(number, 0..3)]).unwrap(),
        ..record(0, 0)
    };
    let ballot = |number| prepare(3, number, "a").ballot;
    for (whole, record) in [
        (true, record(0, 1)),
        (false, record(0, 2)),
        (true, decided(1)),
        (false, decided(2)),
        (true, Record { voted: BatchNumber::new(2), ..decided(1) }),
        (true, Record { prepare: Some(ballot(1)), ..record(0, 1) }),
        (false, Record { prepare: Some(ballot(2)), ..record(0, 0) }),
    ] {
        let until = record.voted_up_to();
        let mut core = core(Some(record.clone()));
        let lost = (!whole).then_some(Silence::LostVotes { until });
        assert_eq!(core.silence(), lost, "{record:?}");
        (0..3).for_each(|seat| core.handle_message(seat, status(0, 2), now()));
        assert_eq!(speaks(&mut core).0, whole, "{record:?}");
    }
}

/// Goal: a validator whose data is an old copy notices a signature of its own that the record lacks. A certificate or a
/// prepared outcome shows that signature. Signatures of others alone show nothing.
#[test]
fn an_old_copy_is_noticed_by_its_own_signature() {
    let set = set();
    let lost = Some(Silence::LostVotes { until: BatchNumber::new(3) });
    for (seats, silence) in [(0..3, None), (1..4, lost)] {
        let mut decided = core(Some(record(0, 0)));
        decided.handle_message(0, Message::Decided(Box::new(certificate(1, seats.clone()))), now());
        let mut synced = core(Some(record(0, 0)));
        synced.handle_certificate(&certificate(1, seats.clone()));
        let signatures = seats.map(|seat| (seat, prepare(seat, 1, "a").signature)).collect();
        let signatures = BoundedVec::new(signatures).unwrap();
        let prepared = Prepared { view: 0, info: info(1, "a"), signatures };
        let change = ViewChange::new(3, 0, None, Some(prepared), &DOMAIN, &key(0));
        assert!(change.is_valid(&set, &DOMAIN));
        let mut changed = core(Some(record(0, 0)));
        changed.handle_message(0, Message::ViewChange(Box::new(change)), now());
        for core in [&decided, &synced, &changed] {
            assert_eq!(core.silence(), silence);
        }
    }
    let mut whole = core(Some(record(0, 1)));
    whole.handle_certificate(&certificate(1, 1..4));
    assert_eq!(whole.silence(), None);
}

/// Goal: the record of a new epoch still says what was voted on before it.
#[test]
fn what_was_voted_on_is_known_across_epochs() {
    let mut core = Core::new(
        Setup {
            set: slipstream_testkit::set(1, &slipstream_testkit::keys(1..=4), Address::ZERO),
            key: key(3),
            seat: 3,
            domain: DOMAIN,
            settings: SETTINGS,
            head: info(9, "last"),
            certificate: None,
            record: Some(Record { prepare: Some(prepare(3, 9, "a").ballot), ..record(0, 8) }),
            outcomes: Vec::new(),
            kept: Vec::new(),
        },
        now(),
    );
    let (_, written) = speaks(&mut core);
    let written = written.expect("a new epoch is recorded");
    assert_eq!((written.epoch, written.voted_up_to()), (Epoch(1), BatchNumber::new(9)));
    assert_eq!(core.silence(), None);
}

/// Goal: a decision ends a complaint about a late batch. It ends no complaint about what the primary omits, whether the
/// validator's own or that of `max(u, r) + 1` others.
#[test]
fn a_decision_does_not_end_a_complaint_of_neglect() {
    let decide = |core: &mut Core| {
        let next = core.decided().get() + 1;
        core.handle_message(0, Message::Decided(Box::new(certificate(next, 0..3))), now());
        assert_eq!(core.decided().get(), next);
    };
    let complaint = |neglected| {
        let decided = BatchNumber::GENESIS;
        let ordered = decided;
        Message::Status(Status {
            view: 0,
            changing: false,
            complains: true,
            decided,
            ordered,
            neglected,
            silence: None,
        })
    };
    let mut alone = awake();
    alone.handle_neglect(true, now());
    decide(&mut alone);
    assert!(alone.complains() && alone.view() == 0, "one alone ends no view");
    alone.handle_neglect(false, now());
    assert!(!alone.complains());
    for neglected in [false, true] {
        let mut core = awake();
        core.handle_message(1, complaint(neglected), now());
        assert!(!core.complains());
        core.handle_message(2, complaint(neglected), now());
        // With its own complaint there is a quorum.
        assert!(core.is_changing() && core.view() == 1);
        let mut late = awake();
        late.complain();
        late.handle_message(1, complaint(neglected), now());
        decide(&mut late);
        assert!(!late.complains(), "one of the others is no honest one");
    }
}

/// Goal: a primary that makes each batch just in time has a shorter term than a quick one. Time in which a batch is due
/// counts towards the term.
#[test]
fn a_slow_primary_has_a_short_term() {
    let settings = Settings { rotate_after: 80, ..SETTINGS };
    let decisions = |ticks_of_each: usize, wanted: bool| {
        let mut core = awake();
        core.settings = settings;
        core.handle_wanted(wanted, now());
        for decisions in 0..80 {
            (0..ticks_of_each).for_each(|_| core.handle_timer(crate::Timer::Tell, now()));
            if core.complains() {
                return decisions;
            }
            let next = core.decided().get() + 1;
            core.handle_message(0, Message::Decided(Box::new(certificate(next, 0..3))), now());
            core.handle_committed(info(next, "a"), now());
        }
        80
    };
    assert_eq!(decisions(4, true), 3, "it is waited for two or three times for each");
    assert_eq!((decisions(1, true), decisions(4, false)), (80, 80));
}

/// The prepares of seats 0 to 2.
pub(super) fn prepared(view: u64, number: u64, name: &str) -> Prepared {
    prepared_by([0, 1, 2], view, number, name)
}

pub(super) fn prepared_by(seats: [u16; 3], view: u64, number: u64, name: &str) -> Prepared {
    let signatures = seats.map(|seat| (seat, prepare_in(view, seat, number, name).signature)).to_vec();
    Prepared { view, info: info(number, name), signatures: BoundedVec::new(signatures).unwrap() }
}

pub(super) fn new_view(view: u64, shown: [Option<&Prepared>; 3]) -> NewView {
    let change = |(seat, prepared): (u16, Option<&Prepared>)| {
        ViewChange::new(view, seat, None, prepared.cloned(), &DOMAIN, &key(seat))
    };
    NewView::new(view, (0..).zip(shown).map(change).collect(), &DOMAIN, &key(set().primary(view)))
}

/// Whether, of two prepared outcomes of one number, a view prepares that of the higher view, whoever shows it.
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
        core.handle_message(0, Message::NewView(Box::new(new)), now());
        let prepares = said(&mut core).into_iter().find_map(|message| match message {
            Message::Prepare(vote) => Some(vote.ballot.token),
            _ => None,
        });
        prepares == highest.map(|place| views[*place].info.digest())
    })
}

/// Goal: of two prepared outcomes of one number, a new view adopts the one of the higher view, whichever validator
/// shows it. A lower view's outcome cannot replace it.
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

/// Goal: a validator that leaves a view shows the last outcome that it saw prepared, even after a crash.
#[test]
fn a_validator_shows_what_it_saw_prepared_last() {
    let mut core = awake();
    let before = info(0, "genesis");
    let mut record = None;
    for (view, name) in [(0, "early"), (1, "late")] {
        for seat in 0..3 {
            core.handle_message(seat, verify_in(view, &before, info(1, name)), now());
            core.handle_message(seat, Message::Prepare(prepare_in(view, seat, 1, name)), now());
        }
        for seat in 0..3 {
            let (view, number) = (view + 1, BatchNumber::GENESIS);
            let left = Status {
                view,
                changing: true,
                complains: false,
                decided: number,
                ordered: number,
                neglected: false,
                silence: None,
            };
            core.handle_message(seat, Message::Status(left), now());
        }
        let flushes: Vec<_> = std::iter::from_fn(|| core.poll_flush()).collect();
        let outputs = flushes.iter().flat_map(|flush| &flush.outputs);
        let shows = outputs.filter_map(|output| match output {
            Output::Send(_, Message::ViewChange(change)) => change.prepared.as_ref(),
            _ => None,
        });
        let mut shown: Vec<_> = shows.map(|it| (it.view, it.info.clone())).collect();
        // It repeats this to each that asks.
        shown.dedup();
        assert_eq!(shown, [(view, info(1, name))]);
        record = flushes.into_iter().rev().find_map(|flush| flush.record);
        // The others show nothing, so that the next view is free.
        core.handle_message(
            (view + 1) as u16,
            Message::NewView(Box::new(new_view(view + 1, [None; 3]))),
            now(),
        );
    }
    let kept = record.expect("it left a view").prepared.map(|it| (it.view, it.info));
    assert_eq!(kept, Some((1, info(1, "late"))));
}

/// Goal: among outcomes prepared in several views, the one of the last view counts. A decided outcome takes precedence
/// over a prepared one.
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
