//! Tests each condition for a statement to count, in a set with failure bounds of its own. One signature too few, too
//! old or of another author makes it void.

use slipstream_types::{
    Address, BatchNumber, Certificate, Digest, Epoch, LedgerInfo, SecretKey, ValidatorSet,
    bounded::BoundedVec, validators::Failures,
};

use super::cases::now;
use crate::{Ballot, Core, Message, NewView, Prepared, Settings, Setup, Status, ViewChange, Vote};

const DOMAIN: Digest = Digest([7; 32]);
const VIEW: u64 = 3;

fn key(seat: u16) -> SecretKey {
    slipstream_testkit::key(seat as u8 + 1)
}

/// Five validators, of which one may be silent and two may lie: quorums are of four, and three alike include an honest
/// one. Thirds would require four and two.
fn set() -> ValidatorSet {
    let failures = Failures { any: 1, commission: 2 };
    ValidatorSet { failures, ..slipstream_testkit::set(1, &slipstream_testkit::keys(1..=5), Address::ZERO) }
}

fn info(number: u64) -> LedgerInfo {
    slipstream_testkit::info(1, number)
}

fn prepared(view: u64, info: LedgerInfo, seats: &[u16]) -> Prepared {
    let ballot = Ballot { view, number: info.number, token: info.digest() };
    let signatures = seats.iter().map(|seat| (*seat, ballot.sign_prepare(&DOMAIN, &key(*seat)))).collect();
    Prepared { view, info, signatures: BoundedVec::new(signatures).unwrap() }
}

fn decided(info: LedgerInfo, seats: &[u16]) -> Certificate {
    let keys: Vec<_> = seats.iter().map(|seat| (*seat, key(*seat))).collect();
    Certificate::signed(info, 0, keys.iter().map(|(seat, key)| (*seat, key))).unwrap()
}

fn change(view: u64, seat: u16, decided: Option<Certificate>, prepared: Option<Prepared>) -> ViewChange {
    ViewChange::new(view, seat, decided, prepared, &DOMAIN, &key(seat))
}

fn plain(seat: u16) -> ViewChange {
    change(VIEW, seat, None, None)
}

/// Goal: a prepared outcome takes a quorum of this epoch, in which each validator counts once.
#[test]
fn a_prepared_outcome_is_a_quorums() {
    let holds = |prepared: &Prepared| prepared.is_valid(&set(), &DOMAIN);
    assert!(holds(&prepared(0, info(1), &[0, 1, 2, 4])));
    assert!(
        !holds(&prepared(0, info(1), &[0, 1, 2])),
        "thirds of five are a quorum of four too, three are none"
    );
    assert!(!holds(&prepared(0, info(1), &[0, 1, 1, 2])), "one counts twice");
    assert!(!holds(&prepared(0, info(1), &[1, 0, 2, 4])), "in any other order one could count twice");
    assert!(
        !holds(&prepared(0, LedgerInfo { epoch: Epoch(0), ..info(1) }, &[0, 1, 2, 4])),
        "of another epoch"
    );
    let signed = prepared(0, info(1), &[0, 1, 2, 4]);
    assert!(!holds(&Prepared { view: 1, ..signed.clone() }), "of another view");
    assert!(!holds(&Prepared { info: info(2), ..signed.clone() }), "of another batch");
    assert!(!signed.is_valid(&set(), &Digest::ZERO), "of another chain");
    // A commit is no prepare.
    let committed = decided(info(1), &[0, 1, 2, 4]);
    assert!(!holds(&Prepared { signatures: committed.signatures, ..signed }));
}

/// Goal: a view change is its author's own, and proves what it shows.
#[test]
fn a_view_change_is_its_authors() {
    let holds = |change: &ViewChange| change.is_valid(&set(), &DOMAIN);
    let four = [0, 1, 2, 4];
    assert!(holds(&change(VIEW, 2, Some(decided(info(1), &four)), Some(prepared(2, info(2), &four)))));
    assert!(!holds(&change(VIEW, 2, Some(decided(info(1), &four[..3])), None)), "a certificate of too few");
    assert!(!holds(&change(VIEW, 2, None, Some(prepared(2, info(2), &four[..3])))), "prepared by too few");
    assert!(
        !holds(&change(VIEW, 2, None, Some(prepared(VIEW, info(2), &four)))),
        "prepared in a view to come"
    );
    let other = change(VIEW, 2, None, Some(prepared(2, info(2), &four)));
    assert!(!holds(&ViewChange { prepared: None, ..other.clone() }), "what it shows is signed");
    assert!(!holds(&ViewChange { view: VIEW + 1, ..other.clone() }), "the view is signed");
    assert!(!holds(&ViewChange { seat: 1, ..other }), "the seat is signed");
    assert!(!holds(&ViewChange { seat: 9, ..plain(2) }), "nobody's seat");
}

/// Goal: a view begins with the view changes of a quorum, each once and of this view, sent by its primary.
#[test]
fn a_view_begins_with_the_words_of_a_quorum() {
    let primary = set().primary(VIEW);
    let begins = |changes: Vec<ViewChange>, signer: u16| {
        NewView::new(VIEW, changes, &DOMAIN, &key(signer)).is_valid(&set(), &DOMAIN)
    };
    let all = || vec![plain(0), plain(1), plain(2), plain(4)];
    let but = |at: usize, other: ViewChange| {
        let mut changes = all();
        changes[at] = other;
        changes
    };
    assert!(begins(all(), primary));
    assert!(!begins(all(), 0), "not its primary");
    assert!(!begins(all()[..3].to_vec(), primary), "one too few");
    assert!(!begins(but(1, plain(0)), primary), "one counts twice");
    assert!(!begins(vec![plain(1), plain(0), plain(2), plain(4)], primary), "out of order");
    assert!(
        !begins(but(2, change(VIEW - 1, 2, None, None)), primary),
        "a word on the view below hides what came since"
    );
    assert!(!begins(but(2, change(VIEW + 1, 2, None, None)), primary), "a word on a view above");
    let forged = ViewChange { signature: plain(1).signature, ..plain(2) };
    assert!(!begins(but(2, forged), primary), "not its author's");
}

fn core(seat: u16) -> Core {
    let settings = Settings {
        view_timeout_ms: 1_000,
        rotate_after: 0,
        protect_after: 0,
        protect_wait_ms: 10,
        recalls_votes: true,
    };
    let (certificate, record, outcomes, kept) = (None, None, Vec::new(), Vec::new());
    let head = info(0);
    let (set, key, domain) = (set(), key(seat), DOMAIN);
    let mut core = Core::new(
        Setup { set, key, seat, domain, settings, head, certificate, record, outcomes, kept },
        now(),
    );
    let (view, number) = (0, BatchNumber::GENESIS);
    let status = Status {
        view,
        changing: false,
        complains: false,
        decided: number,
        ordered: number,
        neglected: false,
        silence: None,
    };
    (0..4)
        .filter(|from| *from != seat)
        .for_each(|from| core.handle_message(from, Message::Status(status), now()));
    assert!(!core.is_silent());
    core
}

/// Goal: a statement counts for the seat whose channel and signature it has. A validator that repeats others'
/// statements adds none.
#[test]
fn repeated_words_are_no_further_words() {
    let mut core = core(4);
    for from in 0..3 {
        core.handle_message(from, Message::ViewChange(Box::new(plain(0))), now());
    }
    assert_eq!((core.view(), core.others.changes.keys().copied().collect::<Vec<_>>()), (0, vec![0]));
    // Three include an honest one, and are followed; thirds would follow two.
    core.handle_message(1, Message::ViewChange(Box::new(plain(1))), now());
    assert_eq!(core.view(), 0);
    core.handle_timer(crate::Timer::Tell, now());
    core.handle_message(2, Message::ViewChange(Box::new(plain(2))), now());
    assert_eq!((core.view(), core.is_changing()), (VIEW, true));

    let mut core = self::core(4);
    let ballot = Ballot { view: 0, number: BatchNumber::new(1), token: info(1).digest() };
    let vote = Vote { ballot, signature: ballot.sign_prepare(&DOMAIN, &key(0)) };
    (0..3).for_each(|from| core.handle_message(from, Message::Prepare(vote), now()));
    let commit = Vote { ballot, signature: ballot.sign_commit(&key(3)) };
    (0..4).for_each(|from| core.handle_message(from, Message::Commit(commit), now()));
    let slot = &core.term.slots[&ballot.number];
    assert_eq!(slot.prepares.keys().copied().collect::<Vec<_>>(), [0]);
    assert_eq!(slot.commits.keys().copied().collect::<Vec<_>>(), [3]);
}

/// Goal: a validator that left a view signs nothing in it any more, whatever arrives late.
#[test]
fn who_left_a_view_votes_in_it_no_more() {
    let mut core = core(4);
    for seat in 0..3 {
        core.handle_message(seat, Message::ViewChange(Box::new(change(1, seat, None, None))), now());
    }
    assert_eq!((core.view(), core.is_changing()), (1, true));
    while core.poll_flush().is_some() {}
    for view in [0, 1] {
        let ballot = Ballot { view, number: BatchNumber::new(1), token: info(1).digest() };
        for seat in 0..4 {
            let vote = Vote { ballot, signature: ballot.sign_prepare(&DOMAIN, &key(seat)) };
            core.handle_message(seat, Message::Prepare(vote), now());
            let vote = Vote { ballot, signature: ballot.sign_commit(&key(seat)) };
            core.handle_message(seat, Message::Commit(vote), now());
        }
    }
    assert_eq!(core.decided(), BatchNumber::GENESIS);
    assert!(core.term.slots.is_empty());
}
