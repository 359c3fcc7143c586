//! [`JournalError`]: why a transaction could not be written down.

use std::{io, path::PathBuf};

/// Why a transaction could not be written down.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk fails.
    #[error("cannot {action} the transaction journal {}: {source}; free some room, or set consensus.pool.journal_mib \
        to 0 to run without a journal", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// Path of the journal's file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The journal is full of transactions that are still in the pool.
    #[error(
        "this node's transaction journal is full: it has {bytes} bytes of at most {bytes_max}; retry later"
    )]
    Full {
        /// Bytes in the journal.
        bytes: u64,
        /// [`PoolConfig::journal_mib`](crate::PoolConfig::journal_mib) in bytes.
        bytes_max: u64,
    },
    /// The sender has as much in the journal as one sender may.
    #[error(
        "the sender's transactions take {bytes} bytes of this node's journal, and the limit is {bytes_max}; retry after some are executed"
    )]
    SenderFull {
        /// Bytes of the sender's transactions that this node's users submitted.
        bytes: u64,
        /// The most that one sender may have.
        bytes_max: u64,
    },
}
