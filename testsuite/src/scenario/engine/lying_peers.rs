//! Peers that lie, given to a node by its operator: one process of liars per fault and node.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::{
    Stage,
    act::{command, text},
    assault::{Aim, Assault},
};
use crate::scenario::{fault::PeerLie, names::NodeIndex};

/// The addresses of one event's liars: at least one for each liar.
pub(crate) const ADDRESSES: usize = 16;
/// The first of the liars' addresses, after those of attackers: a flood from a shared address would take up the liars'
/// connection slots.
pub(crate) const ADDRESS_FIRST: usize = 8_192;

/// The nodes' current liars, by event.
pub(super) type LyingPeers = BTreeMap<usize, GivenLiars>;

/// Liars that a node got.
pub(super) struct GivenLiars {
    assault: Assault,
    to: NodeIndex,
    /// The `network.peers` entries of the liars that the node accepted.
    taken: Vec<String>,
    /// The node's process: a new one may have lost the liars with its data.
    pid: Option<u32>,
}

impl Stage<'_> {
    /// Starts liars that get true data from another node, and gives them to this one with its operator's command. A
    /// node that is down gets none; one that is starting is waited for.
    ///
    /// # Errors
    /// If the node does not answer, the liars do not start, or the node refuses one.
    pub(super) async fn begin_lying_peers(
        &mut self,
        event: usize,
        place: NodeIndex,
        (lie, count): (PeerLie, u32),
    ) -> Result<()> {
        if self.held.contains(place) {
            return Ok(());
        }
        self.wait_answer(place).await.context("the node gets no liars")?;
        // A node that has ended or hangs gives liars no data.
        let upstream =
            self.source(Some(place)).await.context("the liars have no node to fetch true data from")?;
        let upstream = self.node(upstream)?;
        let tag = tag(event);
        let node = self.node(place)?;
        let aim = Aim {
            rpc: node.rpc(),
            peer: node.peer_address(),
            upstream: upstream.peer_address(),
            joiner: self.key(place)?,
            accounts: &[],
            liars: Some((count, ADDRESS_FIRST + event * ADDRESSES)),
        };
        let assault = Assault::start(lie.of_program(), &tag, aim, self.devnet.dir()).await?;
        let config = node.config();
        let (pid, mut taken, mut refused) = (node.pid(), Vec::new(), Ok(()));
        for server in &assault.servers {
            if let Some(watch) = &self.watch {
                watch.meet(node.name(), &lie.name(), (tag.as_str(), std::slice::from_ref(server)));
            }
            let given = command(&["peers", "add", server, "--config", text(&config)?]).await;
            if given.is_ok() {
                taken.push(server.clone());
            }
            refused = refused.and(given.with_context(|| format!("giving liars to {}", node.name())));
        }
        self.lying_peers.insert(event, GivenLiars { assault, to: place, taken, pid });
        refused
    }

    /// Removes the liars from the node, and ends them. Dropping them also ends them.
    ///
    /// # Errors
    /// If they had ended by themselves, or the node refuses.
    pub(super) async fn end_lying_peers(&mut self, event: usize) -> Result<()> {
        let Some(GivenLiars { assault, to, taken, pid }) = self.lying_peers.remove(&event) else {
            return Ok(());
        };
        if let Some(watch) = &self.watch {
            watch.part(Some(&tag(event)));
        }
        let node = self.node(to)?;
        let config = node.config();
        let mut refused = Ok(());
        // A node that a fault holds down does not answer. After its restart it dials the liars in vain.
        if !self.held.contains(to) {
            for server in &taken {
                let key = server.split('@').next().unwrap_or_default();
                let removed = command(&["peers", "remove", key, "--config", text(&config)?]).await;
                // A new process may not know them: its data may have been wiped.
                if node.pid() == pid {
                    refused =
                        refused.and(removed.with_context(|| format!("taking liars from {}", node.name())));
                }
            }
        }
        assault.end().with_context(|| format!("the lying peers of {}", node.name()))?;
        refused
    }
}

/// Returns the name of an event's liars or attackers, in files and for the watch. No node has such a name; attackers of
/// `among` are named after their node.
pub(super) fn tag(event: usize) -> String {
    format!("event_{event}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario::model::Scenario;

    /// Goal: the attackers of an event and those among a node's peers have different names.
    #[test]
    fn no_node_is_called_like_an_event() {
        let group = |name: &str| {
            let text = format!(
                "name: a\ndescription: b\nduration: 60s\ncriteria: [equal_roots]\n\
                 topology: {{ groups: [{{ name: \"{name}\" }}] }}\n"
            );
            Scenario::parse(&text, Path::new("a.yaml")).map(drop).map_err(|error| error.to_string())
        };
        for name in ["3", "event-3"] {
            group(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let error = group(&tag(3)).unwrap_err();
        assert!(error.contains("topology.groups.0.name: must be lower-case words"), "{error}");
    }
}
