//! Goal: for a model of peers that are fast, slow, flaky, stale or lie, the book ranks them right and says why.

use slipstream_types::{Digest, PublicKey, bounded::BoundedVec, schedule::Forks};

use super::{view::candidate, *};
use crate::status::PeerStatus;

const MIB: usize = 1 << 20;
const HOUR: Duration = Duration::from_secs(3_600);

fn id(number: u8) -> PeerId {
    PublicKey([number; 32])
}

fn summary() -> Summary {
    let from = Some(BatchNumber::new(1));
    Summary {
        genesis: Digest::ZERO,
        head: None,
        bodies_from: from,
        receipts_from: Some(BatchNumber::new(5)),
        deltas_from: from,
        states_from: None,
        snapshots: BoundedVec::default(),
        forks: Forks::default(),
    }
}

/// Signatures are checked before the book gets a summary, so this one has none.
fn summary_at(number: u64) -> Summary {
    Summary { head: Some(slipstream_testkit::sign(slipstream_testkit::info(0, number), &[])), ..summary() }
}

fn book(now: Instant, peers: std::ops::RangeInclusive<u8>) -> PeerBook {
    let mut book = PeerBook::new(7);
    let ids: Vec<_> = peers.map(id).collect();
    book.retain(now, &ids);
    ids.iter().for_each(|id| book.summarize(*id, now, summary()));
    book
}

fn order(book: &PeerBook, now: Instant) -> Vec<PeerId> {
    book.candidates(now, false).into_iter().map(|candidate| candidate.peer).collect()
}

fn status(book: &PeerBook, now: Instant, id: PeerId) -> PeerStatus {
    book.statuses(now, false, |_| Default::default()).into_iter().find(|status| status.id == id).unwrap()
}

#[test]
fn failures_pause_longer_and_success_forgives() {
    let mut now = Instant::now();
    let mut book = book(now, 1..=1);
    let asked = |book: &PeerBook, now| !book.stale(now, Duration::ZERO).is_empty();
    let mut last = Duration::ZERO;
    for _ in 0..20 {
        let pause = book.bench(&id(1), now, "late".into());
        assert!(pause >= last && pause <= BENCH_MAX);
        assert!(!asked(&book, now + pause / 2));
        assert_eq!(book.bench(&id(1), now + pause / 2, "of the same moment".into()), pause - pause / 2);
        last = pause;
        now += pause;
    }
    assert_eq!(last, BENCH_MAX);
    assert!(asked(&book, now));
    book.credit(&id(1), Some(ServiceKind::Batches), now, 10, Duration::from_secs(1));
    assert_eq!(book.bench(&id(1), now, "late".into()), BENCH_FIRST);
}

/// Fast, slow, flaky, stale and unknown peers, from 1 to 5.
fn modelled(start: Instant) -> (PeerBook, Instant) {
    let mut book = book(start, 1..=5);
    let mut now = start;
    for turn in 0..60u64 {
        now += Duration::from_secs(1);
        for peer in 1..=4 {
            book.summarize(id(peer), now, summary_at(if peer == 4 { 1_000 } else { 10_000 }));
        }
        book.credit(&id(1), Some(ServiceKind::Batches), now, MIB, Duration::from_millis(20));
        book.credit(&id(2), Some(ServiceKind::Batches), now, MIB, Duration::from_millis(1_500));
        match turn % 3 {
            0 => {
                book.bench(&id(3), now, format!("late in turn {turn}"));
            }
            _ => book.credit(&id(3), Some(ServiceKind::Batches), now, MIB, Duration::from_millis(20)),
        }
        book.credit(&id(4), Some(ServiceKind::Batches), now, MIB, Duration::from_millis(20));
    }
    (book, now + BENCH_MAX)
}

#[test]
fn peers_rank_by_what_they_proved() {
    let (book, now) = modelled(Instant::now());
    let order = order(&book, now);
    assert_eq!(order[0], id(1), "{:#?}", book.statuses(now, false, |_| Default::default()));
    assert_eq!(order[1], id(3), "a third of failures is better than 75 times slower");
    assert_eq!(order[4], id(4), "9,000 batches behind");
    assert_eq!(status(&book, now, id(5)).score, 200);
}

/// Goal: wrong values lower a peer's score, however useful its hints were otherwise, and an operator reads why.
#[test]
fn wrong_values_count_as_a_failure() {
    let (mut book, now) = modelled(Instant::now());
    let right = HintUse { named: 100, used: 100, reads: 100, values_wrong: 0 };
    book.judge_hints(&id(1), now, &right);
    let before = status(&book, now, id(1));
    book.judge_hints(&id(1), now, &HintUse { values_wrong: 3, ..right });
    let after = status(&book, now, id(1));
    assert!(after.score < before.score, "{} and then {}", before.score, after.score);
    assert_eq!(after.failures, before.failures + 1);
    assert!(after.last_reason.is_some_and(|reason| reason.contains("had 3 wrong values")));
    assert!(!after.banned);
}

/// Goal: a refusal that is over is reported with its age.
#[test]
fn an_old_reason_has_its_age() {
    let (mut book, now) = modelled(Instant::now());
    book.bench(&id(1), now, "it refused".into());
    let later = now + Duration::from_secs(90);
    book.credit(&id(1), Some(ServiceKind::Batches), later, 1_000, Duration::from_millis(5));
    let status = status(&book, later, id(1));
    assert_eq!((status.pause_ms, status.last_reason_seconds_ago), (0, Some(90)), "{status:?}");
}

#[test]
fn every_change_has_a_reason() {
    let start = Instant::now();
    let (mut book, now) = modelled(start);
    book.judge_hints(&id(1), now, &HintUse { named: 110, used: 90, reads: 100, values_wrong: 0 });
    for peer in 1..=4 {
        let status = status(&book, now, id(peer));
        assert!(!status.reasons.is_empty() && status.reasons.len() <= 15, "{status:#?}");
    }
    let has = |peer, text: &str| {
        let status = status(&book, now, id(peer));
        assert!(status.reasons.iter().any(|reason| reason.what.contains(text)), "{text}: {status:#?}");
    };
    has(1, "named 90 of 100 reads, and 20 keys in vain");
    has(2, "1048576 bytes in 1500 ms");
    has(3, "late in turn 57");
    has(4, "9000 batches behind");
    // All changes of a short life are still listed, so they add up to the score.
    let fast = status(&book, now, id(1));
    let sum = 200 + fast.reasons.iter().map(|reason| reason.change).sum::<i64>();
    assert!((sum - i64::from(fast.score)).abs() <= 5, "{sum}: {fast:#?}");
}

#[test]
fn long_unmeasured_peers_are_explored_in_a_bounded_share() {
    let start = Instant::now();
    let mut book = book(start, 1..=40);
    book.credit(&id(40), Some(ServiceKind::Batches), start, MIB, Duration::from_millis(20));
    let (mut now, mut explored, requests) = (start, BTreeMap::new(), 1_600);
    for _ in 0..requests {
        now += Duration::from_millis(100);
        let candidates = book.candidates(now, false);
        let chosen = book.choose(now, &candidates, false).unwrap().peer;
        if chosen == id(40) {
            book.credit(&chosen, Some(ServiceKind::Batches), now, MIB, Duration::from_millis(20));
        } else {
            *explored.entry(chosen).or_insert(0u64) += 1;
        }
    }
    assert_eq!(explored.values().sum::<u64>(), requests / explore::ONE_IN);
    assert!(explored.len() > 30, "{} of 39 unknown peers were tried", explored.len());

    // A failed peer is not tried again at once, but after a while.
    for peer in 1..=39 {
        book.bench(&id(peer), now, "late".into());
    }
    let others = |book: &mut PeerBook, now: Instant| {
        let candidates = book.candidates(now, false);
        (0..160).filter(|_| book.choose(now, &candidates, false).unwrap().peer != candidates[0].peer).count()
    };
    assert_eq!(others(&mut book, now + BENCH_MAX), 0);
    assert_eq!(others(&mut book, now + 3 * score::HALF_LIFE), 10);
}

#[test]
fn the_same_seed_explores_alike() {
    let now = Instant::now();
    let chosen = || {
        let mut book = book(now, 1..=9);
        let candidates = book.candidates(now, false);
        (0..100).map(|_| book.choose(now, &candidates, false).unwrap().peer).collect::<Vec<_>>()
    };
    assert_eq!(chosen(), chosen());
}

#[test]
fn a_liar_is_banned_never_credited_and_not_kept() {
    let now = Instant::now();
    let mut book = book(now, 1..=2);
    book.credit(&id(1), Some(ServiceKind::Batches), now, MIB, Duration::from_millis(1));
    book.ban(id(1), now + HOUR, "a wrong proof".into());
    // The transport has not disconnected it yet, and another of its answers comes.
    book.retain(now, &[id(1), id(2)]);
    book.credit(&id(1), Some(ServiceKind::Batches), now, MIB, Duration::from_millis(1));
    let liar = status(&book, now, id(1));
    assert!(liar.banned && liar.verified_bytes == 0 && liar.score == 0, "{liar:?}");
    assert_eq!(order(&book, now), [id(2)]);
    let record = book.save(now).unwrap().unwrap();
    assert!(saved::decode(now, &record).unwrap().is_empty());
    let mut forgiven = book;
    forgiven.retain(now + HOUR, &[id(1), id(2)]);
    assert!(!status(&forgiven, now + HOUR, id(1)).banned, "a ban ends");
    forgiven.ban(id(1), now + 2 * HOUR, "a wrong proof".into());
    forgiven.unban(&id(1));
    forgiven.retain(now + HOUR, &[id(1), id(2)]);
    assert!(!status(&forgiven, now + HOUR, id(1)).banned, "or is lifted");
}

#[test]
fn scores_survive_a_restart_and_damage_is_refused() {
    let (mut book, now) = modelled(Instant::now());
    let record = book.save(now).unwrap().unwrap();
    assert!(book.save(now).is_none(), "nothing changed");
    let mut again = PeerBook::new(8);
    again.restore(now, &record).unwrap();
    again.retain(now, &[1, 2, 3, 5].map(id));
    for peer in [1, 2, 3, 5].map(id) {
        let (old, new) = (status(&book, now, peer), status(&again, now, peer));
        assert!(old.score.abs_diff(new.score) < 50, "{old:?} {new:?}");
        assert_eq!((old.tail_ms, old.bytes_per_second), (new.tail_ms, new.bytes_per_second));
    }
    for damaged in [&record[..record.len() - 1], &[0xff; 100]] {
        let mut empty = PeerBook::new(8);
        assert!(empty.restore(now, damaged).is_err());
        assert!(empty.away.is_empty());
    }
}

#[test]
fn flapping_ends_no_pause_and_absent_peers_are_bounded() {
    let now = Instant::now();
    let mut book = book(now, 1..=1);
    let pause = book.bench(&id(1), now, "late".into());
    book.retain(now, &[]);
    book.retain(now, &[id(1)]);
    assert!(book.stale(now + pause / 2, Duration::ZERO).is_empty());

    for i in 0..1_000u32 {
        let mut fresh = [0; 32];
        fresh[..4].copy_from_slice(&(i + 1).to_be_bytes());
        book.retain(now, &[PublicKey(fresh)]);
        book.bench(&PublicKey(fresh), now, "late".into());
    }
    book.retain(now, &[]);
    assert_eq!(book.away.len(), saved::PEERS_MAX);
    assert!(book.away.contains_key(&id(1)), "measured best");
}

/// Goal: a peer that refuses what its summary names is not asked again before its next summary.
#[test]
fn a_refusal_refutes_a_summary() {
    let now = Instant::now();
    let mut book = book(now, 1..=1);
    let serves = |book: &PeerBook| book.candidates(now, false).iter().any(|peer| peer.delta_from.is_some());
    book.summarize(id(1), now, summary_at(10));
    assert!(serves(&book));
    book.refute(&id(1));
    assert!(!serves(&book) && book.target() == BatchNumber::new(10));
    assert_eq!(book.stale(now, Duration::from_secs(60)), [id(1)]);
    book.summarize(id(1), now, summary_at(10));
    assert!(serves(&book));
}

#[test]
fn history_needs_all_parts() {
    let from = |history, summary| {
        let candidate = candidate(id(1), &summary, history, &Score::new(Instant::now()));
        [candidate.delta_from, candidate.whole_from].map(|from| from.map(|number| number.get()))
    };
    let lacking = || Summary { receipts_from: None, ..summary() };
    assert_eq!(from(false, summary()), [Some(1), None]);
    assert_eq!(from(true, summary()), [Some(1), Some(5)]);
    assert_eq!(from(true, lacking()), [Some(1), None]);
    assert_eq!(from(false, lacking()), [Some(1), None]);
}

#[test]
fn bans_are_remembered_by_name_and_bounded() {
    let now = Instant::now();
    let mut book = PeerBook::new(7);
    for i in 0..1_000u32 {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&i.to_le_bytes());
        book.retain(now, &[PublicKey(id)]);
        book.ban(PublicKey(id), now + HOUR, "lied".into());
    }
    assert_eq!(book.statuses(now, false, |_| Default::default()).len(), BANNED_MAX);
    assert!(book.statuses(now, false, |_| Default::default()).iter().all(|peer| peer.banned));
}

/// Goal: a peer that offers and is always busy rests longer each time and comes last. It gets neither a failure nor a
/// ban, and is back when it answers.
#[test]
fn a_peer_that_is_always_busy_has_a_price() {
    let start = Instant::now();
    let mut book = book(start, 1..=2);
    let (mut now, wanted, mut rests) = (start, Duration::from_millis(200), Vec::new());
    for _ in 0..8 {
        // Sixteen requests that are refused together count once.
        (0..16).for_each(|_| {
            book.busy(&id(1), Some(ServiceKind::Snapshots), now, wanted, "state chunk: busy".into())
        });
        let rest = book.next_unpaused(now).unwrap() - now;
        rests.push(rest.as_millis());
        now += rest;
        book.credit(&id(1), Some(ServiceKind::Batches), now, 10, Duration::from_millis(1));
    }
    assert_eq!(rests, [200, 200, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000]);
    book.summarize(id(2), now, summary());
    assert_eq!(order(&book, now), [id(2), id(1)]);
    assert!(book.reliability(&id(1), now) < book.reliability(&id(2), now));
    let busy = status(&book, now, id(1));
    assert_eq!((busy.failures, busy.banned), (0, false));
    (0..3)
        .for_each(|_| book.credit(&id(1), Some(ServiceKind::Snapshots), now, MIB, Duration::from_millis(20)));
    assert_eq!(order(&book, now), [id(1), id(2)]);
    book.busy(&id(1), Some(ServiceKind::Snapshots), now, wanted, "state chunk: busy".into());
    assert_eq!(book.next_unpaused(now).unwrap() - now, wanted);
}

/// Goal: answers that cannot be judged do not end a peer's pause for its failures.
#[test]
fn what_cannot_be_judged_ends_no_pause() {
    let mut now = Instant::now();
    let mut book = book(now, 1..=1);
    for _ in 0..8 {
        now += book.bench(&id(1), now, "late".into());
    }
    let pause = book.bench(&id(1), now, "late".into());
    book.unjudged(&id(1), now, "an epoch that is not known".into());
    assert!(pause > UNJUDGED_PAUSE && book.next_unpaused(now) == Some(now + pause));
    now += pause;
    book.unjudged(&id(1), now, "an epoch that is not known".into());
    assert_eq!(book.next_unpaused(now), Some(now + UNJUDGED_PAUSE));
}

/// Goal: coming back under the same key does not clear a record of missing deliveries.
#[test]
fn flapping_does_not_clear_what_was_not_delivered() {
    let now = Instant::now();
    let mut book = book(now, 1..=1);
    (0..4).for_each(|i| {
        let at = now + i * BENCH_MAX;
        book.busy(&id(1), Some(ServiceKind::Snapshots), at, Duration::ZERO, "busy".into());
    });
    let later = now + 4 * BENCH_MAX;
    let before = book.reliability(&id(1), later);
    book.retain(later, &[]);
    book.retain(later, &[id(1)]);
    assert_eq!(book.reliability(&id(1), later), before);
}

/// Goal: fresh identities do not rank before a proven peer, and never get an urgent request by chance.
#[test]
fn an_unknown_peer_is_trusted_less_than_a_proven_one() {
    let now = Instant::now();
    let mut book = book(now, 1..=9);
    (0..20)
        .for_each(|_| book.credit(&id(1), Some(ServiceKind::Batches), now, MIB, Duration::from_millis(20)));
    assert!(book.reliability(&id(1), now) > 1.8 * book.reliability(&id(2), now));
    let candidates = book.candidates(now, false);
    assert!((0..160).all(|_| book.choose(now, &candidates, true).unwrap().peer == id(1)));
}
