//! Applies the plan's events to the nodes.

use std::{collections::BTreeSet, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use super::{
    Stage,
    blame::Cause,
    overlays::{LinkOverlay, OverlayOwner},
    setup,
};
use crate::{
    devnet::{binary, die_with_parent},
    report::FaultMark,
    scenario::{
        ARCHIVE,
        model::Scenario,
        names::NodeIndex,
        plan::{Action, Event, Harm, PlannedNode},
    },
};

/// The time limit for a transaction of the owner, or an export: on a stalled chain, a transaction would wait forever.
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);
/// The report's note on an event that the scenario's end cuts short.
pub(super) const CUT_SHORT: &str = " (cut short by the scenario's end)";
/// The most characters of a command's error that a message quotes.
const SAID_CHARS_MAX: usize = 400;

/// The node that an event affected, and the event's mark in the report.
#[derive(Clone, Copy, Debug)]
pub(super) struct AffectedNode {
    place: Option<NodeIndex>,
    mark: usize,
}

impl Stage<'_> {
    /// Begins an event. A failure is a finding: the event then has no end, and the clock continues.
    pub(super) async fn begin_event(&mut self, event: &Event, index: usize) -> AffectedNode {
        let met = self.met(&event.action).await;
        let place = met.as_ref().ok().copied().flatten();
        let mut what = described(&event.action);
        if matches!(&event.action, Action::Node { harm: Harm::Upgrade(_), .. })
            && setup::is_from_itself(self.scenario, self.options)
        {
            what += " (no --program before=PATH: from the same program)";
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
            Ok(()) => AffectedNode { place, mark },
            Err(error) => {
                self.note_failure(Err(error.context(told)));
                // A node may have accepted some liars before it refused one.
                let ended = self.end_lying_peers(index).await;
                self.note_failure(ended);
                self.end_excuses(index);
                AffectedNode { place: None, mark }
            }
        }
    }

    /// Returns the node that an event affects; `None` for links.
    ///
    /// # Errors
    /// If the event affects the primary, and no node may be primary.
    async fn met(&self, action: &Action) -> Result<Option<NodeIndex>> {
        match action.whom() {
            Some(PlannedNode::Primary) => self.primary().await.map(Some),
            Some(PlannedNode::Node(place)) => Ok(Some(place)),
            None => Ok(None),
        }
    }

    async fn act(&mut self, event: &Event, index: usize, place: Option<NodeIndex>) -> Result<()> {
        let is_join = matches!(event.action, Action::Join(_));
        if let Some(place) = place.filter(|_| !is_join) {
            // The node's start may have failed, so it may not exist. The run continues without it.
            self.index(place)?;
        }
        let ends = event.until_ms.is_some();
        match (&event.action, place) {
            (Action::Join(place), _) => {
                self.excuse(index, &[*place], Cause::Away);
                // The criteria also cover a node that does not become ready, so the run continues.
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
                let over =
                    LinkOverlay { by: OverlayOwner::Event(index), pairs: pairs.clone(), shape: *shape, ends };
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

    /// Ends an event. A failure is a finding, and the clock continues.
    pub(super) async fn end_event(&mut self, event: &Event, index: usize, hit: AffectedNode) {
        let ended = self.undo(event, index, hit).await;
        let FaultMark { what, node, .. } = &self.marks[hit.mark];
        let whom = node.as_deref().unwrap_or("links");
        let ended = ended.with_context(|| format!("the end of {what} {whom}"));
        self.note_failure(ended);
        self.end_excuses(index);
        self.marks[hit.mark].until_ms = Some(self.elapsed_ms());
    }

    async fn undo(&mut self, event: &Event, index: usize, hit: AffectedNode) -> Result<()> {
        match (&event.action, hit.place) {
            (Action::Node { harm, .. }, Some(place)) => {
                if *harm == Harm::OldState {
                    self.excuse(index, &[place], Cause::Lies);
                }
                self.heal(harm, place, index).await
            }
            (Action::Links { pairs, .. }, _) => {
                self.take_off(OverlayOwner::Event(index))?;
                ends(pairs).into_iter().for_each(|place| self.was_behind(place));
                Ok(())
            }
            (Action::LyingPeers { .. }, _) => self.end_lying_peers(index).await,
            (Action::Attack { .. }, _) => self.end_attack(index),
            _ => Ok(()),
        }
    }

    /// Records a failure that no criterion covers as a finding; the run continues.
    pub(super) fn note_failure(&mut self, done: Result<()>) {
        if let Err(error) = done {
            let text = format!("{error:#}");
            self.progress.step(&text);
            self.ended.push(text);
        }
    }

    /// Registers that this event may explain accusations against these nodes and by them.
    fn excuse(&self, index: usize, places: &[NodeIndex], cause: Cause) {
        if let Some(watch) = &self.watch {
            places.iter().for_each(|place| watch.begin_excuse(index, self.names.name(*place), cause));
        }
    }

    /// Registers that the event is over: from now on it explains only its after-effects.
    pub(super) fn end_excuses(&self, index: usize) {
        if let Some(watch) = &self.watch {
            watch.end_excuses(index);
        }
    }

    pub(super) fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the public key of a node.
    pub(super) fn key(&self, place: NodeIndex) -> Result<String> {
        Ok(self.node(place)?.peer_address().split('@').next().unwrap_or_default().to_owned())
    }

    async fn export_snapshot(&self, place: NodeIndex) -> Result<()> {
        let archive = format!("file://{}", self.devnet.dir().join(ARCHIVE).display());
        std::fs::create_dir_all(self.devnet.dir().join(ARCHIVE))
            .context("cannot create the archive's directory")?;
        let config = self.node(place)?.config();
        command(&["snapshot", "export", "--config", text(&config)?, &archive]).await
    }
}

/// Whether an event is planned to last longer than the scenario.
pub(super) fn is_cut_short(scenario: &Scenario, event: &Event) -> bool {
    event.until_ms.is_some_and(|until_ms| until_ms > scenario.duration.ms())
}

/// Whether a harm is over as soon as it is done: the node runs again.
pub(in crate::scenario) fn is_moment(harm: &Harm, ends: bool) -> bool {
    match harm {
        Harm::BitFlip(_) | Harm::Upgrade(_) => true,
        Harm::Restart | Harm::Wipe => !ends,
        _ => false,
    }
}

/// Returns all nodes of these pairs, each once.
pub(super) fn ends(pairs: &[(NodeIndex, NodeIndex)]) -> Vec<NodeIndex> {
    let ends: BTreeSet<NodeIndex> = pairs.iter().flat_map(|(one, other)| [*one, *other]).collect();
    ends.into_iter().collect()
}

pub(super) fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the directory's name is not valid UTF-8")
}

/// Runs `slipstream` with these arguments. An error quotes its output.
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

/// Describes an event for its mark in a report.
pub(in crate::scenario) fn described(action: &Action) -> String {
    match action {
        Action::Join(_) => "join".to_owned(),
        Action::Node { harm: Harm::Kill, .. } => "kill".to_owned(),
        Action::Node { harm: Harm::Pause, .. } => "pause".to_owned(),
        Action::Node { harm: Harm::Restart, .. } => "restart".to_owned(),
        Action::Node { harm: Harm::Wipe, .. } => "wipe".to_owned(),
        Action::Node { harm: Harm::BitFlip(_), .. } => "bit flip".to_owned(),
        Action::Node { harm: Harm::FullDisk, .. } => "full disk".to_owned(),
        Action::Node { harm: Harm::SlowDisk(delay_ms), .. } => format!("slow disk, {delay_ms} ms per flush"),
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
