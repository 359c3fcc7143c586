//! Tests of the order in which connections get seats and lose them.

use std::net::Ipv4Addr;

use tokio::time::advance;

use super::{taken::GRACE, *};

fn host(number: u8) -> Origin {
    Origin::V4(Ipv4Addr::new(192, 0, 2, number))
}

fn seats(calls: usize, spare: usize) -> Arc<Seats> {
    Seats::new(Limits { calls, spare, reserved: 0, per_address: usize::MAX })
}

/// Goal: with all seats taken, a newcomer gets the seat that has been idle longest, and calls are never cut.
#[tokio::test(start_paused = true)]
async fn who_asks_for_nothing_goes_first() {
    let seats = seats(2, 2);
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.push(seats.take(Origin::Trusted).unwrap());
        advance(Duration::from_secs(1)).await;
    }
    taken[0].call_read().unwrap();
    taken[0].working();
    taken[1].head_read();
    taken[2].answered(1);
    taken[2].flushed();
    // The first is processed, the second sends its body; the third has been idle for less time than the fourth has been
    // silent.
    let mut here = vec![0, 1, 2, 3];
    let mut came = Vec::new();
    for gone in [3, 2, 1] {
        assert!(seats.take(Origin::Trusted).is_err());
        let going: Vec<_> = here.extract_if(.., |index| taken[*index].has_to_go()).collect();
        assert_eq!(going, [gone]);
        taken[gone].leave();
        came.push(seats.take(Origin::Trusted).unwrap());
        came.last().unwrap().working();
    }
    assert!(seats.take(Origin::Trusted).is_err(), "all work");
    assert!(!taken[0].has_to_go());
    taken[0].answered(1);
    assert!(seats.take(Origin::Trusted).is_err(), "its answer is not read yet");
    assert!(!taken[0].has_to_go());
    taken[0].flushed();
    assert!(seats.take(Origin::Trusted).is_err());
    assert!(taken[0].has_to_go());
    taken[0].leave();
    seats.take(Origin::Trusted).unwrap();
}

/// Goal: calls have fewer places than connections, and release them when their answer has been read.
#[tokio::test]
async fn calls_are_counted_apart() {
    let seats = seats(1, 1);
    let (first, second) = (seats.take(Origin::Trusted).unwrap(), seats.take(Origin::Trusted).unwrap());
    first.call_read().unwrap();
    assert!(second.call_read().is_err());
    first.answered(1);
    assert!(second.call_read().is_err());
    first.flushed();
    second.call_read().unwrap();
    assert!(first.call_read().is_err());
    second.leave();
    first.call_read().unwrap();
}

/// Goal: a call that may take long holds a place among such calls until its answer has been read. A second call then
/// finds none.
#[tokio::test]
async fn long_calls_have_fewer_places() {
    let seats = seats(4, 0);
    let taken: Vec<_> = (0..4).map(|_| seats.take(Origin::Trusted).unwrap()).collect();
    taken.iter().for_each(|seat| seat.call_read().unwrap());
    for seat in &taken[..3] {
        seat.weighed(Weight::Long).unwrap();
        seat.working();
    }
    for weight in [Weight::Long, Weight::Waits] {
        assert!(taken[3].weighed(weight).is_err());
        taken[3].call_read().unwrap();
    }
    taken[3].weighed(Weight::Short).unwrap();
    taken[0].answered(1);
    assert!(taken[3].weighed(Weight::Long).is_err(), "its answer is not read yet");
    taken[0].flushed();
    taken[3].call_read().unwrap();
    taken[3].weighed(Weight::Waits).unwrap();
    taken[1].leave();
    taken[0].call_read().unwrap();
    assert!(taken[0].weighed(Weight::Waits).is_err(), "one waits already");
    taken[0].weighed(Weight::Long).unwrap();
}

/// Goal: a call that is refused for its weight releases its place at once, and its seat too, however slowly its caller
/// reads the refusal.
#[tokio::test]
async fn a_refused_call_has_no_place() {
    let seats = seats(4, 1);
    let taken: Vec<_> = (0..5).map(|_| seats.take(Origin::Trusted).unwrap()).collect();
    for seat in &taken[..3] {
        seat.call_read().unwrap();
        seat.weighed(Weight::Long).unwrap();
        seat.working();
    }
    taken[3].call_read().unwrap();
    assert!(taken[4].call_read().is_err());
    assert!(taken[3].weighed(Weight::Long).is_err());
    taken[3].answered(1);
    taken[4].call_read().unwrap();
    taken[4].weighed(Weight::Short).unwrap();
    taken[4].working();
    assert!(seats.take(Origin::Trusted).is_err());
    assert!(taken[3].has_to_go(), "nobody else may");
}

/// Goal: a call on probation holds its place until its answer is read or its connection ends. If its work ends later,
/// it holds the place until then. A refused call holds no place while its caller reads the refusal.
#[tokio::test]
async fn places_on_probation_come_back() {
    let seats = seats(8, 0);
    let taken: Vec<_> = (1..=8).map(|number| seats.take(host(number)).unwrap()).collect();
    let long = &taken[..5];
    for seat in long {
        seat.call_read().unwrap();
        assert!(seat.weighed(Weight::Long).unwrap().is_none());
        seat.working();
    }
    let begin = |seat: &Seat| {
        seat.call_read().unwrap();
        let probation = seat.weighed(Weight::Probation).ok()?;
        seat.working();
        Some(probation.expect("all places for long calls are taken"))
    };
    let (one, other) = (&taken[5], &taken[6]);
    let is_full = || begin(other).is_none();
    // Finished.
    drop(begin(one).unwrap());
    assert!(is_full());
    one.answered(1);
    assert!(is_full(), "its answer is not read yet");
    one.flushed();
    // Refused.
    let refused = begin(one).unwrap();
    assert!(!refused.lengthen(true));
    drop(begin(other).unwrap());
    other.answered(1);
    other.flushed();
    one.answered(1);
    one.flushed();
    // Its connection ends, and its work ends later.
    let working = begin(one).unwrap();
    one.leave();
    assert!(is_full(), "its work goes on");
    drop(working);
    // It is long, and holds one of the places for long calls from then on.
    let lengthened = begin(other).unwrap();
    long[0].leave();
    assert!(lengthened.lengthen(true));
    taken[7].call_read().unwrap();
    assert!(taken[7].weighed(Weight::Long).is_err(), "it has the one that was free");
    drop(begin(&taken[7]).unwrap());
}

/// Goal: an address has its limit and displaces only its own connections. Strangers leave seats and calls to the
/// operator, who is never displaced.
#[tokio::test]
async fn an_address_is_bounded_and_the_operator_has_a_seat() {
    let seats = Seats::new(Limits { calls: 6, spare: 4, reserved: 2, per_address: 4 });
    let mut first: Vec<_> = (0..4).map(|_| seats.take(host(1)).unwrap()).collect();
    let quiet = seats.take(host(2)).unwrap();
    assert!(seats.take(host(1)).is_err());
    assert_eq!(first.iter().filter(|seat| seat.has_to_go()).count(), 1, "one of its own");
    assert!(!quiet.has_to_go());
    first.iter().for_each(|seat| seat.working());
    assert!(seats.take(host(1)).is_err());
    assert!(!quiet.has_to_go(), "nobody goes for it when all of its own work");

    let _third: Vec<_> = (0..3).map(|_| seats.take(host(3)).unwrap()).collect();
    assert!(seats.take(host(4)).is_err(), "two seats are kept");
    let own: Vec<_> = (0..2).map(|_| seats.take(Origin::Trusted).unwrap()).collect();
    assert!(seats.take(host(4)).is_err());
    assert!(own.iter().all(|seat| !seat.has_to_go()), "never for a stranger");

    // Four connections of one address make calls: it may have a third of the six.
    let calls = first.iter().filter(|seat| seat.call_read().is_ok()).count();
    assert_eq!(calls, 2);
    own.iter().for_each(|seat| seat.call_read().unwrap());
    first.clear();
}

/// Goal: of equally idle connections, one whose address has most connections is dismissed.
#[tokio::test(start_paused = true)]
async fn the_address_with_most_gives_way() {
    let seats = seats(2, 2);
    let quiet = seats.take(host(1)).unwrap();
    advance(Duration::from_secs(1)).await;
    let many: Vec<_> = (0..3).map(|_| seats.take(host(2)).unwrap()).collect();
    assert!(seats.take(host(3)).is_err());
    assert!(many[0].has_to_go() && !quiet.has_to_go());
}

/// Goal: an address with many waiting calls yields to one with few. Its own newcomers do not displace its calls, and
/// calls that have started stay.
#[tokio::test]
async fn calls_that_wait_make_way_for_others() {
    let seats = seats(6, 0);
    let many: Vec<_> = (0..6).map(|_| seats.take(host(1)).unwrap()).collect();
    let waiting = many.iter().filter(|seat| seat.call_read().is_ok()).count();
    assert_eq!(waiting, 2);
    many.iter().filter(|seat| seat.0.state.lock().call.is_empty()).for_each(Seat::working);
    assert!(seats.take(host(1)).is_err());
    assert!(many.iter().all(|seat| !seat.has_to_go()), "not for its own");
    assert!(seats.take(host(2)).is_err());
    let going: Vec<_> = many.iter().filter(|seat| seat.has_to_go()).collect();
    assert_eq!(going.len(), 1);
    going[0].sent_away().await;
    going[0].leave();
    seats.take(host(2)).unwrap();
    many.iter().for_each(Seat::working);
    assert!(seats.take(host(3)).is_err());
    assert!(many.iter().all(|seat| !seat.has_to_go()), "what has begun is not cut");
}

/// Goal: a connection that has just opened, or keeps sending requests, survives a crowd of idle ones, even if its
/// address has more connections.
#[tokio::test(start_paused = true)]
async fn who_is_at_it_goes_after_those_who_sit_there() {
    let seats = seats(8, 0);
    let sitting: Vec<_> = (1..=6).map(|number| seats.take(host(number)).unwrap()).collect();
    sitting[5].head_read();
    let kept = seats.take(host(9)).unwrap();
    advance(GRACE).await;
    kept.answered(1);
    kept.flushed();
    let fresh = seats.take(host(9)).unwrap();
    for _ in 0..6 {
        assert!(seats.take(host(7)).is_err());
        let going: Vec<_> = sitting.iter().filter(|seat| seat.has_to_go()).collect();
        assert!(!kept.has_to_go() && !fresh.has_to_go());
        going.last().unwrap().leave();
        let busy = seats.take(host(7)).unwrap();
        busy.working();
    }
    assert!(seats.take(host(7)).is_err());
    assert!(kept.has_to_go() || fresh.has_to_go(), "when nobody else is there");
}

/// Goal: however many messages of sockets are processed, calls over HTTP have all of their places.
#[tokio::test]
async fn messages_of_sockets_take_no_calls() {
    let seats = seats(16, 0);
    let sockets: Vec<_> = (1..=8).map(|number| seats.take(host(number)).unwrap()).collect();
    let own = seats.take(Origin::Trusted).unwrap();
    let messages: Vec<_> = sockets.iter().cycle().take(64).filter_map(Seat::call_place).collect();
    assert_eq!(messages.len(), 7, "half of the calls, but for the operator's part");
    let callers: Vec<_> = (10..=16).map(|number| seats.take(host(number)).unwrap()).collect();
    callers.iter().for_each(|caller| caller.call_read().unwrap());
    assert!(own.call_place().is_some());
    drop(messages);
    assert!(sockets[7].call_place().is_some());
}
