use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{
    rig::{Manner, Rig, START_MS, at, id},
    *,
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
/// Numbers of an attacker's identities start here.
const ATTACKERS: u32 = 1_000_000;

/// The n-th honest peer, each in its own block.
fn honest(n: u32) -> (u32, [u8; 4]) {
    (1 + n, [60 + n as u8, 9, 1, 1])
}

/// The n-th identity of an attacker in three blocks.
fn attacker(n: u32) -> (u32, [u8; 4]) {
    let [.., c, d] = (n / 3).to_be_bytes();
    (ATTACKERS + n, [[45, 46, 47][n as usize % 3], 7, c, d])
}

fn attackers_of(chosen: &[PeerId]) -> usize {
    chosen.iter().filter(|peer| peer.0[..4] >= ATTACKERS.to_be_bytes()[..]).count()
}

/// A rig that knows `peers` honest peers, all of which answer.
fn among(outbound: usize, peers: u32) -> Rig {
    let mut rig = Rig::new(outbound);
    rig.world.extend((0..peers).map(|n| (at(honest(n).1), Manner::Open)));
    rig.tell([9, 9, 9, 9], (0..peers).map(honest));
    rig
}

#[test]
fn places_are_filled_within_seconds_and_asked() {
    let mut rig = among(8, 40);
    rig.run(Duration::from_secs(6));
    assert_eq!(rig.chosen().len(), 8);
    let asked = rig.done.iter().filter(|(_, action)| matches!(action, Action::Ask(_))).count();
    assert_eq!(asked, 9, "each once, and the configured one");
    rig.run(MINUTE);
    assert_eq!(rig.dialled(0).len(), 8, "and nobody else");
}

#[test]
fn a_node_without_places_dials_nobody_and_only_tells_of_itself() {
    let mut rig = among(0, 40);
    rig.run(HOUR);
    assert!(rig.done.is_empty(), "{:?}", rig.done);
    let rules =
        ChooserRules { outbound: 0, configured: BTreeSet::from([id(0)]), advertised: vec![at([8, 8, 8, 8])] };
    let mut rig = Rig::with(rules, None);
    rig.connect(id(5), at([66, 1, 1, 1]), false);
    rig.run(Duration::from_secs(20));
    assert_eq!(rig.done.iter().map(|(_, action)| *action).collect::<Vec<_>>(), [Action::Ask(id(0))]);
}

/// Goal: strangers that connect cannot choose the peers that this node knows.
#[test]
fn who_comes_in_is_not_asked() {
    let mut rig = Rig::new(8);
    for n in 1..50 {
        rig.connect(id(n), at([66, 1, 1, n as u8]), false);
    }
    rig.run(HOUR);
    assert!(rig.done.iter().all(|(_, action)| *action == Action::Ask(id(0))));
    let times: Vec<_> = rig.done.iter().map(|(at, _)| *at).collect();
    assert!(times.len() > 30 && times.windows(2).all(|pair| pair[1] - pair[0] >= ASK_SOON), "{times:?}");
}

/// Goal: 10,000 identities in three blocks that all answer get at most three of eight places at any time, through all
/// turns. Honest peers get the rest.
#[test]
fn three_blocks_have_three_places_at_most() {
    let mut rig = among(8, 40);
    for (n, ip) in (0..10_000).map(attacker) {
        rig.world.insert(at(ip), Manner::Open);
        rig.tell(ip, [(n, ip)]);
    }
    let mut most = 0;
    for _ in 0..24 * 6 {
        rig.run(10 * MINUTE);
        let chosen = rig.chosen();
        assert!(attackers_of(&chosen) <= 3 && chosen.len() >= 7, "{chosen:?}");
        most = most.max(attackers_of(&chosen));
    }
    assert!(most > 0, "an attacker who never gets a place shows nothing");
    assert!(rig.count(ExchangeEvent::Rotated) > 20);
}

/// Goal: one peer that reports 10,000 invented peers in as many blocks, none of which answers, only causes a delay.
/// Places are still filled within minutes, by peers that others reported.
#[test]
fn one_teller_of_lies_delays_by_minutes() {
    let mut rig = Rig::new(8);
    let made_up = |n: u32| {
        let [.., b, c] = n.to_be_bytes();
        (ATTACKERS + n, [130 + (n / 2_500) as u8, b, c, 1])
    };
    rig.tell([9, 9, 9, 9], (0..10_000).map(made_up));
    rig.world.extend((0..40).map(|n| (at(honest(n).1), Manner::Open)));
    for n in 0..40 {
        rig.tell([20 + (n % 4) as u8, 1, 1, 1], [honest(n)]);
    }
    rig.run(5 * MINUTE);
    assert_eq!((rig.chosen().len(), attackers_of(&rig.chosen())), (8, 0));
}

/// Goal: a teller reports peers in all blocks, of which only its own keys answer. It gets only as many places as it has
/// blocks.
#[test]
fn one_teller_of_its_own_has_as_many_places_as_blocks() {
    let mut rig = among(8, 12);
    rig.world.extend((0..10_000).map(|n| (at(attacker(n).1), Manner::Open)));
    rig.tell([9, 9, 9, 9], (0..10_000).map(attacker));
    for _ in 0..48 {
        rig.run(30 * MINUTE);
        assert!(attackers_of(&rig.chosen()) <= 3, "{:?}", rig.chosen());
    }
}

/// Goal: a quarter of the places rotates, one of them every half hour; the others stay.
#[test]
fn some_places_go_round_and_the_others_stay() {
    let mut rig = among(8, 60);
    rig.run(MINUTE);
    let first = rig.chosen();
    rig.run(6 * HOUR);
    let last = rig.chosen();
    assert_eq!(first[..6], last[..6], "the oldest");
    assert!(last[6..].iter().all(|peer| !first.contains(peer)));
    assert_eq!(rig.count(ExchangeEvent::Rotated), 11, "after half an hour nobody has had a whole turn");
    assert_eq!(last.len(), 8);
}

/// Goal: a peer that answers this node's requests keeps a place that would otherwise rotate.
#[test]
fn service_keeps_a_place() {
    let mut rig = among(8, 60);
    rig.run(MINUTE);
    let youngest = rig.chosen()[7];
    let it = rig.neighbours.iter_mut().find(|peer| peer.id == youngest).unwrap();
    it.served = 1e6;
    rig.run(6 * HOUR);
    assert!(rig.chosen().contains(&youngest));
    assert!(rig.count(ExchangeEvent::Rotated) >= 10);
}

#[test]
fn nobody_has_to_go_for_nobody() {
    let mut rig = among(8, 8);
    rig.run(24 * HOUR);
    assert_eq!((rig.chosen().len(), rig.count(ExchangeEvent::Rotated)), (8, 0));
}

/// Goal: a useless peer makes room at the next turn, however old it is.
#[test]
fn a_chosen_peer_of_no_use_makes_room() {
    let mut rig = among(4, 30);
    rig.run(MINUTE);
    let oldest = rig.chosen()[0];
    rig.idle.insert(oldest);
    rig.run(HOUR);
    assert!(!rig.chosen().contains(&oldest));
    assert_eq!(rig.chosen().len(), 4);
}

/// Goal: a lost peer is replaced within seconds, by another one if it does not return.
#[test]
fn a_lost_peer_is_replaced() {
    let mut rig = among(4, 30);
    rig.run(MINUTE);
    let lost = rig.chosen()[1];
    rig.disconnect(lost);
    rig.world.remove(&at([60 + lost.0[3] - 1, 9, 1, 1]));
    rig.run(Duration::from_secs(20));
    assert_eq!((rig.chosen().len(), rig.count(ExchangeEvent::Lost)), (4, 1));
    assert!(!rig.chosen().contains(&lost));
}

/// Goal: a peer that refuses is not dialled for a while; a peer at whose address another key answers is dropped.
#[test]
fn refusals_and_wrong_keys_are_not_dialled_again_and_again() {
    let mut rig = among(8, 2);
    rig.world.insert(at(honest(0).1), Manner::Full);
    rig.world.insert(at(honest(1).1), Manner::Stranger);
    rig.run(9 * MINUTE);
    let dialled = rig.dialled(0);
    assert_eq!(dialled.len(), 2, "{dialled:?}");
    assert_eq!(rig.count(ExchangeEvent::WrongKey), 1);
    let (heard, reached) = (rig.chooser.status().heard, rig.chooser.status().reached);
    assert_eq!((heard, reached), (0, 1));
}

/// Goal: if an attacker signs that ten thousand keys are at one host, nodes dial it once a minute, not ten thousand
/// times.
#[test]
fn a_host_is_dialled_once_a_minute() {
    let mut rig = Rig::new(8);
    for teller in 0..200 {
        rig.tell([teller, 1, 1, 1], (0..50).map(|n| (ATTACKERS + 50 * u32::from(teller) + n, [45, 7, 1, 1])));
    }
    rig.run(HOUR);
    let dialled = rig.dialled(0);
    assert!((30..=60).contains(&dialled.len()), "{}", dialled.len());
}

/// Goal: feelers find out which peers of the book answer, without keeping their connections.
#[test]
fn feelers_tell_the_true_from_the_made_up() {
    let mut rig = among(2, 30);
    rig.tell([9, 9, 9, 9], (0..30).map(|n| (500 + n, [140 + n as u8, 1, 1, 1])));
    rig.run(Duration::from_secs(10));
    assert_eq!(rig.chosen().len(), 2);
    rig.run(12 * HOUR);
    let status = rig.chooser.status();
    assert!(status.reached >= 25, "{status:?}");
    assert!(rig.count(ExchangeEvent::Felt) > 200);
    assert!(rig.neighbours.len() <= 4, "two chosen, one configured, one felt");
    assert!(rig.chooser.chosen().len() <= 3);
}

/// Goal: after a restart the oldest neighbours are dialled first.
#[test]
fn anchors_are_dialled_first() {
    let mut rig = among(8, 60);
    rig.run(HOUR);
    let oldest = rig.chosen();
    let now = rig.now();
    let saved = rig.chooser.save(&Digest::ZERO, now.instant).unwrap().unwrap();
    assert!(rig.chooser.save(&Digest::ZERO, now.instant).is_none());
    let rules = ChooserRules { outbound: 8, configured: BTreeSet::new(), advertised: Vec::new() };
    let mut again = Rig::with(rules, Some(&saved));
    again.world = rig.world;
    again.run(Duration::from_secs(6));
    let first: BTreeSet<_> = again.dialled(0).into_iter().take(4).map(|peer| peer.id).collect();
    assert_eq!(first, oldest[..4].iter().copied().collect());
    assert_eq!(again.chosen().len(), 8);
}

/// Goal: one block is shown the same records for a while, so that a peer cannot learn the book by asking under many
/// keys.
#[test]
fn a_block_is_told_the_same_for_a_while() {
    let mut rig = among(0, 100);
    for n in 0..100 {
        rig.chooser.met(&id(honest(n).0), at(honest(n).1));
    }
    let now = rig.now();
    let mut told = |ip: [u8; 4], now| {
        let records = rig.chooser.shown_to(&id(77_777), ip.into(), now);
        records.iter().map(PeerRecord::id).collect::<BTreeSet<_>>()
    };
    let first = told([45, 7, 1, 1], now);
    assert_eq!(first.len(), 16);
    let mut all = first.clone();
    for n in 0..200 {
        let soon = Moment {
            instant: now.instant + Duration::from_secs(n),
            ms: START_MS - START_MS % 600_000 + 1_000 * n,
        };
        all.extend(told([45, 7, n as u8, 1], soon));
    }
    assert!(all.len() <= 32, "{}", all.len());
    let others: BTreeSet<_> = (0..50).flat_map(|n| told([46 + n, 7, 1, 1], now)).collect();
    assert!(others.len() > 60, "{}", others.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Goal: under any events the chooser stays within its places, has at most one peer per block, and never spins.
    #[test]
    fn bounds_hold_whatever_happens(events in prop::collection::vec((0u8..8, 0u32..60, 1u64..400), 1..120)) {
        let mut rig = among(5, 20);
        for (event, n, seconds) in events {
            let (peer, ip) = honest(n);
            match event {
                0 => { rig.world.remove(&at(ip)); }
                1 => { rig.world.insert(at(ip), Manner::Open); }
                2 => { rig.world.insert(at(ip), [Manner::Full, Manner::Stranger][n as usize % 2]); }
                3 => rig.tell([20 + (seconds % 9) as u8, 1, 1, 1], [honest(n), (900 + n, [60, 9, 1, n as u8])]),
                4 => rig.disconnect(id(peer)),
                5 if rig.neighbours.iter().all(|it| it.id != id(peer)) => rig.connect(id(peer), at(ip), false),
                6 => { rig.idle.insert(id(peer)); }
                _ => {}
            }
            rig.run(Duration::from_secs(seconds));
            prop_assert!(rig.chooser.chosen().len() <= 6);
            let chosen = rig.chosen();
            prop_assert!(chosen.len() <= 5);
            let blocks: BTreeSet<_> = rig.neighbours.iter().filter(|it| chosen.contains(&it.id))
                .map(|it| crate::origin::block_of(it.address.ip())).collect();
            prop_assert_eq!(blocks.len(), chosen.len());
        }
    }
}
