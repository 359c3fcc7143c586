//! Kills a process that commits and prunes, and checks what it left. The process is this test binary, started again.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use slipstream_types::Path;

use super::*;
use crate::PruneConfig;

const KINDS: [BlobKind; 4] = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints];
/// Windows in batches, per kind of [`KINDS`].
const WINDOWS: [u64; 4] = [6, 0, 11, 3];
const DIR_VARIABLE: &str = "SLIPSTREAM_STORAGE_CRASH_DIR";

fn crash_config() -> StorageConfig {
    let prune = PruneConfig::of_batches(WINDOWS);
    StorageConfig { snapshot_interval_batches: 7, fsync: true, prune, ..config() }
}

/// The changes of batch `number`: some rows, one of which a later batch deletes.
fn changes(number: u64) -> Vec<(StateKey, Option<StateValue>)> {
    let mut changes: BTreeMap<_, _> =
        (0..40u64).map(|i| (slot_key((number % 7) as u8, (i * number % 251) as u8), slot(number))).collect();
    changes.insert(slot_key(((number + 3) % 7) as u8, 1), None);
    changes.insert(account_key(1), account(number));
    changes.into_iter().collect()
}

fn delta(number: u64) -> Delta {
    let entries = changes(number).into_iter().map(|(key, value)| DeltaEntry { key, value }).collect();
    Delta::new(entries, Vec::new()).unwrap()
}

/// The child: works only if a parent set the variable.
#[test]
fn commit_until_killed() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE) else { return };
    let store = Store::open(&crash_config(), dir.as_ref()).unwrap();
    store.initialize(&genesis()).unwrap();
    loop {
        let head = store.head().unwrap();
        let delta = delta(head.header.number.get() + 1);
        let root = store.speculate(&delta).unwrap().root();
        let made = seal(&head.header, &head.accumulator, delta, root);
        store.commit(made.batch(), None).unwrap();
        if made.header.number.get().is_multiple_of(3) {
            store.prune().unwrap();
        }
        let mut out = std::io::stdout();
        writeln!(out, "committed {}", made.header.number).unwrap();
        out.flush().unwrap();
    }
}

/// Runs a child until it has reported `commits` commits and `moment` has passed. Returns the last number that it
/// reported.
fn run_child(dir: &std::path::Path, commits: usize, moment: Duration) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["tests::crash::commit_until_killed", "--exact", "--nocapture"])
        .env(DIR_VARIABLE, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut numbers = lines.filter_map(|line| line.unwrap().strip_prefix("committed ")?.parse().ok());
    let mut last = numbers.by_ref().nth(commits - 1).unwrap();
    let start = Instant::now();
    while start.elapsed() < moment {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    last = numbers.last().unwrap_or(last);
    last
}

#[test]
fn a_kill_at_any_moment_leaves_whole_batches() {
    let dir = store_dir();
    let mut reached = 0;
    for round in 0..5u64 {
        let reported = run_child(dir.path(), 5 + 3 * round as usize, Duration::from_micros(270 * round));
        let store = Store::open(&crash_config(), dir.path()).unwrap();
        let head = store.head().unwrap().header.number.get();
        assert!(head >= reported && head > reached, "head {head} after {reported} were reported");
        reached = head;

        let mut ledger = Ledger::new();
        for number in 1..=head {
            change(&mut ledger.state, &changes(number));
            let stored = store.header(BatchNumber::new(number)).unwrap().unwrap();
            let certificate = store.certificate(BatchNumber::new(number)).unwrap().unwrap();
            let mut made = seal(&ledger.head, &ledger.accumulator, delta(number), stored.state_root);
            made.certificate.signatures = certificate.signatures.clone();
            assert_eq!((&stored, &certificate), (&made.header, &made.certificate));
            let kept = |kind: BlobKind| store.lowest(kind).unwrap().unwrap() <= BatchNumber::new(number);
            for (kind, window) in KINDS.into_iter().zip(WINDOWS) {
                let blob = store.blob(kind, BatchNumber::new(number)).unwrap();
                assert_eq!(blob.is_some(), kept(kind), "{} {number} at {head}", kind.name());
                assert!(kept(kind) || (window > 0 && number + window <= head), "{} {number}", kind.name());
            }
            let found = store.transaction_places(&transaction_hash(BatchNumber::new(number), 1)).unwrap();
            let kept = kept(BlobKind::Body);
            assert_eq!(found.first().copied(), kept.then_some((BatchNumber::new(number), 1)));
            ledger.accumulator.append(stored.digest());
            ledger.head = stored;
        }
        assert_eq!(store.head().unwrap().header.state_root, state_root(&ledger.state));
        assert_eq!(store.head().unwrap().accumulator, ledger.accumulator);
        let next = BatchNumber::new(head + 1);
        assert_eq!(store.header(next).unwrap(), None);
        assert_eq!(store.blob(BlobKind::Body, next).unwrap(), None);
        for info in store.snapshots() {
            let snapshot = store.snapshot(info.number).unwrap().unwrap();
            snapshot.chunk(Path::MIN, 1 << 20).unwrap().verify(info.state_root).unwrap();
        }
    }
}
