//! `slipnet explain SEED`: a simulated run as a timeline for a person: which peers lied, what each node did and why,
//! where it stood still.
//!
//! ```text
//!  World ─▶ Trace ── note (routine), mark, tell ──▶ Recording ─┐
//!    └─▶ each node's status, when it changes ─────────────────┤
//!                                                              └─▶ Explained ─▶ text, HTML
//! ```
//!
//! An explained run is the run that failed: recording draws nothing from the seed and stays out of the digest.

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

/// The most events of a timeline; a longer page is unreadable. The first events are kept, because later events follow
/// from them.
const EVENTS_MAX: usize = 20_000;
/// The number of routine events that are kept: the last ones, which lead to the failure.
const ROUTINE_MAX: usize = 400;

/// The kind of a timeline's event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Requests, answers and jobs; a run has thousands.
    Routine,
    /// Faults: processes, power, connections, the end of all faults.
    World,
    /// Something false was sent.
    Lie,
    /// A node changed its work, or its reason.
    Thought,
    /// A node banned a peer.
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
    /// The number of routine events left out since the previous event.
    folded: u64,
}

/// The part of a trace that is for a reader.
#[derive(Debug, Default)]
pub(super) struct Recording {
    /// The events in order, without routine ones.
    pub(super) events: Vec<Event>,
    /// The last routine events.
    routine: VecDeque<Event>,
    /// Routine events since the last kept event.
    folded: u64,
    /// Events beyond the limit.
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

/// A node's state when the run ended.
#[derive(Clone, Debug)]
pub(super) struct EndState {
    /// The node's name, and its current work.
    pub(super) what: String,
    /// Its head, since when, and what it waits for.
    pub(super) facts: Vec<String>,
    /// Each peer as the node sees it, with its real habit.
    pub(super) peers: Vec<String>,
}

/// One run with its explanation.
#[derive(Debug)]
pub struct Explained {
    /// The seed and its scenario.
    pub(super) title: String,
    /// The fault that an oracle found; `None` if the run went well.
    pub(super) failure: Option<String>,
    /// The virtual time of the run.
    pub(super) took: Duration,
    /// The participants, each with its real habit.
    pub(super) cast: Vec<String>,
    pub(super) stands: Vec<EndState>,
    pub(super) recording: Recording,
}

/// The arguments of `slipnet explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainOptions {
    /// The seed, as the failed run printed it.
    pub seed: u64,
    /// The scenario, as the failed run printed it; by default the one that the seed picks.
    #[arg(long, value_enum)]
    pub scenario: Option<Scenario>,
    /// The seed is one of `slipnet sim validators`.
    #[arg(long, conflicts_with = "scenario")]
    pub validators: bool,
    /// Also write the timeline to this file, as one HTML page.
    #[arg(long)]
    pub html: Option<PathBuf>,
    /// Disable one defence, as the failed run did.
    #[arg(long, hide = true)]
    pub planted: Option<String>,
}

impl ExplainOptions {
    /// Runs the seed again and prints what happened.
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

/// Parses the name of a defence, of either simulation.
fn planted<T: FromStr<Err: fmt::Display>>(name: Option<&str>) -> Result<Option<T>> {
    name.map(|name| name.parse::<T>().map_err(|error| anyhow!("--planted {name}: {error}"))).transpose()
}

/// Runs one seed again and records what a person needs to understand it.
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
    /// Returns the fault that an oracle found; `None` if the run went well.
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
