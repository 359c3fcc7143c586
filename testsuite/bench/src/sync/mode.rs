//! [`Mode`]: the ways to catch up that are compared.

/// How a follower catches up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// The baseline; see [`super::v1`].
    V1,
    /// Executes every batch, without hints.
    ReplayUnhinted,
    /// Executes every batch, with hints.
    Replay,
    /// Applies deltas and keeps no history.
    Delta,
    /// Applies deltas and keeps bodies and receipts.
    DeltaHistory,
    /// Applies the range delta up to the last snapshot, and follows the rest.
    RangeDelta,
    /// Restores a snapshot and follows the rest.
    Snapshot,
    /// Executes every batch, with hints, and keeps no history.
    ReplayAlone,
    /// The node's own choice, without history.
    Auto,
    /// The node's own choice with history, as by default.
    AutoHistory,
}

impl Mode {
    /// Returns the mode's name in figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::V1 => "v1",
            Mode::ReplayUnhinted => "replay_unhinted",
            Mode::Replay => "replay",
            Mode::Delta => "delta",
            Mode::DeltaHistory => "delta_history",
            Mode::RangeDelta => "range_delta",
            Mode::Snapshot => "snapshot",
            Mode::ReplayAlone => "replay_alone",
            Mode::Auto => "auto",
            Mode::AutoHistory => "auto_history",
        }
    }

    /// Returns `sync.mode`; for the baseline it is unused.
    pub(super) fn sync_mode(self) -> &'static str {
        match self {
            Mode::V1 | Mode::ReplayUnhinted | Mode::Replay | Mode::ReplayAlone => "replay",
            Mode::Auto | Mode::AutoHistory => "auto",
            Mode::Delta | Mode::DeltaHistory => "delta",
            Mode::RangeDelta => "range_delta",
            Mode::Snapshot => "snapshot",
        }
    }

    /// Returns further lines of the `sync` section, and the lines of the `executor` section.
    pub(super) fn settings(self) -> (&'static str, &'static str) {
        match self {
            Mode::ReplayUnhinted => ("", "  hints: off\n"),
            Mode::Delta | Mode::RangeDelta | Mode::Snapshot | Mode::ReplayAlone | Mode::Auto => {
                ("  history: false\n", "")
            }
            Mode::V1 | Mode::Replay | Mode::DeltaHistory | Mode::AutoHistory => ("", ""),
        }
    }
}
