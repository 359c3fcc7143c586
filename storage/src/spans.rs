//! [`Spans`]: a set of paths of a state, as disjoint ranges.

use serde::{Deserialize, Serialize};
use slipstream_types::Path;

use crate::{
    density::{Density, RANGES_WANTED},
    span::{Span, predecessor},
};

/// Disjoint spans in ascending order. Adjacent spans are not joined, because each has its own worker.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Spans(Vec<Span>);

impl Spans {
    /// See [`Span::divided`].
    pub(crate) fn divided(bits: u8) -> Spans {
        Spans(Span::divided(bits))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Span> {
        self.0.iter().copied()
    }

    pub(crate) fn first(&self) -> Option<Span> {
        self.0.first().copied()
    }

    /// The span that starts at exactly this path.
    pub(crate) fn starting_at(&self, first: Path) -> Option<Span> {
        self.0.binary_search_by_key(&first, |span| span.first).ok().map(|index| self.0[index])
    }

    /// Whether one of these spans contains all of `span`.
    pub(crate) fn contains(&self, span: Span) -> bool {
        self.within(span) == [span]
    }

    /// The parts of a span that lie in these spans.
    pub(crate) fn within(&self, span: Span) -> Vec<Span> {
        let from = self.0.partition_point(|other| other.last < span.first);
        self.0[from..].iter().map_while(|other| other.both(span)).collect()
    }

    pub(crate) fn remove(&mut self, span: Span) {
        let cut = |other: Span| {
            let before = predecessor(span.first).and_then(|last| other.both(Span { first: Path::MIN, last }));
            let after = span.last.successor().and_then(|first| other.both(Span { first, last: Path::MAX }));
            [before, after]
        };
        let from = self.0.partition_point(|other| other.last < span.first);
        let to = self.0.partition_point(|other| other.first <= span.last).max(from);
        let rest: Vec<Span> = self.0[from..to].iter().flat_map(|other| cut(*other)).flatten().collect();
        self.0.splice(from..to, rest);
    }

    /// Removes a chunk. If the chunk ended inside a span while there are few spans, divides the rest of that span, so
    /// that all of the rest is worked on at once.
    pub(crate) fn remove_chunk(&mut self, chunk: Span, density: Option<Density>) {
        let is_cut = self.iter().any(|span| span.first <= chunk.last && chunk.last < span.last);
        self.remove(chunk);
        let rest = chunk.last.successor().filter(|_| is_cut).and_then(|first| self.starting_at(first));
        if let (Some(rest), Some(density)) = (rest, density) {
            let parts = (RANGES_WANTED + 1).saturating_sub(self.len());
            let at = self.0.partition_point(|span| span.first < rest.first);
            self.0.splice(at..=at, density.divide(rest, parts));
        }
    }

    /// Adds a span that none of these overlaps.
    pub(crate) fn insert(&mut self, span: Span) {
        let at = self.0.partition_point(|other| other.first < span.first);
        self.0.insert(at, span);
    }

    /// As [`Spans::insert`], but joins the span with adjacent ones.
    pub(crate) fn insert_joined(&mut self, span: Span) {
        let touch = |before: &Span, after: &Span| before.last.successor() == Some(after.first);
        let at = self.0.partition_point(|other| other.first < span.first);
        let (mut from, mut to, mut joined) = (at, at, span);
        if let Some(before) = self.0[..at].last().filter(|before| touch(before, &span)) {
            (from, joined.first) = (at - 1, before.first);
        }
        if let Some(after) = self.0.get(at).filter(|after| touch(&span, after)) {
            (to, joined.last) = (at + 1, after.last);
        }
        self.0.splice(from..to, [joined]);
    }

    /// Returns all paths that are in none of these spans.
    pub(crate) fn complement(&self) -> Spans {
        let mut spans = Spans(vec![Span::ALL]);
        self.iter().for_each(|span| spans.remove(span));
        spans
    }

    /// Their share of all paths, from 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        self.iter().map(Span::share).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(i: u8) -> Path {
        let mut path = [0; 32];
        path[31] = i;
        Path(path)
    }

    fn span(a: u8, b: u8) -> Span {
        Span { first: path(a.min(b)), last: path(a.max(b)) }
    }

    /// Goal: only the rest of a chunk's own span is divided, and never a span that others work on.
    #[test]
    fn the_rest_of_a_chunk_alone_is_divided() {
        let whole = Spans::divided(1);
        let middle = whole.0[0].last;
        let density = |last: Path| Density::of(1_024, |index| if index == 1_023 { last } else { Path::MIN });
        let mut spans = whole.clone();
        spans.remove_chunk(whole.0[0], density(middle));
        assert_eq!(spans.0, whole.0[1..]);
        let (mut spans, mut last) = (whole.clone(), Path::MAX);
        last.0[0] = 0x07;
        spans.remove_chunk(Span { first: Path::MIN, last }, density(last));
        assert!(spans.len() > 3 && spans.contains(whole.0[1]), "{spans:?}");
        assert_eq!(spans.complement().0, [Span { first: Path::MIN, last }]);
    }

    #[test]
    fn divided_spans_are_everything() {
        for bits in 0..=8 {
            let spans = Spans::divided(bits);
            assert_eq!(spans.len(), 1 << bits);
            assert!(spans.complement().is_empty());
            assert!((spans.share() - 1.0).abs() < 0.02);
        }
        assert_eq!(Spans::divided(0).first(), Some(Span::ALL));
        assert_eq!(Spans::default().complement().first(), Some(Span::ALL));
    }

    #[test]
    fn neighbours_are_joined_when_asked_for() {
        let joined = |others: &[(u8, u8)], (a, b): (u8, u8)| {
            let mut spans = Spans(others.iter().map(|(a, b)| span(*a, *b)).collect());
            spans.insert_joined(span(a, b));
            spans.0
        };
        assert_eq!(joined(&[], (3, 4)), [span(3, 4)]);
        assert_eq!(joined(&[(0, 2), (5, 9)], (3, 4)), [span(0, 9)]);
        assert_eq!(joined(&[(0, 1), (5, 9)], (3, 4)), [span(0, 1), span(3, 9)]);
        assert_eq!(joined(&[(0, 2), (6, 9)], (3, 4)), [span(0, 4), span(6, 9)]);
    }

    proptest! {
        #[test]
        fn spans_behave_like_sets_of_paths(
            removed in prop::collection::vec((any::<u8>(), any::<u8>()), 0..20),
            probe in (any::<u8>(), any::<u8>()),
        ) {
            let mut spans = Spans::default();
            spans.insert(span(0, 255));
            let mut model = [true; 256];
            for (a, b) in removed {
                spans.remove(span(a, b));
                model[usize::from(a.min(b))..=usize::from(a.max(b))].fill(false);
            }
            let complement = spans.complement();
            for i in 0..=255u8 {
                let one = span(i, i);
                prop_assert_eq!(spans.contains(one), model[usize::from(i)]);
                prop_assert_eq!(complement.contains(one), !model[usize::from(i)]);
            }
            prop_assert!(spans.0.windows(2).all(|pair| pair[0].last < pair[1].first));
            for first in spans.iter().map(|span| span.first) {
                prop_assert!(spans.starting_at(first).is_some());
            }
            let probe = span(probe.0, probe.1);
            let inside: usize = spans.within(probe).iter().map(|s| usize::from(s.last.0[31] - s.first.0[31]) + 1).sum();
            let (from, to) = (usize::from(probe.first.0[31]), usize::from(probe.last.0[31]));
            prop_assert_eq!(inside, model[from..=to].iter().filter(|is_in| **is_in).count());
        }
    }
}
