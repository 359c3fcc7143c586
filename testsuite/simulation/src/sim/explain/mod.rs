//! `slipnet explain SEED`: a simulated run as a timeline that a person can read: who lied, what each node thought, why it stood.
//!
//! ```text
//!  World ─▶ Trace ── note (routine), mark, tell ──▶ Recording ─┐
//!    └─▶ each node's status, when it changes ─────────────────┤
//!                                                              └─▶ Explained ─▶ text, HTML
//! ```
//!
//! A run that is explained is the run that failed: recording draws nothing from the seed and stays out of the digest.

mod html;
mod text;
mod think;

use std::{collections::VecDeque, fmt, path::PathBuf, str::FromStr, time::Duration};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use slipnet::output;
use slipstream_sync::Planted;

use super::{Scenario, validators, world::World};

pub(super) use think::Thoughts;

/// Events that a timeline holds; a page of more cannot be read. The first ones are kept: later ones follow from them.
const EVENTS_MAX: usize = 20_000;
/// Routine events that are kept: the last ones, which lead to the failure.
const ROUTINE_MAX: usize = 400;

/// The kind of a timeline's event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Requests, answers and jobs, of which a run has thousands.
    Routine,
    /// Faults: processes, power, connections, the end of all trouble.
    World,
    /// Something false was sent.
    Lie,
    /// A node's work, or its reason, changed.
    Thought,
    /// A node will not talk to a peer any more.
    Ban,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Routine => "routine",
            Kind::World => "fault",
            Kind::Lie => "lie",
            Kind::Thought => "thought",
            Kind::Ban => "ban",
        }
    }
}

/// One event of a timeline.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// Virtual microseconds since the world began.
    at: u64,
    kind: Kind,
    pub(super) text: String,
    /// Routine events since the one before.
    folded: u64,
}

/// The part of a trace that is for a reader.
#[derive(Debug, Default)]
pub(super) struct Recording {
    /// In their order; routine is folded.
    pub(super) events: Vec<Event>,
    /// The last routine events.
    routine: VecDeque<Event>,
    /// Routine events since the last one that is kept.
    folded: u64,
    /// Events that found no room.
    left_out: u64,
}

impl Recording {
    pub(super) fn add(&mut self, at: u64, kind: Kind, text: String) {
        if kind == Kind::Routine {
            self.folded += 1;
            if self.routine.len() >= ROUTINE_MAX {
                self.routine.pop_front();
            }
            self.routine.push_back(Event { at, kind, text, folded: 0 });
        } else if self.events.len() < EVENTS_MAX {
            let folded = std::mem::take(&mut self.folded);
            self.events.push(Event { at, kind, text, folded });
        } else {
            self.left_out += 1;
        }
    }
}

/// How a node stood when the run ended.
#[derive(Clone, Debug)]
pub(super) struct Stand {
    /// The node, and its work.
    pub(super) what: String,
    /// How far it is, since when, and the thing that it waits for.
    pub(super) facts: Vec<String>,
    /// Each peer as the node sees it, and what it is.
    pub(super) peers: Vec<String>,
}

/// One run with its explanation.
#[derive(Debug)]
pub struct Explained {
    /// The seed and the kind of its world.
    pub(super) title: String,
    /// The fault that an oracle found.
    pub(super) failure: Option<String>,
    /// The virtual time of the run.
    pub(super) took: Duration,
    /// The participants, each with its real habit.
    pub(super) cast: Vec<String>,
    pub(super) stands: Vec<Stand>,
    pub(super) recording: Recording,
}

/// What `slipnet explain` is given.
#[derive(Clone, Debug, Args)]
pub struct ExplainOptions {
    /// The seed, as the failed run printed it.
    pub seed: u64,
    /// The scenario, as the failed run printed it; without it the one that the seed picks.
    #[arg(long, value_enum)]
    pub scenario: Option<Scenario>,
    /// The seed is one of `slipnet sim validators`.
    #[arg(long, conflicts_with = "scenario")]
    pub validators: bool,
    /// Also write the timeline to this file, as one HTML page.
    #[arg(long)]
    pub html: Option<PathBuf>,
    /// Leave one defence out, as the failed run did.
    #[arg(long, hide = true)]
    pub planted: Option<String>,
}

impl ExplainOptions {
    /// Runs the seed again and tells what happened.
    ///
    /// # Errors
    /// If the world cannot be built, or the output cannot be written. A failed run is no error: it is the subject.
    pub fn run(&self) -> Result<()> {
        let explained = match self.validators {
            true => validators::explain(self.seed, planted(self.planted.as_deref())?)?,
            false => explain(self.seed, self.scenario, planted(self.planted.as_deref())?)?,
        };
        if let Some(path) = &self.html {
            std::fs::write(path, explained.to_html())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        output::print(&explained.to_string())
    }
}

/// The defence of this name, of either simulation.
fn planted<T: FromStr<Err: fmt::Display>>(name: Option<&str>) -> Result<Option<T>> {
    name.map(|name| name.parse::<T>().map_err(|error| anyhow!("--planted {name}: {error}"))).transpose()
}

/// Runs one seed again and keeps the parts that a person needs to understand it.
///
/// # Errors
/// If the world cannot be built.
pub fn explain(seed: u64, scenario: Option<Scenario>, planted: Option<Planted>) -> Result<Explained> {
    let scenario = scenario.unwrap_or_else(|| Scenario::of(seed));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    pool.install(|| -> Result<Explained> {
        let mut world = World::new(scenario, seed, planted, false)?;
        world.trace.record();
        let cast = world.cast();
        let (done, outcome) = world.run();
        Ok(Explained {
            title: format!("seed {seed}, scenario {scenario:?}"),
            failure: done.err().map(|error| format!("{error:#}")),
            took: outcome.took,
            cast,
            stands: outcome.stands,
            recording: outcome.recording.unwrap_or_default(),
        })
    })
}

impl Explained {
    /// The fault that an oracle found; `None` if the run went well.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn verdict(&self) -> String {
        let seconds = self.took.as_secs_f64();
        match &self.failure {
            Some(failure) => format!("failed after {seconds:.3} s: {failure}"),
            None => format!("nothing found in {seconds:.3} s"),
        }
    }
}
