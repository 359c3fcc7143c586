//! Keeps the ledger and the state on disk. A commit is one atomic write; a Merkle root and proofs cover the state. Peers
//! restore from snapshots, and restores survive a kill.
//!
//! ```text
//!   commit ──▶ checks ──▶ one write batch ──▶ RocksDB: rows, ledger, head          (or the in-memory twin)
//!                │                                │
//!                ▼                                ▼  only after the write
//!           new tree root                    head, tree, read view ──▶ View, Speculation, Snapshot
//! ```
//!
//! * [`Store`]: the handle: open, commit, certificates, the ledger's parts by number or hash.
//! * [`View`]: the state as it was at one head; [`Speculation`]: the root that a delta would give.
//! * [`StateReader`]: reads one state: a view, or a [`MemoryState`] of tests and tools.
//! * [`Blobs`]: a range of the stored ledger, for serving; [`Store::prune`]: deletes what lies beyond the configured
//!   windows.
//! * [`ProvableState`]: a recent state, with proofs of single rows.
//! * [`Maintenance`]: offline access to a store, to inspect, check and prune it.
//! * [`Store::scrub`]: compares rows with the tree while the store is in use.
//! * [`Snapshot`]: a frozen state that is served in [`StateChunk`]s; [`Restore`]: the receiving side.
//! * [`RangeDelta`]: the changes between two batches, served in [`RangeDeltaChunk`]s; [`RangeDeltaTakeover`]: the receiving side.
//! * [`Store::backfill`]: stores the history below a state that was taken over, newest first; [`Backlog`]: its
//!   missing part.
//! * [`Takeover`]: the common interface of both receiving sides.
//! * [`StateAt`]: the state after one batch, opened subtree by subtree; [`Repair`]: the receiving side, which
//!   replaces wrong rows.
//! * [`CrashPoint`]: a named moment at which a process may die; `slipnet campaign storage` makes it die then.
//! * [`export_snapshot`], [`write_export`], [`verify_export`], [`import_snapshot`]: a snapshot as files.
//! * [`Snapshot::open_beside`], [`ReadOnly`]: read-only access to files that another process has open.
//! * [`Piece`], [`PieceMap`], [`CodePack`], [`Lineage`]: a snapshot in parts that are named by their hashes, and the
//!   proof that it belongs to a ledger; for callers that keep snapshots elsewhere.
//!
//! The store checks that a batch continues the ledger: number, parent, accumulator, state root. Callers check the rest:
//! signatures of a certificate, the content of a delta, and blobs against their header's digests.
//!
//! Invariants:
//! * Rows, ledger and head record change in one atomic write. A kill at any moment leaves all of a commit or nothing, whether
//!   it has one batch or a group.
//! * The tree in memory changes only after that write succeeded; after a failed one the store refuses further work.
//! * The store keeps what it announces: before it drops blobs, it durably raises the lowest batch of their kind.
//! * One of the two state columns is in use. A restore fills the other; its last write switches column and head
//!   together.
//!
//! ```
//! use slipstream_storage::{StorageConfig, Store};
//!
//! let store = Store::memory(&StorageConfig::default());
//! assert!(!store.is_initialized());
//! ```

// Neither the modules nor the methods of `Store` and `Writer` have cyclic dependencies: each uses only what is below
// it. From the bottom up:
// * what is stored: `error`, `span`, `spans`, `column`, `schema`, `transactions`, `history_log`;
// * where it is stored: `tuning`, `config`, `directory`, `backend`, `disk`;
// * the parts of a store: `floors`, `nodes`, `state`, `frontier`, `history`, `chunk`, `snapshot`, `trees`;
// * the handles: their common part (`shared`), the handle (`store`), the ledger (`ledger`), the right to write
//   (`writer`);
// * the rules of a ledger: `epochs`, `rules`, `waypoint`;
// * commits: `changes`, `stage`, `past_states`, `snapshots`, `provable`, then `install` and `commit`;
// * each kind of work: `prune`, `backfill`, `scrub`, `restore`, `range_delta`, `reverse_delta`, `lineage`, `export`;
// * opening (`open`), offline work (`maintenance`, `check`, `rollback`), `read_only` and `repair`.
mod backend;
mod backfill;
mod batch;
mod beside;
mod blobs;
mod certificates;
mod changes;
mod check;
mod chunk;
mod column;
mod commit;
mod config;
mod crash;
mod density;
mod directory;
mod disk;
mod epochs;
mod error;
mod export;
mod floors;
mod frontier;
mod history;
mod history_log;
mod install;
mod kept;
mod ledger;
mod lineage;
mod maintenance;
mod memory_disk;
mod nodes;
mod open;
mod open_files;
mod past_states;
mod pieces;
mod place;
mod provable;
mod prune;
mod range_delta;
mod read_only;
mod reader;
mod repair;
mod reserve;
mod restore;
mod reverse_delta;
mod rollback;
mod rules;
mod run;
mod schema;
mod scrub;
mod shared;
mod snapshot;
mod snapshots;
mod span;
mod spans;
mod stage;
mod state;
mod store;
mod takeover;
#[cfg(test)]
mod tests;
mod transactions;
mod trees;
mod tuning;
mod view;
mod waypoint;
mod window;
mod writer;

pub use backend::IoCounts;
pub use backend::rocks::{plain_database, plain_state_options};
pub use backfill::{Backlog, PastBatch, PastRun};
pub use batch::CommitBatch;
pub use beside::snapshots_beside;
pub use blobs::Blobs;
pub use check::{CheckProgress, CheckReport, DAMAGE_MAX};
pub use chunk::{EncodedChunk, StateChunk, VerifiedChunk};
pub use commit::{SpeculatedState, Speculation};
pub use config::{PruneConfig, StateHistory, StorageConfig};
pub use crash::{CrashPoint, Faults, UnknownCrashPoint, WriteStep};
pub use directory::SNAPSHOTS_DIR;
pub use disk::DiskRoom;
pub use error::{
    ChunkError, Damage, Limit, PieceError, RangeDeltaError, RepairError, RestoreError, RollbackError,
    StorageError,
};
pub use export::{ExportError, ExportSummary, export_snapshot, import_snapshot, verify_export, write_export};
pub use floors::KeptRange;
pub use ledger::{RECORD_BYTES_MAX, RECORD_KEY_BYTES_MAX};
pub use lineage::{Lineage, LineageError, Trust};
pub use maintenance::{ColumnStats, Maintenance, StoreStats, stats_of};
#[doc(hidden)]
pub use memory_disk::MemoryDisk;
pub use open_files::OpenFilesShare;
pub use pieces::{CodePack, CodePackInfo, PIECE_ROWS_BYTES_MAX, Piece, PieceInfo, PieceMap};
pub use place::PathPrefix;
pub use provable::ProvableState;
pub use prune::{PruneReport, PrunedKind};
pub use range_delta::{
    CheckedRangeDelta, RANGE_DELTA_BATCHES_MAX, RangeDelta, RangeDeltaChunk, RangeDeltaTakeover,
};
pub use read_only::ReadOnly;
pub use reader::{MemoryState, StateReader};
pub use repair::{
    KEYS_LISTED_MAX, LEVELS_MAX, OpenedSubtree, Repair, RepairSummary, StateAt, SubtreePart, WantedSubtree,
};
pub use restore::{RESTORE_RANGES_BITS, RangeCheck, Restore};
pub use reverse_delta::{REVERSE_DELTA_BATCHES_MAX, StateBackfill, StateBacklog};
pub use rollback::RollbackReport;
pub use rules::FORKS_HEARD_MAX;
pub use schema::Retargeted;
pub use scrub::ScrubProgress;
pub use shared::Head;
pub use snapshot::{Snapshot, SnapshotInfo};
pub use span::Span;
pub use store::Store;
pub use takeover::{Ancestry, RESTORE_HEADERS_MAX, RestoreTarget, Takeover};
pub use tuning::PROVABLE_BATCHES;
pub use view::View;
pub use window::{InvalidWindow, Window};
