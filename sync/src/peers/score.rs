//! [`Score`]: the worth of a peer, from what it proved. It is pure: the caller passes the time.
//!
//! ```text
//! speed       = log2(verified bytes per second / 1 KiB) / 20, from 0 to 1: each doubling counts the same
//! promptness  = 1 / (1 + tail / 2 s), the tail being the 95 % quantile of the time that a MiB or less takes
//! reliability = (1 - failures / requests)^2
//! hints       = 0.8 + 0.2 * match; match = 2 * keys named and read / (keys named + keys read), 0.5 while nothing is known
//! freshness   = 1 / (1 + (batches behind the best certified head - 8) / 100), at most 1
//! measured    = 1000 * speed * promptness * reliability * hints
//! score       = freshness * (200 + (measured - 200) * weight / (weight + 1))
//! ```
//!
//! The weight is the number of judged requests. The weight and all sums halve every [`HALF_LIFE`], so a peer that is
//! not measured any more returns to the score of an unknown one.

use std::time::Duration;

use tokio::time::Instant;

use crate::work::HintUse;

/// Half-life of a measurement. This is long enough for a stable order, and short enough that a mended peer comes back.
pub(crate) const HALF_LIFE: Duration = Duration::from_secs(300);
/// The points of an unknown peer. Low, so that fresh identities do not displace a peer that works.
pub(crate) const UNKNOWN: f64 = 200.0;
/// The latency histogram has a bucket per factor of the square root of 2, from 1 ms to 46 s: no deadline is longer.
const BUCKETS: usize = 32;
/// The share of the slowest answers that the tail latency leaves out.
const TAIL: f64 = 0.05;
/// Tail latency in seconds that halves the score.
const SLOW: f64 = 2.0;
/// A head that is at most this many batches behind shows only the age of the summary.
const LAG_FREE: u64 = 8;
/// Batches behind, beyond [`LAG_FREE`], that halve the score.
const LAG_HALF: f64 = 100.0;
/// Weight, in reads, of the match of one half that is presumed before a peer's hints are known.
const READS_UNKNOWN: f64 = 1_000.0;
/// A restored sum above this was not written by this program.
const SUM_MAX: f64 = 1e18;
/// Answers of fewer bytes take a round trip, and show no rate of their peer.
const LONG_BYTES: f64 = 65_536.0;
/// Number of sums in [`Score::sums`].
pub(crate) const SUMS: usize = 6;

/// Decayed sums of what one peer did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Score {
    /// The time to which the sums are decayed.
    at: Instant,
    bytes: f64,
    seconds: f64,
    answers: f64,
    failures: f64,
    hinted: f64,
    reads: f64,
    latency: [f64; BUCKETS],
    lag: u64,
}

impl Score {
    /// The score of an unknown peer.
    pub(crate) fn new(at: Instant) -> Score {
        Score {
            at,
            bytes: 0.0,
            seconds: 0.0,
            answers: 0.0,
            failures: 0.0,
            hinted: 0.0,
            reads: 0.0,
            latency: [0.0; BUCKETS],
            lag: 0,
        }
    }

    /// Counts an answer whose proofs were checked.
    pub(crate) fn verified(&mut self, now: Instant, bytes: usize, took: Duration) {
        self.decay(now);
        let seconds = took.as_secs_f64().max(1e-6);
        self.bytes += bytes as f64;
        self.seconds += seconds;
        self.answers += 1.0;
        let mib = (bytes as f64 / f64::from(1 << 20)).max(1.0);
        self.latency[bucket(seconds / mib)] += 1.0;
    }

    /// Counts an answer that was late, lost or refused.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.decay(now);
        self.failures += 1.0;
    }

    /// Counts how useful the peer's hints of replayed batches were. A key named in vain costs a read, as a missing one
    /// does.
    pub(crate) fn hints(&mut self, now: Instant, hints: &HintUse) {
        self.decay(now);
        self.hinted += hints.used.min(hints.reads) as f64;
        self.reads += (hints.named + hints.reads) as f64 / 2.0;
    }

    /// Records how many batches the peer's certified head is behind the best one.
    pub(crate) fn head_behind(&mut self, batches: u64) {
        self.lag = batches;
    }

    /// The score from 0 to 1000; see the module.
    pub(crate) fn points(&self, now: Instant) -> f64 {
        let weight = self.weight(now);
        let lag = self.lag.saturating_sub(LAG_FREE) as f64;
        (UNKNOWN + (self.measured(now) - UNKNOWN) * weight / (weight + 1.0)) / (1.0 + lag / LAG_HALF)
    }

    /// Number of judged requests, each decayed by its age.
    pub(crate) fn weight(&self, now: Instant) -> f64 {
        (self.answers + self.failures) * self.fade(now)
    }

    /// The share of requests answered well and in time, as if one answer and one failure had come before all others. So an unknown
    /// peer has one half, and does not rank before one that has shown that it answers.
    pub(crate) fn reliability(&self, now: Instant) -> f64 {
        let fade = self.fade(now);
        (self.answers * fade + 1.0) / ((self.answers + self.failures) * fade + 2.0)
    }

    /// Verified bytes over the time that the answers took.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes / self.seconds } else { 0.0 }
    }

    /// The rate that the peer can deliver; `None` while its answers were too short to show it.
    pub(crate) fn rate(&self) -> Option<f64> {
        (self.bytes >= self.answers * LONG_BYTES).then(|| self.bytes_per_second()).filter(|rate| *rate > 0.0)
    }

    /// The 95 % quantile of the seconds that a MiB or less takes; zero before the first answer.
    pub(crate) fn tail_seconds(&self) -> f64 {
        let mut above = self.latency.iter().sum::<f64>() * TAIL;
        for (bucket, count) in self.latency.iter().enumerate().rev() {
            if *count > 0.0 && *count >= above {
                // Interpolates within the bucket as if its answers were spread evenly, so that the estimate does not
                // jump.
                return upper_edge(bucket) / 2f64.powf(above / count / 2.0);
            }
            above -= count;
        }
        0.0
    }

    /// The sums, decayed to `now`, for the record.
    pub(crate) fn sums(&self, now: Instant) -> ([f64; SUMS], [f64; BUCKETS]) {
        let mut score = self.clone();
        score.decay(now);
        let sums = [score.bytes, score.seconds, score.answers, score.failures, score.hinted, score.reads];
        (sums, score.latency)
    }

    /// Restores a score from kept sums, at half their weight, because the node may have been off for long. Returns `None` for
    /// invalid sums.
    pub(crate) fn restored(now: Instant, sums: [f64; SUMS], latency: [f64; BUCKETS]) -> Option<Score> {
        let fine = |sum: &f64| (0.0..=SUM_MAX).contains(sum);
        if !sums.iter().chain(&latency).all(fine) {
            return None;
        }
        let [bytes, seconds, answers, failures, hinted, reads] = sums;
        let mut score = Score { at: now, bytes, seconds, answers, failures, hinted, reads, latency, lag: 0 };
        score.scale(0.5);
        Some(score)
    }

    fn measured(&self, now: Instant) -> f64 {
        let speed = ((self.bytes_per_second() / 1_024.0).max(1.0).log2() / 20.0).min(1.0);
        let promptness = 1.0 / (1.0 + self.tail_seconds() / SLOW);
        let requests = self.answers + self.failures;
        let reliability = if requests > 0.0 { (self.answers / requests).powi(2) } else { 0.0 };
        let fade = self.fade(now);
        let matched = (self.hinted * fade + READS_UNKNOWN / 2.0) / (self.reads * fade + READS_UNKNOWN);
        1_000.0 * speed * promptness * reliability * (0.8 + 0.2 * matched)
    }

    fn fade(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.at);
        0.5f64.powf(age.as_secs_f64() / HALF_LIFE.as_secs_f64())
    }

    fn decay(&mut self, now: Instant) {
        self.scale(self.fade(now));
        self.at = self.at.max(now);
    }

    fn scale(&mut self, factor: f64) {
        let sums = [
            &mut self.bytes,
            &mut self.seconds,
            &mut self.answers,
            &mut self.failures,
            &mut self.hinted,
            &mut self.reads,
        ];
        sums.into_iter().chain(&mut self.latency).for_each(|sum| *sum *= factor);
    }
}

fn bucket(seconds: f64) -> usize {
    // A negative number saturates to 0.
    ((seconds * 1_000.0).log2() * 2.0).ceil().min((BUCKETS - 1) as f64) as usize
}

fn upper_edge(bucket: usize) -> f64 {
    2f64.powf(bucket as f64 / 2.0) / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn measured(now: Instant, bytes: usize, took_ms: u64) -> Score {
        let mut score = Score::new(now);
        (0..50).for_each(|_| score.verified(now, bytes, Duration::from_millis(took_ms)));
        score
    }

    #[test]
    fn the_tail_is_that_of_the_slowest_answers_within_a_bucket() {
        let now = Instant::now();
        let mut score = measured(now, MIB, 100);
        assert!((0.06..0.15).contains(&score.tail_seconds()), "{}", score.tail_seconds());
        (0..10).for_each(|_| score.verified(now, MIB, Duration::from_secs(5)));
        assert!((3.5..7.1).contains(&score.tail_seconds()), "{}", score.tail_seconds());
    }

    /// Goal: short answers, which take a round trip, do not make their peer look slow.
    #[test]
    fn short_answers_tell_no_rate() {
        let now = Instant::now();
        assert_eq!(Score::new(now).rate(), None);
        assert_eq!(measured(now, 500, 150).rate(), None);
        let rate = measured(now, MIB, 100).rate().unwrap();
        assert!((rate / (10 * MIB) as f64 - 1.0).abs() < 0.01, "{rate}");
    }

    #[test]
    fn what_is_not_measured_any_more_fades_to_unknown() {
        let now = Instant::now();
        let mut failing = Score::new(now);
        (0..10).for_each(|_| failing.failed(now));
        for (score, better) in [(measured(now, MIB, 20), true), (failing, false)] {
            let mut last = score.points(now);
            assert_eq!(last > UNKNOWN, better);
            for age in 1..20 {
                let points = score.points(now + HALF_LIFE * age);
                assert_eq!(points < last, better, "{points} after {last}");
                last = points;
            }
            assert!((last - UNKNOWN).abs() < 1.0, "{last}");
        }
    }

    #[test]
    fn every_part_of_the_formula_counts_and_the_score_stays_in_its_bounds() {
        let now = Instant::now();
        let good = measured(now, 64 * MIB, 50);
        let (mut failing, mut behind, mut hinting) = (good.clone(), good.clone(), good.clone());
        (0..10).for_each(|_| failing.failed(now));
        behind.head_behind(200);
        let hints = HintUse { named: 10_000, used: 9_900, reads: 10_000, values_wrong: 0 };
        hinting.hints(now, &hints);
        let mut wasteful = good.clone();
        wasteful.hints(now, &HintUse { named: 100_000, ..hints });
        assert!(wasteful.points(now) < hinting.points(now), "what is named in vain counts");
        let worse = [measured(now, MIB, 50), measured(now, 64 * MIB, 5_000), failing, behind];
        for other in worse {
            assert!(other.points(now) < good.points(now) && other.points(now) >= 0.0, "{other:?}");
        }
        assert!(hinting.points(now) > good.points(now) && hinting.points(now) <= 1_000.0);
    }

    #[test]
    fn a_kept_score_counts_half_and_garbage_is_none() {
        let now = Instant::now();
        let score = measured(now, MIB, 20);
        let (sums, latency) = score.sums(now);
        let restored = Score::restored(now, sums, latency).unwrap();
        assert_eq!(restored.weight(now), score.weight(now) / 2.0);
        assert_eq!(restored.tail_seconds(), score.tail_seconds());
        for garbage in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(Score::restored(now, [garbage; SUMS], latency), None);
        }
    }
}
