//! What `slipstream status` says of sync: what it does and why, how fast, and what it waits for. Only what matters in its phase.

use serde_json::Value;

use super::rows::{Rows, plain};

/// What sync does and how far it is. Fields that a newer or older node does not have are left out.
pub(super) fn describe(rows: &mut Rows, sync: &Value) {
    let at = |name: &str| sync.get(name).and_then(plain);
    let number = |name: &str| sync.get(name).and_then(Value::as_f64);
    let phase = at("phase").unwrap_or_default();
    let is_idle = phase == "idle";
    let is_restoring = phase == "snapshot" || phase == "range delta";
    let bound =
        at("bottleneck").filter(|_| !is_idle).map_or_else(String::new, |it| format!(", bound by {it}"));
    rows.add("sync", at("mode").map(|mode| format!("{phase} (mode {mode}){bound}")));
    if !is_idle {
        rows.add("  because", at("reason").filter(|reason| !reason.is_empty()));
        rows.add("  waiting", sync.get("waiting").and_then(waiting));
    }
    rows.add("  target", target(sync));
    if !is_idle && !is_restoring {
        rows.add("  rate", rate(sync));
    }
    let restore = sync.get("snapshot").filter(|it| it.is_object());
    match is_restoring {
        true => rows.add("  restores", restore.and_then(restoring)),
        false => rows.add("  restored", restore.and_then(restored)),
    }
    if !is_idle {
        stages(rows, sync);
        rows.add(
            "  requests",
            at("requests").zip(at("hedges")).map(|(requests, hedges)| {
                format!("{requests} under way; {hedges} late ones were given to a second peer")
            }),
        );
    }
    let audits =
        number("audited").zip(number("audits_skipped")).filter(|(done, skipped)| done + skipped > 0.0);
    rows.add(
        "  audits",
        audits.map(|(done, skipped)| {
            format!("{done} batches executed again, {skipped} left out for lack of time")
        }),
    );
    rows.add(
        "  followed",
        at("batches").zip(at("transactions")).map(|(batches, transactions)| {
            let replayed = at("batches_replayed").map_or_else(String::new, |it| format!(" ({it} executed)"));
            format!("{batches} batches{replayed}, {transactions} transactions")
        }),
    );
    rows.add("  received", number("bytes_received").map(bytes));
    repair(rows, sync);
    rows.add("  hints", number("hint_recall").map(|recall| hints(recall, number("hint_precision"))));
}

fn hints(recall: f64, precision: Option<f64>) -> String {
    let vain =
        precision.map_or_else(String::new, |it| format!(", {:.0} % of its own in vain", (1.0 - it) * 100.0));
    format!("named {:.0} % of what execution read{vain}", recall * 100.0)
}

/// What stands above all else: an audit found a certified batch that execution does not give.
pub(super) fn alarm(rows: &mut Rows, sync: &Value) {
    let Some(alarm) = sync.get("alarm").and_then(plain) else { return };
    rows.add("ALARM", Some(alarm));
    rows.add(
        "",
        Some("a quorum signed what this program does not get: keep the data directory, ask the validators' operators".into()),
    );
    rows.add(
        "",
        Some("once that is settled, `slipstream db alarm --clear` with the node stopped removes this".into()),
    );
}

/// What the last repair of the state did.
pub(super) fn repair(rows: &mut Rows, sync: &Value) {
    let Some(repair) = sync.get("repair").filter(|repair| repair.is_object()) else { return };
    let at = |name| repair.get(name).and_then(Value::as_u64).unwrap_or_default();
    let (put, removed, codes) = (at("rows_put"), at("rows_removed"), at("codes"));
    rows.add(
        "  repaired",
        Some(format!(
            "the state of batch {}: {put} rows put, {removed} removed, {codes} codes, {} moved",
            at("number"),
            bytes(at("bytes") as f64)
        )),
    );
}

fn waiting(waiting: &Value) -> Option<String> {
    let reason = waiting.get("reason").and_then(plain)?;
    let retry = waiting.get("retry_ms").and_then(Value::as_f64);
    Some(retry.map_or(reason.clone(), |ms| format!("{reason}; tries again in {}", duration(ms / 1e3))))
}

fn target(sync: &Value) -> Option<String> {
    let target = sync.get("target")?.as_u64()?;
    let ahead = target.saturating_sub(sync.get("head").and_then(Value::as_u64).unwrap_or(target));
    Some(match ahead {
        0 => format!("batch {target}"),
        ahead => format!("batch {target}, {ahead} ahead"),
    })
}

fn rate(sync: &Value) -> Option<String> {
    let number = |name: &str| sync.get(name).and_then(Value::as_f64);
    let (batches, transactions) = number("batches_per_second").zip(number("transactions_per_second"))?;
    let left = left(number("eta_seconds"));
    Some(format!("{} batches/s, {} transactions/s{left}", count(batches), count(transactions)))
}

fn restoring(restore: &Value) -> Option<String> {
    let number = |name: &str| restore.get(name).and_then(Value::as_f64);
    let (rows, share) = number("rows").zip(number("share"))?;
    let total = number("rows_total").filter(|total| *total > 0.0);
    let total = total.map_or_else(String::new, |total| format!(" of about {}", count(total)));
    let rate = number("rows_per_second").map_or_else(String::new, |rate| format!(", {} rows/s", count(rate)));
    let left = left(number("eta_seconds"));
    let kept = number("rows_kept").filter(|kept| *kept > 0.0);
    let kept = kept.map_or_else(String::new, |kept| format!("; {} kept of an older one", count(kept)));
    let batch = restore.get("number").and_then(plain)?;
    Some(format!("batch {batch}: {:.1} %, {}{total} rows{rate}{left}{kept}", share * 100.0, count(rows)))
}

fn restored(restore: &Value) -> Option<String> {
    let batch = restore.get("number").and_then(plain)?;
    Some(format!("batch {batch}, {} rows", count(restore.get("rows")?.as_f64()?)))
}

/// The stages that work, or have something waiting for them.
fn stages(rows: &mut Rows, sync: &Value) {
    let all = sync.get("stages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let line = |stage: &Value| {
        let number = |name: &str| stage.get(name).and_then(Value::as_f64);
        let name = stage.get("stage").and_then(plain)?;
        let (busy, queue) = number("busy_percent").zip(number("queue_bytes"))?;
        let rate = number("bytes_per_second")?;
        let works = busy >= 0.5 || queue > 0.0;
        works.then(|| {
            (name, format!("{busy:>4.0} % {:>12} {:>14}", bytes(queue), format!("{}/s", bytes(rate))))
        })
    };
    let mut lines = all.iter().filter_map(line).peekable();
    if lines.peek().is_some() {
        rows.add("  stages", Some(format!("{:>6} {:>12} {:>14}", "busy", "queued", "rate")));
    }
    for (name, line) in lines {
        rows.add(&format!("    {name}"), Some(line));
    }
}

fn left(seconds: Option<f64>) -> String {
    seconds.map_or_else(String::new, |seconds| format!(", about {} left", duration(seconds)))
}

/// Three digits and a unit of thousands.
fn count(value: f64) -> String {
    scaled(value, 1_000.0, &["", " k", " M", " G"])
}

fn bytes(value: f64) -> String {
    scaled(value, 1_024.0, &[" B", " KiB", " MiB", " GiB", " TiB"])
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    let is_whole = value.fract() == 0.0 && value < step;
    // What would be shown as a whole step is shown in the next unit.
    while value >= step - 0.5 {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / step, next);
    }
    match value {
        value if is_whole || value >= 99.95 => format!("{value:.0}{unit}"),
        value => format!("{value:.1}{unit}"),
    }
}

pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match seconds {
        seconds if seconds < 0.9995 => format!("{:.0} ms", seconds * 1e3),
        seconds if seconds < 9.95 => format!("{seconds:.1} s"),
        _ if whole < 60 => format!("{whole} s"),
        _ if whole < 3_600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3_600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(sync: &Value) -> String {
        let mut rows = Rows::default();
        alarm(&mut rows, sync);
        describe(&mut rows, sync);
        rows.0
    }

    /// Goal: while it follows, an operator sees what it does and why, what bounds it and where the bytes wait.
    #[test]
    fn following_shows_reason_rate_and_stages() {
        let sync = json!({
            "mode": "auto", "phase": "delta", "reason": "delta 0.52 ms a batch, bound by cpu", "waiting": null,
            "bottleneck": "cpu", "batches_per_second": 812.44, "transactions_per_second": 162_488.2, "eta_seconds": 8.86,
            "head": 12_800, "target": 20_000, "batches": 12_800, "batches_replayed": 0, "transactions": 2_560_000,
            "bytes_received": 734_003_200, "snapshot": null, "requests": 12, "hedges": 3, "audited": 0, "audits_skipped": 0,
            "hint_recall": null, "hint_precision": null, "alarm": null, "stages": [
                { "stage": "fetch", "busy_percent": 780.2, "queue_bytes": 25_165_824, "bytes_per_second": 46_452_000.0 },
                { "stage": "check", "busy_percent": 41.0, "queue_bytes": 0, "bytes_per_second": 46_452_000.0 },
                { "stage": "execute", "busy_percent": 0.2, "queue_bytes": 0, "bytes_per_second": 0.0 },
                { "stage": "commit", "busy_percent": 93.7, "queue_bytes": 1_572_864, "bytes_per_second": 45_000_000.0 },
            ],
        });
        let expected = "sync         delta (mode auto), bound by cpu
  because    delta 0.52 ms a batch, bound by cpu
  target     batch 20000, 7200 ahead
  rate       812 batches/s, 162 k transactions/s, about 8.9 s left
  stages       busy       queued           rate
    fetch     780 %     24.0 MiB     44.3 MiB/s
    check      41 %          0 B     44.3 MiB/s
    commit     94 %      1.5 MiB     42.9 MiB/s
  requests   12 under way; 3 late ones were given to a second peer
  followed   12800 batches (0 executed), 2560000 transactions
  received   700 MiB
";
        assert_eq!(shown(&sync), expected);
    }

    /// Goal: a restore shows how much there is, how fast it comes and when it is done.
    #[test]
    fn restoring_shows_progress() {
        let sync = json!({
            "mode": "auto", "phase": "snapshot", "reason": "no peer keeps batch 1 any more", "head": 0, "target": 300,
            "batches_per_second": 0.0, "transactions_per_second": 0.0, "eta_seconds": 125.0,
            "snapshot": { "number": 200, "rows": 4_500_000, "rows_total": 10_000_000, "rows_per_second": 44_000.0,
                "eta_seconds": 125.0, "share": 0.45, "rows_kept": 12_000, "bytes_kept": 1 },
        });
        let expected = "sync         snapshot (mode auto)
  because    no peer keeps batch 1 any more
  target     batch 300, 300 ahead
  restores   batch 200: 45.0 %, 4.5 M of about 10.0 M rows, 44.0 k rows/s, about 2 min 05 s left; 12.0 k kept of an older one
";
        assert_eq!(shown(&sync), expected);
    }

    /// Goal: a node that stands still names the reason and when it looks again.
    #[test]
    fn standing_still_has_a_reason_and_a_time() {
        let waiting = json!({ "reason": "all peers pause; no peer can be asked", "retry_ms": 250 });
        let sync = json!({ "mode": "auto", "phase": "waiting for peers", "reason": "", "waiting": waiting });
        let expected = "sync         waiting for peers (mode auto)
  waiting    all peers pause; no peer can be asked; tries again in 250 ms
";
        assert_eq!(shown(&sync), expected);
    }

    /// Goal: at the head nothing is said of what only matters behind it, and an alarm stands above everything.
    #[test]
    fn an_idle_node_is_short_and_an_alarm_is_loud() {
        let sync = json!({
            "mode": "auto", "phase": "idle", "reason": "no peer has a newer batch", "bottleneck": null,
            "waiting": { "reason": "no peer has a newer batch", "retry_ms": 500 }, "head": 300, "target": 300,
            "batches_per_second": 0.0, "transactions_per_second": 0.0, "requests": 0, "hedges": 0,
            "batches": 100, "batches_replayed": 40, "transactions": 400, "bytes_received": 512, "hint_recall": 0.934, "hint_precision": 0.98,
            "audited": 7, "audits_skipped": 2, "alarm": "batch 13: execution gives another delta_digest",
            "snapshot": { "number": 200, "rows": 12, "share": 1.0 },
            "stages": [{ "stage": "fetch", "busy_percent": 3.0, "queue_bytes": 0, "bytes_per_second": 1.0 }],
        });
        let expected = "ALARM        batch 13: execution gives another delta_digest
             a quorum signed what this program does not get: keep the data directory, ask the validators' operators
             once that is settled, `slipstream db alarm --clear` with the node stopped removes this
sync         idle (mode auto)
  target     batch 300
  restored   batch 200, 12 rows
  audits     7 batches executed again, 2 left out for lack of time
  followed   100 batches (40 executed), 400 transactions
  received   512 B
  hints      named 93 % of what execution read, 2 % of its own in vain
";
        assert_eq!(shown(&sync), expected);
    }

    #[test]
    fn numbers_read_well_at_every_size() {
        let counts =
            [(0.0, "0"), (7.0, "7"), (0.25, "0.2"), (999.4, "999"), (999.6, "1.0 k"), (1_234_567.0, "1.2 M")];
        for (value, text) in counts {
            assert_eq!(count(value), text);
        }
        for (value, text) in [(1023.0, "1023 B"), (1024.0, "1.0 KiB"), (5e15, "4547 TiB")] {
            assert_eq!(bytes(value), text);
        }
        let durations = [
            (0.25, "250 ms"),
            (0.9996, "1.0 s"),
            (59.6, "1 min 00 s"),
            (3_599.9, "1 h 00 min"),
            (45_000.0, "12 h 30 min"),
        ];
        for (value, text) in durations {
            assert_eq!(duration(value), text);
        }
    }
}
