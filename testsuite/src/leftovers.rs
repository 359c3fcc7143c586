//! What `kill -9` of a run leaves, and [`sweep`], which removes it.
//!
//! A run that ends, well or not, removes its temporary directory and its small disks by itself. A killed one cannot; the kernel ends its
//! processes (`devnet::die_with_parent`), and nobody its files. So each directory and each disk says whose it is:
//!
//! ```text
//!  RunDir     $TMPDIR/slipnet-…/.owner  locked while its process lives; "PID:START" in it
//!  SmallDisk  a tmpfs                   its source is "slipnet:PID:START"
//! ```
//!
//! Invariant: what a living process owns stays, and so does whatever has no owner: a directory that was kept, or somebody else's.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result};
use rustix::{
    fs::{FlockOperation, flock},
    mount::{UnmountFlags, unmount},
    process::geteuid,
};
use tempfile::TempDir;

/// The beginning of the names of all temporary directories.
const PREFIX: &str = "slipnet-";
/// The file in them that says whose they are.
const OWNER: &str = ".owner";
/// The longest such file that is read.
const OWNER_BYTES_MAX: u64 = 64;
/// The beginning of the sources of all small disks.
const DISK: &str = "slipnet:";

/// A process, told from a later one of the same number by when it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    pid: u32,
    /// Ticks after the machine started.
    started: u64,
}

impl Owner {
    fn this() -> Result<Owner> {
        let pid = std::process::id();
        let started = started(pid).context("cannot read in /proc when this process started")?;
        Ok(Owner { pid, started })
    }

    fn lives(self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pid, self.started)
    }
}

impl FromStr for Owner {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Owner> {
        let (pid, started) = text.trim_end().split_once(':').context("no PID:START")?;
        Ok(Owner { pid: pid.parse()?, started: started.parse()? })
    }
}

/// When a process started; none if there is none, or it only waits to be waited for.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name may have blanks and parentheses. The state is behind it, and the start 19 fields behind the state.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    fields.next().filter(|state| *state != "Z")?;
    fields.nth(18)?.parse().ok()
}

/// A run's temporary directory. Removed when it is dropped, or by the next [`sweep`] once this process is dead.
#[derive(Debug)]
pub struct RunDir {
    dir: TempDir,
    /// Its lock ends with it, in whatever way the process does.
    _owner: File,
}

impl RunDir {
    /// Makes one; `slipnet-` and `what` begin its name.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn new(what: &str) -> Result<RunDir> {
        RunDir::new_in(&std::env::temp_dir(), what, Owner::this()?)
    }

    fn new_in(base: &Path, what: &str, owner: Owner) -> Result<RunDir> {
        let made = tempfile::Builder::new().prefix(&format!("{PREFIX}{what}")).tempdir_in(base);
        let dir = made.with_context(|| format!("cannot make a temporary directory in {}", base.display()))?;
        let (file, path) = (dir.path().join(".owner.new"), dir.path().join(OWNER));
        // Nobody sees an owner that is not locked yet.
        let locked = File::create(&file).and_then(|mut file| {
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            writeln!(file, "{owner}")?;
            Ok(file)
        });
        let locked = locked.and_then(|locked| fs::rename(&file, &path).map(|()| locked));
        let locked = locked.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(RunDir { dir, _owner: locked })
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

/// What a small disk of this process is mounted from.
///
/// # Errors
/// If `/proc` does not tell when this process started.
pub(crate) fn disk_source() -> Result<String> {
    Ok(format!("{DISK}{}", Owner::this()?))
}

/// Removes the temporary directories and unmounts the small disks that killed runs of this user left. Says what it did, and what it could
/// not do.
pub fn sweep() -> Vec<String> {
    // Disks first: they may be mounted in the directories.
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let dead = disks(&String::from_utf8_lossy(&mounts)).into_iter().filter(|(_, owner)| !owner.lives());
    let mut told: Vec<String> = dead
        .map(|(at, _)| match unmount(at.as_path(), UnmountFlags::DETACH) {
            Ok(()) => format!("unmounted the disk of a killed run at {}", at.display()),
            Err(error) => format!("cannot unmount the disk of a killed run at {}: {error}", at.display()),
        })
        .collect();
    told.extend(sweep_dirs(&std::env::temp_dir()));
    told
}

/// The small disks in a list of mounts, as `/proc/self/mountinfo` writes it, with their owners.
fn disks(mountinfo: &str) -> Vec<(PathBuf, Owner)> {
    let disk = |line: &str| {
        let (place, device) = line.split_once(" - ")?;
        let at = place.split(' ').nth(4)?;
        let owner = device.split(' ').nth(1)?.strip_prefix(DISK)?;
        Some((PathBuf::from(unescaped(at)), owner.parse().ok()?))
    };
    mountinfo.lines().filter_map(disk).collect()
}

/// A path of mountinfo, where a blank is written `\040`.
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(path.to_owned(), |path, (code, letter)| path.replace(code, letter))
}

fn sweep_dirs(base: &Path) -> Vec<String> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    named.filter_map(|entry| sweep_dir(&entry.path())).collect()
}

/// Removes one directory if its owner is dead. None if nothing was done.
fn sweep_dir(dir: &Path) -> Option<String> {
    // No link is followed, and no directory of another user's believed.
    let found = fs::symlink_metadata(dir).ok()?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() {
        return None;
    }
    let file = File::open(dir.join(OWNER)).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let owner: Owner = read_short(&file).ok()?.parse().ok()?;
    if owner.lives() {
        return None;
    }
    Some(match fs::remove_dir_all(dir) {
        Ok(()) => format!("removed the files of a killed run in {}", dir.display()),
        Err(error) => format!("cannot remove the files of a killed run in {}: {error}", dir.display()),
    })
}

fn read_short(file: &File) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, OWNER_BYTES_MAX), &mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::{ffi::CString, process::Command};

    use rustix::mount::{MountFlags, mount};

    use super::*;

    /// A process that is dead.
    fn dead() -> Owner {
        let mut child = Command::new("/bin/sleep").arg("100").spawn().unwrap();
        let owner = Owner { pid: child.id(), started: started(child.id()).unwrap() };
        assert!(owner.lives());
        child.kill().unwrap();
        child.wait().unwrap();
        owner
    }

    #[test]
    fn a_process_is_told_from_another_one_of_its_number() {
        let this = Owner::this().unwrap();
        assert!(this.lives() && !Owner { started: this.started + 1, ..this }.lives() && !dead().lives());
        assert_eq!(format!("{this}\n").parse::<Owner>().unwrap(), this);
        assert!("7".parse::<Owner>().is_err() && "7:x".parse::<Owner>().is_err());
    }

    /// Goal: what dead runs left is removed, and nothing else: no directory in use, none that was kept, none without an owner, no link.
    #[test]
    fn only_what_dead_runs_left_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let in_use = RunDir::new_in(base.path(), "run-", Owner::this().unwrap()).unwrap();
        // Locked: it lives, whatever the number says. Another namespace has other numbers.
        let elsewhere = RunDir::new_in(base.path(), "run-", dead()).unwrap();
        let kept = RunDir::new_in(base.path(), "run-", dead()).unwrap().keep();
        let strange = base.path().join("slipnet-strange");
        fs::create_dir(&strange).unwrap();
        let other = base.path().join("other");
        fs::create_dir(&other).unwrap();
        let left = |name: &str, owner: Owner| {
            let dir = base.path().join(name);
            fs::create_dir_all(dir.join("nodes")).unwrap();
            fs::write(dir.join(OWNER), format!("{owner}\n")).unwrap();
            dir
        };
        let unlocked = left("slipnet-unlocked", Owner::this().unwrap());
        fs::write(other.join(OWNER), format!("{}\n", dead())).unwrap();
        std::os::unix::fs::symlink(&other, base.path().join("slipnet-link")).unwrap();
        assert!(sweep_dirs(base.path()).is_empty());

        let gone = left("slipnet-gone", dead());
        let told = sweep_dirs(base.path());
        assert!(told.len() == 1 && told[0].ends_with(&gone.display().to_string()), "{told:?}");
        assert!(!gone.exists());
        for stays in [in_use.path(), elsewhere.path(), &kept, &strange, &other, &unlocked] {
            assert!(stays.exists(), "{}", stays.display());
        }
        let path = in_use.path().to_owned();
        drop(in_use);
        assert!(!path.exists());
    }

    #[test]
    fn disks_are_found_by_their_source() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      90 22 0:50 / /tmp/a\\040b/data rw,relatime shared:1 - tmpfs slipnet:7:900 rw,size=1024k\n\
                      91 22 0:51 / /mnt rw - tmpfs slipnet rw\n92 22 0:52 / /other rw - tmpfs slipnet:x rw\n";
        assert_eq!(disks(mounts), [(PathBuf::from("/tmp/a b/data"), Owner { pid: 7, started: 900 })]);
    }

    /// Goal: a dead run's disk is unmounted, and a living one's stays.
    #[test]
    fn disks_of_dead_runs_are_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        let mounted = |name: &str, source: &str| {
            let at = dir.path().join(name);
            fs::create_dir(&at).unwrap();
            let size = CString::new("size=1m").unwrap();
            mount(source, at.as_path(), "tmpfs", MountFlags::empty(), Some(size.as_c_str())).ok()?;
            fs::write(at.join("file"), "x").unwrap();
            Some(at)
        };
        // Not everybody may mount.
        let Some(left) = mounted("left", &format!("{DISK}{}", dead())) else { return };
        let used = mounted("used", &disk_source().unwrap()).unwrap();
        let told = sweep();
        assert!(told.iter().any(|line| line.contains("left") && line.starts_with("unmounted")), "{told:?}");
        assert!(!left.join("file").exists() && used.join("file").exists());
        unmount(used.as_path(), UnmountFlags::DETACH).unwrap();
    }
}
