//! Chooses the faster back end by a short probe over the first keys.
//!
//! The back ends take turns. A turn counts the keys that all threads together read, and the time during which any
//! thread was reading. The time of a single batch would say nothing, because several batches are read at once.

use std::time::{Duration, Instant};

/// How keys are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefetchBackend {
    /// Many threads, each reading one key at a time.
    Threads,
    /// Each thread multi-gets, so that the kernel reads all blocks of a multi-get at once (io_uring). A kernel without
    /// io_uring reads the blocks one after the other, which the probe finds out.
    MultiGet,
}

/// Number of turns before a back end is chosen. The first turn does not count: threads, rings and files are new.
const TURNS: u32 = 5;
/// Keys of one turn.
const TURN_KEYS: usize = 2_048;
/// Speed that point reads must reach relative to multi-gets, in percent. Point reads cost more CPU: 14.2 us a key
/// against 11.9 us on the consecutive batches of `slipnet bench hints`.
const THREADS_WORTH: u32 = 110;

/// Measures both back ends until one is chosen.
#[derive(Debug, Default)]
pub(super) struct Probe {
    chosen: Option<PrefetchBackend>,
    /// Number of turns that are over.
    turns: u32,
    turn: Taken,
    /// Number of threads that read now, and the start of the reading time that is not yet counted; `None` if no thread
    /// reads.
    reading: usize,
    since: Option<Instant>,
    threads: Taken,
    multi_get: Taken,
}

/// A read that one thread has in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) backend: PrefetchBackend,
    turn: u32,
}

/// Number of keys read, and the time that reading them took.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    keys: usize,
    time: Duration,
}

impl Taken {
    fn add(&mut self, other: Taken) {
        self.keys += other.keys;
        self.time += other.time;
    }

    fn per_key(self) -> Duration {
        self.time / self.keys.max(1) as u32
    }
}

impl Probe {
    pub(super) fn new(chosen: Option<PrefetchBackend>) -> Probe {
        Probe { chosen, ..Probe::default() }
    }

    /// The back end for the next keys.
    pub(super) fn backend(&self) -> PrefetchBackend {
        let turns = [PrefetchBackend::MultiGet, PrefetchBackend::Threads];
        self.chosen.unwrap_or(turns[self.turns as usize % turns.len()])
    }

    /// Records that a thread begins to read. The thread must use the returned back end.
    pub(super) fn begin(&mut self, now: Instant) -> Reading {
        self.reading += 1;
        self.since.get_or_insert(now);
        Reading { backend: self.backend(), turn: self.turns }
    }

    /// Records that a thread has read `keys` keys.
    pub(super) fn end(&mut self, begun: Reading, keys: usize, now: Instant) {
        self.reading -= 1;
        let since = self.since.replace(now).unwrap_or(now);
        if begun.turn == self.turns {
            self.turn.add(Taken { keys, time: now.duration_since(since) });
        } else {
            // Reads of the other back end disturbed the turn, so the turn restarts when they end.
            self.turn = Taken::default();
        }
        if self.reading == 0 {
            self.since = None;
        }
        if self.chosen.is_none() && self.turn.keys >= TURN_KEYS {
            self.end_turn();
        }
    }

    fn end_turn(&mut self) {
        let taken = std::mem::take(&mut self.turn);
        match self.backend() {
            _ if self.turns == 0 => {}
            PrefetchBackend::Threads => self.threads.add(taken),
            PrefetchBackend::MultiGet => self.multi_get.add(taken),
        }
        self.turns += 1;
        if self.turns == TURNS {
            let is_worth_it = self.threads.per_key() * THREADS_WORTH / 100 < self.multi_get.per_key();
            self.chosen =
                Some(if is_worth_it { PrefetchBackend::Threads } else { PrefetchBackend::MultiGet });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates two threads that read 100 keys at a time, at the given time per key for each back end. Nothing is read
    /// between two such reads.
    fn chosen(threads_us: u64, multi_get_us: u64) -> Option<PrefetchBackend> {
        let mut probe = Probe::default();
        let mut now = Instant::now();
        while probe.turns < TURNS {
            let us = match probe.backend() {
                // A back end's first turn is slower.
                PrefetchBackend::MultiGet if probe.turns == 0 => 100 * multi_get_us,
                PrefetchBackend::MultiGet => multi_get_us,
                PrefetchBackend::Threads => threads_us,
            };
            let begun = [probe.begin(now), probe.begin(now)];
            for begun in begun {
                now += Duration::from_micros(50 * us);
                probe.end(begun, 50, now);
            }
            now += Duration::from_secs(1);
        }
        probe.chosen
    }

    #[test]
    fn threads_must_be_worth_their_cpu() {
        assert_eq!(chosen(20, 20), Some(PrefetchBackend::MultiGet));
        assert_eq!(chosen(100, 109), Some(PrefetchBackend::MultiGet));
        assert_eq!(chosen(100, 112), Some(PrefetchBackend::Threads));
        assert_eq!(Probe::new(Some(PrefetchBackend::Threads)).backend(), PrefetchBackend::Threads);
    }
}
