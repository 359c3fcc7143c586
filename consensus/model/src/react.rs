//! [`Reaction`]: messages that make a node speak.
//!
//! Most messages only wait in a core until others arrive: a vote until there is a quorum. Taken one by one they would
//! multiply the states by every set of votes that anybody may have. Three rules leave most of that out, and nothing
//! observable:
//!
//! 1. *Silence waits.* A message that a core takes without saying, recording or executing anything changes that core
//!    alone. Said messages stay available, so the core may as well take it right before the next message that makes it
//!    speak. A step of the search is therefore some silent messages and one that breaks the silence. Messages that
//!    never make a core speak stay untaken.
//! 2. *What does not matter now comes later.* Suppose the core says the same without one of the silent messages, and reaches the same state
//!    by taking it afterwards. Then the step without it suffices. The search tries this on the core for each step.
//! 3. *Topics.* Silent messages and the one that breaks the silence are all about one batch, or all about views, or all orders. At
//!    most [`SILENT_MAX`] are silent.
//!
//! The third rule is a bound, not a theorem. It allows a quorum of votes with the outcome that they are on. A test
//! compares the search with one that takes every message by itself.

use std::sync::Arc;

use crate::{
    item::{Fact, hash},
    node::Cut,
    place::{Atlas, Input, Place, Step, locked},
    said::Said,
};

/// Maximum number of messages that a core takes in silence before one that makes it speak. A quorum is three of four, one of them
/// its own.
pub(crate) const SILENT_MAX: usize = 3;

/// Inputs of one node, the last of which makes it speak.
#[derive(Debug)]
pub(crate) struct Reaction {
    pub(crate) inputs: Vec<Input>,
    pub(crate) cut: Option<Cut>,
    pub(crate) step: Arc<Step>,
}

/// The search for one node's ways from silence to silence.
struct Search<'a> {
    atlas: &'a Atlas,
    said: &'a Said,
    start: &'a Arc<Place>,
    available: Vec<Input>,
    seen: Vec<u64>,
    found: Vec<Arc<Reaction>>,
}

/// Returns all reactions of a node to what was said, in an order that depends on nothing else.
pub(crate) fn reactions(atlas: &Atlas, place: &Arc<Place>, said: &Said) -> Arc<Vec<Arc<Reaction>>> {
    let seat = place.node.seat;
    let others = said.items().chain(said.menu()).filter(|item| item.from != seat || item.is_anybodys());
    let inputs = others.cloned().map(Input::Take);
    let matters = |input: &Input| is_due(atlas, place, input) && atlas.apply(place, input, None).is_some();
    let mut available: Vec<Input> = inputs.filter(matters).collect();
    let keys = available.iter().map(|input| input.key());
    let key = hash(&(keys.collect::<Vec<_>>(), said.of(seat)));
    if let Some(known) = locked(&place.reactions).get(&key) {
        return known.clone();
    }
    available.extend([Input::Second].into_iter().filter(matters));
    let mut search = Search { atlas, said, start: place, available, seen: Vec::new(), found: Vec::new() };
    match atlas.ground.bounds.takes_singly {
        false => search.extend(place, &mut Vec::new()),
        true => search.singly(),
    }
    if atlas.ground.bounds.crashes > 0 {
        search.cut_off();
    }
    let found = Arc::new(search.found);
    locked(&place.reactions).entry(key).or_insert(found).clone()
}

/// Leaves out complaints about other views, because this view has some of its own. Also leaves out those about the last
/// view, which nobody leaves.
fn is_due(atlas: &Atlas, place: &Place, input: &Input) -> bool {
    let (view, last_view) = (place.node.core.view(), atlas.ground.bounds.last_view);
    match input {
        Input::Take(item) => match item.fact {
            Fact::Status { view: theirs, .. } => theirs == view && view < last_view,
            _ => true,
        },
        Input::Second | Input::Restart => true,
    }
}

impl Search<'_> {
    fn speaks(&self, step: &Step) -> bool {
        step.speaks(self.said)
    }

    /// Takes every message by itself, for comparison.
    fn singly(&mut self) {
        for input in self.available.clone() {
            if let Some(step) = self.atlas.apply(self.start, &input, None) {
                self.push(vec![input], None, step);
            }
        }
    }

    fn extend(&mut self, place: &Arc<Place>, silent: &mut Vec<Input>) {
        let mut next = Vec::new();
        for input in self.available.clone() {
            let is_apart = silent.first().is_some_and(|first| first.topic() != input.topic());
            if is_apart || silent.contains(&input) {
                continue;
            }
            let Some(step) = self.atlas.apply(place, &input, None) else { continue };
            if self.speaks(&step) {
                if !self.may_wait(silent, &input, &step) {
                    self.push([&silent[..], &[input]].concat(), None, step);
                }
            } else if silent.len() < SILENT_MAX && !self.seen.contains(&step.place.fingerprint) {
                self.seen.push(step.place.fingerprint);
                next.push((input, step));
            }
        }
        for (input, step) in next {
            silent.push(input);
            self.extend(&step.place, silent);
            silent.pop();
        }
    }

    /// The second rule: whether one of the silent messages may as well be taken afterwards.
    fn may_wait(&self, silent: &[Input], last: &Input, step: &Step) -> bool {
        let without = |left_out: usize| -> Option<bool> {
            let mut place = self.start.clone();
            for (_, input) in silent.iter().enumerate().filter(|(index, _)| *index != left_out) {
                if let Some(next) = self.atlas.apply(&place, input, None) {
                    if self.speaks(&next) {
                        return None;
                    }
                    place = next.place.clone();
                }
            }
            let spoken = self.atlas.apply(&place, last, None)?;
            let mut said = self.news(&spoken);
            let mut end = spoken.place.fingerprint;
            if let Some(after) = self.atlas.apply(&spoken.place, &silent[left_out], None) {
                said.extend(self.news(&after));
                end = after.place.fingerprint;
            }
            said.sort_unstable();
            said.dedup();
            Some(self.speaks(&spoken) && end == step.place.fingerprint && said == self.news(step))
        };
        step.wrong.is_none() && (0..silent.len()).any(|index| without(index) == Some(true))
    }

    fn news(&self, step: &Step) -> Vec<u64> {
        let new = step.said.iter().filter(|item| !self.said.contains(item.key));
        let mut keys: Vec<_> = new.map(|item| item.key).collect();
        keys.sort_unstable();
        keys
    }

    fn push(&mut self, inputs: Vec<Input>, cut: Option<Cut>, step: Arc<Step>) {
        if step.place.node.core.view() > self.atlas.ground.bounds.last_view {
            return;
        }
        let news = self.news(&step);
        let is_known = |known: &Arc<Reaction>| {
            known.step.place.fingerprint == step.place.fingerprint && self.news(&known.step) == news
        };
        if !self.found.iter().any(is_known) {
            self.found.push(Arc::new(Reaction { inputs, cut, step }));
        }
    }

    /// Adds crashes before the next input, and in the middle of each reaction.
    fn cut_off(&mut self) {
        let whole = std::mem::take(&mut self.found);
        for reaction in &whole {
            for cut in [Cut::BeforeRecord, Cut::AfterRecord] {
                let Some((last, silent)) = reaction.inputs.split_last() else { continue };
                let mut place = self.start.clone();
                for input in silent {
                    if let Some(step) = self.atlas.apply(&place, input, None) {
                        place = step.place.clone();
                    }
                }
                if let Some(step) = self.atlas.apply(&place, last, Some(cut)) {
                    self.push(reaction.inputs.clone(), Some(cut), step);
                }
            }
        }
        if let Some(step) = self.atlas.apply(self.start, &Input::Restart, None) {
            self.push(vec![Input::Restart], None, step);
        }
        let crashes = std::mem::replace(&mut self.found, whole);
        self.found.extend(crashes);
    }
}
