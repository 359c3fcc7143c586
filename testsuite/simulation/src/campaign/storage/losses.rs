//! Removes, truncates, renames and locks files of a closed store, one at a time, or copies half of them; then starts
//! and checks. Either everything acknowledged is present, or the store is refused as damaged. A refusal names the
//! missing part and leaves every file unchanged. With the file put back, the store is whole.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rand::{Rng, seq::SliceRandom as _};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use slipstream_storage::{Maintenance, Repair, StorageError, Store, stats_of};
use slipstream_types::{BatchNumber, Digest};

use super::{
    audit::{Demand, audit},
    chain::{Chain, History},
    child::{copy_links, verdict},
    life::{self, config},
};

/// Batches of the store, and the number after which it is reopened, which leaves tables and logs of several ages.
const BATCHES: u64 = 26;
const REOPEN_INTERVAL: u64 = 10;
const BODY_BYTES: usize = 3_000;
/// The prefix of a renamed file: RocksDB would take `OPTIONS-000007.aside` for one of its own.
const ASIDE: &str = "aside.";

/// The kinds of loss of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    Removed,
    Emptied,
    Halved,
    /// One byte is missing.
    Shortened,
    Renamed,
    /// Another process holds both kinds of lock on it.
    Locked,
}

const LOSSES: [Loss; 6] =
    [Loss::Removed, Loss::Emptied, Loss::Halved, Loss::Shortened, Loss::Renamed, Loss::Locked];

/// The acceptable outcomes of a start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Outcome {
    /// Everything acknowledged is present.
    Whole,
    /// Everything is present except a snapshot, which is refused by its name.
    WithoutSnapshot,
    /// The store is refused as damaged.
    Refused,
    /// The store is refused as in use.
    InUse,
}

/// Arguments of the process that starts the store.
#[derive(Clone, Debug, Args)]
pub struct ReopenOptions {
    /// The store.
    #[arg(long)]
    pub dir: PathBuf,
    /// The chain's seed.
    #[arg(long)]
    pub seed: u64,
}

fn chain(seed: u64) -> Chain {
    Chain { seed, body_bytes: BODY_BYTES }
}

/// Opens the store in every way that commands do, and reads everything; returns the outcome.
///
/// # Errors
/// If something acknowledged is missing, or an answer is wrong.
pub(super) fn reopen(options: &ReopenOptions) -> Result<String> {
    let config = config(true);
    let store = match Store::open(&config, &options.dir) {
        Ok(store) => store,
        Err(StorageError::Locked { .. }) => return Ok("in-use".to_owned()),
        Err(error @ StorageError::Corrupt { .. }) => {
            let others = [
                Maintenance::open(&config, &options.dir).err(),
                Repair::open(&config, &options.dir).err(),
                Store::open(&config, &options.dir).err(),
            ];
            for other in others {
                ensure!(
                    matches!(other, Some(StorageError::Corrupt { .. })),
                    "another way to open the store did not report damage: {other:?}"
                );
            }
            return Ok(format!("refused {error}"));
        }
        Err(error) => bail!("the store is refused, but not as damaged: {error}"),
    };
    let demand = Demand { damaged: true, complete: true };
    let found = audit(&store, &mut History::new(chain(options.seed))?, demand)?;
    ensure!(
        found.head == Some(BatchNumber::new(BATCHES)),
        "the store opened at another head: {:?}",
        found.head
    );
    let snapshots = store.snapshots().len();
    store.close();
    drop(store);
    stats_of(&config, &options.dir)?;
    let report = Maintenance::open(&config, &options.dir)?.check(&mut |_| {})?;
    ensure!(report.damage.is_empty(), "the store opens although it is damaged: {:?}", report.damage);
    Ok(match (found.refused, snapshots) {
        (0, life::SNAPSHOTS_KEPT) => "whole".to_owned(),
        _ => "without-snapshot".to_owned(),
    })
}

/// A closed store with all kinds of files, whose copies lose some.
pub(super) struct Losses {
    program: PathBuf,
    original: tempfile::TempDir,
    copies: PathBuf,
    seed: u64,
    /// The trials: a file and its loss; the files that a start reads come first.
    trials: Vec<(PathBuf, Loss)>,
}

impl Losses {
    /// Commits a chain to a store in `parent`, closes it, and plans a trial of each loss of each file.
    pub(super) fn new(program: PathBuf, parent: &Path, rng: &mut impl Rng) -> Result<Losses> {
        let original = tempfile::Builder::new().prefix("losses-").tempdir_in(parent)?;
        let seed = rng.random();
        let chain = chain(seed);
        let mut store = Store::open(&config(true), original.path())?;
        store.initialize(&chain.genesis())?;
        for batch in 1..=BATCHES {
            life::step(&store, &chain)?;
            if batch.is_multiple_of(REOPEN_INTERVAL) {
                store.close();
                drop(store);
                store = Store::open(&config(true), original.path())?;
            }
        }
        store.close();
        drop(store);
        let files = digests(original.path())?;
        let mut trials: Vec<_> =
            files.keys().flat_map(|file| LOSSES.map(|loss| (file.clone(), loss))).collect();
        trials.shuffle(rng);
        trials.sort_by_key(|(file, _)| is_bulk(file));
        Ok(Losses { program, original, copies: parent.to_owned(), seed, trials })
    }

    /// Returns the number of trials.
    pub(super) fn trials(&self) -> usize {
        self.trials.len()
    }

    /// Loses one file in one way; then puts it back.
    pub(super) fn lose(&self, trial: usize) -> Result<Outcome> {
        let (file, loss) = &self.trials[trial];
        let what = format!("{} {loss:?}", file.display());
        self.kept_if_wrong(&what, |copy| {
            let (path, locks) = (copy.join(file), Locks::default());
            let len = fs::metadata(&path)?.len();
            let cut = |len| fs::File::options().write(true).open(&path)?.set_len(len);
            match loss {
                Loss::Removed => fs::remove_file(&path)?,
                Loss::Renamed => fs::rename(&path, aside(&path))?,
                Loss::Emptied => cut(0)?,
                Loss::Halved => cut(len / 2)?,
                Loss::Shortened => cut(len.saturating_sub(1))?,
                Loss::Locked => locks.take(&path)?,
            }
            let outcome = self.start(copy, &file.to_string_lossy())?;
            if outcome == Outcome::InUse {
                ensure!(
                    *loss == Loss::Locked,
                    "the store is reported as in use, but no process holds a lock"
                );
            }
            drop(locks);
            if matches!(outcome, Outcome::Refused | Outcome::InUse) {
                fs::copy(self.original.path().join(file), &path)?;
                let again = self.start(copy, "").context("the lost file was put back")?;
                ensure!(again == Outcome::Whole, "the lost file was put back, but the outcome is {again:?}");
            }
            Ok(outcome)
        })
    }

    /// Keeps each file with a probability of one half.
    pub(super) fn halve(&self, rng: &mut impl Rng) -> Result<Outcome> {
        let files = digests(self.original.path())?;
        let lost: Vec<_> = files.keys().filter(|_| rng.random()).collect();
        let what = format!("without {lost:?}");
        self.kept_if_wrong(&what, |copy| {
            for file in &lost {
                fs::remove_file(copy.join(file))?;
            }
            self.start(copy, "")
        })
    }

    fn kept_if_wrong(&self, what: &str, trial: impl FnOnce(&Path) -> Result<Outcome>) -> Result<Outcome> {
        let mut copy = tempfile::Builder::new().prefix("lost-").tempdir_in(&self.copies)?;
        copy_links(self.original.path(), copy.path())?;
        let outcome = trial(copy.path());
        copy.disable_cleanup(outcome.is_err());
        outcome.with_context(|| format!("{what}; kept as {}", copy.path().display()))
    }

    /// Starts the store in another process, and checks its files afterwards.
    fn start(&self, copy: &Path, lost: &str) -> Result<Outcome> {
        let before = digests(copy)?;
        let seed = self.seed.to_string();
        let dir = copy.to_string_lossy();
        let text = verdict(&self.program, &["reopen", "--dir", &dir, "--seed", &seed])?;
        let after = digests(copy)?;
        let outcome = match text.split_whitespace().next() {
            Some("whole") => Outcome::Whole,
            Some("without-snapshot") => Outcome::WithoutSnapshot,
            Some("refused") => Outcome::Refused,
            Some("in-use") => Outcome::InUse,
            _ => bail!("the start printed an unknown outcome: {text:?}"),
        };
        match outcome {
            Outcome::Refused | Outcome::InUse => {
                ensure!(after == before, "the store was refused, but files changed")
            }
            // Tables and logs are rewritten, and obsolete files are removed. All other files must stay.
            Outcome::Whole | Outcome::WithoutSnapshot => {
                for (file, digest) in before.iter().filter(|(file, _)| is_kept(file)) {
                    ensure!(after.get(file) == Some(digest), "{} is gone or changed", file.display());
                }
            }
        }
        if outcome == Outcome::Refused {
            let name = Path::new(lost).file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            let is_named = text.contains(&*name) || (name.ends_with(".log") && text.contains(".log"));
            ensure!(is_named, "the refusal does not name {lost}: {text}");
        }
        Ok(outcome)
    }
}

/// Locks of a file, held as long as this value lives.
#[derive(Default)]
struct Locks(std::cell::RefCell<Vec<File>>);

impl Locks {
    fn take(&self, path: &Path) -> Result<()> {
        let file = File::options().read(true).write(true).open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        self.0.borrow_mut().push(file);
        Ok(())
    }
}

/// Whether a file is a table or in a snapshot: most files are, and they are alike.
fn is_bulk(file: &Path) -> bool {
    file.starts_with("snapshots") || file.extension().is_some_and(|extension| extension == "sst")
}

/// Whether no start may change a file: snapshots, and files that an operator put there.
fn is_kept(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.starts_with("snapshots") || name.starts_with(ASIDE)
}

/// Returns the path of a renamed file.
fn aside(path: &Path) -> PathBuf {
    path.with_file_name(format!("{ASIDE}{}", path.file_name().unwrap_or_default().to_string_lossy()))
}

/// Returns the digests of all files except RocksDB's info logs, by their paths in the directory.
fn digests(dir: &Path) -> Result<BTreeMap<PathBuf, Digest>> {
    fn collect(root: &Path, dir: &Path, found: &mut BTreeMap<PathBuf, Digest>) -> Result<()> {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                collect(root, &path, found)?;
            } else if name == "LOCK" || !name.starts_with("LOG") {
                let digest = Digest::tagged("slipstream/campaign-file", &fs::read(&path)?);
                found.insert(path.strip_prefix(root)?.to_owned(), digest);
            }
        }
        Ok(())
    }
    let mut found = BTreeMap::new();
    collect(dir, dir, &mut found)?;
    Ok(found)
}
