//! Tests that Compose, Kubernetes, the chart, the nodes, the relays and the loads accept the output of `slipnet up
//! --target … --scenario …`.

use std::{collections::BTreeSet, fs, path::Path};

use clap::{Args, Command};
use serde_json::{Value, json};
use slipnet::{
    load::LoadCommand,
    operate::{OperateOptions, What},
    relay::RelayOptions,
    scenario::{JudgeOptions, Scenario, shipped, write_files},
    target::Target,
};
use slipstream_config::Overrides;

use super::{
    compose_file, compose_schema, documents, has_helm, of_kind, rendered_target, strings, tools, validate,
};

/// Built-in scenarios with regions, joins, a pruned network, faults of links and of nodes, full disks, programs of
/// other names, a shared directory, every kind of rate, and forty nodes.
const SHIPPED: [&str; 8] = [
    "day-in-ten-minutes",
    "regional-latency",
    "saturation",
    "pruned-network",
    "full-disk",
    "rolling-upgrade",
    "archive-start",
    "fan-out",
];

/// The most documents of a scenario that a schema checks: those of forty nodes differ only by name.
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

/// Returns the arguments of a container, with the variable expanded to a start, as Compose and Kubernetes do.
fn arguments(list: &Value, variable: &str) -> Vec<String> {
    let with_start = |text: &str| match text.starts_with(variable) {
        true => "1700000000".to_owned(),
        false => text.replace("$$", "$"),
    };
    strings(list).into_iter().map(with_start).collect()
}

/// Parses arguments that begin with the name of a `slipnet` subcommand.
fn parsed<T: Args>(name: &str, arguments: &[String]) -> T {
    assert_eq!(arguments[0], name);
    let command = T::augment_args(Command::new("slipnet").no_binary_name(true));
    let matches = command.try_get_matches_from(&arguments[1..]).and_then(|it| T::from_arg_matches(&it));
    matches.unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

/// Checks that a sidecar's arguments are those of a relay: its links lead to other nodes, and its changes are of its
/// links.
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

/// Checks that the arguments of a container run this node, apply orders to it, and report to the judge. Returns how
/// often the node joins.
fn check_operator(arguments: &[String], node: &str, judge: &str) -> usize {
    let options: OperateOptions = parsed("operate", arguments);
    assert!(options.config.ends_with("node.yaml") && options.start.is_some(), "{options:?}");
    assert!(!options.orders.is_empty(), "{options:?}");
    assert_eq!((options.name.as_deref(), options.judge.as_deref()), (Some(node), Some(judge)));
    options.orders.iter().filter(|order| order.what == What::Join).count()
}

/// Checks that the arguments of a container are those of a judge of all nodes, which it reaches by these hosts. Returns
/// its port.
fn check_judge(arguments: &[String], host_of: impl Fn(&str) -> String, nodes: &BTreeSet<String>) -> String {
    let options: JudgeOptions = parsed("judge", arguments);
    let named: BTreeSet<String> = options.nodes.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(&named, nodes);
    for (name, url) in &options.nodes {
        assert_eq!(*url, format!("http://{}:8545", host_of(name)));
    }
    assert_eq!(options.start, 1_700_000_000);
    options.listen.port().to_string()
}

/// Checks that a load delivers its figures to the judge with this name, as a phase of the scenario.
fn check_delivery(arguments: &[String], judge: &str, scenario: &Scenario) {
    let of = |flag: &str| {
        let place = arguments.iter().position(|argument| argument == flag).unwrap();
        arguments[place + 1].as_str()
    };
    assert_eq!(of("--judge"), judge);
    assert!(scenario.workload.iter().any(|phase| phase.name == of("--phase")), "{arguments:?}");
}

/// Returns how many nodes start later than the chain.
fn joining(scenario: &Scenario) -> usize {
    let joins = scenario.topology.groups.iter().filter(|group| group.joins.is_some());
    joins.map(|group| group.count as usize).sum()
}

/// Goal: the files match Compose's schema, and each program accepts its part: node.yaml, links and changes, loads.
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
                image @ ("slipnet" | "slipnet-programs") => {
                    assert_eq!(image == "slipnet-programs", name == "rolling-upgrade");
                    let arguments = arguments(&service["command"], "${SLIPNET_START");
                    joins += check_operator(&arguments, node, "judge:9100");
                }
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
        let judge = &services["judge"];
        let port = check_judge(&arguments(&judge["command"], "${SLIPNET_START"), str::to_owned, &nodes);
        check_compose_judge(judge, dir.path(), &scenario);
        for (service, load) in loads.clone() {
            let arguments = arguments(&load["command"], "${SLIPNET_START");
            parsed::<LoadCommand>("load", &arguments);
            check_delivery(&arguments, &format!("judge:{port}"), &scenario);
            assert_eq!(strings(&load["profiles"]), ["load"], "{name}: {service}");
        }
        assert_eq!(loads.count(), scenario.workload.len(), "{name}");
        check_day(name, changes);
        assert_eq!(joins, joining(&scenario), "{name}");
        let disk = json!({ "type": "tmpfs", "target": "/devnet/small/data", "tmpfs": { "size": 256 << 20 } });
        let has_disk = services.get("small").is_some_and(|small| small["volumes"][2] == disk);
        assert_eq!(has_disk, name == "full-disk", "{name}");
    }
}

/// Checks that the judge's files and directories exist, and that no other service uses them.
fn check_compose_judge(judge: &Value, dir: &Path, scenario: &Scenario) {
    assert_eq!(strings(&judge["profiles"]), ["load"]);
    assert_eq!(strings(&judge["env_file"]), ["./judge.env"]);
    let volumes = strings(&judge["volumes"]);
    assert_eq!(volumes, ["./scenario.yaml:/devnet/scenario.yaml:ro", "./report:/devnet/report"]);
    assert!(dir.join("report").is_dir());
    assert_eq!(Scenario::load(&dir.join("scenario.yaml")).unwrap(), *scenario);
}

/// Checks the number of changes: a partition of one from three, and slow links of two fullnodes that dial four
/// validators each.
fn check_day(name: &str, changes: usize) {
    if name == "day-in-ten-minutes" {
        // Both ends of each of three links dial.
        assert_eq!(changes, 3 * 2 + 2 * 4);
    }
}

/// Goal: the chart, Kubernetes's schemas and each program accept the values.
#[test]
fn kubernetes_takes_scenarios() {
    if !has_helm() {
        return;
    }
    // This test computes near the end of all tests, when little else does, so two threads share it.
    let all = SHIPPED;
    std::thread::scope(|scope| {
        for names in all.chunks(all.len().div_ceil(2)) {
            scope.spawn(move || names.iter().for_each(|name| kubernetes_takes(name)));
        }
    });
}

fn kubernetes_takes(name: &str) {
    let (scenario, dir) = (shipped(name), tempfile::tempdir().unwrap());
    write_files(Target::Kubernetes, &scenario, dir.path(), None).unwrap();
    let documents = documents(&rendered_target(dir.path()));
    // Other kinds are the same for every scenario.
    let is_own = |document: &&Value| document["kind"] == "StatefulSet" || document["kind"] == "Job";
    let mut judged: Vec<Value> = documents.iter().filter(is_own).take(JUDGED_MAX).cloned().collect();
    judged.extend(documents.iter().filter(|it| it["metadata"]["name"] == "devnet-judge").cloned());
    validate(&tools().join("kubernetes"), dir.path(), name, &judged);
    let nodes = names(&scenario);
    let (mut changes, mut joins) = (0, 0);
    let sets: Vec<_> = of_kind(&documents, "StatefulSet").collect();
    assert_eq!(sets.len(), nodes.len(), "{name}");
    for set in &sets {
        let containers = set["spec"]["template"]["spec"]["containers"].as_array().unwrap();
        let node = &containers[0];
        match node["image"].as_str().unwrap() {
            image @ ("slipnet" | "slipnet-programs") => {
                assert_eq!(image == "slipnet-programs", name == "rolling-upgrade");
                let arguments = arguments(&node["args"], "$(SLIPNET_START)");
                let name = set["metadata"]["name"].as_str().unwrap().trim_start_matches("devnet-");
                joins += check_operator(&arguments, name, "devnet-judge:9100");
                assert_eq!(node["env"][0]["name"], "SLIPNET_START", "{name}");
                assert_eq!(node["env"][1]["name"], "SLIPNET_JUDGE_SECRET", "{name}");
            }
            image => assert_eq!((image, &node["args"][0]), ("slipstream:latest", &Value::from("run"))),
        }
        let volumes = set["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
        let disk = volumes.iter().find(|volume| volume["name"] == "disk").map(|disk| &disk["emptyDir"]);
        let has_own = name == "full-disk"
            && ["devnet-small", "devnet-validator-3"].map(Value::from).contains(&set["metadata"]["name"]);
        let own = json!({ "medium": "Memory", "sizeLimit": "256Mi" });
        assert_eq!(disk, has_own.then_some(&own), "{name}");
        let shared = volumes.iter().find(|volume| volume["name"] == "shared");
        let claim = shared.map(|shared| &shared["persistentVolumeClaim"]["claimName"]);
        let own = Value::from("devnet-shared");
        assert_eq!(claim, (name == "archive-start").then_some(&own), "{name}");
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
    let is_judge = |job: &&Value| job["metadata"]["name"] == "devnet-judge";
    let (judge, loads): (Vec<_>, Vec<_>) = of_kind(&documents, "Job").partition(is_judge);
    assert_eq!((judge.len(), loads.len()), (1, scenario.workload.len()), "{name}");
    let port = check_kubernetes_judge(judge[0], &documents, &nodes, &scenario);
    for job in loads {
        let container = &job["spec"]["template"]["spec"]["containers"][0];
        let arguments = arguments(&container["args"], "$(SLIPNET_START)");
        parsed::<LoadCommand>("load", &arguments);
        check_delivery(&arguments, &format!("devnet-judge:{port}"), &scenario);
        assert_eq!(container["env"][0]["valueFrom"]["configMapKeyRef"]["name"], "devnet-start");
    }
}

/// Checks that the judge has its scenario, its Service and its claim, and that nodes answer to the names that it uses.
/// Returns its port.
fn check_kubernetes_judge(
    job: &Value,
    documents: &[Value],
    nodes: &BTreeSet<String>,
    scenario: &Scenario,
) -> String {
    let named = |kind| of_kind(documents, kind).find(|it| it["metadata"]["name"] == "devnet-judge").unwrap();
    let text = named("ConfigMap")["data"]["scenario.yaml"].as_str().unwrap();
    assert_eq!(Scenario::parse(text, Path::new("scenario.yaml")).unwrap(), *scenario);
    assert_eq!(named("PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"], "1Gi");
    let template = &job["spec"]["template"];
    let labels = template["metadata"]["labels"].as_object().unwrap();
    let service = &named("Service")["spec"];
    assert!(service["selector"].as_object().unwrap().iter().all(|(name, value)| labels[name] == *value));
    let container = &template["spec"]["containers"][0];
    let mounts: Vec<_> =
        container["volumeMounts"].as_array().unwrap().iter().map(|it| &it["mountPath"]).collect();
    assert_eq!(mounts, ["/tmp", "/files", "/claim"]);
    let host = |node: &str| format!("devnet-{node}-pods");
    let port = check_judge(&arguments(&container["args"], "$(SLIPNET_START)"), host, nodes);
    assert_eq!(service["ports"][0]["port"].to_string(), port);
    assert_eq!(container["ports"][0]["containerPort"].to_string(), port);
    let heads: BTreeSet<&str> =
        of_kind(documents, "Service").filter_map(|it| it["metadata"]["name"].as_str()).collect();
    for node in nodes {
        assert!(heads.contains(host(node).as_str()), "{node}");
    }
    port
}

fn check_configs(name: &str, documents: &[Value]) {
    for map in of_kind(documents, "ConfigMap").filter(|map| map["data"]["node.yaml"].is_string()) {
        let text = map["data"]["node.yaml"].as_str().unwrap();
        let config = slipstream_config::parse(text, Path::new("/config/node.yaml")).unwrap();
        assert!(!config.network.peers.is_empty(), "{name}: {}", map["metadata"]["name"]);
        let pods = format!("{}-pods", map["metadata"]["name"].as_str().unwrap());
        assert!(config.api.allowed_hosts.contains(&pods), "{name}: {pods}");
    }
}

/// Goal: the nodes' operators apply the events, and the files name everything that they leave out.
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
    assert!(notes.is_empty(), "{notes}");
    for part in [
        "140000ms..155000ms,attack=junk-transactions",
        "30000ms..45000ms,lying-peers=corrupt-answers:2",
        "90000ms..,join",
        "70000ms..75000ms,restart",
        "100000ms..110000ms,pause",
        "165000ms..,bit-flip=",
        "200000ms..203000ms,wipe",
        "127.0.0.1:9000:8545",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let (text, notes) = written("archive-start");
    assert!(text.contains("45000ms..,export-snapshot") && text.contains("./shared:/devnet/shared"), "{text}");
    assert!(!notes.contains("{dir}"), "{notes}");
    let (text, notes) = written("epoch-change");
    assert!(text.contains("25000ms..,add-validator=") && text.contains("--waypoint-from"), "{text}");
    assert!(notes.is_empty(), "{notes}");
    let (text, notes) = written("rolling-upgrade");
    assert!(text.contains("15000ms..,upgrade=current") && text.contains("slipstream:before"), "{text}");
    assert!(notes.is_empty(), "{notes}");
    let (text, notes) = written("lying-validator");
    assert!(text.contains(",lie=") && text.contains("105000ms..115000ms,old-data"), "{text}");
    assert!(notes.contains(": twin validator-0 until"), "{text}");
    assert!(notes.contains("is not judged: lies of these validators are left out"), "{notes}");
}
