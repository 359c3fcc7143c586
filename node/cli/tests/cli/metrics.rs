//! Tests of a node's metrics, and of the rules and the dashboard supplied with it, using Prometheus and its tools.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::chain::{Chain, Running, printed};

/// Runs promtool with these arguments and this input; its output must be clean. Returns false if it is not installed.
#[allow(clippy::print_stderr, reason = "tells whoever runs the tests that something was left out")]
fn promtool(args: &[&str], input: &str) -> bool {
    let mut command = Command::new("promtool");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if std::env::var("SLIPSTREAM_REQUIRE_CLIENTS").is_ok_and(|value| value == "1") => {
            panic!("promtool cannot be started: {error}")
        }
        Err(error) => {
            eprintln!(
                "SKIPPED: promtool cannot be started (Debian's package `prometheus` has it; SLIPSTREAM_REQUIRE_CLIENTS=1 makes \
                 this an error): {error}"
            );
            return false;
        }
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "promtool {args:?}: {out}{err}");
    true
}

fn packaged(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

/// Goal: Prometheus' own tool finds no fault in a node's metrics.
#[test]
fn promtool_takes_the_metrics() {
    let chain = Chain::new();
    let node = Running::start(&chain);
    printed(&["wait", "--for", "ready", "--api", &format!("http://{}", node.api)], true);
    // Histograms appear with their first sample.
    node.rpc("eth_chainId", json!([]));
    let metrics = node.http("GET /metrics", "");
    for name in ["slipstream_rpc_seconds_bucket", "process_cpu_seconds_total", "slipstream_head_age_seconds"]
    {
        assert!(metrics.contains(&format!("\n{name}")), "{name} is not in {metrics}");
    }
    promtool(&["check", "metrics"], &metrics);
    node.stop();
}

/// Goal: the rules are valid, and fire when they should and not before.
#[test]
fn promtool_takes_the_rules_and_they_pass_their_test() {
    let path = |file: &str| packaged(file).to_str().unwrap().to_owned();
    if promtool(&["check", "rules", &path("prometheus/rules.yml")], "") {
        promtool(&["test", "rules", &path("prometheus/rules.test.yml")], "");
    }
}

/// Goal: every alert has a test in which it fires, and one in which it does not.
#[test]
fn every_alert_is_tested_both_ways() {
    let [rules, tests] = ["prometheus/rules.yml", "prometheus/rules.test.yml"]
        .map(|file| std::fs::read_to_string(packaged(file)).unwrap());
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    let tested: Vec<(&str, &str)> =
        tests.lines().zip(tests.lines().skip(1)).map(|(line, next)| (line.trim(), next.trim())).collect();
    for alert in alerts {
        let name = format!("alertname: {alert}");
        for expected in ["exp_alerts:", "exp_alerts: []"] {
            assert!(tested.contains(&(name.as_str(), expected)), "{alert}: no test has `{expected}`");
        }
    }
}

/// Goal: Prometheus can parse every expression of the dashboard, and every panel has one.
#[test]
fn promtool_takes_the_expressions_of_the_dashboard() {
    let text = std::fs::read_to_string(packaged("grafana/slipstream.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut rules = String::from("groups: [{ name: dashboard, rules: [\n");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{}", panel["title"]);
        for target in targets {
            // Grafana replaces its variables with the selected values.
            let expression =
                target["expr"].as_str().unwrap().replace("$job", ".*").replace("$instance", ".*");
            rules += &format!("{{ record: \"dashboard:{}\", expr: {} }},\n", rules.len(), json!(expression));
        }
    }
    rules += "] }]\n";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dashboard.yml");
    std::fs::write(&file, rules).unwrap();
    promtool(&["check", "rules", file.to_str().unwrap()], "");
}
