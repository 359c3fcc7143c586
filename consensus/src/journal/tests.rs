//! Tests the journal by itself.

use std::{fs, sync::atomic::Ordering::AcqRel};

use alloy_primitives::Address;

use super::{
    file::{MAGIC, recover},
    *,
};

fn raw(number: u32) -> Vec<u8> {
    [&number.to_le_bytes()[..], &[7; 100]].concat()
}

fn raws(range: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    range.map(raw).collect()
}

/// A transaction of the pool.
fn live(from: u8, raw: &[u8], waits: bool) -> Live {
    Live { raw: raw.to_vec().into(), sender: Address::repeat_byte(from), waits }
}

fn ready(range: std::ops::Range<u32>) -> Vec<Live> {
    raws(range).iter().map(|raw| live(1, raw, false)).collect()
}

fn put(journal: &Journal, raw: &[u8], live: impl FnOnce() -> Vec<Live>) -> Result<(), JournalError> {
    journal.append(&[(journal.reserve(raw.len(), 0, live)?, raw)])
}

fn sync(journal: &Journal) -> Result<(), JournalError> {
    journal.sync(|| unreachable!("nothing is broken"))
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transactions.journal");
    (dir, path)
}

fn append(journal: &Journal, range: std::ops::Range<u32>) {
    for raw in raws(range) {
        put(journal, &raw, || unreachable!("there is room")).unwrap();
    }
}

/// Goal: what is appended is there after a restart, in order, however the process ended.
#[test]
fn what_is_appended_outlives_the_process() {
    let (_dir, path) = file();
    let journal = Journal::open(&path, 1 << 20).unwrap();
    assert!(journal.is_synced() && journal.recovered().is_empty());
    append(&journal, 0..3);
    assert!(!journal.is_synced());
    sync(&journal).unwrap();
    assert!(journal.is_synced());
    append(&journal, 3..4);
    std::mem::forget(journal);
    let journal = Journal::open(&path, 1 << 20).unwrap();
    assert_eq!(*journal.recovered(), raws(0..4));
    append(&journal, 4..5);
    drop(journal);
    assert_eq!(*Journal::open(&path, 1 << 20).unwrap().recovered(), raws(0..5));
}

/// Goal: a torn end is cut off wherever it is torn, and a damaged entry costs only itself.
#[test]
fn damage_costs_what_is_damaged() {
    let (_dir, path) = file();
    append(&Journal::open(&path, 1 << 20).unwrap(), 0..3);
    let whole = fs::read(&path).unwrap();
    let entry_len = (whole.len() - MAGIC.len()) / 3;
    for torn in 0..entry_len {
        let recovered = recover(&whole[..MAGIC.len() + 2 * entry_len + torn]);
        assert_eq!(recovered, Recovered { transactions: raws(0..2), damaged_bytes: torn });
    }
    for position in MAGIC.len() + entry_len..MAGIC.len() + 2 * entry_len {
        let mut damaged = whole.clone();
        damaged[position] ^= 0x40;
        assert_eq!(recover(&damaged).transactions, [raw(0), raw(2)], "byte {position}");
    }
    fs::write(&path, [&whole[..whole.len() - 5], &[0; 5_000]].concat()).unwrap();
    let journal = Journal::open(&path, 1 << 20).unwrap();
    append(&journal, 9..10);
    drop(journal);
    assert_eq!(*Journal::open(&path, 1 << 20).unwrap().recovered(), [raw(0), raw(1), raw(9)]);
}

/// Goal: the file is bounded. It is rewritten with the pool's transactions, and refuses those that do not fit beside
/// them.
#[test]
fn the_file_is_bounded() {
    let (_dir, path) = file();
    let journal = Journal::open(&path, 10_000).unwrap();
    for number in 0..1_000u32 {
        let live = || ready(number.saturating_sub(5)..number);
        put(&journal, &raw(number), live).unwrap();
        assert!(journal.bytes() <= 10_000 && journal.bytes() == fs::metadata(&path).unwrap().len());
    }
    sync(&journal).unwrap();
    let recovered = Journal::open(&path, 10_000).unwrap().recovered();
    assert_eq!(recovered[recovered.len() - 6..], raws(994..1_000));
    let full = (0..1_000).find_map(|number| put(&journal, &raw(number), || ready(0..number)).err());
    assert!(matches!(full, Some(JournalError::Full { bytes_max: 10_000, .. })));
    let full = put(&journal, &raw(0), || unreachable!("it was written anew a moment ago")).unwrap_err();
    assert!(matches!(full, JournalError::Full { .. }));
}

/// A disk that counts its syncs, and lets none through while it is held.
#[derive(Debug, Default)]
struct SlowDisk {
    syncs: AtomicU64,
    is_held: AtomicBool,
}

impl SlowDisk {
    fn syncs(&self) -> u64 {
        self.syncs.load(Acquire)
    }

    fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Release);
    }

    fn await_syncs(&self, syncs: u64) {
        while self.syncs() < syncs {
            std::thread::yield_now();
        }
    }
}

impl Disk for SlowDisk {
    fn sync(&self, file: &File) -> io::Result<()> {
        self.syncs.fetch_add(1, AcqRel);
        while self.is_held.load(Acquire) {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        SystemDisk.sync(file)
    }
}

fn large(number: u32) -> Vec<u8> {
    [&number.to_le_bytes()[..], &[7; 100_000]].concat()
}

/// Goal: a file far below its bound accepts every entry, however fast it grows, and is rewritten only when it has
/// doubled.
#[test]
fn a_file_that_grows_fast_is_not_full() {
    let (_dir, path) = file();
    let disk = Arc::new(SlowDisk::default());
    let journal = Journal::open_on(disk.clone(), &path, 256 << 20).unwrap();
    let before = disk.syncs();
    let mut rewritten = 0;
    for number in 0..400 {
        let before = journal.inner.lock().compacted_bytes;
        put(&journal, &large(number), || unreachable!("there is room")).unwrap();
        journal.sync(|| (0..=number).map(|number| live(1, &large(number), false)).collect()).unwrap();
        rewritten += u64::from(journal.inner.lock().compacted_bytes > before);
    }
    assert_eq!(rewritten, 3, "at 8, 16 and 32 MiB");
    assert_eq!(disk.syncs() - before, 400 + rewritten, "a rewrite syncs the directory beside the file");
    assert_eq!(recover(&fs::read(&path).unwrap()).transactions, (0..400).map(large).collect::<Vec<_>>());
}

/// Goal: the journal of a pool that stays nearly empty is rewritten once for each 8 MiB of transactions, not for each
/// one.
#[test]
fn a_nearly_empty_pool_is_seldom_written_anew() {
    let (_dir, path) = file();
    let disk = Arc::new(SlowDisk::default());
    let journal = Journal::open_on(disk.clone(), &path, 64 << 20).unwrap();
    let before = disk.syncs();
    for number in 0..200 {
        put(&journal, &large(number), || unreachable!("there is room")).unwrap();
        journal.sync(|| vec![live(1, &large(number), false)]).unwrap();
        assert!(journal.bytes() <= COMPACT_BYTES_MIN + 200_000);
    }
    assert_eq!(disk.syncs() - before, 200 + 2);
}

/// Goal: while the file is rewritten on a slow disk, transactions are accepted all the same. They count as on disk once
/// the new file has them, and are there after a crash at any time.
#[test]
fn a_rewrite_keeps_nobody_out() {
    let (_dir, path) = file();
    let disk = Arc::new(SlowDisk::default());
    let journal = Arc::new(Journal::open_on(disk.clone(), &path, 64 << 20).unwrap());
    append(&journal, 0..10);
    let before = disk.syncs();
    disk.hold(true);
    let settling = std::thread::spawn({
        let journal = journal.clone();
        move || journal.settle(Vec::new(), || ready(5..10))
    });
    disk.await_syncs(before + 1);
    append(&journal, 10..20);
    let recovered = recover(&fs::read(&path).unwrap()).transactions;
    assert_eq!(recovered, raws(0..20), "a crash now loses nothing");
    assert!(!journal.is_synced() && !settling.is_finished());
    disk.hold(false);
    settling.join().unwrap().unwrap();
    assert!(journal.is_synced());
    assert_eq!(disk.syncs() - before, 3, "the file, what came meanwhile, and its name");
    assert_eq!(recover(&fs::read(&path).unwrap()).transactions, raws(5..20));
    append(&journal, 20..21);
    sync(&journal).unwrap();
    assert_eq!(recover(&fs::read(&path).unwrap()).transactions, raws(5..21));
    assert_eq!(journal.bytes(), fs::metadata(&path).unwrap().len());
}

/// Goal: callers that wait for a slow disk share its syncs, however many they are. A caller that came before a sync
/// began waits for that sync, a later one for the next. No caller returns before its sync is over.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_share_a_sync() {
    let (_dir, path) = file();
    let disk = Arc::new(SlowDisk::default());
    let journal = Arc::new(Journal::open_on(disk.clone(), &path, 64 << 20).unwrap());
    let before = disk.syncs();
    let wait = |number: u32| {
        append(&journal, number..number + 1);
        let journal = journal.clone();
        tokio::spawn(async move { journal.synced(|| unreachable!("nothing is broken")).await })
    };
    disk.hold(true);
    let first = wait(0);
    disk.await_syncs(before + 1);
    let others: Vec<_> = (1..500).map(wait).collect();
    tokio::task::yield_now().await;
    assert!(!first.is_finished() && others.iter().all(|one| !one.is_finished()));
    disk.hold(false);
    first.await.unwrap().unwrap();
    for one in others {
        one.await.unwrap().unwrap();
    }
    assert_eq!(disk.syncs() - before, 2, "for 500 transactions");
    assert!(journal.is_synced());
}

/// Goal: a rewrite keeps what is not settled yet. After a failed write the file is rewritten first.
#[test]
fn what_is_unsettled_is_kept() {
    let (_dir, path) = file();
    append(&Journal::open(&path, 1 << 20).unwrap(), 0..4);
    let journal = Journal::open(&path, 1 << 20).unwrap();
    journal.inner.lock().is_broken = true;
    put(&journal, &raw(9), Vec::new).unwrap();
    assert_eq!(recover(&fs::read(&path).unwrap()).transactions, [raws(0..4), vec![raw(9)]].concat());
    journal.settle(raws(2..3), || ready(9..10)).unwrap();
    assert_eq!(recover(&fs::read(&path).unwrap()).transactions, [raw(2), raw(9)]);
    journal.inner.lock().is_broken = true;
    let refused = put(&journal, &raw(10), || unreachable!("a moment ago")).unwrap_err();
    assert!(matches!(refused, JournalError::Io { .. }), "{refused}");
    journal.inner.lock().compacted = None;
    put(&journal, &raw(10), || ready(9..10)).unwrap();
    assert_eq!(recover(&fs::read(&path).unwrap()).transactions, [raw(2), raw(9), raw(10)]);
}

/// Goal: a failing disk is reported with the file and a remedy, and nothing counts as written.
#[test]
fn a_refusing_disk_is_told() {
    let (dir, path) = file();
    let journal = Journal::open(&path, 1 << 20).unwrap();
    journal.inner.lock().is_broken = true;
    drop(dir);
    let refused = put(&journal, &raw(1), Vec::new).unwrap_err().to_string();
    assert!(refused.contains("transactions.journal") && refused.contains("journal_mib"), "{refused}");
    assert_eq!(journal.appended.load(Acquire), 0);
}

/// Goal: a disk that loses a write and reports that once is not trusted afterwards. The file is rewritten before
/// anything counts as on disk.
#[test]
fn a_failed_sync_is_never_believed_again() {
    let (_dir, path) = file();
    let journal = Journal::open(&path, 1 << 20).unwrap();
    // It accepts every write, and fails every sync.
    let refusing = fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    journal.inner.lock().file = Arc::new(refusing);
    put(&journal, &raw(1), Vec::new).unwrap();
    assert!(sync(&journal).is_err() && !journal.is_synced());
    journal.sync(|| ready(1..2)).unwrap();
    assert!(journal.is_synced());
    put(&journal, &raw(2), || unreachable!("there is room")).unwrap();
    sync(&journal).unwrap();
    assert_eq!(recover(&fs::read(&path).unwrap()).transactions, raws(1..3));
}

/// Goal: after a failed rewrite nothing is appended to the file: the next start may read another one.
#[test]
fn a_file_that_was_not_rewritten_is_not_trusted() {
    let (_dir, path) = file();
    let journal = Journal::open(&path, 1 << 20).unwrap();
    let place = journal.reserve(raw(1).len(), 0, || unreachable!("there is room")).unwrap();
    // The new file is written, and cannot take the old one's place.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(journal.settle(Vec::new(), Vec::new).is_err());
    assert!(journal.append(&[(place, &raw(1))]).is_err());
    assert!(put(&journal, &raw(1), || unreachable!("a moment ago")).is_err());
    fs::remove_dir(&path).unwrap();
    journal.inner.lock().compacted = None;
    put(&journal, &raw(1), Vec::new).unwrap();
    assert_eq!(recover(&fs::read(&path).unwrap()).transactions, raws(1..2));
    assert_eq!(journal.inner.lock().reserved, 0);
}

/// Goal: a rewrite that fails before the new file is whole costs nothing. The old file stays in use, and is not
/// rewritten for each transaction.
#[test]
fn a_rewrite_that_fails_leaves_the_old_file() {
    let (_dir, path) = file();
    let journal = Journal::open(&path, 10_000).unwrap();
    fs::create_dir(path.with_extension("new")).unwrap();
    assert!(journal.settle(Vec::new(), Vec::new).is_err());
    append(&journal, 0..80);
    sync(&journal).unwrap();
    assert_eq!(recover(&fs::read(&path).unwrap()).transactions, raws(0..80));
    let refused = (80..100).find_map(|number| put(&journal, &raw(number), Vec::new).err()).unwrap();
    assert!(matches!(refused, JournalError::Io { .. }), "{refused}");
    let refused = put(&journal, &raw(100), || unreachable!("a moment ago")).unwrap_err();
    assert!(matches!(refused, JournalError::Full { .. }), "{refused}");
}

/// Goal: queries are answered while another thread rewrites the file.
#[test]
fn questions_do_not_wait_for_the_disk() {
    let (_dir, path) = file();
    append(&Journal::open(&path, 1 << 20).unwrap(), 0..1);
    let journal = Journal::open(&path, 1 << 20).unwrap();
    let _writing = (journal.inner.lock(), journal.syncing.lock());
    assert!(journal.is_synced() && journal.has_recovered());
    assert_eq!(journal.bytes(), fs::metadata(&path).unwrap().len());
}

/// Goal: one sender's transactions never fill the file, and waiting ones leave room for others. The waiting
/// transactions of the senders with most of them are dropped first; executable ones never are.
#[test]
fn what_waits_leaves_room_for_others() {
    let (_dir, path) = file();
    let bytes_max = 4 << 20;
    let journal = Journal::open(&path, bytes_max).unwrap();
    let mut pool = vec![live(1, &raw(0), true), live(2, &raw(1), false)];
    for number in 0..200 {
        put(&journal, &large(number), || pool.clone()).unwrap();
        pool.push(live(10 + (number % 3) as u8, &large(number), true));
        assert!(journal.bytes() <= bytes_max);
    }
    put(&journal, &raw(2), || pool.clone()).unwrap();
    journal.inner.lock().is_broken = true;
    journal.inner.lock().compacted = None;
    put(&journal, &raw(3), || pool.clone()).unwrap();
    let written = recover(&fs::read(&path).unwrap()).transactions;
    assert!(written.contains(&raw(0)) && written.contains(&raw(1)), "the lightest, and what executes");
    assert!(journal.bytes() < bytes_max / 4, "{}", journal.bytes());
    let full = journal.reserve(100_000, 200_000, Vec::new).unwrap_err();
    assert!(matches!(full, JournalError::SenderFull { bytes: 200_000, .. }), "{full}");
}

/// Goal: entries from before the start keep their room until the pool has seen them, and then yield to the pool's.
#[test]
fn what_is_kept_gives_way_once_it_is_settled() {
    let (_dir, path) = file();
    append(&Journal::open(&path, 10_000).unwrap(), 0..80);
    let journal = Journal::open(&path, 10_000).unwrap();
    let full = (100..200).find_map(|number| put(&journal, &raw(number), || ready(100..number)).err());
    assert!(matches!(full, Some(JournalError::Full { .. })));
    journal.settle(raws(0..80), || ready(100..101)).unwrap();
    for number in 100..120 {
        put(&journal, &raw(number), || ready(100..number)).unwrap();
    }
    assert_eq!(journal.recovered().len(), 80);
}
