//! Finds each [`Reaction`] of a node: messages that make it speak.
//!
//! Most messages only wait in a core until others arrive. A vote, for example, waits for a quorum. Taken one by one,
//! the messages would multiply the states by every set of votes that anybody may have. Three rules leave most of that
//! out, and nothing observable:
//!
//! 1. *Silence waits.* A message that a core takes without saying, recording or executing anything changes that core
//!    alone. Said messages stay available, so the core may as well take it right before the next message that makes it
//!    speak. A step of the search is therefore some silent messages and one that breaks the silence. Messages that
//!    never make a core speak stay untaken.
//! 2. *What does not matter now comes later.* Suppose the core says the same without one of the silent messages, and by
//!    taking it afterwards reaches the same state. Then the step without it suffices. The search tries this on the core
//!    for each step.
//! 3. *Topics.* Silent messages and the one that breaks the silence all concern one batch, or all concern views, or all
//!    are orders. At most [`SILENT_MAX`] are silent.
//!
//! The third rule is a bound, not a theorem. It allows a quorum of votes together with the outcome that they are for. A
//! test compares the search with one that takes every message by itself.

use std::sync::Arc;

use crate::{
    item::{Statement, hash},
    memo::locked,
    node::CrashPoint,
    node_state::{Input, NodeState, NodeStates, Reaction, Transition},
    statements::StatementSet,
};

/// Maximum number of messages that a core takes in silence before one that makes it speak. A quorum is three of four,
/// one of them the core's own.
pub(crate) const SILENT_MAX: usize = 3;

/// The search for the reactions of one node.
struct Search<'a> {
    node_states: &'a NodeStates,
    said: &'a StatementSet,
    start: &'a Arc<NodeState>,
    available: Vec<Input>,
    seen: Vec<u64>,
    found: Vec<Arc<Reaction>>,
}

/// Returns all reactions of a node to what was said, in an order that depends on nothing else.
pub(crate) fn reactions(
    node_states: &NodeStates,
    state: &Arc<NodeState>,
    said: &StatementSet,
) -> Arc<Vec<Arc<Reaction>>> {
    let seat = state.node.seat;
    let others = said.items().chain(said.menu()).filter(|item| item.from != seat || item.is_anybodys());
    let inputs = others.cloned().map(Input::Take);
    let matters =
        |input: &Input| is_due(node_states, state, input) && node_states.apply(state, input, None).is_some();
    let mut available: Vec<Input> = inputs.filter(matters).collect();
    let keys = available.iter().map(|input| input.key());
    let key = hash(&(keys.collect::<Vec<_>>(), said.of(seat)));
    if let Some(known) = locked(&state.reactions).get(&key) {
        return known.clone();
    }
    available.extend([Input::Second].into_iter().filter(matters));
    let mut search =
        Search { node_states, said, start: state, available, seen: Vec::new(), found: Vec::new() };
    match node_states.constants.bounds.takes_singly {
        false => search.extend(state, &mut Vec::new()),
        true => search.singly(),
    }
    if node_states.constants.bounds.crashes > 0 {
        search.cut_off();
    }
    let found = Arc::new(search.found);
    locked(&state.reactions).entry(key).or_insert(found).clone()
}

/// Leaves out complaints about other views, because this view has some of its own. Also leaves out those about the last
/// view, which nobody leaves.
fn is_due(node_states: &NodeStates, state: &NodeState, input: &Input) -> bool {
    let (view, last_view) = (state.node.core.view(), node_states.constants.bounds.last_view);
    match input {
        Input::Take(item) => match item.statement {
            Statement::Status { view: theirs, .. } => theirs == view && view < last_view,
            _ => true,
        },
        Input::Second | Input::Restart => true,
    }
}

impl Search<'_> {
    fn speaks(&self, transition: &Transition) -> bool {
        transition.speaks(self.said)
    }

    /// Takes every message by itself, for comparison.
    fn singly(&mut self) {
        for input in self.available.clone() {
            if let Some(transition) = self.node_states.apply(self.start, &input, None) {
                self.push(vec![input], None, transition);
            }
        }
    }

    fn extend(&mut self, state: &Arc<NodeState>, silent: &mut Vec<Input>) {
        let mut next = Vec::new();
        for input in self.available.clone() {
            let is_apart = silent.first().is_some_and(|first| first.topic() != input.topic());
            if is_apart || silent.contains(&input) {
                continue;
            }
            let Some(transition) = self.node_states.apply(state, &input, None) else { continue };
            if self.speaks(&transition) {
                if !self.may_wait(silent, &input, &transition) {
                    self.push([&silent[..], &[input]].concat(), None, transition);
                }
            } else if silent.len() < SILENT_MAX && !self.seen.contains(&transition.state.fingerprint) {
                self.seen.push(transition.state.fingerprint);
                next.push((input, transition));
            }
        }
        for (input, transition) in next {
            silent.push(input);
            self.extend(&transition.state, silent);
            silent.pop();
        }
    }

    /// The second rule: whether one of the silent messages may as well be taken afterwards.
    fn may_wait(&self, silent: &[Input], last: &Input, transition: &Transition) -> bool {
        let without = |left_out: usize| -> Option<bool> {
            let mut state = self.start.clone();
            for (_, input) in silent.iter().enumerate().filter(|(index, _)| *index != left_out) {
                if let Some(next) = self.node_states.apply(&state, input, None) {
                    if self.speaks(&next) {
                        return None;
                    }
                    state = next.state.clone();
                }
            }
            let spoken = self.node_states.apply(&state, last, None)?;
            let mut said = self.news(&spoken);
            let mut end = spoken.state.fingerprint;
            if let Some(after) = self.node_states.apply(&spoken.state, &silent[left_out], None) {
                said.extend(self.news(&after));
                end = after.state.fingerprint;
            }
            said.sort_unstable();
            said.dedup();
            Some(self.speaks(&spoken) && end == transition.state.fingerprint && said == self.news(transition))
        };
        transition.wrong.is_none() && (0..silent.len()).any(|index| without(index) == Some(true))
    }

    fn news(&self, transition: &Transition) -> Vec<u64> {
        let new = transition.said.iter().filter(|item| !self.said.contains(item.key));
        let mut keys: Vec<_> = new.map(|item| item.key).collect();
        keys.sort_unstable();
        keys
    }

    fn push(&mut self, inputs: Vec<Input>, cut: Option<CrashPoint>, transition: Arc<Transition>) {
        if transition.state.node.core.view() > self.node_states.constants.bounds.last_view {
            return;
        }
        let news = self.news(&transition);
        let is_known = |known: &Arc<Reaction>| {
            known.transition.state.fingerprint == transition.state.fingerprint
                && self.news(&known.transition) == news
        };
        if !self.found.iter().any(is_known) {
            self.found.push(Arc::new(Reaction { inputs, cut, transition }));
        }
    }

    /// Adds crashes before the next input, and in the middle of each reaction.
    fn cut_off(&mut self) {
        let whole = std::mem::take(&mut self.found);
        for reaction in &whole {
            for cut in [CrashPoint::BeforeRecord, CrashPoint::AfterRecord] {
                let Some((last, silent)) = reaction.inputs.split_last() else { continue };
                let mut state = self.start.clone();
                for input in silent {
                    if let Some(transition) = self.node_states.apply(&state, input, None) {
                        state = transition.state.clone();
                    }
                }
                if let Some(transition) = self.node_states.apply(&state, last, Some(cut)) {
                    self.push(reaction.inputs.clone(), Some(cut), transition);
                }
            }
        }
        if let Some(transition) = self.node_states.apply(self.start, &Input::Restart, None) {
            self.push(vec![Input::Restart], None, transition);
        }
        let crashes = std::mem::replace(&mut self.found, whole);
        self.found.extend(crashes);
    }
}
