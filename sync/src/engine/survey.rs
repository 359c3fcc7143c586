//! The survey: headers along the gap. Their totals show how much work lies where, before anything else is fetched.

use std::{collections::BTreeSet, time::Duration};

use slipstream_types::{BatchNumber, Certificate, bounded::BoundedVec, codec};
use tokio::time::Instant;

use super::{
    Engine,
    streams::{Key, Requirement},
};
use crate::{
    config::Mode,
    error::Fault,
    plan::Candidate,
    protocol::{ANSWER_BYTES_MAX, Request, Survey},
    verify,
};

/// A gap is surveyed if more than this many of its batches lie behind the last known header.
const GAP_MIN: u64 = 16;
/// A gap is surveyed again once the unknown part exceeds one batch in this many, because the target moves.
const UNKNOWN_SHARE: u64 = 8;
/// In a gap of at most this many batches nothing waits for the survey: its first ranges are as good as any other way.
const WAIT_GAP_MIN: u64 = 64;
/// How long the first plan waits for the survey.
const PATIENCE: Duration = Duration::from_secs(2);
/// Number of headers at even distances along the gap.
const EVEN_HEADERS: u64 = 16;
/// Number of headers at snapshots: the newest ones that peers offer.
const SNAPSHOT_HEADERS: usize = 8;
/// Approximate bytes of a header with its proof.
const HEADER_BYTES: u64 = 1_200;

/// A survey that was requested.
#[derive(Debug)]
pub(super) struct PendingSurvey {
    /// The target's certificate, which proves the headers.
    certificate: Certificate,
    /// When the first survey was requested.
    since: Instant,
}

impl Engine {
    /// Asks for headers along the gap, where they are unknown. Returns whether the first plan waits for them. A pinned
    /// mode has no choice, and uses them only to report progress.
    pub(super) fn awaits_survey(&mut self, candidates: &[Candidate], now: Instant) -> bool {
        let keeping = candidates.iter().filter(|peer| peer.keeps_batches());
        let Some(target) = keeping.map(|peer| peer.head).max() else { return false };
        let gap = target.since(self.head);
        let known = self.course.last().unwrap_or_default().max(self.head);
        let is_unknown = target.since(known) > GAP_MIN.max(gap / UNKNOWN_SHARE);
        if is_unknown && !self.streams.is_wanted(&Key::Survey) {
            self.survey(target, candidates, now);
        }
        known == self.head
            && gap > WAIT_GAP_MIN
            && self.config.mode == Mode::Auto
            && self.pipeline.is_empty()
            && self.streams.is_wanted(&Key::Survey)
            && self.survey_ends().is_some_and(|ends| now < ends)
    }

    fn survey(&mut self, target: BatchNumber, candidates: &[Candidate], now: Instant) {
        let Some(certificate) = self.book.certificate(target).cloned() else { return };
        let since = self.surveying.as_ref().map_or(now, |surveying| surveying.since);
        self.surveying = Some(PendingSurvey { certificate, since });
        let numbers = places(self.head, target, candidates);
        let bytes = numbers.len() as u64 * HEADER_BYTES;
        let Ok(numbers) = BoundedVec::new(numbers) else { return };
        let request = Request::Survey { numbers, last: target };
        self.streams.want(Key::Survey, request, Requirement::Head(target), bytes);
    }

    /// When the first plan stops waiting for the headers; `None` if none were requested.
    pub(super) fn survey_ends(&self) -> Option<Instant> {
        self.surveying.as_ref().map(|surveying| surveying.since + PATIENCE)
    }

    /// Takes headers that pass their checks.
    ///
    /// # Errors
    /// If the answer is a lie.
    pub(super) fn take_survey(&mut self, request: &Request, answer: &[u8]) -> Result<(), Fault> {
        let Request::Survey { numbers, last } = request else { return Ok(()) };
        let survey: Survey = codec::decode("survey", answer, ANSWER_BYTES_MAX)?;
        if let Some(PendingSurvey { certificate, .. }) =
            self.surveying.as_ref().filter(|surveying| surveying.certificate.info.number == *last)
        {
            verify::survey(&survey, numbers, certificate)?;
            for placed in survey.headers.iter() {
                self.course.mark(placed.header.number, placed.header.totals);
            }
        }
        self.streams.settle(&Key::Survey, &mut self.effects);
        Ok(())
    }
}

/// The batches whose headers say most: at even distances up to the target, and at the newest snapshots on the way.
fn places(head: BatchNumber, target: BatchNumber, candidates: &[Candidate]) -> Vec<BatchNumber> {
    let gap = target.since(head);
    let even = (1..=EVEN_HEADERS)
        .map(|part| head.after((u128::from(gap) * u128::from(part) / u128::from(EVEN_HEADERS)) as u64));
    let offered = candidates.iter().flat_map(|peer| &peer.snapshots).map(|offered| offered.number);
    let offered: BTreeSet<BatchNumber> =
        offered.filter(|number| *number > head && *number < target).collect();
    let places: BTreeSet<BatchNumber> =
        even.chain(offered.into_iter().rev().take(SNAPSHOT_HEADERS)).collect();
    places.into_iter().filter(|number| *number > head).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::RANGE_DELTA_BATCHES_MAX,
        protocol::{SURVEY_HEADERS_MAX, SnapshotOffer},
    };

    fn number(number: u64) -> BatchNumber {
        BatchNumber::new(number)
    }

    /// Goal: a survey has the target's header, lies within the gap, and is short however many snapshots are promised.
    #[test]
    fn a_survey_spans_the_gap_and_is_short() {
        let offers = |numbers: std::ops::Range<u64>| {
            let snapshots = numbers.map(|at| SnapshotOffer::new(number(at), 1_000)).collect();
            [Candidate {
                peer: slipstream_types::PublicKey([1; 32]),
                head: number(1_000),
                replay_from: None,
                delta_from: None,
                whole_from: None,
                range_delta_from: None,
                snapshots,
                bytes_per_second: 1e6,
                is_proven: false,
            }]
        };
        for (head, target, candidates) in [
            (0, 1_000, offers(900..950)),
            (0, 17, offers(3..4)),
            (10, 27, offers(1..900)),
            (0, RANGE_DELTA_BATCHES_MAX * 1_000, offers(0..0)),
            (0, u64::MAX, offers(0..0)),
        ] {
            let places = places(number(head), number(target), &candidates);
            assert!(places.len() <= SURVEY_HEADERS_MAX, "{places:?}");
            assert!(places.is_sorted() && places.first().is_some_and(|first| *first > number(head)));
            assert_eq!(places.last(), Some(&number(target)));
        }
        let places = places(number(0), number(1_000), &offers(900..950));
        assert!(places.contains(&number(949)) && !places.contains(&number(910)), "{places:?}");
    }
}
