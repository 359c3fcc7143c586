use slipstream_types::SecretKey;

use super::*;

fn id(n: u8) -> PeerId {
    SecretKey::from_seed([n; 32]).public()
}

/// Two ids, the lower one first.
fn pair() -> (PeerId, PeerId) {
    let (a, b) = (id(1), id(2));
    if a < b { (a, b) } else { (b, a) }
}

const CROSSING: Duration = Duration::from_secs(10);

/// A connection that is useful at a certain time, if ever.
impl Useful for &'static str {
    fn used(&self) -> Option<Instant> {
        None
    }
}

impl Useful for Instant {
    fn used(&self) -> Option<Instant> {
        Some(*self)
    }
}

fn table(local: PeerId, peers_max: usize, reserved: &[PeerId]) -> Peers<&'static str> {
    Peers::new(local, peers_max, reserved.iter().copied(), CROSSING)
}

// Goal: in whatever order the two sides see the crossing connections, both keep the same one.
#[test]
fn both_sides_of_a_crossing_keep_the_same_connection() {
    use Direction::{Accepted, Dialled};
    let ((low, high), now) = (pair(), Instant::now());
    for low_first in ["by low", "by high"] {
        for high_first in ["by low", "by high"] {
            let mut kept = Vec::new();
            for (local, peer, first) in [(low, high, low_first), (high, low, high_first)] {
                let mut peers = table(local, 8, &[]);
                let second = if first == "by low" { "by high" } else { "by low" };
                for link in [first, second] {
                    let dialled = (link == "by low") == (local == low);
                    let _ = peers.admit(peer, if dialled { Dialled } else { Accepted }, None, link, now);
                }
                kept.push(*peers.get(peer).unwrap());
            }
            assert_eq!(kept, ["by low", "by low"], "first seen: {low_first}, {high_first}");
        }
    }
}

#[test]
fn a_peer_that_lost_its_connection_gets_in_again() {
    let ((low, high), now) = (pair(), Instant::now());
    let mut peers = table(low, 8, &[]);
    assert_eq!(peers.admit(high, Direction::Accepted, None, "1", now).unwrap().replaced, None);
    // The peer restarted and dials again at once.
    assert_eq!(peers.admit(high, Direction::Accepted, None, "2", now).unwrap().replaced, Some("1"));
    // Later, neither this node's attempt nor the peer's is a crossing any more.
    let later = now + CROSSING + Duration::from_millis(1);
    let third = peers.admit(high, Direction::Dialled, None, "3", later).unwrap();
    assert_eq!(third.replaced, Some("2"));
    let much_later = later + CROSSING + Duration::from_millis(1);
    assert_eq!(peers.admit(high, Direction::Accepted, None, "4", much_later).unwrap().replaced, Some("3"));
    // The end of a replaced connection does not remove its successor.
    assert!(!peers.remove(high, third.number, much_later));
    assert_eq!(peers.get(high), Some(&"4"));
}

#[test]
fn strangers_share_what_configured_peers_leave() {
    let now = Instant::now();
    let mut peers = table(id(0), 3, &[id(1), id(0), id(2)]);
    assert!(peers.admit(id(3), Direction::Accepted, None, "", now).is_ok());
    assert_eq!(peers.admit(id(4), Direction::Accepted, None, "", now), Err(AdmissionError::Full));
    assert!(peers.admit(id(1), Direction::Accepted, None, "", now).is_ok());
    assert!(peers.admit(id(2), Direction::Dialled, None, "", now).is_ok());
    assert!(peers.admit(id(3), Direction::Accepted, None, "", now).is_ok(), "a reconnection keeps its place");
    assert_eq!(peers.admit(id(0), Direction::Accepted, None, "", now), Err(AdmissionError::Own));
}

// Goal: one host gets a bounded number of places, under any keys; its configured peer and a devnet are admitted.
#[test]
fn one_address_cannot_take_all_places() {
    let now = Instant::now();
    let same = |n: u8| [format!("2001:db8::{n}").parse().unwrap(), "203.0.113.7".parse().unwrap()];
    for version in 0..2 {
        let mut peers = table(id(0), 64, &[id(1)]);
        let mut admit = |n: u8, address| {
            peers.admit(id(n), Direction::Accepted, Some(address), "", now).map(|admitted| admitted.number)
        };
        for n in 10..18 {
            assert!(admit(n, same(n)[version]).is_ok());
        }
        assert_eq!(admit(18, same(18)[version]), Err(AdmissionError::Crowded));
        assert!(admit(10, same(10)[version]).is_ok(), "a reconnection keeps its place");
        assert!(admit(1, same(1)[version]).is_ok(), "a configured peer");
        assert!(admit(19, "203.0.113.8".parse().unwrap()).is_ok());
        for n in 20..40 {
            let loopback = ["127.0.0.1", "::1", "::ffff:127.0.0.1"][usize::from(n % 3)];
            assert!(admit(n, loopback.parse().unwrap()).is_ok());
        }
    }
}

#[test]
fn bans_disconnect_and_expire() {
    let now = Instant::now();
    let mut peers = table(id(0), 8, &[]);
    peers.admit(id(1), Direction::Accepted, None, "link", now).unwrap();
    assert_eq!(peers.ban(id(1), BannedBy::Node, "a lie", Duration::from_secs(9), now), Some("link"));
    peers.ban(id(1), BannedBy::Node, "a lie", Duration::from_secs(1), now);
    let early = now + Duration::from_secs(8);
    assert_eq!(peers.admit(id(1), Direction::Accepted, None, "", early), Err(AdmissionError::Banned));
    assert!(peers.admit(id(1), Direction::Accepted, None, "", now + Duration::from_secs(9)).is_ok());
}

/// Goal: strangers lose a place that is reserved at run time, the newest of them first, and regain it later.
#[test]
fn a_place_can_be_kept_while_the_node_runs() {
    let now = Instant::now();
    let mut peers = table(id(0), 3, &[]);
    for (n, link) in [(1, "first"), (2, "second"), (3, "third")] {
        peers.admit(id(n), Direction::Accepted, None, link, now).unwrap();
    }
    assert_eq!(peers.reserve(id(1), now), Ok(None), "it is no stranger any more");
    assert_eq!(peers.reserve(id(9), now), Ok(Some("third")));
    assert_eq!(peers.admit(id(4), Direction::Accepted, None, "", now), Err(AdmissionError::Full));
    assert!(peers.admit(id(9), Direction::Dialled, None, "kept", now).is_ok());
    assert_eq!(peers.reserve(id(8), now), Err(AdmissionError::Full), "one place at least is a stranger's");
    assert_eq!(peers.reserve(id(9), now), Ok(None));
    peers.release(&id(9));
    assert!(!peers.is_reserved(&id(9)) && peers.get(id(9)).is_some());
    peers.disconnect(id(9), now);
    assert!(peers.admit(id(4), Direction::Accepted, None, "", now).is_ok());
}

fn from(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

/// Goal: a network with ever new hosts gets a part of the places and no more, in both versions of IP.
#[test]
fn one_network_cannot_take_all_places() {
    let now = Instant::now();
    let host = |n: u8| [format!("2001:db8:1:{n}::7"), format!("203.0.113.{n}")];
    for version in 0..2 {
        let mut peers = table(id(0), 64, &[]);
        let taken = (1..100).filter(|n| {
            let address = from(&host(*n)[version]);
            peers.admit(id(*n), Direction::Accepted, address, "", now).is_ok()
        });
        assert_eq!(taken.count(), 64 / NETWORK_PART);
        assert!(peers.admit(id(200), Direction::Accepted, from("2001:db8:2::7"), "", now).is_ok());
        assert!(peers.admit(id(201), Direction::Accepted, from("203.0.114.7"), "", now).is_ok());
    }
}

/// Goal: a party that took all places first must make room for newcomers from elsewhere, until the places are spread
/// evenly. Earlier peers stay, and a network cannot push out others by returning again and again.
#[test]
fn newcomers_from_elsewhere_find_a_place() {
    let now = Instant::now();
    let mut peers = table(id(0), 32, &[id(1)]);
    let mut admit = |n: u8, address: &str| {
        let admitted = peers.admit(id(n), Direction::Accepted, from(address), "", now);
        admitted.map(|admitted| admitted.evicted.is_some())
    };
    assert_eq!(admit(2, "198.51.100.7"), Ok(false), "somebody honest, early");
    for n in 0..30 {
        assert_eq!(admit(100 + n, &format!("2001:db8:{}:{n}::1", n % 4)), Ok(false));
    }
    let mut evictions = 0;
    for n in 0..60 {
        match admit(10 + n, &format!("192.0.{n}.1")) {
            Ok(evicts) => evictions += usize::from(evicts),
            Err(unwanted) => assert_eq!(unwanted, AdmissionError::Full),
        }
    }
    assert_eq!(evictions, 30 - 4, "each of the four networks keeps one");
    assert_eq!(admit(200, "2001:db8:1::9"), Err(AdmissionError::Full), "it has one");
    assert_eq!(admit(1, "203.0.113.1"), Ok(false), "a configured peer");
    assert!(peers.get(id(2)).is_some());
    assert_eq!(peers.iter().count(), 32);
}

/// Goal: a peer that does nothing makes room for any other; a useful one does not.
#[test]
fn a_peer_of_no_use_makes_room() {
    let start = Instant::now();
    let mut peers = Peers::new(id(0), 2, [], CROSSING);
    let later = start + 2 * IDLE_MAX;
    peers.admit(id(1), Direction::Accepted, None, start, start).unwrap();
    peers.admit(id(2), Direction::Accepted, None, later, start).unwrap();
    let early = peers.admit(id(3), Direction::Accepted, None, later, start + IDLE_MAX);
    assert_eq!(early.unwrap_err(), AdmissionError::Full);
    let admitted = peers.admit(id(3), Direction::Accepted, None, later, later).unwrap();
    assert_eq!(admitted.evicted, Some(start));
    assert_eq!(
        peers.admit(id(4), Direction::Accepted, None, later, later).unwrap_err(),
        AdmissionError::Full
    );
}

/// Attackers from many networks. Each returns with a fresh key as soon as it is evicted, twice a second.
struct Cycling {
    /// Each attacker's address, and its key while it is connected.
    attackers: Vec<(String, Option<PeerId>)>,
    keys: u32,
    /// Until when they are useful.
    used: Instant,
}

impl Cycling {
    fn new(addresses: impl Iterator<Item = String>) -> Cycling {
        Cycling {
            attackers: addresses.map(|address| (address, None)).collect(),
            keys: 0,
            used: Instant::now() + 4 * IDLE_MAX,
        }
    }

    fn knock(&mut self, peers: &mut Peers<Instant>, now: Instant) {
        for (address, held) in &mut self.attackers {
            if held.is_some_and(|key| peers.get(key).is_some()) {
                continue;
            }
            self.keys += 1;
            let mut key = [9; 32];
            key[..4].copy_from_slice(&self.keys.to_be_bytes());
            let key = slipstream_types::PublicKey(key);
            *held = peers.admit(key, Direction::Accepted, from(address), self.used, now).ok().map(|_| key);
        }
    }
}

/// Lets attackers cycle for a minute beside an earlier peer. Then an honest newcomer knocks every eight seconds, which
/// is how rarely a backed-off node dials. Returns how long it waited for its first place, and how much of five minutes
/// it had one.
fn siege(mut attackers: Cycling) -> (Duration, Duration) {
    let (start, step) = (Instant::now(), Duration::from_secs(2));
    let used = start + Duration::from_secs(3_600);
    let mut peers = Peers::new(id(0), 32, [id(1)], CROSSING);
    peers.admit(id(2), Direction::Accepted, from("198.51.100.7"), used, start).unwrap();
    let (mut waited, mut had) = (None, Duration::ZERO);
    for turn in 0..180u32 {
        let (now, arrived) = (start + step * turn, start + Duration::from_secs(60));
        attackers.knock(&mut peers, now);
        if turn % 4 == 2 && now >= arrived && peers.get(id(3)).is_none() {
            let admitted = peers.admit(id(3), Direction::Accepted, from("203.0.113.9"), used, now);
            waited = waited.or(admitted.is_ok().then(|| now - arrived));
            attackers.knock(&mut peers, now);
        }
        had += if peers.get(id(3)).is_some() { step } else { Duration::ZERO };
        assert!(peers.get(id(2)).is_some(), "who was here before stays");
        assert!(peers.iter().count() <= 32);
    }
    (waited.unwrap_or(Duration::MAX), had)
}

/// Goal: a newcomer from elsewhere soon gets a place, and has one most of the time. Meanwhile attackers from far more
/// networks than there are places return again and again under fresh keys.
#[test]
fn fresh_keys_from_many_networks_keep_nobody_out() {
    let one_block = || (0..100).map(|n| format!("10.9.{n}.1"));
    let many_blocks = || (0..100).map(|n| format!("10.{}.{n}.1", n % 32));
    let sixth = || (0..100).map(|n| format!("2001:db8:{n}::1"));
    for attackers in [Cycling::new(one_block()), Cycling::new(many_blocks()), Cycling::new(sixth())] {
        let kind = attackers.attackers[1].0.clone();
        let (waited, had) = siege(attackers);
        assert!(waited <= Duration::from_secs(8), "{kind}: {waited:?}");
        assert!(had >= Duration::from_secs(150), "{kind}: {had:?} of 300 s");
    }
}

/// Goal: a long-held connection that stays does not shut out its block while others cycle through the table. A peer
/// that had a place for ten days and restarts is admitted again.
#[test]
fn a_long_stay_shuts_nobody_out() {
    let (start, step) = (Instant::now(), Duration::from_secs(2));
    let used = start + Duration::from_secs(1_000_000);
    // If all are at work, a newcomer waits for the end of a working peer's turn.
    for (leaves, wait_max) in [(false, TURN_AT_WORK.as_secs()), (true, 960)] {
        let mut peers = Peers::new(id(0), 32, [id(1)], CROSSING);
        let mut attackers = Cycling::new((0..100).map(|n| format!("10.{}.{n}.1", n % 40)));
        attackers.used = used;
        let admitted = peers.admit(id(2), Direction::Accepted, from("203.0.7.9"), used, start).unwrap();
        let arrived = start + Duration::from_secs(864_000);
        attackers.knock(&mut peers, arrived - Duration::from_secs(60));
        if leaves {
            assert!(peers.remove(id(2), admitted.number, arrived));
        }
        let waited = (0..1_000u32).map(|turn| step * turn).find(|waited| {
            attackers.knock(&mut peers, arrived + *waited);
            let again = peers.admit(id(3), Direction::Accepted, from("203.0.113.9"), used, arrived + *waited);
            again.is_ok()
        });
        assert!(waited.is_some_and(|waited| waited.as_secs() <= wait_max), "{leaves}: {waited:?}");
    }
}

/// Goal: a working peer keeps its place while an idle one can give up its own. A working peer also has a longer turn.
#[test]
fn whoever_is_at_work_goes_last() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut peers = Peers::new(id(0), 4, [], CROSSING);
    let mut admit = |n: u8, used, now| {
        let admitted = peers.admit(id(n), Direction::Accepted, from(&format!("10.{n}.0.1")), used, at(now));
        admitted.map(|admitted| admitted.evicted)
    };
    // The first two stay. The third is at work all the time, and the fourth, which came later, has reported something
    // once.
    let (working, later, silent) = (at(1_000), at(1_001), at(15));
    for (n, used, now) in [(1, working, 0), (2, working, 0), (3, working, 10), (4, silent, 15)] {
        assert_eq!(admit(n, used, now), Ok(None));
    }
    assert_eq!(admit(5, later, 18), Err(AdmissionError::Full), "nobody's turn is over");
    assert_eq!(admit(5, later, 40), Ok(Some(silent)), "the third had more, and is at work");
    assert_eq!(admit(6, later, 41), Ok(Some(working)), "its turn is over too");
    assert_eq!(admit(7, later, 56), Err(AdmissionError::Full), "a turn at work is longer");
    assert_eq!(admit(7, silent, 62), Ok(Some(later)), "and ends");
    assert_eq!(admit(8, later, 68), Ok(Some(silent)), "the sixth had more, and is at work");
}

/// Goal: if all peers are honest and outnumber the places, each gets turns that grow, and half of the places are never
/// disturbed.
#[test]
fn turns_of_the_honest_grow() {
    let (start, mut evictions) = (Instant::now(), 0);
    let used = start + Duration::from_secs(3_600);
    let mut peers = Peers::new(id(0), 8, [], CROSSING);
    for second in 0..600 {
        let now = start + Duration::from_secs(second);
        for n in 1..=12 {
            if peers.get(id(n)).is_none() {
                let admitted =
                    peers.admit(id(n), Direction::Accepted, from(&format!("10.{n}.0.1")), used, now);
                evictions += usize::from(admitted.is_ok_and(|admitted| admitted.evicted.is_some()));
            }
        }
        assert!((1..=4).all(|n| peers.get(id(n)).is_some()));
    }
    assert!((8..=40).contains(&evictions), "{evictions}");
}
