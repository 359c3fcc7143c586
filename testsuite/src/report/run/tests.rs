use super::*;
use crate::{load::Percentiles, report::LatencyFigures};

/// A short run with everything in it.
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
    RunReport {
        scenario: "primary-killed".into(),
        command: "slipnet run primary-killed.yaml --seed 7".into(),
        environment: Environment::default(),
        started_ms: 1_795_000_000_000,
        seconds: 60.0,
        nodes: vec![node],
        load: vec![LoadSeries::of("commit", [(100, 5.0), (200, 7.0), (1_100, 9.0)])],
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
        }],
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

/// Goal: a file that is no report, or one that would not end, is refused with the field's name.
#[test]
fn what_is_no_report_is_refused() {
    let refused = |change: &dyn Fn(&mut RunReport)| {
        let mut report = report();
        change(&mut report);
        RunReport::parse(&serde_json::to_vec(&report).unwrap()).unwrap_err().to_string()
    };
    let many = refused(&|report| report.faults = vec![report.faults[0].clone(); LIST_MAX + 1]);
    assert!(many.contains("faults has 1025 entries"), "{many}");
    let long = refused(&|report| report.nodes[0].head.points = vec![(0, 0.0); POINTS_MAX + 1]);
    assert!(long.contains("4097 points"), "{long}");
    let late = refused(&|report| report.catch_up[0].behind.points = vec![(2, 0.0), (1, 0.0)]);
    assert!(late.contains("order of time"), "{late}");
    assert!(RunReport::parse(b"{}").is_err());
}

/// Goal: a stall of the chain is seen as zero transactions, and latencies are those of each second alone.
#[test]
fn load_is_counted_second_by_second() {
    let first = (0..100).map(|index| (index * 10, (index + 1) as f64));
    let load = LoadSeries::of("commit", first.chain([(5_500, 700.0), (5_200, 900.0)]));
    assert_eq!(load.per_second.points, [(0, 100.0), (1_000, 0.0), (4_000, 0.0), (5_000, 2.0)]);
    assert_eq!(load.p50.points, [(0, 50.0), (5_000, 700.0)]);
    assert_eq!(load.p90.points, [(0, 90.0), (5_000, 900.0)]);
    assert_eq!(load.p99.points, [(0, 99.0), (5_000, 900.0)]);
    // A fiftieth of all came with the stall: the whole shows it, and the median of the seconds does not.
    let total = load.total.unwrap();
    let latency = total.latency_ms.unwrap();
    assert!(total.per_second == 17.0 && (699.0..710.0).contains(&latency.p99), "{total:?}");
    let none = LoadSeries::of("none", []);
    assert!(none.per_second.points.is_empty() && none.total.is_none());
}
