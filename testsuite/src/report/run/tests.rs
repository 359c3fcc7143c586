use super::*;
use crate::{
    load::{Cause, Percentiles},
    report::{AuditFigures, LatencyFigures, SearchStep},
};

fn percentiles(p50: f64, p99: f64) -> Percentiles {
    Percentiles { count: 3, p50, p90: p99, p95: p99, p99, max: p99 }
}

/// Returns a short run with an entry of every kind.
pub(in crate::report) fn report() -> RunReport {
    let series =
        |unit: &str| Series { unit: unit.to_owned(), points: vec![(0, 1.0), (500, 3.0), (1_000, 2.0)] };
    let named = |name: &str, unit| NamedSeries { name: name.to_owned(), series: series(unit) };
    let node = NodeSeries {
        name: "validator-0".into(),
        role: "validator".into(),
        head: series("batches"),
        head_age: series("s"),
        cpu: series("cores"),
        memory: series("MiB"),
        memory_peak_mib: Some(7.0),
        disk: series("MiB"),
        stages: vec![named("fetch", "cores")],
        peers: vec![named("0a1b2c3d4e", "points")],
        unanswered: 2,
    };
    let criterion = |name: &str, passed| CriterionResult {
        name: name.into(),
        passed,
        measured: "3.1 s".into(),
        wanted: "at most 2 s".into(),
    };
    let mut load = LoadSeries::new("commit main");
    load.push(1_000, 2.0, Some(percentiles(5.0, 7.0)));
    load.push(2_000, 1.0, Some(percentiles(9.0, 9.0)));
    load.total = Some(Total { per_second: 1.5, latency_ms: Some(percentiles(7.0, 9.0)) });
    let liar = |liar: &str, lie: &str, banned_after_seconds, reason: Option<&str>| LiarOpinion {
        node: "late".into(),
        liar: liar.into(),
        lie: lie.into(),
        at_ms: 500,
        banned_after_seconds,
        reason: reason.map(str::to_owned),
        score: Some(if reason.is_some() { 0.0 } else { 200.0 }),
        failures: if reason.is_some() { 2 } else { 0 },
    };
    let step = |offered, achieved, latency: Option<(f64, f64)>, missed| SearchStep {
        offered,
        achieved,
        p50_ms: latency.map(|(p50, _)| p50),
        p99_ms: latency.map(|(_, p99)| p99),
        missed,
        generators_limit: false,
    };
    RunReport {
        scenario: "primary-killed".into(),
        command: "slipnet run primary-killed.yaml --seed 7".into(),
        environment: Environment::default(),
        started_ms: 1_795_000_000_000,
        seconds: 60.0,
        nodes: vec![node],
        load: vec![load],
        phases: vec![PhaseFigures {
            name: "main".into(),
            what: "transfers, 1000 tx/s".into(),
            offered: 1_000.0,
            sent: 999.0,
            committed: 998.0,
            capacity: 20_000.0,
            limited_by: None,
            given_up: 0,
            latencies: vec![LatencyFigures {
                of: "read fullnode-0 by WebSocket".into(),
                ms: Some(Percentiles { count: 3, p50: 5.0, p90: 7.0, p95: 8.0, p99: 9.0, max: 9.0 }),
                failed: 1,
            }],
            audit: Some(AuditFigures {
                receipts: 59_880,
                foreign: 2,
                balances: 812,
                ..AuditFigures::default()
            }),
        }],
        searches: vec![SearchFigures {
            name: "main".into(),
            sustained: 400,
            has_limit: true,
            steps: vec![
                step(400.0, 398.0, Some((90.0, 700.0)), None),
                step(800.0, 510.0, None, Some(Cause::Committed)),
            ],
        }],
        liars: vec![
            liar("0a1b2c3d4e", "forged_heads", Some(1.5), Some("no quorum")),
            liar("ffffffffff", "snapshot_drip", None, None),
        ],
        faults: vec![FaultMark {
            at_ms: 500,
            until_ms: Some(900),
            what: "kill".into(),
            node: Some("validator-0".into()),
        }],
        criteria: vec![criterion("head-age", false), criterion("equal-roots", true)],
        catch_up: vec![CatchUp {
            node: "fullnode-0".into(),
            mode: "delta".into(),
            seconds: Some(0.5),
            behind: series("batches"),
        }],
        harness: HarnessFigures {
            offered: 1_000.0,
            achieved: 999.0,
            relay_overhead_us: None,
            generators_limit: true,
        },
    }
}

#[test]
fn a_report_is_read_as_it_was_written() {
    let report = report();
    let dir = tempfile::tempdir().unwrap();
    report.write(dir.path()).unwrap();
    assert_eq!(RunReport::load(&dir.path().join("report.json")).unwrap(), report);
    assert!(!report.passed());
}

/// Goal: a file that is no report, or is too large, is refused with the field's name.
#[test]
fn what_is_no_report_is_refused() {
    let refused = |change: &dyn Fn(&mut RunReport)| {
        let mut report = report();
        change(&mut report);
        RunReport::parse(&serde_json::to_vec(&report).unwrap()).unwrap_err().to_string()
    };
    let many = refused(&|report| report.faults = vec![report.faults[0].clone(); LIST_MAX + 1]);
    assert!(many.contains("faults has 2049 entries"), "{many}");
    let many = refused(&|report| report.liars = vec![report.liars[0].clone(); LIST_MAX + 1]);
    assert!(many.contains("liars has 2049 entries"), "{many}");
    let many = refused(&|report| {
        let steps = &mut report.searches[0].steps;
        *steps = vec![steps[0].clone(); LIST_MAX + 1];
    });
    assert!(many.contains("the search main has 2049 steps"), "{many}");
    let many = refused(&|report| {
        let latencies = &mut report.phases[0].latencies;
        *latencies = vec![latencies[0].clone(); LIST_MAX + 1];
    });
    assert!(many.contains("the phase main has 2049 latencies"), "{many}");
    let long = refused(&|report| report.nodes[0].head.points = vec![(0, 0.0); POINTS_MAX + 1]);
    assert!(long.contains("4097 points"), "{long}");
    let late = refused(&|report| report.catch_up[0].behind.points = vec![(2, 0.0), (1, 0.0)]);
    assert!(late.contains("not in time order"), "{late}");
    assert!(RunReport::parse(b"{}").is_err());
}

/// Goal: a slice in which nothing was due has no latency, and its rate is zero, not a gap.
#[test]
fn a_stall_is_a_zero_without_a_latency() {
    let mut load = LoadSeries::new("read main at near by HTTP");
    load.push(1_000, 100.0, Some(percentiles(50.0, 99.0)));
    load.push(2_000, 0.0, None);
    load.push(3_000, 2.0, Some(percentiles(700.0, 900.0)));
    assert_eq!(load.per_second.points, [(1_000, 100.0), (2_000, 0.0), (3_000, 2.0)]);
    assert_eq!(load.p50.points, [(1_000, 50.0), (3_000, 700.0)]);
    assert_eq!(load.p99.points, [(1_000, 99.0), (3_000, 900.0)]);
    assert_eq!(load.p90.unit, "ms");
}
