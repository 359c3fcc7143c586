//! Scenarios with faults below a node: a wrong clock, and a slow or full disk.

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::engine::run_with_twin;

/// One validator and its follower, with faults below libc that are switched on and off while they run. The chain's time
/// stands still while the validator's clock is behind it. The follower's own clock does not change the age of a head.
const BELOW: &str = "\
name: below
description: A follower's clock is two minutes ahead for a while, a validator's an hour back, and its disk a little slow.
duration: 25s
topology:
  validators: 1
  batch_interval_ms: 200
  accounts: 20
  groups:
  - { name: follower }
faults:
- { at: 4s, for: 3s, what: { clock_jump: { who: { nodes: [follower] }, ahead: 2m } } }
- { at: 4s, for: 3s, what: { clock_jump: { who: { nodes: [validator-0] }, back: 1h } } }
- { at: 4s, for: 3s, what: { slow_disk: { who: { nodes: [validator-0] }, delay: 5ms } } }
criteria:
- no_progress: { at_most: 8s }
- head_age: { nodes: [follower], at_most: 16s }
- catch_up: { nodes: [all], at_most: 40s }
- equal_roots
- no_alarm
";

const BELOW_TWIN: &str = "\
description: The validator's clock stays an hour back, and later each flush of its disk takes ten seconds.
defect:
  faults:
  - { at: 4s, what: { clock_jump: { who: { nodes: [validator-0] }, back: 1h } } }
  - { at: 14s, for: 11s, what: { slow_disk: { who: { nodes: [validator-0] }, delay: 10s } } }
must_fail: [no_progress, head_age of follower]
";

/// Goal: clocks and disks change while the fault lasts, without a hook in the node.
#[tokio::test(flavor = "multi_thread")]
async fn clocks_jump_and_disks_are_slow() {
    let (_, report) = run_with_twin(BELOW, BELOW_TWIN).await;
    let follower = report.nodes.iter().find(|node| node.name == "follower").unwrap();
    // Until the disk fills up, heads are new, but their timestamps are not.
    let before = follower.head_age.points.iter().filter(|(at_ms, _)| *at_ms < 14_000);
    let oldest = before.map(|(_, age)| *age).fold(0.0, f64::max);
    assert!(
        (5.0..60.0).contains(&oldest),
        "the chain's time stands, and the follower's clock does not count: {oldest} s"
    );
}

const FULL: &str = "\
name: full
description: A follower's small disk runs full; the follower ends, and goes on when there is room again.
duration: 30s
topology:
  validators: 1
  batch_interval_ms: 200
  accounts: 20
  groups:
  - { name: follower }
  settings: [{ nodes: [follower], disk_mib: 256 }]
faults:
- { at: 5s, for: 8s, what: { full_disk: { nodes: [follower] } } }
criteria:
- no_progress: { at_most: 15s }
- catch_up: { nodes: [follower], at_most: 60s }
- equal_roots
- nobody_honest_blamed
- no_alarm
";

/// The disk is full until the end of the run, and so is that of the node that the follower follows.
const FULL_TWIN: &str = "\
description: The validator's disk runs full too, and stays so.
defect:
  settings: [{ nodes: [validator-0], disk_mib: 256 }]
  faults:
  - { at: 8s, what: { full_disk: { nodes: [validator-0] } } }
must_fail: [no_progress]
";

/// Whether this process may mount. If not, the test is skipped, or fails if `SLIPSTREAM_REQUIRE_TMPFS=1`.
#[allow(clippy::print_stderr, reason = "tells whoever runs the tests that one was left out")]
fn may_mount() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let Err(error) = mount("slipstream", dir.path(), "tmpfs", MountFlags::empty(), Some(c"size=1m")) else {
        unmount(dir.path(), UnmountFlags::DETACH).unwrap();
        return true;
    };
    let is_required = std::env::var_os("SLIPSTREAM_REQUIRE_TMPFS").is_some_and(|value| value == "1");
    assert!(!is_required, "no tmpfs can be mounted: {error}");
    eprintln!("SKIPPED: no tmpfs can be mounted: {error} (SLIPSTREAM_REQUIRE_TMPFS=1 makes this an error)");
    false
}

/// Goal: a node starts on a small disk, ends while the disk is full, and is at the head again afterwards. A chain whose
/// validator's disk stays full stands still.
#[tokio::test(flavor = "multi_thread")]
async fn a_small_disk_runs_full_and_has_room_again() {
    if !may_mount() {
        return;
    }
    let (report, _) = run_with_twin(FULL, FULL_TWIN).await;
    let marks: Vec<(&str, bool)> =
        report.faults.iter().map(|mark| (mark.what.as_str(), mark.until_ms.is_some())).collect();
    assert_eq!(marks, [("full disk", true)]);
    let follower = report.nodes.iter().find(|node| node.name == "follower").unwrap();
    assert!(follower.unanswered > 0, "it was there all the time");
}
