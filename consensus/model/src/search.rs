//! [`Consensus`]: the states of the whole model, as `stateright` searches them.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use stateright::{Model, Property};

use crate::{
    Bounds,
    archive::{self, Archive},
    item::{Statement, hash},
    liveness,
    node::Node,
    node_state::{Input, NodeState, NodeStates, Reaction, Transition},
    reaction::reactions,
    statements::StatementSet,
    violation::{GOES_ON, Violation, ViolationKind},
};

/// The state of every honest validator, and what was said.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) node_states: Vec<Arc<NodeState>>,
    pub(crate) said: Arc<StatementSet>,
    crashes: u8,
    pub(crate) wrong: Option<Violation>,
    /// Hash of all of this.
    fingerprint: u64,
}

impl State {
    fn new(
        node_states: Vec<Arc<NodeState>>,
        said: Arc<StatementSet>,
        crashes: u8,
        wrong: Option<Violation>,
    ) -> State {
        let lowest_view = node_states.iter().map(|node_state| node_state.node.core.view()).min().unwrap_or(0);
        let all: Vec<_> = node_states.iter().map(|node_state| node_state.fingerprint).collect();
        let fingerprint = hash(&(all, said.fingerprint(lowest_view), crashes, &wrong));
        State { node_states, said, crashes, wrong, fingerprint }
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fingerprint.hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.node_states).finish()
    }
}

/// One honest validator takes messages and speaks.
#[derive(Clone)]
pub(crate) struct Action {
    index: usize,
    reaction: Arc<Reaction>,
}

impl PartialEq for Action {
    fn eq(&self, other: &Action) -> bool {
        (self.index, self.reaction.cut) == (other.index, other.reaction.cut)
            && self.reaction.inputs == other.reaction.inputs
    }
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reaction { inputs, cut, transition } = self.reaction.as_ref();
        write!(f, "{}: ", transition.state.node.seat)?;
        for (index, input) in inputs.iter().enumerate() {
            write!(f, "{}{input}", if index == 0 { "" } else { "; " })?;
        }
        if let Some(cut) = cut {
            write!(f, "; it crashes {cut} and restarts")?;
        }
        let said: Vec<_> = transition.said.iter().map(ToString::to_string).collect();
        write!(
            f,
            " -> {:?} says {}",
            transition.state,
            if said.is_empty() { "nothing".into() } else { said.join("; ") }
        )
    }
}

/// See the module.
pub(crate) struct Consensus {
    pub(crate) node_states: NodeStates,
    pub(crate) archive: Archive,
    pub(crate) lives: LivenessRuns,
}

/// The number of states from which the chain went on, and the longest time that this took.
#[derive(Default)]
pub(crate) struct LivenessRuns {
    pub(crate) tried: AtomicU64,
    pub(crate) longest_ms: AtomicU64,
    /// Set by the first state from which the chain stops: one is enough.
    has_failed: AtomicBool,
}

impl Consensus {
    pub(crate) fn new(bounds: Bounds) -> Consensus {
        Consensus {
            node_states: NodeStates::new(bounds),
            archive: Archive::default(),
            lives: LivenessRuns::default(),
        }
    }

    fn after(&self, state: &State, act: &Action) -> State {
        let transition = &act.reaction.transition;
        let mut node_states = state.node_states.clone();
        node_states[act.index] = transition.state.clone();
        let said = self.said(&state.said, transition);
        let is_crash = act.reaction.is_crash();
        let wrong =
            transition.wrong.clone().or_else(|| said.wrong.clone()).or_else(|| transition.blames(&said));
        let wrong = wrong.or_else(|| split(&node_states));
        State::new(node_states, said, state.crashes + u8::from(is_crash), wrong)
    }

    fn said(&self, said: &Arc<StatementSet>, transition: &Transition) -> Arc<StatementSet> {
        self.archive.with(&self.node_states.constants, &self.node_states.catalog, said, &transition.said)
    }

    /// Whether the bounds require that the reaction happens before anything else: an order of an honest primary
    /// arrives, or an outcome is fetched.
    fn is_prompt(&self, reaction: &Reaction) -> bool {
        let is_order = |input: &Input| match input {
            Input::Take(item) => {
                matches!(item.statement, Statement::Order { .. })
                    && Some(item.from) != self.node_states.constants.liar
            }
            Input::Second => true,
            Input::Restart => false,
        };
        self.node_states.constants.bounds.is_prompt
            && reaction.cut.is_none()
            && reaction.inputs.iter().all(is_order)
    }

    fn goes_on(&self, state: &State) -> bool {
        let every = self.node_states.constants.bounds.live_every;
        let is_known = self.lives.has_failed.load(Ordering::Relaxed);
        if every == 0 || is_known || !state.fingerprint.is_multiple_of(every) || state.wrong.is_some() {
            return true;
        }
        let nodes: Vec<Node> = state.node_states.iter().map(|node_state| node_state.node.clone()).collect();
        let Some(after_ms) = liveness::go_on(&self.node_states.constants, nodes) else {
            self.lives.has_failed.store(true, Ordering::Relaxed);
            return false;
        };
        self.lives.tried.fetch_add(1, Ordering::Relaxed);
        self.lives.longest_ms.fetch_max(after_ms, Ordering::Relaxed);
        true
    }
}

/// The violation, if two validators committed different batches of one number.
fn split(node_states: &[Arc<NodeState>]) -> Option<Violation> {
    let chains = || node_states.iter().map(|node_state| node_state.node.chain());
    let longest = chains().max_by_key(|chain| chain.len())?;
    let is_apart = chains().any(|chain| !longest.starts_with(chain));
    is_apart
        .then(|| Violation::new(ViolationKind::Forked, "two validators committed different batches".into()))
}

impl Model for Consensus {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut said = Arc::new(archive::before_any(&self.node_states.constants, &self.node_states.catalog));
        let mut node_states = Vec::new();
        for seat in &self.node_states.constants.honest {
            let transition = self.node_states.begin(*seat);
            said = self.said(&said, &transition);
            node_states.push(transition.state);
        }
        vec![State::new(node_states, said, 0, None)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_some() {
            return;
        }
        let may_crash = state.crashes < self.node_states.constants.bounds.crashes;
        for (index, node_state) in state.node_states.iter().enumerate() {
            let all = reactions(&self.node_states, node_state, &state.said);
            if let Some(reaction) = all.iter().find(|it| self.is_prompt(it)) {
                actions.clear();
                actions.push(Action { index, reaction: reaction.clone() });
                return;
            }
            let may_be = |reaction: &&Arc<Reaction>| may_crash || !reaction.is_crash();
            actions.extend(all.iter().filter(may_be).map(|it| Action { index, reaction: it.clone() }));
        }
    }

    fn next_state(&self, state: &State, act: Action) -> Option<State> {
        Some(self.after(state, &act))
    }

    fn properties(&self) -> Vec<Property<Consensus>> {
        fn lacks(state: &State, kind: ViolationKind) -> bool {
            state.wrong.as_ref().is_none_or(|wrong| wrong.kind != kind)
        }
        // A property is a plain function: each kind has its own.
        let always = |kind: ViolationKind, holds: fn(&Consensus, &State) -> bool| {
            Property::always(kind.property(), holds)
        };
        vec![
            always(ViolationKind::Forked, |_, state| lacks(state, ViolationKind::Forked)),
            always(ViolationKind::Unfounded, |_, state| lacks(state, ViolationKind::Unfounded)),
            always(ViolationKind::TwoFaced, |_, state| lacks(state, ViolationKind::TwoFaced)),
            always(ViolationKind::Convicted, |_, state| lacks(state, ViolationKind::Convicted)),
            always(ViolationKind::Forgotten, |_, state| lacks(state, ViolationKind::Forgotten)),
            always(ViolationKind::Lost, |_, state| lacks(state, ViolationKind::Lost)),
            Property::always(GOES_ON, |model: &Consensus, state| model.goes_on(state)),
        ]
    }
}
