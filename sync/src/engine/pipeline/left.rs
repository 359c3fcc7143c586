//! The work that is left on the ranges in flight.

use slipstream_types::BatchNumber;

use super::{Pipeline, State};
use crate::plan::{Load, NextStage, OptionalParts, RangesStatus, Ratios, Stage, Way, WorkInFlight};

impl State {
    /// The first stage that is still ahead of the piece.
    fn before(&self) -> NextStage {
        match self {
            State::Asked => NextStage::Fetch,
            State::Checked(..) | State::Preparing => NextStage::Prepare,
            State::Prepared(_) | State::Executing => NextStage::Execute,
            State::Ready(_) | State::Committing => NextStage::Commit,
        }
    }

    /// The stage that the piece waits for or is in.
    fn stage(&self) -> Stage {
        match self.before() {
            NextStage::Fetch => Stage::Fetch,
            NextStage::Prepare => Stage::Prepare,
            NextStage::Execute => Stage::Execute,
            NextStage::Commit => Stage::Commit,
        }
    }

    /// Whether its range can still be followed in another mode: this node has done no work on that range.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, State::Asked | State::Checked(..))
    }
}

impl Pipeline {
    /// The work that is left on the pieces.
    pub(in crate::engine) fn in_flight(&self, ratios: &Ratios, parts: OptionalParts) -> WorkInFlight {
        let mut in_flight = WorkInFlight { kept: self.first().before(1), ..WorkInFlight::default() };
        for (first, piece) in &self.pieces {
            let load = Load::of(piece.mode, &piece.amount, piece.state.before(), ratios, parts);
            if matches!(piece.state, State::Asked) {
                in_flight.awaited.get_or_insert((piece.mode, *first));
            }
            in_flight.load = in_flight.load.plus(load);
            in_flight.came |= !matches!(piece.state, State::Asked);
            if !piece.state.is_open() {
                (in_flight.kept, in_flight.kept_load) = (piece.last, in_flight.load);
            }
        }
        in_flight
    }

    /// The work that is left on the pieces that `which` selects by their first batch and their state.
    pub(in crate::engine) fn left(
        &self,
        which: impl Fn(BatchNumber, &State) -> bool,
        ratios: &Ratios,
        parts: OptionalParts,
    ) -> Load {
        let pieces = self.pieces.iter().filter(|(first, piece)| which(**first, &piece.state));
        pieces.fold(Load::default(), |sum, (_, piece)| {
            sum.plus(Load::of(piece.mode, &piece.amount, piece.state.before(), ratios, parts))
        })
    }

    /// The first batch of the first piece.
    fn first(&self) -> BatchNumber {
        self.pieces.first_key_value().map_or(self.next, |(first, _)| *first)
    }

    /// The pieces, with neighbours that are alike in one group; at most `max` groups.
    pub(in crate::engine) fn alike(&self, max: usize) -> Vec<RangesStatus> {
        let mut alike: Vec<RangesStatus> = Vec::new();
        for (first, piece) in &self.pieces {
            let (way, stage) = (Way::of(piece.mode), piece.state.stage());
            let is_full = alike.len() == max;
            match alike.last_mut() {
                Some(last) if (last.way, last.stage) == (way, stage) => last.last = piece.last,
                _ if is_full => break,
                _ => alike.push(RangesStatus { first: *first, last: piece.last, way, stage }),
            }
        }
        alike
    }
}
