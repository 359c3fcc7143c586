//! The nodes of a stage: who was started, who runs, whom they dial.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::{
    RunOptions, Stage,
    assault::{self, Aim, Assault},
    catch::Behind,
    disk::SmallDisk,
    setup,
};
use crate::{
    accounts::node_key,
    devnet::{Newcomer, Node, NodeEnd, SyncMode, files},
    manifest::Role,
    relay::{Links, Shape},
    scenario::{
        model::{Group, Part, Scenario},
        names::{Names, Place, may_validate},
    },
};

/// How often validators are asked which of them is primary.
const PRIMARY_LOOKS: usize = 8;
const PRIMARY_POLL: Duration = Duration::from_millis(250);
/// One that stands does not answer, and keeps nobody from being asked.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Mounts the disks that nodes have for themselves.
pub(super) fn mount_disks(
    scenario: &Scenario,
    names: &Names,
    options: &RunOptions,
) -> Result<Vec<SmallDisk>> {
    let mut disks = Vec::new();
    for place in names.all() {
        if let Some(mib) = setup::disk_mib(scenario, names, place) {
            disks.push(SmallDisk::mount(&options.dir.join(names.name(place)).join(files::DATA), mib)?);
        }
    }
    Ok(disks)
}

/// Starts the relay by which one node dials another, in the shape of their regions; the entry of `network.peers` that leads through it.
pub(super) fn lay(
    links: &Links,
    scenario: &Scenario,
    names: &Names,
    (from, to): (Place, Place),
    peer: &str,
) -> Result<String> {
    let through = links.lay(from.0, to.0, peer)?;
    let shape = setup::shape(scenario, names, from, to);
    if shape != Shape::default() {
        links.reshape(from.0, to.0, shape)?;
    }
    Ok(through)
}

impl Stage<'_> {
    pub(super) fn group(&self, place: Place) -> Option<&Group> {
        self.names.group(place).map(|group| &self.scenario.topology.groups[group])
    }

    /// Nodes that were started, whether they run or not.
    pub(super) fn started(&self) -> Vec<Place> {
        self.names.all().filter(|place| self.indices[place.0].is_some()).collect()
    }

    /// Nodes that were started, without those that a fault holds down.
    pub(super) fn running(&self) -> Vec<Place> {
        self.started().into_iter().filter(|place| !self.held.contains_key(place)).collect()
    }

    pub(super) fn index(&self, place: Place) -> Result<usize> {
        self.indices[place.0].with_context(|| {
            format!("{} has not been started yet: faults come after it joins", self.names.name(place))
        })
    }

    pub(super) fn node(&self, place: Place) -> Result<&Node> {
        Ok(&self.devnet.nodes()[self.index(place)?])
    }

    pub(super) fn node_mut(&mut self, place: Place) -> Result<&mut Node> {
        let index = self.index(place)?;
        Ok(self.devnet.node_mut(index))
    }

    /// Whether a node that ended is down because of a fault.
    pub(super) fn is_excused(&self, end: &NodeEnd) -> bool {
        self.held.keys().any(|place| self.names.name(*place) == end.name())
    }

    /// The highest head of all nodes that answer; 0 if none does.
    pub(super) async fn highest_head(&self) -> u64 {
        let mut asked = JoinSet::new();
        for node in self.running().into_iter().filter_map(|place| self.node(place).ok()) {
            let rpc = node.rpc().clone();
            asked.spawn(async move { rpc.head().await });
        }
        let heads = asked.join_all().await;
        heads.into_iter().flatten().max().unwrap_or_default()
    }

    /// Whoever orders the batches now. While views change nobody does for a moment; if nobody comes, the first validator that runs.
    pub(super) async fn primary(&self) -> Result<Place> {
        let may_be = |place: &Place| may_validate(&self.scenario.topology, &self.names, *place);
        let running: Vec<Place> = self.running().into_iter().filter(may_be).collect();
        for _ in 0..PRIMARY_LOOKS {
            for place in &running {
                let status = tokio::time::timeout(ANSWER_MAX, self.node(*place)?.status()).await;
                let consensus = status.ok().and_then(Result::ok).and_then(|status| status.consensus);
                if consensus.is_some_and(|consensus| consensus["is_primary"] == true) {
                    return Ok(*place);
                }
            }
            tokio::time::sleep(PRIMARY_POLL).await;
        }
        running.first().copied().context("no validator runs that could be primary")
    }

    /// Waits until a node answers that was started.
    ///
    /// # Errors
    /// If it ends, or does not answer in time.
    pub(super) async fn wait_node(&mut self, place: Place) -> Result<()> {
        let deadline = Instant::now() + self.scenario.topology.ready_within.duration();
        self.node_mut(place)?.wait_ready(deadline).await
    }

    /// Starts a node for the first time, with an empty disk, and does not wait for its answer.
    ///
    /// # Errors
    /// If it cannot be started. One that was started is looked at from now on all the same, and one that joins is behind, whatever comes
    /// of it.
    pub(super) async fn start_node(&mut self, place: Place) -> Result<()> {
        let name = self.names.name(place).to_owned();
        let group = self
            .group(place)
            .with_context(|| format!("{name} is a validator, and started with the devnet"))?
            .clone();
        let peers = self.peers_of(place, &group).await;
        if group.joins.is_some() {
            let (name, from_ms) = (name.clone(), self.elapsed_ms());
            self.behind.push(Behind { name, mode: group.mode.name(), from_ms, seen_ms: from_ms });
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
                let status = self.node(Place(0))?.status().await?;
                Some(status.waypoint.context("no batch is certified yet: let it join later")?)
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

    /// The entries of `network.peers` of a node that starts: attackers first, then those that it is behind; and the attackers alone.
    async fn peers_of(&mut self, place: Place, group: &Group) -> Result<(Vec<String>, Vec<String>)> {
        let (mut peers, mut liars) = (Vec::new(), Vec::new());
        if let Some(attack) = &group.among {
            let joiner = node_key(&self.scenario.seed, u32::try_from(self.devnet.nodes().len())?);
            let tag = self.names.name(place).to_owned();
            let assault = self.assault(attack, &tag, Place(0), joiner.public().to_string()).await?;
            liars = assault.servers.clone();
            peers.extend(liars.iter().cloned());
            self.assaults.insert(tag, assault);
        }
        let behind = match group.behind.is_empty() {
            true => self.started(),
            false => self.names.find_all(&group.behind),
        };
        for other in behind {
            let entry = self.node(other)?.peer_address();
            peers.push(match &self.links {
                Some(links) => lay(links, self.scenario, &self.names, (place, other), &entry)?,
                None => entry,
            });
            // A partition holds for those that join while it lasts.
            self.settle(&[(place, other)])?;
        }
        Ok((peers, liars))
    }

    /// Starts attackers; liars take the truth from the first validator.
    pub(super) async fn assault(
        &self,
        name: &str,
        tag: &str,
        victim: Place,
        joiner: String,
    ) -> Result<Assault> {
        let accounts = self.devnet.accounts();
        let own = accounts.len().saturating_sub(assault::ACCOUNTS as usize);
        let (victim, upstream) = (self.node(victim)?, self.node(Place(0))?);
        let aim = Aim {
            rpc: victim.rpc(),
            peer: victim.peer_address(),
            upstream: upstream.peer_address(),
            joiner,
            accounts: &accounts[own..],
            liars: None,
        };
        Assault::start(name, tag, aim, self.devnet.dir()).await
    }

    /// Ends all attackers that still attack; those that had ended by themselves are a finding. Thoughts of liars are from before.
    pub(super) fn end_assaults(&mut self) {
        if let Some(watch) = &self.watch {
            watch.part(None);
        }
        for (tag, assault) in std::mem::take(&mut self.assaults) {
            if let Err(error) = assault.end() {
                self.ended.push(format!("the attack of {tag}: {error:#}"));
            }
        }
    }

    /// One more fault holds a node down.
    pub(super) fn hold(&mut self, place: Place) {
        *self.held.entry(place).or_default() += 1;
    }

    /// A fault lets a node go. Once none holds it, it runs, and is behind the head.
    pub(super) fn release(&mut self, place: Place) -> Result<()> {
        let others = self.held.get(&place).map_or(0, |held| held - 1);
        if others > 0 {
            self.held.insert(place, others);
            return Ok(());
        }
        self.held.remove(&place);
        let node = self.node_mut(place)?;
        if node.pid().is_none() {
            node.start()?;
        }
        self.was_behind(place);
        Ok(())
    }

    /// A node may be behind the head from now on, unless it is not there.
    pub(super) fn was_behind(&mut self, place: Place) {
        if !self.running().contains(&place) {
            return;
        }
        let mode = self.group(place).map_or("auto", |group| group.mode.name());
        let name = self.names.name(place).to_owned();
        let from_ms = self.elapsed_ms();
        self.behind.push(Behind { name, mode, from_ms, seen_ms: from_ms });
    }
}
