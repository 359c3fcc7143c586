//! What `kill -9` of a run leaves behind, and [`sweep`], which removes it.
//!
//! A run that ends normally or with an error removes its temporary directory and its small disks itself. A killed run
//! cannot: the kernel ends its processes (`devnet::die_with_parent`), but its files stay. So each directory and each
//! disk names its owner:
//!
//! ```text
//!  RunDir     $TMPDIR/slipnet-…/.owner  locked while its process lives; "PID:START:REALM" in it, and the directory's name
//!  SmallDisk  a tmpfs                   its source is "slipnet:PID:START:REALM"
//! ```
//!
//! Invariant: whatever a living process owns stays. So does whatever names no owner: a kept directory, a copy, or
//! another user's directory. An owner counts as dead only if its death is certain. It is not certain for an owner in
//! another container, on another machine, or from before a restart.

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

use crate::{file_lock::FileLock, file_names};

/// The name prefix of all temporary directories.
const PREFIX: &str = "slipnet-";
/// The file in such a directory that names its owner.
const OWNER: &str = ".owner";
/// The most bytes of an owner file that are read.
const OWNER_BYTES_MAX: u64 = 512;
/// The prefix of all small disks' mount sources.
const DISK: &str = "slipnet:";

/// A process. Its start time distinguishes it from a later process with the same id.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Owner {
    pid: u32,
    /// The start time in clock ticks since boot.
    started: u64,
    /// The boot and PID namespace in which `pid` and `started` identify the process.
    realm: String,
}

impl Owner {
    fn this() -> Result<Owner> {
        // `std::process::id` may differ: if `/proc` belongs to another PID namespace, this process has another id
        // there.
        let stat = fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
        let pid = stat.split(' ').next().unwrap_or_default();
        let pid = pid.parse().context("/proc/self/stat does not begin with a number")?;
        let started = started(pid)?.context("/proc does not say when this process started")?;
        Ok(Owner { pid, started, realm: realm()? })
    }

    /// Whether the process has certainly ended.
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

/// Returns the boot id and the PID namespace.
fn realm() -> Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("cannot read the boot's id")?;
    let namespace = fs::read_link("/proc/self/ns/pid").context("cannot read /proc/self/ns/pid")?;
    let namespace: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    Ok(format!("{}-{namespace}", boot.trim()))
}

/// Returns when a process started; `None` if it does not exist or is a zombie.
///
/// # Errors
/// If `/proc` is unreadable, which says nothing about the process.
pub(crate) fn started(pid: u32) -> io::Result<Option<u64>> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // The process ended between opening and reading.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => Ok(None),
        stat => start_of(&stat?),
    }
}

/// Parses the start time in a `/proc/PID/stat`; `None` for a process that has ended. A zombie keeps its entry, with
/// state Z. A process whose first thread ended before the others also has state Z, but holds its files and locks until
/// the last thread ends.
fn start_of(stat: &str) -> io::Result<Option<u64>> {
    // The program's name may contain blanks and parentheses. After it come the state, 17 fields later the number of
    // threads, and two fields later the start time.
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

/// A run's temporary directory. It is removed when dropped, or by the next [`sweep`] once this process is dead.
#[derive(Debug)]
pub struct RunDir {
    dir: TempDir,
    /// The lock ends with the process, however that dies. If `/proc` does not identify this process, this is `None`,
    /// and the directory stays at every sweep.
    _owner: Option<FileLock>,
}

impl RunDir {
    /// Creates a directory whose name begins with `slipnet-` and `what`.
    ///
    /// # Errors
    /// If the directory or its owner file cannot be created.
    pub fn new(what: &str) -> Result<RunDir> {
        RunDir::new_in(&std::env::temp_dir(), what, Owner::this().ok().as_ref())
    }

    fn new_in(base: &Path, what: &str, owner: Option<&Owner>) -> Result<RunDir> {
        let made = tempfile::Builder::new().prefix(&format!("{PREFIX}{what}")).tempdir_in(base);
        let dir =
            made.with_context(|| format!("cannot create a temporary directory in {}", base.display()))?;
        let Some(owner) = owner else { return Ok(RunDir { dir, _owner: None }) };
        let (file, path) = (dir.path().join(".owner.new"), dir.path().join(OWNER));
        // The file is renamed after it is locked, so that an owner file is always locked while its owner lives.
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

    /// The directory's path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Keeps the directory, without an owner.
    pub fn keep(self) -> PathBuf {
        let _ = fs::remove_file(self.dir.path().join(OWNER));
        self.dir.keep()
    }
}

/// Returns the mount source of this process's small disks. If `/proc` does not identify this process, no sweep unmounts
/// them.
pub(crate) fn disk_source() -> String {
    Owner::this().map_or_else(|_| format!("{DISK}unknown"), |owner| format!("{DISK}{owner}"))
}

/// Removes the temporary directories and unmounts the small disks that this user's killed runs have left. Returns a
/// line for each success and failure.
pub fn sweep() -> Vec<String> {
    // Disks come first: they may be mounted in the directories.
    let dead = disks(&mounts()).into_iter().filter(|disk| disk.owner.is_dead() && disk.is_on_top());
    let mut told: Vec<String> = dead.map(|disk| disk.remove()).collect();
    told.extend(sweep_dirs(&std::env::temp_dir(), &mount_points(&mounts())));
    told
}

/// Returns all mounts that this process sees.
fn mounts() -> String {
    String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap_or_default()).into_owned()
}

/// A small disk in the mount table.
#[derive(PartialEq, Eq, Debug)]
struct Disk {
    at: PathBuf,
    /// `MAJOR:MINOR`.
    device: String,
    owner: Owner,
}

impl Disk {
    /// Whether it is the visible mount at its path. A disk mounted over it would be unmounted instead.
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

/// Finds the small disks and their owners in a `/proc/self/mountinfo`.
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

fn mount_points(mountinfo: &str) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(|at| PathBuf::from(unescaped(at))).collect()
}

/// Unescapes a path of mountinfo, where a blank is written `\040`.
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

/// Removes one directory if its owner is dead. Returns `None` if the directory was left alone.
fn sweep_dir(dir: &Path, mounted: &[PathBuf]) -> Option<String> {
    let is_ours = |found: &fs::Metadata| found.uid() == geteuid().as_raw();
    // Links are not followed, and other users' directories are ignored.
    let found = fs::symlink_metadata(dir).ok()?;
    if !found.is_dir() || !is_ours(&found) {
        return None;
    }
    let path = dir.join(OWNER);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(&path, flags, Mode::empty()).ok()?);
    let opened = file.metadata().ok().filter(|opened| opened.is_file() && is_ours(opened))?;
    let locked = FileLock::exclusive(file).ok()??;
    // An earlier holder of the lock may have kept the directory, or swept it.
    let still = fs::symlink_metadata(&path).ok()?;
    let text = read_short(locked.file()).ok()?;
    let (owner, name) = text.trim_end().split_once('\n')?;
    // A copied or renamed directory no longer belongs to the run.
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
        return Some(format!(
            "the files of a killed run in {shown} stay: {} was started by hand and is running",
            node.display()
        ));
    }
    match fs::remove_dir_all(dir) {
        Ok(()) => Some(format!("removed the files of a killed run in {shown}")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(format!("cannot remove the files of a killed run in {shown}: {error}")),
    }
}

/// Returns the directory of a node that the user started by hand. Such a node does not end with the run.
fn node_that_runs(dir: &Path) -> Option<PathBuf> {
    let nodes = [dir.to_owned(), dir.join("nodes")];
    let places = nodes.iter().filter_map(|nodes| fs::read_dir(nodes).ok()).flatten().flatten();
    places.map(|place| place.path()).find(|node| {
        matches!(
            File::open(node.join(file_names::DATA).join(file_names::LOCK)).map(FileLock::shared),
            Ok(Ok(None))
        )
    })
}

fn read_short(file: &File) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, OWNER_BYTES_MAX), &mut text)?;
    Ok(text)
}

/// Prints that a test is skipped because this process may not mount; fails if `SLIPSTREAM_REQUIRE_TMPFS=1`.
#[cfg(test)]
#[allow(clippy::print_stderr, reason = "tells whoever runs the tests that one was left out")]
pub(crate) fn skip_mounts(why: &str) {
    let is_required = std::env::var_os("SLIPSTREAM_REQUIRE_TMPFS").is_some_and(|value| value == "1");
    assert!(!is_required, "{why}");
    eprintln!("SKIPPED: {why} (SLIPSTREAM_REQUIRE_TMPFS=1 makes this an error)");
}

#[cfg(test)]
mod tests;
