//! [`KeptRecord`]: the blobs that are kept below the gap that a leap left. A backfill that reaches them joins them.
//!
//! ```text
//!   1 … 900 kept │ 901 … 5000 gap │ 5001 … head: all stored       a leap led from batch 900 to batch 5000
//! ```
//! The record says only where blobs are. The backfill compares the headers' digests to find out whether they are of
//! the same ledger.

use serde::{Deserialize, Serialize};
use slipstream_types::BatchNumber;

use crate::{
    backend::{Column, Reader, WriteBatch},
    error::StorageError,
    schema::{self, HeadRecord, KEPT_KEY, KINDS, PrunedRecord},
};

/// Maximum number of spans that are remembered per kind. Beyond that the shortest is forgotten, and would be fetched again.
const SPANS_MAX: usize = 16;

/// Batches, from the first to the last, whose blobs of one kind are all stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct KeptSpan {
    pub(crate) first: BatchNumber,
    pub(crate) last: BatchNumber,
}

/// For each kind of [`KINDS`], the spans below the batch that [`HeadRecord::lowest`] names, in ascending order.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct KeptRecord {
    spans: [Vec<KeptSpan>; KINDS.len()],
}

impl KeptRecord {
    pub(crate) fn read(reader: &(impl Reader + ?Sized)) -> Result<KeptRecord, StorageError> {
        let bytes = reader.get(Column::Meta, KEPT_KEY)?;
        Ok(bytes.map(|bytes| schema::decode("kept spans", &bytes)).transpose()?.unwrap_or_default())
    }

    pub(crate) fn put(&self, writes: &mut WriteBatch) {
        writes.put(Column::Meta, KEPT_KEY, schema::encode(self));
    }

    /// Records the blobs that are stored up to the head, and that a leap is about to leave below a gap.
    pub(crate) fn leave(&mut self, head: &HeadRecord, pruned: &PrunedRecord) {
        (0..KINDS.len()).for_each(|kind| self.leave_kind(kind, head, pruned));
    }

    /// As [`KeptRecord::leave`], for one kind that the next batch lacks.
    pub(crate) fn leave_kind(&mut self, kind: usize, head: &HeadRecord, pruned: &PrunedRecord) {
        self.prune(pruned);
        let span = KeptSpan { first: head.lowest[kind].max(pruned.below[kind]), last: head.number };
        if span.first <= span.last {
            self.add(kind, span);
        }
    }

    /// Adds a span of a kind, and joins it with the spans that it touches.
    pub(crate) fn add(&mut self, kind: usize, mut span: KeptSpan) {
        let spans = &mut self.spans[kind];
        spans.retain(|other| {
            let is_apart = other.last.next() < span.first || span.last.next() < other.first;
            if !is_apart {
                span = KeptSpan { first: span.first.min(other.first), last: span.last.max(other.last) };
            }
            is_apart
        });
        spans.insert(spans.partition_point(|other| other.last < span.first), span);
        while spans.len() > SPANS_MAX {
            let lengths = spans.iter().map(|span| span.last.since(span.first)).enumerate();
            let Some((shortest, _)) = lengths.min_by_key(|(_, length)| *length) else { return };
            spans.remove(shortest);
        }
    }

    /// Forgets what was pruned.
    pub(crate) fn prune(&mut self, pruned: &PrunedRecord) {
        for (spans, floor) in self.spans.iter_mut().zip(pruned.below) {
            spans.retain_mut(|span| {
                span.first = span.first.max(floor);
                span.first <= span.last
            });
        }
    }

    /// Returns the highest span of a kind that ends below a batch, without its pruned part.
    pub(crate) fn below(&self, kind: usize, number: BatchNumber, floor: BatchNumber) -> Option<KeptSpan> {
        let span = self.spans[kind].iter().rev().find(|span| span.last < number)?;
        (span.last >= floor).then_some(KeptSpan { first: span.first.max(floor), last: span.last })
    }

    /// Forgets the span of a kind that contains a batch.
    pub(crate) fn forget(&mut self, kind: usize, number: BatchNumber) {
        self.spans[kind].retain(|span| number < span.first || span.last < number);
    }

    /// Cuts the spans for a head that goes back to the batch `to`. If a span then ends at the head, its first batch becomes the kind's
    /// `lowest`.
    pub(crate) fn cut(&mut self, to: BatchNumber, lowest: &mut [BatchNumber; KINDS.len()]) {
        for (spans, lowest) in self.spans.iter_mut().zip(lowest) {
            spans.retain_mut(|span| {
                span.last = span.last.min(to);
                span.first <= span.last
            });
            if let Some(span) = spans.pop_if(|span| span.last.next() >= *lowest) {
                *lowest = span.first.min(*lowest);
            }
        }
    }

    /// Removes the spans of a kind that reach a batch. Returns the first batch of the span that contains the batch.
    pub(crate) fn take(&mut self, kind: usize, number: BatchNumber) -> Option<BatchNumber> {
        let spans = &mut self.spans[kind];
        let found =
            spans.iter().find(|span| span.first <= number && number <= span.last).map(|span| span.first);
        spans.retain(|span| span.last < number);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::StateColumn;

    fn head(number: u64, lowest: u64) -> HeadRecord {
        let lowest = [BatchNumber::new(lowest); 4];
        HeadRecord { number: BatchNumber::new(number), active: StateColumn::A, lowest }
    }

    /// Goal: each leap leaves a span, pruning cuts spans, and a backfill takes them from the top.
    #[test]
    fn spans_are_left_cut_and_taken() {
        let number = BatchNumber::new;
        let mut kept = KeptRecord::default();
        kept.leave(&head(9, 10), &PrunedRecord::default());
        assert_eq!(kept, KeptRecord::default(), "nothing was stored");
        kept.leave(&head(20, 5), &PrunedRecord::default());
        kept.leave(&head(60, 51), &PrunedRecord::default());
        let below = |kept: &KeptRecord, at, floor| {
            kept.below(0, number(at), number(floor)).map(|span| (span.first.get(), span.last.get()))
        };
        assert_eq!(below(&kept, 80, 0), Some((51, 60)));
        assert_eq!(below(&kept, 80, 55), Some((55, 60)));
        assert_eq!(below(&kept, 60, 0), Some((5, 20)));
        assert_eq!(below(&kept, 60, 21), None, "it was pruned");
        kept.prune(&PrunedRecord { below: [55, 61, 0, 12].map(number) });
        assert_eq!(kept.take(0, number(60)), Some(number(55)));
        assert_eq!(below(&kept, 80, 0), None);
        assert_eq!(kept.take(1, number(60)), None);
        assert_eq!(kept.take(2, number(60)), Some(number(51)));
        assert_eq!(kept.take(2, number(20)), Some(number(5)));
        assert_eq!(kept.take(3, number(59)), Some(number(51)), "and the span is taken");
        assert_eq!(kept.take(3, number(13)), Some(number(12)));
    }

    /// Goal: spans that touch become one, in whatever order they come.
    #[test]
    fn spans_that_touch_are_joined() {
        let mut kept = KeptRecord::default();
        for (first, last) in [(50, 60), (1, 30), (40, 45), (46, 49), (31, 38)] {
            kept.add(0, KeptSpan { first: BatchNumber::new(first), last: BatchNumber::new(last) });
        }
        let spans: Vec<_> = kept.spans[0].iter().map(|span| (span.first.get(), span.last.get())).collect();
        assert_eq!(spans, [(1, 38), (40, 60)]);
    }

    /// Goal: a rollback leaves no span of batches that are gone. What is then complete up to the head counts as such.
    #[test]
    fn a_rollback_cuts_what_is_kept() {
        let number = BatchNumber::new;
        let kept = || {
            let mut kept = KeptRecord::default();
            kept.leave(&head(8, 3), &PrunedRecord::default());
            kept.leave(&head(20, 13), &PrunedRecord::default());
            kept
        };
        for (to, lowest, left) in
            [(30, 26, Some((13, 20))), (18, 13, Some((3, 8))), (10, 11, Some((3, 8))), (5, 3, None)]
        {
            let (mut kept, mut moved) = (kept(), [number(26).min(number(to).next()); 4]);
            kept.cut(number(to), &mut moved);
            assert_eq!(moved, [number(lowest); 4], "to {to}");
            let highest = kept.spans[0].last().map(|span| (span.first.get(), span.last.get()));
            assert_eq!(highest, left, "to {to}");
        }
    }

    /// Goal: many short gaps do not make a node fetch again what lies below them.
    #[test]
    fn the_shortest_spans_are_forgotten() {
        let mut kept = KeptRecord::default();
        kept.leave(&head(900, 1), &PrunedRecord::default());
        for leap in 1..=SPANS_MAX as u64 + 3 {
            let last = 1_000 + 10 * leap;
            kept.leave(&head(last, last - leap % 5), &PrunedRecord::default());
        }
        assert_eq!(kept.spans[0].len(), SPANS_MAX);
        assert_eq!(kept.spans[0][0].last, BatchNumber::new(900));
        assert!(kept.spans[0].is_sorted_by_key(|span| span.last));
    }
}
