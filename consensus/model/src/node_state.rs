//! [`NodeState`]: a node in one of its states, with the result of every input.
//!
//! A search meets one node's state in many states of the whole model. The core computes the response to an input once;
//! after that the search looks it up.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
};

use slipstream_eve::{Ballot, Evidence, Message, Receivers, SignedOrder, Timer};

use crate::{
    Bounds,
    constants::Constants,
    item::{Catalog, Item, Statement, Topic, hash},
    memo::locked,
    node::{CrashPoint, Node, NodeOutput},
    statements::StatementSet,
    violation::{Violation, ViolationKind},
};

/// An event that may happen to a node.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Take(Arc<Item>),
    /// A second passes: the node's status timer fires twice, because some effects need a whole tick without progress.
    Second,
    /// It crashes, and restarts from its disk.
    Restart,
}

impl Input {
    pub(crate) fn topic(&self) -> Topic {
        match self {
            Input::Take(item) => item.statement.topic(),
            Input::Second | Input::Restart => Topic::Views,
        }
    }

    pub(crate) fn key(&self) -> u64 {
        match self {
            Input::Take(item) => item.key,
            Input::Second => 2,
            Input::Restart => 3,
        }
    }
}

impl PartialEq for Input {
    fn eq(&self, other: &Input) -> bool {
        self.key() == other.key()
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Take(item) => write!(f, "{item}"),
            Input::Second => f.write_str("a second passes"),
            Input::Restart => f.write_str("it restarts"),
        }
    }
}

/// The result of one input.
#[derive(Debug)]
pub(crate) struct Transition {
    pub(crate) state: Arc<NodeState>,
    pub(crate) said: Vec<Arc<Item>>,
    pub(crate) wrong: Option<Violation>,
    /// The honest validators that the transition convicts, each by the keys of two statements. A statement may be one
    /// that was not said here: see [`Transition::blames`].
    blamed: Vec<(u16, [u64; 2])>,
    /// Whether the transition changed the disk.
    pub(crate) is_kept: bool,
}

impl Transition {
    /// Whether anybody could notice the transition, beyond what was said before.
    pub(crate) fn speaks(&self, said: &StatementSet) -> bool {
        self.is_kept
            || self.wrong.is_some()
            || self.blames(said).is_some()
            || self.said.iter().any(|item| !said.contains(item.key))
    }

    /// Returns the violation, if the transition convicts an honest validator. A node's state does not distinguish who
    /// prepared the outcome that the node committed to. So the state may contain a prepare from another state of the
    /// model, which is no evidence in this one.
    pub(crate) fn blames(&self, said: &StatementSet) -> Option<Violation> {
        let is_said = |keys: &[u64; 2]| keys.iter().all(|key| said.contains(*key));
        let (author, _) = self.blamed.iter().find(|(_, keys)| is_said(keys))?;
        let text = format!("{} convicts {author}, who is honest", self.state.node.seat);
        Some(Violation::new(ViolationKind::Convicted, text))
    }
}

/// Inputs of one node, the last of which makes it speak.
#[derive(Debug)]
pub(crate) struct Reaction {
    pub(crate) inputs: Vec<Input>,
    pub(crate) cut: Option<CrashPoint>,
    pub(crate) transition: Arc<Transition>,
}

impl Reaction {
    /// Whether the node crashes in it.
    pub(crate) fn is_crash(&self) -> bool {
        self.cut.is_some() || self.inputs.last() == Some(&Input::Restart)
    }
}

type Transitions = HashMap<u64, Option<Arc<Transition>>>;

/// See the module.
pub(crate) struct NodeState {
    pub(crate) node: Node,
    pub(crate) fingerprint: u64,
    disk: u64,
    transitions: Mutex<Transitions>,
    pub(crate) reactions: Mutex<HashMap<u64, Arc<Vec<Arc<Reaction>>>>>,
}

impl fmt::Debug for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = &self.node.core;
        write!(f, "{}: view {}, decided {}", self.node.seat, core.view(), core.decided())
    }
}

/// All states that the search met, and what was said in them.
pub(crate) struct NodeStates {
    pub(crate) constants: Constants,
    pub(crate) catalog: Catalog,
    states: Mutex<HashMap<u64, Arc<NodeState>>>,
}

impl NodeStates {
    pub(crate) fn new(bounds: Bounds) -> NodeStates {
        NodeStates {
            constants: Constants::new(bounds),
            catalog: Catalog::default(),
            states: Mutex::default(),
        }
    }

    /// The state where a node begins, and what it says then.
    pub(crate) fn begin(&self, seat: u16) -> Transition {
        self.constants.plant();
        let (node, output) = Node::new(&self.constants, seat);
        self.transition(node, output, 0)
    }

    /// Applies an input to a node, and a crash if `cut` names one. Returns `None` if nothing changes.
    pub(crate) fn apply(
        &self,
        state: &NodeState,
        input: &Input,
        cut: Option<CrashPoint>,
    ) -> Option<Arc<Transition>> {
        let key = input.key().wrapping_add(cut.map_or(0, |cut| hash(&cut)));
        if let Some(known) = locked(&state.transitions).get(&key) {
            return known.clone();
        }
        let transition = self.compute(state, input, cut);
        locked(&state.transitions).entry(key).or_insert(transition).clone()
    }

    fn compute(&self, state: &NodeState, input: &Input, cut: Option<CrashPoint>) -> Option<Arc<Transition>> {
        let constants = &self.constants;
        constants.plant();
        let mut node = state.node.clone();
        let output = match input {
            Input::Take(item) => {
                // A quorum's proof may come from any seat.
                let other = constants.honest.iter().find(|it| **it != node.seat);
                let from = if item.from == node.seat { *other? } else { item.from };
                node.take(constants, from, item.message.clone(), cut)
            }
            Input::Second => {
                let mut first = node.tick(constants, Timer::Tell, None);
                let second = node.tick(constants, Timer::Tell, cut);
                first.said.extend(second.said);
                first.convicted.extend(second.convicted);
                NodeOutput { wrong: first.wrong.or(second.wrong), ..first }
            }
            Input::Restart => node.restart(constants),
        };
        let transition = self.transition(node, output, state.disk);
        let is_silent =
            transition.said.is_empty() && transition.wrong.is_none() && transition.blamed.is_empty();
        let is_inert = is_silent && transition.state.fingerprint == state.fingerprint;
        (!is_inert).then(|| Arc::new(transition))
    }

    fn transition(&self, node: Node, output: NodeOutput, disk: u64) -> Transition {
        let seat = node.seat;
        let mut said: Vec<Arc<Item>> = Vec::new();
        let all =
            output.said.into_iter().filter(|(to, _)| *to == Receivers::Others).map(|(_, message)| message);
        for message in all.chain(node.asked(&self.constants)) {
            if let Some(item) = self.item(seat, message)
                && said.iter().all(|known| known.key != item.key)
            {
                said.push(item);
            }
        }
        let honest = |it: &&Evidence| Some(it.author(&self.constants.set)) != self.constants.liar;
        let blamed = output.convicted.iter().filter(honest).map(|it| self.blamed(it)).collect();
        let wrong = output.wrong.map(|text| Violation::new(ViolationKind::Unfounded, text));
        let state = self.state(node);
        let is_kept = state.disk != disk;
        Transition { state, said, wrong, blamed, is_kept }
    }

    fn item(&self, from: u16, message: Message) -> Option<Arc<Item>> {
        let statement = Statement::of(&message, &self.constants.domain)?;
        if matches!(statement, Statement::Status { complains: false, .. }) {
            // The status withdraws a complaint, or has the effect of complaints about lower views, which every
            // validator makes.
            return None;
        }
        Some(self.catalog.item(&self.constants.set, from, statement, || message))
    }

    /// The author of two contradicting statements, and the keys of their items.
    fn blamed(&self, evidence: &Evidence) -> (u16, [u64; 2]) {
        let (set, domain) = (&self.constants.set, &self.constants.domain);
        let (author, (view, _)) = (evidence.author(set), evidence.place());
        let order = |signed: &SignedOrder| Statement::of(&Message::Order(signed.clone()), domain);
        let statements = match evidence {
            Evidence::Orders(orders) => orders.each_ref().map(order),
            Evidence::Prepares(_, votes) => {
                votes.each_ref().map(|vote| Some(Statement::Prepare(vote.ballot)))
            }
            Evidence::Commits(_, _, commits) => commits.each_ref().map(|(info, _)| {
                Some(Statement::Commit(Ballot { view, number: info.number, token: info.digest() }))
            }),
        };
        (
            author,
            statements.map(|statement| statement.map_or(0, |statement| Item::key(author, &statement, set))),
        )
    }

    fn state(&self, node: Node) -> Arc<NodeState> {
        let (fingerprint, disk) = node.fingerprints(&self.constants);
        let state = || {
            let (transitions, reactions) = Default::default();
            Arc::new(NodeState { node, fingerprint, disk, transitions, reactions })
        };
        locked(&self.states).entry(fingerprint).or_insert_with(state).clone()
    }

    /// Counts the states of single nodes that the search met.
    pub(crate) fn len(&self) -> usize {
        locked(&self.states).len()
    }
}
