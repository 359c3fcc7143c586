//! Rules for the time of a batch.

use slipstream_eve::Order;
use slipstream_types::{BatchHeader, BatchNumber};

use crate::error::ProposalError;

/// How far an order's time may be ahead of this validator's clock. Clocks kept by NTP differ by far less, and a primary must not
/// push the chain's time into the future.
const AHEAD_MS_MAX: u64 = 10_000;

/// How far an order's time may be behind this validator's clock: a primary that repeats a time for ever must lose its
/// view. An order that waits longer than that for a quorum has outlived its view.
const BEHIND_MS_MAX: u64 = 30_000;

/// How far a batch's time may be after its parent's. So one batch of a quorum with wrong clocks costs ten minutes at
/// most. After a longer halt, the chain's time catches up over several batches.
const STEP_MS_MAX: u64 = 600_000;

/// The time of the batch after `parent`. Batch 1 may come long after the genesis was written.
pub(super) fn next(parent: &BatchHeader, now_ms: u64) -> u64 {
    let parent_ms = parent.timestamp_ms;
    let most_ms =
        if parent.number == BatchNumber::GENESIS { u64::MAX } else { parent_ms.saturating_add(STEP_MS_MAX) };
    now_ms.clamp(parent_ms, most_ms)
}

/// Checks that an honest primary may order that time after `parent`.
///
/// # Errors
/// The rule that the order's time breaks.
pub(super) fn check(order: &Order, parent: &BatchHeader, now_ms: u64) -> Result<(), ProposalError> {
    let Order { number, timestamp_ms, .. } = *order;
    let parent_ms = parent.timestamp_ms;
    if timestamp_ms < parent_ms {
        return Err(ProposalError::BeforeParent { number, timestamp_ms, parent_ms });
    }
    // A certified time may be repeated however far it is ahead. No other time may follow it, so the chain would
    // otherwise halt until clocks reach it.
    if timestamp_ms > parent_ms && timestamp_ms > now_ms.saturating_add(AHEAD_MS_MAX) {
        return Err(ProposalError::FromTheFuture { number, timestamp_ms, now_ms, max_ms: AHEAD_MS_MAX });
    }
    let catches_up =
        parent.number == BatchNumber::GENESIS || timestamp_ms >= parent_ms.saturating_add(STEP_MS_MAX);
    if timestamp_ms.saturating_add(BEHIND_MS_MAX) < now_ms && !catches_up {
        return Err(ProposalError::FromThePast { number, timestamp_ms, now_ms, max_ms: BEHIND_MS_MAX });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use slipstream_types::{BatchNumber, Digest, Epoch};

    use super::*;
    use crate::testing::genesis;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn parent(number: u64, timestamp_ms: u64) -> BatchHeader {
        BatchHeader { number: BatchNumber::new(number), timestamp_ms, ..genesis(1).header().unwrap() }
    }

    /// Goal: validators accept every time that an honest primary gives a batch, within the bounds of their clocks, and refuse
    /// others.
    #[test]
    fn times_follow_the_clock() {
        let judge = |parent: &BatchHeader, timestamp_ms| {
            let order = Order {
                epoch: Epoch(0),
                view: 0,
                number: parent.number.next(),
                parent: Digest::ZERO,
                timestamp_ms,
                transactions: Digest::ZERO,
            };
            check(&order, parent, NOW_MS).map_err(|error| error.to_string())
        };
        for parent_ms in [0, NOW_MS - STEP_MS_MAX - 1, NOW_MS - 1, NOW_MS, NOW_MS + AHEAD_MS_MAX] {
            for number in [0, 1, 7] {
                let parent = parent(number, parent_ms);
                assert_eq!(judge(&parent, next(&parent, NOW_MS)), Ok(()), "{number} {parent_ms}");
            }
        }
        let late = parent(7, NOW_MS - 60_000);
        for (timestamp_ms, text) in [
            (NOW_MS - 60_001, "time must not go back"),
            (NOW_MS - BEHIND_MS_MAX - 1, "more than 30000 ms behind"),
            (NOW_MS + AHEAD_MS_MAX + 1, "more than 10000 ms ahead"),
        ] {
            let refused = judge(&late, timestamp_ms).unwrap_err();
            assert!(refused.contains(text), "{refused}");
        }
        // A quorum's clocks were an hour ahead and are right again: the chain's time does not advance, and the chain
        // still makes progress.
        let ahead_ms = NOW_MS + 3_600_000;
        let ahead = parent(7, ahead_ms);
        assert_eq!((next(&ahead, NOW_MS), judge(&ahead, ahead_ms)), (ahead_ms, Ok(())));
        assert!(judge(&ahead, ahead_ms + 1).unwrap_err().contains("more than 10000 ms ahead"));
        let halted = parent(7, 5);
        assert_eq!(judge(&halted, 5 + STEP_MS_MAX), Ok(()));
        assert!(judge(&halted, 4 + STEP_MS_MAX).is_err());
        assert_eq!(judge(&parent(0, 5), 6), Ok(()), "batch 1");
    }
}
