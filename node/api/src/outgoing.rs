//! The memory of answers on their way to callers, however slowly the callers read.

use axum::body::Bytes;
use slipstream_fair::Origin;

use slipstream_fair::{Quota, QuotaShare};

/// Answers up to this length need no budget, so slow readers of long ones do not shut out everybody else.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// The part of the budget that is reserved for the operator's own hosts, as a divisor.
const RESERVED_SHARE: usize = 8;

/// The budget for long answers. Each takes its share while it is built, and holds it until its last byte is in the
/// kernel's buffer.
pub(super) struct Outgoing(Quota);

/// An answer and its share of the budget.
struct HeldAnswer {
    answer: String,
    _share: QuotaShare,
}

impl AsRef<[u8]> for HeldAnswer {
    fn as_ref(&self) -> &[u8] {
        self.answer.as_bytes()
    }
}

impl Outgoing {
    pub(super) fn new(bytes_max: usize) -> Outgoing {
        Outgoing(Quota::new(bytes_max, bytes_max / RESERVED_SHARE))
    }

    /// Starts an answer for a caller.
    pub(super) fn grow(&self, origin: Origin) -> GrowingAnswer {
        GrowingAnswer { text: String::new(), share: self.0.share(origin), lacked_room: false }
    }
}

/// An answer under construction, which takes its share of the budget as it grows.
pub(super) struct GrowingAnswer {
    text: String,
    share: QuotaShare,
    lacked_room: bool,
}

impl GrowingAnswer {
    /// Bytes of the answer so far.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Adds all of these parts, or adds none and returns false.
    pub(super) fn push(&mut self, parts: &[&str]) -> bool {
        let len = self.text.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        if len > SHORT_BYTES_MAX && !self.share.grow_to(len) {
            self.lacked_room = true;
            return false;
        }
        parts.iter().for_each(|part| self.text.push_str(part));
        true
    }

    /// Whether parts were left out for lack of room.
    pub(super) fn lacked_room(&self) -> bool {
        self.lacked_room
    }

    /// Adds a part so short that it needs no budget: an error, or the separator between answers.
    pub(super) fn push_short(&mut self, part: &str) {
        self.text.push_str(part);
    }

    /// The finished answer; `None` if it is empty.
    pub(super) fn finish(mut self) -> Option<Bytes> {
        // The share counts bytes, not the text's capacity.
        self.text.shrink_to_fit();
        match self.text.len() {
            0 => None,
            1..=SHORT_BYTES_MAX => Some(self.text.into()),
            _ => Some(Bytes::from_owner(HeldAnswer { answer: self.text, _share: self.share })),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn long_answers_wait_for_no_room_and_give_it_back() {
        let outgoing = Outgoing::new(1 << 20);
        let answer = |len| {
            let mut answer = outgoing.grow(Origin::Trusted);
            answer.push(&[&"x".repeat(len)]).then(|| answer.finish().unwrap())
        };
        let first = answer(700 << 10).unwrap();
        assert_eq!(first.len(), 700 << 10);
        assert!(answer(400 << 10).is_none());
        assert!(answer(SHORT_BYTES_MAX).is_some());
        // A share stays held while part of its answer is unsent.
        let rest = first.slice(600 << 10..);
        drop(first);
        assert!(answer(400 << 10).is_none());
        drop(rest);
        assert!(answer(4 << 20).is_some(), "longer than all room, and alone");
    }

    #[test]
    fn an_answer_takes_its_share_part_by_part() {
        let outgoing = Outgoing::new(1 << 20);
        let (mut first, mut second) = (outgoing.grow(Origin::Trusted), outgoing.grow(Origin::Trusted));
        let part = "x".repeat(300 << 10);
        assert!(
            first.push(&[&part])
                && second.push(&[&part])
                && first.push(&[&part[..100 << 10], &part[100 << 10..]])
        );
        assert!(!second.push(&[&part]), "1,200 KiB in a room of 1,024");
        assert!(second.lacked_room() && !first.lacked_room());
        second.push_short("refused");
        assert_eq!(first.finish().unwrap().len(), 600 << 10);
        assert!(second.push(&[&part]));
        assert_eq!(second.len(), (600 << 10) + 7);
        drop(second);
        assert_eq!(outgoing.0.free(), 1 << 20);
        assert!(outgoing.grow(Origin::Trusted).finish().is_none());
    }

    /// Goal: one address that reads nothing leaves room for the long answers of others.
    #[test]
    fn one_address_does_not_take_all() {
        let outgoing = Outgoing::new(64 << 20);
        let answer = |number: u8| {
            let mut answer = outgoing.grow(Origin::V4(Ipv4Addr::new(192, 0, 2, number)));
            answer.push(&[&"x".repeat(1 << 20)]).then(|| answer.finish().unwrap())
        };
        let unread: Vec<_> = (0..100).filter_map(|_| answer(1)).collect();
        assert_eq!(unread.len(), 19, "a third of seven eighths");
        assert!(answer(2).is_some());
    }
}
