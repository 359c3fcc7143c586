use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::{
    load::{Cause, HeadNews},
    scenario::engine::curves::tests::{latency, summary},
};

/// Goal: the slowest follower counts; one that showed nothing has missed everything.
#[test]
fn the_slowest_follower_counts() {
    let mut run = summary("near");
    let of = |run: &LoadSummary| {
        let mut totals = PhaseTotals::default();
        latencies(&mut totals, run);
        (totals.follow_ms.map(|ms| ms.p50), totals.follow_missing_share)
    };
    run.follow_ms.insert("far".to_owned(), Some(Percentiles { count: 4, ..latency(70.0) }));
    run.follow_ms.insert("near".to_owned(), Some(Percentiles { count: 3, ..latency(50.0) }));
    assert_eq!(of(&run), (Some(70.0), 0.25));
    run.follow_ms.insert("silent".to_owned(), None);
    assert_eq!(of(&run), (Some(70.0), 1.0));
    run.follow_ms.clear();
    assert_eq!(of(&run), (None, 0.0), "nobody follows");
}

/// Goal: for announced heads, the slowest node counts, and so do its missed heads.
#[test]
fn the_slowest_subscription_counts() {
    let mut run = summary("near");
    let news = HeadNews {
        missed: 0,
        news_ms: Some(Percentiles { count: 4, ..latency(50.0) }),
        ..run.news[0].clone()
    };
    let late =
        HeadNews { missed: 1, news_ms: Some(Percentiles { count: 4, ..latency(70.0) }), ..news.clone() };
    run.news = vec![late, news];
    let mut totals = PhaseTotals::default();
    answers(&mut totals, &run);
    let ReadTotals { ms, failed_share } = totals.new_heads;
    assert_eq!((ms.map(|ms| ms.p50), failed_share), (Some(70.0), 0.25));
}

/// Goal: a search overloads the chain. Given-up transactions and reads there fail no criterion; accepted and lost
/// transactions do.
#[test]
fn a_search_is_judged_at_the_rate_that_it_found() {
    let rate = json!({ "saturation": { "from": 2, "step_seconds": 2 } });
    let phase = json!({ "name": "search", "for": "30s", "rate": rate });
    let phase: Phase = serde_json::from_value(phase).unwrap();
    let best = summary("far");
    let mut overload = LoadSummary { offered_per_second: 4.0, given_up: 7, ..summary("far") };
    overload.reads[0].read_ms = Some(Percentiles { count: 8, ..latency(9_000.0) });
    overload.news[0].missed = 10;
    let of = |found, steps: &[&LoadSummary]| {
        let steps = steps.iter().map(|step| (*step).clone()).collect();
        let saturation = Saturation { found, rule: Rule::default(), steps };
        searched(&phase, &[0, 2_000], &saturation).totals
    };
    let found = Found::Sustained { rate: 2, failed: 4, cause: Cause::GivenUp };
    let (whole, alone) = (of(found, &[&best, &overload]), of(found, &[&best]));
    assert_eq!((whole.given_up, whole.accepted, whole.committed), (0, 8, 8));
    assert!(!alone.reads.is_empty() && alone.new_heads.ms.is_some(), "{alone:?}");
    assert_eq!((whole.reads, whole.new_heads), (alone.reads, alone.new_heads));
    // Not even the first rate was sustained: no step has figures for reads.
    let nothing = Found::Nothing { lowest: 4, cause: Cause::GivenUp };
    assert!(of(nothing, &[&overload]).reads.is_empty());
    let given_up = LoadSummary { given_up: 7, ..summary("far") };
    assert_eq!(ran(&phase, 0, &given_up).totals.given_up, 7, "any other load is to lose nothing");
}

#[test]
fn who_commits_are_read_from_follows_itself() {
    let mut run = LoadSummary {
        follow_ms: BTreeMap::new(),
        follow_per_second: BTreeMap::new(),
        follow_points: BTreeMap::new(),
        ..summary("near")
    };
    run.reads[0].node = "http://a:1".to_owned();
    run.news[0].node = "http://a:1".to_owned();
    name_first(&mut run, "http://a:1", "first", true);
    assert_eq!((run.reads[0].node.as_str(), run.news[0].node.as_str()), ("first", "first"));
    let total = Total { per_second: 2.0, latency_ms: run.commit_ms };
    let found = curves("main", &[(0, &run)], (total, Some(&run)));
    let [commit, follow, ..] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&follow.p50, follow.total), (&commit.p50, Some(total)));
    assert_eq!(follow.name, "follow main at first");
    let rows = PhaseFigures::of("main", &run).latencies;
    assert!(rows.iter().any(|row| row.of == "follow first" && row.ms == run.commit_ms), "{rows:?}");
}

/// Goal: generators that fall behind and send the rest later are detected.
#[test]
fn what_left_late_was_not_sent_in_time() {
    let late = LoadSummary { sent: 4, sent_per_second: 1.0, ..summary("near") };
    let figures = PhaseFigures::of("main", &late);
    assert_eq!((figures.offered, figures.sent), (2.0, 1.0));
}

#[test]
fn a_network_that_prunes_is_audited_sooner() {
    let mut topology = Topology::default();
    assert!(audit_behind(&topology) > 1_000);
    for (key, value) in [
        ("storage.prune", json!({ "receipts": 200 })),
        ("storage.prune.receipts", json!(200)),
        ("storage", json!({ "prune": { "receipts": 200 } })),
    ] {
        topology.config = [(key.to_owned(), value)].into();
        assert_eq!(audit_behind(&topology), AUDIT_BEHIND_PRUNED, "{key}");
    }
    topology.config = [("storage".to_owned(), json!({ "fsync": true }))].into();
    assert!(audit_behind(&topology) > 1_000);
}

/// Goal: phases one after the other have no higher rate together than each alone, two at once do, and a pause between
/// them does not count.
#[test]
fn the_harness_is_measured_while_it_has_something_to_send() {
    let end = |due, sent, spans: &[(u64, u64)]| PhaseEnd {
        totals: PhaseTotals::default(),
        due,
        sent,
        spans: spans.to_vec(),
        curves: Vec::new(),
        figures: Vec::new(),
        search: None,
    };
    let figures = |ends: &[PhaseEnd]| (harness(ends).offered, harness(ends).achieved);
    let (first, second) = (end(1_000.0, 1_000.0, &[(0, 10_000)]), end(1_000.0, 900.0, &[(20_000, 30_000)]));
    assert_eq!(figures(&[first, second]), (100.0, 95.0));
    let (first, second) = (end(1_000.0, 1_000.0, &[(0, 10_000)]), end(500.0, 500.0, &[(5_000, 10_000)]));
    assert_eq!(figures(&[first, second]), (150.0, 150.0));
    assert_eq!(figures(&[]), (0.0, 0.0));
}
