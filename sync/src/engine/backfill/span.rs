//! [`next_span`]: decides which batches, and which of their parts, a backfill fetches next. It is a pure function of
//! what is missing and of what peers keep.

use std::cmp::Reverse;

use slipstream_storage::Backlog;
use slipstream_types::BatchNumber;

use crate::{peers::Holdings, protocol::Parts};

/// The parts that a backfill fetches, in the order of a store's backlog. Batches may lack hints, so hints come with
/// deltas and are no reason to ask.
const PARTS: [Parts; 3] = [Parts::BODY, Parts::RECEIPTS, Parts::DELTA];
/// The index of hints in a backlog.
const HINTS: usize = 3;

/// Consecutive batches that lack the same parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MissingSpan {
    pub(super) first: BatchNumber,
    pub(super) last: BatchNumber,
    pub(super) parts: Parts,
}

impl MissingSpan {
    /// Number of batches.
    pub(super) fn batches(&self) -> u64 {
        self.last.since(self.first) + 1
    }

    /// Whether a peer keeps all of this span.
    pub(super) fn is_kept_by(&self, peer: &Holdings) -> bool {
        let is_kept = |(part, from): (&Parts, &Option<BatchNumber>)| {
            !self.parts.has(*part) || from.is_some_and(|from| from <= self.first)
        };
        peer.head >= self.last && PARTS.iter().zip(&peer.from).all(is_kept)
    }

    /// Whether this span lies, for each of its parts, right below the stored batches or below those stored before the
    /// last batches came without that part.
    pub(super) fn is_next(&self, backlog: &[Backlog; 4]) -> bool {
        let is_next = |(part, of_part): (&Parts, &Backlog)| {
            let firsts = [Some(of_part.lowest), of_part.kept.map(|(first, _)| first)];
            !self.parts.has(*part) || firsts.contains(&Some(self.last.next()))
        };
        PARTS.iter().zip(backlog).all(is_next)
    }
}

/// Returns the newest missing batches that a peer keeps. They have as many parts as one peer keeps, and reach as far
/// down as a peer keeps those parts.
pub(super) fn next_span(backlog: &[Backlog; 4], peers: &[Holdings]) -> Option<MissingSpan> {
    let spans = peers.iter().filter_map(|peer| span_of(backlog, peer));
    spans.max_by_key(|span| (span.last, span.parts.0.count_ones(), Reverse(span.first)))
}

/// The newest missing batches that a peer keeps.
fn span_of(backlog: &[Backlog; 4], peer: &Holdings) -> Option<MissingSpan> {
    let missing = || {
        let of_parts = PARTS.into_iter().zip(backlog).zip(peer.from);
        of_parts.filter_map(|((part, of_part), from)| {
            let first = of_part.wanted_from.max(from?);
            (first < of_part.lowest).then_some((part, of_part, first))
        })
    };
    let last = missing().map(|(_, of_part, _)| of_part.lowest.before(1)).max()?;
    let mut span = MissingSpan { first: BatchNumber::GENESIS, last, parts: Parts(0) };
    for (part, of_part, first) in missing() {
        if of_part.lowest <= last {
            // Below `lowest`, this part is missing too.
            span.first = span.first.max(of_part.lowest);
            continue;
        }
        let above_kept = of_part.kept.map_or(BatchNumber::GENESIS, |(_, to)| to.next());
        (span.first, span.parts) = (span.first.max(first).max(above_kept), span.parts.with(part));
    }
    if span.parts.has(Parts::DELTA) && backlog[HINTS].wanted_from <= last {
        span.parts = span.parts.with(Parts::HINTS);
    }
    Some(span).filter(|span| span.first <= span.last && span.is_kept_by(peer))
}

#[cfg(test)]
mod tests {
    use slipstream_types::BlobKind;

    use super::*;
    use crate::engine::rig::{A, B};

    /// A backlog of bodies, receipts, deltas and hints; each is given by its lowest stored batch and its first wanted
    /// one.
    fn backlog(of_parts: [(u64, u64); 4]) -> [Backlog; 4] {
        of_parts.map(|(lowest, wanted_from)| Backlog {
            kind: BlobKind::Body,
            lowest: BatchNumber::new(lowest),
            wanted_from: BatchNumber::new(wanted_from),
            kept: None,
        })
    }

    fn keeps(from: [Option<u64>; 3]) -> Holdings {
        let from = from.map(|from| from.map(BatchNumber::new));
        Holdings { peer: A, head: BatchNumber::new(900), from, states_from: None }
    }

    fn span(first: u64, last: u64, parts: &[Parts]) -> Option<MissingSpan> {
        let parts = parts.iter().fold(Parts(0), |all, part| all.with(*part));
        Some(MissingSpan { first: BatchNumber::new(first), last: BatchNumber::new(last), parts })
    }

    const ALL: [Parts; 4] = [Parts::BODY, Parts::RECEIPTS, Parts::DELTA, Parts::HINTS];

    #[test]
    fn a_span_lacks_the_same_parts() {
        let all = keeps([Some(1); 3]);
        let next = |of_parts| next_span(&backlog(of_parts), std::slice::from_ref(&all));
        assert_eq!(next([(501, 1); 4]), span(1, 500, &ALL));
        assert_eq!(next([(1, 1); 4]), None);
        assert_eq!(next([(501, 501), (501, 401), (501, 1), (501, 501)]), span(401, 500, &ALL[1..3]));
        assert_eq!(next([(501, 501), (401, 401), (401, 1), (501, 501)]), span(1, 400, &ALL[2..3]));
        // Bodies come alone at first, until the other parts are missing too.
        assert_eq!(next([(501, 1), (301, 1), (301, 1), (301, 1)]), span(301, 500, &ALL[..1]));
        assert_eq!(next([(301, 1), (301, 1), (301, 1), (400, 1)]), span(1, 300, &ALL));
    }

    #[test]
    fn a_span_ends_above_what_is_kept() {
        let mut backlog = backlog([(501, 1); 4]);
        backlog[1].kept = Some((BatchNumber::new(5), BatchNumber::new(77)));
        assert_eq!(next_span(&backlog, &[keeps([Some(1); 3])]), span(78, 500, &ALL));
    }

    /// Goal: while one peer has all parts, it is asked for all. Then each part comes from the peers that keep it.
    #[test]
    fn peers_that_keep_less_serve_what_they_keep() {
        let (all, bodies) = (keeps([Some(300); 3]), keeps([Some(1), Some(1), None]));
        let deltas = keeps([None, None, Some(200)]);
        let peers = [bodies.clone(), all.clone(), deltas];
        assert_eq!(next_span(&backlog([(501, 1); 4]), &peers), span(300, 500, &ALL));
        assert_eq!(next_span(&backlog([(300, 1); 4]), &peers), span(1, 299, &ALL[..2]));
        assert_eq!(
            next_span(&backlog([(1, 1), (1, 1), (300, 1), (300, 1)]), &peers),
            span(200, 299, &ALL[2..])
        );
        assert_eq!(next_span(&backlog([(1, 1), (1, 1), (200, 1), (300, 1)]), &peers), None);
        let behind = Holdings { head: BatchNumber::new(499), peer: B, ..all };
        assert_eq!(next_span(&backlog([(501, 1); 4]), &[behind]), None);
    }
}
