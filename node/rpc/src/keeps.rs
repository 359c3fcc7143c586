//! [`Keeps`]: what a node keeps of transactions. With it, a node that cannot know whether a transaction exists returns
//! an error.

use slipstream_config::NodeConfig;
use slipstream_sync::Mode;

use super::errors::RpcError;

/// What a node keeps of transactions, according to its configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keeps {
    /// Bodies and receipts of all new batches.
    pub bodies: bool,
    /// The positions of transactions, by their hashes.
    pub places: bool,
}

impl Keeps {
    /// Derives this from a configuration. A node that executes every batch has all bodies and receipts. Any other node
    /// sometimes catches up by state changes, even a validator outside the set. It then keeps bodies only if peers send
    /// them along.
    pub fn of(config: &NodeConfig) -> Keeps {
        let bodies = config.sync.history || config.sync.mode == Mode::Replay;
        Keeps { bodies, places: config.storage.transaction_index }
    }

    /// # Errors
    /// If this node cannot report all logs.
    pub(super) fn check_logs(self) -> Result<(), RpcError> {
        if self.bodies { Ok(()) } else { Err(RpcError::NoTransactions) }
    }

    /// # Errors
    /// If this node cannot find a transaction by its hash, unless the transaction waits in the pool.
    pub(super) fn check_found(self) -> Result<(), RpcError> {
        self.check_logs()?;
        if self.places { Ok(()) } else { Err(RpcError::NoPlaces) }
    }
}

#[cfg(test)]
mod tests {
    use slipstream_config::Role;

    use super::*;

    /// Goal: a node that may take a batch as a state change without its body never promises completeness, whatever it
    /// does at the head.
    #[test]
    fn who_may_apply_changes_alone_lacks_bodies() {
        let keeps = |role, mode, forbid: &[Mode], history| {
            let mut config = NodeConfig { role, ..NodeConfig::default() };
            (config.sync.mode, config.sync.forbid, config.sync.history) = (mode, forbid.to_vec(), history);
            Keeps::of(&config).bodies
        };
        let (fullnode, replay) = (Role::Fullnode, [Mode::Replay]);
        assert!(!keeps(fullnode, Mode::Auto, &replay, false), "as the preset light");
        assert!(!keeps(fullnode, Mode::Delta, &[], false));
        assert!(!keeps(fullnode, Mode::Auto, &[], false), "it catches up by changes");
        assert!(!keeps(Role::Validator, Mode::Auto, &[], false), "it may leave the set");
        assert!(keeps(fullnode, Mode::Auto, &replay, true));
        assert!(keeps(fullnode, Mode::Replay, &[], false));
        assert!(keeps(Role::Validator, Mode::Auto, &[], true));
    }
}
