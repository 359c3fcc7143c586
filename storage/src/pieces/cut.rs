//! [`Cutter`]: divides rows, in the order of their paths, at prefixes of these paths, in one pass.

use std::ops::ControlFlow;

use slipstream_types::Path;

use super::{PIECE_BITS_MIN, PIECE_ROWS_BYTES_MAX, Piece};
use crate::{error::StorageError, place::PathPrefix, snapshot::Snapshot};

/// All items whose paths are in one place, a [`PathPrefix`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    pub(super) place: PathPrefix,
    /// The items' bytes.
    pub(super) items: Vec<u8>,
    pub(super) paths: Vec<Path>,
    /// Where each item ends.
    pub(super) ends: Vec<u32>,
}

/// Receives each cut, and returns whether to continue.
pub(super) type Visit<'a> = dyn FnMut(Cut) -> Result<ControlFlow<()>, StorageError> + 'a;

/// Cuts a place into the largest places in it that have at most `bytes_max` bytes of items each.
pub(super) struct Cutter {
    bytes_max: usize,
    /// The cut that is being collected.
    open: Cut,
    /// The places after it; the next one is last.
    later: Vec<PathPrefix>,
}

impl Cutter {
    pub(super) fn new(place: PathPrefix, bytes_max: usize) -> Cutter {
        let open = Cut { place, items: Vec::new(), paths: Vec::new(), ends: Vec::new() };
        Cutter { bytes_max, open, later: Vec::new() }
    }

    /// Adds the next item. Hands over the cuts that it completes.
    pub(super) fn push(
        &mut self,
        path: Path,
        item: &[u8],
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>, StorageError> {
        while !self.open.place.contains(&path) {
            let next = self.later.pop();
            let next = next.ok_or_else(|| StorageError::corrupt(format!("path {path:?} is out of order")))?;
            if self.hand_over(next, visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.open.items.extend_from_slice(item);
        self.open.paths.push(path);
        self.open.ends.push(self.open.items.len() as u32);
        // One item is never too long, and a place with all bits holds one.
        while self.open.items.len() > self.bytes_max && self.open.paths.len() > 1 {
            if self.divide(visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Hands over the last cut.
    pub(super) fn finish(mut self, visit: &mut Visit<'_>) -> Result<(), StorageError> {
        let place = self.open.place;
        // Nothing comes after the last cut, so the visitor's answer does not matter.
        self.hand_over(place, visit).map(|_| ())
    }

    /// Hands over the open place, which is complete, and opens the next one.
    fn hand_over(
        &mut self,
        next: PathPrefix,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>, StorageError> {
        let empty = Cut { place: next, items: Vec::new(), paths: Vec::new(), ends: Vec::new() };
        let whole = std::mem::replace(&mut self.open, empty);
        if whole.paths.is_empty() { Ok(ControlFlow::Continue(())) } else { visit(whole) }
    }

    /// Divides the open place, which has too much: its left half is complete, or still open if the last item is
    /// there.
    fn divide(&mut self, visit: &mut Visit<'_>) -> Result<ControlFlow<()>, StorageError> {
        let place = self.open.place;
        let (left, right) = (place.child(false), place.child(true));
        let count = self.open.paths.partition_point(|path| !path.bit(place.bits()));
        if count == self.open.paths.len() {
            self.open.place = left;
            self.later.push(right);
            return Ok(ControlFlow::Continue(()));
        }
        let paths = self.open.paths.split_off(count);
        let bytes = self.open.ends[..count].last().copied().unwrap_or(0);
        let ends = self.open.ends.split_off(count).into_iter().map(|end| end - bytes).collect();
        let items = self.open.items.split_off(bytes as usize);
        self.open.place = left;
        let broken = self.hand_over(right, visit)?;
        self.open = Cut { place: right, items, paths, ends };
        Ok(broken)
    }
}

impl Snapshot {
    /// Returns the places whose pieces can be made in parallel; together they are all paths, in their order.
    pub fn piece_ranges() -> Vec<PathPrefix> {
        let bits = usize::from(PIECE_BITS_MIN);
        let place = |i: u16| {
            let mut path = Path::MIN;
            path.0[0] = (i << (8 - bits)) as u8;
            PathPrefix::new(&path, bits)
        };
        (0..1u16 << bits).map(place).collect()
    }

    /// Makes the pieces of one of [`Snapshot::piece_ranges`], in order. They depend on the rows alone, and need no
    /// tree.
    ///
    /// # Errors
    /// Errors of the disk or the visitor.
    pub fn pieces(
        &self,
        range: PathPrefix,
        visit: &mut dyn FnMut(Piece) -> Result<ControlFlow<()>, StorageError>,
    ) -> Result<(), StorageError> {
        let mut cutter = Cutter::new(range, PIECE_ROWS_BYTES_MAX);
        let mut is_over = false;
        self.scan_rows(range.span(), &mut |path, row| {
            let going = cutter.push(path, row, &mut |cut| visit(Piece::of_cut(cut)))?;
            is_over = going.is_break();
            Ok(going)
        })?;
        match is_over {
            true => Ok(()),
            false => cutter.finish(&mut |cut| visit(Piece::of_cut(cut))),
        }
    }
}
