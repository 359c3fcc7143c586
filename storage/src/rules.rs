//! The rules that the store's chain follows, and what other nodes announce about forks that this node's schedule
//! lacks.
//!
//! Every header names the rules that it was executed under. The store refuses a header whose rules differ from its
//! schedule, whichever way it came. The node lacks a fork then, or has one that the others lack. No peer is at fault,
//! and only another schedule helps.

use std::sync::Arc;

use slipstream_types::{
    BatchHeader, BatchNumber, ChainConfig, Rules, RulesId, Schedule, ScheduledFork, schedule::Forks,
};

use crate::{error::StorageError, store::Store};

/// Maximum number of forks of other nodes that are remembered. Further ones are ignored, and a warning then lacks their names.
pub const FORKS_HEARD_MAX: usize = 64;

impl Store {
    /// Returns the chain's rules with the schedule that this node was given. Until it is given one, the rules have no
    /// fork.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`]; [`StorageError::Schedule`] for a schedule that came before the genesis and does not fit it.
    pub fn chain(&self) -> Result<Arc<ChainConfig>, StorageError> {
        if let Some(chain) = &*self.0.rulebook.chain.read() {
            return Ok(chain.clone());
        }
        let schedule = self.0.rulebook.schedule.read().clone();
        let chain = ChainConfig { schedule, ..self.genesis()?.chain };
        chain.check_schedule()?;
        Ok(self.0.rulebook.chain.write().get_or_insert_with(|| Arc::new(chain)).clone())
    }

    /// Follows this schedule from now on. A node calls it once, before it executes anything; an import calls it
    /// before there is a genesis.
    ///
    /// # Errors
    /// [`StorageError::Schedule`] for invalid forks; [`StorageError::OtherRules`] if the head was executed under
    /// other rules than the schedule says.
    pub fn follow_schedule(&self, schedule: Schedule) -> Result<(), StorageError> {
        if !self.is_initialized() {
            *self.0.rulebook.schedule.write() = schedule;
            return Ok(());
        }
        let chain = ChainConfig { schedule, ..self.genesis()?.chain };
        chain.check_schedule()?;
        let head = self.head()?.header;
        self.check_under(&chain, &head)?;
        *self.0.rulebook.chain.write() = Some(Arc::new(chain));
        Ok(())
    }

    /// Returns the rules of the batch after the head, as if that batch had the head's timestamp.
    pub fn next_rules(&self) -> Result<Rules, StorageError> {
        let head = self.head()?.header;
        Ok(self.chain()?.rules_at(head.number.next(), head.timestamp_ms))
    }

    /// Checks that a batch was executed under the rules that the schedule has for it.
    ///
    /// # Errors
    /// [`StorageError::OtherRules`], with the name of the fork if another node announced it.
    pub fn check_rules(&self, header: &BatchHeader) -> Result<(), StorageError> {
        if header.number == BatchNumber::GENESIS && header.rules == RulesId::GENESIS {
            return Ok(());
        }
        self.check_under(&*self.chain()?, header)
    }

    fn check_under(&self, chain: &ChainConfig, header: &BatchHeader) -> Result<(), StorageError> {
        let (number, found) = (header.number, header.rules);
        let expected = chain.rules_at(number, header.timestamp_ms).id;
        if found == expected {
            return Ok(());
        }
        let heard = self.0.rulebook.heard.lock().get(&found).cloned();
        let own = || chain.schedule.forks().iter().find(|(_, id)| *id == expected);
        let (found_fork, expected_fork) =
            (heard.map(|fork| fork.to_string()), own().map(|(fork, _)| fork.to_string()));
        Err(StorageError::OtherRules { number, found, found_fork, expected, expected_fork })
    }

    /// Records another node's schedule. Returns the forks in it that this node's schedule lacks and that nobody
    /// announced before, which are a reason to warn. They are claims, and change nothing.
    pub fn hear_forks(&self, announced: &Forks) -> Result<Vec<ScheduledFork>, StorageError> {
        if announced.is_empty() {
            return Ok(Vec::new());
        }
        let unknown = self.chain()?.schedule.unknown_of(announced);
        let mut heard = self.0.rulebook.heard.lock();
        let mut news = Vec::new();
        for (fork, id) in unknown {
            if fork.has_good_name() && heard.len() < FORKS_HEARD_MAX && !heard.contains_key(&id) {
                heard.insert(id, fork.clone());
                news.push(fork);
            }
        }
        Ok(news)
    }

    /// Returns the forks that other nodes announced and that this node's schedule lacks.
    pub fn unknown_forks(&self) -> Vec<ScheduledFork> {
        self.0.rulebook.heard.lock().values().cloned().collect()
    }
}
