//! Tests blueprints of scenarios, and the contents of their files.

mod judged;

use std::fs;

use serde_json::json;

use super::*;
use crate::{
    relay::{Region, Shape},
    scenario::shipped,
};

fn parsed(text: &str) -> Scenario {
    Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"))
}

fn blueprint_of(scenario: &Scenario) -> Blueprint {
    blueprint(scenario, Path::new("/nonexistent"), None, false).unwrap()
}

const TEXT: &str = "\
name: a
description: b
duration: 60s
topology:
  validators: 3
  accounts: 90
  batch_interval_ms: 200
  config: { storage.snapshots_kept: 3, sync.archives: ['file://{dir}/archive'] }
  groups:
  - { name: near }
  - { name: late, mode: delta, joins: 20s }
  - { name: behind-it, behind: [near], joins: 10s }
  settings:
  - { nodes: [validators], region: eu }
  - { nodes: [near], region: jp, config: { storage.snapshots_kept: 1 }, program: fork }
workload:
- { name: flat, at: 2s, for: 10s, rate: { constant: 20 }, followers: [near, validator-2], reads_per_second: 3 }
- { name: peaks, at: 5s, for: 10s, rate: { burst: { base: 5, peak: 50, period: 4s, peak_lasts: 500ms } }, read_from: near, to: [validator-1] }
- { name: search, at: 20s, for: 30s, rate: { saturation: { from: 100, step_seconds: 5 } }, mix: { erc20: 1, transfers: 3 } }
faults:
- { at: 10s, for: 5s, what: { partition: { between: [[validator-2], [near]] } } }
- { at: 12s, for: 8s, what: { link: { between: [[near], [validators]], shape: { delay: 150ms, loss: 0.5 } } } }
- { at: 30s, for: 4s, what: { kill: { nodes: [primary] } } }
- { at: 31s, for: 2s, what: { pause: { nodes: [near] } } }
- { at: 40s, what: { wipe: { nodes: [near] } } }
- { at: 41s, for: 2s, what: { slow_disk: { who: { nodes: [near] }, delay: 50ms } } }
- { at: 45s, for: 2s, what: { attack: { name: junk-transactions, victim: near } } }
- { at: 46s, what: { export_snapshot: near } }
- { at: 47s, for: 3s, what: { lying_validator: { who: { nodes: [validator-2] }, lie: { twin: { heard_by: [validator-1] } } } } }
- { at: 52s, for: 3s, what: { lying_validator: { who: { nodes: [validator-2] }, lie: double_vote } } }
- { at: 52s, what: { lying_peers: { who: { nodes: [late] }, lie: forged_heads, count: 2 } } }
criteria: [equal_roots, no_alarm]
";

/// Goal: the nodes are those of the scenario: their names, the nodes that they dial, the links to them, and node.yaml.
#[test]
fn nodes_are_those_of_the_scenario() {
    let scenario = parsed(TEXT);
    let blueprint = blueprint_of(&scenario);
    let names: Vec<&str> = blueprint.members.iter().map(|member| member.name.as_str()).collect();
    assert_eq!(names, ["validator-0", "validator-1", "validator-2", "near", "late", "behind-it"]);
    let dials = |place: usize| blueprint.members[place].ways.iter().map(|way| way.to).collect::<Vec<_>>();
    assert_eq!([dials(1), dials(3), dials(5)], [vec![0, 2], vec![0, 1, 2], vec![3]]);
    assert_eq!(dials(4), [0, 1, 2, 3, 5], "who joins later dials who joined before");
    assert_eq!(blueprint.members[3].ways[0].shape, Some(Region::Eu.link(Region::Jp)));
    assert_eq!(blueprint.members[4].ways[0].shape, Some(Shape::default()));
    let orders = |place: usize| {
        let orders = blueprint.members[place].orders.iter();
        orders.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(orders(0), ["30000ms..34000ms,kill,primary"]);
    assert_eq!(orders(1), orders(0));
    assert_eq!(orders(2), [orders(0), vec!["52000ms..55000ms,lie=double-vote".to_owned()]].concat());
    assert_eq!(
        orders(3),
        [
            "31000ms..33000ms,pause",
            "40000ms..,wipe",
            "41000ms..43000ms,slow-disk-ms=50",
            "45000ms..47000ms,attack=junk-transactions",
            "46000ms..,export-snapshot"
        ]
    );
    assert_eq!(orders(4), ["20000ms..,join", "52000ms..60000ms,lying-peers=forged-heads:2"]);
    assert_eq!(orders(5), ["10000ms..,join"]);
    let config = |place: usize| &blueprint.members[place].config;
    assert_eq!(config(0)["storage"]["snapshots_kept"], 3);
    assert_eq!(config(3)["storage"]["snapshots_kept"], 1);
    let sync = json!({ "mode": "delta", "archives": ["file:///devnet/shared/archive"] });
    assert_eq!(config(4)["sync"], sync, "no directory of this machine's");
    assert_eq!(config(4)["consensus"]["batch_interval_ms"], 200);
    assert_eq!(config(4)["network"]["outbound"], 0);
}

/// Goal: a fault of a link is on the sidecars of both ends that dial it, and nowhere else.
#[test]
fn faults_of_links_become_changes() {
    let blueprint = blueprint_of(&parsed(TEXT));
    let changes = &blueprint.members[3].changes;
    assert_eq!(changes.len(), 4, "{changes:?}");
    let cut = changes.iter().find(|change| change.shape.is_none()).unwrap();
    assert_eq!((cut.listen, cut.from), (link_address(2), Duration::from_secs(10)));
    assert_eq!(cut.until, Some(Duration::from_secs(15)));
    let slow = changes.iter().find_map(|change| change.shape).unwrap();
    assert_eq!((slow.delay, slow.loss), (Duration::from_millis(150), 0.5));
    assert!(blueprint.members[0].changes.is_empty(), "a validator does not dial a fullnode");
}

/// Goal: each phase is a load with its own accounts, nodes, rate and time.
#[test]
fn phases_become_loads() {
    let blueprint = blueprint_of(&parsed(TEXT));
    let [flat, peaks, search] = &blueprint.jobs[..] else { panic!("three loads") };
    assert_eq!(
        (flat.name.as_str(), &flat.submit[..], &flat.followers[..]),
        ("load-flat", &[0, 1, 2][..], &[3, 2][..])
    );
    assert_eq!((&peaks.submit[..], peaks.followers.is_empty()), (&[3, 1][..], true));
    let of = |job: &Job, flag: &str| {
        let place = job.arguments.iter().position(|argument| argument == flag)?;
        job.arguments.get(place + 1).cloned()
    };
    let is = |job: &Job, flag: &str, value: &str| assert_eq!(of(job, flag).as_deref(), Some(value), "{flag}");
    is(flat, "--tps", "20");
    is(flat, "--reads", "3");
    is(flat, "--at", "2s");
    is(flat, "--skip-accounts", "0");
    is(peaks, "--skip-accounts", "30");
    is(peaks, "--burst", "50:4s:500ms");
    is(peaks, "--accounts", "30");
    is(search, "--mix", "erc20=1,transfers=3");
    is(search, "--search-for", "30s");
    assert!(search.arguments.contains(&"--saturate".to_owned()) && of(flat, "--saturate").is_none());
    assert_ne!(of(flat, "--random"), of(peaks, "--random"));
}

/// Goal: everything that the files leave out is reported by name, including in the files.
#[test]
fn nothing_is_left_out_in_silence() {
    let scenario = parsed(TEXT);
    let texts = [Target::Compose, Target::Kubernetes].map(|target| {
        let dir = tempfile::tempdir().unwrap();
        let written = write_files(target, &scenario, dir.path(), None).unwrap();
        let file = match target {
            Target::Compose => "compose.yaml",
            Target::Kubernetes => "values.yaml",
        };
        let text = fs::read_to_string(dir.path().join(file)).unwrap();
        for note in &written.notes {
            assert!(text.contains(&format!("# {note}\n")), "{note} is not in {file}");
        }
        written.notes.join("\n")
    });
    for text in &texts {
        assert!(!text.contains("is not judged"), "{text}");
        assert!(
            text.starts_with("Left out") && text.ends_with("at 47s: twin validator-2 until 50s"),
            "{text}"
        );
        assert!(!text.contains("at 30s") && !text.contains("at 31s"), "what is an order is not told: {text}");
    }
    assert_eq!(texts[0], texts[1]);
}

/// Goal: nodes run the programs that the scenario names, in an image with these, and upgrades change between them. All
/// others keep their image.
#[test]
fn programs_have_names_and_an_image() {
    let text = "name: a\ndescription: b\nduration: 30s\ncriteria: [equal_roots]\n\
        topology:\n  groups:\n  - { name: near }\n  - { name: far }\n  settings:\n  - { nodes: [near], program: before }\n  \
        - { nodes: [far], program: current }\n\
        faults:\n- { at: 5s, what: { upgrade: { who: { nodes: [near] }, to: current } } }\n\
        - { at: 9s, what: { upgrade: { who: { nodes: [validator-1] }, to: next } } }\n\
        - { at: 9s, what: { upgrade: { who: { nodes: [validator-2] }, to: current } } }\n";
    let scenario = parsed(text);
    let blueprint = blueprint_of(&scenario);
    let near = &blueprint.members[4];
    assert_eq!((near.program.as_deref(), blueprint.members[5].program.as_deref()), (Some("before"), None));
    assert_eq!(near.orders[0].to_string(), "5000ms..,upgrade=current");
    assert_eq!(blueprint.members[1].orders[0].to_string(), "9000ms..,upgrade=next");
    assert!(blueprint.left_out.is_empty() && !blueprint.members[5].is_operated());
    for (target, file, nodes) in
        [(Target::Compose, "compose.yaml", "services"), (Target::Kubernetes, "values.yaml", "groups")]
    {
        let dir = tempfile::tempdir().unwrap();
        let written = write_files(target, &scenario, dir.path(), None).unwrap();
        let image = fs::read_to_string(dir.path().join("Containerfile.programs")).unwrap();
        let lines: Vec<&str> = image.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "FROM slipnet",
                "COPY --from=slipstream:before /usr/bin/slipstream /usr/bin/slipstream-before",
                "COPY --from=slipstream:next /usr/bin/slipstream /usr/bin/slipstream-next",
            ]
        );
        let inspected =
            "docker image inspect slipnet slipstream:before slipstream:next >/dev/null && docker build";
        assert!(written.usage.contains(inspected), "{}", written.usage);
        assert!(written.usage.contains("-t slipnet-programs - <"), "{}", written.usage);
        let text = fs::read_to_string(dir.path().join(file)).unwrap();
        let value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        let image = |node: &str| value[nodes][node]["image"].clone();
        assert_eq!([image("near"), image("validator-1")], ["slipnet-programs", "slipnet-programs"]);
        assert_eq!(image("validator-2"), "slipnet");
        assert!(text.contains("--program"), "{text}");
        // Files of another scenario in the same directory need none.
        write_files(
            target,
            &parsed("name: a\ndescription: b\nduration: 30s\ncriteria: [equal_roots]\n"),
            dir.path(),
            None,
        )
        .unwrap();
        assert!(!dir.path().join("Containerfile.programs").exists());
    }
}

/// Goal: a node that is not part of the changes submits them all, so that the nonces of the owner's account are
/// consecutive.
#[test]
fn another_node_takes_a_change_of_the_validators() {
    let text = "name: a\ndescription: b\nduration: 30s\ncriteria: [equal_roots]\n\
        topology:\n  groups:\n  - { name: candidate, part: candidate }\n\
        faults:\n- { at: 5s, what: { add_validator: candidate } }\n\
        - { at: 9s, what: { remove_validator: validator-0 } }\n";
    let scenario = parsed(text);
    let blueprint = blueprint_of(&scenario);
    let orders = |place: usize| {
        blueprint.members[place].orders.iter().map(|order| order.what.clone()).collect::<Vec<_>>()
    };
    let key = |place: usize| blueprint.members[place].key.public();
    let fees = accounts::fee_recipient(&scenario.seed, 4);
    assert_eq!(
        orders(1),
        [operate::What::AddValidator(key(4), fees), operate::What::RemoveValidator(key(0))]
    );
    assert!([0, 2, 3, 4].into_iter().all(|place| orders(place).is_empty()));
}

/// Goal: every built-in scenario has files for both targets. Every event of its plan is in them or reported: on a link,
/// as an order to a node, or as left out.
#[test]
fn all_that_ship_can_be_written() {
    for shipped in shipped::ALL {
        let scenario = shipped.scenario().unwrap();
        let blueprint = blueprint_of(&scenario);
        let events = plan(&scenario);
        let links = events.iter().filter(|event| matches!(event.action, Action::Links { .. })).count();
        let undone = undone(&scenario, &Names::of(&scenario), &events);
        let ordered: Vec<Order> = events.iter().filter_map(|event| order(&scenario, event)).collect();
        assert_eq!(undone.len() + links + ordered.len(), events.len(), "{}", shipped.name);
        assert!(undone.iter().all(|line| blueprint.left_out.contains(line)), "{}", shipped.name);
        let operated = operated(&scenario, &Names::of(&scenario));
        for (place, member) in blueprint.members.iter().enumerate() {
            assert_eq!(operated.contains(&Place(place)), member.is_operated(), "{}", member.name);
        }
        for order in ordered {
            let mut members = blueprint.members.iter();
            assert!(members.any(|member| member.orders.contains(&order)), "{}: {order}", shipped.name);
        }
        for target in [Target::Compose, Target::Kubernetes] {
            let dir = tempfile::tempdir().unwrap();
            write_files(target, &scenario, dir.path(), None)
                .unwrap_or_else(|error| panic!("{}: {error:#}", shipped.name));
        }
    }
}

/// Goal: a node with attackers beside it dials its peers through its sidecar, from which liars get true data; attackers
/// have accounts that no load uses.
#[test]
fn attackers_have_a_way_and_accounts() {
    let text = "name: a\ndescription: b\nduration: 30s\ncriteria: [equal_roots]\ntopology:\n  accounts: 90\n  groups:\n  - { name: near }\n\
        faults:\n- { at: 5s, for: 9s, what: { attack: { name: gas-hogs, victim: near } } }\n";
    let blueprint = blueprint_of(&parsed(text));
    assert_eq!(blueprint.members[4].ways.len(), 4);
    assert!(blueprint.members[4].ways.iter().all(|way| way.shape == Some(Shape::default())));
    assert!(blueprint.members[0].ways.iter().all(|way| way.shape.is_none()));
    assert_eq!((blueprint.accounts, blueprint.attackers_from), (90 + 320, 90));
    let dir = tempfile::tempdir().unwrap();
    write_files(Target::Compose, &parsed(text), dir.path(), None).unwrap();
    let text = fs::read_to_string(dir.path().join("compose.yaml")).unwrap();
    assert!(text.contains("5000ms..14000ms,attack=gas-hogs") && text.contains("--skip-accounts"), "{text}");
}

/// Goal: lies of the primary, and liars among its peers, are orders to each validator; none of them is left out or
/// unjudged.
#[test]
fn whoever_is_primary_takes_orders_to_lie() {
    let text = "name: a\ndescription: b\nduration: 60s\n\
        criteria:\n- equal_roots\n- liars_banned: { nodes: [validators], at_most: 10s }\n\
        topology: { groups: [{ name: near }] }\n\
        faults:\n- { at: 5s, for: 4s, what: { lying_validator: { who: { nodes: [primary] }, lie: garbage } } }\n\
        - { at: 12s, for: 9s, what: { lying_peers: { who: { nodes: [primary] }, lie: forged_heads, count: 2 } } }\n\
        - { at: 30s, for: 9s, what: { lying_validator: { who: { nodes: [primary] }, lie: old_state } } }\n";
    let scenario = parsed(text);
    let blueprint = blueprint_of(&scenario);
    assert!(blueprint.left_out.is_empty(), "{:?}", blueprint.left_out);
    for member in &blueprint.members[..4] {
        let orders: Vec<String> = member.orders.iter().map(ToString::to_string).collect();
        assert_eq!(
            orders,
            [
                "5000ms..9000ms,lie=garbage,primary",
                "12000ms..21000ms,lying-peers=forged-heads:2,primary",
                "30000ms..39000ms,old-data,primary"
            ]
        );
        assert!(
            member.ways.iter().all(|way| way.shape.is_some()),
            "liars hear the truth through the sidecar"
        );
    }
    assert!(blueprint.members[4].orders.is_empty());
}

/// Goal: attackers are among the peers of a node that joins, and have the access to true data that they need.
#[test]
fn attackers_stand_among_peers() {
    let text = "name: a\ndescription: b\nduration: 30s\ncriteria: [equal_roots]\n\
        topology:\n  groups:\n  - { name: fresh, joins: 5s, among: corrupt-answers }\n";
    let blueprint = blueprint_of(&parsed(text));
    let fresh = &blueprint.members[4];
    assert_eq!(fresh.among.as_deref(), Some("corrupt-answers"));
    assert!(fresh.ways.iter().all(|way| way.shape.is_some()) && blueprint.left_out.is_empty());
    let dir = tempfile::tempdir().unwrap();
    write_files(Target::Compose, &parsed(text), dir.path(), None).unwrap();
    let text = fs::read_to_string(dir.path().join("compose.yaml")).unwrap();
    assert!(text.contains("--among-api") && text.contains("http://validator-0:8545"), "{text}");
}

/// Goal: a node that trusts a waypoint gets it from the first validator, on both targets.
#[test]
fn a_waypoint_is_told_by_a_validator() {
    let text = "name: a\ndescription: b\nduration: 30s\ncriteria: [equal_roots]\n\
        topology:\n  groups:\n  - { name: trusts, joins: 5s, waypoint: true }\n";
    let scenario = parsed(text);
    assert_eq!(blueprint_of(&scenario).members[4].waypoint_from, Some(0));
    for (target, file, url) in [
        (Target::Compose, "compose.yaml", "http://validator-0:8545"),
        (Target::Kubernetes, "values.yaml", "http://devnet-validator-0-pods:8545"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let written = write_files(target, &scenario, dir.path(), None).unwrap();
        assert!(written.notes.is_empty(), "{:?}", written.notes);
        let text = fs::read_to_string(dir.path().join(file)).unwrap();
        assert!(text.contains("--waypoint-from") && text.contains(url), "{text}");
    }
}

/// Goal: if nodes share a directory, an export goes to the same path that others read.
#[test]
fn nodes_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    write_files(Target::Compose, &parsed(TEXT), dir.path(), None).unwrap();
    assert!(dir.path().join("shared").is_dir());
    let text = fs::read_to_string(dir.path().join("late/node.yaml")).unwrap();
    assert!(text.contains("file:///devnet/shared/archive"), "{text}");
    let text = fs::read_to_string(dir.path().join("compose.yaml")).unwrap();
    assert!(text.contains("./shared:/devnet/shared") && text.contains("--shared"), "{text}");
    let written = write_files(Target::Kubernetes, &parsed(TEXT), dir.path(), None).unwrap();
    assert!(
        written.usage.contains("claim devnet-shared") && written.usage.contains("ReadWriteMany"),
        "{}",
        written.usage
    );
    let text = fs::read_to_string(dir.path().join("values.yaml")).unwrap();
    for part in
        ["sharedClaim: devnet-shared", "shared: /devnet/shared", "file:///devnet/shared/archive", "--shared"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

/// Goal: a fault that is planned to last longer ends with the scenario, at nodes and on links.
#[test]
fn what_lasts_longer_ends_with_the_scenario() {
    let text = "name: a\ndescription: b\nduration: 30s\ncriteria: [equal_roots]\n\
        faults:\n- { at: 25s, for: 20s, what: { kill: { nodes: [validator-1] } } }\n\
        - { at: 25s, for: 20s, what: { partition: { between: [[validator-0], [validator-1]] } } }\n";
    let blueprint = blueprint_of(&parsed(text));
    let member = &blueprint.members[1];
    assert_eq!(member.orders[0].to_string(), "25000ms..30000ms,kill");
    assert_eq!(member.changes[0].until, Some(Duration::from_secs(30)));
}

/// Goal: names that do not fit a target are refused, with the reason.
#[test]
fn names_that_collide_or_are_too_long_are_refused() {
    let refused = |target, group: &str| {
        let text = format!(
            "name: a\ndescription: b\nduration: 10s\ncriteria: [equal_roots]\n\
             topology:\n  groups:\n  - {{ name: {group} }}\n\
             faults:\n- {{ at: 1s, for: 1s, what: {{ partition: {{ between: [[validator-0], [validator-1]] }} }} }}\n"
        );
        let dir = tempfile::tempdir().unwrap();
        write_files(target, &parsed(&text), dir.path(), None).unwrap_err().to_string()
    };
    assert!(refused(Target::Compose, "relay-validator-0").contains("two services would be called"));
    assert!(refused(Target::Compose, "judge").contains("two services would be called judge"));
    assert!(refused(Target::Kubernetes, "judge").contains("is called judge"));
    assert!(refused(Target::Compose, "shared").contains("a node is called shared"));
    assert!(refused(Target::Kubernetes, &"n".repeat(48)).contains("longer than the 52 bytes"));
}
