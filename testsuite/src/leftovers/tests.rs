use std::{ffi::CString, process::Command};

use rustix::mount::{MountFlags, mount};

use super::*;

fn dead() -> Owner {
    let mut child = Command::new("/bin/sleep").arg("100").spawn().unwrap();
    let started = started(child.id()).unwrap().unwrap();
    let owner = Owner { pid: child.id(), started, realm: realm().unwrap() };
    assert!(!owner.is_dead());
    child.kill().unwrap();
    child.wait().unwrap();
    owner
}

/// Creates what a killed run of this owner leaves behind.
fn left(base: &Path, name: &str, owner: &Owner) -> PathBuf {
    let dir = base.join(name);
    fs::create_dir_all(dir.join("nodes")).unwrap();
    fs::write(dir.join(OWNER), format!("{owner}\n{name}\n")).unwrap();
    dir
}

#[test]
fn a_process_is_told_from_another_one_of_its_number() {
    let this = Owner::this().unwrap();
    assert!(!this.is_dead() && dead().is_dead());
    let later = Owner { started: this.started + 1, ..this.clone() };
    assert!(later.is_dead());
    assert!(!Owner { realm: "elsewhere".to_owned(), ..later }.is_dead(), "its numbers mean nothing here");
    assert_eq!(this.to_string().parse::<Owner>().unwrap(), this);
    for text in ["7", "7:x:realm", "7:900", "7:900:"] {
        assert!(text.parse::<Owner>().is_err(), "{text}");
    }
}

/// Goal: a process counts as running until its last thread has ended, because that thread still holds its locks.
#[test]
fn a_process_runs_as_long_as_one_of_its_threads() {
    let start = |state: &str, threads: u32| {
        start_of(&format!("7 (a (b) Z c) {state} 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 900 5"))
            .unwrap()
    };
    for (state, threads) in [("S", 1), ("R", 3), ("Z", 2)] {
        assert_eq!(start(state, threads), Some(900), "{state} {threads}");
    }
    for (state, threads) in [("Z", 1), ("Z", 0), ("X", 1)] {
        assert_eq!(start(state, threads), None, "{state} {threads}");
    }
    assert!(start_of("").is_err() && start_of("7 (a) S 1").is_err());
}

/// Goal: sweeping removes only what dead runs have left. It leaves directories in use, kept ones, those without an
/// owner, links, copies, and those of another container.
#[test]
fn only_what_dead_runs_left_is_removed() {
    let base = tempfile::tempdir().unwrap();
    let in_use = RunDir::new_in(base.path(), "run-", Some(&Owner::this().unwrap())).unwrap();
    // It is locked, so its owner lives, whatever the process id says.
    let locked = RunDir::new_in(base.path(), "run-", Some(&dead())).unwrap();
    let kept = RunDir::new_in(base.path(), "run-", Some(&dead())).unwrap().keep();
    let unknown = RunDir::new_in(base.path(), "run-", None).unwrap();
    let strange = base.path().join("slipnet-strange");
    fs::create_dir(&strange).unwrap();
    let unlocked = left(base.path(), "slipnet-unlocked", &Owner::this().unwrap());
    let elsewhere = Owner { realm: "elsewhere".to_owned(), ..dead() };
    let elsewhere = left(base.path(), "slipnet-elsewhere", &elsewhere);
    let copy = left(base.path(), "slipnet-copy", &dead());
    fs::write(copy.join(OWNER), format!("{}\nslipnet-original\n", dead())).unwrap();
    let other = left(base.path(), "other", &dead());
    std::os::unix::fs::symlink(&other, base.path().join("slipnet-link")).unwrap();
    let linked = base.path().join("slipnet-linked");
    fs::create_dir(&linked).unwrap();
    fs::write(base.path().join("owner"), format!("{}\nslipnet-linked\n", dead())).unwrap();
    std::os::unix::fs::symlink(base.path().join("owner"), linked.join(OWNER)).unwrap();
    assert_eq!(sweep_dirs(base.path(), &[]), Vec::<String>::new());

    let gone = left(base.path(), "slipnet-gone", &dead());
    let told = sweep_dirs(base.path(), &[]);
    assert!(told.len() == 1 && told[0].ends_with(&gone.display().to_string()), "{told:?}");
    assert!(!gone.exists());
    for stays in [
        in_use.path(),
        locked.path(),
        unknown.path(),
        &kept,
        &strange,
        &unlocked,
        &elsewhere,
        &copy,
        &other,
        &linked,
    ] {
        assert!(stays.exists(), "{}", stays.display());
    }
    let path = in_use.path().to_owned();
    drop(in_use);
    assert!(!path.exists());
}

/// Goal: neither a node started by hand nor a mounted disk loses its files after the run is dead; once both are gone,
/// everything is removed.
#[test]
fn what_is_still_used_stays() {
    let base = tempfile::tempdir().unwrap();
    let dir = left(base.path(), "slipnet-used", &dead());
    let data = dir.join("nodes/validator-0").join(file_names::DATA);
    fs::create_dir_all(&data).unwrap();
    let lock = FileLock::exclusive(File::create(data.join(file_names::LOCK)).unwrap()).unwrap().unwrap();
    let told = sweep_dirs(base.path(), &[]);
    assert!(
        matches!(&told[..], [line] if line.contains("validator-0 was started by hand and is running")),
        "{told:?}"
    );
    drop(lock);
    let disk = [data.canonicalize().unwrap()];
    let told = sweep_dirs(base.path(), &disk);
    assert!(matches!(&told[..], [line] if line.contains("is mounted there")), "{told:?}");
    assert!(data.exists());
    assert_eq!(sweep_dirs(base.path(), &[]).len(), 1);
    assert!(!dir.exists());
}

#[test]
fn disks_are_found_by_their_source() {
    let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                  90 22 0:50 / /tmp/a\\040b/data rw,relatime shared:1 - tmpfs slipnet:7:900:here rw,size=1024k\n\
                  91 22 0:51 / /mnt rw - tmpfs slipnet rw\n92 22 0:52 / /other rw - tmpfs slipnet:x rw\n";
    let owner = Owner { pid: 7, started: 900, realm: "here".to_owned() };
    let (at, device) = (PathBuf::from("/tmp/a b/data"), "0:50".to_owned());
    assert_eq!(disks(mounts), [Disk { at: at.clone(), device, owner }]);
    assert_eq!(mount_points(mounts), ["/".into(), at, PathBuf::from("/mnt"), "/other".into()]);
}

/// Goal: a dead run's disk is unmounted; a living run's disk stays, even if it is mounted over a dead run's.
#[test]
fn disks_of_dead_runs_are_unmounted() {
    let dir = tempfile::tempdir().unwrap();
    let mounted = |name: &str, source: &str| {
        let at = dir.path().join(name);
        fs::create_dir_all(&at).unwrap();
        let size = CString::new("size=1m").unwrap();
        mount(source, at.as_path(), "tmpfs", MountFlags::empty(), Some(size.as_c_str())).ok()?;
        fs::write(at.join("file"), "x").unwrap();
        Some(at)
    };
    let Some(left) = mounted("left", &format!("{DISK}{}", dead())) else {
        return skip_mounts("no tmpfs can be mounted");
    };
    let used = mounted("used", &disk_source()).unwrap();
    mounted("over", &format!("{DISK}{}", dead())).unwrap();
    let over = mounted("over", &disk_source()).unwrap();
    let told = sweep();
    let is_of = |line: &String, at: &Path| line.ends_with(&format!("run at {}", at.display()));
    let real = |at: &Path| at.canonicalize().unwrap();
    assert!(!told.iter().any(|line| is_of(line, &real(&used)) || is_of(line, &real(&over))), "{told:?}");
    assert!(!left.join("file").exists() && used.join("file").exists() && over.join("file").exists());
    for at in [&used, &over, &over] {
        // The dead run's disk is visible now: another sweep may have removed it already.
        let _ = unmount(at.as_path(), UnmountFlags::DETACH);
    }
}
