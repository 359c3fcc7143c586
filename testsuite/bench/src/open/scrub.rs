//! The cost of the background check for concurrent commits. The same batches run on a store that was just opened, with
//! and without the check at the node's pace.
//!
//! Each measurement is its own process. Commits read the parts that they touch, and the check skips parts that were
//! read. After a few rounds, a store that stays open would have no parts left to check.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use serde::{Deserialize, Serialize};
use slipstream_storage::Store;
use slipstream_types::Path as StatePath;

use crate::{
    harness::{child, files::wait_until_quiet},
    print_json,
    state::{Choice, Cost, Filled, Way, measure},
};

const NAME: &str = "scrub";
/// The pause after a step, as a multiple of its duration: `REST` of node/src/scrub.rs.
const REST: u32 = 24;
/// The shortest pause after a step: `REST_MIN` of node/src/scrub.rs.
const REST_MIN: Duration = Duration::from_millis(20);

/// Commits to a store that was just opened by its frontier.
#[derive(Clone, Debug, clap::Args)]
pub struct ScrubOptions {
    /// The store, and its next batches.
    #[command(flatten)]
    pub filled: Filled,
    /// First byte of the path at which the check begins; without it there is no check.
    #[arg(long)]
    pub begin: Option<u8>,
}

/// The cost of the commits, and the check's work meanwhile.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ScrubReport {
    cost: Cost,
    checked: Option<Checked>,
}

/// The check's work during the commits.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
struct Checked {
    rows: u64,
    steps: u64,
    /// Seconds that its steps took.
    busy_seconds: f64,
    seconds: f64,
    /// Whether the check passed all paths before the commits ended, and was idle afterwards.
    came_round: bool,
}

impl ScrubOptions {
    /// Runs the measurement in its own process.
    pub(super) fn in_child(&self) -> Result<ScrubReport> {
        let begin = self.begin.map(|begin| ("--begin", begin.to_string()));
        child::run(NAME, &self.filled.arguments(begin))
    }

    /// Runs the measurement in this process and prints its result.
    pub(crate) fn run(&self) -> Result<()> {
        let (ours, mut workload) = self.filled.open()?;
        let round = workload.round(self.filled.batches, self.filled.updates, Choice::Uniform)?;
        // RocksDB continues the compactions that the previous process left.
        wait_until_quiet()?;
        ensure!(ours.store().is_unread(), "the store was not opened by its frontier: all rows were read");
        let (cost, checked) = std::thread::scope(|scope| {
            let (commits, commits_end) = channel();
            let begin = self.begin.map(|first| {
                let mut begin = StatePath::MIN;
                begin.0[0] = first;
                begin
            });
            let store = ours.store().clone();
            let check = begin.map(|begin| scope.spawn(move || check(&store, begin, &commits_end)));
            let cost = measure(&mut ours.by(Way::Fresh), &round);
            drop(commits);
            let checked = check.map(|check| check.join().map_err(|_| anyhow!("the check panicked"))?);
            Ok::<_, anyhow::Error>((cost?, checked.transpose()?))
        })?;
        ours.store().close();
        print_json(&ScrubReport { cost, checked })
    }
}

/// Returns the node's pause after a step.
fn rest(step: Duration) -> Duration {
    (REST * step).max(REST_MIN)
}

/// Checks rows as the node does, until the commits end or it has passed all paths.
fn check(store: &Store, begin: StatePath, commits_end: &Receiver<()>) -> Result<Checked> {
    let start = Instant::now();
    let mut checked = Checked { rows: 0, steps: 0, busy_seconds: 0.0, seconds: 0.0, came_round: false };
    let (mut place, mut has_wrapped) = (begin, begin == StatePath::MIN);
    loop {
        let began = Instant::now();
        let scrubbed = store.scrub(place)?;
        let took = began.elapsed();
        checked.rows += scrubbed.rows;
        checked.steps += 1;
        checked.busy_seconds += took.as_secs_f64();
        place = scrubbed.next.unwrap_or(StatePath::MIN);
        checked.came_round =
            has_wrapped && (scrubbed.next.is_none() || begin != StatePath::MIN && place >= begin);
        has_wrapped |= scrubbed.next.is_none();
        let commits_go_on = || commits_end.recv_timeout(rest(took)) == Err(RecvTimeoutError::Timeout);
        if checked.came_round || !commits_go_on() {
            checked.seconds = start.elapsed().as_secs_f64();
            return Ok(checked);
        }
    }
}

/// Rounds of the same number of batches, without and with the check.
#[derive(Default)]
pub(super) struct Rounds(Vec<[ScrubReport; 2]>);

impl Rounds {
    pub(super) fn push(&mut self, without: ScrubReport, with: ScrubReport) {
        self.0.push([without, with]);
    }

    /// Returns how much longer the batches take with the check, as a share.
    pub(super) fn shares(&self) -> Vec<f64> {
        let share = |[without, with]: &[ScrubReport; 2]| {
            without.cost.updates_per_s() / with.cost.updates_per_s() - 1.0
        };
        self.0.iter().map(share).collect()
    }

    /// Returns the rows that the check read per second.
    pub(super) fn rows_per_s(&self) -> Vec<f64> {
        self.checked().map(|checked| checked.rows as f64 / checked.seconds).collect()
    }

    /// Returns the share of the time in which the check was busy.
    pub(super) fn busy_shares(&self) -> Vec<f64> {
        self.checked().map(|checked| checked.busy_seconds / checked.seconds).collect()
    }

    /// Returns the updates per second without the check.
    pub(super) fn updates_per_s(&self) -> Vec<f64> {
        self.0.iter().map(|[without, _]| without.cost.updates_per_s()).collect()
    }

    /// Returns the number of rounds in which the check finished before the commits.
    pub(super) fn came_round(&self) -> usize {
        self.checked().filter(|checked| checked.came_round).count()
    }

    fn checked(&self) -> impl Iterator<Item = &Checked> {
        self.0.iter().filter_map(|[_, with]| with.checked.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{snapshot::source, state::config};
    use slipnet::progress::Progress;

    /// Goal: the check pauses like the node's.
    #[test]
    fn a_step_is_followed_by_a_rest() {
        assert_eq!(rest(Duration::from_micros(100)), Duration::from_millis(20));
        assert_eq!(rest(Duration::from_millis(10)), Duration::from_millis(240));
    }

    /// Goal: the check reads every unread row, wherever it begins. It ends after the last row or with the commits.
    #[test]
    fn the_check_ends_with_the_rows_or_with_the_commits() {
        const ROWS: u64 = 3_000;
        let dir = tempfile::tempdir().unwrap();
        source::filled(dir.path(), ROWS, Progress::Quiet).unwrap().close();
        let store = Store::open(&config(false), dir.path()).unwrap();
        assert!(store.is_unread());
        let (commits, commits_end) = channel();
        let middle = StatePath([0x80; 32]);
        let checked = check(&store, middle, &commits_end).unwrap();
        assert!(checked.came_round && checked.rows > ROWS / 2, "{checked:?}");
        drop(commits);
        let checked = check(&store, middle, &commits_end).unwrap();
        assert!(!checked.came_round && checked.steps == 1, "{checked:?}");
    }
}
