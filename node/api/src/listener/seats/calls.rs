//! [`CallPlaces`]: the places of calls over HTTP, by how long a call may take.
//!
//! ```text
//!   read ─▶ a place among all ─▶ its body shows what it requests ─┬─▶ short: it starts
//!                                                                 ├─▶ unknown: also a place on probation, or as if long
//!                                                                 └─▶ long, or waits for receipts: also a place among such calls, or 503
//! ```
//!
//! If all calls shared one budget, long calls from many addresses would occupy all places. Callers with small requests
//! would then be refused. Short calls end in a moment, so their part of the places keeps becoming free. The places on
//! probation also keep becoming free: see [`Probation`].

use slipstream_fair::{Origin, Probation, Quota, QuotaShare};

/// The part of the calls that is reserved for the operator's own hosts, as a divisor.
const RESERVED_CALLS_SHARE: usize = 8;
/// The part of the calls reserved for short ones, as a divisor.
const SHORT_CALLS_SHARE: usize = 4;
/// The part of the calls on probation, as a divisor of the calls that are not reserved for short ones.
const PROBATION_CALLS_SHARE: usize = 8;
/// The part of the calls that may wait for receipts, as a divisor. Such calls cost their callers nothing for as long as
/// `api.send_sync_time_max_ms`, so calls that compute keep the rest of the long places.
const WAITING_CALLS_SHARE: usize = 4;

/// How long a call may take, judged by its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Weight {
    /// A few reads, or transactions to send: it ends in a moment.
    Short,
    /// Its method may take seconds. The call is the only one of its body, and its caller is not known for long calls.
    Probation,
    /// It computes or searches, or is one of many in an array: it may take seconds.
    Long,
    /// It waits for a receipt, without a thread.
    Waits,
}

/// The places of all calls, each kind shared by address.
pub(super) struct CallPlaces {
    all: Quota,
    /// The places of calls that are not short.
    long: Quota,
    /// Additional places for calls that are not known to be long; `None` where there are too few.
    probation: Option<Quota>,
    /// The long places of calls that wait for receipts.
    waiting: Quota,
}

/// The places of one call.
#[derive(Default)]
pub(super) struct CallPlace {
    places: Vec<QuotaShare>,
    probation: Option<Probation>,
}

impl CallPlace {
    /// Holds a place among all calls.
    pub(super) fn one(place: QuotaShare) -> CallPlace {
        CallPlace { places: vec![place], probation: None }
    }

    /// Adds the further places that the call's weight needs.
    pub(super) fn extend(&mut self, further: CallPlace) {
        self.places.extend(further.places);
        self.probation = further.probation;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn probation(&self) -> Option<Probation> {
        self.probation.clone()
    }
}

impl CallPlaces {
    pub(super) fn new(calls: usize) -> CallPlaces {
        let probation = calls / PROBATION_CALLS_SHARE;
        CallPlaces {
            all: room(calls),
            long: room(calls - calls / SHORT_CALLS_SHARE - probation),
            probation: (probation > 0).then(|| room(probation)),
            waiting: room((calls / WAITING_CALLS_SHARE).max(1)),
        }
    }

    /// A place among all calls, for a call that has not been parsed yet.
    pub(super) fn place(&self, origin: Origin) -> Option<QuotaShare> {
        place_in(&self.all, origin)
    }

    /// The further places that a call of this weight needs; `None` if one of them is not free.
    pub(super) fn places_for(&self, origin: Origin, weight: Weight) -> Option<CallPlace> {
        let mut held = CallPlace::default();
        match weight {
            Weight::Short => {}
            Weight::Probation => match self.short_at_first(origin) {
                Some(place) => {
                    held.probation = Some(Probation::new(place, self.long.share(origin)));
                }
                None => held.places.push(self.long(origin)?),
            },
            Weight::Long => held.places.push(self.long(origin)?),
            Weight::Waits => {
                held.places.push(self.long(origin)?);
                held.places.push(place_in(&self.waiting, origin)?);
            }
        }
        Some(held)
    }

    fn short_at_first(&self, origin: Origin) -> Option<QuotaShare> {
        self.probation.as_ref().and_then(|room| place_in(room, origin))
    }

    /// The operator's own hosts may also take the places on probation: their calls need no probation.
    fn long(&self, origin: Origin) -> Option<QuotaShare> {
        let own = || if origin.is_stranger() { None } else { self.short_at_first(origin) };
        place_in(&self.long, origin).or_else(own)
    }
}

/// A budget of places, some of which are reserved for the operator's own hosts.
pub(super) fn room(calls: usize) -> Quota {
    Quota::new(calls, calls / RESERVED_CALLS_SHARE)
}

/// A place in a budget, if one is free.
pub(super) fn place_in(room: &Quota, origin: Origin) -> Option<QuotaShare> {
    let mut place = room.share(origin);
    place.grow_to(1).then_some(place)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn host(number: u16) -> Origin {
        let [high, low] = number.to_be_bytes();
        Origin::V4(Ipv4Addr::new(192, 0, high, low))
    }

    /// The places of a call whose body is known, if it gets them.
    fn call(calls: &CallPlaces, origin: Origin, weight: Weight) -> Option<CallPlace> {
        let mut held = CallPlace::one(calls.place(origin)?);
        held.extend(calls.places_for(origin, weight)?);
        Some(held)
    }

    /// The number of free places: all, long, on probation, waiting.
    fn free(calls: &CallPlaces) -> [usize; 4] {
        let probation = calls.probation.as_ref().map_or(0, Quota::free);
        [calls.all.free(), calls.long.free(), probation, calls.waiting.free()]
    }

    fn crowd(calls: &CallPlaces, weight: Weight) -> Vec<CallPlace> {
        (1_000..1_400).filter_map(|number| call(calls, host(number), weight)).collect()
    }

    /// Goal: however many addresses make long calls, a quarter of the places circulates among callers with small
    /// requests. The operator finds places of each kind.
    #[test]
    fn long_calls_of_many_addresses_leave_places_to_short_ones() {
        let calls = CallPlaces::new(256);
        let long = crowd(&calls, Weight::Long);
        assert_eq!(long.len(), 140, "of 160, but for the operator's 20");
        assert!(call(&calls, host(1), Weight::Waits).is_none());
        let probation = crowd(&calls, Weight::Probation);
        assert_eq!(probation.len(), 28, "of 32, but for the operator's 4");
        let short = crowd(&calls, Weight::Short);
        assert_eq!(short.len(), 56, "of 256, but for the operator's 32 and those");
        assert!(call(&calls, host(1), Weight::Short).is_none());
        drop(short);
        assert!(call(&calls, host(1), Weight::Short).is_some());
        for weight in [Weight::Short, Weight::Long, Weight::Waits] {
            assert!(call(&calls, Origin::Trusted, weight).is_some(), "{weight:?}");
        }
        drop((long, probation));
        assert_eq!(free(&calls), [256, 160, 32, 64]);
    }

    /// Goal: with all long places taken, calls on probation find theirs, and lose them when they turn out to be long.
    /// With all probation places taken, they count as long ones.
    #[test]
    fn calls_on_probation_have_places_that_come_round() {
        let calls = CallPlaces::new(256);
        let mut long = crowd(&calls, Weight::Long);
        for number in 0..400 {
            let held = call(&calls, host(number), Weight::Probation).unwrap();
            assert!(!held.probation().unwrap().lengthen(true), "no long place is free");
            assert_eq!(free(&calls)[2], 32, "it has left its place");
        }
        long.pop();
        let held = call(&calls, host(1), Weight::Probation).unwrap();
        assert!(held.probation().unwrap().lengthen(true));
        assert_eq!(free(&calls), [256 - 140, 20, 32, 64]);
        drop(held);
        assert_eq!(free(&calls), [256 - 139, 21, 32, 64]);
        let probation = crowd(&calls, Weight::Probation);
        assert_eq!(probation.iter().filter(|held| held.probation.is_some()).count(), 28);
        assert_eq!(probation.len(), 29, "and the long one that was free");
        assert!(call(&calls, host(1), Weight::Probation).is_none());
        assert_eq!(crowd(&calls, Weight::Short).len(), 224 - 140 - 28);
    }

    /// Goal: calls that wait for receipts leave places to those that compute. A refused call holds nothing.
    #[test]
    fn waiting_calls_leave_places_to_those_that_compute() {
        let calls = CallPlaces::new(256);
        let waiting = crowd(&calls, Weight::Waits);
        assert_eq!(waiting.len(), 56, "of 64, but for the operator's 8");
        assert_eq!(free(&calls), [200, 104, 32, 8]);
        assert_eq!(crowd(&calls, Weight::Long).len(), 140 - 56);
    }

    /// Goal: callers behind one trusted proxy also keep places for short calls when long calls have reached their
    /// limit.
    #[test]
    fn a_trusted_host_keeps_places_for_short_calls() {
        let calls = CallPlaces::new(16);
        let of = |weight| std::iter::from_fn(|| call(&calls, Origin::Trusted, weight)).collect::<Vec<_>>();
        let long = of(Weight::Long);
        assert_eq!((long.len(), of(Weight::Short).len()), (12, 4));
    }

    /// Goal: one address has at most a third of each kind, and a node with a single place serves every kind.
    #[test]
    fn an_address_has_a_third_of_each_kind() {
        let calls = CallPlaces::new(256);
        for (weight, most) in [(Weight::Long, 47), (Weight::Waits, 19), (Weight::Short, 75)] {
            let own: Vec<_> = std::iter::from_fn(|| call(&calls, host(1), weight)).collect();
            assert_eq!(own.len(), most, "{weight:?}");
        }
        let one = CallPlaces::new(1);
        for weight in [Weight::Short, Weight::Probation, Weight::Long, Weight::Waits] {
            let only = call(&one, host(1), weight);
            assert!(only.is_some() && call(&one, host(2), weight).is_none(), "{weight:?}");
        }
    }
}
