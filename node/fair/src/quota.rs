//! [`Quota`]: a number of bytes, or of anything else that is counted, shared by callers. A caller that finds it full is
//! refused at once.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::origin::Origin;

/// An amount that several holders share. Cheap to clone.
#[derive(Clone)]
pub struct Quota(Arc<Mutex<State>>);

struct State {
    all: usize,
    free: usize,
    /// The amount that strangers must leave free.
    reserved: usize,
    /// The amount of each origin that has any.
    taken: HashMap<Origin, usize>,
}

impl Quota {
    /// A quota of `all`, of which `reserved` is for the operator's own hosts.
    pub fn new(all: usize, reserved: usize) -> Quota {
        Quota(Arc::new(Mutex::new(State { all, free: all, reserved, taken: HashMap::new() })))
    }

    /// An empty share of this caller.
    pub fn share(&self, origin: Origin) -> QuotaShare {
        QuotaShare { room: self.clone(), origin, held: 0 }
    }

    /// The amount that is free.
    #[cfg(any(test, feature = "testing"))]
    pub fn free(&self) -> usize {
        self.0.lock().free
    }
}

/// One holder's share of a quota, released on drop.
pub struct QuotaShare {
    room: Quota,
    origin: Origin,
    held: usize,
}

impl QuotaShare {
    /// Grows the share to `amount`, or returns false if the quota is full. An amount above the whole quota is granted
    /// only while nobody else holds a share.
    pub fn grow_to(&mut self, amount: usize) -> bool {
        let mut state = self.room.0.lock();
        let more = amount.min(state.all).saturating_sub(self.held);
        if more == 0 {
            return true;
        }
        let taken = state.taken.get(&self.origin).copied().unwrap_or_default();
        let kept = if self.origin.is_stranger() { state.reserved } else { 0 };
        // A sole holder ignores the reserve, which would otherwise make some answers impossible.
        let alone = state.free + self.held == state.all;
        if !alone && !self.origin.may_take(taken, more, state.free.saturating_sub(kept)) {
            return false;
        }
        state.free -= more;
        *state.taken.entry(self.origin).or_default() += more;
        self.held += more;
        true
    }

    /// Moves the amount held so far into a new share and leaves this one empty.
    pub fn split(&mut self) -> QuotaShare {
        let empty = self.room.share(self.origin);
        std::mem::replace(self, empty)
    }
}

impl Drop for QuotaShare {
    fn drop(&mut self) {
        if self.held == 0 {
            return;
        }
        let mut state = self.room.0.lock();
        state.free += self.held;
        if let Some(taken) = state.taken.get_mut(&self.origin) {
            *taken -= self.held;
            if *taken == 0 {
                state.taken.remove(&self.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn host(number: u8) -> Origin {
        Origin::V4(Ipv4Addr::new(192, 0, 2, number))
    }

    fn grown(room: &Quota, origin: Origin, amount: usize) -> Option<QuotaShare> {
        let mut share = room.share(origin);
        share.grow_to(amount).then_some(share)
    }

    /// Goal: one address cannot fill the quota, a newcomer gets the rest, and the operator finds its reserve.
    #[test]
    fn an_address_leaves_twice_as_much_as_it_takes() {
        let room = Quota::new(100, 20);
        let _first = grown(&room, host(1), 40).unwrap();
        assert!(grown(&room, host(1), 1).is_none(), "40 of 80 is too much already");
        let second = grown(&room, host(2), 40).unwrap();
        assert!(grown(&room, host(3), 1).is_none(), "what is left is reserved");
        let _own = grown(&room, Origin::Trusted, 20).unwrap();
        assert!(grown(&room, Origin::Trusted, 1).is_none());
        drop(second);
        assert!(grown(&room, host(3), 21).is_none() && grown(&room, host(3), 20).is_some());
    }

    #[test]
    fn shares_grow_and_come_back() {
        let room = Quota::new(100, 20);
        let mut share = room.share(host(1));
        assert!(share.grow_to(30) && share.grow_to(10) && share.grow_to(100), "alone");
        assert!(share.grow_to(1_000), "more than there is, and alone");
        assert!(grown(&room, Origin::Trusted, 1).is_none());
        drop(share);
        assert_eq!(room.free(), 100);
        assert!(room.0.lock().taken.is_empty());
    }
}
