//! Which way of reading is faster here: a short probe over the first batches.

use std::time::Duration;

/// How keys are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// Many threads, each one key at a time.
    Threads,
    /// Each thread multi-gets, which has the kernel read all its blocks at once (io_uring). Where the kernel has none this reads them one
    /// after the other, which the probe finds out.
    MultiGet,
}

/// Batches that each back end reads before one is chosen.
const ROUNDS: u32 = 3;
/// Keys below which a batch tells nothing.
const KEYS_MIN: usize = 256;
/// Point reads cost more CPU than multi-gets, 14.2 us a key against 11.9 on the consecutive batches of `slipnet bench hints`, so they have
/// to be this much faster, in hundredths.
const THREADS_WORTH: u32 = 110;

/// Sums up what both back ends took, until one is chosen.
#[derive(Debug, Default)]
pub(super) struct Probe {
    chosen: Option<Backend>,
    threads: Taken,
    multi_get: Taken,
}

#[derive(Debug, Default)]
struct Taken {
    rounds: u32,
    /// Of all rounds, time for a key.
    per_key: Duration,
}

impl Probe {
    pub(super) fn new(chosen: Option<Backend>) -> Probe {
        Probe { chosen, ..Probe::default() }
    }

    /// How the next batch is read.
    pub(super) fn backend(&self) -> Backend {
        match self.chosen {
            Some(backend) => backend,
            None if self.multi_get.rounds > self.threads.rounds => Backend::Threads,
            None => Backend::MultiGet,
        }
    }

    /// A batch was read.
    pub(super) fn record(&mut self, backend: Backend, keys: usize, took: Duration) {
        if self.chosen.is_some() || keys < KEYS_MIN {
            return;
        }
        let taken = match backend {
            Backend::Threads => &mut self.threads,
            Backend::MultiGet => &mut self.multi_get,
        };
        taken.rounds += 1;
        taken.per_key += took / keys as u32;
        let (threads, multi_get) = (&self.threads, &self.multi_get);
        if threads.rounds >= ROUNDS && multi_get.rounds >= ROUNDS {
            // Rounds may differ: batches end in another order than they begin.
            let threads = threads.per_key / threads.rounds * THREADS_WORTH / 100;
            let multi_get = multi_get.per_key / multi_get.rounds;
            self.chosen = Some(if threads < multi_get { Backend::Threads } else { Backend::MultiGet });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(threads_us: u64, multi_get_us: u64) -> Option<Backend> {
        let mut probe = Probe::default();
        for _ in 0..2 * ROUNDS {
            let us = match probe.backend() {
                Backend::Threads => threads_us,
                Backend::MultiGet => multi_get_us,
            };
            probe.record(probe.backend(), 10, Duration::ZERO);
            probe.record(probe.backend(), 1_000, Duration::from_micros(1_000 * us));
        }
        probe.chosen
    }

    #[test]
    fn threads_must_be_worth_their_cpu() {
        assert_eq!(chosen(20, 20), Some(Backend::MultiGet));
        assert_eq!(chosen(100, 109), Some(Backend::MultiGet));
        assert_eq!(chosen(100, 112), Some(Backend::Threads));
        assert_eq!(Probe::new(Some(Backend::Threads)).backend(), Backend::Threads);
    }
}
