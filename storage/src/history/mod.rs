//! States of the past: the rows as they were before the last batches changed them.
//!
//! ```text
//!                       ┌─▶ held: the last heads' own readers                     this process alone, the newest 256 batches
//!  commit ─▶ one write ─┤
//!                       └─▶ log: last batch ─▶ the rows before those of the write  what a restart finds
//!                             │ sealed, in bulk
//!                             ▼
//!                           history: path, batch ─▶ the row before that batch; empty: there was none
//!
//!  state n:  a held state itself; else of a path the entry of the first batch after n, up to the next state that is held; without one, that
//!            state's row
//! ```
//! So a commit writes one value, and a recent state is read as the head's. An old state costs one seek a read, however old it is. A restart
//! ends the held states; the store then seals the log at once, and searches it until that is done.
//!
//! A value is written with the batches that make it, by whichever way they came, so that a kill leaves no gap. Data beyond the window goes
//! unread: log files whole, and history entries when RocksDB compacts their file.
//!
//! While the store catches up, it skips batches before the window of its future head ([`crate::Store::keep_history`]): nobody could
//! ask for those states by then. After a state that came by another way than by batches the window begins anew; what lies before that
//! state comes back by reverse deltas, see [`reverse`].
//!
//! A record names the first known state; the commit that moves it up writes it. That record alone drops entries: a wider configured
//! window shows no older states.

pub(crate) mod facts;
pub(crate) mod held;
pub(crate) mod log;
pub(crate) mod past;
pub(crate) mod record;
pub(crate) mod reverse;
pub(crate) mod seal;
mod window;
