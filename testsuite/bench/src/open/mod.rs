//! The time to open a store: after a clean stop, after a kill in the middle of commits, and without the file that a
//! stop leaves for the next start. Each opening is its own process, so that its memory is measured too. Some stores are
//! opened without reading their rows; [`scrub`] measures the cost of reading these in the background.
//!
//! Everything is opened twice: with the files as cached by the operating system, and after its cache has dropped them
//! (`cold`).

mod scrub;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};

pub(super) use self::scrub::ScrubOptions;
use self::scrub::{Rounds, ScrubReport};
use super::{
    Aim, BenchOptions, Figure, Report,
    harness::{files::drop_cached, kept::WorkDir},
    size::short,
    state::{CommitOptions, Filled, OpenOptions, OpenReport, SizeDir, open_aim, sizes, tree_memory_mib},
};
use slipnet::progress::Progress;

/// The directory in a store with the file that spares the next start reading all rows. A clean stop writes this file,
/// and so does a store at work at some moments.
const FRONTIERS: &str = "frontiers";
/// Updates per batch in a store that is killed.
const UPDATES: usize = 10_000;
/// The time for which that store commits before the kill.
const WORK: Duration = Duration::from_secs(3);
/// More batches than that store commits in [`WORK`].
const WORK_BATCHES: u64 = 5_000;

/// The end of a store before it is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::VariantArray)]
enum End {
    Clean,
    Killed,
    /// Clean, with its frontiers removed.
    Lost,
}

/// Rounds of batches before a clean end: enough that the store leaves as much for its next start as a store at work.
const CLEAN_ROUNDS: usize = 5;
const ROUND_BATCHES: usize = 10;
/// Batches that are committed with and without the background check: some seconds, in which the check makes at least
/// ten steps.
const SCRUB_BATCHES: usize = 40;
const QUICK_SCRUB_BATCHES: usize = 20;
const SCRUB_AIM: Aim = Aim::AtMost(0.05);
/// Rounds of that measurement. The check takes 4 % of a core: its cost is less than the difference between rounds.
const SCRUB_ROUNDS: usize = 9;
const QUICK_SCRUB_ROUNDS: usize = 2;

impl End {
    const ALL: &'static [End] = <End as strum::VariantArray>::VARIANTS;

    /// Returns the name in figures.
    fn name(self) -> &'static str {
        match self {
            End::Clean => "",
            End::Killed => "_killed",
            End::Lost => "_lost",
        }
    }
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let place = WorkDir::of(options)?;
    let rounds = if options.quick { 2 } else { 5 };
    let mut figures = Vec::new();
    let mut notes = vec![
        "each opening is Store::open in a process of its own; resident and peak memory are that process's when the store is open".to_owned(),
        format!(
            "before each, fresh durable batches of {UPDATES} uniform updates; clean: {} of them, then Store::close; killed: SIGKILL after {} s; lost: as clean, `{FRONTIERS}` removed below the store; cold: \
             the operating system's cache has dropped the store's files",
            CLEAN_ROUNDS * ROUND_BATCHES,
            WORK.as_secs()
        ),
        "scrub_share: the same number of fresh durable batches on a store just opened by its frontier, each time in a process of its own: \
         time with the background check at the node's pace over time without, less 1; without a size: of the largest one. scrub_busy_share: \
         of the time, in steps of the check; scrub_without_updates_per_s: with no check"
            .to_owned(),
    ];
    let scrub = match options.quick {
        true => (QUICK_SCRUB_ROUNDS, QUICK_SCRUB_BATCHES),
        false => (SCRUB_ROUNDS, SCRUB_BATCHES),
    };
    let mut shares = Vec::new();
    for keys in sizes(options, &place, &[10_000_000], &[1_000_000]) {
        let size_dir = SizeDir::open(place.dir(), keys)?;
        let store = size_dir.filled_store(progress)?;
        let opening = Opening { keys, size_dir, store, progress };
        figures.extend(opening.measure(rounds, &mut notes)?);
        let scrubbed = opening.scrub(scrub.0, scrub.1)?;
        figures.extend(opening.scrub_figures(&scrubbed, &mut notes));
        // Sizes come in any order.
        shares.push((keys, scrubbed.shares()));
    }
    let largest = shares.into_iter().max_by_key(|(keys, _)| *keys);
    figures.extend(largest.map(|(_, shares)| Figure::new("scrub_share", "ratio", shares).aim(SCRUB_AIM)));
    Ok(Report { bench: "open", runs: rounds, figures, notes })
}

/// The openings of one store.
struct Opening {
    keys: u64,
    size_dir: SizeDir,
    store: PathBuf,
    progress: Progress,
}

impl Opening {
    fn measure(&self, rounds: usize, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
        let size = short(self.keys);
        // A store that was just filled, or that an older version left, is opened once before it counts.
        self.open()?;
        let mut found: Vec<(End, bool, Vec<OpenReport>)> =
            End::ALL.iter().flat_map(|end| [(*end, false, Vec::new()), (*end, true, Vec::new())]).collect();
        for round in 1..=rounds {
            for (end, is_cold, reports) in &mut found {
                let name =
                    format!("open{}{} of {size} keys", end.name(), if *is_cold { "_cold" } else { "" });
                self.progress.step(&format!("{name}, round {round} of {rounds}"));
                if self.bring_to(*end)? {
                    if *is_cold {
                        drop_cached(&self.store)?;
                    }
                    reports.push(self.open()?);
                }
            }
        }
        let mut figures = Vec::new();
        for (end, is_cold, reports) in &found {
            if reports.is_empty() {
                if !is_cold {
                    notes.push(format!("open{}: a store of {size} keys has no `{FRONTIERS}`", end.name()));
                }
                continue;
            }
            let name = format!("open{}{}", end.name(), if *is_cold { "_cold" } else { "" });
            let mut add = |what: &str, unit, samples| {
                let figure = Figure::new(format!("{name}_{what}.{size}"), unit, samples);
                let aim = open_aim(figure.name());
                figures.push(aim.map_or(figure.clone(), |aim| figure.aim(aim)));
            };
            add("s", "s", reports.iter().map(|report| report.seconds).collect());
            add("resident_mib", "MiB", reports.iter().map(|report| report.resident_mib).collect());
            add("peak_mib", "MiB", reports.iter().map(|report| report.peak_mib).collect());
        }
        Ok(figures)
    }

    fn open(&self) -> Result<OpenReport> {
        let tree_memory_mib = tree_memory_mib(self.keys);
        OpenOptions { dir: self.store.clone(), tree_memory_mib }.in_child()
    }

    /// Commits, then ends the store as `end` says. Returns false if the store has no frontiers to lose; only a clean
    /// end leaves them.
    fn bring_to(&self, end: End) -> Result<bool> {
        if end == End::Lost && !self.store.join(FRONTIERS).exists() {
            return Ok(false);
        }
        match end {
            End::Killed => self.kill()?,
            End::Clean | End::Lost => _ = self.commits()?.in_child()?,
        }
        match end {
            End::Lost => lose(&self.store),
            End::Clean | End::Killed => Ok(true),
        }
    }

    /// Returns the arguments of a store that commits at most `batches_max` batches in total.
    fn filled(&self, batches_max: u64, batches: usize) -> Result<Filled> {
        Ok(Filled {
            dir: self.store.clone(),
            keys: self.keys,
            after: self.size_dir.take_number(batches_max)?,
            tree_memory_mib: tree_memory_mib(self.keys),
            updates: UPDATES,
            batches,
        })
    }

    fn commits(&self) -> Result<CommitOptions> {
        let filled = self.filled(WORK_BATCHES, ROUND_BATCHES)?;
        Ok(CommitOptions { filled, warm_rounds: 0, rounds: CLEAN_ROUNDS })
    }

    /// Commits alternately with and without the background check. The store was closed before, so that it opens by its
    /// frontier.
    fn scrub(&self, rounds: usize, batches: usize) -> Result<Rounds> {
        let mut measured = Rounds::default();
        for round in 0..rounds {
            self.progress.step(&format!(
                "commits beside the check of {} keys, round {} of {rounds}",
                short(self.keys),
                round + 1
            ));
            // The check begins elsewhere each time, because rows that it just read would be cached.
            let begin = (256 * round / rounds) as u8;
            let (without, with) = match round % 2 {
                0 => {
                    let without = self.scrub_once(batches, None)?;
                    (without, self.scrub_once(batches, Some(begin))?)
                }
                _ => {
                    let with = self.scrub_once(batches, Some(begin))?;
                    (self.scrub_once(batches, None)?, with)
                }
            };
            measured.push(without, with);
        }
        Ok(measured)
    }

    fn scrub_once(&self, batches: usize, begin: Option<u8>) -> Result<ScrubReport> {
        ScrubOptions { filled: self.filled(batches as u64, batches)?, begin }.in_child()
    }

    fn scrub_figures(&self, rounds: &Rounds, notes: &mut Vec<String>) -> Vec<Figure> {
        let size = short(self.keys);
        if rounds.came_round() > 0 {
            notes.push(format!(
                "scrub_share.{size}: in {} rounds the check had passed all paths before the commits ended: it is too low",
                rounds.came_round()
            ));
        }
        let figure = |name: &str, unit, samples| Figure::new(format!("{name}.{size}"), unit, samples);
        vec![
            figure("scrub_share", "ratio", rounds.shares()).aim(SCRUB_AIM),
            figure("scrub_rows_per_s", "1/s", rounds.rows_per_s()),
            figure("scrub_busy_share", "ratio", rounds.busy_shares()),
            figure("scrub_without_updates_per_s", "1/s", rounds.updates_per_s()),
        ]
    }

    fn kill(&self) -> Result<()> {
        let child = self.commits()?.start_endless()?;
        // No thread unparks this one.
        std::thread::park_timeout(WORK);
        child.kill()
    }
}

/// Removes the file that the next start would use.
fn lose(store: &Path) -> Result<bool> {
    let frontiers = store.join(FRONTIERS);
    if !frontiers.exists() {
        return Ok(false);
    }
    fs::remove_dir_all(&frontiers)?;
    ensure!(!frontiers.exists(), "{} is still there", frontiers.display());
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only the frontiers are removed, and a store without them is detected.
    #[test]
    fn frontiers_are_lost_once() {
        let store = tempfile::tempdir().unwrap();
        fs::create_dir_all(store.path().join(FRONTIERS)).unwrap();
        fs::write(store.path().join(FRONTIERS).join("file"), []).unwrap();
        fs::write(store.path().join("CURRENT"), []).unwrap();
        assert!(lose(store.path()).unwrap());
        assert!(!lose(store.path()).unwrap());
        assert!(store.path().join("CURRENT").exists());
    }
}
