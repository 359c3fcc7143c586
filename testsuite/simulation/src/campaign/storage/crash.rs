//! Kills lives at every named crash point and at random moments, and compares the stores that they leave with their
//! reports.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rand::Rng;
use slipstream_storage::{CrashPoint, Store, Takeover, WriteStep};
use slipstream_types::{BatchNumber, BlobKind, Path, StateKey};

use super::{
    audit::{Demand, audit},
    chain::{Chain, History, State},
    life::{self, WINDOWS, config, follower_config, follower_dir, leader_dir},
    naive,
};

/// The head at which a directory is replaced by a new one, so that audits stay short.
const HEAD_MAX: u64 = 160;
/// The latest kill after the start, in milliseconds: during opening, committing or restoring.
const KILL_MS_MAX: u64 = 400;
const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

/// Two stores on disk, with the heads that their lives reported.
pub(super) struct CrashTarget {
    program: PathBuf,
    dir: tempfile::TempDir,
    chain: Chain,
    history: History,
    leader: BatchNumber,
    follower: BatchNumber,
}

impl CrashTarget {
    /// Makes a target in a new directory in `parent`.
    pub(super) fn new(program: PathBuf, parent: &std::path::Path, seed: u64) -> Result<CrashTarget> {
        let dir = tempfile::Builder::new().prefix("crash-").tempdir_in(parent)?;
        let chain = Chain { seed, body_bytes: 300 };
        let history = History::new(chain)?;
        let zero = BatchNumber::GENESIS;
        Ok(CrashTarget { program, dir, chain, history, leader: zero, follower: zero })
    }

    /// Whether audits of the target have become slow.
    pub(super) fn is_old(&self) -> bool {
        self.leader.get() >= HEAD_MAX
    }

    /// Keeps the directory for the analysis of a failure.
    pub(super) fn keep(mut self) -> PathBuf {
        self.dir.disable_cleanup(true);
        self.dir.path().to_owned()
    }

    /// Runs a life that aborts at the `passing`-th pass of a point.
    pub(super) fn abort_at(&mut self, point: CrashPoint, passing: u64) -> Result<()> {
        let status = self.life(Some((point, passing)), None)?;
        match status.signal() {
            Some(SIGABRT) => self.examine(),
            _ => bail!("the process did not pass {point} {passing} times: it ended with {status}"),
        }
    }

    /// Runs a life that is killed at a random moment.
    pub(super) fn kill_after(&mut self, moment: Duration) -> Result<()> {
        let status = self.life(None, Some(moment))?;
        ensure!(status.signal() == Some(SIGKILL) || status.success(), "a process failed: {status}");
        self.examine()
    }

    fn life(&mut self, point: Option<(CrashPoint, u64)>, kill: Option<Duration>) -> Result<ExitStatus> {
        let mut command = Command::new(&self.program);
        command.args(["campaign-child", "live", "--dir"]).arg(self.dir.path());
        command.args(["--seed", &self.chain.seed.to_string()]);
        if let Some((point, passing)) = point {
            command.args(["--point", &point.to_string(), "--passing", &passing.to_string()]);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("standard output is not piped")?).lines();
        let mut errors = child.stderr.take().context("standard error is not piped")?;
        let told = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
        if let Some(moment) = kill {
            std::thread::park_timeout(moment);
            child.kill()?;
        }
        let status = child.wait()?;
        for line in told.join().unwrap_or_default() {
            self.hold_to(&line)?;
        }
        if status.code().is_some_and(|code| code != 0) {
            let mut text = String::new();
            errors.read_to_string(&mut text)?;
            bail!("a process failed on the store that its predecessor left: {}", text.trim());
        }
        Ok(status)
    }

    fn hold_to(&mut self, line: &str) -> Result<()> {
        let (who, number) =
            line.split_once(' ').with_context(|| format!("a process printed an unknown line: {line:?}"))?;
        let number = BatchNumber::new(number.parse()?);
        match who {
            "leader" => self.leader = number,
            "follower" => self.follower = number,
            _ => bail!("a process printed an unknown line: {line:?}"),
        }
        Ok(())
    }

    /// Opens both stores, audits them, and commits one more batch to the leader's.
    fn examine(&mut self) -> Result<()> {
        let leader = Store::open(&config(true), &leader_dir(self.dir.path())).context("the leader")?;
        let strict = Demand { damaged: false, complete: true };
        let head = audit(&leader, &mut self.history, strict).context("the leader")?.head;
        let told = self.leader;
        ensure!(
            head.unwrap_or_default() == told || head == Some(told.next()),
            "the leader is at {head:?}, but it had reported {told}"
        );
        let dir = follower_dir(self.dir.path());
        let follower = Store::open(&follower_config(), &dir).context("the follower")?;
        let partial = Demand { complete: false, ..strict };
        let followed = audit(&follower, &mut self.history, partial).context("the follower")?.head;
        let told = self.follower;
        ensure!(
            followed.unwrap_or_default() >= told && followed <= head,
            "the follower is at {followed:?}, but it had reported {told}"
        );
        self.follower = followed.unwrap_or_default();
        self.restore_left(&leader, &follower)?;
        if let Some(head) = followed {
            self.prune_left(&follower, head).context("the follower did not prune correctly")?;
        }
        leader.initialize(&self.chain.genesis())?;
        life::settle(&leader, &self.chain)?;
        life::step(&leader, &self.chain).context("the leader cannot continue")?;
        self.leader = leader.head()?.header.number;
        Ok(())
    }

    /// Checks that an unfinished restore has stored exactly the rows that it neither requests nor still has to check.
    fn restore_left(&mut self, leader: &Store, follower: &Store) -> Result<()> {
        let Some(target) = follower.recorded_restore()? else { return Ok(()) };
        let number = target.header.number;
        ensure!(
            target == life::target(leader, number)?,
            "the recorded restore does not match the leader's chain"
        );
        let restore = follower.restore(&target)?;
        let state: &State = &self.history.at(number)?.state;
        let mut open = restore.missing(usize::MAX);
        open.extend(restore.unchecked(usize::MAX)?);
        let is_done = |key: &StateKey| {
            let path = Path(naive::path(key));
            !open.iter().any(|span| (span.first..=span.last).contains(&path))
        };
        let expected = state.keys().filter(|key| is_done(key)).count() as u64;
        ensure!(restore.rows() == expected, "the restore counts {} rows, not {expected}", restore.rows());
        Ok(())
    }

    /// Checks that interrupted pruning completes: of each kind exactly the window is left, or the part of it that was
    /// present.
    fn prune_left(&mut self, follower: &Store, head: BatchNumber) -> Result<()> {
        let kinds = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints];
        let before = kinds.map(|kind| follower.lowest(kind));
        follower.prune()?;
        let windows = WINDOWS;
        for ((kind, window), before) in kinds.into_iter().zip(windows).zip(before) {
            let floor = head.next().before(window);
            let (lowest, expected) = (follower.lowest(kind)?, before?.map(|lowest| lowest.max(floor)));
            let name = kind.name();
            ensure!(lowest == expected, "{name} begin at {lowest:?}, not at {expected:?}");
            for number in BatchNumber::new(1).through(head) {
                let blob = follower.blob(kind, number)?;
                ensure!(number >= floor || blob.is_none(), "the {name} of batch {number} are still served");
                if expected.is_some_and(|lowest| lowest <= number) {
                    let made = self.history.at(number)?.made.as_ref();
                    let due = made.and_then(|made| made.blobs.iter().find(|(made, _)| *made == kind));
                    ensure!(
                        blob.as_ref() == due.map(|(_, blob)| blob),
                        "the {name} of batch {number} are wrong"
                    );
                }
            }
        }
        Ok(())
    }
}

/// Draws the pass of a point at which to crash, up to the most that one life reaches.
pub(super) fn random_passing(point: CrashPoint, rng: &mut impl Rng) -> u64 {
    let (CrashPoint::Before(step) | CrashPoint::After(step)) = point;
    let max = match step {
        WriteStep::RestoreDiscard | WriteStep::Repair | WriteStep::Rollback => 1,
        WriteStep::Initialize
        | WriteStep::RestoreStart
        | WriteStep::RestoreFinish
        | WriteStep::DropSnapshot => 2,
        // The state is small: its rows are one run.
        WriteStep::RestoreSeal | WriteStep::RestoreRows | WriteStep::RestoreChunk => 2,
        // Not every restore brings new code.
        WriteStep::RestoreCode => 2,
        // A start seals what the previous life left in the log.
        WriteStep::HistorySeal
        | WriteStep::HistoryRows
        | WriteStep::HistoryRecord
        | WriteStep::HistoryDrop => 2,
        // A restore leaves the windows' batches to the backfill, two per run.
        WriteStep::Backfill => 3,
        WriteStep::Open
        | WriteStep::Reclaim
        | WriteStep::MakeSnapshot
        | WriteStep::FrontierSave
        | WriteStep::PruneRecord => 3,
        WriteStep::PutCertificate | WriteStep::PruneDrop => 8,
        WriteStep::Commit | WriteStep::FrontierNote | WriteStep::PutRecord => 30,
    };
    rng.random_range(1..=max)
}

/// Whether a point is passed only in a store's first life.
pub(super) fn needs_new_store(point: CrashPoint) -> bool {
    matches!(point, CrashPoint::Before(WriteStep::Initialize) | CrashPoint::After(WriteStep::Initialize))
}

/// Draws the moment of a kill.
pub(super) fn random_moment(rng: &mut impl Rng) -> Duration {
    Duration::from_micros(rng.random_range(0..KILL_MS_MAX * 1_000))
}
