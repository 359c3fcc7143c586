//! [`Pieces`]: the ranges of a backfill in flight, newest first.
//!
//! ```text
//!  Wanted ─▶ Asked ─▶ Arrived ─▶ Checking ─▶ Checked ─▶ Storing      in any order up to Checked; then the newest first, one at a time
//! ```

use std::collections::VecDeque;

use slipstream_network::PeerId;
use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::span::MissingSpan;
use crate::{engine::streams::Flight, protocol::RangeRequest, work::PastRange};

/// Maximum number of ranges in flight: this many peers serve side by side.
const PIECES_MAX: usize = 8;
/// Bytes of answers that wait to be checked or stored. Beyond this, only the newest range is asked for.
const HELD_BYTES_MAX: u64 = 16 << 20;

/// A range in flight.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) span: MissingSpan,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    /// No peer is asked.
    Wanted,
    /// This peer is asked. From `late_at` on it is late, and another peer may be asked instead.
    Asked {
        peer: PeerId,
        late_at: Instant,
    },
    Arrived(Box<PieceAnswer>),
    Checking,
    Checked(Box<PastRange>, PeerId),
    Storing,
}

/// An answer before its check.
#[derive(Debug)]
pub(super) struct PieceAnswer {
    pub(super) flight: Flight,
    pub(super) at: Instant,
    pub(super) request: RangeRequest,
    pub(super) answer: Vec<u8>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pieces: VecDeque<Piece>,
    /// The span below the pieces, which is not cut into pieces yet.
    rest: Option<MissingSpan>,
}

impl Pieces {
    /// Begins with a span that was not asked for yet.
    pub(super) fn of(span: Option<MissingSpan>) -> Pieces {
        Pieces { pieces: VecDeque::new(), rest: span }
    }

    /// Whether no piece is in flight, and none is to come.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.rest.is_none()
    }

    /// Cuts pieces of `batches` batches while there is room for more. Each begins at a multiple of `batches`, as
    /// followers' requests do, so that a peer makes each answer once for all of them.
    pub(super) fn cut(&mut self, batches: u64) {
        while let Some(rest) = self.rest.filter(|_| self.pieces.len() < PIECES_MAX) {
            let first = rest.last.before(rest.last.get() % batches.max(1)).max(rest.first);
            let span = MissingSpan { first, ..rest };
            self.rest = (first > rest.first).then(|| MissingSpan { last: first.before(1), ..rest });
            self.pieces.push_back(Piece { span, state: State::Wanted });
        }
    }

    /// Drops the span that is not cut into pieces yet; a later look at the store finds it again.
    pub(super) fn cut_no_more(&mut self) {
        self.rest = None;
    }

    /// The piece whose first batch is `first`.
    pub(super) fn get_mut(&mut self, first: BatchNumber) -> Option<&mut Piece> {
        self.pieces.iter_mut().find(|piece| piece.span.first == first)
    }

    /// All pieces, newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter()
    }

    /// The pieces to ask for, newest first: no peer is asked for them, or the asked peer is late. Memory for answers
    /// bounds their number, but always allows the newest piece, because the others wait for it.
    pub(super) fn wanted(&mut self, now: Instant) -> impl Iterator<Item = &mut Piece> {
        let held = self.pieces.iter().map(|piece| match &piece.state {
            State::Arrived(arrived) => arrived.answer.len() as u64,
            State::Checked(range, _) => range.bytes(),
            State::Wanted | State::Asked { .. } | State::Checking | State::Storing => 0,
        });
        let pieces_max = if held.sum::<u64>() < HELD_BYTES_MAX { PIECES_MAX } else { 1 };
        let pieces = self.pieces.iter_mut().take(pieces_max);
        pieces.filter(move |piece| match piece.state {
            State::Wanted => true,
            State::Asked { late_at, .. } => late_at <= now,
            _ => false,
        })
    }

    /// When the next asked peer becomes late.
    pub(super) fn next_late(&self, now: Instant) -> Option<Instant> {
        let late = self.pieces.iter().filter_map(|piece| match piece.state {
            State::Asked { late_at, .. } => Some(late_at),
            _ => None,
        });
        late.filter(|at| *at > now).min()
    }

    /// Takes the newest answer, to be checked.
    pub(super) fn take_arrived(&mut self) -> Option<PieceAnswer> {
        let has_arrived = |piece: &&mut Piece| matches!(piece.state, State::Arrived(_));
        let piece = self.pieces.iter_mut().find(has_arrived)?;
        match std::mem::replace(&mut piece.state, State::Checking) {
            State::Arrived(arrived) => Some(*arrived),
            _ => None,
        }
    }

    /// Records that a piece passed its check, unless it was cut anew meanwhile.
    pub(super) fn checked(&mut self, first: BatchNumber, range: PastRange, from: PeerId) {
        if let Some(piece) = self.get_mut(first).filter(|piece| matches!(piece.state, State::Checking)) {
            piece.state = State::Checked(Box::new(range), from);
        }
    }

    /// Takes the newest piece, if it is checked, to be stored.
    pub(super) fn take_newest(&mut self) -> Option<(Box<PastRange>, PeerId)> {
        let newest = self.pieces.front_mut().filter(|piece| matches!(piece.state, State::Checked(..)))?;
        match std::mem::replace(&mut newest.state, State::Storing) {
            State::Checked(range, from) => Some((range, from)),
            _ => None,
        }
    }

    /// Cuts a piece and all below it anew: its answer ended before its last batch.
    pub(super) fn recut(&mut self, first: BatchNumber) {
        let Some(index) = self.pieces.iter().position(|piece| piece.span.first == first) else { return };
        let lowest = self.rest.or(self.pieces.back().map(|piece| piece.span)).map(|span| span.first);
        let span = self.pieces[index].span;
        self.rest = Some(MissingSpan { first: lowest.unwrap_or(first), ..span });
        self.pieces.truncate(index);
    }

    /// Sets a piece back to wanted if `is_it` holds for its state, because the result of that state is of no use.
    pub(super) fn want(&mut self, first: BatchNumber, is_it: impl Fn(&State) -> bool) {
        if let Some(piece) = self.get_mut(first).filter(|piece| is_it(&piece.state)) {
            piece.state = State::Wanted;
        }
    }

    /// Removes the newest piece, which is stored.
    pub(super) fn stored(&mut self) {
        self.pieces.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Parts;

    fn span(first: u64, last: u64) -> MissingSpan {
        MissingSpan { first: BatchNumber::new(first), last: BatchNumber::new(last), parts: Parts::BODY }
    }

    fn spans(pieces: &Pieces) -> Vec<(u64, u64)> {
        pieces.iter().map(|piece| (piece.span.first.get(), piece.span.last.get())).collect()
    }

    #[test]
    fn pieces_go_down_to_the_first_batch_and_end_at_multiples() {
        let mut pieces = Pieces::of(Some(span(3, 37)));
        pieces.cut(16);
        assert_eq!(spans(&pieces), [(32, 37), (16, 31), (3, 15)]);
        assert!(pieces.rest.is_none());
        let mut pieces = Pieces::of(Some(span(3, 1_000)));
        pieces.cut(16);
        assert_eq!((spans(&pieces).len(), spans(&pieces)[7]), (PIECES_MAX, (880, 895)));
        pieces.stored();
        pieces.cut(4);
        assert_eq!(spans(&pieces)[7], (876, 879));
    }

    #[test]
    fn a_piece_that_is_too_long_is_cut_again_with_all_below_it() {
        let mut pieces = Pieces::of(Some(span(3, 37)));
        pieces.cut(16);
        pieces.recut(BatchNumber::new(16));
        assert_eq!((spans(&pieces), pieces.rest), (vec![(32, 37)], Some(span(3, 31))));
        pieces.cut(8);
        assert_eq!(spans(&pieces), [(32, 37), (24, 31), (16, 23), (8, 15), (3, 7)]);
    }
}
