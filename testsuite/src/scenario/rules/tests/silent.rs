//! Settings that would silently do nothing, and criteria that nothing could meet.

use super::*;
use crate::scenario::fault::PeerLie;

fn accepted(lines: &str) {
    let text = format!("name: a\ndescription: b\nduration: 30s\n{lines}");
    let text = if lines.contains("criteria:") { text } else { format!("{text}criteria: [equal_roots]\n") };
    Scenario::parse(&text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{text}{error}"));
}

fn all_refused(wrong: &[(&str, &str)]) {
    for (lines, said) in wrong {
        let error = refused(lines);
        assert!(error.contains(said), "{lines}{error}");
    }
}

/// Goal: servers that no node knows would attack nobody, and attackers among peers would attack another node: both are
/// refused.
#[test]
fn servers_lie_to_whom_is_told_of_them_and_others_attack() {
    const GROUP: &str = "topology: { groups: [{ name: f }] }\n";
    let attack = |name: &str| {
        format!("{GROUP}faults: [{{ at: 1s, for: 9s, what: {{ attack: {{ name: {name}, victim: f }} }} }}]\n")
    };
    let among = |name: &str| format!("topology: {{ groups: [{{ name: f, joins: 9s, among: {name} }}] }}\n");
    let servers = PeerLie::ALL.iter().map(|lie| lie.of_program());
    for name in crate::scenario::ATTACKS.iter().copied().chain(servers) {
        let (attacks, stands) = (attack(name), among(name));
        match PeerLie::of_attack(name) {
            Some(lie) => {
                let error = refused(&attacks);
                let instead = format!("`lying_peers: {{ who: {{ nodes: [f] }}, lie: {} }}`", lie.name());
                assert!(error.contains("faults.0.what.attack.name: ") && error.contains(&instead), "{error}");
                accepted(&stands);
            }
            None => {
                let error = refused(&stands);
                assert!(
                    error.contains("topology.groups.0.among: ") && error.contains("as `attack`"),
                    "{error}"
                );
                assert!(error.contains("busy-servers"), "names those that can: {error}");
                accepted(&attacks);
            }
        }
    }
}

/// Goal: a validator that must be convicted tells a lie that leaves evidence of the required statements.
#[test]
fn nobody_is_convicted_without_evidence() {
    let convicted = |lie: &str, of: &str| {
        format!(
            "faults: [{{ at: 1s, for: 9s, what: {{ lying_validator: {{ who: {{ one_of: [validator-2] }}, lie: {lie} }} }} }}]\n\
             criteria: [{{ convicted: {{ nodes: [validator-2]{of} }} }}]\n"
        )
    };
    for lie in [
        "wrong_root",
        "garbage",
        "split_votes",
        "complaints",
        "hidden_prepares",
        "invented_prepares",
        "empty_batches",
    ] {
        let error = refused(&convicted(lie, ", of: [commits]"));
        assert!(error.contains("criteria.0.convicted.nodes: no lie of `validator-2`"), "{error}");
        assert!(error.contains("`double_vote`"), "names those that do: {error}");
    }
    for (lie, of) in [("double_vote", "orders"), ("anything", "prepares, commits")] {
        let error = refused(&convicted(lie, &format!(", of: [{of}]")));
        assert!(error.contains("of two ") && error.contains("only of prepares"), "{error}");
    }
    for (lie, of) in [
        ("double_vote", ", of: [prepares]"),
        ("anything", ""),
        ("old_state", ", of: [commits]"),
        ("{ twin: { heard_by: [validator-1] } }", ", of: [orders]"),
    ] {
        accepted(&convicted(lie, of));
    }
    // Two lies of one validator combined, and those of whichever validator is primary at that time.
    let faults = "faults:\n- { at: 1s, for: 2s, what: { lying_validator: { who: { nodes: [primary] }, lie: { twin: { heard_by: [validator-1] } } } } }\n\
                  - { at: 5s, for: 2s, what: { lying_validator: { who: { nodes: [validator-2] }, lie: complaints } } }\n";
    accepted(&format!("{faults}criteria: [{{ convicted: {{ nodes: [validator-2], of: [orders] }} }}]\n"));
}

/// Goal: the chain keeps at least one validator, every change is possible, and each epoch has a change that begins it.
#[test]
fn validators_change_as_they_can() {
    const GROUPS: &str = "groups: [{ name: f }, { name: c, part: candidate }]";
    let changes = |count: u32, faults: &[(u32, &str, &str)], criteria: &str| {
        let fault = |(at, what, who): &(u32, &str, &str)| {
            format!("- {{ at: {at}s, what: {{ {what}_validator: {who} }} }}\n")
        };
        let faults: String = faults.iter().map(fault).collect();
        format!("topology: {{ validators: {count}, {GROUPS} }}\nfaults:\n{faults}{criteria}")
    };
    let (first, second) = ((5, "remove", "validator-0"), (9, "remove", "validator-1"));
    for (lines, said) in [
        (changes(1, &[first], ""), "faults.0.what.remove_validator: `validator-0` is the last validator"),
        (
            changes(2, &[second, first], ""),
            "faults.0.what.remove_validator: `validator-1` is the last validator",
        ),
        (changes(2, &[first, (7, "remove", "validator-0")], ""), "`validator-0` does not validate at that"),
        (changes(2, &[(5, "remove", "c"), (9, "add", "c")], ""), "`c` does not validate at that time"),
        (
            changes(2, &[(5, "add", "c"), (9, "add", "c")], ""),
            "faults.1.what.add_validator: `c` validates already",
        ),
        (
            changes(2, &[(5, "add", "c")], "criteria: [{ epoch: { at_least: 2 } }]\n"),
            "criteria.0.epoch.at_least: the chain begins in epoch 0",
        ),
    ] {
        let error = refused(&lines);
        assert!(error.contains(said), "{lines}{error}");
    }
    all_refused(&[("criteria: [{ epoch: { at_least: 1 } }]\n", "change its validators 0 times")]);
    accepted("criteria: [{ epoch: { at_least: 0 } }]\n");
    accepted(&changes(
        1,
        &[(9, "remove", "validator-0"), (5, "add", "c")],
        "criteria: [{ epoch: { at_least: 2 } }]\n",
    ));
}

/// Goal: every setting is applied or refused: a name matches one node or group, a region has a distance, and no key is
/// without effect.
#[test]
fn nothing_is_left_out_in_silence() {
    const LOAD: &str = "workload: [{ name: x, for: 9s, rate: { constant: 1 }, access_lists: lists";
    all_refused(&[
        (
            "topology: { settings: [{ nodes: [all], region: frankfurt }] }\n",
            "topology.settings.0.region: the distance of `frankfurt` from other regions is unknown: use one of eu, us, usw, ap, jp, au, sa, or",
        ),
        (
            "topology: { settings: [{ nodes: [all], region: moon }, { nodes: [validator-0], region: mars }], links: [{ between: [moon, moon] }] }\n",
            "au, sa, moon, or",
        ),
        (
            "topology: { config: { network.outbound: 4 }, settings: [{ nodes: [all], region: eu }] }\n",
            "topology.config.network.outbound: network.outbound is 0 where",
        ),
        (
            "topology: { settings: [{ nodes: [all], region: eu, config: { network: { outbound: 4 } } }] }\n",
            "topology.settings.0.config.network: network.outbound is 0 where",
        ),
        ("topology: { groups: [{ name: c, part: candidate, mode: replay }] }\n", "topology.groups.0.mode: "),
        (
            "topology: { groups: [{ name: c, part: candidate, joins: 9s, waypoint: true }] }\n",
            "topology.groups.0.waypoint: ",
        ),
        (
            "topology: { groups: [{ name: f, count: 2 }, { name: f }] }\n",
            "topology.groups.1.name: `f` is taken",
        ),
        ("topology: { groups: [{ name: f, count: 2 }, { name: f-1 }] }\n", "groups.1.name: `f-1` is taken"),
        ("topology: { groups: [{ name: f-1, count: 2 }, { name: f, count: 2 }] }\n", "`f-1` is taken"),
        ("topology: { groups: [{ name: f, count: 2 }, { name: f-1, count: 2 }] }\n", "`f-1` is taken"),
        ("topology: { groups: [{ name: all, count: 2 }] }\n", "`all` is taken"),
        ("topology: { groups: [{ name: validator-0, count: 2 }] }\n", "`validator-0` is taken"),
    ]);
    let error = refused(&format!("{LOAD} }}]\n"));
    assert!(error.contains("workload.0.access_lists: is for the kind `access-lists`"), "{error}");
    accepted(&format!("{LOAD}, mix: {{ access-lists: 1 }} }}]\n"));
    accepted("topology: { config: { network.outbound: 4 } }\n");
    accepted("topology: { config: { network.outbound: 0 }, settings: [{ nodes: [all], region: eu }] }\n");
    accepted(
        "topology: { groups: [{ name: f, count: 2 }, { name: f-2 }, { name: c, part: candidate, mode: auto }] }\n",
    );
}

/// Goal: a fault that comes too late to have an effect, or has an end that does not apply, is refused. One that the end
/// of the clock cuts short is accepted.
#[test]
fn faults_have_the_time_that_they_take() {
    const GROUP: &str = "topology: { groups: [{ name: c, part: candidate }] }\n";
    let fault = |when: &str, what: &str| format!("{GROUP}faults: [{{ {when}, what: {{ {what} }} }}]\n");
    let kill = "kill: { nodes: [c] }";
    for (when, what, said) in [
        ("at: 30s, for: 5s", kill, "faults.0.at: comes when the scenario is over, which lasts 30s"),
        ("at: 30s", kill, "faults.0.at: comes when"),
        ("between: [5s, 30s]", kill, "faults.0.between: comes when"),
        (
            "at: 20s",
            "restart: { rolling: { nodes: [c, validator-0], every: 10s } }",
            "its last turn comes after",
        ),
        ("at: 5s, for: 5s", "add_validator: c", "faults.0.for: `add_validator` is done at once"),
        ("at: 5s, for: 5s", "remove_validator: validator-0", "faults.0.for: `remove_validator` is"),
        ("at: 5s, for: 5s", "export_snapshot: c", "faults.0.for: `export_snapshot` is"),
        ("at: 5s, for: 5s", "bit_flip: { nodes: [c] }", "faults.0.for: `bit_flip` is"),
        ("at: 5s, for: 5s", "upgrade: { who: { nodes: [c] }, to: current }", "faults.0.for: `upgrade` is"),
    ] {
        let error = refused(&fault(when, what));
        assert!(error.contains(said), "{when} {what}\n{error}");
    }
    accepted(&fault("at: 29s, for: 5s", kill));
    accepted(&fault("between: [5s, 29s]", kill));
}

/// Goal: a second link between the same regions, which would have no effect, is refused, as is a load without a step or
/// a peak.
#[test]
fn nothing_is_said_in_vain() {
    let links = |second: &str| {
        format!(
            "topology: {{ settings: [{{ nodes: [validator-0], region: eu }}, {{ nodes: [validator-1], region: ap }}], \
             links: [{{ between: [eu, ap], shape: {{ delay: 80ms }} }}, {{ between: {second}, shape: {{ loss: 0.5 }} }}] }}\n"
        )
    };
    for second in ["[ap, eu]", "[eu, ap]"] {
        let error = refused(&links(second));
        assert!(error.contains("topology.links.1.between: there are links between"), "{error}");
    }
    accepted(&links("[eu, eu]"));
    let load =
        |lasts: u32, rate: &str| format!("workload: [{{ name: x, for: {lasts}s, rate: {{ {rate} }} }}]\n");
    let search = "saturation: { from: 10, step_seconds: 9 }";
    let error = refused(&load(9, search));
    assert!(error.contains("workload.0.rate.saturation.step_seconds: no step of 9 s"), "{error}");
    accepted(&load(10, search));
    let burst = "burst: { base: 5, peak: 9, period: 10s, peak_lasts: 2s }";
    let error = refused(&load(8, burst));
    assert!(error.contains("workload.0.rate.burst.period: the peak is at the end"), "{error}");
    accepted(&load(9, burst));
}

/// Goal: a limit that nothing can keep is refused, at its key.
#[test]
fn limits_can_be_kept() {
    const LOAD: &str =
        "workload: [{ name: x, for: 9s, rate: { constant: 1 }, followers: [all], reads_per_second: 1 }]\n";
    let criterion = |text: &str| format!("{LOAD}criteria: [{{ {text} }}]\n");
    for (text, said) in [
        (
            "throughput: { phase: x, at_least: -1 }",
            "criteria.0.throughput.at_least: must be a number above 0, not -1",
        ),
        ("memory: { mib_max: 0 }", "criteria.0.memory.mib_max: must be a number above 0, not 0"),
        (
            "head_age: { at_most: 1s, percent: 0 }",
            "criteria.0.head_age.percent: must be a percentage above 0",
        ),
        (
            "history: { nodes: [all], from_at_most: 3, from_at_least: 4 }",
            "criteria.0.history.from_at_least: 4 is",
        ),
        ("commit: { phase: x, percentile: p50, at_most: 0s }", "criteria.0.commit.at_most: must be above 0s"),
        ("follow: { phase: x, percentile: p50, at_most: 0s }", "criteria.0.follow.at_most: must be above 0s"),
        ("read: { phase: x, percentile: p50, at_most: 0s }", "criteria.0.read.at_most: must be above 0s"),
        (
            "new_heads: { phase: x, percentile: p50, at_most: 0s }",
            "criteria.0.new_heads.at_most: must be above 0s",
        ),
        ("catch_up: { nodes: [all], at_most: 0s }", "criteria.0.catch_up.at_most: must be above 0s"),
        ("head_age: { at_most: 0s }", "criteria.0.head_age.at_most: must be above 0s"),
        ("no_progress: { at_most: 0s }", "criteria.0.no_progress.at_most: must be above 0s"),
        ("liars_banned: { at_most: 0s }", "criteria.0.liars_banned.at_most: must be above 0s"),
        (
            "throughput: { phase: y, at_least: 1 }",
            "criteria.0.throughput.phase: there is no phase `y`; there are: x",
        ),
        (
            "throughput: { phase: x, at_least: 500 }",
            "criteria.0.throughput.at_least: the phase `x` offers 1.1 per",
        ),
        (
            "history: { nodes: [all], from_at_most: 0 }",
            "criteria.0.history.from_at_most: batch 1 is the first",
        ),
        ("history: { nodes: [], from_at_most: 1 }", "criteria.0.history.nodes: names no node; there are all"),
        ("head_age: { nodes: [], at_most: 1s }", "criteria.0.head_age.nodes: names no node"),
        ("memory: { nodes: [], mib_max: 9 }", "criteria.0.memory.nodes: names no node"),
        ("catch_up: { nodes: [], at_most: 1s }", "criteria.0.catch_up.nodes: names no node"),
        ("convicted: { nodes: [] }", "criteria.0.convicted.nodes: names no node"),
    ] {
        let error = refused(&criterion(text));
        assert!(error.contains(said), "{text}\n{error}");
    }
    let twice =
        "criteria: [equal_roots, { no_progress: { at_most: 5s } }, { no_progress: { at_most: 5s } }]\n";
    let error = refused(twice);
    assert!(error.contains("criteria.2: is the same as criteria.1"), "{error}");
    accepted("criteria: [equal_roots, { no_progress: { at_most: 5s } }, { no_progress: { at_most: 9s } }]\n");
    let error = refused("criteria: [{ throughput: { phase: y, at_least: 1 } }]\n");
    assert!(error.contains("there is no phase `y`, and no load: write"), "{error}");
    accepted(&criterion("history: { nodes: [all], from_at_most: 4, from_at_least: 4 }"));
    // Nine transactions in the eight seconds from the first to the last.
    accepted(&criterion("throughput: { phase: x, at_least: 1.1 }"));
}
