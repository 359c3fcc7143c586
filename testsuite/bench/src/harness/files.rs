//! Plain files: the disk's own speed without a database, and the tools to measure it.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};
use rustix::fs::{Advice, OFlags};

/// The block size for the floor of a cold point read: the smallest read that O_DIRECT supports everywhere.
const BLOCK_BYTES: usize = 4 << 10;
/// Bytes of one sequential read.
const SEQUENTIAL_BYTES: usize = 1 << 20;

/// Appends records to a file and syncs after each, as a commit does.
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn create(path: &Path) -> Result<Log> {
        Ok(Log(File::create(path).with_context(|| format!("cannot create {}", path.display()))?))
    }

    pub(crate) fn append(&mut self, parts: &[&[u8]]) -> Result<()> {
        for part in parts {
            self.0.write_all(part)?;
        }
        Ok(self.0.sync_data()?)
    }
}

/// Reads a whole file; returns its size.
pub(crate) fn read_sequentially(path: &Path) -> Result<u64> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; SEQUENTIAL_BYTES];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(bytes),
            read => bytes += read as u64,
        }
    }
}

/// Drops all files in a directory from the operating system's cache.
pub(crate) fn drop_cached(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            drop_cached(&path)?;
        } else if let Ok(file) = File::open(&path) {
            // Only blocks that are on disk can be dropped. A file that has disappeared is skipped.
            file.sync_data()?;
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}

/// Returns the total size of all files in a directory.
pub(crate) fn disk_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => disk_bytes(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

/// Fills a file with random bytes for [`direct_reads_per_s`].
pub(crate) fn fill(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut random = SmallRng::seed_from_u64(1);
    let mut buffer = vec![0; SEQUENTIAL_BYTES];
    for _ in 0..bytes.div_ceil(SEQUENTIAL_BYTES as u64) {
        random.fill_bytes(&mut buffer);
        file.write_all(&buffer)?;
    }
    Ok(file.sync_all()?)
}

/// Returns how many random blocks of a file `threads` threads read per second, bypassing the cache.
pub(crate) fn direct_reads_per_s(path: &Path, threads: usize, reads: usize) -> Result<f64> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)?;
    let blocks = file.metadata()?.len() / BLOCK_BYTES as u64;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads)
            .map(|thread| {
                let file = &file;
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(thread as u64);
                    let mut memory = vec![0u8; 2 * BLOCK_BYTES];
                    let aligned = memory.as_ptr().align_offset(BLOCK_BYTES);
                    let buffer = &mut memory[aligned..aligned + BLOCK_BYTES];
                    for _ in 0..reads / threads {
                        file.read_exact_at(buffer, random.random_range(0..blocks) * BLOCK_BYTES as u64)?;
                    }
                    Ok(())
                })
            })
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
    })
    .map_err(|error: std::io::Error| error)
    .context("cannot read past the cache: is the directory on a disk?")?;
    Ok(reads as f64 / start.elapsed().as_secs_f64())
}

/// Returns a counter of this process in `/proc/self/io`.
pub(crate) fn io_counter(name: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io")
        .context("cannot read /proc/self/io: the kernel must count the I/O of each process")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    Ok(line.with_context(|| format!("/proc/self/io has no {name}"))?.parse()?)
}

/// Waits until the process stops writing: RocksDB has finished its compactions.
pub(crate) fn wait_until_quiet() -> Result<()> {
    const STEP: Duration = Duration::from_millis(250);
    let (start, mut quiet, mut last) = (Instant::now(), 0, io_counter("write_bytes")?);
    while quiet < 4 {
        ensure!(start.elapsed() < Duration::from_secs(300), "the database did not stop writing in time");
        std::thread::park_timeout(STEP);
        let now = io_counter("write_bytes")?;
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
    Ok(())
}
