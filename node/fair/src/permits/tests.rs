use std::{
    net::Ipv4Addr,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use super::*;

fn poll_now<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn host(number: u8) -> Origin {
    Origin::V4(Ipv4Addr::new(192, 0, 2, number))
}

fn taken(places: &Permits, origin: Origin) -> Vec<Permit> {
    let mut all = Vec::new();
    while let Poll::Ready(place) = poll_now(Box::pin(places.take(origin)).as_mut()) {
        all.push(place);
    }
    all
}

/// Goal: one address with endless requests leaves places to others, and a freed place goes to the address with the
/// fewest.
#[test]
fn one_address_cannot_take_all() {
    let places = Permits::new(8);
    let hog = taken(&places, host(1));
    assert_eq!(hog.len(), 3);
    let (mut more, mut other) = (Box::pin(places.take(host(1))), Box::pin(places.take(host(2))));
    assert!(poll_now(more.as_mut()).is_pending());
    let Poll::Ready(second) = poll_now(other.as_mut()) else { panic!("more than half is left") };
    let own = taken(&places, Origin::Trusted);
    assert_eq!(own.len(), 4, "all that is left");
    let mut waiting = Box::pin(places.take(host(3)));
    assert!(poll_now(waiting.as_mut()).is_pending());
    let mut late = Box::pin(places.take(Origin::Trusted));
    assert!(poll_now(late.as_mut()).is_pending());
    let mut hog = hog;
    hog.pop();
    let Poll::Ready(_late) = poll_now(late.as_mut()) else { panic!("the trusted come first") };
    hog.pop();
    assert!(poll_now(waiting.as_mut()).is_ready());
    assert!(poll_now(more.as_mut()).is_pending(), "it was here before, and has one");
    drop((second, own));
    assert!(poll_now(more.as_mut()).is_ready());
}

/// Goal: a caller that goes away while it waits, or just as it gets its place, leaves nothing taken.
#[test]
fn who_stops_to_wait_takes_nothing() {
    let places = Permits::new(1);
    let held = taken(&places, host(1)).pop();
    let mut gone = Box::pin(places.take(host(2)));
    let mut granted = Box::pin(places.take(host(3)));
    assert!(poll_now(gone.as_mut()).is_pending() && poll_now(granted.as_mut()).is_pending());
    drop(gone);
    drop(held);
    assert_eq!(places.free(), 0, "it is kept for the third");
    drop(granted);
    assert_eq!(places.free(), 1);
    assert!(places.0.lock().taken.is_empty() && places.0.lock().waiting.is_empty());
}

/// Goal: many addresses with long work leave places to modest ones, which also come first in the queue.
#[tokio::test(start_paused = true)]
async fn whoever_used_little_comes_first() {
    let places = Permits::metered(8, 0);
    let mut busy: Vec<Permit> = Vec::new();
    for number in 1..=8 {
        busy.push(places.take(host(number)).await);
    }
    assert_eq!(places.free(), 0, "nobody is known yet");
    let used: Vec<_> = busy.iter_mut().map(|place| place.uses(Duration::from_secs(5))).collect();
    assert_eq!(used, [Duration::from_secs(5); 8]);
    let mut again: Vec<_> = (1..=8).map(|number| Box::pin(places.take(host(number)))).collect();
    assert!(again.iter_mut().all(|one| poll_now(one.as_mut()).is_pending()));
    let mut honest = Box::pin(places.take(host(9)));
    assert!(poll_now(honest.as_mut()).is_pending());
    busy.pop();
    assert!(poll_now(honest.as_mut()).is_ready(), "before eight that were here before");
    busy.clear();
    let ready = again.iter_mut().filter_map(|one| match poll_now(one.as_mut()) {
        Poll::Ready(place) => Some(place),
        Poll::Pending => None,
    });
    let held: Vec<Permit> = ready.collect();
    assert_eq!((held.len(), places.free()), (6, 2), "a quarter is left to others");
    assert!(poll_now(Box::pin(places.take(host(10))).as_mut()).is_ready());
    tokio::time::advance(10 * HALF_LIFE).await;
    drop(again);
    assert!(poll_now(Box::pin(places.take(host(8))).as_mut()).is_ready(), "it is forgotten");
}

/// Goal: long work releases its place to short work, if a place for long work is free. It counts for its address all
/// the time.
#[tokio::test(start_paused = true)]
async fn long_work_leaves_its_place_to_others() {
    let places = Permits::metered(4, 2);
    let mut held: Vec<Permit> = Vec::new();
    for number in 1..=4 {
        held.push(places.take(host(number)).await);
    }
    let mut honest = Box::pin(places.take(host(9)));
    assert!(poll_now(honest.as_mut()).is_pending());
    assert_eq!(held.iter_mut().filter_map(|place| place.lengthen().then_some(())).count(), 2);
    let Poll::Ready(honest) = poll_now(honest.as_mut()) else { panic!("there are two for long work") };
    assert_eq!(places.free(), 1);
    assert!(poll_now(Box::pin(places.take(host(1))).as_mut()).is_pending(), "it has one that goes on");
    assert!(held[0].lengthen() && places.free() == 1, "once");
    drop(held);
    drop(honest);
    let state = places.0.lock();
    assert_eq!((state.free, state.free_long, state.taken.len()), (4, 2, 0));
}

/// Goal: an address with much short work goes before many unknown ones, and before those whose work is long.
#[tokio::test(start_paused = true)]
async fn whoevers_work_is_short_comes_first() {
    let places = Permits::metered(1, 0);
    for _ in 0..1_000 {
        places.take(host(9)).await.uses(Duration::from_millis(1));
    }
    for _ in 0..10 {
        places.take(host(8)).await.uses(Duration::from_millis(20));
    }
    let held = places.take(Origin::Trusted).await;
    let mut long = Box::pin(places.take(host(8)));
    let mut unknown = Box::pin(places.take(host(1)));
    let mut short = Box::pin(places.take(host(9)));
    for waiting in [&mut long, &mut unknown, &mut short] {
        assert!(poll_now(waiting.as_mut()).is_pending());
    }
    drop(held);
    assert!(poll_now(short.as_mut()).is_ready());
    assert!(poll_now(long.as_mut()).is_pending() && poll_now(unknown.as_mut()).is_ready());
    assert!(poll_now(long.as_mut()).is_ready());
}

/// Goal: endless work of ever new addresses takes all places for long work and all others that it may have. The
/// remaining places keep becoming free for known and new addresses.
#[tokio::test(start_paused = true)]
async fn work_on_probation_finds_places_beside_endless_work() {
    let places = Permits::metered(8, 4);
    let mut endless: Vec<Permit> = Vec::new();
    let mut next = 100;
    let mut come = |endless: &mut Vec<Permit>| {
        next += 1;
        let Poll::Ready(mut place) = poll_now(Box::pin(places.take(host(next))).as_mut()) else {
            return false;
        };
        assert!(place.settle(), "it may take long from the beginning");
        place.lengthen();
        endless.push(place);
        true
    };
    while come(&mut endless) {}
    assert_eq!((endless.len(), places.free()), (4 + 6, 2));
    for number in [1, 1, 1, 2, 3] {
        let Poll::Ready(mut short) = poll_now(Box::pin(places.take_on_probation(host(number))).as_mut())
        else {
            panic!("there are two places");
        };
        short.uses(Duration::from_millis(1));
        assert!(!short.lengthen() && !short.settle(), "long work has all that it may");
    }
    // A place for long work becomes free for the first in the queue.
    endless.remove(0);
    assert!(come(&mut endless) && !come(&mut endless));
    endless.remove(0);
    let mut settled = places.take_on_probation(host(4)).await;
    assert!(settled.settle() && settled.lengthen());
    assert!(!come(&mut endless));
    assert_eq!(places.free(), 2);
    // Another one ends: work on probation may take its place, without a place for long work.
    endless.remove(2);
    let mut stays = places.take_on_probation(host(5)).await;
    assert!(stays.settle() && !stays.lengthen() && !come(&mut endless));
    // Known for short work: gets one further place, and keeps it as long as it likes.
    let Poll::Ready(known) = poll_now(Box::pin(places.take(host(1))).as_mut()) else { panic!("it is known") };
    assert!(poll_now(Box::pin(places.take(host(2))).as_mut()).is_pending());
    let other = places.take_on_probation(host(6)).await;
    assert_eq!(places.free(), 0);
    drop((known, other, settled, stays));
    endless.clear();
    let state = places.0.lock();
    assert_eq!((state.free, state.free_long, state.staying, state.taken.len()), (8, 4, 0, 0));
}

/// Goal: an address is known for long work once such work has ended. It is no longer known after a while without long
/// work.
#[tokio::test(start_paused = true)]
async fn long_work_is_remembered_for_a_while() {
    let places = Permits::metered(2, 1);
    assert!(!places.is_known_long(host(1)));
    let mut place = places.take_on_probation(host(1)).await;
    place.uses(Duration::from_micros(5_010));
    assert!(!places.is_known_long(host(1)), "it goes on");
    drop(place);
    assert!(places.is_known_long(host(1)) && !places.is_known_long(host(2)));
    tokio::time::advance(HALF_LIFE).await;
    assert!(!places.is_known_long(host(1)));
    places.take_on_probation(host(1)).await.uses(Duration::from_millis(1));
    assert!(!places.is_known_long(host(1)), "that was short");
}
