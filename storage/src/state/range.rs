//! [`Range`]: all paths that share some first bits, and the rows below them.

use slipstream_types::{Path, tree::Leaf};

use super::RowSource;
use crate::error::StorageError;

/// All paths that share some first bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Range {
    pub(super) first: Path,
    pub(super) last: Path,
}

impl Range {
    /// The range of paths that share the first `bits` bits of `path`.
    pub(super) fn below(path: &Path, bits: usize) -> Range {
        let (mut first, mut last) = (*path, *path);
        if let Some(byte) = first.0.get_mut(bits / 8) {
            *byte &= !(0xff >> (bits % 8));
            first.0[bits / 8 + 1..].fill(0);
            last.0[bits / 8] |= 0xff >> (bits % 8);
            last.0[bits / 8 + 1..].fill(0xff);
        }
        Range { first, last }
    }

    pub(super) fn leaves(&self, rows: &dyn RowSource) -> Result<Vec<Leaf>, StorageError> {
        rows.leaves(&self.first, &self.last)
    }

    /// The error for rows that do not match the hash.
    pub(super) fn refuse(&self) -> StorageError {
        let Range { first, last } = self;
        StorageError::corrupt(format!(
            "the state rows from {first:?} to {last:?} do not match the state root"
        ))
    }
}
