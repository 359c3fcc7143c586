//! The page of a run's report, in Debian's Chromium.

use serde_json::json;
use slipnet::{
    load::{Cause, Limit, Percentiles},
    report::{
        AuditFigures, CatchUp, CriterionResult, Environment, FaultMark, HarnessFigures, LatencyFigures,
        LiarOpinion, LoadSeries, NamedSeries, NodeSeries, PhaseFigures, RunReport, SearchFigures, SearchStep,
        Series, Total,
    },
};

use super::page::{check_looks, installed};

/// Returns a load of ten per second for a minute, with latencies from 90 to 100 ms.
fn load(name: &str) -> LoadSeries {
    let latency = Percentiles { count: 10, p50: 95.0, p90: 99.0, p95: 99.0, p99: 100.0, max: 100.0 };
    let mut load = LoadSeries::new(name);
    (1..=60).for_each(|second| load.push(second * 1_000, 10.0, Some(latency)));
    load.total = Some(Total { per_second: 10.0, latency_ms: Some(latency) });
    load
}

/// Returns a search that doubled once, and failed twice at the doubled rate.
fn search() -> SearchFigures {
    let step = |offered, achieved, p99_ms, missed| SearchStep {
        offered,
        achieved,
        p50_ms: Some(80.0),
        p99_ms,
        missed,
        generators_limit: false,
    };
    SearchFigures {
        name: "search".into(),
        sustained: 200,
        has_limit: true,
        steps: vec![
            step(200.0, 199.0, Some(300.0), None),
            step(400.0, 260.0, Some(4_000.0), Some(Cause::Latency)),
            step(400.0, 250.0, None, Some(Cause::Committed)),
        ],
    }
}

/// Returns a run of a minute, with a fault and with names that look like markup.
fn report() -> RunReport {
    let series = |unit: &str, value: fn(u64) -> f64| {
        let mut series = Series::new(unit);
        (0..120).for_each(|step| series.push(step * 500, value(step)));
        series
    };
    let named = |name: &str, series| NamedSeries { name: name.into(), series };
    let node = |name: &str| NodeSeries {
        name: name.into(),
        role: "fullnode".into(),
        head: series("batches", |step| step as f64 * 5.0),
        head_age: series("s", |step| if (40..52).contains(&step) { 6.0 } else { 0.2 }),
        cpu: series("cores", |step| 0.5 + (step % 7) as f64 / 10.0),
        memory: series("MiB", |step| 60.0 + step as f64 / 4.0),
        memory_peak_mib: Some(97.5),
        disk: series("MiB", |step| 20.0 + step as f64),
        stages: ["fetch", "check", "execute"]
            .map(|stage| named(stage, series("cores", |step| (step % 5) as f64)))
            .into(),
        peers: vec![named("0a1b2c3d4e", series("points", |step| (200 + step * 5) as f64))],
        unanswered: 3,
    };
    let criterion = |name: &str, passed| CriterionResult {
        name: name.into(),
        passed,
        measured: "6 s".into(),
        wanted: "at most 10 s".into(),
    };
    // It was not sampled while it was down.
    let mut down = node("a-node-whose-name-is-longer-than-a-telephone-is-wide-at-360-px");
    down.memory.points.retain(|(at_ms, _)| !(20_000..26_000).contains(at_ms));
    RunReport {
        scenario: "<i>primary killed</i>".into(),
        command: "slipnet run primary-killed.yaml --seed 7".into(),
        environment: Environment { commit: "0123abc".into(), cores: 2, ..Environment::default() },
        started_ms: 1_795_000_000_000,
        seconds: 60.0,
        nodes: vec![node("fullnode-0"), down],
        load: vec![
            load("commit main"),
            load("read main at a-node-whose-name-is-longer-than-a-telephone-is-wide-at-360-px by WebSocket"),
        ],
        searches: vec![search()],
        liars: vec![LiarOpinion {
            node: "a-node-whose-name-is-longer-than-a-telephone-is-wide-at-360-px".into(),
            liar: "0a1b2c3d4e".into(),
            lie: "forged_heads".into(),
            at_ms: 30_000,
            banned_after_seconds: Some(1.5),
            reason: Some("summary: the certificate of batch 1200 has <no> quorum".into()),
            score: Some(0.0),
            failures: 0,
        }],
        phases: vec![PhaseFigures {
            name: "main".into(),
            what: "transfers=2,erc20=1, 1000 tx/s".into(),
            offered: 1_000.0,
            sent: 999.0,
            committed: 900.0,
            capacity: 20_000.0,
            limited_by: Some(Limit::Node),
            given_up: 99,
            latencies: vec![LatencyFigures {
                of: "read a-node-whose-name-is-longer-than-a-telephone-is-wide-at-360-px by WebSocket".into(),
                ms: None,
                failed: 7,
            }],
            audit: Some(AuditFigures {
                receipts: 54_321,
                foreign: 2,
                lost: 1,
                balances: 1_234,
                ..AuditFigures::default()
            }),
        }],
        faults: vec![
            FaultMark {
                at_ms: 20_000,
                until_ms: Some(26_000),
                what: "kill".into(),
                node: Some("fullnode-0".into()),
            },
            FaultMark { at_ms: 40_000, until_ms: None, what: "clock jump".into(), node: None },
        ],
        criteria: vec![criterion("no-progress", true), criterion("head-age", false)],
        catch_up: vec![CatchUp {
            node: "fullnode-0".into(),
            mode: "delta".into(),
            seconds: Some(20.0),
            behind: series("batches", |step| 120.0 - step as f64),
        }],
        harness: HarnessFigures {
            offered: 1_000.0,
            achieved: 900.0,
            relay_overhead_us: Some(84.0),
            generators_limit: true,
        },
    }
}

/// Goal: every part of a run has a chart with its faults on the axis, and the harness's own figures are shown. The page
/// loads nothing from elsewhere. A phone shows all of it, in light and dark mode.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_is_drawn() {
    let Some(client) = installed() else { return };
    let dir = tempfile::tempdir().unwrap();
    report().write(dir.path()).unwrap();
    let url = format!("file://{}", dir.path().join("report.html").display());
    let seen = client.run("report.mjs", &[&url, "."]).await;

    assert_eq!((&seen["errors"], &seen["asked"]), (&json!([]), &json!([])), "{seen}");
    assert_eq!(seen["title"], "<i>primary killed</i>: 1 of 2 criteria failed");
    assert_eq!(seen["command"], "slipnet run primary-killed.yaml --seed 7");
    let sections = [
        "Harness",
        "Phases",
        "Audit",
        "Criteria",
        "Faults",
        "Liars",
        "Load",
        "Throughput",
        "Latency",
        "Searches",
        "Head",
        "Catch-up",
        "Machine",
        "Stages",
        "Peers' scores",
        "Unanswered samples",
    ];
    assert_eq!(seen["sections"], json!(sections));
    assert!(seen["harness"].to_string().contains("900 (the harness fell short)"), "{seen}");
    assert!(seen["harness"].to_string().contains("they were the limit"), "{seen}");
    assert!(seen["faults"].to_string().contains("clock jump"), "{seen}");
    assert_eq!(
        seen["audit"],
        json!(["main: receipts", "54321", "1 lost, 2 foreign", "main: balances", "1234", "all right"])
    );
    let phase = "main: transfers=2,erc20=1, 1000 tx/s; the generators can send 20k/s; the nodes were the limit; 99 transactions were given up";
    assert_eq!(seen["phases"][0], phase, "{seen}");
    let load = seen["load"].as_array().unwrap();
    assert!(load[0] == "commit main" && load[1] == "10" && load[5] == "100", "{seen}");
    let liars = &seen["liars"];
    assert!(
        liars[1] == "30 s" && liars[2] == "1.5 s" && liars[3].as_str().unwrap().contains("<no>"),
        "{seen}"
    );
    let searches = seen["searches"].to_string();
    for said in ["200", "199", "sustained", "260", "4000", "too late", "too few were committed in time"] {
        assert!(searches.contains(said), "{said}: {searches}");
    }

    // Throughput, two latencies, two of the head, a curve, three of the machine, and stages and scores of both nodes.
    let charts = seen["charts"].as_array().unwrap();
    let (of_time, of_rates): (Vec<_>, Vec<_>) = charts
        .iter()
        .partition(|chart| chart["name"].as_str().unwrap().ends_with("over the time of the run"));
    assert_eq!((of_time.len(), of_rates.len()), (13, 2), "{seen}");
    for chart in of_rates {
        assert_eq!([&chart["curves"], &chart["marks"], &chart["bands"]], [&json!(2), &json!(0), &json!(0)]);
    }
    for chart in of_time {
        assert!(chart["curves"].as_u64().unwrap() >= 1, "{chart}");
        assert_eq!((&chart["marks"], &chart["bands"]), (&json!(2), &json!(1)), "{chart}");
    }
    // The line of the node that was down has a gap, because the values between are unknown.
    let memory = charts.iter().find(|chart| chart["name"].as_str().unwrap().starts_with("Memory")).unwrap();
    assert_eq!(memory["curves"], 3, "{memory}");
    let pointed = seen["pointed"].as_array().unwrap();
    assert!(pointed[0].as_str().unwrap().starts_with("at 2") && pointed[1] == "0.2", "{seen}");
    check_looks(&seen["looks"], 100);
}
