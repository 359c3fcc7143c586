//! The attackers of a stage: which nodes are attacked, and when attacks end.

use anyhow::{Context, Result};

use super::{
    Stage,
    assault::{self, Aim, Assault},
    lying_peers::tag,
};
use crate::scenario::names::NodeIndex;

impl Stage<'_> {
    /// Starts attackers of a node. A node that is down is not attacked; one that is starting is waited for.
    ///
    /// # Errors
    /// If the node does not answer, or the attackers do not start.
    pub(super) async fn begin_attack(&mut self, event: usize, name: &str, victim: NodeIndex) -> Result<()> {
        if self.held.contains(victim) {
            return Ok(());
        }
        self.wait_answer(victim).await.context("the node is not attacked")?;
        let (tag, joiner) = (tag(event), self.key(victim)?);
        let assault = self.assault(name, &tag, victim, joiner).await?;
        self.assaults.insert(tag, (victim, assault));
        Ok(())
    }

    /// Ends the attackers of an event.
    ///
    /// # Errors
    /// As [`Assault::end`].
    pub(super) fn end_attack(&mut self, event: usize) -> Result<()> {
        self.assaults.remove(&tag(event)).map_or(Ok(()), |(_, assault)| assault.end())
    }

    /// Starts attackers. Liars get true data from a validator that answers.
    pub(super) async fn assault(
        &self,
        name: &str,
        tag: &str,
        victim: NodeIndex,
        joiner: String,
    ) -> Result<Assault> {
        let accounts = self.devnet.accounts();
        let own = accounts.len().saturating_sub(assault::ACCOUNTS as usize);
        let (victim, upstream) = (self.node(victim)?, self.node(self.source(None).await?)?);
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

    /// Registers that a fault takes a node down: attacks on it may end because of that.
    pub(super) fn lose_victim(&mut self, place: NodeIndex) {
        let mine = self.assaults.values_mut().filter(|(victim, _)| *victim == place);
        mine.for_each(|(_, assault)| assault.lose_victim());
    }

    /// Ends all attackers. Those that had ended by themselves are a finding. Opinions of liars from now on do not
    /// count.
    pub(super) fn end_assaults(&mut self) {
        if let Some(watch) = &self.watch {
            watch.part(None);
        }
        for (tag, (_, assault)) in std::mem::take(&mut self.assaults) {
            if let Err(error) = assault.end() {
                self.ended.push(format!("the attack of {tag}: {error:#}"));
            }
        }
    }
}
