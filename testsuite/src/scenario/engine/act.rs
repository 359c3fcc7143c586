//! Events of the plan, done to the nodes.

use std::{collections::BTreeSet, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use super::{
    Stage,
    blame::Cause,
    over::{By, Over},
    setup,
};
use crate::{
    devnet::{binary, die_with_parent},
    report::FaultMark,
    scenario::{
        ARCHIVE,
        model::Scenario,
        names::Place,
        plan::{Action, Event, Harm, Who},
    },
};

/// For a transaction of the owner's, or an export: where the chain stands, the first would wait forever.
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);
/// What a report says of an event that the scenario's end cuts short.
pub(super) const CUT_SHORT: &str = " (cut short by the scenario's end)";
/// Characters of a command's error that a message repeats.
const SAID_CHARS_MAX: usize = 400;

/// Whom an event hit, and its mark in the report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    place: Option<Place>,
    mark: usize,
}

impl Stage<'_> {
    /// Begins an event. What cannot be done is a finding: nothing of it has to end then, and the clock goes on.
    pub(super) async fn begin_event(&mut self, event: &Event, index: usize) -> Hit {
        let met = self.met(&event.action).await;
        let place = met.as_ref().ok().copied().flatten();
        let mut what = described(&event.action);
        if matches!(&event.action, Action::Node { harm: Harm::Upgrade(_), .. })
            && setup::is_from_itself(self.scenario, self.options)
        {
            what += " (no --program before=PATH: from itself)";
        }
        if place.is_some_and(|place| self.held.contains(place)) {
            what += " (it was down)";
        }
        if is_cut_short(self.scenario, event) {
            what += CUT_SHORT;
        }
        let node = place.map(|place| self.names.name(place).to_owned());
        let nobody = if matches!(event.action, Action::Links { .. }) { "links" } else { "the primary" };
        let told = format!("{what} {}", node.as_deref().unwrap_or(nobody));
        self.progress.step(&told);
        let mark = self.marks.len();
        self.marks.push(FaultMark { at_ms: self.elapsed_ms(), until_ms: None, what, node });
        let begun = match met {
            Ok(_) => self.act(event, index, place).await,
            Err(error) => Err(error),
        };
        match begun {
            Ok(()) => Hit { place, mark },
            Err(error) => {
                self.note_failure(Err(error.context(told)));
                // Of liars a node may have taken some before it refused one.
                let ended = self.end_lying_peers(index).await;
                self.note_failure(ended);
                self.end_excuses(index);
                Hit { place: None, mark }
            }
        }
    }

    /// Whom an event meets; none if it meets links.
    ///
    /// # Errors
    /// If it is the primary, and nobody may be that.
    async fn met(&self, action: &Action) -> Result<Option<Place>> {
        match action.whom() {
            Some(Who::Primary) => self.primary().await.map(Some),
            Some(Who::Node(place)) => Ok(Some(place)),
            None => Ok(None),
        }
    }

    async fn act(&mut self, event: &Event, index: usize, place: Option<Place>) -> Result<()> {
        let is_join = matches!(event.action, Action::Join(_));
        if let Some(place) = place.filter(|_| !is_join) {
            // Its start may have failed before it was there at all. The run goes on without it.
            self.index(place)?;
        }
        let ends = event.until_ms.is_some();
        match (&event.action, place) {
            (Action::Join(place), _) => {
                self.excuse(index, &[*place], Cause::Away);
                // The criteria are about one that does not become ready, too: the run goes on.
                let started = self.start_node(*place).await.and_then(|()| self.await_join(index, *place));
                started.with_context(|| format!("{} did not join", self.names.name(*place)))
            }
            (Action::Node { harm, .. }, Some(place)) => {
                self.excuse(index, &[place], Cause::of(harm));
                if let Harm::Twin(heard_by) = harm {
                    self.excuse(index, heard_by, Cause::Away);
                }
                self.harm(harm, place, index, ends).await?;
                if is_moment(harm, ends) {
                    self.end_excuses(index);
                }
                Ok(())
            }
            (Action::Links { pairs, shape }, _) => {
                let over = Over { by: By::Event(index), pairs: pairs.clone(), shape: *shape, ends };
                self.excuse(index, &self::ends(pairs), Cause::Away);
                if ends {
                    self::ends(pairs).into_iter().for_each(|place| self.interrupt(place));
                }
                self.lay_over(over)
            }
            (Action::LyingPeers { lie, count, .. }, Some(place)) => {
                self.begin_lying_peers(index, place, (*lie, *count)).await
            }
            (Action::Attack { name, victim }, _) => self.begin_attack(index, name, *victim).await,
            (Action::ExportSnapshot(place), _) => self.export_snapshot(*place).await,
            (Action::AddValidator(place), _) => self.change_validators("add", *place),
            (Action::RemoveValidator(place), _) => self.change_validators("remove", *place),
            (Action::Node { .. } | Action::LyingPeers { .. }, None) => Ok(()),
        }
    }

    /// Ends an event. What cannot be done is a finding, and the clock goes on.
    pub(super) async fn end_event(&mut self, event: &Event, index: usize, hit: Hit) {
        let ended = self.undo(event, index, hit).await;
        let FaultMark { what, node, .. } = &self.marks[hit.mark];
        let whom = node.as_deref().unwrap_or("links");
        let ended = ended.with_context(|| format!("the end of {what} {whom}"));
        self.note_failure(ended);
        self.end_excuses(index);
        self.marks[hit.mark].until_ms = Some(self.elapsed_ms());
    }

    async fn undo(&mut self, event: &Event, index: usize, hit: Hit) -> Result<()> {
        match (&event.action, hit.place) {
            (Action::Node { harm, .. }, Some(place)) => {
                if *harm == Harm::OldState {
                    self.excuse(index, &[place], Cause::Lies);
                }
                self.heal(harm, place, index).await
            }
            (Action::Links { pairs, .. }, _) => {
                self.take_off(By::Event(index))?;
                ends(pairs).into_iter().for_each(|place| self.was_behind(place));
                Ok(())
            }
            (Action::LyingPeers { .. }, _) => self.end_lying_peers(index).await,
            (Action::Attack { .. }, _) => self.end_attack(index),
            _ => Ok(()),
        }
    }

    /// What fails that no criterion is about is a finding, and the run goes on.
    pub(super) fn note_failure(&mut self, done: Result<()>) {
        if let Err(error) = done {
            let text = format!("{error:#}");
            self.progress.step(&text);
            self.ended.push(text);
        }
    }

    /// What others hold against these nodes, and they against others, may come from this event.
    fn excuse(&self, index: usize, places: &[Place], cause: Cause) {
        if let Some(watch) = &self.watch {
            places.iter().for_each(|place| watch.begin_excuse(index, self.names.name(*place), cause));
        }
    }

    /// From now on this event explains only what comes of what it did.
    pub(super) fn end_excuses(&self, index: usize) {
        if let Some(watch) = &self.watch {
            watch.end_excuses(index);
        }
    }

    pub(super) fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The public key of a node.
    pub(super) fn key(&self, place: Place) -> Result<String> {
        Ok(self.node(place)?.peer_address().split('@').next().unwrap_or_default().to_owned())
    }

    async fn export_snapshot(&self, place: Place) -> Result<()> {
        let archive = format!("file://{}", self.devnet.dir().join(ARCHIVE).display());
        std::fs::create_dir_all(self.devnet.dir().join(ARCHIVE))
            .context("cannot make the archive's directory")?;
        let config = self.node(place)?.config();
        command(&["snapshot", "export", "--config", text(&config)?, &archive]).await
    }
}

/// Whether an event would last longer than the scenario, as the plan has it.
pub(super) fn is_cut_short(scenario: &Scenario, event: &Event) -> bool {
    event.until_ms.is_some_and(|until_ms| until_ms > scenario.duration.ms())
}

/// Whether a harm is over once it was done: the node runs again.
pub(in crate::scenario) fn is_moment(harm: &Harm, ends: bool) -> bool {
    match harm {
        Harm::BitFlip(_) | Harm::Upgrade(_) => true,
        Harm::Restart | Harm::Wipe => !ends,
        _ => false,
    }
}

/// All nodes of these pairs, each once.
pub(super) fn ends(pairs: &[(Place, Place)]) -> Vec<Place> {
    let ends: BTreeSet<Place> = pairs.iter().flat_map(|(one, other)| [*one, *other]).collect();
    ends.into_iter().collect()
}

pub(super) fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the directory's name is not valid UTF-8")
}

/// Runs `slipstream` with these arguments; an error repeats what it said.
pub(crate) async fn command(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(binary()?);
    die_with_parent(command.as_std_mut());
    let output = command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(COMMAND_DEADLINE, output).await.with_context(|| {
        let seconds = COMMAND_DEADLINE.as_secs();
        format!("slipstream {} did not end within {seconds} s", arguments.join(" "))
    })??;
    let said: String = String::from_utf8_lossy(&output.stderr).chars().take(SAID_CHARS_MAX).collect();
    ensure!(output.status.success(), "slipstream {}: {said}", arguments.join(" "));
    Ok(())
}

/// An event as a report marks it.
pub(in crate::scenario) fn described(action: &Action) -> String {
    match action {
        Action::Join(_) => "join".to_owned(),
        Action::Node { harm: Harm::Kill, .. } => "kill".to_owned(),
        Action::Node { harm: Harm::Pause, .. } => "pause".to_owned(),
        Action::Node { harm: Harm::Restart, .. } => "restart".to_owned(),
        Action::Node { harm: Harm::Wipe, .. } => "wipe".to_owned(),
        Action::Node { harm: Harm::BitFlip(_), .. } => "bit flip".to_owned(),
        Action::Node { harm: Harm::FullDisk, .. } => "full disk".to_owned(),
        Action::Node { harm: Harm::SlowDisk(delay_ms), .. } => format!("slow disk, {delay_ms} ms a flush"),
        Action::Node { harm: Harm::ClockJump(by_ms), .. } => format!("clock jump by {} s", by_ms / 1_000),
        Action::Node { harm: Harm::Twin(_), .. } => "twin".to_owned(),
        Action::Node { harm: Harm::OldState, .. } => "old state".to_owned(),
        Action::Node { harm: Harm::Liar(lie), .. } => format!("lie {lie}"),
        Action::Node { harm: Harm::Upgrade(to), .. } => format!("upgrade to {to}"),
        Action::LyingPeers { lie, count, .. } => format!("lying peers, {count} of {}", lie.name()),
        Action::Links { shape: Some(_), .. } => "slow links".to_owned(),
        Action::Links { shape: None, .. } => "partition".to_owned(),
        Action::Attack { name, .. } => format!("attack {name}"),
        Action::ExportSnapshot(_) => "export snapshot".to_owned(),
        Action::AddValidator(_) => "add validator".to_owned(),
        Action::RemoveValidator(_) => "remove validator".to_owned(),
    }
}
