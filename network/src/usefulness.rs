//! [`Usefulness`]: how useful a connection has been recently.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Half-life of a service's value.
const HALF_LIFE: Duration = Duration::from_secs(600);

/// When a peer was last useful, and how many bytes it served.
#[derive(Debug, Default)]
pub(crate) struct Usefulness(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    used: Option<Instant>,
    /// Served bytes, decayed to the given time.
    served: Option<(f64, Instant)>,
}

impl Usefulness {
    /// Records that the peer asked, answered or reported something.
    pub(crate) fn used(&self, now: Instant) {
        self.0.lock().used = Some(now);
    }

    /// Records an answer to this node's request, or data that turned out to be useful. Anything else that a peer sends
    /// unasked is no service.
    pub(crate) fn served(&self, bytes: usize, now: Instant) {
        let mut state = self.0.lock();
        state.used = Some(now);
        state.served = Some((state.served_bytes(now) + bytes as f64, now));
    }

    pub(crate) fn last_used(&self) -> Option<Instant> {
        self.0.lock().used
    }

    /// Bytes that the peer served, with older ones counting less.
    pub(crate) fn served_bytes(&self, now: Instant) -> f64 {
        self.0.lock().served_bytes(now)
    }
}

impl State {
    fn served_bytes(&self, now: Instant) -> f64 {
        let Some((bytes, at)) = self.served else { return 0.0 };
        let halves = now.saturating_duration_since(at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        bytes * (-halves).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_fades() {
        let (start, usefulness) = (Instant::now(), Usefulness::default());
        assert_eq!((usefulness.last_used(), usefulness.served_bytes(start)), (None, 0.0));
        usefulness.used(start);
        assert_eq!((usefulness.last_used(), usefulness.served_bytes(start)), (Some(start), 0.0));
        usefulness.served(1_000, start);
        usefulness.served(500, start + HALF_LIFE);
        assert_eq!(usefulness.last_used(), Some(start + HALF_LIFE));
        assert_eq!(usefulness.served_bytes(start + HALF_LIFE), 1_000.0);
        assert_eq!(usefulness.served_bytes(start + 2 * HALF_LIFE), 500.0);
    }
}
