//! What `kill -9` of a run leaves, and [`sweep`], which removes it.
//!
//! A run that ends, well or not, removes its temporary directory and its small disks by itself. A killed one cannot; the kernel ends its
//! processes (`devnet::die_with_parent`), and nobody its files. So each directory and each disk says whose it is:
//!
//! ```text
//!  RunDir     $TMPDIR/slipnet-…/.owner  locked while its process lives; "PID:START:REALM" in it, and the directory's name
//!  SmallDisk  a tmpfs                   its source is "slipnet:PID:START:REALM"
//! ```
//!
//! Invariant: what a living process owns stays, and so does whatever has no owner: a directory that was kept, a copy, or somebody else's.
//! Only an owner whose death is certain is dead. Of one in another container, on another machine, or from before a restart it is not.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result, ensure};
use rustix::{
    fs::{Mode, OFlags, major, minor},
    io::Errno,
    mount::{UnmountFlags, unmount},
    process::geteuid,
};
use tempfile::TempDir;

use crate::{devnet::files, file_lock::FileLock};

/// The beginning of the names of all temporary directories.
const PREFIX: &str = "slipnet-";
/// The file in them that says whose they are.
const OWNER: &str = ".owner";
/// The longest such file that is read.
const OWNER_BYTES_MAX: u64 = 512;
/// The beginning of the sources of all small disks.
const DISK: &str = "slipnet:";

/// A process, told from a later one of the same number by when it started.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Owner {
    pid: u32,
    /// Ticks after the machine started.
    started: u64,
    /// Where and since when these numbers mean this process.
    realm: String,
}

impl Owner {
    fn this() -> Result<Owner> {
        // Not `std::process::id`: `/proc` may be that of another namespace, and then has another number for this process.
        let stat = fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
        let pid = stat.split(' ').next().unwrap_or_default();
        let pid = pid.parse().context("/proc/self/stat does not begin with a number")?;
        let started = started(pid)?.context("/proc does not tell when this process started")?;
        Ok(Owner { pid, started, realm: realm()? })
    }

    /// Whether it is certain that it has ended.
    fn is_dead(&self) -> bool {
        let is_here = realm().is_ok_and(|here| here == self.realm);
        is_here && started(self.pid).is_ok_and(|started| started != Some(self.started))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.pid, self.started, self.realm)
    }
}

impl FromStr for Owner {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Owner> {
        let (pid, rest) = text.split_once(':').context("no PID:START:REALM")?;
        let (started, realm) = rest.split_once(':').context("no PID:START:REALM")?;
        ensure!(!realm.is_empty(), "no PID:START:REALM");
        Ok(Owner { pid: pid.parse()?, started: started.parse()?, realm: realm.to_owned() })
    }
}

/// The machine's start, and the namespace of process numbers.
fn realm() -> Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("cannot read the boot's id")?;
    let namespace = fs::read_link("/proc/self/ns/pid").context("cannot read /proc/self/ns/pid")?;
    let namespace: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    Ok(format!("{}-{namespace}", boot.trim()))
}

/// When a process started; none if there is none, or it has ended and only waits to be waited for.
///
/// # Errors
/// If `/proc` does not tell, which says nothing of the process.
pub(crate) fn started(pid: u32) -> io::Result<Option<u64>> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // It ended between opening and reading.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => Ok(None),
        stat => start_of(&stat?),
    }
}

/// The start in a `/proc/PID/stat`; none of a process that has ended. One that nobody waited for keeps its entry, with the state Z. So does
/// one whose first thread ended before the others, which hold its files and locks until they have ended too.
fn start_of(stat: &str) -> io::Result<Option<u64>> {
    // The program's name may have blanks and parentheses. Behind it are the state, 17 fields on the number of threads, two on the start.
    let mut fields =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace()).into_iter().flatten();
    let (state, threads, started) = (fields.next(), fields.nth(16), fields.nth(1));
    let number = |field: Option<&str>| field.and_then(|field| field.parse::<u64>().ok());
    let told = state.zip(number(threads)).zip(number(started));
    let ((state, threads), started) =
        told.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no start in /proc"))?;
    let has_ended = state == "X" || state == "Z" && threads <= 1;
    Ok((!has_ended).then_some(started))
}

/// A run's temporary directory. Removed when it is dropped, or by the next [`sweep`] once this process is dead.
#[derive(Debug)]
pub struct RunDir {
    dir: TempDir,
    /// Its lock ends with it, in whatever way the process does. None where `/proc` does not tell who this process is: no sweep removes it.
    _owner: Option<FileLock>,
}

impl RunDir {
    /// Makes one; `slipnet-` and `what` begin its name.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn new(what: &str) -> Result<RunDir> {
        RunDir::new_in(&std::env::temp_dir(), what, Owner::this().ok().as_ref())
    }

    fn new_in(base: &Path, what: &str, owner: Option<&Owner>) -> Result<RunDir> {
        let made = tempfile::Builder::new().prefix(&format!("{PREFIX}{what}")).tempdir_in(base);
        let dir = made.with_context(|| format!("cannot make a temporary directory in {}", base.display()))?;
        let Some(owner) = owner else { return Ok(RunDir { dir, _owner: None }) };
        let (file, path) = (dir.path().join(".owner.new"), dir.path().join(OWNER));
        // Nobody sees an owner that is not locked yet.
        let locked = File::create(&file).and_then(|file| {
            let locked = FileLock::exclusive(file)?.ok_or(io::ErrorKind::WouldBlock)?;
            let name = dir.path().file_name().unwrap_or_default();
            writeln!(locked.file(), "{owner}\n{}", name.to_string_lossy())?;
            Ok(locked)
        });
        let locked = locked.and_then(|locked| fs::rename(&file, &path).map(|()| locked));
        let locked = locked.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(RunDir { dir, _owner: Some(locked) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Lets it stay: it has no owner any more.
    pub fn keep(self) -> PathBuf {
        let _ = fs::remove_file(self.dir.path().join(OWNER));
        self.dir.keep()
    }
}

/// What a small disk of this process is mounted from. No sweep unmounts it where `/proc` does not tell who this process is.
pub(crate) fn disk_source() -> String {
    Owner::this().map_or_else(|_| format!("{DISK}unknown"), |owner| format!("{DISK}{owner}"))
}

/// Removes the temporary directories and unmounts the small disks that killed runs of this user left. Says what it did, and what it could
/// not do.
pub fn sweep() -> Vec<String> {
    // Disks first: they may be mounted in the directories.
    let dead = disks(&mounts()).into_iter().filter(|disk| disk.owner.is_dead() && disk.is_on_top());
    let mut told: Vec<String> = dead.map(|disk| disk.remove()).collect();
    told.extend(sweep_dirs(&std::env::temp_dir(), &mount_points(&mounts())));
    told
}

/// All mounts that this process sees.
fn mounts() -> String {
    String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap_or_default()).into_owned()
}

/// A small disk in the list of mounts.
#[derive(PartialEq, Eq, Debug)]
struct Disk {
    at: PathBuf,
    /// `MAJOR:MINOR`.
    device: String,
    owner: Owner,
}

impl Disk {
    /// Whether it is what one finds at its place. Another disk may have been mounted over it, and would be unmounted instead.
    fn is_on_top(&self) -> bool {
        let device = |found: fs::Metadata| format!("{}:{}", major(found.dev()), minor(found.dev()));
        fs::symlink_metadata(&self.at).is_ok_and(|found| device(found) == self.device)
    }

    fn remove(&self) -> String {
        let at = self.at.display();
        match unmount(self.at.as_path(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => format!("unmounted the disk of a killed run at {at}"),
            Err(error) => format!("cannot unmount the disk of a killed run at {at}: {error}"),
        }
    }
}

/// The small disks in a list of mounts, as `/proc/self/mountinfo` writes it, with their owners.
fn disks(mountinfo: &str) -> Vec<Disk> {
    let disk = |line: &str| {
        let (place, source) = line.split_once(" - ")?;
        let mut place = place.split(' ');
        let (device, at) = (place.nth(2)?.to_owned(), place.nth(1)?);
        let owner = source.split(' ').nth(1)?.strip_prefix(DISK)?.parse().ok()?;
        Some(Disk { at: PathBuf::from(unescaped(at)), device, owner })
    };
    mountinfo.lines().filter_map(disk).collect()
}

/// Where something is mounted.
fn mount_points(mountinfo: &str) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(|at| PathBuf::from(unescaped(at))).collect()
}

/// A path of mountinfo, where a blank is written `\040`.
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(path.to_owned(), |path, (code, letter)| path.replace(code, letter))
}

fn sweep_dirs(base: &Path, mounted: &[PathBuf]) -> Vec<String> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    named.filter_map(|entry| sweep_dir(&entry.path(), mounted)).collect()
}

/// Removes one directory if its owner is dead. None if nothing was done.
fn sweep_dir(dir: &Path, mounted: &[PathBuf]) -> Option<String> {
    let is_ours = |found: &fs::Metadata| found.uid() == geteuid().as_raw();
    // No link is followed, and nothing of another user's believed.
    let found = fs::symlink_metadata(dir).ok()?;
    if !found.is_dir() || !is_ours(&found) {
        return None;
    }
    let path = dir.join(OWNER);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(&path, flags, Mode::empty()).ok()?);
    let opened = file.metadata().ok().filter(|opened| opened.is_file() && is_ours(opened))?;
    let locked = FileLock::exclusive(file).ok()??;
    // Whoever held the lock before may have kept the directory, or swept it.
    let still = fs::symlink_metadata(&path).ok()?;
    let text = read_short(locked.file()).ok()?;
    let (owner, name) = text.trim_end().split_once('\n')?;
    // A copy, or a directory that somebody gave a name, is not the run's any more.
    let is_original = dir.file_name().is_some_and(|found| found.to_string_lossy() == name);
    let is_same = (still.dev(), still.ino()) == (opened.dev(), opened.ino());
    if !is_same || !is_original || !owner.parse::<Owner>().ok()?.is_dead() {
        return None;
    }
    let shown = dir.display();
    let real = dir.canonicalize().ok()?;
    if let Some(at) = mounted.iter().find(|at| at.starts_with(&real)) {
        return Some(format!("the files of a killed run in {shown} stay: {} is mounted there", at.display()));
    }
    if let Some(node) = node_that_runs(dir) {
        return Some(format!("the files of a killed run in {shown} stay: {} runs, by hand", node.display()));
    }
    match fs::remove_dir_all(dir) {
        Ok(()) => Some(format!("removed the files of a killed run in {shown}")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(format!("cannot remove the files of a killed run in {shown}: {error}")),
    }
}

/// The directory of a node that somebody started by hand: such a one does not end with the run.
fn node_that_runs(dir: &Path) -> Option<PathBuf> {
    let nodes = [dir.to_owned(), dir.join("nodes")];
    let places = nodes.iter().filter_map(|nodes| fs::read_dir(nodes).ok()).flatten().flatten();
    places.map(|place| place.path()).find(|node| {
        matches!(File::open(node.join(files::DATA).join(files::LOCK)).map(FileLock::shared), Ok(Ok(None)))
    })
}

fn read_short(file: &File) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, OWNER_BYTES_MAX), &mut text)?;
    Ok(text)
}

/// Says that a test is left out because this process may not mount; fails if `SLIPSTREAM_REQUIRE_TMPFS=1`.
#[cfg(test)]
#[allow(clippy::print_stderr, reason = "tells whoever runs the tests that one was left out")]
pub(crate) fn skip_mounts(why: &str) {
    let is_required = std::env::var_os("SLIPSTREAM_REQUIRE_TMPFS").is_some_and(|value| value == "1");
    assert!(!is_required, "{why}");
    eprintln!("SKIPPED: {why} (SLIPSTREAM_REQUIRE_TMPFS=1 makes this an error)");
}

#[cfg(test)]
mod tests;
