//! Advice for the operator of a damaged store. It depends on the node's role, which the store does not know. A fullnode
//! can be rebuilt; a validator that starts with an empty directory has forgotten its last vote.

use std::error::Error;

use miette::Result;
use slipstream_config::Role;
use slipstream_storage::Damage;

use super::exit::{CommandFailure, causes};

/// Advice about damage, by role.
pub(super) fn advice(role: Role) -> &'static str {
    match role {
        Role::Fullnode => {
            "Stop the node, move its data directory away, and start it again with `sync.mode: snapshot`: it restores the state \
             from its peers. Check the disk."
        }
        Role::Validator => {
            "Never start this validator with an empty data directory or an older copy of it: it would have \
             forgotten its last vote, and could sign two batches with one number. Restore the directory itself, or never let its key \
             vote again: see \"Mend\" in docs/operations.md."
        }
    }
}

/// Turns an error into a failure. Adds the advice if the error comes from damage, however it is wrapped.
pub(super) fn failed(error: &(dyn Error + 'static), role: Role) -> CommandFailure {
    let failed = CommandFailure::of(error);
    if is_damage(error) { failed.with_help(advice(role)) } else { failed }
}

/// As [`failed`], for results.
pub(super) fn advised<T, E: Error + 'static>(result: std::result::Result<T, E>, role: Role) -> Result<T> {
    result.map_err(|error| failed(&error, role).into())
}

fn is_damage(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|error| error.is::<Damage>())
}

#[cfg(test)]
mod tests {
    use slipstream_base::{NodeError, tasks::TaskFailure};
    use slipstream_storage::{StorageConfig, StorageError, Store};
    use slipstream_sync::SyncError;

    use super::*;

    fn damage() -> StorageError {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("FORMAT"), "nonsense").unwrap();
        Store::open(&StorageConfig::default(), dir.path()).err().unwrap()
    }

    /// Goal: damage is found below every wrapper that a command can meet, and no validator is told to start from
    /// scratch.
    #[test]
    fn damage_gets_the_advice_of_the_role() {
        let task = |source: SyncError| TaskFailure::Failed { task: "sync", source: source.into() };
        let errors = [
            NodeError::Storage(damage()),
            NodeError::Sync(damage().into()),
            NodeError::Consensus(damage().into()),
            NodeError::Task(task(damage().into())),
        ];
        for error in errors {
            assert!(!error.to_string().contains("move its data directory"), "{error}");
            let report = advised::<(), _>(Err(error), Role::Validator).unwrap_err();
            let help = report.help().unwrap().to_string();
            assert!(report.to_string().contains("the store is damaged"), "{report}");
            assert!(help.contains("Never start this validator with an empty"), "{help}");
        }
        let report = advised::<(), _>(Err(damage()), Role::Fullnode).unwrap_err();
        assert!(report.help().unwrap().to_string().contains("move its data directory away"));
        let other = NodeError::Storage(StorageError::Poisoned);
        assert!(advised::<(), _>(Err(other), Role::Fullnode).unwrap_err().help().is_none());
    }
}
