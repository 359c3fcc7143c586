//! [`Consensus`]: the states of the whole, as `stateright` searches them.

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
    item::{Fact, hash},
    live,
    node::Node,
    place::{Atlas, Input, Place, Step},
    react::{Reaction, reactions},
    said::{Archive, Said},
    wrong::{GOES_ON, Kind, Wrong},
};

/// The place of every honest validator, and what was said.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) places: Vec<Arc<Place>>,
    pub(crate) said: Arc<Said>,
    crashes: u8,
    pub(crate) wrong: Option<Wrong>,
    /// Hash of all of this.
    fingerprint: u64,
}

impl State {
    fn new(places: Vec<Arc<Place>>, said: Arc<Said>, crashes: u8, wrong: Option<Wrong>) -> State {
        let lowest_view = places.iter().map(|place| place.node.core.view()).min().unwrap_or(0);
        let all: Vec<_> = places.iter().map(|place| place.fingerprint).collect();
        let fingerprint = hash(&(all, said.fingerprint(lowest_view), crashes, &wrong));
        State { places, said, crashes, wrong, fingerprint }
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
        f.debug_list().entries(&self.places).finish()
    }
}

/// One honest validator takes messages and speaks.
#[derive(Clone)]
pub(crate) struct Act {
    index: usize,
    reaction: Arc<Reaction>,
}

impl PartialEq for Act {
    fn eq(&self, other: &Act) -> bool {
        (self.index, self.reaction.cut) == (other.index, other.reaction.cut)
            && self.reaction.inputs == other.reaction.inputs
    }
}

impl fmt::Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reaction { inputs, cut, step } = self.reaction.as_ref();
        write!(f, "{}: ", step.place.node.seat)?;
        for (index, input) in inputs.iter().enumerate() {
            write!(f, "{}{input}", if index == 0 { "" } else { "; " })?;
        }
        if let Some(cut) = cut {
            write!(f, "; it crashes {cut} and restarts")?;
        }
        let said: Vec<_> = step.said.iter().map(ToString::to_string).collect();
        write!(
            f,
            " -> {:?} says {}",
            step.place,
            if said.is_empty() { "nothing".into() } else { said.join("; ") }
        )
    }
}

/// See the module.
pub(crate) struct Consensus {
    pub(crate) atlas: Atlas,
    pub(crate) archive: Archive,
    pub(crate) lives: Lives,
}

/// The number of states from which the chain went on, and the longest time that this took.
#[derive(Default)]
pub(crate) struct Lives {
    pub(crate) tried: AtomicU64,
    pub(crate) longest_ms: AtomicU64,
    /// Set by the first state from which the chain stops: one is enough.
    has_failed: AtomicBool,
}

impl Consensus {
    pub(crate) fn new(bounds: Bounds) -> Consensus {
        Consensus { atlas: Atlas::new(bounds), archive: Archive::default(), lives: Lives::default() }
    }

    fn after(&self, state: &State, act: &Act) -> State {
        let step = &act.reaction.step;
        let mut places = state.places.clone();
        places[act.index] = step.place.clone();
        let said = self.said(&state.said, step);
        let is_crash = act.reaction.is_crash();
        let wrong = step.wrong.clone().or_else(|| said.wrong.clone()).or_else(|| step.blames(&said));
        let wrong = wrong.or_else(|| split(&places));
        State::new(places, said, state.crashes + u8::from(is_crash), wrong)
    }

    fn said(&self, said: &Arc<Said>, step: &Step) -> Arc<Said> {
        self.archive.with(&self.atlas.ground, &self.atlas.catalog, said, &step.said)
    }

    /// Whether the bounds require that it happens before anything else: an order of an honest primary arrives, or an
    /// outcome is fetched.
    fn is_prompt(&self, reaction: &Reaction) -> bool {
        let is_order = |input: &Input| match input {
            Input::Take(item) => {
                matches!(item.fact, Fact::Order { .. }) && Some(item.from) != self.atlas.ground.liar
            }
            Input::Second => true,
            Input::Restart => false,
        };
        self.atlas.ground.bounds.is_prompt && reaction.cut.is_none() && reaction.inputs.iter().all(is_order)
    }

    fn goes_on(&self, state: &State) -> bool {
        let every = self.atlas.ground.bounds.live_every;
        let is_known = self.lives.has_failed.load(Ordering::Relaxed);
        if every == 0 || is_known || !state.fingerprint.is_multiple_of(every) || state.wrong.is_some() {
            return true;
        }
        let nodes: Vec<Node> = state.places.iter().map(|place| place.node.clone()).collect();
        let Some(after_ms) = live::go_on(&self.atlas.ground, nodes) else {
            self.lives.has_failed.store(true, Ordering::Relaxed);
            return false;
        };
        self.lives.tried.fetch_add(1, Ordering::Relaxed);
        self.lives.longest_ms.fetch_max(after_ms, Ordering::Relaxed);
        true
    }
}

/// The violation, if two validators committed different batches of one number.
fn split(places: &[Arc<Place>]) -> Option<Wrong> {
    let chains = || places.iter().map(|place| place.node.chain());
    let longest = chains().max_by_key(|chain| chain.len())?;
    let is_apart = chains().any(|chain| !longest.starts_with(chain));
    is_apart.then(|| Wrong::new(Kind::Forked, "two validators committed different batches".into()))
}

impl Model for Consensus {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let mut said = Arc::new(Said::nothing(&self.atlas.ground, &self.atlas.catalog));
        let mut places = Vec::new();
        for seat in &self.atlas.ground.honest {
            let step = self.atlas.begin(*seat);
            said = self.said(&said, &step);
            places.push(step.place);
        }
        vec![State::new(places, said, 0, None)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Act>) {
        if state.wrong.is_some() {
            return;
        }
        let may_crash = state.crashes < self.atlas.ground.bounds.crashes;
        for (index, place) in state.places.iter().enumerate() {
            let all = reactions(&self.atlas, place, &state.said);
            if let Some(reaction) = all.iter().find(|it| self.is_prompt(it)) {
                actions.clear();
                actions.push(Act { index, reaction: reaction.clone() });
                return;
            }
            let may_be = |reaction: &&Arc<Reaction>| may_crash || !reaction.is_crash();
            actions.extend(all.iter().filter(may_be).map(|it| Act { index, reaction: it.clone() }));
        }
    }

    fn next_state(&self, state: &State, act: Act) -> Option<State> {
        Some(self.after(state, &act))
    }

    fn properties(&self) -> Vec<Property<Consensus>> {
        fn lacks(state: &State, kind: Kind) -> bool {
            state.wrong.as_ref().is_none_or(|wrong| wrong.kind != kind)
        }
        // A property is a plain function: each kind has its own.
        let always =
            |kind: Kind, holds: fn(&Consensus, &State) -> bool| Property::always(kind.property(), holds);
        vec![
            always(Kind::Forked, |_, state| lacks(state, Kind::Forked)),
            always(Kind::Unfounded, |_, state| lacks(state, Kind::Unfounded)),
            always(Kind::TwoFaced, |_, state| lacks(state, Kind::TwoFaced)),
            always(Kind::Convicted, |_, state| lacks(state, Kind::Convicted)),
            always(Kind::Forgotten, |_, state| lacks(state, Kind::Forgotten)),
            always(Kind::Lost, |_, state| lacks(state, Kind::Lost)),
            Property::always(GOES_ON, |model: &Consensus, state| model.goes_on(state)),
        ]
    }
}

impl Reaction {
    fn is_crash(&self) -> bool {
        self.cut.is_some() || self.inputs.last() == Some(&Input::Restart)
    }
}
