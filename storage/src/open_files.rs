//! [`OpenFilesShare`]: how many of the process' open files a store takes. Callers and peers may have the rest.

use rustix::process::{Resource, getrlimit};

/// Open tables of the store: three eighths of what the process may open, within these bounds. A read that must open its
/// file again needs three more reads: of the footer, the index and the filter.
const TABLES_RANGE: (u64, u64) = (32, 32_768);
/// Open files of one checkpoint.
const CHECKPOINT_RANGE: (u64, u64) = (4, 64);
/// Checkpoints that are read at a time: those that are kept, and a replaced one that still has readers.
const CHECKPOINTS: u64 = 3;
/// Files that flushes and compactions write beside the open tables, logs and manifest.
const WRITING_RANGE: (u64, u64) = (8, 64);

/// A store's share of the files that a process may open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFilesShare {
    pub(crate) tables: u64,
    pub(crate) of_checkpoint: u64,
    writing: u64,
}

impl OpenFilesShare {
    /// Returns the share in a process that may open `limit` files.
    pub fn of(limit: u64) -> OpenFilesShare {
        let share = |part: u64, (least, most): (u64, u64)| part.clamp(least, most);
        OpenFilesShare {
            tables: share(limit / 8 * 3, TABLES_RANGE),
            of_checkpoint: share(limit / 32, CHECKPOINT_RANGE),
            writing: share(limit / 16, WRITING_RANGE),
        }
    }

    /// Returns the share in this process.
    pub(crate) fn of_process() -> OpenFilesShare {
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    /// The most files that the store opens at a time.
    pub fn total(&self) -> u64 {
        self.tables + CHECKPOINTS * self.of_checkpoint + self.writing
    }
}
