use std::collections::VecDeque;

use super::*;

fn peer() -> PeerId {
    slipstream_types::PublicKey([7; 32])
}

/// Goal: within some round trips, the window finds the bandwidth of a link of 100 MB/s and 150 ms.
#[test]
fn windows_grow_to_the_bandwidth_delay_product() {
    let mut links = Links::default();
    let (chunk, delay, bandwidth) = (500_000u64, 0.150, 100e6);
    let start = Instant::now();
    let mut now = start;
    let mut free_at = start;
    let mut under_way: VecDeque<(Instant, SentRequest)> = VecDeque::new();
    let mut bytes = 0;
    while now < start + Duration::from_secs(3) {
        while links.has_room(&peer(), chunk) {
            let sent = links.send(peer(), now, chunk);
            let begins = free_at.max(now + Duration::from_secs_f64(delay));
            free_at = begins + Duration::from_secs_f64(chunk as f64 / bandwidth);
            under_way.push_back((free_at, sent));
        }
        let (at, sent) = under_way.pop_front().unwrap();
        now = at;
        links.end(&peer(), &sent, false);
        links.delivered(&peer(), now, now, &sent, chunk as usize);
        bytes += chunk;
    }
    let share = bytes as f64 / (bandwidth * 3.0);
    assert!((0.6..=1.0).contains(&share), "{share}");
    assert!(links.rate(&peer(), now).unwrap() <= bandwidth * 1.05);
}

/// Goal: the first of many answers that come side by side does not make their peer look slow.
#[test]
fn a_rate_counts_once_there_was_time_to_measure_it() {
    let mut links = Links::default();
    let start = Instant::now();
    let sent: Vec<SentRequest> = (0..10).map(|_| links.send(peer(), start, 200_000)).collect();
    assert_eq!(links.rate(&peer(), start), None);
    let now = start + Duration::from_secs(1);
    // The request that was sent last, when the window was full.
    links.end(&peer(), &sent[9], false);
    links.delivered(&peer(), now, now, &sent[9], 200_000);
    assert_eq!(links.rate(&peer(), now), Some(RATE_UNKNOWN));
    let slow = links.rate(&peer(), now + STARTING).unwrap();
    assert!((100e3..400e3).contains(&slow), "{slow}");
}

/// Goal: an overtaken peer counts as slower, ever more so, until it delivers again.
#[test]
fn who_was_overtaken_comes_later_until_it_delivers() {
    let (mut links, now) = (Links::default(), Instant::now());
    let sent = links.send(peer(), now, 10);
    let mut now = now;
    let mut late = vec![links.lateness(&peer(), now).as_millis()];
    for _ in 0..8 {
        now += LATE_FIRST;
        for _ in 0..3 {
            links.overtaken(&peer(), now);
        }
        late.push(links.lateness(&peer(), now).as_millis());
    }
    assert_eq!(late, [0, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000], "three at once count once");
    assert_eq!(links.lateness(&peer(), now + LATE_AGE), Duration::ZERO, "it is asked again some day");
    links.overtaken(&peer(), now + LATE_AGE);
    assert_eq!(links.lateness(&peer(), now + LATE_AGE), LATE_FIRST);
    links.end(&peer(), &sent, true);
    links.delivered(&peer(), now, now, &sent, 10);
    assert_eq!(links.lateness(&peer(), now), Duration::ZERO);
}

/// Goal: a silent stranger on the same machine delays a long first range no longer than an honest near peer would
/// take.
#[test]
fn a_near_peer_is_late_soon() {
    let (mut links, now) = (Links::default(), Instant::now());
    let far = slipstream_types::PublicKey([8; 32]);
    for (peer, round_trip_ms) in [(peer(), 1), (far, 100)] {
        let sent = links.send(peer, now, 10);
        links.round_trip(&peer, now + Duration::from_millis(round_trip_ms), &sent);
        links.end(&peer, &sent, false);
    }
    assert!(links.expected(&peer(), 1_000_000) < Duration::from_millis(10));
    assert!(links.expected(&far, 1_000_000) >= Duration::from_millis(600));
}

/// Goal: the longer a peer sends nothing of what it was asked for, the lower its rate counts, until an answer comes
/// or is not awaited.
#[test]
fn a_promise_is_worth_less_the_longer_it_is_waited_for() {
    let (mut links, start) = (Links::default(), Instant::now());
    let (second, bytes) = (Duration::from_secs(1), 1_000_000);
    let ask = |links: &mut Links, now| {
        let mut sent = links.send(peer(), now, bytes);
        links.owe(&peer(), &mut sent, now);
        sent
    };
    assert_eq!(links.rate_max(&peer(), start), f64::INFINITY);
    let sent = ask(&mut links, start);
    assert_eq!(links.rate_max(&peer(), start + second), f64::INFINITY, "an answer may take so long");
    assert_eq!(links.rate_max(&peer(), start + 5 * second), 250e3);
    // It said that it was busy, and is asked again after a pause. The pause does not count.
    links.end(&peer(), &sent, false);
    links.failed(&peer(), start + 5 * second);
    assert_eq!(links.rate_max(&peer(), start + 9 * second), 250e3);
    let sent = ask(&mut links, start + 9 * second);
    assert_eq!(links.rate_max(&peer(), start + 15 * second), 100e3);
    assert_eq!(links.rate_max(&peer(), start + 40 * second), f64::INFINITY, "it is tried again some day");
    links.end(&peer(), &sent, false);
    links.came(&peer(), start + 15 * second);
    assert_eq!(links.rate_max(&peer(), start + 20 * second), f64::INFINITY);
    let sent = ask(&mut links, start + 20 * second);
    links.cancel(&peer(), &sent, false);
    assert_eq!(links.rate_max(&peer(), start + 25 * second), f64::INFINITY, "nobody waits for it");
}

#[test]
fn a_peer_that_owes_an_answer_gets_no_other_request() {
    let mut links = Links::default();
    let now = Instant::now();
    let sent = links.send(peer(), now, 10);
    assert!(links.has_room(&peer(), 10));
    links.overdue(&peer());
    assert!(!links.has_room(&peer(), 10));
    links.end(&peer(), &sent, true);
    assert!(links.has_room(&peer(), 10));
}
