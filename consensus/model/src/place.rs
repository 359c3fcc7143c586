//! [`Place`]: a node in one of its states, with the result of every input.
//!
//! A search meets one node's state in many states of the whole. The core computes the response to an input once; after
//! that the search looks it up.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use slipstream_eve::{Ballot, Evidence, Message, SignedOrder, Timer, To};

use crate::{
    Bounds,
    ground::Ground,
    item::{Catalog, Fact, Item, Topic, hash},
    node::{Cut, Node, Told},
    react::Reaction,
    said::Said,
    wrong::{Kind, Wrong},
};

/// An event that may happen to a node.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Take(Arc<Item>),
    /// A second passes: the node's status timer fires twice, because some things follow from standing still.
    Second,
    /// It crashes, and restarts from its disk.
    Restart,
}

impl Input {
    pub(crate) fn topic(&self) -> Topic {
        match self {
            Input::Take(item) => item.fact.topic(),
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
pub(crate) struct Step {
    pub(crate) place: Arc<Place>,
    pub(crate) said: Vec<Arc<Item>>,
    pub(crate) wrong: Option<Wrong>,
    /// The honest validators that the step convicts, each by the keys of two statements. It may know one that was not
    /// said here: see [`Step::blames`].
    blamed: Vec<(u16, [u64; 2])>,
    /// Whether the step changed the disk.
    pub(crate) is_kept: bool,
}

impl Step {
    /// Whether anybody could notice the step, beyond what was said before.
    pub(crate) fn speaks(&self, said: &Said) -> bool {
        self.is_kept
            || self.wrong.is_some()
            || self.blames(said).is_some()
            || self.said.iter().any(|item| !said.contains(item.key))
    }

    /// Returns the violation, if the step convicts an honest validator. A place does not tell apart who prepared what
    /// its node committed to. So it may remember a prepare from another state, which is no evidence in this one.
    pub(crate) fn blames(&self, said: &Said) -> Option<Wrong> {
        let is_said = |keys: &[u64; 2]| keys.iter().all(|key| said.contains(*key));
        let (author, _) = self.blamed.iter().find(|(_, keys)| is_said(keys))?;
        let text = format!("{} convicts {author}, who is honest", self.place.node.seat);
        Some(Wrong::new(Kind::Convicted, text))
    }
}

type Steps = HashMap<u64, Option<Arc<Step>>>;

/// See the module.
pub(crate) struct Place {
    pub(crate) node: Node,
    pub(crate) fingerprint: u64,
    disk: u64,
    steps: Mutex<Steps>,
    pub(crate) reactions: Mutex<HashMap<u64, Arc<Vec<Arc<Reaction>>>>>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = &self.node.core;
        write!(f, "{}: view {}, decided {}", self.node.seat, core.view(), core.decided())
    }
}

/// All places that the search met, and what was said in them.
pub(crate) struct Atlas {
    pub(crate) ground: Ground,
    pub(crate) catalog: Catalog,
    places: Mutex<HashMap<u64, Arc<Place>>>,
}

impl Atlas {
    pub(crate) fn new(bounds: Bounds) -> Atlas {
        Atlas { ground: Ground::new(bounds), catalog: Catalog::default(), places: Mutex::default() }
    }

    /// The place where a node begins, and what it says then.
    pub(crate) fn begin(&self, seat: u16) -> Step {
        self.ground.plant();
        let (node, told) = Node::new(&self.ground, seat);
        self.step(node, told, 0)
    }

    /// Applies an input to a node, and a crash if `cut` names one. Returns `None` if nothing changes.
    pub(crate) fn apply(&self, place: &Place, input: &Input, cut: Option<Cut>) -> Option<Arc<Step>> {
        let key = input.key().wrapping_add(cut.map_or(0, |cut| hash(&cut)));
        if let Some(known) = locked(&place.steps).get(&key) {
            return known.clone();
        }
        let step = self.compute(place, input, cut);
        locked(&place.steps).entry(key).or_insert(step).clone()
    }

    fn compute(&self, place: &Place, input: &Input, cut: Option<Cut>) -> Option<Arc<Step>> {
        let ground = &self.ground;
        ground.plant();
        let mut node = place.node.clone();
        let told = match input {
            Input::Take(item) => {
                // A quorum's proof may come from any seat.
                let other = ground.honest.iter().find(|it| **it != node.seat);
                let from = if item.from == node.seat { *other? } else { item.from };
                node.take(ground, from, item.message.clone(), cut)
            }
            Input::Second => {
                let mut first = node.tick(ground, Timer::Tell, None);
                let second = node.tick(ground, Timer::Tell, cut);
                first.said.extend(second.said);
                first.convicted.extend(second.convicted);
                Told { wrong: first.wrong.or(second.wrong), ..first }
            }
            Input::Restart => node.restart(ground),
        };
        let step = self.step(node, told, place.disk);
        let is_silent = step.said.is_empty() && step.wrong.is_none() && step.blamed.is_empty();
        let is_inert = is_silent && step.place.fingerprint == place.fingerprint;
        (!is_inert).then(|| Arc::new(step))
    }

    fn step(&self, node: Node, told: Told, disk: u64) -> Step {
        let seat = node.seat;
        let mut said: Vec<Arc<Item>> = Vec::new();
        let all = told.said.into_iter().filter(|(to, _)| *to == To::Others).map(|(_, message)| message);
        for message in all.chain(node.asked(&self.ground)) {
            if let Some(item) = self.item(seat, message)
                && said.iter().all(|known| known.key != item.key)
            {
                said.push(item);
            }
        }
        let honest = |it: &&Evidence| Some(it.author(&self.ground.set)) != self.ground.liar;
        let blamed = told.convicted.iter().filter(honest).map(|it| self.blamed(it)).collect();
        let wrong = told.wrong.map(|text| Wrong::new(Kind::Unfounded, text));
        let place = self.place(node);
        let is_kept = place.disk != disk;
        Step { place, said, wrong, blamed, is_kept }
    }

    fn item(&self, from: u16, message: Message) -> Option<Arc<Item>> {
        let fact = Fact::of(&message, &self.ground.domain)?;
        if matches!(fact, Fact::Status { complains: false, .. }) {
            // It withdraws a complaint, or does what complaints about the views below do, which everybody makes.
            return None;
        }
        Some(self.catalog.item(&self.ground.set, from, fact, || message))
    }

    /// The author of two contradicting statements, and the keys of their items.
    fn blamed(&self, evidence: &Evidence) -> (u16, [u64; 2]) {
        let (set, domain) = (&self.ground.set, &self.ground.domain);
        let (author, (view, _)) = (evidence.author(set), evidence.place());
        let order = |signed: &SignedOrder| Fact::of(&Message::Order(signed.clone()), domain);
        let facts = match evidence {
            Evidence::Orders(orders) => orders.each_ref().map(order),
            Evidence::Prepares(_, votes) => votes.each_ref().map(|vote| Some(Fact::Prepare(vote.ballot))),
            Evidence::Commits(_, _, commits) => commits.each_ref().map(|(info, _)| {
                Some(Fact::Commit(Ballot { view, number: info.number, token: info.digest() }))
            }),
        };
        (author, facts.map(|fact| fact.map_or(0, |fact| Item::key(author, &fact, set))))
    }

    fn place(&self, node: Node) -> Arc<Place> {
        let (fingerprint, disk) = node.fingerprints(&self.ground);
        let place = || {
            let (steps, reactions) = Default::default();
            Arc::new(Place { node, fingerprint, disk, steps, reactions })
        };
        locked(&self.places).entry(fingerprint).or_insert_with(place).clone()
    }

    /// Counts the states of single nodes that the search met.
    pub(crate) fn len(&self) -> usize {
        locked(&self.places).len()
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
