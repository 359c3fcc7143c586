//! Who gets a message, and who rests.

use std::collections::BTreeSet;

use slipstream_types::PublicKey;

use super::*;

fn peers(range: std::ops::Range<u8>) -> Vec<PeerId> {
    range.map(|byte| PublicKey([byte; 32])).collect()
}

fn couriers(validators: &[PeerId]) -> Couriers {
    Couriers::new(PublicKey([0xff; 32]), validators)
}

/// Goal: with the proposer away, every peer is drawn sooner or later, and the three lowest ids do not get all
/// messages.
#[test]
fn nobody_is_always_drawn() {
    let (connected, now) = (peers(1..21), Instant::now());
    let mut couriers = couriers(&peers(200..204));
    let mut drawn = BTreeSet::new();
    let mut low = 0;
    for _ in 0..100 {
        let chosen = couriers.choose(&connected, now);
        assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), FANOUT);
        low += usize::from(chosen == connected[..FANOUT]);
        drawn.extend(chosen);
    }
    assert_eq!(drawn.len(), 20);
    assert!(low < 5, "{low}");
}

/// Goal: two of three messages go to validators and one to anybody, even if others accept all that they get.
#[test]
fn validators_are_preferred() {
    let (mut connected, now) = (peers(1..21), Instant::now());
    let validators = peers(200..204);
    connected.extend(&validators[1..]);
    let mut couriers = couriers(&validators);
    for peer in &connected[..20] {
        couriers.handle_sent(*peer);
        couriers.handle_ended(peer, SendOutcome::Answered { taken: 1 }, now);
    }
    for _ in 0..50 {
        let chosen = couriers.choose(&connected, now);
        let of_set = chosen.iter().filter(|peer| validators.contains(peer)).count();
        assert!(of_set >= 2 && chosen.len() == FANOUT, "{of_set}");
    }
    couriers.validators.truncate(1);
    couriers.peers.clear();
    couriers.handle_sent(connected[7]);
    couriers.handle_ended(&connected[7], SendOutcome::Answered { taken: 1 }, now);
    assert!((0..50).all(|_| couriers.choose(&connected, now).contains(&connected[7])));
}

/// Goal: peers that hang hold their own two messages, and then get none for longer and longer. The others continue
/// to get messages.
#[test]
fn who_hangs_rests_and_holds_up_nobody() {
    let (connected, begun) = (peers(1..6), Instant::now());
    let mut couriers = couriers(&peers(200..201));
    let hanging = &connected[..3];
    for peer in hanging {
        couriers.handle_sent(*peer);
        couriers.handle_sent(*peer);
    }
    for _ in 0..20 {
        let chosen = couriers.choose(&connected, begun);
        assert_eq!(chosen.iter().collect::<BTreeSet<_>>(), connected[3..].iter().collect());
    }
    assert_eq!(couriers.poll_readiness(hanging, begun), SendReadiness::Later(None));
    assert_eq!(couriers.poll_readiness(&connected, begun), SendReadiness::Now);
    let mut now = begun;
    let mut rests = Vec::new();
    for _ in 0..12 {
        for peer in hanging {
            couriers.handle_ended(peer, SendOutcome::Failed, now);
        }
        let soon = Duration::from_millis(1);
        assert!(
            matches!(couriers.poll_readiness(hanging, now + soon), SendReadiness::Later(Some(until)) if until > now)
        );
        let rest = (1..=400).find(|s| couriers.has_room(&hanging[0], now + Duration::from_secs(*s)));
        rests.push(rest.unwrap());
        now += Duration::from_secs(rest.unwrap());
    }
    assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    couriers.handle_ended(&hanging[0], SendOutcome::Answered { taken: 0 }, now);
    assert!(couriers.has_room(&hanging[0], now));
}

/// Goal: only the proposer gets messages while it answers; other peers get them too when it hangs. Nobody gets any when
/// this node proposes.
#[test]
fn the_proposer_comes_first() {
    let (mut connected, now) = (peers(1..6), Instant::now());
    let proposer = PublicKey([200; 32]);
    connected.push(proposer);
    let mut couriers = couriers(&[proposer]);
    for _ in 0..PROPOSER_MESSAGES_MAX {
        assert_eq!(couriers.choose(&connected, now), [proposer]);
        couriers.handle_sent(proposer);
    }
    assert_eq!(couriers.choose(&connected, now), []);
    assert_eq!(couriers.poll_readiness(&connected, now), SendReadiness::Later(None));
    let pause = Duration::from_secs(1);
    couriers.handle_ended(&proposer, SendOutcome::Busy(pause), now);
    assert_eq!(couriers.choose(&connected, now), [], "busy is no reason for detours");
    assert_eq!(couriers.poll_readiness(&connected, now), SendReadiness::Later(Some(now + pause)));
    assert_eq!(couriers.poll_readiness(&connected, now + pause), SendReadiness::Now);
    couriers.handle_ended(&proposer, SendOutcome::Answered { taken: 3 }, now);
    couriers.handle_ended(&proposer, SendOutcome::Failed, now);
    assert_eq!(couriers.poll_readiness(&connected, now), SendReadiness::Now, "others have room");
    let chosen = couriers.choose(&connected, now);
    assert!(chosen.len() == FANOUT && !chosen.contains(&proposer));
    assert_eq!(couriers.choose(&connected, now + Duration::from_secs(2)).len(), FANOUT + 1);
    couriers.local = proposer;
    assert_eq!(couriers.choose(&connected, now), []);
}

/// Goal: the next message goes to the present proposer, however often it failed in another role. The former proposer
/// counts as one of the other peers.
#[test]
fn another_one_leads() {
    let (first, second, now) = (PublicKey([200; 32]), PublicKey([201; 32]), Instant::now());
    let connected = [first, second];
    let mut couriers = couriers(&[first, second]);
    for _ in 0..9 {
        couriers.handle_sent(second);
        couriers.handle_ended(&second, SendOutcome::Failed, now);
    }
    assert!(couriers.handle_validators(&[second, first]) && !couriers.handle_validators(&[second, first]));
    assert!(
        !couriers.handle_validators(&[second]) && !couriers.handle_validators(&[second, first]),
        "who proposes stays"
    );
    assert_eq!(couriers.choose(&connected, now), [second, first]);
    couriers.local = second;
    assert!(couriers.is_proposer() && couriers.choose(&connected, now).is_empty());
    assert!(couriers.handle_validators(&[first, second]) && !couriers.is_proposer());
    assert_eq!(couriers.choose(&connected, now), [first]);
    assert!(couriers.is_next() && couriers.waits_for_proposer());
    assert_eq!(couriers.others(&connected, now), [first]);
}

/// Goal: the next proposer gets what the proposer gets. A next proposer that is full or away holds up nothing, and no
/// other peer gets anything.
#[test]
fn the_next_proposer_is_told_too() {
    let (validators, now) = (peers(200..204), Instant::now());
    let mut connected = peers(1..6);
    connected.extend(&validators);
    let mut couriers = couriers(&validators);
    assert_eq!(couriers.choose(&connected, now), validators[..2]);
    (0..PEER_MESSAGES_MAX).for_each(|_| couriers.handle_sent(validators[1]));
    assert_eq!(couriers.choose(&connected, now), validators[..1]);
    connected.retain(|peer| *peer != validators[1]);
    assert_eq!(couriers.choose(&connected, now), validators[..1]);
    assert!(!couriers.waits_for_proposer() && !couriers.is_next());
}

/// Goal: a proposer that failed for long, or named a long pause, is tried again within seconds, and at once when it
/// reconnects.
#[test]
fn a_proposer_that_is_back_is_asked_soon() {
    let (proposer, others, mut now) = (PublicKey([200; 32]), peers(1..2), Instant::now());
    let connected = [others[0], proposer];
    let mut couriers = couriers(&[proposer]);
    couriers.handle_peers(&connected);
    for _ in 0..20 {
        couriers.handle_sent(proposer);
        couriers.handle_ended(&proposer, SendOutcome::Failed, now);
        now += PROPOSER_REST_MAX;
        assert!(couriers.has_room(&proposer, now));
    }
    couriers.handle_ended(&proposer, SendOutcome::Busy(Duration::from_secs(3_600)), now);
    assert!(couriers.has_room(&proposer, now + PROPOSER_REST_MAX));
    couriers.handle_peers(&connected);
    assert!(!couriers.has_room(&proposer, now), "it was connected before");
    couriers.handle_peers(&others);
    couriers.handle_peers(&connected);
    assert!(couriers.has_room(&proposer, now));
    assert!(couriers.choose(&connected, now).contains(&proposer));
}
