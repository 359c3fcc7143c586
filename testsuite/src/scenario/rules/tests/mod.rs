mod silent;

use std::path::Path;

use super::*;

/// Returns the error of a scenario with these further lines.
fn refused(lines: &str) -> String {
    let text = format!("name: a\ndescription: b\nduration: 30s\n{lines}");
    let text = if lines.contains("criteria:") { text } else { format!("{text}criteria: [equal_roots]\n") };
    match Scenario::parse(&text, Path::new("a.yaml")) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(error) => error.to_string(),
    }
}

/// Goal: numbers out of bounds are refused before they are used, whatever they are.
#[test]
fn numbers_out_of_bounds_are_refused() {
    for (lines, said) in [
        ("topology: { validators: 0 }\n", "from 1 to 32"),
        ("topology: { validators: 4294967295 }\n", "from 1 to 32"),
        ("topology: { groups: [{ name: a, count: 4294967295 }] }\n", "from 1 to 63"),
        ("topology: { groups: [{ name: a, count: 40 }, { name: b, count: 40 }] }\n", "more than 64 nodes"),
        ("topology: { accounts: 4294967295 }\n", "from 2 to 10000"),
        ("topology: { batch_interval_ms: 1 }\n", "from 20 to 60000"),
        ("topology: { ready_within: 11m }\n", "from 1s to 10m"),
        ("workload: [{ name: x, for: 29s, rate: { constant: 1000000 } }]\n", "29000000 transactions"),
        ("workload: [{ name: x, for: 29s, rate: { constant: 0 } }]\n", "must reach 1"),
        ("workload: [{ name: x, at: 10s, for: 25s, rate: { constant: 1 } }]\n", "ends after the scenario"),
        (
            "workload: [{ name: x, for: 9s, rate: { burst: { base: 1, peak: 2, period: 1s, peak_lasts: 2s } } }]\n",
            "does not fit",
        ),
        (
            "faults: [{ between: [1s, 2s], times: 4294967295, what: { kill: { nodes: [all] } } }]\n",
            "from 1 to 100",
        ),
        (
            "faults: [{ at: 1s, what: { link: { between: [[validator-0], [validator-1]], shape: { loss: 2 } } } }]\n",
            "from 0 to 1",
        ),
        ("criteria: [{ memory: { mib_max: -1 } }]\n", "above 0"),
        (
            "faults: [{ at: 1s, what: { slow_disk: { who: { nodes: [all] }, delay: 11s } } }]\n",
            "from 1ms to 10s",
        ),
        (
            "faults: [{ at: 1s, what: { clock_jump: { who: { nodes: [all] }, back: 10ms } } }]\n",
            "from 1s to 24h",
        ),
        ("faults: [{ at: 1s, what: { clock_jump: { who: { nodes: [all] } } } }]\n", "`ahead: 1h`"),
        (
            "faults: [{ at: 1s, what: { clock_jump: { who: { nodes: [all] }, ahead: 1h, back: 1h } } }]\n",
            "either",
        ),
        ("criteria: [{ head_age: { at_most: 1s, percent: 101 } }]\n", "at most 100"),
        ("faults: [{ at: 1s, for: 0s, what: { kill: { nodes: [all] } } }]\n", "from 100ms to 30s"),
        (
            "faults: [{ at: 10s, what: { restart: { rolling: { nodes: [validators], every: 7s } } } }]\n",
            "after the scenario",
        ),
        ("criteria: []\n", "equal_roots"),
        (
            "faults: [{ at: 1s, what: { lying_peers: { who: { nodes: [all] }, lie: forged_heads, count: 17 } } }]\n",
            "from 1 to 16",
        ),
        (
            "faults: [{ between: [1s, 9s], times: 100, what: { lying_peers: { who: { nodes: [all] }, lie: forged_heads } } }]\n",
            "more than 256 peers lie",
        ),
        (
            "faults: [{ between: [1s, 9s], times: 100, what: { lying_peers: { who: { nodes: [primary] }, lie: forged_heads, count: 16 } } }]\n",
            "more than 256 peers lie",
        ),
    ] {
        let error = refused(lines);
        assert!(error.contains(said), "{lines}{error}");
    }
}

/// Goal: a node never has more liars than it accepts, from whichever fault and at any time; liars that have left do not
/// count.
#[test]
fn a_node_takes_so_many_liars() {
    let fault = |at: u32, lasts: &str, who: &str, count: u32| {
        format!(
            "- {{ at: {at}s, {lasts}what: {{ lying_peers: {{ who: {{ nodes: [{who}] }}, lie: forged_heads, count: {count} }} }} }}\n"
        )
    };
    let faults = |last: &str| {
        let first: String = (1..5).map(|at| fault(at, "", "validator-1", 16)).collect();
        format!("topology: {{ validators: 2 }}\nfaults:\n{first}{last}")
    };
    for last in [fault(9, "", "all", 1), fault(9, "for: 1s, ", "primary", 1), fault(5, "", "validator-1", 1)]
    {
        let error = refused(&faults(&last));
        // Lines count from the first of the file: three before these, then `topology`, `faults` and the four faults.
        assert!(error.starts_with("a.yaml:10:") && error.contains("`validator-1` may have 65"), "{error}");
    }
    let taken = |faults: &str| {
        let text = format!("name: a\ndescription: b\nduration: 30s\ncriteria: [no_alarm]\n{faults}");
        Scenario::parse(&text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{faults}{error}"));
    };
    taken(&faults(&fault(9, "", "validator-0", 16)));
    // Faults end late: liars that come when others should leave may overlap with them.
    let after = |at: u32| {
        let first = fault(1, "for: 9s, ", "validator-1", 16).repeat(4);
        format!("topology: {{ validators: 2 }}\nfaults:\n{first}{}", fault(at, "", "validator-1", 1))
    };
    for at in [10, 14] {
        let error = refused(&after(at));
        assert!(
            error.contains("`validator-1` may have 65") && error.contains("end others 5s earlier"),
            "{error}"
        );
    }
    taken(&after(15));
    let one_after_another: String = (1..9).map(|at| fault(at * 2, "for: 2s, ", "all", 16)).collect();
    taken(&format!("topology: {{ validators: 2 }}\nfaults:\n{one_after_another}"));
}

/// Goal: unknown names are refused, with the existing names.
#[test]
fn names_are_checked() {
    for (lines, said) in [
        ("faults: [{ at: 1s, what: { kill: { nodes: [validator-7] } } }]\n", "validators, validator-0"),
        (
            "faults: [{ at: 1s, what: { kill: { nodes: [fullnodes] } } }]\n",
            "every node is a validator, so `fullnodes` names no node: write a group",
        ),
        (
            "faults: [{ at: 1s, what: { export_snapshot: nobody } }]\n",
            "called `nobody`; there are validator-0, validator-1",
        ),
        ("faults: [{ at: 1s, what: { export_snapshot: validators } }]\n", "such as `validator-0`"),
        (
            "faults: [{ at: 1s, what: { attack: { name: junk-transactions, victim: primary } } }]\n",
            "one fixed node is needed",
        ),
        ("faults: [{ at: 1s, what: { kill: { nodes: [] } } }]\n", "names no node"),
        ("faults: [{ at: 1s, what: { kill: { one_of: [primary] } } }]\n", "`primary` must stand alone"),
        (
            "faults: [{ at: 1s, what: { remove_validator: f } }]\ntopology: { groups: [{ name: f }] }\n",
            "never validates",
        ),
        (
            "faults: [{ at: 1s, what: { export_snapshot: validator-0 } }]\ntopology: { groups: [{ name: archive }] }\n",
            "`archive` is taken",
        ),
        ("faults: [{ at: 1s, what: { add_validator: validator-0 } }]\n", "part: candidate"),
        ("faults: [{ at: 1s, what: { full_disk: { nodes: [all] } } }]\n", "disk_mib"),
        ("faults: [{ at: 1s, what: { partition: { between: [[all], [validator-0]] } } }]\n", "both sides"),
        ("faults: [{ at: 1s, what: { slow_disk: { who: { nodes: [nobody] }, delay: 1s } } }]\n", "`nobody`"),
        (
            "topology: { groups: [{ name: f }] }\nfaults: [{ at: 1s, what: { lying_validator: { who: { nodes: [f] }, lie: garbage } } }]\n",
            "`f` does not validate",
        ),
        (
            "faults: [{ at: 1s, what: { lying_validator: { who: { nodes: [validator-1] }, lie: { twin: { heard_by: [validators] } } } } }]\n",
            "the liar itself",
        ),
        (
            "faults: [{ at: 1s, what: { lying_validator: { who: { nodes: [validator-1] }, lie: { twin: { heard_by: [] } } } } }]\n",
            "names no node",
        ),
        (
            "faults: [{ at: 1s, what: { lying_validator: { who: { nodes: [validator-1] }, lie: old_state } } }]\n",
            "`for: 20s`",
        ),
        (
            "faults: [{ at: 1s, what: { lying_validator: { who: { nodes: [validator-1] }, lie: wrong_root } } }, { at: 2s, what: { remove_validator: validator-2 } }]\n",
            "`remove_validator`",
        ),
        ("criteria: [{ convicted: { nodes: [nobody] } }]\n", "`nobody`"),
        ("criteria: [{ convicted: { nodes: [validator-1] } }]\n", "`lying_validator`"),
        (
            "topology: { validators: 1 }\nfaults: [{ at: 1s, what: { lying_peers: { who: { nodes: [all] }, lie: snapshot_drip } } }]\ncriteria: [no_alarm]\n",
            "one node",
        ),
        ("criteria: [{ liars_banned: { at_most: 9s } }]\n", "`lie: forged_heads`"),
        ("criteria: [{ liars_banned: { at_most: 9s, lie: snapshot_drip } }]\n", "name one of forged_heads"),
        (
            "faults: [{ at: 1s, what: { lying_peers: { who: { nodes: [validator-1] }, lie: corrupt_answers } } }]\ncriteria: [{ liars_banned: { at_most: 9s } }]\n",
            "no fault gives a node such liars",
        ),
        (
            "faults: [{ at: 1s, what: { lying_peers: { who: { nodes: [validator-1] }, lie: forged_heads } } }]\ncriteria: [{ liars_banned: { nodes: [validators], at_most: 9s } }]\n",
            "no fault gives `validator-0` such liars",
        ),
        ("topology: { groups: [{ name: validator-0 }] }\n", "is taken"),
        ("topology: { groups: [{ name: all }] }\n", "is taken"),
        ("topology: { groups: [{ name: Upper }] }\n", "lower-case"),
        ("topology: { groups: [{ name: ../a }] }\n", "lower-case"),
        ("topology: { groups: [{ name: a, behind: [b] }, { name: b }] }\n", "start later"),
        ("topology: { groups: [{ name: a, waypoint: true }] }\n", "joins: 20s"),
        ("topology: { config: { role: fullnode } }\n", "belongs to the harness"),
        ("topology: { config: { 'a b': 1 } }\n", "not a key of node.yaml"),
        ("topology: { links: [{ between: [here, there] }] }\n", "region: here"),
        ("workload: [{ name: x, for: 9s, rate: { constant: 1 }, mix: { gold: 1 } }]\n", "transfers"),
        ("criteria: [{ throughput: { phase: x, at_least: 1 } }]\n", "no phase `x`"),
        ("topology: { config: { network.peers: [] } }\n", "belongs to the harness"),
        ("criteria: [load_complete]\n", "there is no load"),
        ("topology: { validators: 1 }\ncriteria: [equal_roots]\n", "one node"),
        ("criteria: [{ catch_up: { nodes: [validators], at_most: 1s } }]\n", "`validator-0` neither joins"),
        (
            "faults: [{ at: 1s, what: { kill: { nodes: [all] } } }]\ncriteria: [{ catch_up: { nodes: [all], at_most: 1s } }]\n",
            "with `for`",
        ),
        (
            "workload: [{ name: x, for: 9s, rate: { constant: 1 } }]\ncriteria: [{ follow: { phase: x, percentile: p50, at_most: 1s } }]\n",
            "`followers: [fullnodes]`",
        ),
        (
            "workload: [{ name: x, for: 9s, rate: { constant: 1 } }]\ncriteria: [{ read: { phase: x, percentile: p50, at_most: 1s } }]\n",
            "`reads_per_second`",
        ),
        (
            "workload: [{ name: x, for: 9s, rate: { constant: 1 } }]\ncriteria: [{ new_heads: { phase: x, percentile: p50, at_most: 1s } }]\n",
            "`reads_per_second`",
        ),
        ("criteria: [{ history: { nodes: [all] } }]\n", "from_at_most"),
        ("workload: [{ name: x, for: 9s, rate: { constant: 1 }, followers: [nobody] }]\n", "`nobody`"),
        ("workload: [{ name: x, for: 9s, rate: { constant: 1 }, followers: [fullnodes] }]\n", "`fullnodes`"),
        ("workload: [{ name: x, for: 9s, rate: { constant: 1 }, follower: validator-0 }]\n", "followers"),
    ] {
        let error = refused(lines);
        assert!(error.contains(said), "{lines}{error}");
    }
}

/// Goal: keys and values that a node would refuse are refused when the file is read: alone, together with others, and in sections.
#[test]
fn keys_and_values_are_those_of_nodes() {
    const TOGETHER: &str = "topology: { groups: [{ name: f }], config: { storage.fsync: false }, settings: [{ nodes: [validators], config: { storage.fsync: true } }] }\n";
    for (lines, said) in [
        (
            "topology: { config: { storage.prune.body: 1 } }\n",
            "topology.config.storage.prune.body: there is no key `storage.prune.body`; the nearest is storage.prune.bodies",
        ),
        ("topology: { config: { storage: { prunes: 1 } } }\n", "topology.config.storage: "),
        ("topology: { config: { sync.mode: deltas } }\n", "topology.config.sync.mode: "),
        ("topology: { config: { sync.audit: 2 } }\n", "topology.config.sync.audit: 2 is not a share"),
        ("topology: { config: { storage.fsync: false } }\n", "may forget a vote"),
        (
            "topology: { groups: [{ name: f }], settings: [{ nodes: [f], config: { sync.forbid: [auto] } }] }\n",
            "topology.settings.0.config.sync.forbid: `auto` chooses among the modes",
        ),
        (
            "topology: { groups: [{ name: f, mode: replay }], settings: [{ nodes: [f], config: { preset: light } }] }\n",
            "topology.groups.0.mode: `sync.forbid` of `f`, which its `preset` may set, forbids `replay`",
        ),
        (
            "topology: { groups: [{ name: f, mode: snapshot, joins: 9s }], settings: [{ nodes: [f], config: { preset: archive } }] }\n",
            "topology.groups.0.mode: `sync.forbid` of `f`, which its `preset` may set, forbids `snapshot`",
        ),
        (
            "topology: { config: { network: { listen: 127.0.0.1:1 } } }\n",
            "network.listen belongs to the harness",
        ),
        (
            "topology: { settings: [{ nodes: [all], disk_mib: 128 }, { nodes: [validator-1], config: { storage.disk_free_min_mib: 512 } }] }\n",
            "topology.settings.0.disk_mib: 128 MiB are too small for `validator-1`",
        ),
    ] {
        let error = refused(lines);
        assert!(error.contains(said), "{lines}{error}");
    }
    let fine = |lines: &str| {
        let text = format!("name: a\ndescription: b\nduration: 30s\ncriteria: [equal_roots]\n{lines}");
        Scenario::parse(&text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{lines}{error}"));
    };
    // A setting that is wrong only for validators is right for the rest, and keys of another release are unknown here.
    fine(TOGETHER);
    fine("topology: { settings: [{ nodes: [all], program: before, config: { storage.no_such: 1 } }] }\n");
    fine("topology: { settings: [{ nodes: [all], disk_mib: 128 }] }\n");
}

/// Goal: an unknown attack is refused, with the intended name.
#[test]
fn attacks_are_those_of_the_siege() {
    for (lines, said) in [
        (
            "faults: [{ at: 1s, what: { attack: { name: junk-transaction, victim: validator-0 } } }]\n",
            "the nearest is `junk-transactions`",
        ),
        (
            "topology: { groups: [{ name: f, joins: 2s, among: corrupt-answer }] }\n",
            "topology.groups.0.among: there is no attack `corrupt-answer`; the nearest is `corrupt-answers`",
        ),
    ] {
        let error = refused(lines);
        assert!(error.contains(said), "{lines}{error}");
    }
}

/// Goal: an event for a node that has not joined yet is refused when the file is read, and not half-way through the
/// run.
#[test]
fn nobody_is_met_before_it_joins() {
    const LATE: &str = "topology: { groups: [{ name: late, joins: 20s }] }\n";
    for lines in [
        "faults: [{ at: 19s, what: { kill: { nodes: [late] } } }]\n",
        "faults: [{ between: [1s, 25s], what: { kill: { one_of: [late] } } }]\n",
        "faults: [{ at: 1s, what: { attack: { name: junk-transactions, victim: late } } }]\n",
        "faults: [{ at: 1s, what: { lying_peers: { who: { nodes: [late] }, lie: forged_heads } } }]\n",
        "faults: [{ at: 1s, what: { export_snapshot: late } }]\n",
        "faults: [{ at: 1s, what: { lying_validator: { who: { nodes: [validator-0] }, lie: { twin: { heard_by: [late] } } } } }]\n",
        "workload: [{ name: x, for: 9s, rate: { constant: 1 }, to: [late] }]\n",
        "workload: [{ name: x, for: 9s, rate: { constant: 1 }, followers: [validator-0, late] }]\n",
    ] {
        let error = refused(&format!("{LATE}{lines}"));
        assert!(error.contains("joins at 20s"), "{lines}{error}");
    }
    let error = refused("topology: { groups: [{ name: a, joins: 9s }, { name: b, behind: [a] }] }\n");
    assert!(error.contains("joins at 9s"), "{error}");
    let fine =
        "name: a\ndescription: b\nduration: 30s\ncriteria: [{ catch_up: { nodes: [late], at_most: 1s } }]\n";
    let fault = "faults: [{ at: 20s, for: 1s, what: { pause: { nodes: [late] } } }]\n";
    Scenario::parse(&format!("{fine}{LATE}{fault}"), Path::new("a.yaml"))
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Goal: the number of curves is bounded, so that a report can show the latencies at each follower of each phase and
/// can be read again.
#[test]
fn curves_are_bounded() {
    let phases = |count: usize| {
        let phase = |index: usize| {
            format!(
                "- {{ name: p{index}, for: 9s, rate: {{ constant: 1 }}, followers: [all], reads_per_second: 1 }}\n"
            )
        };
        format!(
            "topology: {{ validators: 32, accounts: 1000 }}\nworkload:\n{}",
            (0..count).map(phase).collect::<String>()
        )
    };
    // Each phase has 132: commits, 32 followers, and three for each node that is read from.
    assert!(refused(&phases(16)).contains("more than 2048 curves"));
    let text = format!("name: a\ndescription: b\nduration: 30s\ncriteria: [no_alarm]\n{}", phases(15));
    Scenario::parse(&text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
}

/// Goal: the number of events is bounded, so that a report can show all.
#[test]
fn what_happens_is_bounded() {
    let fault = "faults: [{ between: [1s, 9s], times: 100, what: { restart: { nodes: [all] } } }]\n";
    assert!(refused(&format!("topology: {{ validators: 6 }}\n{fault}")).contains("500 events"));
}
