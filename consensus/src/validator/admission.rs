//! [`Admission`]: the checks that a validator's message must pass before any work is done on it.
//!
//! ```text
//!  payload ─▶ order's head ─▶ epoch, seat, view, number ─▶ signature ─▶ the seat's place ─▶ driver: wanted? ─▶ unpack, hash ─▶ driver
//! ```

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use slipstream_types::PublicKey;
use tokio::{
    sync::{Mutex as Place, MutexGuard},
    time::Instant,
};

/// How often one validator's useless messages are logged. Otherwise a flood of them floods the log.
const INTERVAL: Duration = Duration::from_secs(10);
/// Unwanted orders within [`INTERVAL`] that an honest validator may send. A primary makes some 50 batches a second at
/// most, sends each to validators that lag behind, and repeats it a few times.
const UNWANTED_MAX: u64 = 1_000;

/// Locks that let one long message of each member be processed at a time, and the counts of members' useless messages.
pub(super) struct Admission {
    /// One lock for each seat. Without it, a validator could have as many bodies unpacked at once as the network allows
    /// it requests.
    places: Vec<Place<()>>,
    useless: Mutex<BTreeMap<u16, Useless>>,
}

/// One validator's useless messages since an interval began.
struct Useless {
    since: Instant,
    unwanted: u64,
    is_told: bool,
}

/// Why a message was useless.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Uselessness {
    /// An order of another view, or one that this validator already has. Honest primaries send a few.
    Unwanted,
    /// A message that no honest validator sends.
    Malformed,
}

impl Admission {
    /// Makes the admission of a set with that number of validators.
    pub(super) fn new(validators: usize) -> Arc<Admission> {
        let places = (0..validators).map(|_| Place::new(())).collect();
        Arc::new(Admission { places, useless: Mutex::default() })
    }

    /// Waits for the seat's lock.
    pub(super) async fn place(&self, seat: u16) -> MutexGuard<'_, ()> {
        self.places[usize::from(seat)].lock().await
    }

    /// Counts a useless message, and warns the operator of a validator that sends more than an honest one does.
    pub(super) fn note(
        &self,
        seat: u16,
        key: &PublicKey,
        uselessness: Uselessness,
        reason: &dyn std::fmt::Display,
    ) {
        if self.is_to_tell(seat, uselessness, Instant::now()) {
            tracing::warn!(
                validator = seat, %key, %reason,
                "a validator sends useless messages; this node does not decode them. It is faulty or runs another version: ask its operator"
            );
        }
    }

    /// Whether this message makes the seat's useless ones too many, for the first time in an interval.
    fn is_to_tell(&self, seat: u16, uselessness: Uselessness, now: Instant) -> bool {
        let mut useless = self.useless.lock();
        let begun = Useless { since: now, unwanted: 0, is_told: false };
        let of_seat = useless.entry(seat).or_insert(begun);
        if now.duration_since(of_seat.since) >= INTERVAL {
            *of_seat = Useless { since: now, unwanted: 0, is_told: false };
        }
        of_seat.unwanted += 1;
        let is_much = uselessness == Uselessness::Malformed || of_seat.unwanted > UNWANTED_MAX;
        is_much && !std::mem::replace(&mut of_seat.is_told, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: as many useless messages as honest primaries cause are not reported. More of them, or messages that no
    /// honest validator sends, are reported once in an interval for each seat.
    #[test]
    fn who_sends_what_nobody_wants_is_told_of_once_in_an_interval() {
        let (admission, begun) = (Admission::new(4), Instant::now());
        let told = |seat, uselessness, after| admission.is_to_tell(seat, uselessness, begun + after);
        let soon = Duration::ZERO;
        assert!((0..UNWANTED_MAX).all(|_| !told(1, Uselessness::Unwanted, soon)));
        assert!(told(1, Uselessness::Unwanted, soon) && !told(1, Uselessness::Unwanted, soon));
        assert!(told(2, Uselessness::Malformed, soon) && !told(2, Uselessness::Malformed, soon));
        assert!(!told(1, Uselessness::Unwanted, INTERVAL) && told(1, Uselessness::Malformed, INTERVAL));
    }
}
