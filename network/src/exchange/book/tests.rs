use std::collections::BTreeSet;

use proptest::prelude::*;
use slipstream_types::{Digest, PublicKey};

use super::{
    entry::KEPT_MS,
    table::{
        ENTRIES_MAX, HEARD_BUCKETS, HEARD_BUCKETS_PER_TELLER, REACHED_BUCKETS, REACHED_BUCKETS_PER_BLOCK,
    },
    *,
};

const CHAIN: Digest = Digest([7; 32]);
const NOW_MS: u64 = 1_700_000_000_000;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;

/// Slots of a bucket.
const SLOTS: usize = ENTRIES_MAX / (HEARD_BUCKETS + REACHED_BUCKETS);
const HEARD_MAX: usize = HEARD_BUCKETS * SLOTS;
const REACHED_MAX: usize = REACHED_BUCKETS * SLOTS;

fn id(n: u32) -> PeerId {
    let mut key = [3; 32];
    key[..4].copy_from_slice(&n.to_be_bytes());
    PublicKey(key)
}

fn at(ip: [u8; 4]) -> SocketAddr {
    SocketAddr::from((ip, 7400))
}

fn record(n: u32, ip: [u8; 4]) -> PeerRecord {
    PeerRecord::made_up(id(n), &[at(ip)], NOW_MS)
}

fn book(secret: u8) -> AddressBook {
    AddressBook::new([secret; 32], id(u32::MAX), Reach::of(&[]))
}

/// The n-th of an attacker's 10,000 identities, in three blocks.
fn attacker(n: u32) -> (u32, [u8; 4]) {
    let [.., c, d] = (n / 3).to_be_bytes();
    (1_000_000 + n, [[45, 46, 47][n as usize % 3], 7, c, d])
}

/// The n-th of 200 honest peers, two in each of a hundred blocks.
fn honest(n: u32) -> (u32, [u8; 4]) {
    (n, [60 + (n % 100) as u8, 9, (n / 100) as u8, 1])
}

fn share_of(book: &AddressBook, part: &Table) -> usize {
    part.cells()
        .filter(|peer| book.entries[peer].record.id().0[..4] >= 1_000_000u32.to_be_bytes()[..])
        .count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Goal: 10,000 identities in three blocks, each of which reports itself, fill at most nine of the 128 buckets, 7 %
    /// of the book. The book keeps all reports of four honest peers that their slots allow.
    #[test]
    fn three_blocks_fill_nine_buckets(secret: u8, comes_first: bool) {
        let mut book = book(secret);
        let flood = |book: &mut AddressBook| {
            for (n, ip) in (0..10_000).map(attacker) {
                book.hear(record(n, ip), ip.into(), NOW_MS);
            }
        };
        if comes_first {
            flood(&mut book);
        }
        for (n, ip) in (0..200).map(honest) {
            book.hear(record(n, ip), [80 + (n % 4) as u8, 1, 1, 1].into(), NOW_MS);
        }
        if !comes_first {
            flood(&mut book);
        }
        let attackers = share_of(&book, &book.heard);
        prop_assert!(attackers <= 9 * SLOTS, "{attackers} of {HEARD_MAX}");
        let honest = book.len().0 - attackers;
        prop_assert!(honest >= 170, "{honest} of 200");
    }

    /// Goal: a teller that reports 10,000 peers in as many blocks fills an eighth of the book. More hosts of its block
    /// fill no more.
    #[test]
    fn one_teller_fills_an_eighth(secret: u8, hosts in 1u8..=255) {
        let mut book = book(secret);
        for n in 0..10_000u32 {
            let [.., b, c] = n.to_be_bytes();
            let ip = [45 + (n / 2_500) as u8, b, c, 1];
            book.hear(record(1_000_000 + n, ip), [99, 9, 9, (n % u32::from(hosts)) as u8].into(), NOW_MS);
        }
        let told = share_of(&book, &book.heard);
        prop_assert!(told <= HEARD_BUCKETS_PER_TELLER * SLOTS && told * 8 <= HEARD_MAX, "{told}");
        prop_assert!(told > HEARD_MAX / 16, "{told}: what it tells is not lost either");
    }

    /// Goal: even if all 10,000 identities can be reached, their three blocks get a tenth of the reached table. Peers
    /// reached before them keep their slots.
    #[test]
    fn three_blocks_are_a_tenth_of_the_reached(secret: u8) {
        let mut book = book(secret);
        let reach = |book: &mut AddressBook, (n, ip): (u32, [u8; 4])| {
            book.hear(record(n, ip), ip.into(), NOW_MS);
            book.reached(&id(n), at(ip), NOW_MS);
        };
        (0..100).map(honest).for_each(|peer| reach(&mut book, peer));
        let before: BTreeSet<_> = book.reached.cells().collect();
        prop_assert!(before.len() > 80, "{}", before.len());
        (0..10_000).map(attacker).for_each(|peer| reach(&mut book, peer));
        let attackers = share_of(&book, &book.reached);
        prop_assert!(attackers <= 3 * REACHED_BUCKETS_PER_BLOCK * SLOTS, "{attackers} of {REACHED_MAX}");
        prop_assert!(attackers * 10 <= REACHED_MAX);
        prop_assert!(before.is_subset(&book.reached.cells().collect()));
    }

    /// Goal: an attacker that fills a few buckets to the brim is drawn in proportion to its buckets, not to its
    /// entries.
    #[test]
    fn draws_go_by_buckets(secret: u8) {
        let mut book = book(secret);
        for (n, ip) in (0..10_000).map(attacker) {
            book.hear(record(n, ip), [99, 9, 9, 9].into(), NOW_MS);
        }
        for (n, ip) in (0..60).map(honest) {
            book.hear(record(n, ip), [(80 + n % 20) as u8, 1, 1, 1].into(), NOW_MS);
        }
        prop_assert!(share_of(&book, &book.heard) > 12, "a full bucket, or two, or three");
        let mut draws = Draws::new([secret; 32]);
        let mut attackers = 0;
        for _ in 0..300 {
            let drawn = book.draw(BookPart::Heard, &mut draws, NOW_MS, |_| true).unwrap();
            attackers += usize::from(drawn.id.0[..4] >= 1_000_000u32.to_be_bytes()[..]);
        }
        prop_assert!(attackers <= 60, "{attackers} of 300");
    }

    /// Goal: under any sequence of hearing, meeting, reaching, failing and forgetting, each entry has exactly the cell
    /// that it claims.
    #[test]
    fn tables_and_entries_agree(events in prop::collection::vec((0u32..40, 0u8..7, 0u64..200), 1..400)) {
        let mut book = book(1);
        let mut now_ms = NOW_MS;
        for (n, event, minutes) in events {
            now_ms += minutes * MINUTE_MS;
            let ip = [60 + (n % 3) as u8, 1, 1, (n % 7) as u8 + 1];
            match event {
                0 | 1 => {
                    let record = PeerRecord::made_up(id(n), &[at(ip)], now_ms);
                    book.hear(record, [9, n as u8, 1, 1].into(), now_ms);
                }
                2 => book.reached(&id(n), at(ip), now_ms),
                3 => book.failed(&id(n), minutes % 2 == 0, now_ms),
                4 => book.met(&id(n), at(ip)),
                5 => book.forget(&id(n)),
                _ => book.expire(now_ms),
            }
            for (id, entry) in &book.entries {
                match entry.at {
                    TableCell::Heard(cell) => prop_assert_eq!(book.heard.at(cell), Some(*id)),
                    TableCell::Reached(cell) => prop_assert_eq!(book.reached.at(cell), Some(*id)),
                }
            }
            let (heard, reached) = book.len();
            prop_assert_eq!(heard + reached, book.entries.len());
            let contestants = book.contests.iter().flat_map(|(one, other)| [one, other]);
            let are_known = contestants.into_iter().all(|id| book.entries.contains_key(id));
            prop_assert!(are_known);
        }
    }
}

#[test]
fn a_host_has_one_slot_in_a_bucket_whatever_its_keys() {
    let mut book = book(1);
    for n in 0..1_000 {
        book.hear(record(n, [45, 7, 1, 1]), [45, 7, 1, 1].into(), NOW_MS);
        book.reached(&id(n), at([45, 7, 1, 1]), NOW_MS);
    }
    assert_eq!(book.len(), (1, 1));
    // On loopback, ports tell nodes apart.
    let mut book = AddressBook::new([1; 32], id(u32::MAX), Reach::of(&[at([127, 0, 0, 1])]));
    for n in 0..10 {
        let address = SocketAddr::from(([127, 0, 0, 1], 7400 + n as u16));
        let record = PeerRecord::made_up(id(n), &[address], NOW_MS);
        book.hear(record, [127, 0, 0, 1].into(), NOW_MS);
    }
    assert_eq!(book.len(), (10, 0));
}

#[test]
fn only_dated_records_within_reach_are_kept() {
    let mut book = book(1);
    let teller = IpAddr::from([9, 9, 9, 9]);
    let mut hear = |n, ip, issued_ms| {
        let record = PeerRecord::made_up(id(n), &[at(ip)], issued_ms);
        book.hear(record, teller, NOW_MS)
    };
    assert_eq!(hear(1, [8, 8, 8, 8], NOW_MS), HearOutcome::New);
    assert_eq!(hear(1, [8, 8, 8, 8], NOW_MS - 1), HearOutcome::Known);
    assert_eq!(hear(1, [8, 8, 8, 8], NOW_MS + 1), HearOutcome::Renewed);
    assert_eq!(hear(2, [8, 8, 8, 8], NOW_MS), HearOutcome::NoRoom, "the host has a slot");
    assert_eq!(hear(u32::MAX, [8, 8, 4, 4], NOW_MS), HearOutcome::Useless, "it is this node");
    for ip in
        [[127, 0, 0, 1], [10, 0, 0, 1], [192, 168, 1, 1], [0, 0, 0, 0], [224, 0, 0, 1], [169, 254, 0, 1]]
    {
        assert_eq!(hear(3, ip, NOW_MS), HearOutcome::Useless, "{ip:?}");
    }
    assert_eq!(hear(4, [8, 9, 8, 8], NOW_MS + HOUR_MS), HearOutcome::Useless, "of the future");
    assert_eq!(hear(4, [8, 9, 8, 8], NOW_MS - KEPT_MS - 1), HearOutcome::Useless, "out of date");
    assert_eq!(hear(1, [8, 10, 8, 8], NOW_MS + 2), HearOutcome::Renewed, "it has moved");
    let candidate = book.candidate(&id(1), NOW_MS).unwrap();
    assert_eq!(candidate.address, at([8, 10, 8, 8]));
    book.expire(NOW_MS + KEPT_MS + HOUR_MS);
    assert_eq!(book.len(), (0, 0));
}

/// Goal: a newer record without a slot, or without a usable address, does not cost the peer its existing slot.
#[test]
fn a_newer_record_without_a_place_leaves_the_older_one() {
    let (mut book, teller) = (book(1), IpAddr::from([9, 9, 9, 9]));
    let moved = |n, ip, later_ms| PeerRecord::made_up(id(n), &[at(ip)], NOW_MS + later_ms);
    book.hear(record(1, [60, 1, 1, 1]), teller, NOW_MS);
    book.hear(record(2, [61, 1, 1, 1]), teller, NOW_MS);
    book.reached(&id(1), at([60, 1, 1, 1]), NOW_MS);
    let is_where_it_was = |book: &AddressBook| {
        assert_eq!(book.candidate(&id(1), NOW_MS).unwrap().address, at([60, 1, 1, 1]));
        assert_eq!(book.len(), (1, 1));
    };
    assert_eq!(
        book.hear(moved(1, [61, 1, 1, 1], 1), teller, NOW_MS),
        HearOutcome::NoRoom,
        "the host has a slot"
    );
    is_where_it_was(&book);
    assert_eq!(
        book.hear(moved(1, [10, 0, 0, 1], 2), teller, NOW_MS),
        HearOutcome::Useless,
        "nobody can dial it"
    );
    is_where_it_was(&book);
    assert_eq!(book.hear(moved(1, [62, 1, 1, 1], 3), teller, NOW_MS), HearOutcome::Renewed);
    assert_eq!((book.candidate(&id(1), NOW_MS).unwrap().address, book.len()), (at([62, 1, 1, 1]), (2, 0)));
    // Another port of its host: its own slot is no obstacle.
    let port = SocketAddr::from(([62, 1, 1, 1], 7401));
    assert_eq!(
        book.hear(PeerRecord::made_up(id(1), &[port], NOW_MS + 4), teller, NOW_MS),
        HearOutcome::Renewed
    );
    assert_eq!((book.candidate(&id(1), NOW_MS).unwrap().address, book.len()), (port, (2, 0)));
}

/// Goal: hearsay is not passed on. Peers that were met or reached are, while they keep signing new records.
#[test]
fn hearsay_is_not_passed_on() {
    let mut book = book(1);
    for n in 0..3u8 {
        book.hear(record(n.into(), [60 + n, 1, 1, 1]), [9, 9, 9, 9].into(), NOW_MS);
    }
    let passed_on =
        |book: &AddressBook, now_ms| book.passed_on(now_ms).map(PeerRecord::id).collect::<Vec<_>>();
    assert!(passed_on(&book, NOW_MS).is_empty());
    book.met(&id(0), at([60, 1, 1, 2]));
    assert!(passed_on(&book, NOW_MS).is_empty(), "it came from elsewhere");
    book.met(&id(0), at([60, 1, 1, 1]));
    book.reached(&id(1), at([61, 1, 1, 1]), NOW_MS);
    assert_eq!(passed_on(&book, NOW_MS), [id(0), id(1)]);
    book.failed(&id(1), true, NOW_MS);
    assert_eq!(passed_on(&book, NOW_MS), [id(0)], "it is not there now");
    assert!(passed_on(&book, NOW_MS + 25 * HOUR_MS).is_empty());
}

#[test]
fn who_does_not_answer_waits_longer_each_time_and_goes() {
    let mut book = book(1);
    book.hear(record(1, [60, 1, 1, 1]), [9, 9, 9, 9].into(), NOW_MS);
    book.failed(&id(1), false, NOW_MS);
    assert!(book.candidate(&id(1), NOW_MS + MINUTE_MS - 1).is_none());
    assert!(book.candidate(&id(1), NOW_MS + MINUTE_MS).is_some());
    for _ in 0..50 {
        book.failed(&id(1), false, NOW_MS);
    }
    assert!(book.candidate(&id(1), NOW_MS + MINUTE_MS).is_some(), "this node was not connected at all");
    book.failed(&id(1), true, NOW_MS);
    book.failed(&id(1), true, NOW_MS);
    assert!(book.candidate(&id(1), NOW_MS + MINUTE_MS).is_none());
    assert!(book.candidate(&id(1), NOW_MS + 2 * MINUTE_MS).is_some());
    assert!(book.candidate(&id(1), NOW_MS - 1_000 * HOUR_MS).is_some(), "the clock was set back");
    book.failed(&id(1), true, NOW_MS);
    assert_eq!(book.len(), (0, 0));
}

/// Goal: a slot of the reached table goes to another peer only after dialling its holder failed.
#[test]
fn a_reached_peer_is_tried_before_it_is_evicted() {
    let mut book = book(1);
    // Hosts of one block that map to the same bucket: one more than it has slots.
    let bucket = |d: u32| reached_bucket(&[1; 32], at([60, 1, 1, d as u8]));
    let alike = |d: &u32| bucket(*d).is_of(bucket(1));
    let hosts: Vec<u32> = (1..255).filter(alike).take(SLOTS + 1).collect();
    let newcomer = hosts[SLOTS];
    let reach = |book: &mut AddressBook, n: u32, now_ms| {
        let ip = [60, 1, 1, n as u8];
        book.hear(record(n, ip), [9, n as u8, 9, 9].into(), now_ms);
        book.reached(&id(n), at(ip), now_ms);
    };
    hosts[..SLOTS].iter().for_each(|n| reach(&mut book, *n, NOW_MS));
    assert_eq!(book.len(), (0, SLOTS));
    reach(&mut book, newcomer, NOW_MS + HOUR_MS);
    assert_eq!((book.len(), book.contested().next()), ((1, SLOTS), None), "all were there an hour ago");
    let later = NOW_MS + 5 * HOUR_MS;
    reach(&mut book, newcomer, later);
    let incumbent = book.contested().next().unwrap();
    book.reached(&incumbent, at([60, 1, 1, incumbent.0[3]]), later);
    assert_eq!(book.contested().next(), None);
    assert!(book.reached.cells().all(|peer| peer != id(newcomer)));
    let much_later = later + 5 * HOUR_MS;
    reach(&mut book, newcomer, much_later);
    assert_eq!(book.contested().next(), Some(incumbent));
    book.failed(&incumbent, true, much_later);
    assert!(book.reached.cells().any(|peer| peer == id(newcomer)));
    assert!(book.reached.cells().all(|peer| peer != incumbent));
    assert_eq!((book.len(), book.contested().next()), ((1, SLOTS), None), "what it was is hearsay");
}

#[test]
fn a_restart_keeps_the_book() {
    let mut book = book(9);
    for (n, ip) in (0..200).map(honest) {
        book.hear(record(n, ip), [80 + (n % 4) as u8, 1, 1, 1].into(), NOW_MS);
        match n % 4 {
            0 => book.reached(&id(n), at(ip), NOW_MS),
            1 => book.met(&id(n), at(ip)),
            2 => book.failed(&id(n), true, NOW_MS),
            _ => {}
        }
    }
    let is_anchor = |id: &PeerId| id.0[3] == 8;
    let bytes = book.save(&CHAIN, is_anchor).unwrap().unwrap();
    assert!(book.save(&CHAIN, is_anchor).is_none(), "nothing new, nothing written");
    let restore =
        |bytes: &[u8], now_ms| AddressBook::restore(bytes, &CHAIN, id(u32::MAX), Reach::of(&[]), now_ms);
    let mut again = restore(&bytes, NOW_MS).unwrap();
    assert_eq!((again.len(), again.secret), (book.len(), book.secret));
    assert_eq!(again.anchors(), [id(8)]);
    for (id, entry) in &book.entries {
        let other = &again.entries[id];
        assert_eq!((&other.record, other.standing), (&entry.record, entry.standing));
        assert_eq!(matches!(other.at, TableCell::Reached(_)), matches!(entry.at, TableCell::Reached(_)));
        assert_eq!((other.failures, other.not_before_ms), (entry.failures, entry.not_before_ms));
    }
    again.is_changed = true;
    assert_eq!(again.save(&CHAIN, is_anchor).unwrap().unwrap(), bytes);
    assert_eq!(restore(&bytes, NOW_MS + 2 * KEPT_MS).unwrap().len(), (0, 0), "out of date");

    assert!(
        AddressBook::restore(&bytes, &Digest([8; 32]), id(0), Reach::of(&[]), NOW_MS).is_err(),
        "another chain"
    );
    for damaged in [&[][..], &[2], &bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat()] {
        assert!(restore(damaged, NOW_MS).is_err());
    }
}

/// Goal: the fullest book fits in its record.
#[test]
fn the_fullest_book_can_be_saved() {
    let mut book = book(1);
    let addresses = |n: u32| {
        let ip = |last| [0x2a00 + (n >> 16) as u16, n as u16, 0, 0, 0, 0, 0, last];
        (1..=4).map(|last| SocketAddr::from((ip(last), 7400))).collect::<Vec<_>>()
    };
    for n in 0..50_000 {
        let record = PeerRecord::made_up(id(n), &addresses(n), NOW_MS);
        let teller = IpAddr::from([0x2a10, (n % 997) as u16, 0, 0, 0, 0, 0, 1]);
        book.hear(record, teller, NOW_MS);
        if n < 20_000 {
            book.reached(&id(n), addresses(n)[0], NOW_MS);
        }
    }
    let (heard, reached) = book.len();
    assert!(heard > HEARD_MAX * 9 / 10 && reached > REACHED_MAX * 9 / 10, "{heard} {reached}");
    let bytes = book.save(&CHAIN, |_| true).unwrap().unwrap();
    let again = AddressBook::restore(&bytes, &CHAIN, id(u32::MAX), Reach::of(&[]), NOW_MS).unwrap();
    assert_eq!(again.len(), book.len());
}
