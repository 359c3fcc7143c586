use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::*;
use crate::{
    report::{AuditFigures, CatchUp, LiarOpinion, Series},
    scenario::criteria::{Convictions, Way},
};

/// Returns a scenario with this one criterion, two validators, a candidate `late`, and one phase `main`.
fn scenario(criterion: &str) -> Scenario {
    let text = format!(
        "name: a\ndescription: b\nduration: 30s\ntopology:\n  validators: 2\n  groups: [{{ name: late, part: candidate, joins: 5s }}]\n\
         workload: [{{ name: main, for: 9s, rate: {{ constant: 100 }}, reads_per_second: 1, followers: [validator-1] }}]\n\
         faults:\n- {{ at: 1s, for: 1s, what: {{ lying_validator: {{ who: {{ nodes: [validator-1] }}, lie: old_state }} }} }}\n\
         - {{ at: 2s, for: 1s, what: {{ kill: {{ nodes: [validator-0] }} }} }}\n\
         - {{ at: 5s, for: 1s, what: {{ pause: {{ one_of: [late, validator-1] }} }} }}\n\
         - {{ at: 6s, what: {{ lying_peers: {{ who: {{ nodes: [late] }}, lie: forged_heads }} }} }}\n\
         - {{ at: 7s, what: {{ lying_peers: {{ who: {{ one_of: [validators] }}, lie: garbage_answers, count: 2 }} }} }}\n\
         - {{ at: 8s, what: {{ lying_peers: {{ who: {{ nodes: [late] }}, lie: corrupt_answers }} }} }}\n\
         - {{ at: 9s, what: {{ add_validator: late }} }}\n- {{ at: 10s, what: {{ remove_validator: late }} }}\n\
         - {{ at: 11s, what: {{ add_validator: late }} }}\ncriteria:\n- {criterion}\n"
    );
    Scenario::parse(&text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"))
}

fn series(points: &[(u64, f64)]) -> Series {
    Series { unit: String::new(), points: points.to_vec() }
}

fn node(name: &str, head: &[(u64, f64)], age: &[(u64, f64)], memory: &[(u64, f64)]) -> NodeSeries {
    NodeSeries {
        name: name.to_owned(),
        role: "validator".to_owned(),
        head: series(head),
        head_age: series(age),
        memory: series(memory),
        ..NodeSeries::default()
    }
}

fn liar(node: &str, lie: &str, banned_after_seconds: Option<f64>) -> LiarOpinion {
    LiarOpinion {
        node: node.to_owned(),
        liar: "0a1b2c3d4e".to_owned(),
        lie: lie.to_owned(),
        at_ms: 6_000,
        banned_after_seconds,
        reason: None,
        score: None,
        failures: 0,
    }
}

/// Returns a report in which heads stand still from 2 s to 7 s, and one validator is slow and uses much memory.
fn report() -> RunReport {
    let curve =
        |seconds| CatchUp { node: "late".to_owned(), mode: "auto".to_owned(), seconds, behind: series(&[]) };
    RunReport {
        seconds: 10.0,
        nodes: vec![
            node("validator-0", &[(0, 1.0), (2_000, 5.0), (7_000, 6.0)], &[(0, 0.5), (1, 9.0)], &[(0, 90.0)]),
            node("validator-1", &[(1_000, 4.0), (9_000, 8.0)], &[(0, 0.1)], &[(0, 300.0), (1, 100.0)]),
        ],
        catch_up: vec![curve(Some(2.0)), curve(Some(4.0))],
        liars: vec![
            liar("late", "forged_heads", Some(1.5)),
            liar("validator-1", "garbage_answers", Some(2.5)),
            liar("late", "corrupt_answers", None),
            liar("late", "forged-heads", None),
        ],
        ..RunReport::default()
    }
}

fn findings() -> Findings {
    let reads = |ms| ReadTotals { ms: Some(ms), failed_share: 0.0 };
    let quantiles = Quantiles { p50: 100.0, p90: 200.0, p95: 300.0, p99: 900.0, max: 5_000.0 };
    let phase = PhaseTotals {
        name: "main".to_owned(),
        accepted: 10,
        committed: 10,
        committed_per_second: 42.0,
        audit: AuditFigures { receipts: 10, balances: 4, ..AuditFigures::default() },
        commit_ms: Some(quantiles),
        reads: BTreeMap::from([
            (Way::Http, reads(Quantiles { p50: 9.0, ..quantiles })),
            (Way::Websocket, reads(Quantiles { p50: 5.0, p99: 20.0, ..quantiles })),
        ]),
        new_heads: ReadTotals { ms: Some(Quantiles { p99: 40.0, ..quantiles }), failed_share: 0.005 },
        ..PhaseTotals::default()
    };
    let all = |value: u64| {
        ["validator-0", "validator-1", "late"].map(|name| (name.to_owned(), value)).into_iter().collect()
    };
    Findings {
        phases: vec![phase],
        compared_at: Some(9),
        compared: 3,
        history: all(40),
        epochs: all(2),
        convictions: convicts("validator-0", "validator-1"),
        ..Findings::default()
    }
}

/// Returns the proof of `one` that `other` signed two orders.
fn convicts(one: &str, other: &str) -> Convictions {
    let kinds = BTreeSet::from(["orders".to_owned()]);
    BTreeMap::from([(one.to_owned(), BTreeMap::from([(other.to_owned(), kinds)]))])
}

fn passes(criterion: &str, report: &RunReport, findings: &Findings) -> bool {
    let results = judge(&scenario(criterion), report, findings);
    let [result] = &results[..] else { panic!("{results:?}") };
    assert!(!result.measured.is_empty() && !result.wanted.is_empty(), "{result:?}");
    result.passed
}

/// Goal: each criterion holds at its limit, and not beyond it.
#[test]
fn each_criterion_has_its_limit() {
    let (report, findings) = (report(), findings());
    for (criterion, passed) in [
        ("{ throughput: { phase: main, at_least: 42 } }", true),
        ("{ throughput: { phase: main, at_least: 42.1 } }", false),
        ("{ commit: { phase: main, percentile: p99, at_most: 900ms } }", true),
        ("{ commit: { phase: main, percentile: p99, at_most: 899ms } }", false),
        ("{ commit: { phase: main, percentile: max, at_most: 900ms } }", false),
        ("{ follow: { phase: main, percentile: p50, at_most: 1h } }", false),
        ("{ read: { phase: main, percentile: p50, at_most: 10ms } }", true),
        ("{ read: { phase: main, percentile: p99, at_most: 10ms } }", false),
        ("{ read: { phase: main, percentile: p99, at_most: 20ms, way: websocket } }", true),
        ("{ read: { phase: main, percentile: p99, at_most: 20ms, way: http } }", false),
        ("{ new_heads: { phase: main, percentile: p99, at_most: 40ms } }", true),
        ("{ new_heads: { phase: main, percentile: p99, at_most: 39ms } }", false),
        // One in two hundred heads was missed.
        ("{ new_heads: { phase: main, percentile: max, at_most: 1h } }", false),
        ("load_complete", true),
        ("{ catch_up: { nodes: [late], at_most: 4s } }", true),
        ("{ catch_up: { nodes: [late], at_most: 3s } }", false),
        ("{ catch_up: { nodes: [validator-0], at_most: 1h } }", false),
        // The seed may draw validator-1 but did not. A list of such nodes alone fails: somebody must have been behind.
        ("{ catch_up: { nodes: [late, validator-1], at_most: 4s } }", true),
        ("{ catch_up: { nodes: [validator-1], at_most: 1h } }", false),
        ("{ head_age: { nodes: [validators], at_most: 9s } }", true),
        ("{ head_age: { nodes: [validators], at_most: 8s } }", false),
        ("{ head_age: { nodes: [validators], at_most: 1s, percent: 50 } }", true),
        ("{ head_age: { at_most: 1h } }", false),
        ("{ no_progress: { at_most: 5s } }", true),
        ("{ no_progress: { at_most: 4s } }", false),
        ("{ memory: { nodes: [validators], mib_max: 300 } }", true),
        ("{ memory: { nodes: [validators], mib_max: 299 } }", false),
        ("{ history: { nodes: [all], from_at_most: 40, from_at_least: 40 } }", true),
        ("{ history: { nodes: [all], from_at_most: 39 } }", false),
        ("{ history: { nodes: [late], from_at_least: 41 } }", false),
        ("{ epoch: { at_least: 2 } }", true),
        ("{ epoch: { at_least: 3 } }", false),
        ("equal_roots", true),
        ("nobody_honest_blamed", true),
        ("no_alarm", true),
        ("{ convicted: { nodes: [validator-1] } }", true),
        ("{ convicted: { nodes: [validator-1], of: [orders] } }", true),
        ("{ convicted: { nodes: [validator-1], of: [orders, prepares] } }", false),
        ("{ liars_banned: { at_most: 2500ms } }", true),
        ("{ liars_banned: { at_most: 2400ms } }", false),
        ("{ liars_banned: { nodes: [late], at_most: 1500ms } }", true),
        ("{ liars_banned: { at_most: 1500ms, lie: forged_heads } }", true),
        ("{ liars_banned: { at_most: 1h, lie: corrupt_answers } }", false),
        // The seed drew the other validator.
        ("{ liars_banned: { nodes: [validator-0], at_most: 1h } }", false),
        ("{ liars_banned: { nodes: [validators], at_most: 2500ms } }", true),
    ] {
        assert_eq!(passes(criterion, &report, &findings), passed, "{criterion}");
    }
}

/// Goal: if a node should hear two lies, a ban for one of them does not count for the other.
#[test]
fn a_ban_is_of_the_lie_that_was_to_be_told() {
    let mut report = report();
    report.liars = vec![liar("late", "garbage_answers", Some(1.0))];
    let criterion = "{ liars_banned: { at_most: 1h } }";
    assert!(!passes(criterion, &report, &findings()));
    report.liars.push(liar("late", "forged_heads", Some(1.0)));
    assert!(passes(criterion, &report, &findings()));
}

/// Goal: a criterion without a measurement fails, whatever the limit.
#[test]
fn what_was_not_measured_fails() {
    let (report, findings) = (RunReport::default(), Findings::default());
    for criterion in [
        "{ throughput: { phase: main, at_least: 0.1 } }",
        "{ commit: { phase: main, percentile: p50, at_most: 1h } }",
        "{ new_heads: { phase: main, percentile: p50, at_most: 1h } }",
        "load_complete",
        "{ catch_up: { nodes: [late], at_most: 1h } }",
        "{ head_age: { at_most: 1h } }",
        "{ no_progress: { at_most: 1h } }",
        "{ memory: { mib_max: 100000 } }",
        "{ history: { nodes: [all], from_at_least: 1 } }",
        "{ epoch: { at_least: 0 } }",
        "equal_roots",
        "{ convicted: { nodes: [validator-1] } }",
        "{ liars_banned: { at_most: 1h } }",
        "{ liars_banned: { nodes: [validators], at_most: 1h } }",
    ] {
        assert!(!passes(criterion, &report, &findings), "{criterion}");
    }
}

/// Goal: criteria fail if only one node's state was compared, if a percentile falls on a missing answer, or if a node
/// never answered the watch.
#[test]
fn half_of_a_measurement_fails() {
    let report = report();
    let mut findings = findings();
    findings.compared = 1;
    assert!(!passes("equal_roots", &report, &findings));
    findings.unseen.push("late".to_owned());
    assert!(!passes("nobody_honest_blamed", &report, &findings) && !passes("no_alarm", &report, &findings));
    let read = "{ read: { phase: main, percentile: p50, at_most: 10ms } }";
    let mut fail = |share: f64| {
        findings.phases[0].reads.entry(Way::Http).or_default().failed_share = share;
        passes(read, &report, &findings)
    };
    assert!(fail(0.5));
    assert!(!fail(0.51), "the median has no answer");
    let commit =
        |percentile: &str| format!("{{ commit: {{ phase: main, percentile: {percentile}, at_most: 1h }} }}");
    findings.phases[0].commit_missing_share = 0.02;
    assert!(passes(&commit("p95"), &report, &findings) && !passes(&commit("p99"), &report, &findings));
}

/// Goal: a load is complete only if everything was compared, and nothing is wrong, foreign or lost.
#[test]
fn the_audit_must_be_clean_and_whole() {
    let verdict = |change: fn(&mut PhaseTotals)| {
        let mut findings = findings();
        change(&mut findings.phases[0]);
        let result = judge(&scenario("load_complete"), &report(), &findings).remove(0);
        (result.passed, result.measured)
    };
    let (passed, measured) = verdict(|_| {});
    assert!(passed && measured.ends_with("10 receipts and 4 balances are right"), "{measured}");
    type Change = fn(&mut PhaseTotals);
    let changes: [(Change, &str); 9] = [
        (|phase| phase.audit.receipts_failed = 1, "1 failed"),
        (|phase| phase.audit.receipts_wrong = 1, "1 with wrong receipts"),
        (|phase| phase.audit.duplicates = 1, "1 committed twice"),
        (|phase| phase.audit.lost = 1, "1 lost"),
        (|phase| phase.audit.foreign = 1, "1 foreign"),
        (|phase| phase.audit.balances_wrong = 1, "1 wrong balances"),
        (|phase| phase.audit.receipts = 9, "9 receipts compared"),
        (|phase| phase.audit.balances = 0, "no balances compared"),
        (|phase| phase.given_up = 1, "1 given up, 0 wrong"),
    ];
    for (change, said) in changes {
        let (passed, measured) = verdict(change);
        assert!(!passed && measured.contains(said), "{said}: {measured}");
    }
}

/// Goal: a load that ended with an error is not complete, even if the others are.
#[test]
fn a_load_without_figures_is_not_complete() {
    let text = "name: a\ndescription: b\nduration: 30s\ncriteria: [load_complete]\n\
        workload:\n- { name: main, for: 9s, rate: { constant: 1 } }\n- { name: late, for: 9s, rate: { constant: 1 } }\n";
    let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let mut findings = findings();
    let failed = judge(&scenario, &report(), &findings).remove(0);
    assert!(!failed.passed && failed.measured.starts_with("late: it reported no figures"), "{failed:?}");
    findings.phases.push(PhaseTotals { name: "late".to_owned(), ..findings.phases[0].clone() });
    let passed = judge(&scenario, &report(), &findings).remove(0);
    assert!(passed.passed, "{passed:?}");
}

/// Goal: a removed validator may be off for good. A node that validates, or should be up, must report its epoch.
#[test]
fn who_left_the_validators_may_be_off() {
    let text = "name: a\ndescription: b\nduration: 30s\ncriteria: [{ epoch: { at_least: 2 } }]\n\
        topology: { validators: 2, groups: [{ name: next, part: candidate }] }\n\
        faults: [{ at: 1s, what: { add_validator: next } }, { at: 2s, what: { remove_validator: validator-0 } }]\n";
    let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let verdict = |silent: &str, held: &[&str]| {
        let mut epochs =
            BTreeMap::from(["validator-0", "validator-1", "next"].map(|name| (name.to_owned(), 2)));
        epochs.remove(silent);
        let held = held.iter().map(|name| (*name).to_owned()).collect();
        let result = judge(&scenario, &report(), &Findings { epochs, held, ..Findings::default() }).remove(0);
        (result.passed, result.measured)
    };
    assert_eq!(verdict("", &[]), (true, "2, all nodes".to_owned()));
    assert_eq!(
        verdict("validator-0", &["validator-0"]),
        (true, "2, 2 of 3 nodes; the others are down".to_owned())
    );
    assert!(!verdict("validator-0", &[]).0, "nothing holds it");
    let (passed, measured) = verdict("next", &["next"]);
    assert!(!passed && measured.contains("next did not answer"), "it is to vote: {measured}");
    assert!(!verdict("validator-1", &["validator-1"]).0);
}

/// Goal: results tell criteria with similar subjects apart by name.
#[test]
fn criteria_of_one_name_are_told_apart() {
    let text = "name: a\ndescription: b\nduration: 30s\n\
        faults: [{ at: 1s, what: { lying_peers: { who: { nodes: [all] }, lie: forged_heads } } }]\n\
        criteria:\n- head_age: { at_most: 5s }\n- no_progress: { at_most: 5s }\n- head_age: { at_most: 9s, percent: 90 }\n\
        - no_progress: { at_most: 9s }\n- no_progress: { at_most: 20s }\n- liars_banned: { at_most: 5s }\n\
        - liars_banned: { nodes: [all], at_most: 5s, lie: forged_heads }\n";
    let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let results = judge(&scenario, &RunReport::default(), &Findings::default());
    let names: Vec<&str> = results.iter().map(|result| result.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "head_age of all",
            "no_progress",
            "head_age of all (2)",
            "no_progress (2)",
            "no_progress (3)",
            "liars_banned",
            "liars_banned of all by forged_heads"
        ]
    );
}

/// Goal: the kernel's peak counts even if no sample saw it.
#[test]
fn memory_is_the_kernels_peak() {
    let mut report = report();
    let memory = "{ memory: { nodes: [validator-0], mib_max: 100 } }";
    assert!(passes(memory, &report, &findings()));
    report.nodes[0].memory_peak_mib = Some(100.5);
    assert!(!passes(memory, &report, &findings()));
    report.nodes[0].memory = Series::default();
    report.nodes[0].memory_peak_mib = Some(99.5);
    assert!(passes(memory, &report, &findings()));
}

#[test]
fn what_was_found_is_told() {
    let mut findings = findings();
    findings.apart = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
    findings.blamed = vec!["one banned two: lied".to_owned()];
    findings.alarms = vec!["one: batch 9".to_owned()];
    (findings.phases[0].committed, findings.phases[0].is_limited_by_generators) = (9, true);
    findings.epochs.insert("late".to_owned(), 3);
    let mut report = report();
    report.catch_up[1].seconds = None;
    report.liars.retain(|it| it.lie != "forged_heads");
    for (criterion, said) in [
        ("equal_roots", "a; b; c; and 1 more"),
        ("nobody_honest_blamed", "one banned two: lied"),
        ("no_alarm", "one: batch 9"),
        ("load_complete", "9 of 10 committed"),
        ("{ throughput: { phase: main, at_least: 43 } }", "the generators"),
        ("{ epoch: { at_least: 1 } }", "late is in 3"),
        (
            "{ convicted: { nodes: [validator-1], of: [commits] } }",
            "validator-0 has no proof that validator-1 signed two commits",
        ),
        ("{ catch_up: { nodes: [late], at_most: 1h } }", "late did not reach the head"),
        (
            "{ liars_banned: { at_most: 1h, lie: corrupt_answers } }",
            "late did not ban 0a1b2c3d4e (corrupt_answers)",
        ),
        ("{ liars_banned: { at_most: 1h } }", "late met no liar"),
    ] {
        let result = &judge(&scenario(criterion), &report, &findings)[0];
        assert!(!result.passed && result.measured.contains(said), "{result:?}");
    }
}
