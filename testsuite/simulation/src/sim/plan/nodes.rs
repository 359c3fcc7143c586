//! The followers of a world, their machines, and their faults.

use std::num::{NonZeroU32, NonZeroU64};

use rand::{Rng, rngs::StdRng};
use slipstream_executor::{ExecutorConfig, HintsMode};
use slipstream_storage::{CrashPoint, PruneConfig, StorageConfig, WriteStep};
use slipstream_sync::{Mode, SyncConfig};
use slipstream_types::{BatchNumber, Digest, PublicKey, Waypoint};

use super::{
    super::{
        chain::{Chain, SNAPSHOT_INTERVAL},
        queue::Moment,
    },
    NodePlan, SECOND, Troubles,
};

/// The steps at which a store that only follows and restores can crash.
const STEPS: [WriteStep; 12] = [
    WriteStep::Open,
    WriteStep::Commit,
    WriteStep::PutRecord,
    WriteStep::Reclaim,
    WriteStep::RestoreStart,
    WriteStep::RestoreSeal,
    WriteStep::RestoreRows,
    WriteStep::RestoreChunk,
    WriteStep::RestoreCode,
    WriteStep::RestoreFinish,
    WriteStep::MakeSnapshot,
    WriteStep::PruneRecord,
];

pub(super) fn node(
    index: u8,
    troubles: &Troubles,
    certified: u64,
    quiet_at: Moment,
    rng: &mut StdRng,
) -> NodePlan {
    let sync = sync(troubles, rng);
    let keeps_all = !troubles.pruning || rng.random();
    let window = if keeps_all { 0 } else { rng.random_range(5..40) };
    let storage = StorageConfig {
        snapshot_interval_batches: if rng.random() { SNAPSHOT_INTERVAL } else { 0 },
        snapshots_kept: 2,
        transaction_index: rng.random(),
        prune: PruneConfig::of_batches([window; 4]),
        disk_free_min_mib: 0,
        ..StorageConfig::default()
    };
    let hints = hints(rng);
    let is_pinned = !troubles.pruning && matches!(sync.mode, Mode::Replay | Mode::Delta);
    let head = if rng.random_bool(0.3) && !troubles.snapshots { rng.random_range(1..=certified) } else { 0 };
    let named = rng.random_range(head..=certified).max(1);
    // A node of any mode must pass the waypoint.
    let is_misled = named > head && rng.random_bool(if is_pinned { 0.4 } else { 0.1 });
    let is_told = is_misled || rng.random_bool(0.2);
    let waypoint = is_told.then(|| waypoint(BatchNumber::new(named), is_misled));
    let (crashes, points) = if troubles.crashes { deaths(quiet_at, rng) } else { Default::default() };
    NodePlan {
        id: PublicKey([200 + index; 32]),
        sync,
        storage,
        executor: ExecutorConfig {
            prefetch_threads: 0,
            hints,
            // With more threads, the scheduler and not the seed would decide the order.
            threads: 1,
            hot_cache_mib: rng.random_range(0..2),
            ..ExecutorConfig::default()
        },
        head: BatchNumber::new(head),
        waypoint,
        is_misled,
        // Where snapshots must vanish, some nodes are so slow that this happens before a restore ends.
        slowness: if troubles.snapshots { [4.0, 60.0, 200.0] } else { [1.0, 4.0, 20.0] }
            [rng.random_range(0..3)],
        is_steady: false,
        cuts: if crashes.is_empty() { 0 } else { rng.random_range(0..3) },
        crashes,
        points,
        prune_interval: (!keeps_all).then(|| rng.random_range(SECOND / 5..2 * SECOND)),
    }
}

/// Draws a node's sync configuration.
fn sync(troubles: &Troubles, rng: &mut StdRng) -> SyncConfig {
    let modes: &[Mode] = match (troubles.pruning, troubles.snapshots) {
        // Half of a siege's faults concern leaps, which only a node that leaps meets.
        _ if troubles.siege && rng.random() => &[Mode::Snapshot, Mode::RangeDelta],
        // A gap that all servers have pruned can only be passed by a snapshot.
        (true, _) => &[Mode::Auto, Mode::Snapshot, Mode::RangeDelta, Mode::RangeDelta],
        (_, true) => &[Mode::Snapshot, Mode::Snapshot, Mode::RangeDelta, Mode::RangeDelta, Mode::Auto],
        _ if troubles.liars => &[Mode::Auto, Mode::Replay, Mode::Delta, Mode::Delta, Mode::Delta],
        _ => &[Mode::Auto, Mode::Auto, Mode::Replay, Mode::Delta, Mode::Snapshot, Mode::RangeDelta],
    };
    let mode = modes[rng.random_range(0..modes.len())];
    // Where peers are silent, deadlines are so late that they show which node waits for them.
    let deadlines = if troubles.stallers { [1_000, 10_000, 10_000] } else { [1_000, 2_500, 5_000] };
    SyncConfig {
        mode,
        history: rng.random_bool(0.6),
        range_batches_max: NonZeroU32::new([2, 8, 32, 256][rng.random_range(0..4)]).expect("not zero"),
        request_deadline_ms: NonZeroU64::new(deadlines[rng.random_range(0..3)]).expect("not zero"),
        audit: if rng.random_bool(0.3) { 0.3 } else { 0.0 },
        ..SyncConfig::default()
    }
}

fn hints(rng: &mut StdRng) -> HintsMode {
    match rng.random::<f64>() {
        ..0.2 => HintsMode::Conflicts,
        ..0.5 => HintsMode::Values,
        ..0.8 => HintsMode::Keys,
        _ => HintsMode::Off,
    }
}

/// Draws the times and the store's steps at which a node crashes.
fn deaths(quiet_at: Moment, rng: &mut StdRng) -> (Vec<Moment>, Vec<(CrashPoint, u64)>) {
    // Restores and most commits are in the first seconds.
    let end = |rng: &mut StdRng| if rng.random() { 2 * SECOND } else { quiet_at };
    let moment = |rng: &mut StdRng| {
        let end = end(rng);
        rng.random_range(SECOND / 20..end)
    };
    let crashes = (0..rng.random_range(1..4)).map(|_| moment(rng)).collect();
    let points = (0..rng.random_range(1..4)).map(|_| point(rng)).collect();
    (crashes, points)
}

fn waypoint(number: BatchNumber, is_wrong: bool) -> Waypoint {
    let certificate = Chain::canonical().batch(number).map(|made| &made.certificate);
    let mut info = certificate.expect("waypoints are drawn from the ledger").info.clone();
    if is_wrong {
        info.accumulator_root = Digest([9; 32]);
    }
    Waypoint::of(&info)
}

fn point(rng: &mut StdRng) -> (CrashPoint, u64) {
    let step = STEPS[rng.random_range(0..STEPS.len())];
    // A step that occurs once in a life crashes at its first pass.
    let passing = match step {
        WriteStep::Commit | WriteStep::RestoreSeal | WriteStep::RestoreRows | WriteStep::RestoreChunk => {
            rng.random_range(1..8)
        }
        _ => 1,
    };
    let point = if rng.random() { CrashPoint::Before(step) } else { CrashPoint::After(step) };
    (point, passing)
}
