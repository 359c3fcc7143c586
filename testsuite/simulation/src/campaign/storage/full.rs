//! Fills a small disk while a store commits. The store must stop cleanly, lose nothing that it acknowledged, and
//! continue once space is free again.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use slipstream_storage::{StorageError, Store};
use slipstream_types::BatchNumber;

use super::{
    audit::{Demand, audit},
    chain::{Chain, History},
    life::{self, config},
};

/// Enough for the log's preallocation, several memtables and their files.
const DISK_MIB: u64 = 224;
/// The free space at the first fill point (too little to open a store), and at the last (enough for flushes and
/// compactions).
const FREE_BYTES_MIN: f64 = 4_096.0;
const FREE_BYTES_MAX: f64 = (96 << 20) as f64;
const BODY_BYTES: usize = 400_000;
/// More commits than a disk of [`DISK_MIB`] can hold.
const COMMITS_MAX: u64 = 1_000;
/// Batches before the disk fills, and after space is free again.
const BATCHES_BEFORE: u64 = 3;
const BATCHES_AFTER: u64 = 10;

/// A file system in memory of a fixed size, mounted as long as this value lives.
pub(super) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// Mounts a small disk in `parent`; `None` if this process may not mount.
    pub(super) fn mount(parent: &Path) -> Result<Option<SmallDisk>> {
        let dir = tempfile::Builder::new().prefix("disk-").tempdir_in(parent)?;
        let size = std::ffi::CString::new(format!("size={DISK_MIB}m"))?;
        match mount("slipnet", dir.path(), "tmpfs", MountFlags::empty(), Some(size.as_c_str())) {
            Ok(()) => Ok(Some(SmallDisk(dir))),
            Err(error) if std::env::var_os("SLIPSTREAM_REQUIRE_TMPFS").is_some_and(|value| value == "1") => {
                Err(error).context("SLIPSTREAM_REQUIRE_TMPFS=1, but no tmpfs can be mounted")
            }
            Err(_) => Ok(None),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Detaches, so that the mount disappears when the last open file is closed.
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// Returns the free space at point `index` of `points`: geometric, so that small remainders are tried as often as large
/// ones.
pub(super) fn free_bytes(index: u32, points: u32) -> u64 {
    let share = f64::from(index) / f64::from(points.saturating_sub(1).max(1));
    (FREE_BYTES_MIN * (FREE_BYTES_MAX / FREE_BYTES_MIN).powf(share)) as u64
}

/// Commits with `free` bytes left until the disk is full, frees space, and continues. Returns the head at which it was
/// full.
pub(super) fn fill(disk: &SmallDisk, seed: u64, free: u64) -> Result<BatchNumber> {
    let root = disk.0.path();
    let (dir, filler) = (root.join("store"), root.join("filler"));
    let chain = Chain { seed, body_bytes: BODY_BYTES };
    let mut history = History::new(chain)?;
    let store = Store::open(&config(true), &dir)?;
    store.initialize(&chain.genesis())?;
    for _ in 0..BATCHES_BEFORE {
        life::step(&store, &chain)?;
    }
    fill_up(&filler, free)?;
    let told = commit_until_full(&store, &chain)?;
    let read = store.header(told).context("cannot read from a full disk")?;
    ensure!(read.is_some(), "the header of batch {told} is gone while the disk is full");
    drop(store);

    // A restart must neither help nor harm.
    if let Ok(store) = Store::open(&config(true), &dir) {
        let head = store.head()?.header.number;
        ensure!(head >= told, "on the full disk the store is at {head}, but it had acknowledged {told}");
    }
    fs::remove_file(&filler)?;
    let store = Store::open(&config(true), &dir).context("cannot open the store after space was freed")?;
    let demand = Demand { damaged: false, complete: true };
    let head = audit(&store, &mut history, demand)?.head.context("the store is empty")?;
    ensure!(head == told || head == told.next(), "the store is at {head}, but it had acknowledged {told}");
    life::settle(&store, &chain)?;
    for _ in 0..BATCHES_AFTER {
        life::step(&store, &chain).context("cannot commit after space was freed")?;
    }
    audit(&store, &mut history, demand)?;
    drop(store);
    fs::remove_dir_all(&dir)?;
    Ok(told)
}

/// Writes a file until only `free` bytes are left.
fn fill_up(filler: &Path, free: u64) -> Result<()> {
    let mut file = File::create(filler)?;
    let stat = rustix::fs::fstatvfs(&file)?;
    let len = (stat.f_bavail * stat.f_frsize).saturating_sub(free);
    let block = vec![0x5a; 1 << 20];
    let mut left = len;
    while left > 0 {
        let part = left.min(block.len() as u64);
        file.write_all(&block[..part as usize])?;
        left -= part;
    }
    Ok(file.sync_all()?)
}

/// Commits until the store refuses, and checks the error. Returns the last batch that it acknowledged.
fn commit_until_full(store: &Store, chain: &Chain) -> Result<BatchNumber> {
    for _ in 0..COMMITS_MAX {
        let before = store.head()?.header.number;
        let Err(error) = life::step(store, chain) else { continue };
        let error =
            error.downcast::<StorageError>().context("the disk is full, but the error is not the store's")?;
        ensure!(is_named(&error), "a full disk is reported as {error:?}");
        let after = store.head()?.header.number;
        ensure!(after == before || after == before.next(), "the head went from {before} to {after}");
        for _ in 0..2 {
            let again = store.put_record("again", b"x");
            ensure!(
                matches!(again, Err(StorageError::Poisoned)),
                "the store is not poisoned after the failure: {again:?}"
            );
        }
        return Ok(after);
    }
    bail!("{COMMITS_MAX} commits did not fill the disk")
}

fn is_named(error: &StorageError) -> bool {
    matches!(error, StorageError::DiskFull(_) | StorageError::Poisoned)
}
