//! [`Fault`]: what goes wrong, when, and for how long.

mod peer_lie;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::peer_lie::PeerLie;
use super::{
    criteria::Statement,
    model::{LinkShape, Topology},
    names::{Names, NodeIndex, PRIMARY, may_validate},
    span::Span,
};

/// A failure, or an action of an operator. Either `at` or `between` gives the time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The time after the scenario's clock starts.
    #[serde(default)]
    pub at: Option<Span>,
    /// The earliest and the latest time; the seed draws between them.
    #[serde(default)]
    pub between: Option<[Span; 2]>,
    /// The number of draws within `between`, 1 to 100.
    #[serde(default = "once")]
    pub times: u32,
    /// The duration. At its end a killed node starts again, a paused one resumes, and a link is restored. Without it,
    /// nothing ends the fault. A fault that would last longer than the scenario ends with it. Faults that take effect
    /// at once have none.
    #[serde(default, rename = "for")]
    pub lasts: Option<Span>,
    /// The event.
    pub what: What,
}

/// The kinds of faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[strum(serialize_all = "snake_case")]
pub enum What {
    /// Kills a node (`kill -9`); starts it again at the end.
    Kill(Target),
    /// Pauses a node (SIGSTOP); resumes it (SIGCONT) at the end.
    Pause(Target),
    /// Stops a node gracefully; starts it again at the end, or at once.
    Restart(Target),
    /// Kills a node (`kill -9`) and removes its data; starts it again at the end, or at once. A validator also forgets
    /// its votes.
    Wipe(Target),
    /// Stops a node gracefully, flips one bit of its database, and starts it. The seed draws the bit.
    BitFlip(Target),
    /// Fills up a node's disk (`disk_mib`). At the end the space is freed, and the node starts if it has ended.
    FullDisk(Target),
    /// Delays every flush of a node to its disk (`fsync` and similar calls). Needs the library `slipnet_preload`.
    SlowDisk {
        /// The nodes.
        who: Target,
        /// The additional time of each flush, at most 10 s.
        delay: Span,
    },
    /// Makes a node's wall clock jump, and jump back at the end. Its monotonic clock does not jump. Needs the library
    /// `slipnet_preload`.
    ClockJump {
        /// The nodes.
        who: Target,
        /// The jump ahead, 1 s to 24 h; exclusive with `back`.
        #[serde(default)]
        ahead: Option<Span>,
        /// The jump back, 1 s to 24 h; exclusive with `ahead`.
        #[serde(default)]
        back: Option<Span>,
    },
    /// Makes a validator lie until the end of the fault.
    LyingValidator {
        /// The nodes: validators.
        who: Target,
        /// The lie.
        lie: Lie,
    },
    /// Gives the node peers that lie until the end of the fault; a node forgets them when it stops. Needs the program
    /// `slipnet-simulation`.
    LyingPeers {
        /// The nodes that hear the lie.
        who: Target,
        /// The lie.
        lie: PeerLie,
        /// Liars of each node, 1 to 16.
        #[serde(default = "once")]
        count: u32,
    },
    /// Stops a node gracefully, and starts it with another program.
    Upgrade {
        /// The nodes.
        who: Target,
        /// `current`, or a name that `--program NAME=PATH` gives.
        to: String,
    },
    /// Changes the shape of the links between two sets of nodes.
    Link {
        /// Names of nodes or groups.
        between: [Vec<String>; 2],
        /// How datagrams travel during the fault.
        shape: LinkShape,
    },
    /// Blocks all datagrams between two sets of nodes.
    Partition {
        /// Names of nodes or groups.
        between: [Vec<String>; 2],
    },
    /// Starts attackers of the siege; `slipnet campaign siege --list` lists them. Attacks by servers are `lying_peers`
    /// instead.
    Attack {
        /// The attack; not one by servers.
        name: String,
        /// The attacked node.
        victim: String,
    },
    /// Makes this node export its newest snapshot into the archive `{dir}/archive`, which `sync.archives` of others can
    /// name.
    ExportSnapshot(String),
    /// Adds a candidate to the validators, by a transaction of the owner.
    AddValidator(String),
    /// Removes a validator, by a transaction of the owner.
    RemoveValidator(String),
}

/// How a validator lies. The first two are mistakes of an operator. The others need the program `slipnet-simulation`,
/// which replaces the validator, with its key and at its address, in the chain's first epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[strum(serialize_all = "kebab-case")]
pub enum Lie {
    /// It runs twice, with the same key and a copy of its data, and each instance hears some of the others. A primary
    /// then orders two batches with the same number.
    Twin {
        /// The nodes that hear only the second instance: names of nodes or groups. All others hear only the first.
        heard_by: Vec<String>,
    },
    /// At the end its data is restored to the fault's beginning: it has forgotten its votes since then.
    OldState,
    /// It votes for every outcome that it hears of, and for a made-up one.
    DoubleVote,
    /// It announces outcomes that it made up, and votes for these.
    WrongRoot,
    /// It sends bytes that cannot be decoded, and votes with invalid signatures.
    Garbage,
    /// It votes for each outcome before some of the others, and for a made-up outcome before the rest.
    SplitVotes,
    /// It complains about the primary with each batch, and whenever another validator reports its progress.
    Complaints,
    /// It keeps leaving for the next view, and claims that it saw nothing prepared or decided.
    HiddenPrepares,
    /// It keeps leaving for the next view, and claims that it saw a made-up outcome prepared.
    InventedPrepares,
    /// Any of these seven; it changes with each batch and each view.
    Anything,
    /// As primary, it orders empty batches, each just before the others lose patience. Otherwise it is silent.
    EmptyBatches,
}

impl Lie {
    /// The lies that leave evidence, by their names in the file.
    pub(super) const CONVICTS: &str = "`twin`, `old_state`, `double_vote` and `anything`";

    /// Returns the statements of which others may receive two signed versions: only these lies can be convicted. With
    /// the other lies, each validator hears at most one version, or none that is signed.
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

    /// Returns the lie's name in the program that replaces the validator; `None` if the validator's own program lies.
    pub(super) fn of_program(&self) -> Option<&'static str> {
        match self {
            Lie::Twin { .. } | Lie::OldState => None,
            lie => Some(lie.into()),
        }
    }
}

/// The nodes that a fault affects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    /// All of these at once: names of nodes or groups; `primary` is the node that is primary at that time.
    Nodes(Vec<String>),
    /// These nodes one after another; `for` applies to each.
    Rolling {
        /// Names of nodes or groups.
        nodes: Vec<String>,
        /// The time from one node to the next.
        every: Span,
    },
    /// One node that the seed draws, from the name of a group or from several nodes.
    OneOf(Vec<String>),
}

impl Target {
    /// Returns the names listed in the file.
    pub(super) fn names(&self) -> &[String] {
        match self {
            Target::Nodes(names) | Target::OneOf(names) | Target::Rolling { nodes: names, .. } => names,
        }
    }
}

impl What {
    /// Returns its name in the file.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// Returns its target, if it affects nodes.
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

    /// Whether it may affect this node: because it names the node, the seed may draw it, or it may be primary at that
    /// time.
    pub(super) fn may_meet(&self, topology: &Topology, names: &Names, place: NodeIndex) -> bool {
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

    /// Whether the seed or the chain chooses among several nodes.
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

    /// Whether an affected node has to catch up afterwards. A node that is down needs an end (`for`) for that.
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

    /// Whether it takes effect at once, so that it has no `for`.
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

    /// Whether it changes the validator set.
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

    /// Goal: an error names the lies that leave evidence, and no others.
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
