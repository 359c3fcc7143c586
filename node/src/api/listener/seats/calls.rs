//! [`Calls`]: the places of calls over HTTP, by how long a call may take.
//!
//! ```text
//!   read ─▶ a place among all ─▶ its body says what it asks for ─┬─▶ short: it begins
//!                                                                └─▶ long, or waits for receipts: a place among such calls too, or 503
//! ```
//!
//! In one room alone, calls that take seconds would have all places as soon as they come from many addresses, and callers who ask for
//! little would be refused. Short calls end in a moment, so that their part of the places comes round.

use crate::{
    api::room::{Room, Share},
    origin::Origin,
};

/// The part of the calls that strangers leave to the operator's own hosts: one in so many.
const RESERVED_CALLS_SHARE: usize = 8;
/// The part of the calls that only short ones have: one in so many.
const SHORT_CALLS_SHARE: usize = 4;
/// The part of the calls that may wait for receipts: one in so many. They cost their callers nothing for as long as
/// `api.send_sync_time_max_ms` says, so those that compute keep the rest of the long ones.
const WAITING_CALLS_SHARE: usize = 4;

/// How long a call may take, as its body tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Weight {
    /// A few reads, or transactions to be sent: it ends in a moment.
    Short,
    /// It computes or searches, or is one of many in an array: it may take seconds.
    Long,
    /// It waits for a receipt, without a thread.
    Waits,
}

/// The places of all calls, each shared by address.
pub(super) struct Calls {
    all: Room,
    /// Of those that are not short.
    long: Room,
    /// Of those of them that wait for receipts.
    waiting: Room,
}

impl Calls {
    pub(super) fn new(calls: usize) -> Calls {
        Calls {
            all: room(calls),
            long: room(calls - calls / SHORT_CALLS_SHARE),
            waiting: room((calls / WAITING_CALLS_SHARE).max(1)),
        }
    }

    /// A place among all, for a call that nobody has looked into yet.
    pub(super) fn place(&self, origin: Origin) -> Option<Share> {
        place_in(&self.all, origin)
    }

    /// The further places that a call of this weight needs; `None` if one of them is missing.
    pub(super) fn places_for(&self, origin: Origin, weight: Weight) -> Option<Vec<Share>> {
        let rooms = match weight {
            Weight::Short => [None, None],
            Weight::Long => [Some(&self.long), None],
            Weight::Waits => [Some(&self.long), Some(&self.waiting)],
        };
        rooms.into_iter().flatten().map(|room| place_in(room, origin)).collect()
    }
}

/// Places of which strangers leave some to the operator's own hosts.
pub(super) fn room(calls: usize) -> Room {
    Room::new(calls, calls / RESERVED_CALLS_SHARE)
}

/// A place in a room, if there is one.
pub(super) fn place_in(room: &Room, origin: Origin) -> Option<Share> {
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
    fn call(calls: &Calls, origin: Origin, weight: Weight) -> Option<Vec<Share>> {
        let all = calls.place(origin)?;
        let mut places = calls.places_for(origin, weight)?;
        places.push(all);
        Some(places)
    }

    fn crowd(calls: &Calls, weight: Weight) -> Vec<Vec<Share>> {
        (1_000..1_400).filter_map(|number| call(calls, host(number), weight)).collect()
    }

    /// Goal: however many addresses make calls that take long, a quarter of the places comes round among callers who ask for little, and
    /// the operator finds some of each kind.
    #[test]
    fn long_calls_of_many_addresses_leave_places_to_short_ones() {
        let calls = Calls::new(256);
        let long = crowd(&calls, Weight::Long);
        assert_eq!(long.len(), 168, "of 192, but for the operator's 24");
        assert!(call(&calls, host(1), Weight::Waits).is_none());
        let short = crowd(&calls, Weight::Short);
        assert_eq!(short.len(), 56, "of 256, but for the operator's 32 and those");
        assert!(call(&calls, host(1), Weight::Short).is_none());
        drop(short);
        assert!(call(&calls, host(1), Weight::Short).is_some());
        for weight in [Weight::Short, Weight::Long, Weight::Waits] {
            assert!(call(&calls, Origin::Trusted, weight).is_some(), "{weight:?}");
        }
        drop(long);
        assert_eq!((calls.all.free(), calls.long.free(), calls.waiting.free()), (256, 192, 64));
    }

    /// Goal: calls that wait for receipts leave places to those that compute. A refused one holds nothing.
    #[test]
    fn waiting_calls_leave_places_to_those_that_compute() {
        let calls = Calls::new(256);
        let waiting = crowd(&calls, Weight::Waits);
        assert_eq!(waiting.len(), 56, "of 64, but for the operator's 8");
        assert_eq!((calls.all.free(), calls.long.free()), (200, 136));
        assert_eq!(crowd(&calls, Weight::Long).len(), 168 - 56);
    }

    /// Goal: the callers behind one trusted proxy, too, keep places for short calls when long ones have all that they may.
    #[test]
    fn a_trusted_host_keeps_places_for_short_calls() {
        let calls = Calls::new(16);
        let of = |weight| std::iter::from_fn(|| call(&calls, Origin::Trusted, weight)).collect::<Vec<_>>();
        let long = of(Weight::Long);
        assert_eq!((long.len(), of(Weight::Short).len()), (12, 4));
    }

    /// Goal: one address has a third of each kind at most, and a node with a single place serves every kind.
    #[test]
    fn an_address_has_a_third_of_each_kind() {
        let calls = Calls::new(256);
        for (weight, most) in [(Weight::Long, 56), (Weight::Waits, 19), (Weight::Short, 75)] {
            let own: Vec<_> = std::iter::from_fn(|| call(&calls, host(1), weight)).collect();
            assert_eq!(own.len(), most, "{weight:?}");
        }
        let one = Calls::new(1);
        for weight in [Weight::Short, Weight::Long, Weight::Waits] {
            let only = call(&one, host(1), weight);
            assert!(only.is_some() && call(&one, host(2), weight).is_none(), "{weight:?}");
        }
    }
}
