//! The nodes of a stage: which were started, which run, and which they dial.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::{RunOptions, Stage, catch::Behind, disk::SmallDisk, overlays, setup};
use crate::{
    accounts::node_key,
    devnet::{Newcomer, Node, NodeEnd, SyncMode},
    file_names,
    manifest::Role,
    relay::{Links, Shape},
    rpc::Rpc,
    scenario::{
        model::{Group, Part, Scenario},
        names::{Names, NodeIndex, may_validate},
    },
};

/// The timeout of an answer: a node that hangs must not delay the others.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Mounts the disks of individual nodes.
pub(super) fn mount_disks(
    scenario: &Scenario,
    names: &Names,
    options: &RunOptions,
) -> Result<Vec<SmallDisk>> {
    let mut disks = Vec::new();
    for place in names.all() {
        if let Some(mib) = setup::disk_mib(scenario, names, place) {
            disks.push(SmallDisk::mount(&options.dir.join(names.name(place)).join(file_names::DATA), mib)?);
        }
    }
    Ok(disks)
}

/// Starts the relay by which one node dials another, with the link of their regions. Returns the `network.peers` entry
/// of the relay.
pub(super) fn lay(
    links: &Links,
    scenario: &Scenario,
    names: &Names,
    (from, to): (NodeIndex, NodeIndex),
    peer: &str,
) -> Result<String> {
    let through = links.lay(from.0, to.0, peer)?;
    let shape = setup::shape(scenario, names, from, to);
    if shape != Shape::default() {
        links.reshape(from.0, to.0, shape)?;
    }
    Ok(through)
}

/// Returns the first of these nodes that answers in time.
pub(super) async fn first_that_answers(nodes: &[(NodeIndex, Rpc)]) -> Option<NodeIndex> {
    for (place, rpc) in nodes {
        if matches!(tokio::time::timeout(ANSWER_MAX, rpc.page("/v1/status")).await, Ok(Ok(_))) {
            return Some(*place);
        }
    }
    None
}

impl Stage<'_> {
    pub(super) fn group(&self, place: NodeIndex) -> Option<&Group> {
        self.names.group(place).map(|group| &self.scenario.topology.groups[group])
    }

    /// Returns the nodes that were started, whether they run or not.
    pub(super) fn started(&self) -> Vec<NodeIndex> {
        self.names.all().filter(|place| self.indices[place.0].is_some()).collect()
    }

    /// Returns the nodes that were started, without those that a fault holds down.
    pub(super) fn running(&self) -> Vec<NodeIndex> {
        self.started().into_iter().filter(|place| !self.held.contains(*place)).collect()
    }

    pub(super) fn index(&self, place: NodeIndex) -> Result<usize> {
        self.indices[place.0].with_context(|| {
            format!("{} has not started: schedule its faults after it joins", self.names.name(place))
        })
    }

    pub(super) fn node(&self, place: NodeIndex) -> Result<&Node> {
        Ok(&self.devnet.nodes()[self.index(place)?])
    }

    pub(super) fn node_mut(&mut self, place: NodeIndex) -> Result<&mut Node> {
        let index = self.index(place)?;
        Ok(self.devnet.node_mut(index))
    }

    /// Whether a node that ended is down because of a fault.
    pub(super) fn is_excused(&self, end: &NodeEnd) -> bool {
        self.held.places().any(|place| self.names.name(place) == end.name())
    }

    /// Returns the highest head of all nodes that answer; 0 if none does.
    pub(super) async fn highest_head(&self) -> u64 {
        let mut asked = JoinSet::new();
        for node in self.running().into_iter().filter_map(|place| self.node(place).ok()) {
            let rpc = node.rpc().clone();
            asked.spawn(async move { rpc.head().await });
        }
        let heads = asked.join_all().await;
        heads.into_iter().flatten().max().unwrap_or_default()
    }

    /// Returns the nodes among these that no fault cuts off from most of the running validators; all of them if all are
    /// cut off.
    pub(super) fn not_cut_off(&self, places: &[NodeIndex]) -> Vec<NodeIndex> {
        let may_be = |place: &NodeIndex| may_validate(&self.scenario.topology, &self.names, *place);
        let validators: Vec<NodeIndex> = self.running().into_iter().filter(may_be).collect();
        overlays::reach_most(&self.over, places, &validators)
    }

    /// Returns nodes other than `without` that know the chain: no fault holds them down, or cuts them off from most
    /// validators. Validators come first.
    pub(super) fn sources(&self, without: Option<NodeIndex>) -> Result<Vec<(NodeIndex, Rpc)>> {
        let others: Vec<NodeIndex> =
            self.running().into_iter().filter(|place| Some(*place) != without).collect();
        let near = self.not_cut_off(&others).into_iter();
        near.map(|place| Ok((place, self.node(place)?.rpc().clone()))).collect()
    }

    /// Returns the first of [`Stage::sources`] that answers.
    ///
    /// # Errors
    /// If none answers.
    pub(super) async fn source(&self, without: Option<NodeIndex>) -> Result<NodeIndex> {
        first_that_answers(&self.sources(without)?)
            .await
            .context("no node answers, so the state of the chain is unknown")
    }

    /// Returns the `network.peers` entry by which one node dials another: through the relay between them, if there are
    /// relays.
    pub(super) fn entry(&self, from: NodeIndex, to: NodeIndex) -> Result<String> {
        let peer = self.node(to)?.peer_address();
        let Some(links) = &self.links else { return Ok(peer) };
        if let Some(through) = links.through(from.0, to.0, &peer) {
            return Ok(through);
        }
        let through = lay(links, self.scenario, &self.names, (from, to), &peer)?;
        self.settle(&[(from, to)])?;
        Ok(through)
    }

    /// Waits until a started node answers.
    ///
    /// # Errors
    /// If the node ends, or does not answer in time.
    pub(super) async fn wait_node(&mut self, place: NodeIndex) -> Result<()> {
        let deadline = Instant::now() + self.scenario.topology.ready_within.duration();
        self.node_mut(place)?.wait_ready(deadline).await
    }

    /// Starts a node for the first time, with an empty disk, without waiting for its answer.
    ///
    /// # Errors
    /// If the node cannot be started. If the node exists, it is observed from now on all the same. A node that joins
    /// counts as behind in any case.
    pub(super) async fn start_node(&mut self, place: NodeIndex) -> Result<()> {
        let name = self.names.name(place).to_owned();
        let group = self
            .group(place)
            .with_context(|| format!("{name} is a validator, which starts with the devnet"))?
            .clone();
        let peers = self.peers_of(place, &group).await;
        if group.joins.is_some() {
            let mut behind = Behind::new(&name, group.mode.name(), self.elapsed_ms());
            if overlays::is_cut_until_later(&self.over, place) {
                // The time of a node that joins behind a cut counts from the cut's end.
                behind.interrupt(behind.from_ms);
            }
            self.behind.push(behind);
        }
        let (peers, liars) = peers?;
        let added = self.add_node(&name, &group, &peers).await;
        if let Some(index) = self.devnet.find(&name) {
            self.indices[place.0] = Some(index);
            let node = &self.devnet.nodes()[index];
            if let (Some(collector), Some(watch)) = (&mut self.collector, &self.watch) {
                collector.add(&name, node.rpc(), node.memory_peak());
                watch.add(node);
                if let Some(attack) = &group.among {
                    watch.meet(&name, attack, (name.as_str(), liars.as_slice()));
                }
            }
        }
        added
    }

    async fn add_node(&mut self, name: &str, group: &Group, peers: &[String]) -> Result<()> {
        let waypoint = match (group.part, group.waypoint) {
            (Part::Fullnode, true) => {
                let status = self.node(self.source(None).await?)?.status().await?;
                Some(status.waypoint.context("no batch is certified yet: let the node join later")?)
            }
            (Part::Candidate, _) | (Part::Fullnode, false) => None,
        };
        let (role, mode) = match group.part {
            Part::Candidate => (Role::Validator, SyncMode::Auto),
            Part::Fullnode => (Role::Fullnode, group.mode),
        };
        let newcomer = Newcomer { name, role, mode, peers, waypoint: waypoint.as_deref() };
        self.devnet.begin_node(Ipv4Addr::LOCALHOST, newcomer).map(drop)
    }

    /// Returns the `network.peers` entries of a node that starts, attackers first and then those of `behind`; and the
    /// attackers alone.
    async fn peers_of(&mut self, place: NodeIndex, group: &Group) -> Result<(Vec<String>, Vec<String>)> {
        let (mut peers, mut liars) = (Vec::new(), Vec::new());
        if let Some(attack) = &group.among {
            let joiner = node_key(&self.scenario.seed, u32::try_from(self.devnet.nodes().len())?);
            let tag = self.names.name(place).to_owned();
            let victim = self.source(None).await?;
            let assault = self.assault(attack, &tag, victim, joiner.public().to_string()).await?;
            liars = assault.servers.clone();
            peers.extend(liars.iter().cloned());
            self.assaults.insert(tag, (victim, assault));
        }
        let behind = match group.behind.is_empty() {
            true => self.started(),
            false => self.names.find_all(&group.behind),
        };
        for other in behind {
            // A partition also applies to nodes that join while it lasts.
            peers.push(self.entry(place, other)?);
        }
        Ok((peers, liars))
    }

    /// Registers that this event holds a node down. The node's pending catch-up or attack no longer gets its full time.
    pub(super) fn hold(&mut self, place: NodeIndex, event: usize) {
        self.interrupt(place);
        self.lose_victim(place);
        self.held.hold(place, event);
    }

    /// Releases an event's hold of a node. Once no event holds it, it runs, and counts as behind the head. Does nothing
    /// if this event does not hold it.
    pub(super) fn release(&mut self, place: NodeIndex, event: usize) -> Result<()> {
        if !self.held.release(place, event) {
            return Ok(());
        }
        let node = self.node_mut(place)?;
        if node.pid().is_none() {
            node.start()?;
        }
        self.was_behind(place);
        Ok(())
    }

    /// Registers that a node may be behind the head from now on. Does nothing if the node does not run. Does nothing
    /// either if a current fault will leave the node behind at its own end: that fault interrupted the earlier entry,
    /// and would not interrupt this one.
    pub(super) fn was_behind(&mut self, place: NodeIndex) {
        if self.ends_later(place) || !self.running().contains(&place) {
            return;
        }
        let mode = self.group(place).map_or("auto", |group| group.mode.name());
        let from_ms = self.elapsed_ms();
        self.behind.push(Behind::new(self.names.name(place), mode, from_ms));
    }

    /// Whether a current fault leaves the node behind at its end.
    fn ends_later(&self, place: NodeIndex) -> bool {
        self.lasting.ends_later(place) || overlays::ends_later(&self.over, place)
    }

    /// Registers that a fault begins: its cost does not count as slowness of a node that is catching up.
    pub(super) fn interrupt(&mut self, place: NodeIndex) {
        let (name, now_ms) = (self.names.name(place), self.elapsed_ms());
        self.behind.iter_mut().filter(|behind| behind.name == name).for_each(|it| it.interrupt(now_ms));
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// Goal: a join does not depend on the first validator. A node that is down is skipped at once, one that hangs
    /// after a timeout.
    #[tokio::test]
    async fn whoever_answers_is_asked() {
        let listen = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let rpc = |listener: &TcpListener| Rpc::new(&listener.local_addr().unwrap().to_string()).unwrap();
        let (stands, answers) = (listen().await, listen().await);
        // Nobody can listen at port 0.
        let gone = Rpc::new("http://127.0.0.1:0").unwrap();
        let nodes = [(NodeIndex(0), gone), (NodeIndex(1), rpc(&stands)), (NodeIndex(2), rpc(&answers))];
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = answers.accept().await {
                let mut request = vec![0; 4_096];
                if stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await;
                }
            }
        });
        // On a busy machine an answer may come too late.
        let mut found = None;
        for _ in 0..20 {
            found = first_that_answers(&nodes).await;
            if found.is_some() {
                break;
            }
        }
        assert_eq!(found, Some(NodeIndex(2)));
        assert_eq!(first_that_answers(&nodes[..2]).await, None);
    }
}
