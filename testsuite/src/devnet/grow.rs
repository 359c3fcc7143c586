//! Nodes that join a running [`Devnet`].

use std::{net::Ipv4Addr, time::Instant};

use anyhow::{Context, Result, ensure};

use super::{Devnet, Node, SyncMode, binary};
use crate::manifest::Role;

impl Devnet {
    /// Starts one more fullnode with an empty data directory, and waits until it answers, not until it has caught up.
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

    /// As [`Devnet::add_fullnode_behind`], at another address of this machine's: its peers take it for a stranger from elsewhere.
    pub async fn add_fullnode_from(
        &mut self,
        host: Ipv4Addr,
        name: &str,
        mode: SyncMode,
        peers: &[String],
    ) -> Result<usize> {
        self.add_node(host, name, Role::Fullnode, mode, peers, None).await
    }

    /// Starts one more fullnode that trusts a waypoint and has no genesis.
    pub async fn add_fullnode_by_waypoint(
        &mut self,
        name: &str,
        mode: SyncMode,
        waypoint: &str,
    ) -> Result<usize> {
        let peers = self.peers_by_default();
        self.add_node(Ipv4Addr::LOCALHOST, name, Role::Fullnode, mode, &peers, Some(waypoint)).await
    }

    /// Starts one more fullnode that trusts a waypoint and has no genesis, with these entries of `network.peers`.
    ///
    /// # Errors
    /// As [`Devnet::add_fullnode`].
    pub async fn add_fullnode_by_waypoint_behind(
        &mut self,
        name: &str,
        mode: SyncMode,
        waypoint: &str,
        peers: &[String],
    ) -> Result<usize> {
        self.add_node(Ipv4Addr::LOCALHOST, name, Role::Fullnode, mode, peers, Some(waypoint)).await
    }

    /// As [`Devnet::add_candidate`], with these entries of `network.peers`.
    ///
    /// # Errors
    /// As [`Devnet::add_candidate`].
    pub async fn add_candidate_behind(&mut self, name: &str, peers: &[String]) -> Result<usize> {
        self.add_node(Ipv4Addr::LOCALHOST, name, Role::Validator, SyncMode::Auto, peers, None).await
    }

    /// Starts a node that validates as soon as the chain's set names it, and follows until then.
    pub async fn add_candidate(&mut self, name: &str) -> Result<usize> {
        let peers = self.peers_by_default();
        self.add_node(Ipv4Addr::LOCALHOST, name, Role::Validator, SyncMode::Auto, &peers, None).await
    }

    async fn add_node(
        &mut self,
        host: Ipv4Addr,
        name: &str,
        role: Role,
        mode: SyncMode,
        peers: &[String],
        waypoint: Option<&str>,
    ) -> Result<usize> {
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
        self.nodes[index].wait_ready(Instant::now() + self.options.ready_within).await?;
        Ok(index)
    }

    /// Of the next node.
    fn peers_by_default(&self) -> Vec<String> {
        self.peers_of(self.nodes.len()).into_iter().map(|(_, peer)| peer).collect()
    }
}
