//! The memory that answers may take while they are on their way to those who asked, however slowly these read.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Answers up to this length need no room, so that slow readers of long ones do not shut out everybody else.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// What room is counted in.
const UNIT_BYTES: usize = 1 << 10;

/// The room for long answers; one takes its share until its last byte is with the kernel.
pub(super) struct Outgoing {
    units_max: usize,
    room: Arc<Semaphore>,
}

/// An answer and its share.
struct Held {
    answer: String,
    _share: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.answer.as_bytes()
    }
}

impl Outgoing {
    pub(super) fn new(bytes_max: usize) -> Outgoing {
        let units_max = bytes_max / UNIT_BYTES;
        Outgoing { units_max, room: Arc::new(Semaphore::new(units_max)) }
    }

    /// The answer as it is to be sent; nothing if there is no room for it now. One that is longer than all room together
    /// goes alone.
    pub(super) fn hold(&self, answer: String) -> Option<Bytes> {
        if answer.len() <= SHORT_BYTES_MAX {
            return Some(answer.into());
        }
        let units = u32::try_from(answer.len().div_ceil(UNIT_BYTES).min(self.units_max)).ok()?;
        let share = self.room.clone().try_acquire_many_owned(units).ok()?;
        Some(Bytes::from_owner(Held { answer, _share: share }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answers_wait_for_no_room_and_give_it_back() {
        let outgoing = Outgoing::new(1 << 20);
        let answer = |len| outgoing.hold("x".repeat(len));
        let first = answer(700 << 10).unwrap();
        assert_eq!(first.len(), 700 << 10);
        assert!(answer(400 << 10).is_none());
        assert!(answer(SHORT_BYTES_MAX).is_some());
        // What is left of an answer that is half sent keeps the share.
        let rest = first.slice(600 << 10..);
        drop(first);
        assert!(answer(400 << 10).is_none());
        drop(rest);
        assert!(answer(4 << 20).is_some(), "longer than all room, and alone");
    }
}
