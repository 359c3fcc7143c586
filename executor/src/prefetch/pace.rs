//! [`Pace`]: decides from the share of slow reads whether reading ahead is worth its cost.
//!
//! If a row is in a cache of this process, execution reads it faster than another thread could hand it over. On a
//! machine whose cores are busy, reading ahead would then cost more than it gains. Threads that read ahead sometimes
//! time a single read. When hardly any timed read is slow, batches are executed without reading ahead. Execution then
//! times its own reads, and reading ahead resumes when enough reads are slow.

use std::time::Duration;

use parking_lot::Mutex;

/// A read that takes at least this time is slow. With decoding, a read takes 3 to 8 us from the block cache, 12 to 25
/// us from the operating system's cache, and 60 us from the fastest disks.
pub(crate) const SLOW: Duration = Duration::from_micros(12);
/// Number of reads that are judged together.
const SAMPLES: u32 = 32;
/// Numbers of slow reads in a sample. Reading ahead stops at `FEW` or fewer, and resumes at `MANY` or more. Sometimes a
/// thread that waits for its core looks as if it waited for a row.
const FEW: u32 = 3;
const MANY: u32 = 7;
/// With at least this number of cores, one core is always free to hand rows over.
const CORES_TO_SPARE: usize = 3;

/// Judges whether reading ahead pays; see the module.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Whether reading ahead always pays, because some cores are idle.
    has_cores: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_in_memory: bool,
    /// Reads since the last judgement.
    reads: ReadCounts,
}

/// Counts of reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReadCounts {
    pub(crate) all: u32,
    pub(crate) slow: u32,
}

impl Pace {
    /// Makes the pace of a machine with `cores` cores. Until anything is known, reading ahead pays.
    pub(crate) fn new(cores: usize) -> Pace {
        Pace { has_cores: cores >= CORES_TO_SPARE, state: Mutex::default() }
    }

    /// Whether reading ahead pays.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.has_cores || !self.state.lock().is_in_memory
    }

    /// Records the time that a thread took to read one row ahead.
    pub(crate) fn took(&self, time: Duration) {
        let mut state = self.state.lock();
        if !state.is_in_memory {
            state.judge(ReadCounts { all: 1, slow: u32::from(time >= SLOW) });
        }
    }

    /// Records the reads of a batch that was executed without reading ahead.
    pub(crate) fn executed(&self, reads: ReadCounts) {
        let mut state = self.state.lock();
        if state.is_in_memory {
            state.judge(reads);
        }
    }
}

impl State {
    fn judge(&mut self, more: ReadCounts) {
        self.reads.all = self.reads.all.saturating_add(more.all);
        self.reads.slow = self.reads.slow.saturating_add(more.slow);
        let ReadCounts { all, slow } = self.reads;
        if all < SAMPLES {
            return;
        }
        self.reads = ReadCounts::default();
        // Scales the count to a sample of `SAMPLES`.
        let share = u64::from(slow) * u64::from(SAMPLES) / u64::from(all);
        self.is_in_memory = share < u64::from(if self.is_in_memory { MANY } else { FEW + 1 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Duration = Duration::from_micros(6);
    const DISK: Duration = Duration::from_micros(90);

    fn sample(pace: &Pace, slow: u32) {
        (0..SAMPLES).for_each(|read| pace.took(if read < slow { DISK } else { MEMORY }));
    }

    #[test]
    fn what_comes_from_memory_is_not_read_ahead() {
        let pace = Pace::new(2);
        assert!(pace.reads_ahead(), "nothing is known");
        sample(&pace, SAMPLES);
        assert!(pace.reads_ahead());
        // Sometimes a thread has to wait for its core.
        sample(&pace, 1);
        assert!(!pace.reads_ahead());
        pace.executed(ReadCounts { all: 1_000, slow: 50 });
        assert!(!pace.reads_ahead());
        pace.executed(ReadCounts { all: 1_000, slow: 500 });
        assert!(pace.reads_ahead());
    }

    /// Goal: batches with few reads are judged too.
    #[test]
    fn a_few_reads_of_many_batches_tell_as_much_as_many_of_one() {
        let pace = Pace::new(2);
        sample(&pace, 0);
        assert!(!pace.reads_ahead());
        (0..7).for_each(|_| pace.executed(ReadCounts { all: 5, slow: 5 }));
        assert!(pace.reads_ahead());
    }

    /// Goal: for any share of slow reads, the judgement settles.
    #[test]
    fn a_state_that_is_partly_in_memory_is_judged_once() {
        for slow in 0..=SAMPLES {
            let pace = Pace::new(2);
            let mut changes = 0;
            for _ in 0..10 {
                let before = pace.reads_ahead();
                match before {
                    true => sample(&pace, slow),
                    false => pace.executed(ReadCounts { all: SAMPLES, slow }),
                }
                changes += u32::from(pace.reads_ahead() != before);
            }
            assert!(changes <= 1, "{slow} of {SAMPLES}: {changes} changes");
        }
    }

    #[test]
    fn who_has_cores_to_spare_reads_ahead_anyway() {
        let pace = Pace::new(CORES_TO_SPARE);
        sample(&pace, 0);
        assert!(pace.reads_ahead());
    }
}
