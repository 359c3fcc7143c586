//! [`Store::scrub`]: compares the state's rows with the tree, a little at a time, while the store is in use.
//!
//! A store that was opened by its tree's upper part ([`crate::frontier`]) has read hardly any row. Commits and proofs
//! compare the rows that they touch; the scrub reaches all others in turn. A step does what a peer does with a chunk:
//! it takes the rows between two paths, and a proof that none is missing.

use std::{
    ops::ControlFlow,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use slipstream_types::{Path, tree::Leaves};

use crate::{backend::Direction, error::StorageError, schema, store::Store};

/// The progress of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubProgress {
    /// Where the next step begins; `None` if the last rows were compared.
    pub next: Option<Path>,
    /// Rows that were compared.
    pub rows: u64,
    /// Time spent comparing them, without waits for commits.
    pub time: Duration,
}

impl Store {
    /// Compares some of the head's rows from a path on with the tree. It takes some ten milliseconds; the caller decides how often.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] names rows that do not match the state root; or errors of the disk.
    pub fn scrub(&self, from: Path) -> Result<ScrubProgress, StorageError> {
        let (current, tree) = self.current_with_tree()?;
        let (start, rows_max) = (Instant::now(), self.0.config.tuning.scrub_rows);
        let mut leaves = Leaves::default();
        current.reader.scan(current.record.active.column(), &from.0, Direction::Up, &mut |key, row| {
            leaves.push(Path(schema::decode_digest(key)?.0), row);
            Ok(if leaves.len() < rows_max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        let leaves = leaves.finish();
        let last = leaves.last().filter(|_| leaves.len() == rows_max).map_or(Path::MAX, |leaf| leaf.path);
        let proof = tree.prove(&from, &last)?;
        proof.verify(current.head.header.state_root, from, last, &leaves).map_err(|error| {
            StorageError::corrupt(format!(
                "the state rows from {from:?} to {last:?} do not match the head's state: {error}"
            ))
        })?;
        Ok(ScrubProgress { next: last.successor(), rows: leaves.len() as u64, time: start.elapsed() })
    }

    /// Records that a whole round found nothing: every row was compared with the tree since the store was opened.
    pub fn end_scrub(&self) {
        self.0.unread.store(false, Ordering::Release);
    }
}
