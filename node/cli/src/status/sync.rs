//! The lines of `slipstream status` about sync: its activity and the reason, its speed, and what it waits for. Only the
//! lines that matter in the current phase are shown.

use slipstream_status::NodeStatus;
use slipstream_sync::{BackfillStatus, PastStatesStatus, Phase, SnapshotStatus, SyncStatus, Waiting};

use super::units::{bytes, count, duration, progress, ways};
use crate::rows::Rows;

/// Describes sync's work and its progress.
pub(super) fn describe(rows: &mut Rows, status: &NodeStatus) {
    let sync = &status.sync;
    let is_idle = sync.phase == Phase::Idle;
    let is_restoring = matches!(sync.phase, Phase::Snapshot | Phase::RangeDelta);
    let bound =
        sync.bottleneck.filter(|_| !is_idle).map_or_else(String::new, |it| format!(", bound by {it}"));
    rows.add("sync", Some(format!("{} (mode {}){bound}", sync.phase, sync.mode.name())));
    if !is_idle {
        rows.add("  because", Some(sync.reason.clone()).filter(|reason| !reason.is_empty()));
        rows.add("  ways", ways(&sync.plan.ways));
        rows.add("  waiting", sync.waiting.as_ref().map(waiting));
    }
    rows.add("  target", Some(target(sync)));
    if !is_idle {
        rows.add("  progress", Some(progress(&status.progress, sync.transactions_per_second)));
    }
    match is_restoring {
        true => rows.add("  restores", sync.snapshot.as_ref().map(restoring)),
        false => rows.add("  restored", sync.snapshot.as_ref().map(restored)),
    }
    rows.add("  history", sync.backfill.as_ref().map(backfill));
    rows.add("  past states", sync.past_states.as_ref().map(past_states));
    if !is_idle {
        stages(rows, sync);
        let SyncStatus { requests, hedges, .. } = sync;
        rows.add(
            "  requests",
            Some(format!("{requests} under way; {hedges} late ones were given to a second peer")),
        );
    }
    let SyncStatus { audited, audits_skipped, .. } = sync;
    rows.add(
        "  audits",
        (audited + audits_skipped > 0)
            .then(|| format!("{audited} batches executed again, {audits_skipped} left out for lack of time")),
    );
    let SyncStatus { batches, batches_replayed, transactions, .. } = sync;
    rows.add(
        "  followed",
        Some(format!("{batches} batches ({batches_replayed} executed), {transactions} transactions")),
    );
    rows.add("  received", Some(bytes(sync.bytes_received as f64)));
    repair(rows, sync);
    rows.add("  hints", sync.hint_recall.map(|recall| hints(recall, sync.hint_precision)));
}

fn hints(recall: f64, precision: Option<f64>) -> String {
    let vain =
        precision.map_or_else(String::new, |it| format!(", {:.0} % of the named unused", (1.0 - it) * 100.0));
    format!("named {:.0} % of what execution read{vain}", recall * 100.0)
}

/// Adds the alarm above all other lines: an audit found a certified batch that execution does not reproduce.
pub(super) fn alarm(rows: &mut Rows, sync: &SyncStatus) {
    let Some(alarm) = &sync.alarm else { return };
    rows.add("ALARM", Some(alarm.clone()));
    rows.add(
        "",
        Some("a quorum signed a result that this program does not reproduce: keep the data directory, ask the validators' \
            operators".into()),
    );
    rows.add(
        "",
        Some(
            "once that is settled, stop the node and remove this alarm with `slipstream db alarm --clear`"
                .into(),
        ),
    );
}

/// Adds the result of the last repair of the state.
fn repair(rows: &mut Rows, sync: &SyncStatus) {
    let Some(repair) = &sync.repair else { return };
    rows.add(
        "  repaired",
        Some(format!(
            "the state of batch {}: {} rows put, {} removed, {} codes, {} moved",
            repair.number,
            repair.rows_put,
            repair.rows_removed,
            repair.codes,
            bytes(repair.bytes as f64)
        )),
    );
}

fn waiting(Waiting { reason, retry_ms }: &Waiting) -> String {
    let retry = retry_ms.map(|ms| format!("; tries again in {}", duration(ms as f64 / 1e3)));
    format!("{reason}{}", retry.unwrap_or_default())
}

fn target(sync: &SyncStatus) -> String {
    let target = sync.target;
    match target.since(sync.head) {
        0 => format!("batch {target}"),
        ahead => format!("batch {target}, {ahead} ahead"),
    }
}

fn restoring(restore: &SnapshotStatus) -> String {
    let kept = match restore.rows_kept {
        0 => String::new(),
        kept => format!("; {} rows kept of an older one", count(kept as f64)),
    };
    format!("batch {}{kept}", restore.number)
}

fn restored(restore: &SnapshotStatus) -> String {
    format!("batch {}, {} rows", restore.number, count(restore.rows as f64))
}

/// Describes the history that is fetched in the background.
pub(crate) fn backfill(backfill: &BackfillStatus) -> String {
    let BackfillStatus { wanted_from, lowest, batches_left, reason, .. } = backfill;
    let rate = match backfill.batches_per_second {
        0.0 => String::new(),
        batches => format!(", {} batches/s, {}/s", count(batches), bytes(backfill.bytes_per_second)),
    };
    let eta = backfill.eta_seconds.map(|seconds| format!(", about {} left", duration(seconds)));
    let eta = eta.unwrap_or_default();
    format!("all from batch {lowest} on, {batches_left} left to batch {wanted_from}{rate}{eta}: {reason}")
}

/// Describes the past states that are fetched in the background.
pub(crate) fn past_states(states: &PastStatesStatus) -> String {
    let PastStatesStatus { wanted_from, lowest, reason } = states;
    let left = lowest.since(*wanted_from);
    format!("known from batch {lowest} on, {left} left to batch {wanted_from}: {reason}")
}

/// Adds the stages that are busy or have data queued.
fn stages(rows: &mut Rows, sync: &SyncStatus) {
    let works = sync.stages.iter().filter(|stage| stage.busy_percent >= 0.5 || stage.queue_bytes > 0);
    let mut works = works.peekable();
    if works.peek().is_some() {
        rows.add("  stages", Some(format!("{:>6} {:>12} {:>14}", "busy", "queued", "rate")));
    }
    for stage in works {
        let (queue, rate) = (bytes(stage.queue_bytes as f64), bytes(stage.bytes_per_second));
        let line = format!("{:>4.0} % {queue:>12} {:>14}", stage.busy_percent, format!("{rate}/s"));
        rows.add(&format!("    {}", stage.stage.name()), Some(line));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use slipstream_status::fixture;

    use super::*;

    fn shown(health: Value, sync: Value) -> String {
        let status = fixture::status(json!({ "health": health, "sync": sync }));
        let mut rows = Rows::default();
        alarm(&mut rows, &status.sync);
        describe(&mut rows, &status);
        rows.0
    }

    /// Goal: while the node follows, an operator sees its work and the reason, its bottleneck, and where bytes are
    /// queued.
    #[test]
    fn following_shows_reason_rate_and_stages() {
        let sync = json!({
            "phase": "delta", "reason": "delta 0.52 ms a batch, bound by cpu", "waiting": null,
            "bottleneck": "cpu", "batches_per_second": 812.44, "transactions_per_second": 162_488.2,
            "head": 12_800, "target": 20_000, "batches": 12_800, "batches_replayed": 0, "transactions": 2_560_000,
            "bytes_received": 734_003_200, "requests": 12, "hedges": 3, "stages": [
                { "stage": "fetch", "busy_percent": 780.2, "queue_bytes": 25_165_824, "bytes_per_second": 46_452_000.0,
                    "busy_seconds": 1.0, "bytes": 1 },
                { "stage": "check", "busy_percent": 41.0, "queue_bytes": 0, "bytes_per_second": 46_452_000.0,
                    "busy_seconds": 1.0, "bytes": 1 },
                { "stage": "execute", "busy_percent": 0.2, "queue_bytes": 0, "bytes_per_second": 0.0,
                    "busy_seconds": 1.0, "bytes": 1 },
                { "stage": "commit", "busy_percent": 93.7, "queue_bytes": 1_572_864, "bytes_per_second": 45_000_000.0,
                    "busy_seconds": 1.0, "bytes": 1 },
            ],
        });
        let health = json!({ "eta_seconds": 8.86, "behind_batches": 7_200 });
        let expected = "sync         delta (mode auto), bound by cpu
  because    delta 0.52 ms a batch, bound by cpu
  target     batch 20000, 7200 ahead
  progress   64.0 %, 12800 of 20000 batches, 812 batches/s, 162 k transactions/s, about 8.9 s left
  stages       busy       queued           rate
    fetch     780 %     24.0 MiB     44.3 MiB/s
    check      41 %          0 B     44.3 MiB/s
    commit     94 %      1.5 MiB     42.9 MiB/s
  requests   12 under way; 3 late ones were given to a second peer
  followed   12800 batches (0 executed), 2560000 transactions
  received   700 MiB
";
        assert_eq!(shown(health, sync), expected);
    }

    /// Goal: a restore shows its size, its speed and its remaining time.
    #[test]
    fn restoring_shows_progress() {
        let sync = json!({
            "phase": "snapshot", "reason": "no peer keeps batch 1", "head": 0, "target": 300, "waiting": null,
            "batches": 0, "batches_replayed": 0, "transactions": 0, "bytes_received": 0,
            "snapshot": { "number": 200, "rows": 4_500_000, "rows_total": 10_000_000, "rows_per_second": 44_000.0,
                "eta_seconds": 125.0, "share": 0.45, "rows_kept": 12_000, "bytes_kept": 1 },
        });
        let health = json!({ "behind_batches": 300, "eta_seconds": null });
        let expected = "sync         snapshot (mode auto)
  because    no peer keeps batch 1
  target     batch 300, 300 ahead
  progress   45.0 %, 4.5 M of about 10.0 M rows, 44.0 k rows/s, about 2 min 05 s left
  restores   batch 200; 12.0 k rows kept of an older one
  requests   0 under way; 0 late ones were given to a second peer
  followed   0 batches (0 executed), 0 transactions
  received   0 B
";
        assert_eq!(shown(health, sync), expected);
    }

    /// Goal: at the head an operator sees the progress of the history behind it, and why it waits.
    #[test]
    fn a_backfill_shows_its_progress() {
        let mut backfill = json!({
            "wanted_from": 1, "lowest": 4_001, "batches_left": 4_000, "batches_per_second": 800.0,
            "bytes_per_second": 1_048_576.0, "eta_seconds": 5.0, "reason": "asking 0123456789; next: batches 3745 to 4000",
        });
        let line = |backfill: &Value| {
            let text = shown(json!({}), json!({ "phase": "idle", "backfill": backfill }));
            text.lines().find(|line| line.starts_with("  history")).map(str::to_owned)
        };
        let expected = "  history    all from batch 4001 on, 4000 left to batch 1, 800 batches/s, 1.0 MiB/s, about 5.0 s left: asking 0123456789; next: batches 3745 to 4000";
        assert_eq!(line(&backfill).as_deref(), Some(expected));
        backfill["batches_per_second"] = json!(0.0);
        (backfill["eta_seconds"], backfill["reason"]) = (Value::Null, json!("the head comes first"));
        let expected = "  history    all from batch 4001 on, 4000 left to batch 1: the head comes first";
        assert_eq!(line(&backfill).as_deref(), Some(expected));
        assert_eq!(line(&Value::Null), None);
    }

    /// Goal: a node that stands still names the reason and when it tries again.
    #[test]
    fn standing_still_has_a_reason_and_a_time() {
        let waiting = json!({ "reason": "all peers are paused; no peer is available", "retry_ms": 250 });
        let sync = json!({ "phase": "waiting for peers", "reason": "", "waiting": waiting });
        let blocker = json!({ "reason": "no_peers", "text": "none", "alert": true, "retry_ms": 4_200 });
        let text = shown(json!({ "blocker": blocker, "eta_seconds": null }), sync);
        assert!(text.starts_with("sync         waiting for peers (mode auto)\n"), "{text}");
        let line = "  waiting    all peers are paused; no peer is available; tries again in 250 ms\n";
        assert!(text.contains(line) && text.contains(", blocked\n"), "{text}");
    }

    /// Goal: at the head, lines that only matter behind it are omitted, and an alarm comes first.
    #[test]
    fn an_idle_node_is_short_and_an_alarm_is_loud() {
        let sync = json!({
            "phase": "idle", "reason": "no peer has a newer batch", "bottleneck": null,
            "waiting": { "reason": "no peer has a newer batch", "retry_ms": 500 }, "head": 300, "target": 300,
            "batches": 100, "batches_replayed": 40, "transactions": 400, "bytes_received": 512, "hint_recall": 0.934, "hint_precision": 0.98,
            "audited": 7, "audits_skipped": 2, "alarm": "batch 13: execution gives another delta_digest",
            "snapshot": { "number": 200, "rows": 12, "rows_total": 12, "rows_per_second": 0.0, "eta_seconds": null, "share": 1.0,
                "rows_kept": 0, "bytes_kept": 0 },
            "stages": [{ "stage": "fetch", "busy_percent": 3.0, "queue_bytes": 0, "bytes_per_second": 1.0, "busy_seconds": 1.0, "bytes": 1 }],
        });
        let expected = "ALARM        batch 13: execution gives another delta_digest
             a quorum signed a result that this program does not reproduce: keep the data directory, ask the validators' operators
             once that is settled, stop the node and remove this alarm with `slipstream db alarm --clear`
sync         idle (mode auto)
  target     batch 300
  restored   batch 200, 12 rows
  audits     7 batches executed again, 2 left out for lack of time
  followed   100 batches (40 executed), 400 transactions
  received   512 B
  hints      named 93 % of what execution read, 2 % of the named unused
";
        assert_eq!(shown(json!({}), sync), expected);
    }
}
