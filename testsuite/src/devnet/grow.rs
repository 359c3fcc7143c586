//! Nodes that join a running [`Devnet`].

use std::{net::Ipv4Addr, time::Instant};

use anyhow::{Context, Result, ensure};

use super::{Devnet, Node, SyncMode, binary};
use crate::manifest::Role;

/// A node that joins a running devnet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newcomer<'a> {
    pub(crate) name: &'a str,
    pub(crate) role: Role,
    pub(crate) mode: SyncMode,
    /// Entries of its `network.peers`.
    pub(crate) peers: &'a [String],
    /// The waypoint at which its trust starts, instead of the genesis.
    pub(crate) waypoint: Option<&'a str>,
}

impl Devnet {
    /// Starts one more fullnode with an empty data directory. Waits until its API answers, not until it has caught up.
    pub async fn add_fullnode(&mut self, name: &str, mode: SyncMode) -> Result<usize> {
        let peers = self.peers_by_default();
        self.add_fullnode_behind(name, mode, &peers).await
    }

    /// As [`Devnet::add_fullnode`], with these entries of `network.peers` instead of the devnet's nodes.
    pub async fn add_fullnode_behind(
        &mut self,
        name: &str,
        mode: SyncMode,
        peers: &[String],
    ) -> Result<usize> {
        self.add_fullnode_from(Ipv4Addr::LOCALHOST, name, mode, peers).await
    }

    /// As [`Devnet::add_fullnode_behind`], at another address of this machine. Its peers take it for a stranger from
    /// elsewhere.
    pub async fn add_fullnode_from(
        &mut self,
        host: Ipv4Addr,
        name: &str,
        mode: SyncMode,
        peers: &[String],
    ) -> Result<usize> {
        self.add_fullnode_trusting(host, name, mode, peers, None).await
    }

    /// As [`Devnet::add_fullnode_from`]. A node with a waypoint trusts that and has no genesis.
    pub async fn add_fullnode_trusting(
        &mut self,
        host: Ipv4Addr,
        name: &str,
        mode: SyncMode,
        peers: &[String],
        waypoint: Option<&str>,
    ) -> Result<usize> {
        self.add_node(host, Newcomer { name, role: Role::Fullnode, mode, peers, waypoint }).await
    }

    /// Starts one more fullnode that trusts a waypoint and has no genesis.
    pub async fn add_fullnode_by_waypoint(
        &mut self,
        name: &str,
        mode: SyncMode,
        waypoint: &str,
    ) -> Result<usize> {
        let peers = self.peers_by_default();
        self.add_fullnode_trusting(Ipv4Addr::LOCALHOST, name, mode, &peers, Some(waypoint)).await
    }

    /// Starts a node that follows until the chain's validator set names it, and then validates.
    pub async fn add_candidate(&mut self, name: &str) -> Result<usize> {
        let peers = self.peers_by_default();
        let newcomer =
            Newcomer { name, role: Role::Validator, mode: SyncMode::Auto, peers: &peers, waypoint: None };
        self.add_node(Ipv4Addr::LOCALHOST, newcomer).await
    }

    async fn add_node(&mut self, host: Ipv4Addr, newcomer: Newcomer<'_>) -> Result<usize> {
        let index = self.begin_node(host, newcomer)?;
        self.nodes[index].wait_ready(Instant::now() + self.options.ready_within).await?;
        Ok(index)
    }

    /// Starts one more node with an empty data directory, without waiting until its API answers.
    ///
    /// # Errors
    /// If its process cannot be started, or the name is taken.
    pub(crate) fn begin_node(&mut self, host: Ipv4Addr, newcomer: Newcomer<'_>) -> Result<usize> {
        let Newcomer { name, role, mode, peers, waypoint } = newcomer;
        let index = self.nodes.len();
        let node_index = u32::try_from(index).context("too many nodes")?;
        let name = name.to_owned();
        let own = self.options.nodes.get(&name).cloned();
        let node = Node::new(
            &self.options.seed,
            node_index,
            name,
            role,
            &self.directory.path,
            &mut self.ports,
            &binary()?,
        )?;
        let node = node.at(host).with(own);
        ensure!(!node.has_data(), "{} already has data: choose another name", node.dir().display());
        self.nodes.push(node);
        self.configure(index, mode, peers, waypoint)?;
        self.nodes[index].start()?;
        Ok(index)
    }

    /// Returns the default peers of the next node.
    fn peers_by_default(&self) -> Vec<String> {
        self.peers_of(self.nodes.len()).into_iter().map(|(_, peer)| peer).collect()
    }
}
