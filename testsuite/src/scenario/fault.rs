//! [`Fault`]: what goes wrong, when, and for how long.

mod peer_lie;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::peer_lie::PeerLie;
use super::{
    criteria::Statement,
    model::{LinkShape, Topology},
    names::{Names, PRIMARY, Place, may_validate},
    span::Span,
};

/// What goes wrong, or what an operator does. Either `at` or `between` says when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When, after the scenario's clock starts.
    #[serde(default)]
    pub at: Option<Span>,
    /// From and to: the seed draws when.
    #[serde(default)]
    pub between: Option<[Span; 2]>,
    /// How often within `between`, 1 to 100.
    #[serde(default = "once")]
    pub times: u32,
    /// How long: a killed node starts again, a paused one goes on, a link is as before. Without it nothing ends it. What would last longer
    /// than the scenario ends with it; what is done at once takes none.
    #[serde(default, rename = "for")]
    pub lasts: Option<Span>,
    /// What happens.
    pub what: What,
}

/// The kinds of faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum What {
    /// `kill -9`; it starts again at the end.
    Kill(Target),
    /// SIGSTOP; SIGCONT at the end.
    Pause(Target),
    /// A polite stop; it starts again at the end, or at once.
    Restart(Target),
    /// `kill -9`, and its data is removed; it starts again at the end, or at once. A validator also forgets what it voted for.
    Wipe(Target),
    /// A polite stop, one bit of its database flipped, and a start. The seed draws the bit.
    BitFlip(Target),
    /// Its disk (`disk_mib`) is filled up; at the end there is room again, and it starts if it ended.
    FullDisk(Target),
    /// Every flush to its disk (`fsync` and its like) takes so much longer. Takes the library `slipnet_preload`.
    SlowDisk {
        /// Whom.
        who: Target,
        /// How much longer, at most 10 s.
        delay: Span,
    },
    /// Its wall clock jumps, and jumps back at the end. Its monotonic clock does not. Takes the library `slipnet_preload`.
    ClockJump {
        /// Whom.
        who: Target,
        /// How far ahead, 1 s to 24 h; or else `back`.
        #[serde(default)]
        ahead: Option<Span>,
        /// How far back, 1 s to 24 h; or else `ahead`.
        #[serde(default)]
        back: Option<Span>,
    },
    /// A validator lies, until the end of the fault.
    LyingValidator {
        /// Whom: validators.
        who: Target,
        /// How.
        lie: Lie,
    },
    /// The operator gives the node peers that lie, until the end of the fault; it forgets them when it stops. Takes the program
    /// `slipnet-simulation`.
    LyingPeers {
        /// Whom they lie to.
        who: Target,
        /// How.
        lie: PeerLie,
        /// Liars of each node, 1 to 16.
        #[serde(default = "once")]
        count: u32,
    },
    /// A polite stop, and a start with another program.
    Upgrade {
        /// Whom.
        who: Target,
        /// `current`, or a name that `--program NAME=PATH` gives.
        to: String,
    },
    /// The links between two sets of nodes change their shape.
    Link {
        /// Names of nodes or groups.
        between: [Vec<String>; 2],
        /// How datagrams travel meanwhile.
        shape: LinkShape,
    },
    /// No datagram passes between two sets of nodes.
    Partition {
        /// Names of nodes or groups.
        between: [Vec<String>; 2],
    },
    /// Attackers of the siege; `slipnet campaign siege --list` tells them. Those that are servers are `lying_peers`.
    Attack {
        /// The attack; none of servers.
        name: String,
        /// Whom they attack.
        victim: String,
    },
    /// This node exports its newest snapshot into the archive `{dir}/archive`, which `sync.archives` of others can name.
    ExportSnapshot(String),
    /// The owner adds a candidate to the validators, by a transaction.
    AddValidator(String),
    /// The owner removes a validator, by a transaction.
    RemoveValidator(String),
}

/// How a validator lies. The first two are mistakes of an operator; the others take the program `slipnet-simulation`, which takes the
/// validator's place with its key, at its address, in the chain's first epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Lie {
    /// It runs twice, with one key and a copy of its data, each hearing some of the others: a primary then orders two batches of one number.
    Twin {
        /// Those that hear the second one, and nobody but it: names of nodes or groups. The first one is heard by all others.
        heard_by: Vec<String>,
    },
    /// At the end its data is put back to what it was at the beginning: it does not know what it voted for meanwhile.
    OldState,
    /// It votes for every outcome that it hears of, and for one that nobody has.
    DoubleVote,
    /// It tells outcomes that it made up, and votes for these.
    WrongRoot,
    /// It sends what cannot be decoded, and votes that it did not sign.
    Garbage,
    /// It votes for each outcome before some of the others, and before the rest for one that nobody has.
    SplitVotes,
    /// It complains of the primary with each batch, and whenever another one says how far it is.
    Complaints,
    /// It leaves for the next view, again and again, and says that it saw nothing prepared or decided.
    HiddenPrepares,
    /// It leaves for the next view, again and again, and says that it saw an outcome prepared that nobody has.
    InventedPrepares,
    /// Any of these seven, another one with each batch and each view.
    Anything,
    /// It orders empty batches when it is the primary, one just before patience with it ends, and is silent else.
    EmptyBatches,
}

/// How the program lies that takes a validator's place.
pub(crate) const PROGRAM_LIES: [&str; 9] = [
    "double-vote",
    "wrong-root",
    "garbage",
    "split-votes",
    "complaints",
    "hidden-prepares",
    "invented-prepares",
    "anything",
    "empty-batches",
];

impl Lie {
    /// Those that leave evidence, by their names in the file.
    pub(super) const CONVICTS: &str = "`twin`, `old_state`, `double_vote` and `anything`";

    /// What others may get two signed statements of: nobody else can be convicted. Of the rest each validator hears one word at most, or
    /// none that is signed.
    pub(super) fn evidence(&self) -> &'static [Statement] {
        match self {
            Lie::Twin { .. } => &[Statement::Orders, Statement::Prepares],
            Lie::OldState => &[Statement::Orders, Statement::Prepares, Statement::Commits],
            Lie::DoubleVote | Lie::Anything => &[Statement::Prepares],
            Lie::WrongRoot
            | Lie::Garbage
            | Lie::SplitVotes
            | Lie::Complaints
            | Lie::HiddenPrepares
            | Lie::InventedPrepares
            | Lie::EmptyBatches => &[],
        }
    }

    /// As the program that takes the validator's place knows it; none if the validator's own program lies.
    pub(super) fn of_program(&self) -> Option<&'static str> {
        match self {
            Lie::Twin { .. } | Lie::OldState => None,
            Lie::DoubleVote => Some("double-vote"),
            Lie::WrongRoot => Some("wrong-root"),
            Lie::Garbage => Some("garbage"),
            Lie::SplitVotes => Some("split-votes"),
            Lie::Complaints => Some("complaints"),
            Lie::HiddenPrepares => Some("hidden-prepares"),
            Lie::InventedPrepares => Some("invented-prepares"),
            Lie::Anything => Some("anything"),
            Lie::EmptyBatches => Some("empty-batches"),
        }
    }
}

/// Which nodes a fault hits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    /// All of these at once: names of nodes or groups; `primary` is whoever is it then.
    Nodes(Vec<String>),
    /// These one after another; `for` counts for each.
    Rolling {
        /// Names of nodes or groups.
        nodes: Vec<String>,
        /// From one to the next.
        every: Span,
    },
    /// One that the seed draws: the name of a group, or of several nodes.
    OneOf(Vec<String>),
}

impl Target {
    /// The names that it is written with.
    pub(super) fn names(&self) -> &[String] {
        match self {
            Target::Nodes(names) | Target::OneOf(names) | Target::Rolling { nodes: names, .. } => names,
        }
    }
}

impl What {
    /// Its name in the file.
    pub fn name(&self) -> &'static str {
        match self {
            What::Kill(_) => "kill",
            What::Pause(_) => "pause",
            What::Restart(_) => "restart",
            What::Wipe(_) => "wipe",
            What::BitFlip(_) => "bit_flip",
            What::FullDisk(_) => "full_disk",
            What::SlowDisk { .. } => "slow_disk",
            What::ClockJump { .. } => "clock_jump",
            What::LyingValidator { .. } => "lying_validator",
            What::LyingPeers { .. } => "lying_peers",
            What::Upgrade { .. } => "upgrade",
            What::Link { .. } => "link",
            What::Partition { .. } => "partition",
            What::Attack { .. } => "attack",
            What::ExportSnapshot(_) => "export_snapshot",
            What::AddValidator(_) => "add_validator",
            What::RemoveValidator(_) => "remove_validator",
        }
    }

    /// Whom it hits, if it hits nodes.
    pub(super) fn target(&self) -> Option<&Target> {
        match self {
            What::Kill(target)
            | What::Pause(target)
            | What::Restart(target)
            | What::Wipe(target)
            | What::BitFlip(target)
            | What::FullDisk(target)
            | What::SlowDisk { who: target, .. }
            | What::ClockJump { who: target, .. }
            | What::LyingValidator { who: target, .. }
            | What::LyingPeers { who: target, .. }
            | What::Upgrade { who: target, .. } => Some(target),
            What::Link { .. }
            | What::Partition { .. }
            | What::Attack { .. }
            | What::ExportSnapshot(_)
            | What::AddValidator(_)
            | What::RemoveValidator(_) => None,
        }
    }

    /// Whether it may meet this node: one that it names, one that the seed may draw, or one that may be primary then.
    pub(super) fn may_meet(&self, topology: &Topology, names: &Names, place: Place) -> bool {
        let listed: Vec<&[String]> = match self {
            What::Link { between, .. } | What::Partition { between } => {
                between.iter().map(Vec::as_slice).collect()
            }
            what => what.target().map(Target::names).into_iter().collect(),
        };
        listed.iter().any(|list| {
            names.find_all(list).contains(&place)
                || list.iter().any(|name| name == PRIMARY) && may_validate(topology, names, place)
        })
    }

    /// Whether the seed, or the chain, decides whom of several nodes it meets.
    pub(super) fn draws(&self) -> bool {
        self.target().is_some_and(|target| match target {
            Target::OneOf(_) => true,
            Target::Nodes(names) => names.iter().any(|name| name == PRIMARY),
            Target::Rolling { .. } => false,
        })
    }

    /// Whether it needs relays between the nodes.
    pub(super) fn needs_relays(&self) -> bool {
        matches!(
            self,
            What::Link { .. } | What::Partition { .. } | What::LyingValidator { lie: Lie::Twin { .. }, .. }
        )
    }

    /// Whether a node that it met has to catch up afterwards. Those that are down need an end (`for`) for that.
    pub(super) fn leaves_behind(&self, has_end: bool) -> bool {
        match self {
            What::Restart(_)
            | What::Wipe(_)
            | What::BitFlip(_)
            | What::Upgrade { .. }
            | What::LyingValidator { lie: Lie::Twin { .. } | Lie::OldState, .. } => true,
            What::Attack { .. }
            | What::LyingPeers { .. }
            | What::ExportSnapshot(_)
            | What::AddValidator(_)
            | What::RemoveValidator(_) => false,
            _ => has_end,
        }
    }

    /// Whether it is over once it was done, so that it takes no `for`.
    pub(super) fn is_done_at_once(&self) -> bool {
        matches!(
            self,
            What::BitFlip(_)
                | What::Upgrade { .. }
                | What::ExportSnapshot(_)
                | What::AddValidator(_)
                | What::RemoveValidator(_)
        )
    }

    /// Whether it changes who validates.
    pub(super) fn changes_validators(&self) -> bool {
        matches!(self, What::AddValidator(_) | What::RemoveValidator(_))
    }

    /// Whether it gives nodes peers that lie.
    pub(super) fn gives_liars(&self) -> bool {
        matches!(self, What::LyingPeers { .. })
    }

    /// Whether it needs the library between a node and libc.
    pub(super) fn needs_preload(&self) -> bool {
        matches!(self, What::SlowDisk { .. } | What::ClockJump { .. })
    }
}

fn once() -> u32 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each lie of the program is one that an order can name.
    #[test]
    fn lies_of_the_program_are_listed() {
        let lies = [
            Lie::DoubleVote,
            Lie::WrongRoot,
            Lie::Garbage,
            Lie::SplitVotes,
            Lie::Complaints,
            Lie::HiddenPrepares,
            Lie::InventedPrepares,
            Lie::Anything,
            Lie::EmptyBatches,
        ];
        assert_eq!(lies.map(|lie| lie.of_program().unwrap_or_default()), PROGRAM_LIES);
        assert_eq!(Lie::OldState.of_program(), None);
    }

    /// Goal: an error names the lies that leave evidence, and no other.
    #[test]
    fn lies_with_evidence_are_listed() {
        let twin = Lie::Twin { heard_by: Vec::new() };
        let all = [
            (twin, "twin"),
            (Lie::OldState, "old_state"),
            (Lie::DoubleVote, "double_vote"),
            (Lie::WrongRoot, "wrong_root"),
            (Lie::Garbage, "garbage"),
            (Lie::SplitVotes, "split_votes"),
            (Lie::Complaints, "complaints"),
            (Lie::HiddenPrepares, "hidden_prepares"),
            (Lie::InventedPrepares, "invented_prepares"),
            (Lie::Anything, "anything"),
            (Lie::EmptyBatches, "empty_batches"),
        ];
        for (lie, name) in all {
            let is_listed = Lie::CONVICTS.contains(&format!("`{name}`"));
            assert_eq!(is_listed, !lie.evidence().is_empty(), "{name}");
        }
    }
}
