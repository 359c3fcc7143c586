//! [`Probation`]: the place of a call that may turn out to be short or long, and the decision whether it may be long.
//!
//! ```text
//!   starts, in one of a few places ─┬─▶ short: ends there
//!                                   └─▶ long ─┬─ a place for long calls is free ─┬─▶ continues in that one
//!                                             │                                  └─▶ its thread is needed: restarts, behind others
//!                                             └─ none is free ─▶ refused: ends at once, and releases its place
//! ```
//!
//! The method alone does not show how long a call takes. If all calls that may take long shared their places, endless
//! calls of many addresses would shut out those that end in a moment.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::quota::QuotaShare;

/// The place of one call. Cheap to clone: the connection and the work share it, and it is released when both are done.
#[derive(Clone)]
pub struct Probation(Arc<Mutex<State>>);

enum State {
    /// In a probation place. The `long` share is empty.
    Short {
        _place: QuotaShare,
        long: QuotaShare,
    },
    Long {
        _place: QuotaShare,
    },
    /// In a place for long calls, but no longer on a thread.
    Again {
        place: QuotaShare,
    },
    Refused,
}

impl Probation {
    /// Starts in `place`; `long` is an empty share of the places for long calls.
    pub fn new(place: QuotaShare, long: QuotaShare) -> Probation {
        Probation(Arc::new(Mutex::new(State::Short { _place: place, long })))
    }

    /// Call when the call is long; returns whether it may continue. Otherwise it ends: it is refused, or
    /// [restarts](Probation::begins_again) if only its thread is needed.
    pub fn lengthen(&self, may_stay: bool) -> bool {
        let mut state = self.0.lock();
        let next = match &mut *state {
            State::Short { long, .. } => match (long.grow_to(1), may_stay) {
                (true, true) => State::Long { _place: long.split() },
                (true, false) => State::Again { place: long.split() },
                (false, _) => State::Refused,
            },
            State::Long { .. } => return true,
            State::Again { .. } | State::Refused => return false,
        };
        *state = next;
        matches!(*state, State::Long { .. })
    }

    /// Whether the call ended because its thread was needed, and has a place to restart as a long one. True only once.
    pub fn begins_again(&self) -> bool {
        let mut state = self.0.lock();
        let State::Again { place } = &mut *state else { return false };
        *state = State::Long { _place: place.split() };
        true
    }

    /// Whether the call was refused.
    pub fn is_refused(&self) -> bool {
        matches!(*self.0.lock(), State::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{origin::Origin, quota::Quota};

    /// Goal: a long call exchanges its place once, or loses it at once when it is refused, and holds nothing when it is
    /// over.
    #[test]
    fn a_long_call_exchanges_its_place_or_loses_it() {
        let (few, long) = (Quota::new(2, 0), Quota::new(1, 0));
        let begin = || {
            let mut place = few.share(Origin::Trusted);
            assert!(place.grow_to(1));
            Probation::new(place, long.share(Origin::Trusted))
        };
        let (first, second) = (begin(), begin());
        assert_eq!((few.free(), long.free()), (0, 1));
        assert!(first.lengthen(true) && first.clone().lengthen(true) && !first.is_refused());
        assert_eq!((few.free(), long.free()), (1, 0));
        assert!(!second.lengthen(true) && second.is_refused());
        assert_eq!((few.free(), long.free()), (2, 0));
        drop(first);
        assert_eq!(long.free(), 1);
        assert!(!second.lengthen(true), "what was refused stays so");
        let third = begin();
        assert!(!third.lengthen(false) && !third.lengthen(true) && !third.is_refused());
        assert_eq!((few.free(), long.free()), (2, 0), "it keeps what it begins again in");
        assert!(third.begins_again() && !third.begins_again() && third.lengthen(true));
        drop(third);
        drop(begin());
        assert_eq!((few.free(), long.free()), (2, 1));
    }
}
