//! [`Link`]: the delay of a message from one participant to another.

use rand::{Rng, rngs::StdRng};

use super::{
    fault::{Fault, Fired},
    queue::Moment,
};

/// One direction of a connection, as drawn from the seed.
#[derive(Debug)]
pub(super) struct Link {
    latency: Moment,
    jitter: Moment,
    /// The link's rate, in bytes per microsecond.
    rate: f64,
    loss: f64,
    free_at: Moment,
    last_arrival: Moment,
}

impl Link {
    /// Draws a link, from a neighbour in the same rack to a radio link; `loss` is each message's probability of loss.
    pub(super) fn new(rng: &mut StdRng, loss: f64) -> Link {
        let latency = match rng.random_range(0..3) {
            0 => rng.random_range(200..2_000),
            1 => rng.random_range(5_000..40_000),
            _ => rng.random_range(40_000..150_000),
        };
        let jitter = latency / rng.random_range(1..10);
        let rate = [0.2, 1.0, 10.0, 100.0][rng.random_range(0..4)];
        Link { latency, jitter, rate, loss, free_at: 0, last_arrival: 0 }
    }

    /// Returns when a message sent at `now` arrives; `None` if it is lost for good. Without faults every message
    /// arrives.
    pub(super) fn carry(
        &mut self,
        now: Moment,
        bytes: usize,
        lossy: bool,
        rng: &mut StdRng,
        fired: &mut Fired,
    ) -> Option<Moment> {
        self.free_at = self.free_at.max(now) + (bytes as f64 / self.rate) as Moment;
        let mut at = self.free_at + self.latency + rng.random_range(0..=self.jitter);
        if lossy && self.loss > 0.0 && rng.random_bool(self.loss) {
            fired.insert(Fault::Loss);
            if rng.random_ratio(1, 3) {
                return None;
            }
            // The sender repeats the message when no acknowledgement comes.
            at += (50_000 + 2 * self.latency) * rng.random_range(1..4);
        }
        if at < self.last_arrival {
            fired.insert(Fault::Reordering);
        }
        self.last_arrival = self.last_arrival.max(at);
        Some(at)
    }
}
