//! Short storage campaigns: `slipnet campaign storage` runs for half an hour; these take seconds. Each phase is one
//! test, so that they run in parallel and a failure names its phase.

use std::path::{Path, PathBuf};

use slipnet::progress::Progress;
use slipnet_simulation::campaign::storage::{Counts, Phase, StorageCampaign, Summary, run_counts};

/// Determines the content of stores and files; `SLIPSTREAM_SEED` sets another.
const SEED: u64 = 11;
const COUNTS: Counts = Counts {
    per_crash_point: 1,
    kills: 12,
    torn_tails: 12,
    bit_flips: 20,
    losses: 40,
    fill_points: 3,
    operations: 40_000,
};

/// Space for the stores of all phases. A container's memory disk is often far smaller.
const ROOM_BYTES: u64 = 2 << 30;

/// A kill, unlike a power cut, loses nothing that was written: a memory disk suffices, and is faster.
fn fast_dir() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
    let parent = if free >= ROOM_BYTES { PathBuf::from(memory) } else { std::env::temp_dir() };
    tempfile::tempdir_in(parent).or_else(|_| tempfile::tempdir()).unwrap()
}

fn campaign(phase: Phase) -> Summary {
    let seed = std::env::var("SLIPSTREAM_SEED").map_or(SEED, |seed| seed.parse().unwrap());
    let dir = fast_dir();
    let options =
        StorageCampaign { runs: 1, seed: Some(seed), dir: dir.path().to_owned(), only: vec![phase] };
    let program = Path::new(env!("CARGO_BIN_EXE_slipnet-simulation"));
    let summary = run_counts(&options, COUNTS, program, Progress::Quiet).unwrap_or_else(|error| {
        panic!("{error:#}");
    });
    println!("{summary}");
    summary
}

/// Goal: a process that crashes right before or right after any step leaves whole steps, and the next one continues.
#[test]
fn a_death_at_every_crash_point_leaves_a_committed_prefix() {
    let summary = campaign(Phase::CrashPoints);
    let points = slipstream_storage::CrashPoint::all().count() as u64;
    assert_eq!(summary.lines[0].runs, points, "each crash point once");
}

/// Goal: a process that is killed at any moment leaves whole steps, and the next one continues.
#[test]
fn a_death_at_any_moment_leaves_a_committed_prefix() {
    campaign(Phase::Kills);
}

/// Goal: a truncated log opens at an earlier batch; a truncated table is noticed.
#[test]
fn torn_files_are_noticed() {
    campaign(Phase::TornTails);
}

/// Goal: whatever bits flip, an answer is right or it is an error.
#[test]
fn flipped_bits_are_never_served() {
    campaign(Phase::BitFlips);
}

/// Goal: a store that lost a file either has all that it acknowledged or is refused. A refusal names that file, and
/// none of the store's files changes.
#[test]
fn lost_files_are_named_and_nothing_else_goes() {
    campaign(Phase::Losses);
}

/// Goal: a full disk ends the store with an error that names it, and nothing acknowledged is lost.
#[test]
fn a_full_disk_loses_nothing() {
    let summary = campaign(Phase::DiskFull);
    if summary.lines[0].runs == 0 {
        println!("{}", summary.lines[0].note);
    }
}

/// Goal: both backends behave like a map, with the roots that docs/formats.md defines.
#[test]
fn a_store_is_a_map_with_roots() {
    campaign(Phase::Model);
}
