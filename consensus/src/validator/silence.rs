//! [`Silence`]: why a validator's node signs nothing, as reports and metrics show it.

use std::fmt;

use serde::{Deserialize, Serialize};
use slipstream_eve as eve;
use slipstream_types::{BatchNumber, Epoch};

/// Why a node that its operator runs as a validator signs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Silence {
    /// The validators of the present epoch do not include its key.
    NotInSet {
        /// The present epoch.
        epoch: Epoch,
    },
    /// Its ledger has not reached the present epoch yet.
    CatchingUp,
    /// It has no record of its votes, and waits for a quorum to report its progress.
    Listening,
    /// It may have voted up to this batch, and has lost those votes.
    LostVotes {
        /// The last batch that it may have voted on.
        until: BatchNumber,
    },
    /// Its votes are of a later epoch than its ledger.
    LostLedger {
        /// The epoch of its votes.
        epoch: Epoch,
    },
}

impl Silence {
    /// The names of all variants.
    pub const NAMES: [&str; 5] = ["not_in_set", "catching_up", "listening", "lost_votes", "lost_ledger"];

    /// The name in JSON and in metrics.
    pub fn name(self) -> &'static str {
        let [not_in_set, catching_up, listening, lost_votes, lost_ledger] = Silence::NAMES;
        match self {
            Silence::NotInSet { .. } => not_in_set,
            Silence::CatchingUp => catching_up,
            Silence::Listening => listening,
            Silence::LostVotes { .. } => lost_votes,
            Silence::LostLedger { .. } => lost_ledger,
        }
    }

    /// What the operator can do about it.
    pub fn way_out(self) -> &'static str {
        match self {
            Silence::NotInSet { .. } => {
                "add its key with `slipstream validators add`, or run the node with `role: fullnode`"
            }
            Silence::CatchingUp => "it votes after it has caught up: wait, or check why sync waits",
            Silence::Listening => {
                "it votes after a quorum of validators has answered: check that they run and are connected"
            }
            Silence::LostVotes { .. } => {
                "it votes after the others have decided that batch. If too many validators have lost their votes, \
                the others cannot: then stop this one and restore its own data directory as it was at its last stop, \
                never an older copy"
            }
            Silence::LostLedger { .. } => {
                "it votes after its ledger has reached that epoch again: wait until it has caught up, or restore its own data directory as it was"
            }
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::NotInSet { epoch } => write!(f, "its key is not among the validators of epoch {epoch}"),
            Silence::CatchingUp => f.write_str("its ledger has not caught up with the present epoch"),
            Silence::Listening => {
                f.write_str("it has no record of its votes, and waits for a quorum to report its progress")
            }
            Silence::LostVotes { until } => {
                write!(f, "it has lost its votes, or joined late, and may have voted up to batch {until}")
            }
            Silence::LostLedger { epoch } => {
                write!(
                    f,
                    "its votes belong to epoch {epoch}, but its ledger has not reached it: it has lost data"
                )
            }
        }
    }
}

impl From<eve::Silence> for Silence {
    fn from(silence: eve::Silence) -> Silence {
        match silence {
            eve::Silence::Listening => Silence::Listening,
            eve::Silence::LostVotes { until } => Silence::LostVotes { until },
            eve::Silence::LostLedger { epoch } => Silence::LostLedger { epoch },
        }
    }
}
