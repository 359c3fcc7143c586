//! [`Mix`]: which mode is next while ranges are followed in both modes at once.

use crate::plan::RangeMode;

/// Maximum lead of one mode over its share, in batches, that the other mode makes up for.
const OWED_MAX: f64 = 1_024.0;
/// If the share changes by more than this, one mode's lead is not made up for. The lead was right by what was known
/// then. Making up for it would leave that mode's peers without work for hundreds of batches.
const SHARE_STEP: f64 = 0.1;

/// The turns of both modes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Mix {
    /// The share of the batches to replay.
    share: f64,
    /// Batches that replay has to make up for; below zero, batches that deltas have to.
    owed: f64,
    /// Batches to replay before the share counts.
    head_start: f64,
}

impl Mix {
    /// A mix that begins with `head_start` batches of replay.
    pub(super) fn after(head_start: f64) -> Mix {
        Mix { head_start, ..Mix::default() }
    }

    /// The same mix with a newly planned share.
    pub(super) fn with_share(self, share: f64) -> Mix {
        let is_alike = (share - self.share).abs() <= SHARE_STEP;
        Mix { share, owed: if is_alike { self.owed } else { 0.0 }, ..self }
    }

    /// The mode whose turn it is.
    pub(super) fn turn(&self) -> RangeMode {
        if self.head_start > 0.0 || self.owed >= 0.0 { RangeMode::Replay } else { RangeMode::Delta }
    }

    /// Records that `batches` batches are followed in a mode.
    pub(super) fn take(&mut self, mode: RangeMode, batches: f64) {
        if mode == RangeMode::Replay && self.head_start > 0.0 {
            self.head_start -= batches;
            return;
        }
        let by_replay = if mode == RangeMode::Replay { batches } else { 0.0 };
        self.owed = (self.owed + self.share * batches - by_replay).clamp(-OWED_MAX, OWED_MAX);
    }

    /// Records that `batches` batches are replayed, although their turn was that of deltas.
    pub(super) fn took_over(&mut self, batches: f64) {
        self.owed = (self.owed - batches).max(-OWED_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: over ranges of any length, each mode gets its share.
    #[test]
    fn each_mode_has_its_share() {
        for share in [0.1, 0.5, 0.8] {
            let mut mix = Mix { share, ..Mix::default() };
            let (mut replayed, mut all) = (0.0, 0.0);
            for range in 0..200 {
                let turn = mix.turn();
                let batches = if turn == RangeMode::Replay { 32.0 } else { f64::from(1 << (range % 4)) };
                mix.take(turn, batches);
                all += batches;
                replayed += if turn == RangeMode::Replay { batches } else { 0.0 };
            }
            let found: f64 = replayed / all;
            assert!((found - share).abs() < 0.05, "{found}, {share}");
        }
    }

    /// Goal: one mode's lead is made up for while the share is about the same. A newly planned share counts from then
    /// on.
    #[test]
    fn a_new_share_lets_go_of_what_was_owed() {
        let ahead = Mix { share: 0.7, owed: -200.0, ..Mix::default() };
        assert_eq!(ahead.with_share(0.65).turn(), RangeMode::Delta);
        let mut mix = ahead.with_share(0.35);
        let mut replayed = 0;
        for _ in 0..20 {
            let turn = mix.turn();
            mix.take(turn, 16.0);
            replayed += usize::from(turn == RangeMode::Replay);
        }
        assert!((6..=8).contains(&replayed), "{replayed} of 20 ranges");
    }

    /// Goal: replay goes first with its head start, and deltas do not make up for these batches. Then the share counts.
    #[test]
    fn replay_has_the_first_batches() {
        let mut mix = Mix { head_start: 30.0, ..Mix::default() }.with_share(0.5);
        let mut turns = Vec::new();
        for _ in 0..8 {
            turns.push(mix.turn());
            mix.take(mix.turn(), 16.0);
        }
        let (replay, delta) = (RangeMode::Replay, RangeMode::Delta);
        assert_eq!(turns, [replay, replay, replay, delta, replay, delta, replay, delta]);
    }
}
