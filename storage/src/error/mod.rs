//! [`StorageError`], and the errors of each kind of work, which are variants of it.

mod damage;
mod database;
mod pieces;
mod range_delta;
mod repair;
mod restore;
mod rollback;

use std::path::PathBuf;

use slipstream_types::{
    Address, BatchNumber, CodecError, Digest, RulesId, Waypoint, accumulator::AccumulatorError,
    genesis::GenesisError, schedule::ScheduleError,
};

pub use damage::Damage;
pub use database::Limit;
pub use pieces::PieceError;
pub use range_delta::RangeDeltaError;
pub use repair::RepairError;
pub use restore::{ChunkError, RestoreError};
pub use rollback::RollbackError;

/// Why the store refused a request. The store wrote nothing, except where a variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A past state left the window while it was read.
    #[error("the state after batch {number} is gone: keep more past states (storage.state_history)")]
    StateNotKept {
        /// Number of the refused batch.
        number: BatchNumber,
    },
    /// The state cannot be proved here: only the head's and a few before it can.
    #[error(
        "this node cannot prove the state of batch {number}: {reason}; ask for a batch from {first} to the head, {head}; later ones are safer"
    )]
    NotProvable {
        /// The batch that was asked for.
        number: BatchNumber,
        /// The first batch that is not too old.
        first: BatchNumber,
        /// Number of the store's head.
        head: BatchNumber,
        /// The reason, in words.
        reason: &'static str,
    },
    /// A commit holds the head's tree for longer than a reader waits.
    #[error(
        "the node cannot prove the state of batch {number} while it commits many batches: try again in a few seconds"
    )]
    TreeInUse {
        /// The batch that was asked for.
        number: BatchNumber,
    },
    /// A write replaces more rows than it can keep.
    #[error(
        "the {count} old rows that a write of several batches replaces have {bytes} bytes: commit fewer batches at once"
    )]
    HistoryTooLong {
        /// Number of rows before the write's batches.
        count: usize,
        /// Bytes of these rows.
        bytes: usize,
    },
    /// The store holds no genesis yet.
    #[error("the store is empty: initialize it with a genesis first")]
    NotInitialized,
    /// The batch does not come right after the head.
    #[error("cannot commit batch {number}: the head is batch {head}, so the next is batch {}", head.next())]
    NotNext {
        /// Number of the store's head.
        head: BatchNumber,
        /// The batch that was given.
        number: BatchNumber,
    },
    /// A backfill has a gap, or does not end right below what is stored.
    #[error(
        "cannot store the batches up to {number} below the head, batch {head}: they do not form a chain, or the store lacks the header of batch {}",
        number.next()
    )]
    NotBelow {
        /// The last batch that was given.
        number: BatchNumber,
        /// Number of the store's head.
        head: BatchNumber,
    },
    /// The batch continues another ledger.
    #[error("batch {number} names the parent {found}, but the head's digest is {expected}")]
    WrongParent {
        /// Number of the refused batch.
        number: BatchNumber,
        /// Digest of the head.
        expected: Digest,
        /// The parent that the header names.
        found: Digest,
    },
    /// State rows and header do not belong together.
    #[error("the state after batch {number} has the root {found}, but its header says {expected}")]
    StateRootMismatch {
        /// Number of the refused batch.
        number: BatchNumber,
        /// The state root in the header.
        expected: Digest,
        /// The root of the rows.
        found: Digest,
    },
    /// Delta and store both lack an account's code.
    #[error(
        "batch {number} gives account {address} the code {hash}, but neither its delta nor the store has that code"
    )]
    UnknownCode {
        /// Number of the refused batch.
        number: BatchNumber,
        /// Address of the account.
        address: Address,
        /// Hash of its code.
        hash: Digest,
    },
    /// The certificate does not match what is stored.
    #[error("certificate of batch {number} refused: {reason}")]
    WrongCertificate {
        /// The batch that it names.
        number: BatchNumber,
        /// The mismatch, in words.
        reason: &'static str,
    },
    /// The ledger is not the one that the operator's waypoint names.
    #[error(
        "the ledger does not pass through waypoint {waypoint} (here batch {} is {found}): check the waypoint with a \
        node that you trust, or start in an empty data directory", waypoint.number
    )]
    WrongWaypoint {
        /// The waypoint that the operator gave.
        waypoint: Waypoint,
        /// The ledger's waypoint at that batch.
        found: Waypoint,
    },
    /// The store began from a snapshot after the waypoint, and was never compared with it.
    #[error(
        "this store cannot show whether its ledger passes through waypoint {waypoint}: it began after that batch, \
        without this waypoint; start in an empty data directory, or give a later waypoint (`slipstream status` of a \
        trusted node prints it)"
    )]
    UnprovenWaypoint {
        /// The waypoint that the operator gave.
        waypoint: Waypoint,
    },
    /// A batch was executed under other rules than this node's schedule has for it.
    #[error(
        "batch {number} has the rules {found}{}, but this node's schedule says {expected}{}: give this node the \
        validators' schedule (`schedule` in the configuration, the same forks in the same order) and a program that \
        knows these rules, and start it again",
        of(found_fork),
        of(expected_fork)
    )]
    OtherRules {
        /// Number of the refused batch.
        number: BatchNumber,
        /// The rules that its header names.
        found: RulesId,
        /// The fork that began these rules, if another node named it.
        found_fork: Option<String>,
        /// The rules that the schedule has there.
        expected: RulesId,
        /// The fork that began the expected rules; `None` for those of the genesis.
        expected_fork: Option<String>,
    },
    /// The forks that this node was given do not form a schedule of its chain.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The directory belongs to another chain.
    #[error(
        "the store holds the chain with genesis {stored}, but the given genesis is {given}: use another data directory, or this directory's genesis"
    )]
    WrongGenesis {
        /// Digest of the stored genesis header.
        stored: Digest,
        /// Digest of the given genesis header.
        given: Digest,
    },
    /// A later release wrote the store.
    #[error(
        "the store in {} has format {found}, but this program reads formats up to {supported}: use the newer program that wrote it",
        dir.display()
    )]
    NewerFormat {
        /// The store's directory.
        dir: PathBuf,
        /// The format number in the directory.
        found: u32,
        /// The newest format that this program reads.
        supported: u32,
    },
    /// The program that wrote the store used other formats under the same version.
    #[error(
        "the store in {} was written with other format settings (fingerprint {found}, this program has {expected}): \
        use the program that wrote it, or start with an empty data directory",
        dir.display()
    )]
    OtherFormat {
        /// The store's directory.
        dir: PathBuf,
        /// The fingerprint in the directory.
        found: String,
        /// The fingerprint of this program.
        expected: String,
    },
    /// The file system is nearly full. Nothing was written, and the store continues once there is room.
    #[error(
        "the file system of {} has {free_mib} MiB free, less than the {min_mib} MiB of storage.disk_free_min_mib: \
        the node writes nothing more. Make room (`slipstream db prune`, a larger disk), then start the node again",
        dir.display()
    )]
    DiskLow {
        /// Free space now, in MiB.
        free_mib: u64,
        /// Space that must stay free, in MiB.
        min_mib: u64,
        /// The store's directory.
        dir: PathBuf,
    },
    /// Stored data in use contradicts itself. The remedy depends on the node's role, which the store does not know. A
    /// caller that informs the operator looks for [`Damage`] among the sources.
    #[error("the store is damaged: {what}")]
    Corrupt {
        /// The damage, and where it is.
        #[source]
        what: Damage,
    },
    /// A frozen state contradicts itself. The data that the node uses does not.
    #[error(
        "the snapshot of batch {number} is damaged: {what}. The node itself does not use it: use another snapshot \
        (`slipstream snapshot create` makes one while the node is stopped), and check the disk"
    )]
    DamagedSnapshot {
        /// Number of the snapshot's batch.
        number: BatchNumber,
        /// The damage, and where it is.
        what: String,
    },
    /// Another process has the directory open.
    #[error("the store in {} is in use by another process: stop that process, or use another data directory", dir.display())]
    Locked {
        /// The store's directory.
        dir: PathBuf,
    },
    /// An earlier write failed, so that memory and disk may differ.
    #[error(
        "the store refuses further work because a write to it failed: check the disk, then restart the node"
    )]
    Poisoned,
    /// A named record exceeds its limits.
    #[error("record {key:?} has {len} bytes, above the limit of {max} bytes")]
    RecordTooLong {
        /// Name of the record.
        key: String,
        /// Bytes of name or value.
        len: usize,
        /// Maximum bytes of name or value.
        max: usize,
    },
    /// The head's state cannot be proved to anybody.
    #[error("cannot take a snapshot of batch {number}: {reason}")]
    NoSnapshot {
        /// Number of the store's head.
        number: BatchNumber,
        /// The reason, and the remedy.
        reason: &'static str,
    },
    /// A restore was refused or cannot continue.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The range delta failed, at the server or the receiver.
    #[error(transparent)]
    RangeDelta(#[from] RangeDeltaError),
    /// The repair failed, at the server or the receiver.
    #[error(transparent)]
    Repair(#[from] RepairError),
    /// The rollback was refused.
    #[error(transparent)]
    Rollback(#[from] RollbackError),
    /// Something given or stored does not fit its type.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The given genesis breaks a rule.
    #[error(transparent)]
    Genesis(#[from] GenesisError),
    /// The headers' proof could not be made or verified.
    #[error(transparent)]
    Accumulator(#[from] AccumulatorError),
    /// The file system failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A write found no room. Part of it may have arrived, so the store refuses further work.
    #[error(
        "the disk is out of space or inodes: {0}. Make room (`df -h` and `df -i` show which), then restart the node: \
        it continues from its last commit, and no acknowledged batch is lost"
    )]
    DiskFull(#[source] rocksdb::Error),
    /// The file system has room, but few inodes. Nothing was written, and the store continues once there are more.
    #[error(
        "the file system of {} has {free} inodes free, less than {min}: the node writes nothing more, even if bytes \
        are free. Remove files (`df -i` shows the inodes), then start the node again",
        dir.display()
    )]
    InodesLow {
        /// Inodes free now.
        free: u64,
        /// Inodes that must stay free.
        min: u64,
        /// The store's directory.
        dir: PathBuf,
    },
    /// The process or its user has reached a limit of the operating system; the disk itself has room.
    #[error(
        "{what}: {error}. Then restart the node: it continues from its last commit, and no acknowledged batch is lost"
    )]
    Limit {
        /// The resource, and the remedy.
        what: Limit,
        /// RocksDB's error.
        #[source]
        error: rocksdb::Error,
    },
    /// RocksDB reports an error.
    #[error("the database failed: {0}; check the disk's space and health, then restart the node")]
    Database(#[source] rocksdb::Error),
}

fn of(fork: &Option<String>) -> String {
    fork.as_ref().map(|fork| format!(" of {fork}")).unwrap_or_default()
}

impl StorageError {
    /// Whether the same call may succeed later without a repair in between.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            StorageError::Locked { .. }
                | StorageError::TreeInUse { .. }
                | StorageError::Restore(RestoreError::DamagedRows { .. })
                | StorageError::RangeDelta(RangeDeltaError::HeadMoved { .. })
        )
    }

    /// Whether the caller's input was refused (so that the peer it came from is at fault), rather than the store
    /// failing.
    pub fn is_bad_supply(&self) -> bool {
        match self {
            StorageError::WrongParent { .. }
            | StorageError::StateRootMismatch { .. }
            | StorageError::UnknownCode { .. }
            | StorageError::WrongCertificate { .. }
            | StorageError::Codec(_)
            | StorageError::Genesis(_)
            | StorageError::Accumulator(_) => true,
            StorageError::Restore(error) => matches!(
                error,
                RestoreError::WrongStart { .. }
                    | RestoreError::OtherRoot { .. }
                    | RestoreError::Chunk(_)
                    | RestoreError::UnwantedCode { .. }
                    | RestoreError::BadHeaders { .. }
            ),
            StorageError::RangeDelta(error) => error.is_bad_supply(),
            StorageError::Repair(error) => error.is_bad_supply(),
            _ => false,
        }
    }

    pub(crate) fn io(action: &'static str, path: &std::path::Path, source: std::io::Error) -> StorageError {
        StorageError::Io { action, path: path.to_owned(), source }
    }
}
