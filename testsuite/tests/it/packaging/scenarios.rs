//! Tests that Compose, Kubernetes, the chart, the nodes, the relays and the loads take what `slipnet up --target … --scenario …` writes.

use std::{collections::BTreeSet, fs, path::Path};

use clap::{Args, Command};
use serde_json::Value;
use slipnet::{
    load::LoadCommand,
    operate::{OperateOptions, What},
    relay::RelayOptions,
    scenario::{Scenario, shipped, write_files},
    target::Target,
};
use slipstream_config::Overrides;

use super::{
    compose_file, compose_schema, documents, has_helm, of_kind, rendered_target, strings, tools, validate,
};

/// Regions, joins, a pruned network, faults of links and of nodes, every kind of rate, and forty nodes.
const SHIPPED: [&str; 5] =
    ["day-in-ten-minutes", "regional-latency", "saturation", "pruned-network", "fan-out"];

/// Documents of a scenario that a schema judges, each by a process of its own.
const JUDGED_MAX: usize = 14;

fn shipped(name: &str) -> Scenario {
    shipped::named(name).unwrap().scenario().unwrap()
}

fn names(scenario: &Scenario) -> BTreeSet<String> {
    let validators = (0..scenario.topology.validators).map(|index| format!("validator-{index}"));
    let groups = scenario.topology.groups.iter().flat_map(|group| {
        let of_many = |index| format!("{}-{index}", group.name);
        match group.count {
            1 => vec![group.name.clone()],
            count => (0..count).map(of_many).collect(),
        }
    });
    validators.chain(groups).collect()
}

/// The arguments of a container, with the start in place of the variable, as Compose and Kubernetes put it there.
fn arguments(list: &Value, variable: &str) -> Vec<String> {
    let with_start = |text: &str| match text.starts_with(variable) {
        true => "1700000000".to_owned(),
        false => text.replace("$$", "$"),
    };
    strings(list).into_iter().map(with_start).collect()
}

/// What `slipnet` makes of arguments behind the name of a subcommand.
fn parsed<T: Args>(name: &str, arguments: &[String]) -> T {
    assert_eq!(arguments[0], name);
    let command = T::augment_args(Command::new("slipnet").no_binary_name(true));
    let matches = command.try_get_matches_from(&arguments[1..]).and_then(|it| T::from_arg_matches(&it));
    matches.unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

/// That a sidecar's arguments are those of a relay: its links lead to other nodes, and its changes are of its links.
fn check_relay(arguments: &[String], host_of: impl Fn(&str) -> String, nodes: &BTreeSet<String>) -> usize {
    let options: RelayOptions = parsed("relay", arguments);
    let hosts: BTreeSet<String> = nodes.iter().map(|name| host_of(name)).collect();
    for link in &options.links {
        let host = link.target.strip_suffix(":7400").unwrap();
        assert!(hosts.contains(host), "{link}");
    }
    for change in &options.changes {
        assert!(options.links.iter().any(|link| link.listen == change.listen), "{change}");
    }
    assert!(options.changes.is_empty() || options.start.is_some(), "changes without a start");
    options.changes.len()
}

/// That the arguments of a container are those of what runs a node and does something to it; how often the node joins.
fn check_operator(arguments: &[String]) -> usize {
    let options: OperateOptions = parsed("operate", arguments);
    assert!(options.config.ends_with("node.yaml") && options.start.is_some(), "{options:?}");
    assert!(!options.orders.is_empty(), "{options:?}");
    options.orders.iter().filter(|order| order.what == What::Join).count()
}

/// Nodes that start later than the chain.
fn joining(scenario: &Scenario) -> usize {
    let joins = scenario.topology.groups.iter().filter(|group| group.joins.is_some());
    joins.map(|group| group.count as usize).sum()
}

/// Goal: Compose's schema takes the files, and each program takes what they give it: node.yaml, links and changes, loads.
#[test]
fn compose_takes_scenarios() {
    let Some(validator) = compose_schema() else { return };
    for name in SHIPPED {
        let (scenario, dir) = (shipped(name), tempfile::tempdir().unwrap());
        write_files(Target::Compose, &scenario, dir.path(), None).unwrap();
        let file = compose_file(&validator, dir.path());
        let services = file["services"].as_object().unwrap();
        let nodes = names(&scenario);
        let (mut changes, mut joins) = (0, 0);
        for node in &nodes {
            let service = &services[node];
            match service["image"].as_str().unwrap() {
                "slipnet" => joins += check_operator(&arguments(&service["command"], "${SLIPNET_START")),
                image => assert_eq!((image, &service["command"][0]), ("slipstream", &Value::from("run"))),
            }
            let path = dir.path().join(node).join("node.yaml");
            let config = slipstream_config::load(&path, &Overrides::default()).unwrap().config;
            assert!(!config.network.peers.is_empty(), "{name}: {node} has no peers");
            if let Some(relay) = services.get(&format!("relay-{node}")) {
                assert_eq!(relay["network_mode"], format!("service:{node}"));
                changes +=
                    check_relay(&arguments(&relay["command"], "${SLIPNET_START"), str::to_owned, &nodes);
            }
        }
        let loads = services.iter().filter(|(service, _)| service.starts_with("load-"));
        for (service, load) in loads.clone() {
            parsed::<LoadCommand>("load", &arguments(&load["command"], "${SLIPNET_START"));
            assert_eq!(strings(&load["profiles"]), ["load"], "{name}: {service}");
        }
        assert_eq!(loads.count(), scenario.workload.len(), "{name}");
        check_day(name, changes);
        assert_eq!(joins, joining(&scenario), "{name}");
    }
}

/// A partition of one from three, and slow links of two fullnodes that dial four validators each.
fn check_day(name: &str, changes: usize) {
    if name == "day-in-ten-minutes" {
        // Both ends of each of three links dial.
        assert_eq!(changes, 3 * 2 + 2 * 4);
    }
}

/// Goal: the chart, Kubernetes' schemas and each program take the values.
#[test]
fn kubernetes_takes_scenarios() {
    if !has_helm() {
        return;
    }
    for name in SHIPPED {
        let (scenario, dir) = (shipped(name), tempfile::tempdir().unwrap());
        write_files(Target::Kubernetes, &scenario, dir.path(), None).unwrap();
        let documents = documents(&rendered_target(dir.path()));
        // Other kinds are the same for every scenario, and forty groups are forty times the same to a schema.
        let is_own = |document: &&Value| document["kind"] == "StatefulSet" || document["kind"] == "Job";
        let judged: Vec<Value> = documents.iter().filter(is_own).take(JUDGED_MAX).cloned().collect();
        validate(&tools().join("kubernetes"), dir.path(), name, &judged);
        let nodes = names(&scenario);
        let (mut changes, mut joins) = (0, 0);
        let sets: Vec<_> = of_kind(&documents, "StatefulSet").collect();
        assert_eq!(sets.len(), nodes.len(), "{name}");
        for set in &sets {
            let containers = set["spec"]["template"]["spec"]["containers"].as_array().unwrap();
            let node = &containers[0];
            match node["image"].as_str().unwrap() {
                "slipnet" => {
                    joins += check_operator(&arguments(&node["args"], "$(SLIPNET_START)"));
                    assert_eq!(node["env"][0]["name"], "SLIPNET_START", "{name}");
                }
                image => assert_eq!((image, &node["args"][0]), ("slipstream:latest", &Value::from("run"))),
            }
            if let Some(relay) = containers.get(1) {
                let arguments = arguments(&relay["args"], "$(SLIPNET_START)");
                let made = check_relay(&arguments, |node| format!("devnet-{node}-peers"), &nodes);
                assert_eq!(made > 0, relay["env"][0]["name"] == "SLIPNET_START", "{name}");
                changes += made;
            }
        }
        check_day(name, changes);
        assert_eq!(joins, joining(&scenario), "{name}");
        check_configs(name, &documents);
        let jobs: Vec<_> = of_kind(&documents, "Job").collect();
        assert_eq!(jobs.len(), scenario.workload.len(), "{name}");
        for job in jobs {
            let container = &job["spec"]["template"]["spec"]["containers"][0];
            parsed::<LoadCommand>("load", &arguments(&container["args"], "$(SLIPNET_START)"));
            assert_eq!(container["env"][0]["valueFrom"]["configMapKeyRef"]["name"], "devnet-start");
        }
    }
}

fn check_configs(name: &str, documents: &[Value]) {
    for map in of_kind(documents, "ConfigMap").filter(|map| map["data"]["node.yaml"].is_string()) {
        let text = map["data"]["node.yaml"].as_str().unwrap();
        let config = slipstream_config::parse(text, Path::new("/config/node.yaml")).unwrap();
        assert!(!config.network.peers.is_empty(), "{name}: {}", map["metadata"]["name"]);
    }
}

/// Goal: what is done to nodes is done by what runs them; what the files cannot do stands in them by its name.
#[test]
fn the_files_say_what_they_leave_out() {
    let written = |name: &str| {
        let dir = tempfile::tempdir().unwrap();
        let written = write_files(Target::Compose, &shipped(name), dir.path(), Some(9_000)).unwrap();
        let text = fs::read_to_string(dir.path().join("compose.yaml")).unwrap();
        for note in &written.notes {
            assert!(text.contains(&format!("# {note}\n")), "{note} is not in\n{text}");
        }
        (text, written.notes.join("\n"))
    };
    let (text, notes) = written("day-in-ten-minutes");
    for part in [
        "at 140s: attack junk-transactions steady-0 until 155s",
        "at 30s: lying peers, 2 of corrupt_answers light until 45s",
    ] {
        assert!(notes.contains(part), "{part} is not in\n{notes}");
    }
    for part in [
        "90000ms..,join",
        "70000ms..75000ms,restart",
        "100000ms..110000ms,pause",
        "165000ms..,bit-flip=",
        "200000ms..203000ms,wipe",
        "127.0.0.1:9000:8545",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(written("archive-start").0.contains("45000ms..,export-snapshot"));
    assert!(written("epoch-change").0.contains("25000ms..,add-validator="));
}
