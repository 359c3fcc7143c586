//! Tests which handshakes enter, which must prove their address, and which make room.

use std::sync::LazyLock;

use super::*;

/// The moment at which all tests begin: knocks are simultaneous, even if the machine pauses between them.
fn now() -> Instant {
    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
    *NOW
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// Knocks `times` times from new ports, and proves the address when asked to. Returns the places.
fn knock(door: &Arc<Door>, ip: &str, times: u16) -> Vec<HandshakePlace> {
    let enter = |port| match door.knock(at(ip, port), true, now()) {
        KnockDecision::Enter(place) => Some(place),
        KnockDecision::Prove | KnockDecision::Ignore => None,
    };
    (0..times).filter_map(enter).collect()
}

/// Goal: a host, a network and all strangers get a bounded number of places; configured peers always have theirs.
#[test]
fn places_are_shared_by_host_by_network_and_kept_for_configured_peers() {
    let friend = at("198.51.100.7", 7400);
    let door = Door::new([friend]);
    let one = knock(&door, "203.0.113.1", 100);
    assert_eq!(one.len(), PER_HOST_MAX);
    let two: Vec<_> = (2..50).flat_map(|n| knock(&door, &format!("203.0.113.{n}"), 4)).collect();
    assert_eq!(one.len() + two.len(), PER_NET_MAX);
    let six: Vec<_> = (0..200).flat_map(|n| knock(&door, &format!("2001:db8:0:{n}::1"), 4)).collect();
    assert_eq!(six.len(), PER_NET_MAX, "an IPv6 network of 48 bits");
    let rest: Vec<_> = (0..2).flat_map(|n| knock(&door, &format!("192.0.{n}.1"), 9)).collect();
    let strangers = || one.iter().chain(&two).chain(&six).chain(&rest);
    assert_eq!(strangers().count(), STRANGERS_MAX);
    let mapped = at("::ffff:198.51.100.7", 7400);
    let KnockDecision::Enter(first) = door.knock(friend, true, now()) else { panic!("refused") };
    let KnockDecision::Enter(second) = door.knock(mapped, true, now()) else { panic!("refused") };
    assert!(matches!(door.knock(friend, true, now()), KnockDecision::Ignore));
    assert!(strangers().all(|place| !place.displaced.is_cancelled()), "it has places of its own");
    let other = knock(&door, "198.51.100.7", 1);
    assert_eq!(strangers().filter(|place| place.displaced.is_cancelled()).count(), other.len());
    assert_eq!(first.patience(Duration::from_secs(4)), Duration::from_secs(1));
    drop((one, two, six, rest, first, second, other));
    let state = door.state.lock();
    assert_eq!((state.under_way.len(), state.strangers), (0, 0));
    assert!(state.hosts.is_empty() && state.nets.is_empty() && state.addresses.is_empty());
}

/// Goal: a forger of addresses gets a few places, and takes none from others. A proven address is not asked to prove
/// itself again.
#[test]
fn an_address_has_to_be_proven_when_it_is_busy() {
    let door = Door::new([]);
    let mut places = Vec::new();
    for port in 0..20 {
        match door.knock(at("203.0.113.1", port), false, now()) {
            KnockDecision::Enter(place) => places.push(place),
            KnockDecision::Prove => {}
            KnockDecision::Ignore => panic!("a forged address has filled the places of its host"),
        }
    }
    assert_eq!(places.len(), UNPROVEN_PER_HOST_MAX);
    assert_eq!(places[0].patience(Duration::from_secs(4)), Duration::from_secs(4), "it is quiet");
    for n in 0..200u16 {
        if let KnockDecision::Enter(place) = door.knock(at(&format!("192.0.{n}.1"), 1), false, now()) {
            places.push(place);
        }
    }
    assert_eq!(places.len(), UNPROVEN_MAX);
    assert!(matches!(door.knock(at("198.51.100.1", 1), true, now()), KnockDecision::Enter(_)));
}

/// Goal: a forger of a configured peer's address, or of a network's addresses, takes no place from a peer that proves
/// its own.
#[test]
fn forged_addresses_make_room_for_proven_ones() {
    let (friend, now) = (at("198.51.100.7", 7400), now());
    let door = Door::new([friend]);
    let forged = |from| match door.knock(from, false, now) {
        KnockDecision::Enter(place) => Some(place),
        KnockDecision::Prove => None,
        KnockDecision::Ignore => panic!("a forged address has all places"),
    };
    let of_friend: Vec<_> = (0..9).filter_map(|_| forged(friend)).collect();
    assert_eq!(of_friend.len(), 1);
    let is_displaced = || of_friend[0].displaced.is_cancelled();
    let KnockDecision::Enter(first) = door.knock(friend, true, now) else { panic!("refused") };
    assert!(!is_displaced());
    let KnockDecision::Enter(second) = door.knock(friend, true, now) else { panic!("refused") };
    assert!(is_displaced() && !first.displaced.is_cancelled());
    assert!(matches!(door.knock(friend, true, now), KnockDecision::Ignore));
    drop((first, second, of_friend));

    let of_net = (0..16).filter_map(|n| forged(at(&format!("203.0.113.{}", n / 2), n)));
    let of_net: Vec<_> = of_net.collect();
    assert_eq!(of_net.len(), UNPROVEN_PER_NET_MAX);
    let proven: Vec<_> = (0..40).flat_map(|n| knock(&door, &format!("203.0.113.{n}"), 1)).collect();
    assert_eq!(proven.len(), PER_NET_MAX);
    assert!(of_net.iter().all(|place| place.displaced.is_cancelled()));
    assert!(proven.iter().all(|place| !place.displaced.is_cancelled()));
}

/// Goal: forged handshakes that end at once leave a network part of its rate.
#[test]
fn forged_handshakes_leave_proven_ones_a_rate() {
    let (door, now) = (Door::new([at("198.51.100.7", 7400)]), now());
    for from in [at("203.0.113.9", 1), at("198.51.100.7", 7400)] {
        let entered = (0..1_000).filter(|_| matches!(door.knock(from, false, now), KnockDecision::Enter(_)));
        assert_eq!(entered.count() as f64, NET_BURST - NET_BURST_PROVEN);
        assert!(matches!(door.knock(from, true, now), KnockDecision::Enter(_)));
    }
}

/// Goal: stalled handshakes in all places make room for newcomers from elsewhere. That happens at once if one network
/// has many places, and after the usual time of a handshake if each network has one.
#[test]
fn who_stalls_makes_room_for_others() {
    let (door, start) = (Door::new([]), now());
    let enter = |ip: &str, now| match door.knock(at(ip, 9), true, now) {
        KnockDecision::Enter(place) => Some(place),
        KnockDecision::Prove | KnockDecision::Ignore => None,
    };
    let crowd: Vec<_> = (0..3).flat_map(|n| knock(&door, &format!("203.0.{n}.1"), 8)).collect();
    let more: Vec<_> = (0..3).flat_map(|n| knock(&door, &format!("203.0.{n}.2"), 8)).collect();
    assert_eq!(crowd.len() + more.len(), STRANGERS_MAX);
    let newcomer = enter("198.51.100.1", start).unwrap();
    assert_eq!(crowd.iter().filter(|place| place.displaced.is_cancelled()).count(), 1, "an old one");
    drop((crowd, more, newcomer));
    assert_eq!(door.state.lock().under_way.len(), 0, "each place is given back once");

    let spread: Vec<_> = (0..48).map(|n| enter(&format!("192.0.{n}.1"), start).unwrap()).collect();
    assert!(enter("198.51.100.1", start + HANDSHAKE_USUAL).is_none(), "they may come to their end");
    let late = start + 2 * HANDSHAKE_USUAL;
    let newcomer = enter("198.51.100.1", late).unwrap();
    assert!(spread[0].displaced.is_cancelled() && !spread[1].displaced.is_cancelled());
    assert!(!newcomer.displaced.is_cancelled());
    assert!(
        matches!(door.knock(at("198.51.100.2", 9), false, late), KnockDecision::Prove),
        "proof comes first"
    );
    assert_eq!(door.state.lock().strangers, STRANGERS_MAX);
}

/// Goal: a network whose handshakes end at once, and so hold no places, has a rate. Forged networks do not fill the
/// memory.
#[test]
fn handshakes_that_end_at_once_have_a_rate() {
    let (door, start) = (Door::new([]), now());
    let enters = |ip: &str, now| matches!(door.knock(at(ip, 1), true, now), KnockDecision::Enter(_));
    let entered = (0..10_000u64).filter(|ms| enters("203.0.113.9", start + Duration::from_millis(*ms)));
    assert!((280..300).contains(&entered.count()), "10 s");
    let later = start + Duration::from_secs(10);
    assert!(enters("203.0.114.9", later) && enters("127.0.0.1", later));
    for n in 0..20_000u32 {
        enters(&std::net::Ipv4Addr::from_bits(n << 12).to_string(), later);
    }
    assert!(door.state.lock().rates.len() <= RATES_MAX);
    assert!(enters("198.51.100.1", later + Duration::from_secs(1)), "they are forgotten");
}

/// Goal: a whole devnet on one machine may start at once.
#[test]
fn this_machine_may_be_many_hosts() {
    let door = Door::new([]);
    assert_eq!(knock(&door, "127.0.0.1", 100).len(), PER_MACHINE_MAX);
}

/// Takes the place of a handshake whose address may be forged.
#[track_caller]
fn forged(door: &Arc<Door>, from: SocketAddr, now: Instant) -> HandshakePlace {
    match door.knock(from, false, now) {
        KnockDecision::Enter(place) => place,
        KnockDecision::Prove | KnockDecision::Ignore => panic!("{from} is refused"),
    }
}

/// Goal: a newcomer to a full host or network takes an unproven place of that origin, and none of another origin.
#[test]
fn who_has_all_places_makes_room_among_its_own() {
    for (hosts, times, places) in [(1, 100, PER_HOST_MAX), (40, 1, PER_NET_MAX)] {
        let (friend, now) = (at("203.0.113.1", 7400), now());
        let door = Door::new([friend]);
        let others = [friend, at("198.51.100.1", 1)].map(|from| forged(&door, from, now));
        let own = [1, 2].map(|port| forged(&door, at("203.0.113.1", port), now));
        let proven: Vec<_> =
            (1..=hosts).flat_map(|host| knock(&door, &format!("203.0.113.{host}"), times)).collect();
        assert_eq!(proven.len(), places);
        assert!(own.iter().all(|place| place.displaced.is_cancelled()));
        assert!(others.iter().chain(&proven).all(|place| !place.displaced.is_cancelled()));
    }
}

/// Goal: if strangers use all their places, an unproven stranger makes room. If all are proven, the network with the
/// most handshakes does.
#[test]
fn strangers_make_room_among_themselves() {
    let (friend, now) = (at("203.0.113.1", 7400), now());
    let door = Door::new([friend]);
    let of_friend = forged(&door, friend, now);
    let of_stranger = forged(&door, at("198.51.100.1", 1), now);
    let lone = knock(&door, "192.0.2.1", 1);
    let crowd: Vec<_> = (1..3).flat_map(|host| knock(&door, &format!("203.0.114.{host}"), 8)).collect();
    let spread: Vec<_> = (0..30).flat_map(|n| knock(&door, &format!("10.0.{n}.1"), 1)).collect();
    assert_eq!(1 + lone.len() + crowd.len() + spread.len(), STRANGERS_MAX);
    let newcomers = ["172.16.0.1", "172.16.1.1"].map(|ip| knock(&door, ip, 1));
    assert!(newcomers.iter().all(|places| places.len() == 1));
    let displaced =
        |places: &[HandshakePlace]| places.iter().filter(|it| it.displaced.is_cancelled()).count();
    assert!(of_stranger.displaced.is_cancelled() && !of_friend.displaced.is_cancelled());
    assert_eq!((displaced(&lone), displaced(&crowd), displaced(&spread)), (0, 1, 0));
    assert!(crowd[0].displaced.is_cancelled(), "its oldest");
}

/// Goal: when the maximum number of networks is counted, known networks still enter, and no others do.
#[test]
fn no_more_networks_are_counted_than_may_be() {
    let (door, now) = (Door::new([]), now());
    let enters = |n: usize| {
        let ip = std::net::Ipv4Addr::from_bits((n as u32) << 12).to_string();
        matches!(door.knock(at(&ip, 1), true, now), KnockDecision::Enter(_))
    };
    assert!((1..=RATES_MAX).all(enters));
    assert!(enters(1) && enters(RATES_MAX));
    assert!(!enters(RATES_MAX + 1));
    assert_eq!(door.state.lock().rates.len(), RATES_MAX);
}

/// Goal: handshakes have the full time until many are in progress.
#[test]
fn handshakes_have_less_time_when_it_is_crowded() {
    let (door, quiet) = (Door::new([]), Duration::from_secs(4));
    let places: Vec<_> = (0..=CROWDED).flat_map(|n| knock(&door, &format!("192.0.{n}.1"), 1)).collect();
    let patience: Vec<_> = places.iter().map(|place| place.patience(quiet)).collect();
    assert_eq!(patience[..CROWDED], [quiet; CROWDED]);
    assert_eq!(patience[CROWDED..], [quiet / 4]);
}
