//! The memory that answers may take while they are on their way to those who asked, however slowly these read.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Answers up to this length need no room, so that slow readers of long ones do not shut out everybody else.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// What room is counted in.
const UNIT_BYTES: usize = 1 << 10;

/// The room for long answers; each takes its share while it is made, and until its last byte is with the kernel.
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

    /// An answer that is being made.
    pub(super) fn grow(&self) -> Growing<'_> {
        Growing { outgoing: self, text: String::new(), share: None }
    }
}

/// An answer in the making, which takes its share of the room as it grows.
pub(super) struct Growing<'a> {
    outgoing: &'a Outgoing,
    text: String,
    share: Option<OwnedSemaphorePermit>,
}

impl Growing<'_> {
    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Adds a part, or tells that there is no room for it now. An answer that is longer than all room together goes alone.
    pub(super) fn push(&mut self, part: &str) -> bool {
        let len = self.text.len() + part.len();
        if len > SHORT_BYTES_MAX {
            let units = len.div_ceil(UNIT_BYTES).min(self.outgoing.units_max);
            let held = self.share.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let more = u32::try_from(units.saturating_sub(held)).unwrap_or(u32::MAX);
            let Ok(more) = self.outgoing.room.clone().try_acquire_many_owned(more) else { return false };
            match &mut self.share {
                Some(share) => share.merge(more),
                None => self.share = Some(more),
            }
        }
        self.text.push_str(part);
        true
    }

    /// Adds a part that is so short that it needs no room: an error, or what stands between answers.
    pub(super) fn push_short(&mut self, part: &str) {
        self.text.push_str(part);
    }

    /// The answer as it is to be sent; none if nothing was added.
    pub(super) fn finish(mut self) -> Option<Bytes> {
        // The share counts bytes, not what the text grew to.
        self.text.shrink_to_fit();
        match self.share {
            _ if self.text.is_empty() => None,
            None => Some(self.text.into()),
            Some(share) => Some(Bytes::from_owner(Held { answer: self.text, _share: share })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answers_wait_for_no_room_and_give_it_back() {
        let outgoing = Outgoing::new(1 << 20);
        let answer = |len| {
            let mut answer = outgoing.grow();
            answer.push(&"x".repeat(len)).then(|| answer.finish().unwrap())
        };
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

    #[test]
    fn an_answer_takes_its_share_part_by_part() {
        let outgoing = Outgoing::new(1 << 20);
        let (mut first, mut second) = (outgoing.grow(), outgoing.grow());
        let part = "x".repeat(300 << 10);
        assert!(first.push(&part) && second.push(&part) && first.push(&part));
        assert!(!second.push(&part), "1,200 KiB in a room of 1,024");
        second.push_short("refused");
        assert_eq!(first.finish().unwrap().len(), 600 << 10);
        assert!(second.push(&part));
        assert_eq!(second.len(), (600 << 10) + 7);
        drop(second);
        assert_eq!(outgoing.room.available_permits(), 1 << 10);
        assert!(outgoing.grow().finish().is_none());
    }
}
