//! [`Resources`]: the process's use of the machine. A background task samples it, and callers get the last sample:
//! measuring a data directory requires a look at each of its files.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;
use rustix::{
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};
use slipstream_base::tasks::TaskError;
use slipstream_storage::{DiskRoom, Store};
use slipstream_types::Clock;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Interval at which process and free space are sampled: this reads a few kernel files in some 100 µs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Samples per measurement of the data directory: thousands of files cost milliseconds.
const LOOKS_PER_MEASUREMENT: u32 = 30;

/// The process's use of the machine.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ProcessStatus {
    /// The process id.
    pub pid: u32,
    /// When the node started, in milliseconds since 1970.
    pub started_ms: u64,
    /// Seconds since then.
    pub uptime_seconds: u64,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
    /// Reserved address space in bytes.
    pub virtual_bytes: u64,
    /// Seconds of CPU time since the process started, summed over all cores.
    pub cpu_seconds: f64,
    /// Number of threads.
    pub threads: u64,
    /// Open files, including sockets.
    pub open_files: u64,
    /// The system's limit on open files; `None` if it sets no limit.
    pub open_files_max: Option<u64>,
}

/// The file system of the database, and the data directory on it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DiskStatus {
    /// Bytes free for the node.
    pub free_bytes: u64,
    /// Free bytes below which the node stops: `storage.disk_free_min_mib`. 0 means no limit.
    pub min_bytes: u64,
    /// Files that can still be created on it; `None` if the file system does not count them.
    #[serde(default)]
    pub free_inodes: Option<u64>,
    /// The size of the data directory; none until measured.
    pub used: Option<DiskUse>,
}

/// The disk usage of a data directory, by part. A file with several hard links counts once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DiskUse {
    /// The whole directory.
    pub total_bytes: u64,
    /// The database.
    pub database_bytes: u64,
    /// Bytes that only snapshots hold, because the database has since dropped them.
    pub snapshots_bytes: u64,
    /// The journal of users' transactions.
    pub journal_bytes: u64,
    /// Everything else.
    pub other_bytes: u64,
}

/// The paths of the parts of a data directory.
#[derive(Clone, Debug)]
pub struct DataPaths {
    /// The data directory to measure.
    pub data: PathBuf,
    /// The database in it.
    pub database: PathBuf,
    /// The snapshots in the database's directory.
    pub snapshots: PathBuf,
    /// The journal of transactions.
    pub journal: PathBuf,
}

/// The last sample, and the inputs of the next one.
pub struct Resources {
    places: DataPaths,
    store: Store,
    started: Instant,
    started_ms: u64,
    sampled: RwLock<Sampled>,
}

#[derive(Clone, Default)]
struct Sampled {
    process: ProcessStatus,
    room: Option<DiskRoom>,
    used: Option<DiskUse>,
}

impl Resources {
    /// Takes the first sample, without the size of the data directory, which may take a while.
    pub fn new(places: DataPaths, store: Store, clock: &dyn Clock) -> Arc<Resources> {
        let (started, started_ms) = (Instant::now(), clock.now_ms());
        let resources = Resources { places, store, started, started_ms, sampled: RwLock::default() };
        resources.look(false);
        Arc::new(resources)
    }

    pub(super) fn process(&self) -> ProcessStatus {
        let mut process = self.sampled.read().process.clone();
        process.uptime_seconds = self.started.elapsed().as_secs();
        process
    }

    pub(super) fn disk(&self) -> Option<DiskStatus> {
        let Sampled { room, used, .. } = &*self.sampled.read();
        room.map(|DiskRoom { free_bytes, min_bytes, free_inodes }| DiskStatus {
            free_bytes,
            min_bytes,
            free_inodes,
            used: *used,
        })
    }

    fn look(&self, measures: bool) {
        let process = ProcessStatus { started_ms: self.started_ms, ..process() };
        let room = self.store.disk_room();
        let used = measures.then(|| measured(&self.places));
        let mut sampled = self.sampled.write();
        sampled.process = process;
        match room {
            Ok(room) => sampled.room = room,
            // A task that writes to the store meets the same error, and stops the node with a more specific message.
            Err(error) => tracing::debug!(%error, "the free space of the disk cannot be read"),
        }
        if let Some(used) = used {
            sampled.used = Some(used);
        }
    }
}

/// Samples until `shutdown`.
pub async fn sample(resources: Arc<Resources>, shutdown: CancellationToken) -> Result<(), TaskError> {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut count = 0_u32;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            _ = looks.tick() => {}
        }
        let (resources, measures) = (resources.clone(), count.is_multiple_of(LOOKS_PER_MEASUREMENT));
        tokio::task::spawn_blocking(move || resources.look(measures)).await?;
        count = count.wrapping_add(1);
    }
}

/// The kernel's numbers about this process; a missing one is 0.
fn process() -> ProcessStatus {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0_u64)
    };
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    ProcessStatus {
        pid: std::process::id(),
        memory_bytes: field("VmRSS") << 10,
        virtual_bytes: field("VmSize") << 10,
        cpu_seconds: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        threads: field("Threads"),
        // This read itself holds one of these files open.
        open_files: fs::read_dir("/proc/self/fd").map_or(0, |files| files.count().saturating_sub(1) as u64),
        open_files_max: getrlimit(Resource::Nofile).current,
        ..ProcessStatus::default()
    }
}

/// Measures a data directory. A file that is deleted during the measurement may still count: the database replaces its
/// files all the time.
fn measured(places: &DataPaths) -> DiskUse {
    let mut used = DiskUse::default();
    // A snapshot consists of hard links to files of the database, so the database is counted first.
    let mut linked = BTreeSet::new();
    let mut later = Vec::new();
    let mut dirs = vec![places.data.clone()];
    while let Some(dir) = dirs.pop().or_else(|| later.pop()) {
        let _ = look_into(&dir, |path, found| {
            if found.is_dir() {
                let is_snapshots = path == places.snapshots;
                if is_snapshots { &mut later } else { &mut dirs }.push(path);
                return;
            }
            if found.nlink() > 1 && !linked.insert((found.dev(), found.ino())) {
                return;
            }
            let bytes = found.blocks() * 512;
            used.total_bytes += bytes;
            *match &path {
                path if path.starts_with(&places.snapshots) => &mut used.snapshots_bytes,
                path if path.starts_with(&places.database) => &mut used.database_bytes,
                path if *path == places.journal => &mut used.journal_bytes,
                _ => &mut used.other_bytes,
            } += bytes;
        });
    }
    used
}

fn look_into(dir: &Path, mut each: impl FnMut(PathBuf, fs::Metadata)) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let Ok(entry) = entry else { continue };
        // The target of a symbolic link does not count: it may be anywhere.
        if let Ok(found) = entry.metadata() {
            each(entry.path(), found);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_there() {
        let before = process();
        assert!(before.memory_bytes > 1 << 20 && before.virtual_bytes >= before.memory_bytes, "{before:?}");
        assert!(before.threads >= 1 && before.open_files >= 3, "{before:?}");
        let _file = fs::File::open("/proc/self/status").unwrap();
        let sum: u64 =
            std::hint::black_box((0..20_000_000_u64).fold(0, |sum, n| sum ^ n.wrapping_mul(sum | 1)));
        assert!(process().cpu_seconds > before.cpu_seconds, "{sum}");
    }

    /// Goal: an operator who looks for disk space finds its users, and shared files count once.
    #[test]
    fn a_directory_is_measured_by_part() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_owned();
        let database = data.join("db");
        let places = DataPaths {
            snapshots: database.join("snapshots"),
            journal: data.join("transactions.journal"),
            database,
            data,
        };
        let (table, frozen) = (places.database.join("db"), places.snapshots.join("10"));
        fs::create_dir_all(&table).unwrap();
        fs::create_dir_all(&frozen).unwrap();
        let write = |path: &Path, kib: usize| fs::write(path, vec![7; kib << 10]).unwrap();
        write(&table.join("1.sst"), 64);
        write(&table.join("2.sst"), 128);
        fs::hard_link(table.join("1.sst"), frozen.join("1.sst")).unwrap();
        fs::hard_link(table.join("2.sst"), frozen.join("2.sst")).unwrap();
        // The database has since compacted this file away.
        write(&table.join("0.sst"), 256);
        fs::hard_link(table.join("0.sst"), frozen.join("0.sst")).unwrap();
        fs::remove_file(table.join("0.sst")).unwrap();
        write(&places.journal, 32);
        write(&places.data.join("node.log"), 16);
        std::os::unix::fs::symlink("/", places.data.join("elsewhere")).unwrap();
        let used = measured(&places);
        // A file system may round up, and count its own metadata.
        let near = |bytes: u64, kib: u64| (kib << 10..(kib + 16) << 10).contains(&bytes);
        assert!(near(used.database_bytes, 192) && near(used.snapshots_bytes, 256), "{used:?}");
        assert!(near(used.journal_bytes, 32) && near(used.other_bytes, 16), "{used:?}");
        let parts = used.database_bytes + used.snapshots_bytes + used.journal_bytes + used.other_bytes;
        assert_eq!(parts, used.total_bytes);
    }
}
