//! [`Damage`]: stored data that contradicts itself.

use super::StorageError;

/// Describes damaged data and its place. Every error about damage to data in use has it among its sources, however
/// wrapped. So a program can tell damage from a temporary failure.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Damage(String);

impl StorageError {
    pub(crate) fn corrupt(what: impl Into<String>) -> StorageError {
        StorageError::Corrupt { what: Damage(what.into()) }
    }

    /// The error for a store that lacks `missing` and has other files. The caller must not have changed anything.
    pub(crate) fn incomplete(dir: &std::path::Path, missing: &str) -> StorageError {
        Self::corrupt(format!(
            "{} lacks {missing} but has other files of a store. Nothing there was changed: put back what is missing; \
            if the files are copies, take it from their origin",
            dir.display()
        ))
    }

    /// The error for a store that has less than it acknowledged. The caller must not have removed anything.
    pub(crate) fn cut(dir: &std::path::Path, what: &str) -> StorageError {
        Self::corrupt(format!(
            "in {}, {what}. The store would open without acknowledged writes, so it was left unchanged: put the \
            original file back; if the files are copies, take it from their origin",
            dir.display()
        ))
    }
}
