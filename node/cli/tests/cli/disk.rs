//! A disk that fills up under a node, with its log on it.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;

use crate::chain::{BINARY, Chain, PATIENCE, Running, printed, wait};

/// Enough for the log's preallocation and several memtables.
const DISK_MIB: u64 = 256;
/// The inodes of a node, its reserve and its log, and some more.
const DISK_INODES: u64 = 2_000;
const MIN_MIB: u64 = 16;

/// An in-memory file system of a fixed size, unmounted on drop.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// Mounts one. Reports it if this process may not mount, and then fails if `SLIPSTREAM_REQUIRE_TMPFS=1`.
    #[allow(clippy::print_stderr, reason = "tells whoever runs the tests that one was left out")]
    fn mount() -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let size = std::ffi::CString::new(format!("size={DISK_MIB}m,nr_inodes={DISK_INODES}")).unwrap();
        let mounted = mount("slipstream", dir.path(), "tmpfs", MountFlags::empty(), Some(size.as_c_str()));
        let required = std::env::var_os("SLIPSTREAM_REQUIRE_TMPFS").is_some_and(|value| value == "1");
        assert!(mounted.is_ok() || !required, "no tmpfs can be mounted: {mounted:?}");
        if let Err(error) = mounted {
            eprintln!(
                "SKIPPED: no tmpfs can be mounted: {error} (SLIPSTREAM_REQUIRE_TMPFS=1 makes this an error)"
            );
            return None;
        }
        Some(SmallDisk(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills the disk until only `free_bytes` are free.
    fn leave(&self, free_bytes: u64) {
        let mut filler = File::options().create(true).append(true).open(self.path().join("filler")).unwrap();
        let stat = rustix::fs::statvfs(self.path()).unwrap();
        let fill = (stat.f_bavail * stat.f_frsize).saturating_sub(free_bytes);
        let block = vec![0x5a; 1 << 20];
        for begin in (0..fill).step_by(block.len()) {
            let part = (fill - begin).min(block.len() as u64) as usize;
            // The node writes too: full is full.
            if filler.write_all(&block[..part]).is_err() {
                return;
            }
        }
    }

    /// Creates files until no more can be created.
    fn use_inodes_up(&self) {
        let dir = self.path().join("files");
        fs::create_dir(&dir).unwrap();
        let made = (0..DISK_INODES).take_while(|index| File::create(dir.join(index.to_string())).is_ok());
        assert!(made.count() < DISK_INODES as usize, "there are inodes left");
    }

    fn make_room(&self) {
        fs::remove_file(self.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}

/// The command of a node with data and log on the disk.
fn command(chain: &Chain, disk: &SmallDisk) -> Command {
    let log = File::options().create(true).append(true).open(disk.path().join("log")).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["run", "--config", &chain.config()]).env_remove("RUST_LOG");
    command.stdout(Stdio::piped()).stderr(log);
    command
}

fn start(chain: &Chain, disk: &SmallDisk) -> Running {
    Running::of(command(chain, disk).spawn().unwrap(), &disk.path().join("log"))
}

/// Goal: an operator is warned once while there is time; then the node stops and says so once. On a full disk a start
/// fails with an error instead of a panic, although the log is on that disk too. Once there is space, the node
/// continues.
#[test]
fn a_disk_that_fills_up_warns_then_stops_the_node() {
    let Some(disk) = SmallDisk::mount() else { return };
    let chain = Chain::new();
    let data = disk.path().join("data");
    let configure = |min_mib: u64| {
        chain.configure(&format!(
            "data_dir: {}\nstorage: {{ disk_free_min_mib: {min_mib} }}\nconsensus: {{ empty_batch_interval_ms: 100 }}\n",
            data.display()
        ));
    };
    let log = || fs::read_to_string(disk.path().join("log")).unwrap();
    let soon = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}: not so; log: {}", log());
            wait();
        }
    };
    configure(MIN_MIB);
    let mut node = start(&chain, &disk);
    soon("the chain begins", &mut || node.head() > 1);
    let free = |node: &Running| {
        let metrics = node.http("GET /metrics", "");
        let line = metrics.lines().find_map(|line| line.strip_prefix("slipstream_storage_disk_free_bytes "));
        line.unwrap().parse::<u64>().unwrap() >> 20
    };
    assert!(free(&node) > 2 * MIN_MIB && !log().contains("filling up"));

    disk.leave((2 * MIN_MIB - 4) << 20);
    soon("a warning", &mut || log().contains("the disk is filling up"));
    // Metrics are sampled at most ten times a second.
    soon("the gauge follows", &mut || (MIN_MIB..2 * MIN_MIB).contains(&free(&node)));
    let status: Value = serde_json::from_str(&node.http("GET /v1/status", "")).unwrap();
    assert_eq!(status["disk"]["min_bytes"], MIN_MIB << 20);
    let table = printed(&["status", "--api", &format!("http://{}", node.api)], true);
    assert!(table.contains("MiB free, stops below 16 MiB"), "{table}");
    let warned_at = node.head();
    soon("the chain goes on", &mut || node.head() > warned_at + 5);
    assert_eq!(log().matches("filling up").count(), 1, "{}", log());

    disk.leave((MIN_MIB - 4) << 20);
    assert_eq!(node.code(PATIENCE), 75);
    let refusal = "less than the 16 MiB of storage.disk_free_min_mib";
    assert_eq!(log().matches(refusal).count(), 1, "{}", log());

    // Now every write fails, even that of the reason.
    disk.leave(0);
    for min_mib in [MIN_MIB, 0] {
        configure(min_mib);
        let code = command(&chain, &disk).status().unwrap().code();
        assert_eq!(code, Some(75), "guard of {min_mib} MiB: {}", log());
        assert!(!log().contains("panicked"), "{}", log());
    }
    disk.make_room();
    let node = start(&chain, &disk);
    assert!(node.head() > warned_at);
    node.stop();
}

/// Goal: on a disk without a free byte or inode, the node's reserve is enough to inspect, to prune and to create a
/// bundle. Then the reserve is created again.
#[test]
fn a_disk_without_a_byte_and_without_an_inode_is_pruned() {
    let Some(disk) = SmallDisk::mount() else { return };
    let chain = Chain::new();
    let data = disk.path().join("data");
    let large = "storage: { disk_free_min_mib: 0, snapshot_interval_batches: 0, prune: { bodies: 3, receipts: 3, deltas: 3, hints: 3 } }";
    let configure = |storage: &str| {
        chain.configure(&format!(
            "data_dir: {}\n{storage}\nconsensus: {{ batch_interval_ms: 5, empty_batch_interval_ms: 5 }}\n",
            data.display()
        ));
    };
    configure("storage: { disk_free_min_mib: 0, snapshot_interval_batches: 0 }");
    // The second start has tables from the first.
    for _ in 0..2 {
        let node = start(&chain, &disk);
        let (deadline, end) = (Instant::now() + PATIENCE, node.head() + 30);
        while node.head() < end {
            assert!(Instant::now() < deadline, "the chain does not move");
            wait();
        }
        node.stop();
    }
    let reserve = data.join("db/reserve");
    assert_eq!(fs::metadata(reserve.join("0")).unwrap().len(), 16 << 20);
    configure(large);
    disk.leave(0);
    disk.use_inodes_up();
    let config = chain.config();
    printed(&["db", "stats", "--config", &config], true);
    let bundle = chain.path("bundle.tar.zst");
    printed(&["debug", "bundle", "--config", &config, "--out", bundle.to_str().unwrap()], true);
    assert!(reserve.exists(), "looking takes nothing of it");
    let pruned = printed(&["db", "prune", "--config", &config], true);
    assert!(pruned.contains("freed MiB"), "{pruned}");
    let before = printed(&["db", "stats", "--config", &config], true);
    assert!(!before.contains("body      1 to"), "{before}");
    // Once there is space, the next start creates the reserve again.
    disk.make_room();
    fs::remove_dir_all(disk.path().join("files")).unwrap();
    let node = start(&chain, &disk);
    assert!(reserve.join("63").exists(), "the reserve is made again");
    node.stop();
}

/// Goal: a log file on its own full disk costs only lines, which are counted. Logging continues once there is space.
#[test]
fn a_full_disk_under_the_log_file_costs_lines_only() {
    let Some(disk) = SmallDisk::mount() else { return };
    let chain = Chain::new();
    let file = disk.path().join("node.log");
    chain.configure(&format!(
        "log: {{ filter: trace, file: {{ path: {}, mib_max: 1, files_kept: 2 }} }}\nconsensus: {{ batch_interval_ms: 10, empty_batch_interval_ms: 20 }}\n",
        file.display()
    ));
    let node = Running::start(&chain);
    let log = || fs::read_to_string(chain.path("log")).unwrap();
    let soon = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}: not so");
            wait();
        }
    };
    soon("the file has lines", &mut || fs::metadata(&file).unwrap().len() > 10_000);
    let full = Instant::now();
    disk.leave(0);
    let lost = || {
        let metrics = node.http("GET /metrics", "");
        let line = metrics.lines().find_map(|line| line.strip_prefix("slipstream_log_lines_lost_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    soon("lines are lost and counted", &mut || lost() > 100);
    let begun = node.head();
    soon("the chain goes on", &mut || node.head() > begun + 5);
    let told = || log().matches("cannot write the log file").count() as u64;
    soon("it is told", &mut || told() > 0);
    let (told, most) = (told(), 1 + full.elapsed().as_secs() / 60);
    assert!(told <= most, "once a minute: {told}");
    disk.make_room();
    let stopped_at = fs::metadata(&file).unwrap().len();
    soon("the file goes on", &mut || {
        let turned_over = fs::metadata(disk.path().join("node.log.1")).is_ok();
        turned_over || fs::metadata(&file).unwrap().len() > stopped_at + 10_000
    });
    node.stop();
}
