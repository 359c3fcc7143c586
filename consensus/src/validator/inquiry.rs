//! What a proposer asks the others before it signs a batch: how far the chain is, and what time it is.
//!
//! A proposer can take back nothing that it signed: it proposes the same batch again until a quorum votes for it. So whatever
//! could keep a quorum from voting is asked before. Silence and lies of up to f validators keep it from nothing.
//!
//! [`Heads`] and [`ClockCheck`] take answers and say what they make of them; whoever owns them asks all others again and again while
//! one of the two wants answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use slipstream_types::{BatchNumber, Certificate, ValidatorSet, certificate::CertificateError};
use tokio::time::Instant;

/// How far a proposer's clock may be from the others'. Half of what voters grant, so that they accept its time.
const SKEW_MS_MAX: u64 = 5_000;
/// After this long the others are asked for the time again: a clock that nobody sets drifts by seconds a day.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// While one of those that answered disagrees with the proposer, the others have so long to answer, too: the proposer's own clock is one
/// of the quorum's, and a wrong one needs no more than f that lie alike if the right ones are slow.
const DISAGREEMENT_PATIENCE: Duration = Duration::from_secs(2);
/// A clock that goes so much faster or slower than the machine's monotonic one was set, and counts as unknown.
const STEP_MS_MAX: u64 = 1_000;

/// How far the chain is, for a proposer without a recorded vote: it is at the beginning of the chain, or has lost its data. Before it
/// signs a batch that may not be the first of that number, a quorum must have said how far it is, and sync must have brought everything
/// that any of them can prove.
///
/// Who claims a batch shows its certificate: a validator that lies can hide what it has, but not invent what nobody can bring.
/// A quorum of answers holds one of an honest validator that has the last batch, if more than f have it. A batch that fewer
/// have, or that was signed and never decided, may be proposed anew. Its voters then refuse, so that no second certificate comes
/// of it while the proposer that lost its data is one of at most f faulty validators.
#[derive(Debug, Default)]
pub(super) struct Heads {
    answered: BTreeSet<u16>,
    highest: BatchNumber,
}

impl Heads {
    /// What a validator says that it has.
    pub(super) fn heard(
        &mut self,
        seat: u16,
        certificate: Option<&Certificate>,
        set: &ValidatorSet,
        own: BatchNumber,
    ) {
        match proven(certificate, set, self.highest) {
            Ok(number) => {
                self.answered.insert(seat);
                if let Some(number) = number {
                    self.highest = number;
                }
                if number.is_some() && self.highest > own {
                    tracing::warn!(
                        validator = seat, head = %self.highest, %own,
                        "this proposer has no vote on record, but the chain has gone on; waiting for sync to catch up"
                    );
                }
            }
            Err(error) => tracing::debug!(validator = seat, %error, "a validator proves its head wrongly"),
        }
    }

    /// Whether a proposer that has committed `own` may begin.
    pub(super) fn are_known(&self, set: &ValidatorSet, own: BatchNumber) -> bool {
        1 + self.answered.len() >= set.quorum() && self.highest <= own
    }

    /// Says why nothing is proposed.
    pub(super) fn complain(&self, set: &ValidatorSet, own: BatchNumber) {
        tracing::warn!(
            answers = 1 + self.answered.len(), quorum = set.quorum(), highest = %self.highest, %own,
            "not proposing yet: a new proposer waits for a quorum's heads, and for sync to reach the highest"
        );
    }
}

/// A batch above `highest` that the certificate proves. One of an earlier epoch says that its holder knows no batch of this one, which
/// is an answer like having none at all.
fn proven(
    certificate: Option<&Certificate>,
    set: &ValidatorSet,
    highest: BatchNumber,
) -> Result<Option<BatchNumber>, CertificateError> {
    let claimed = certificate.filter(|it| it.info.number > highest && it.info.epoch >= set.epoch);
    claimed.map(|certificate| certificate.verify(set).map(|()| certificate.info.number)).transpose()
}

/// Whether the proposer's clock may be signed. Batches carry its time, and voters refuse one that is ahead of their own.
#[derive(Debug)]
pub(super) struct ClockCheck {
    members: usize,
    quorum: usize,
    /// When a quorum agreed with the clock, and what it said.
    agreed: Option<Reading>,
    measuring: Option<Measuring>,
}

/// What the others' answers have shown so far.
#[derive(Debug)]
struct Measuring {
    begun: Instant,
    /// What the offsets were measured against.
    base: Reading,
    offsets_ms: BTreeMap<u16, i128>,
    disagreed: bool,
}

/// What the clock said at a moment of the monotonic one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    pub(super) now_ms: u64,
}

impl Reading {
    /// Whether the clock has gone on evenly since then. One that was set has not.
    fn leads_to(&self, now: Reading) -> bool {
        let elapsed_ms = now.at.duration_since(self.at).as_millis() as u64;
        self.now_ms.saturating_add(elapsed_ms).abs_diff(now.now_ms) <= STEP_MS_MAX
    }
}

impl ClockCheck {
    pub(super) fn new(set: &ValidatorSet) -> ClockCheck {
        let (members, quorum) = (set.validators.len(), set.quorum());
        ClockCheck { members, quorum, agreed: None, measuring: None }
    }

    /// Whether the reading may be signed. If not, the others' answers are wanted from now on, until a quorum agrees. Nobody is asked
    /// while the last agreement is fresh and the clock was not set since.
    pub(super) fn may_sign(&mut self, now: Reading) -> bool {
        let is_fresh = |agreed: Reading| now.at - agreed.at < CLOCK_CHECK_INTERVAL && agreed.leads_to(now);
        if self.members == 1 || self.measuring.is_none() && self.agreed.is_some_and(is_fresh) {
            return true;
        }
        self.measuring.get_or_insert_with(|| Measuring {
            begun: now.at,
            base: now,
            offsets_ms: BTreeMap::new(),
            disagreed: false,
        });
        false
    }

    /// Whether the others should be asked.
    pub(super) fn wants_answers(&self) -> bool {
        self.measuring.is_some()
    }

    /// What a validator's clock says, and what the own one said when the answer came. True if that is the first that shows a
    /// quorum's clocks to disagree.
    pub(super) fn heard(&mut self, seat: u16, their_ms: u64, now: Reading) -> bool {
        let Some(measuring) = &mut self.measuring else { return false };
        if !measuring.base.leads_to(now) {
            // The clock was set meanwhile: what was measured is worth nothing.
            (measuring.base, measuring.offsets_ms) = (now, BTreeMap::new());
        }
        let offsets_ms = &mut measuring.offsets_ms;
        offsets_ms.insert(seat, i128::from(their_ms) - i128::from(now.now_ms));
        let all = offsets_ms.len() + 1 == self.members;
        let alike = offsets_ms.values().all(|offset| offset.unsigned_abs() <= SKEW_MS_MAX.into());
        let is_early = !all && !alike && now.at - measuring.begun < DISAGREEMENT_PATIENCE;
        if offsets_ms.len() + 1 < self.quorum || is_early {
            return false;
        }
        if median_distance_ms(offsets_ms.values().copied()) <= SKEW_MS_MAX.into() {
            self.agreed = Some(measuring.base);
            self.measuring = None;
            return false;
        }
        !std::mem::replace(&mut measuring.disagreed, true)
    }

    /// Says why nothing is proposed.
    pub(super) fn complain(&self) {
        let Some(Measuring { offsets_ms, .. }) = &self.measuring else { return };
        tracing::warn!(
            answers = offsets_ms.len() + 1,
            quorum = self.quorum,
            ?offsets_ms,
            max_ms = SKEW_MS_MAX,
            "not proposing: the clocks of a quorum must agree with this proposer's before it signs a batch; the offsets \
             are the other validators' clocks by index, in milliseconds; set the clocks that are wrong (NTP)"
        );
    }
}

/// How far the proposer's clock, which has the offset 0, is from the median; from the farther one of two in the middle. With
/// a quorum of clocks, more than two thirds, no f wrong ones decide it.
fn median_distance_ms(others: impl Iterator<Item = i128>) -> u128 {
    let mut offsets: Vec<_> = others.chain([0]).collect();
    offsets.sort_unstable();
    let last = offsets.len() - 1;
    offsets[last / 2].unsigned_abs().max(offsets[last.div_ceil(2)].unsigned_abs())
}

#[cfg(test)]
mod tests {
    use slipstream_types::{Digest, Epoch, LedgerInfo};

    use super::*;
    use crate::testing::genesis;

    /// Goal: who has nothing newer than the epoch before has answered; one that lies about it has not.
    #[test]
    fn a_certificate_of_an_earlier_epoch_is_an_answer() {
        let set = ValidatorSet { epoch: Epoch(3), ..genesis(4).validator_set() };
        let claim = |epoch| {
            let (root, number) = (Digest([0; 32]), BatchNumber(9));
            let info = LedgerInfo {
                epoch: Epoch(epoch),
                number,
                accumulator_root: root,
                state_root: root,
                timestamp_ms: 0,
                next_validators: None,
            };
            proven(Some(&Certificate { info, view: 0, signatures: Default::default() }), &set, BatchNumber(4))
        };
        assert_eq!(claim(2).unwrap(), None);
        assert!(claim(3).is_err() && claim(4).is_err());
        assert_eq!(proven(None, &set, BatchNumber(4)).unwrap(), None);
    }

    // One wrong clock of three or four changes little; the proposer's own being wrong shows, in both directions, and also
    // where two of two must agree.
    #[test]
    fn the_median_is_what_counts() {
        const YEAR_MS: i128 = 365 * 24 * 3_600_000;
        for (others, expected) in [
            (vec![-3, YEAR_MS], 0),
            (vec![-3, -YEAR_MS], 3),
            (vec![-YEAR_MS, 2, -1], 1),
            (vec![YEAR_MS, 2, -1], 2),
            (vec![YEAR_MS, YEAR_MS + 1], YEAR_MS),
            (vec![-YEAR_MS, -YEAR_MS - 1], YEAR_MS),
            (vec![YEAR_MS], YEAR_MS),
            (vec![-YEAR_MS], YEAR_MS),
            (vec![0, YEAR_MS, YEAR_MS], YEAR_MS),
            (vec![i128::from(u64::MAX), -i128::from(u64::MAX)], 0),
        ] {
            assert_eq!(median_distance_ms(others.iter().copied()), expected.unsigned_abs(), "{others:?}");
        }
    }

    // A clock that was set shows beside the monotonic one, whichever way it was set.
    #[test]
    fn a_clock_that_was_set_is_noticed() {
        let at = Instant::now();
        let reading = |elapsed_ms, now_ms| Reading { at: at + Duration::from_millis(elapsed_ms), now_ms };
        let base = reading(0, 1_000_000);
        assert!(base.leads_to(reading(30_000, 1_030_000)));
        assert!(base.leads_to(reading(30_000, 1_029_001)));
        assert!(!base.leads_to(reading(30_000, 1_031_001)));
        assert!(!base.leads_to(reading(30_000, 1_000_000)));
        assert!(!base.leads_to(reading(0, u64::MAX)));
    }
}
