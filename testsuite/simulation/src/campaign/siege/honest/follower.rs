//! The follower's lag: the time from when the validator was first seen with a batch until the follower was.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use slipnet::rpc::Rpc;
use tokio::time::MissedTickBehavior;

use super::Waits;

/// The polling interval of both: the error of a lag.
const POLL: Duration = Duration::from_millis(15);

/// The batches that the follower lacks, and the validator's last one.
#[derive(Default)]
struct Ahead {
    last: Option<u64>,
    open: VecDeque<(u64, usize)>,
}

impl Ahead {
    fn leader(&mut self, head: u64, now: Instant, waits: &Waits) {
        let last = *self.last.get_or_insert(head);
        self.open.extend((last + 1..=head).map(|number| (number, waits.begin(now))));
        self.last = Some(last.max(head));
    }

    fn follower(&mut self, head: u64, now: Instant, waits: &Waits) {
        while let Some((_, place)) = self.open.pop_front_if(|(number, _)| *number <= head) {
            waits.end(place, now);
        }
    }
}

/// Watches the validator and the follower until it is stopped. A node that does not answer is polled again.
pub(super) async fn run(nodes: [Rpc; 2], waits: Waits) {
    let mut ahead = Ahead::default();
    let mut ticks = tokio::time::interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let seen = async |node: &Rpc| (node.head().await, Instant::now());
        let (leader, follower) = tokio::join!(seen(&nodes[0]), seen(&nodes[1]));
        if let (Ok(head), at) = leader {
            ahead.leader(head, at, &waits);
        }
        if let (Ok(head), at) = follower {
            ahead.follower(head, at, &waits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_is_between_first_sights_of_the_same_batch() {
        let (mut ahead, waits, begin) = (Ahead::default(), Waits::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        for (head, ms) in [(7, 0), (8, 10), (10, 20)] {
            ahead.leader(head, at(ms), &waits);
        }
        ahead.follower(9, at(110), &waits);
        assert_eq!(waits.between((begin, at(1_000)), at(1_020)), [90.0, 100.0, 1_000.0]);
    }
}
