//! Damages the files of a closed store, then reads everything in another process, which may refuse but never answer
//! wrongly.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rand::Rng;
use slipstream_storage::Store;
use slipstream_types::BatchNumber;

use super::{
    audit::{Demand, audit},
    chain::{Chain, History},
    child::{copy_links, verdict},
    life::{self, config},
};

/// Batches of the damaged store; it has snapshots, several files per column, and a log that is not flushed yet.
const BATCHES: u64 = 45;
const LAST: BatchNumber = BatchNumber::new(BATCHES);
const BODY_BYTES: usize = 3_000;
/// The most bytes that a torn file loses.
const TORN_BYTES_MAX: u64 = 64 << 10;
const FLIPS_MAX: usize = 8;

/// The acceptable outcomes for a damaged store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Every answer is present and right.
    Unharmed,
    /// No answer is wrong, and some are refused.
    Refused,
    /// The store does not open, and reports why.
    Closed,
    /// The log ends early: an earlier batch is the head, and all up to it is right.
    Earlier,
}

/// Arguments of the process that examines a store.
#[derive(Clone, Debug, Args)]
pub struct AuditOptions {
    /// The store.
    #[arg(long)]
    pub dir: PathBuf,
    /// The chain's seed.
    #[arg(long)]
    pub seed: u64,
}

/// Reads everything from a damaged store; returns the outcome.
///
/// # Errors
/// If an answer is wrong.
pub(super) fn audit_damaged(options: &AuditOptions) -> Result<String> {
    let chain = Chain { seed: options.seed, body_bytes: BODY_BYTES };
    let store = match Store::open(&config(false), &options.dir) {
        Ok(store) => store,
        Err(error) => return Ok(format!("closed {error}")),
    };
    let demand = Demand { damaged: true, complete: true };
    let found = audit(&store, &mut History::new(chain)?, demand)?;
    Ok(match (found.head, found.refused) {
        (Some(LAST), 0) => "unharmed".to_owned(),
        (Some(LAST), refused) => format!("refused {refused}"),
        (head, _) => format!("earlier {}", head.unwrap_or_default()),
    })
}

/// A closed store whose copies are damaged.
pub(super) struct Victim {
    program: PathBuf,
    original: tempfile::TempDir,
    copies: PathBuf,
    seed: u64,
}

impl Victim {
    /// Commits a chain to a store in `parent`, and closes it.
    pub(super) fn new(program: PathBuf, parent: &Path, seed: u64) -> Result<Victim> {
        let original = tempfile::Builder::new().prefix("victim-").tempdir_in(parent)?;
        let chain = Chain { seed, body_bytes: BODY_BYTES };
        let store = Store::open(&config(false), original.path())?;
        store.initialize(&chain.genesis())?;
        for _ in 0..BATCHES {
            life::step(&store, &chain)?;
        }
        store.close();
        Ok(Victim { program, original, copies: parent.to_owned(), seed })
    }

    /// Truncates the newest log or table file. A power cut also truncates logs, so the store must still open then.
    pub(super) fn tear(&self, rng: &mut impl Rng) -> Result<Outcome> {
        let copy = self.copy()?;
        let log = rng.random();
        let file = newest(copy.path(), if log { "log" } else { "sst" })?;
        let len = fs::metadata(&file)?.len();
        let cut = rng.random_range(1..=len.min(TORN_BYTES_MAX));
        fs::OpenOptions::new().write(true).open(&file)?.set_len(len - cut)?;
        let what = format!("{} lost the last {cut} of {len} bytes", file.display());
        let outcome = self.ask(copy, &what)?;
        ensure!(!log || outcome != Outcome::Closed, "the store does not open with a torn log: {what}");
        Ok(outcome)
    }

    /// Flips a few bits in one file of any kind.
    pub(super) fn flip(&self, rng: &mut impl Rng) -> Result<Outcome> {
        let copy = self.copy()?;
        let mut files = Vec::new();
        collect(copy.path(), &mut files)?;
        let file = &files[rng.random_range(0..files.len())];
        let mut bytes = fs::read(file)?;
        let mut what = format!("bits flipped in {} at", file.display());
        for _ in 0..rng.random_range(1..=FLIPS_MAX) {
            let (at, bit) = (rng.random_range(0..bytes.len()), rng.random_range(0..8));
            bytes[at] ^= 1 << bit;
            what += &format!(" {at}.{bit}");
        }
        // Written in place: snapshots are hard links, so a damaged disk damages the store and its snapshots.
        fs::write(file, bytes)?;
        self.ask(copy, &what)
    }

    fn copy(&self) -> Result<tempfile::TempDir> {
        let copy = tempfile::Builder::new().prefix("copy-").tempdir_in(&self.copies)?;
        copy_links(self.original.path(), copy.path())?;
        Ok(copy)
    }

    /// Gets the verdict of another process: the database library may crash on the damaged files.
    fn ask(&self, mut copy: tempfile::TempDir, what: &str) -> Result<Outcome> {
        let verdict = self.verdict(copy.path());
        if verdict.is_err() {
            copy.disable_cleanup(true);
        }
        verdict.with_context(|| format!("{what}; kept as {}", copy.path().display()))
    }

    fn verdict(&self, dir: &Path) -> Result<Outcome> {
        let (dir, seed) = (dir.to_string_lossy(), self.seed.to_string());
        let text = verdict(&self.program, &["audit", "--dir", &dir, "--seed", &seed])?;
        Ok(match text.split_whitespace().next() {
            Some("unharmed") => Outcome::Unharmed,
            Some("refused") => Outcome::Refused,
            Some("closed") => Outcome::Closed,
            Some("earlier") => Outcome::Earlier,
            _ => bail!("the audit printed an unknown outcome: {text:?}"),
        })
    }
}

/// Collects all files that are not empty.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries = fs::read_dir(dir)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_unstable_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let meta = entry.metadata()?;
        if meta.is_dir() {
            collect(&entry.path(), files)?;
        } else if meta.len() > 0 {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Returns the newest file of a kind in the database itself: the one with the highest number.
fn newest(dir: &Path, extension: &str) -> Result<PathBuf> {
    let mut files = Vec::new();
    collect(&dir.join("db"), &mut files)?;
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    files.into_iter().max().with_context(|| format!("the store has no .{extension} file"))
}
