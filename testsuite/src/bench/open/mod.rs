//! What it takes to open a store: after a clean stop, after a kill in the middle of commits, and when what a stop leaves for the next start is
//! lost. Each opening is a process of its own, so that the memory that it takes is its own too.
//!
//! Everything is opened twice: with what the operating system still has of its files, and after its cache has dropped them (`cold`).

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};

use super::{
    BenchOptions, Figure, Report,
    harness::kept::Place,
    ledger::files::drop_cached,
    size::short,
    state::{CommitOptions, OpenOptions, OpenReport, SizeDir, open_aim, sizes, tree_memory_mib},
};
use crate::progress::Progress;

/// Below a store: what a clean stop, or a moment at work, leaves so that the next start need not read all rows.
const FRONTIERS: &str = "frontiers";
/// Updates of the batches in whose middle a store is killed.
const UPDATES: usize = 10_000;
/// How long it commits before.
const WORK: Duration = Duration::from_secs(3);
/// More batches than are made in that time.
const WORK_BATCHES: u64 = 5_000;

/// How the store ended before it is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Clean,
    Killed,
    /// Clean, and its frontiers were removed.
    Lost,
}

/// Rounds of batches before a clean end: what a store leaves for its next start is that of a store at work.
const CLEAN_ROUNDS: usize = 5;
const ROUND_BATCHES: usize = 10;

impl End {
    const ALL: [End; 3] = [End::Clean, End::Killed, End::Lost];

    /// In the names of figures.
    fn name(self) -> &'static str {
        match self {
            End::Clean => "",
            End::Killed => "_killed",
            End::Lost => "_lost",
        }
    }
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let place = Place::of(options)?;
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
    ];
    for keys in sizes(options, &place, &[10_000_000], &[1_000_000]) {
        let size_dir = SizeDir::open(place.dir(), keys)?;
        let store = size_dir.filled_store(progress)?;
        let opening = Opening { keys, size_dir, store, progress };
        figures.extend(opening.measure(rounds, &mut notes)?);
    }
    Ok(Report { bench: "open", runs: rounds, figures, notes })
}

/// Openings of one store.
struct Opening {
    keys: u64,
    size_dir: SizeDir,
    store: PathBuf,
    progress: Progress,
}

impl Opening {
    fn measure(&self, rounds: usize, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
        let size = short(self.keys);
        // A store that was just filled, or that an older version left, has been opened once before it counts.
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

    /// Commits, and brings the store to an end. False if there is nothing to lose; a store that was closed leaves it, if any does.
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

    fn commits(&self) -> Result<CommitOptions> {
        Ok(CommitOptions {
            dir: self.store.clone(),
            keys: self.keys,
            after: self.size_dir.take_number(WORK_BATCHES)?,
            tree_memory_mib: tree_memory_mib(self.keys),
            updates: UPDATES,
            batches: ROUND_BATCHES,
            warm_rounds: 0,
            rounds: CLEAN_ROUNDS,
        })
    }

    fn kill(&self) -> Result<()> {
        let child = self.commits()?.start_endless()?;
        // Nobody unparks this thread.
        std::thread::park_timeout(WORK);
        child.kill()
    }
}

/// Removes what the next start would use.
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

    /// Goal: only the frontiers go, and a store without them is told apart.
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
