//! [`Tuning`]: sizes of the store's work that no operator sets.

/// Batches before the head whose rows can be proved. The store holds these states anyway, so their rows are read at
/// the head's speed and need no further reader.
pub const PROVABLE_BATCHES: u64 = 64;

/// Sizes that trade speed against memory and disk. The default is what every node uses. The store's own tests take
/// smaller ones, so that a small state takes many steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// See [`PROVABLE_BATCHES`].
    pub(crate) provable_batches: u64,
    /// Maximum bytes of deltas between a state and the head: some ten thousand rows, which take tens of milliseconds
    /// to undo.
    pub(crate) provable_delta_bytes_max: u64,
    /// Batches before the head whose states are held. Each held state keeps the rows replaced since on disk, and keeps
    /// compactions from dropping them. A larger number would serve more states at the head's speed, and cost more disk
    /// and compaction.
    pub(crate) held_batches: u64,
    /// Batches before the first known state whose entries stay in the history: readers may still use a state that was
    /// known a moment ago.
    pub(crate) history_slack_batches: u64,
    /// As [`Tuning::history_slack_batches`], for the log.
    pub(crate) log_slack_batches: u64,
    /// Bytes of the log that trigger sealing even while states are held. This bounds what a restart has to seal.
    pub(crate) log_bytes_max: u64,
    /// Number of batches older than the held ones at which the log is sealed. A smaller number makes more files. A
    /// larger one makes a longer log, which is all that a restart finds: reads of the past wait until it is sealed.
    pub(crate) seal_batches: u64,
    /// Bytes of the log that are merged at once, unless one value is longer. Sorting them takes the same memory again.
    pub(crate) seal_bytes_at_once: usize,
    /// Batches between two drops of log files from before the window, and between two tries of a failed seal.
    pub(crate) seal_pause_batches: u64,
    /// Batches that the floor of headers moves up before their files are searched again: headers have many ranges of
    /// keys.
    pub(crate) headers_step_batches: u64,
    /// Paths touched since the last frontier that make another one due, if the tree is small. A larger number makes
    /// opening after a kill slower: some 20 us a path.
    pub(crate) touched_min: u64,
    /// As [`Tuning::touched_min`], for the frontier that is written when the store closes.
    pub(crate) touched_at_close_min: u64,
    /// Minimum bytes of rows for which a sorted file is worth its syncs.
    pub(crate) file_bytes_min: usize,
    /// Bytes of rows after which a restore's file becomes durable. A kill costs at most these; a lower limit makes more
    /// files.
    pub(crate) file_bytes_max: usize,
    /// Maximum number of rows that one proof of a restore's earlier rows checks; bounds the memory for their hashes.
    pub(crate) check_rows_max: usize,
    /// About how many ranges the record of a restore may list. Above that, wrong ranges are fetched whole, and listed
    /// as one with adjacent ranges. Bounds the record, which is written with every step.
    pub(crate) restore_spans_max: usize,
    /// Maximum number of rows that one rollback may change: with their paths a GiB, held twice.
    pub(crate) rollback_rows_max: usize,
    /// Rows that one step of a scrub compares, which takes some ten milliseconds.
    pub(crate) scrub_rows: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            provable_batches: PROVABLE_BATCHES,
            provable_delta_bytes_max: 2 << 20,
            held_batches: 256,
            history_slack_batches: 1_024,
            log_slack_batches: 64,
            log_bytes_max: 512 << 20,
            seal_batches: 64,
            seal_bytes_at_once: 64 << 20,
            seal_pause_batches: 64,
            headers_step_batches: 1_024,
            touched_min: 1 << 16,
            touched_at_close_min: 1 << 14,
            file_bytes_min: 128 << 10,
            file_bytes_max: 32 << 20,
            check_rows_max: 65_536,
            restore_spans_max: 4_096,
            rollback_rows_max: 4 << 20,
            scrub_rows: 12_000,
        }
    }
}
