//! The thoughts of validators (their current work), and their final state, for `slipnet explain SEED --validators`.

use std::collections::BTreeMap;

use slipstream_consensus::ConsensusStatus;

use super::{
    super::explain::{EndState, Kind},
    world::World,
};

/// The last thought of each machine's validator, while a recording runs.
pub(super) type Thoughts = BTreeMap<usize, String>;

impl World {
    /// Describes the participants, and names the traitor.
    pub(super) fn cast(&self) -> Vec<String> {
        let machine = |index: usize| {
            let plan = &self.machines[index].plan;
            let role = if index < self.plan.validators {
                "validates from the start"
            } else {
                "follows, and may join"
            };
            let mut text =
                format!("machine {index}: {role}; {} crashes planned in its store", plan.points.len());
            if let Some(slowness) = &self.plan.slowness {
                text += &format!("; {}", slowness.of(index));
            }
            if let Some((_, habit)) = self.plan.traitor.filter(|(traitor, _)| *traitor == index) {
                text += &format!("; a traitor: {habit:?}");
            }
            if plan.skew_ms != 0 {
                text += &format!("; its clock is wrong by {} ms", plan.skew_ms);
            }
            if plan.errs > 0.0 {
                text += &format!("; {:.0} % of its executions are wrong", plan.errs * 100.0);
            }
            text
        };
        (0..self.machines.len()).map(machine).collect()
    }

    /// Records a machine's validator whose work changed.
    pub(super) fn think(&self, index: usize) {
        if !self.is_recorded() {
            return;
        }
        let Some(status) = self.status(index) else { return };
        let thought = thought(&status);
        if self.thoughts.lock().insert(index, thought.clone()).is_none_or(|last| last != thought) {
            self.tell(
                Kind::Thought,
                format_args!("machine {index}, decided batch {}: {thought}", status.decided),
            );
        }
    }

    /// Returns each machine's current state.
    pub(super) fn stands(&self) -> Vec<EndState> {
        let stand = |index: usize| {
            let Some(up) = self.machines[index].up() else {
                return EndState {
                    what: format!("machine {index} is down"),
                    facts: Vec::new(),
                    peers: Vec::new(),
                };
            };
            let head = match up.store.head() {
                Ok(head) => format!("head {}", head.header.number),
                Err(error) => format!("its store fails: {error}"),
            };
            let Some(status) = self.status(index) else {
                let what = format!("machine {index} follows and does not validate");
                return EndState { what, facts: vec![head], peers: Vec::new() };
            };
            let voting = status.voting.map(|voting| {
                let (prepares, commits, quorum) = (voting.prepares, voting.commits, status.quorum);
                format!(
                    "votes on batch {}: {prepares} prepares and {commits} commits of {quorum}",
                    voting.number
                )
            });
            let evidence = status.evidence.iter().map(|it| {
                format!(
                    "it has proof that validator {} made two statements ({:?}) about batch {}",
                    it.author, it.kind, it.number
                )
            });
            let decided = format!("decided batch {}, refused {} messages", status.decided, status.refused);
            let facts = [head, decided].into_iter().chain(voting).chain(evidence).collect();
            let peers = status.peers.iter().map(|peer| {
                let heard = peer
                    .heard_ms_ago
                    .map_or_else(|| "never heard from".to_owned(), |ms| format!("heard from {ms} ms ago"));
                let said =
                    peer.said.map(|said| format!("; it said: view {}, decided {}", said.view, said.decided));
                format!("validator {}: {heard}{}", peer.index, said.unwrap_or_default())
            });
            EndState { what: format!("machine {index}: {}", thought(&status)), facts, peers: peers.collect() }
        };
        (0..self.machines.len()).map(stand).collect()
    }

    fn status(&self, index: usize) -> Option<ConsensusStatus> {
        let up = self.machines[index].up()?;
        let validator = up.validator.lock().clone();
        validator.map(|validator| validator.status())
    }
}

/// Describes a validator's work in terms that only events change.
fn thought(status: &ConsensusStatus) -> String {
    let ConsensusStatus {
        view,
        primary,
        changing,
        is_primary,
        silence,
        complains,
        divergences,
        evidence,
        ..
    } = status;
    let place =
        if *is_primary { "it is primary".to_owned() } else { format!("validator {primary} is primary") };
    let mut text = match changing {
        true => format!("waits for view {view} to begin"),
        false => format!("in view {view}, {place}"),
    };
    if let Some(silence) = silence {
        text += &format!("; signs nothing: {silence}");
    }
    if *complains {
        text += "; wants another primary";
    }
    if *divergences > 0 {
        text += &format!("; the others agreed on another outcome {divergences} times");
    }
    if !evidence.is_empty() {
        text += &format!("; has proof of {} lies", evidence.len());
    }
    text
}
