//! Validators that lie: twins with the same key, old data, and a program that replaces a validator.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{
    Stage, assault,
    overlays::{LinkOverlay, OverlayOwner},
};
use crate::{
    devnet::{Node, Process, copy_data},
    file_names,
    scenario::{
        names::{NodeIndex, VALIDATORS},
        plan::Harm,
    },
};

/// The state of a stage's lies, by event: several may affect one validator at once.
#[derive(Default)]
pub(super) struct Lies {
    /// Second nodes with validators' keys, each with the index of its validator.
    twins: BTreeMap<usize, (NodeIndex, Node)>,
    /// The copies of data, which the ends of their events restore.
    copies: BTreeMap<usize, PathBuf>,
    /// The programs that replace validators.
    liars: BTreeMap<usize, Liar>,
    /// The number of programs started: each has its own files.
    started: usize,
}

/// A program that replaces a validator.
struct Liar {
    place: NodeIndex,
    lie: &'static str,
    /// `None` while a later liar uses this address, or the validator is killed.
    process: Option<Process>,
}

impl Lies {
    /// Silences the program that replaces a validator, and returns its process: at most one.
    fn silence(&mut self, place: NodeIndex) -> Vec<Process> {
        let mine = self.liars.values_mut().filter(|liar| liar.place == place);
        mine.filter_map(|liar| liar.process.take()).collect()
    }

    /// Returns the second nodes with a validator's key.
    fn twins_of(&mut self, place: NodeIndex) -> impl Iterator<Item = &mut Node> {
        self.twins.values_mut().filter(move |(of, _)| *of == place).map(|(_, twin)| twin)
    }

    /// Returns the last liar that replaced a validator, with its lie, if it is silent.
    fn silent(&self, place: NodeIndex) -> Option<(usize, &'static str)> {
        let (event, last) = self.liars.iter().rev().find(|(_, liar)| liar.place == place)?;
        last.process.is_none().then_some((*event, last.lie))
    }
}

impl Stage<'_> {
    /// Starts a second node with a validator's key and data. The nodes of `heard_by` hear only it; all others hear only
    /// the first.
    ///
    /// Both begin where the first one stopped: in its view, bound by its votes. If an order was in progress when a
    /// primary was killed, both instances continue to order. Otherwise the other nodes refuse the orders of both: such
    /// orders lack the link to the last order, which a primary forgets once it is committed.
    pub(super) async fn begin_twin(
        &mut self,
        event: usize,
        place: NodeIndex,
        heard_by: &[NodeIndex],
    ) -> Result<()> {
        let hearing: Vec<NodeIndex> = heard_by.iter().copied().filter(|other| *other != place).collect();
        let name = self.names.name(place).to_owned();
        ensure!(!hearing.is_empty(), "only {name} itself would hear its twin: name others in `heard_by`");
        let peers = hearing.iter().map(|other| self.twin_entry(event, *other));
        let peers = peers.collect::<Result<Vec<String>>>()?;
        let index = self.index(place)?;
        // On a graceful stop, a primary would commit the order in progress.
        self.node_mut(place)?.kill();
        let pairs = hearing.iter().map(|other| (place, *other)).collect();
        self.lay_over(LinkOverlay { by: OverlayOwner::Twin(event), pairs, shape: None, ends: false })?;
        // The number of marks makes the name unique, because a validator may get a second twin.
        let twin_name = format!("{name}-twin-{}", self.marks.len());
        let made = tokio::task::block_in_place(|| self.devnet.twin_of(index, &twin_name, &peers));
        let mut twin = made.with_context(|| twin_name.clone())?;
        self.release(place, event)?;
        if !self.lasting.has(place, &Harm::Kill) {
            twin.start()?;
        }
        self.lies.twins.insert(event, (place, twin));
        Ok(())
    }

    /// Returns the entry of `network.peers` by which an event's twin dials another node: through its own relay, because
    /// the first instance's is cut.
    fn twin_entry(&self, event: usize, other: NodeIndex) -> Result<String> {
        let peer = self.node(other)?.peer_address();
        match &self.links {
            Some(links) => links.lay(self.twin_seat(event), other.0, &peer),
            None => Ok(peer),
        }
    }

    /// Ends the second node; all nodes hear the first one again.
    pub(super) fn end_twin(&mut self, event: usize) -> Result<()> {
        if let Some((_, mut twin)) = self.lies.twins.remove(&event)
            && let Err(error) = twin.check_alive()
        {
            self.ended.push(format!("{error:#}"));
        }
        self.take_off(OverlayOwner::Twin(event))
    }

    /// Makes a copy of a node's data.
    pub(super) async fn keep_copy(&mut self, event: usize, place: NodeIndex) -> Result<()> {
        let copy = self.devnet.dir().join(format!("{}-copy-{}", self.names.name(place), self.marks.len()));
        self.stop_node(place).await?;
        let data = self.node(place)?.data();
        tokio::task::block_in_place(|| copy_data(&data, &copy))?;
        self.lies.copies.insert(event, copy);
        self.release(place, event)
    }

    /// Holds the node and restores its data from the copy.
    pub(super) async fn put_back(&mut self, event: usize, place: NodeIndex) -> Result<()> {
        let Some(copy) = self.lies.copies.remove(&event) else { return Ok(()) };
        self.hold(place, event);
        self.stop_node(place).await?;
        let node = self.node_mut(place)?;
        node.wipe()?;
        let data = node.data();
        tokio::task::block_in_place(|| copy_data(&copy, &data))
    }

    /// Starts the program that lies with a validator's key, at its address. An earlier liar there is silent meanwhile.
    pub(super) async fn begin_liar(
        &mut self,
        event: usize,
        place: NodeIndex,
        lie: &'static str,
    ) -> Result<()> {
        self.stop_node(place).await?;
        self.silence(place);
        // A liar that replaces a killed validator is silent until the kill is over.
        let process = match self.lasting.has(place, &Harm::Kill) {
            true => None,
            false => Some(self.spawn_liar(place, lie).await?),
        };
        self.lies.liars.insert(event, Liar { place, lie, process });
        Ok(())
    }

    /// Ends the program of an event. The last of the silent ones lies again.
    pub(super) async fn end_liar(&mut self, event: usize, place: NodeIndex) -> Result<()> {
        if let Some(process) = self.lies.liars.remove(&event).and_then(|liar| liar.process) {
            self.note_liar(place, process);
        }
        self.wake_liar(place).await
    }

    /// Restarts the last liar that replaced a validator, if it is silent and no kill lasts.
    async fn wake_liar(&mut self, place: NodeIndex) -> Result<()> {
        if self.lasting.has(place, &Harm::Kill) {
            return Ok(());
        }
        if let Some((event, lie)) = self.lies.silent(place) {
            let process = Some(self.spawn_liar(place, lie).await?);
            self.lies.liars.insert(event, Liar { place, lie, process });
        }
        Ok(())
    }

    /// Kills the program that replaces a killed validator, and each second node with the validator's key. Otherwise the
    /// key would keep voting.
    pub(super) fn kill_lies(&mut self, place: NodeIndex) {
        self.silence(place);
        for twin in self.lies.twins_of(place) {
            if let Err(error) = twin.check_alive() {
                self.ended.push(format!("{error:#}"));
            }
            twin.kill();
        }
    }

    /// Restarts a validator's liars after a kill, once no kill lasts.
    pub(super) async fn wake_lies(&mut self, place: NodeIndex) -> Result<()> {
        if self.lasting.has(place, &Harm::Kill) {
            return Ok(());
        }
        for twin in self.lies.twins_of(place).filter(|twin| twin.pid().is_none()) {
            twin.start()?;
        }
        self.wake_liar(place).await
    }

    fn silence(&mut self, place: NodeIndex) {
        for process in self.lies.silence(place) {
            self.note_liar(place, process);
        }
    }

    async fn spawn_liar(&mut self, place: NodeIndex, lie: &str) -> Result<Process> {
        let program = assault::program()?;
        let name = self.names.name(place);
        let others = self.names.find(VALIDATORS).into_iter().filter(|other| *other != place);
        let peers = others.map(|other| self.entry(place, other)).collect::<Result<Vec<_>>>()?;
        self.lies.started += 1;
        let file = self.devnet.dir().join(format!("{name}-{lie}-{}.json", self.lies.started));
        let log = file.with_extension("log");
        let node = self.node(place)?;
        let address = node.peer_address();
        let (_, listen) = address.split_once('@').context("the peer has no address")?;
        let orders = json!({
            "key_file": node.dir().join(file_names::KEY),
            "listen": listen,
            "peers": peers,
            "genesis": self.devnet.genesis_file(),
        });
        std::fs::write(&file, orders.to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
        let file = file.to_str().context("the directory's name is not valid UTF-8")?;
        let arguments = ["campaign-child", "lying-validator", "--lie", lie, "--orders", file];
        let mut process = Process::spawn(&program, &arguments, log.clone())?;
        assault::ready(&mut process, &log, &format!("the liar {lie} in place of {name}")).await?;
        Ok(process)
    }

    /// Ends all current lies. A liar that had ended by itself is a finding.
    pub(super) fn end_lies(&mut self) {
        let Lies { twins, liars, .. } = std::mem::take(&mut self.lies);
        for (_, mut twin) in twins.into_values() {
            if let Err(error) = twin.check_alive() {
                self.ended.push(format!("{error:#}"));
            }
        }
        for Liar { place, process, .. } in liars.into_values() {
            if let Some(process) = process {
                self.note_liar(place, process);
            }
        }
    }

    fn note_liar(&mut self, place: NodeIndex, mut process: Process) {
        if let Err(error) = process.check_alive() {
            self.ended.push(format!("the liar in place of {}: {error:#}", self.names.name(place)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Goal: with two programs at one validator's address, only the last one lies; the other lies again afterwards.
    #[test]
    fn one_program_lies_at_one_address() {
        let dir = tempfile::tempdir().unwrap();
        let begin = |lies: &mut Lies, event, place, lie| {
            let silenced = lies.silence(place).len();
            let process = Process::spawn(Path::new("/bin/sleep"), &["100"], dir.path().join("log")).unwrap();
            lies.liars.insert(event, Liar { place, lie, process: Some(process) });
            silenced
        };
        let mut lies = Lies::default();
        let silenced = [
            begin(&mut lies, 1, NodeIndex(3), "garbage"),
            begin(&mut lies, 2, NodeIndex(0), "complaints"),
            begin(&mut lies, 4, NodeIndex(3), "double-vote"),
            begin(&mut lies, 5, NodeIndex(3), "wrong-root"),
        ];
        assert_eq!(silenced, [0, 0, 1, 1]);
        assert_eq!(
            [lies.silent(NodeIndex(3)), lies.silent(NodeIndex(0))],
            [None, None],
            "somebody lies at each"
        );
        // The first one ends while it is silent: nothing changes.
        lies.liars.remove(&1);
        assert_eq!(lies.silent(NodeIndex(3)), None);
        lies.liars.remove(&5);
        assert_eq!(lies.silent(NodeIndex(3)), Some((4, "double-vote")));
        lies.liars.remove(&4);
        assert_eq!(lies.silent(NodeIndex(3)), None);
    }

    /// Goal: a program that was killed with its validator lies again afterwards, and one that comes meanwhile takes its
    /// turn.
    #[test]
    fn whoever_was_killed_with_its_validator_lies_again() {
        let dir = tempfile::tempdir().unwrap();
        let process = Process::spawn(Path::new("/bin/sleep"), &["100"], dir.path().join("log")).unwrap();
        let mut lies = Lies::default();
        lies.liars.insert(1, Liar { place: NodeIndex(3), lie: "garbage", process: Some(process) });
        assert_eq!(lies.silence(NodeIndex(3)).len(), 1);
        assert_eq!(lies.silent(NodeIndex(3)), Some((1, "garbage")));
        lies.liars.insert(4, Liar { place: NodeIndex(3), lie: "complaints", process: None });
        assert!(lies.silence(NodeIndex(3)).is_empty(), "killed twice");
        assert_eq!(lies.silent(NodeIndex(3)), Some((4, "complaints")));
        assert_eq!((lies.silent(NodeIndex(0)), lies.twins_of(NodeIndex(3)).count()), (None, 0));
    }
}
