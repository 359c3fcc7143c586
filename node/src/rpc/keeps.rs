//! [`Keeps`]: what a node keeps of transactions, so that it says of none that it does not exist when it cannot know.

use slipstream_config::{NodeConfig, Role};

use super::errors::RpcError;

/// What a node keeps of transactions, by its configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keeps {
    /// Bodies and receipts of new batches.
    pub(crate) bodies: bool,
    /// The places of transactions by their hashes.
    pub(crate) places: bool,
}

impl Keeps {
    /// A node that executes has the bodies and makes the receipts; one that applies changes keeps what is sent with them, or not.
    pub(crate) fn of(config: &NodeConfig) -> Keeps {
        let executes = config.role == Role::Validator || config.sync.executes_head();
        Keeps { bodies: executes || config.sync.history, places: config.storage.transaction_index }
    }

    /// # Errors
    /// If this node can tell of no logs.
    pub(super) fn check_logs(self) -> Result<(), RpcError> {
        if self.bodies { Ok(()) } else { Err(RpcError::NoTransactions) }
    }

    /// # Errors
    /// If this node finds no transaction by its hash, unless it waits in the pool.
    pub(super) fn check_found(self) -> Result<(), RpcError> {
        self.check_logs()?;
        if self.places { Ok(()) } else { Err(RpcError::NoPlaces) }
    }
}

#[cfg(test)]
mod tests {
    use slipstream_sync::Mode;

    use super::*;

    /// Goal: only a fullnode that neither executes nor keeps the history lacks bodies; a validator always has them.
    #[test]
    fn who_executes_has_bodies() {
        let keeps = |role, mode, forbid: &[Mode], history| {
            let mut config = NodeConfig { role, ..NodeConfig::default() };
            (config.sync.mode, config.sync.forbid, config.sync.history) = (mode, forbid.to_vec(), history);
            Keeps::of(&config).bodies
        };
        let (fullnode, replay) = (Role::Fullnode, [Mode::Replay]);
        assert!(!keeps(fullnode, Mode::Auto, &replay, false), "as the preset light");
        assert!(!keeps(fullnode, Mode::Delta, &[], false));
        assert!(keeps(fullnode, Mode::Auto, &replay, true));
        assert!(keeps(fullnode, Mode::Auto, &[], false));
        assert!(keeps(Role::Validator, Mode::Auto, &replay, false));
    }
}
