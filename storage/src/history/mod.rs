//! States of the past: what the rows were before the last batches changed them.
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
//! So a commit writes one value, a recent state is read as the head's, and an old one costs nothing that grows with its age: one seek a read.
//! What is held and what is in the log ends with a restart: the log is then sealed at once, and searched as it is until it is.
//!
//! A value is written with the batches that make it, by whichever way they came, so that a kill leaves no gap. What is beyond the window goes
//! without being read: with its files from the log, and when RocksDB compacts its file from the history.
//!
//! Of batches that lie before the window of the head that somebody is on the way to nothing is recorded ([`crate::Store::keep_history`]):
//! nobody could ask for those states when it is there. After a state that came by another way than by batches the window begins anew.
//!
//! The first state that is known is a record, written with the commit that moves it up. Entries are dropped by that record, never by the
//! configuration: so a wider window shows no more than what is there.

pub(crate) mod facts;
pub(crate) mod held;
pub(crate) mod log;
pub(crate) mod past;
pub(crate) mod record;
pub(crate) mod seal;
mod window;
