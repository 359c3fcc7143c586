//! [`Pace`]: whether reading ahead is worth what it costs, by how many reads here are slow.
//!
//! If a row is in a cache of this process, execution reads it faster than another thread could hand it over. On a machine whose cores are
//! busy, reading ahead would then cost more than it gives. Threads that read ahead now and then time one read by itself; when hardly any of
//! these is slow, batches are executed without. Then execution times its own, and begins again when enough of them are.

use std::time::Duration;

use parking_lot::Mutex;

/// A read that takes as long is slow. From the block cache it takes 3 to 8 us with decoding, from the operating system's cache 12 to 25,
/// from the fastest disks 60.
pub(crate) const SLOW: Duration = Duration::from_micros(12);
/// Reads that are looked at together.
const SAMPLES: u32 = 32;
/// Counts of slow reads in a sample: with so few, reading ahead stops; with so many, it begins again. Now and then a thread that
/// waits for its core looks like one that waits for a row.
const FEW: u32 = 3;
const MANY: u32 = 7;
/// Cores from which on there is one to hand rows over, whatever else is to be done.
const CORES_TO_SPARE: usize = 3;

/// See the module.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Reading ahead always pays: there are cores with nothing to do.
    has_cores: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_in_memory: bool,
    /// Reads since this was last judged.
    reads: Reads,
}

/// Some reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reads {
    pub(crate) all: u32,
    pub(crate) slow: u32,
}

impl Pace {
    /// Makes the pace of a machine with so many cores. Until anything is known, reading ahead pays.
    pub(crate) fn new(cores: usize) -> Pace {
        Pace { has_cores: cores >= CORES_TO_SPARE, state: Mutex::default() }
    }

    /// Whether it pays.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.has_cores || !self.state.lock().is_in_memory
    }

    /// A thread that reads ahead took so long for one row.
    pub(crate) fn took(&self, time: Duration) {
        let mut state = self.state.lock();
        if !state.is_in_memory {
            state.judge(Reads { all: 1, slow: u32::from(time >= SLOW) });
        }
    }

    /// A batch was executed for which nothing was read ahead.
    pub(crate) fn executed(&self, reads: Reads) {
        let mut state = self.state.lock();
        if state.is_in_memory {
            state.judge(reads);
        }
    }
}

impl State {
    fn judge(&mut self, more: Reads) {
        self.reads.all = self.reads.all.saturating_add(more.all);
        self.reads.slow = self.reads.slow.saturating_add(more.slow);
        let Reads { all, slow } = self.reads;
        if all < SAMPLES {
            return;
        }
        self.reads = Reads::default();
        // In parts of SAMPLES.
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
        // Now and then a thread has to wait for its core.
        sample(&pace, 1);
        assert!(!pace.reads_ahead());
        pace.executed(Reads { all: 1_000, slow: 50 });
        assert!(!pace.reads_ahead());
        pace.executed(Reads { all: 1_000, slow: 500 });
        assert!(pace.reads_ahead());
    }

    /// Goal: batches that read little are not overlooked for ever.
    #[test]
    fn a_few_reads_of_many_batches_tell_as_much_as_many_of_one() {
        let pace = Pace::new(2);
        sample(&pace, 0);
        assert!(!pace.reads_ahead());
        (0..7).for_each(|_| pace.executed(Reads { all: 5, slow: 5 }));
        assert!(pace.reads_ahead());
    }

    /// Goal: whatever share of the reads waits, the judgement settles.
    #[test]
    fn a_state_that_is_partly_in_memory_is_judged_once() {
        for slow in 0..=SAMPLES {
            let pace = Pace::new(2);
            let mut changes = 0;
            for _ in 0..10 {
                let before = pace.reads_ahead();
                match before {
                    true => sample(&pace, slow),
                    false => pace.executed(Reads { all: SAMPLES, slow }),
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
