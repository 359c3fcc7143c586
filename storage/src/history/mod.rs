//! Past states: the rows as they were before the last batches changed them.
//!
//! ```text
//!                       ┌─▶ held: the last heads' own readers                     this process alone, the newest 256 batches
//!  commit ─▶ one write ─┤
//!                       └─▶ log: last batch ─▶ the rows that the write replaces    what a restart finds
//!                             │ sealed, in bulk
//!                             ▼
//!                           history: path, batch ─▶ the row before that batch; empty: there was none
//!
//!  state n:  a held state itself; else, for each path, the entry of the first batch after n, up to the next state that is held;
//!            without an entry, that state's row
//! ```
//! So a commit writes one value, and a recent state is read like the head's. An old state costs one seek a read,
//! however old it is. A restart drops the held states; the store then seals the log at once, and searches it until
//! that is done.
//!
//! A value is written in one write with its batches, whatever their source, so that a kill leaves no gap. Data beyond
//! the window is dropped unread: log files whole, and history entries when RocksDB compacts their file.
//!
//! While the store catches up, it skips batches before the window of its future head
//! ([`crate::Store::keep_history`]): nobody could ask for those states by then. A state that did not come by batches
//! restarts the window; reverse deltas restore the states before it, see [`crate::reverse_delta`].
//!
//! A record names the first known state; the commit that raises that state writes the record. Only the record makes the
//! store drop entries, so a wider configured window shows no older states.
//!
//! This module finds and seals the stored rows. [`crate::past_states`], above the store's handle, records them with
//! each commit and shows the states.

pub(crate) mod held_states;
pub(crate) mod past_rows;
pub(crate) mod past_state;
pub(crate) mod seal;
