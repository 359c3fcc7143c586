//! Events of the plan, done to the nodes.

use std::{collections::BTreeSet, os::unix::fs::PermissionsExt, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tokio::process::Command;

use super::{
    LOOK, Stage,
    blame::Cause,
    flip,
    over::{By, Over},
    preload::Knobs,
    setup,
};
use crate::{
    devnet::{binary, die_with_parent},
    report::FaultMark,
    scenario::{
        ARCHIVE,
        names::Place,
        plan::{Action, Event, Harm, Who},
    },
};

/// Where the owner's key is, below the devnet's directory.
const OWNER_KEY: &str = "owner.key";
/// For a transaction of the owner's, or an export: where the chain stands, the first would wait forever.
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);
/// What a node whose disk was full takes to end: answers that are under way, and its store.
const SETTLE: Duration = Duration::from_secs(20);
/// Characters of a command's error that a message repeats.
const SAID_CHARS_MAX: usize = 400;

/// Whom an event hit, and its mark in the report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    place: Option<Place>,
    mark: usize,
}

impl Stage<'_> {
    pub(super) async fn begin_event(&mut self, event: &Event, index: usize) -> Result<Hit> {
        let place = match &event.action {
            Action::Node { who: Who::Primary, .. } | Action::LyingPeers { who: Who::Primary, .. } => {
                Some(self.primary().await?)
            }
            Action::Node { who: Who::Node(place), .. }
            | Action::LyingPeers { who: Who::Node(place), .. }
            | Action::Join(place)
            | Action::ExportSnapshot(place)
            | Action::AddValidator(place)
            | Action::RemoveValidator(place)
            | Action::Attack { victim: place, .. } => Some(*place),
            Action::Links { .. } => None,
        };
        let mut what = described(&event.action);
        if matches!(&event.action, Action::Node { harm: Harm::Upgrade(_), .. })
            && setup::is_from_itself(self.scenario, self.options)
        {
            what += " (no --program before=PATH: from itself)";
        }
        if place.is_some_and(|place| self.held.contains_key(&place)) {
            what += " (it was down)";
        }
        let node = place.map(|place| self.names.name(place).to_owned());
        self.progress.step(&format!("{what} {}", node.as_deref().unwrap_or("links")));
        let hit = Hit { place, mark: self.marks.len() };
        self.marks.push(FaultMark { at_ms: self.elapsed_ms(), until_ms: None, what: what.clone(), node });
        let is_join = matches!(event.action, Action::Join(_));
        if let Some(Err(error)) = place.filter(|_| !is_join).map(|place| self.index(place)) {
            // Its start failed before it was there at all. The run goes on without it, and nothing of this event has to end.
            self.note_failure(Err(error.context(what)));
            return Ok(Hit { place: None, ..hit });
        }
        match (&event.action, place) {
            (Action::Join(place), _) => {
                self.excuse(index, &[*place], Cause::Away);
                // The criteria are about one that does not become ready, too: the run goes on.
                let started = self.start_node(*place).await.and_then(|()| self.await_join(index, *place));
                if let Err(error) = started {
                    let name = self.names.name(*place).to_owned();
                    self.note_failure(Err(error.context(format!("{name} did not join"))));
                    self.end_excuses(index);
                }
            }
            (Action::Node { harm, .. }, Some(place)) => {
                self.excuse(index, &[place], Cause::of(harm));
                if let Harm::Twin(heard_by) = harm {
                    self.excuse(index, heard_by, Cause::Away);
                }
                self.harm(harm, place, event.until_ms.is_some()).await?;
                if is_moment(harm, event.until_ms.is_some()) {
                    self.end_excuses(index);
                }
            }
            (Action::Links { pairs, shape }, _) => {
                let over = Over { by: By::Event(index), pairs: pairs.clone(), shape: *shape };
                self.excuse(index, &ends(pairs), Cause::Away);
                self.lay_over(over)?;
            }
            (Action::LyingPeers { lie, count, .. }, Some(place)) => {
                let begun = self.begin_lying_peers(index, place, (*lie, *count)).await;
                self.note_failure(begun);
            }
            (Action::Attack { name, victim }, _) => {
                let joiner = self.key(*victim)?;
                let assault = self.assault(name, &index.to_string(), *victim, joiner).await?;
                self.assaults.insert(index.to_string(), assault);
            }
            (Action::ExportSnapshot(place), _) => {
                let done = self.export_snapshot(*place).await;
                self.note_failure(done);
            }
            (Action::AddValidator(place), _) => {
                let done = self.change_validators("add", *place).await;
                self.note_failure(done);
            }
            (Action::RemoveValidator(place), _) => {
                let done = self.change_validators("remove", *place).await;
                self.note_failure(done);
            }
            (Action::Node { .. } | Action::LyingPeers { .. }, None) => {}
        }
        Ok(hit)
    }

    pub(super) async fn end_event(&mut self, event: &Event, index: usize, hit: Hit) -> Result<()> {
        match &event.action {
            Action::Node { harm, .. } => {
                if let Some(place) = hit.place {
                    if *harm == Harm::OldState {
                        self.excuse(index, &[place], Cause::Lies);
                    }
                    self.heal(harm, place).await?;
                }
            }
            Action::Links { pairs, .. } => {
                self.take_off(By::Event(index))?;
                ends(pairs).into_iter().for_each(|place| self.was_behind(place));
            }
            Action::LyingPeers { .. } => {
                let ended = self.end_lying_peers(index).await;
                self.note_failure(ended);
            }
            Action::Attack { .. } => {
                if let Some(assault) = self.assaults.remove(&index.to_string()) {
                    assault.end()?;
                }
            }
            _ => {}
        }
        self.end_excuses(index);
        self.marks[hit.mark].until_ms = Some(self.elapsed_ms());
        Ok(())
    }

    async fn harm(&mut self, harm: &Harm, place: Place, ends: bool) -> Result<()> {
        // With a slow disk and a wrong clock it runs on.
        if !matches!(harm, Harm::SlowDisk(_) | Harm::ClockJump(_)) {
            self.hold(place);
        }
        let node = self.node_mut(place)?;
        match harm {
            Harm::SlowDisk(delay_ms) => return self.knobs(place)?.slow_down(*delay_ms),
            Harm::ClockJump(by_ms) => return self.knobs(place)?.jump(*by_ms),
            Harm::Twin(heard_by) => return self.begin_twin(place, heard_by).await,
            Harm::OldState => return self.keep_copy(place).await,
            Harm::Liar(lie) => return self.begin_liar(place, lie).await,
            Harm::Kill => node.kill(),
            Harm::Pause => node.signal(Signal::STOP),
            Harm::Restart => self.stop_node(place).await?,
            Harm::Wipe => node.wipe()?,
            Harm::BitFlip(draw) => {
                let (directory, draw) = (node.data(), *draw);
                self.stop_node(place).await?;
                tokio::task::block_in_place(|| flip::row(&directory, draw))?;
                return self.release(place);
            }
            Harm::Upgrade(name) => {
                let program = match setup::program(name, self.options)? {
                    Some(program) => program,
                    None => binary()?,
                };
                self.stop_node(place).await?;
                self.node_mut(place)?.set_program(program);
                return self.release(place);
            }
            Harm::FullDisk => {
                let data = node.data();
                let disk = self.disks.iter().find(|disk| disk.is_at(&data));
                return disk.context("the node has no disk of its own")?.fill();
            }
        }
        if is_moment(harm, ends) { self.release(place) } else { Ok(()) }
    }

    async fn heal(&mut self, harm: &Harm, place: Place) -> Result<()> {
        match harm {
            Harm::SlowDisk(_) => {
                self.knobs(place)?.slow_down(0)?;
                self.was_behind(place);
                Ok(())
            }
            Harm::ClockJump(_) => {
                self.knobs(place)?.jump(0)?;
                self.was_behind(place);
                Ok(())
            }
            Harm::Twin(_) => self.end_twin(place),
            Harm::OldState => self.put_back(place).await,
            Harm::Liar(_) => self.end_liar(place),
            Harm::Kill | Harm::Restart | Harm::Wipe => self.release(place),
            Harm::Pause => {
                self.node(place)?.signal(Signal::CONT);
                self.release(place)
            }
            Harm::FullDisk => {
                let data = self.node(place)?.data();
                self.disks.iter().find(|disk| disk.is_at(&data)).map_or(Ok(()), |disk| disk.free())?;
                // One that neither ends nor commits in this time is let go as it is.
                tokio::time::timeout(SETTLE, self.settled(place)).await.unwrap_or(Ok(()))?;
                self.note_ended()?;
                self.release(place)
            }
            // They ended with their start.
            Harm::BitFlip(_) | Harm::Upgrade(_) => Ok(()),
        }
    }

    /// Waits until a node whose disk was full has ended for want of room, or goes on: while it is ending it still runs.
    async fn settled(&mut self, place: Place) -> Result<()> {
        let mut before = None;
        loop {
            self.note_ended()?;
            let node = self.node(place)?;
            if node.pid().is_none() {
                return Ok(());
            }
            let rpc = node.rpc().clone();
            let head = rpc.head().await.ok();
            if before.is_some_and(|before| head > Some(before)) {
                return Ok(());
            }
            before = before.or(head);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asks a node to stop, and waits for it. One that does not stop well is a finding, and is gone.
    pub(super) async fn stop_node(&mut self, place: Place) -> Result<()> {
        let stopped = self.node_mut(place)?.stop().await;
        self.note_failure(stopped);
        Ok(())
    }

    /// What fails that no criterion is about is a finding, and the run goes on.
    pub(super) fn note_failure(&mut self, done: Result<()>) {
        if let Err(error) = done {
            let text = format!("{error:#}");
            self.progress.step(&text);
            self.ended.push(text);
        }
    }

    fn knobs(&self, place: Place) -> Result<&Knobs> {
        self.knobs.get(&place).context("the node was started without the library of faults")
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

    async fn change_validators(&self, change: &str, place: Place) -> Result<()> {
        const FEES: &str = "0x00000000000000000000000000000000000000fe";
        let key_file = self.devnet.dir().join(OWNER_KEY);
        std::fs::write(&key_file, self.devnet.owner().key_hex()).context("cannot write the owner's key")?;
        std::fs::set_permissions(&key_file, PermissionsExt::from_mode(0o600)).context("the owner's key")?;
        let id = self.key(place)?;
        // A node that stays what it is takes the transaction.
        let other = self.running().into_iter().find(|other| *other != place).context("no other node runs")?;
        let rpc = self.node(other)?.rpc().url().to_owned();
        let mut arguments = vec!["validators", change, &id, "--rpc", &rpc, "--key-file", text(&key_file)?];
        if change == "add" {
            arguments.extend(["--fee-recipient", FEES]);
        }
        command(&arguments).await
    }
}

/// Whether a harm is over once it was done: the node runs again.
pub(super) fn is_moment(harm: &Harm, ends: bool) -> bool {
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
