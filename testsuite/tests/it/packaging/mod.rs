//! Tests that systemd, Kubernetes and the node accept the units, charts and example configurations of `packaging/`.

mod cluster;
mod installed;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use slipnet::{
    devnet::DevnetOptions,
    plan::Plan,
    relay::{Limits, Link, Region},
    target::{self, Target},
};
use slipstream_config::Overrides;

use crate::common::{is_installed, target};

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(name)
}

/// Returns where `./x tools` installs programs.
fn tools() -> PathBuf {
    target().join("tools")
}

/// Returns the output of a program that must succeed.
fn printed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = String::from_utf8([stdout, stderr].concat()).unwrap();
    assert!(status.success(), "{command:?}: {text}");
    text
}

/// Returns the chart's output for a release with this name, or Helm's error.
fn chart(release: &str, arguments: impl IntoIterator<Item = OsString>) -> Result<String, String> {
    let output = Command::new(tools().join("helm"))
        // A Helm that was not built for a release knows only an old version.
        .args(["template", release, "--kube-version", "1.34.0"])
        .arg(packaging("helm/slipstream"))
        .args(arguments)
        .output()
        .unwrap();
    let (text, error) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    if output.status.success() { Ok(text) } else { Err(error) }
}

/// Returns the chart's output for a file of values.
fn rendered(values: &str, more: &[&str]) -> Result<String, String> {
    let values = ["--values".into(), packaging("helm/values").join(values).into()];
    chart("chain", values.into_iter().chain(more.iter().map(OsString::from)))
}

/// Returns the chart's output for values that `slipnet up --target kubernetes` wrote.
fn rendered_target(dir: &Path) -> String {
    let genesis = format!("genesis={}", dir.join("genesis.json").display());
    let values = dir.join("values.yaml");
    chart("devnet", ["--values".into(), values.into(), "--set-file".into(), genesis.into()]).unwrap()
}

/// Returns a devnet of two validators and a fullnode in these regions, whose files go to a directory.
fn plan(dir: &Path, regions: &[Region]) -> Plan {
    let devnet = DevnetOptions {
        validators: 2,
        fullnodes: 1,
        accounts: 3,
        dir: Some(dir.to_owned()),
        ..DevnetOptions::default()
    };
    Plan { devnet, regions: regions.to_vec(), limits: Limits::default() }
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect()
}

/// Checks that each `--link` of a sidecar is valid, and leads to another node's port for peers.
fn check_links(arguments: &Value, hosts: &[&str]) {
    let arguments = strings(arguments);
    assert_eq!(arguments[0], "relay");
    let links = arguments.iter().zip(&arguments[1..]).filter(|(flag, _)| **flag == "--link");
    let links: Vec<Link> = links.map(|(_, link)| link.parse().unwrap()).collect();
    assert!(!links.is_empty());
    for link in links {
        let (host, port) = link.target.rsplit_once(':').unwrap();
        assert!(hosts.contains(&host) && port == "7400" && link.listen.ip().is_loopback(), "{link}");
    }
}

/// Parses the documents of a rendered chart.
fn documents(text: &str) -> Vec<Value> {
    let documents = text.split("\n---\n").map(|text| text.trim_start_matches("---\n"));
    let documents =
        documents.filter(|text| text.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#')));
    documents
        .map(|text| serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}")))
        .collect()
}

fn of_kind<'a>(documents: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    documents.iter().filter(move |document| document["kind"] == kind)
}

/// Goal: the node accepts the example of an operator's first configuration.
#[test]
fn the_example_configuration_loads() {
    let config =
        slipstream_config::load(&packaging("config/node.yaml"), &Overrides::default()).unwrap().config;
    assert_eq!(config.data_dir, Path::new("/var/lib/slipstream/data"));
    assert!(config.api.listen.ip().is_loopback());
}

/// Goal: systemd accepts the unit, which gives the node few rights.
#[test]
fn systemd_takes_the_unit() {
    if !is_installed("systemd-analyze", || Command::new("systemd-analyze").arg("--version").output().is_ok())
    {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(packaging("systemd/slipstream.service")).unwrap();
    let unit = dir.path().join("slipstream.service");
    // The program and its manual are not installed here.
    let text =
        text.replace("/usr/bin/slipstream", "/bin/true").replace("Documentation=man:slipstream(1)\n", "");
    fs::write(&unit, text).unwrap();
    let said = printed(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit));
    assert!(!said.contains("slipstream.service:"), "{said}");
    // The scale is from 0, a service without rights, to 10, one with all rights.
    let said = printed(
        Command::new("systemd-analyze").args(["security", "--offline=true", "--threshold=20"]).arg(&unit),
    );
    assert!(said.contains("Overall exposure level"), "{said}");
}

/// Goal: Kubernetes and the node accept the chart's output for each example.
#[test]
fn the_chart_makes_what_kubernetes_and_the_node_take() {
    let schemas = tools().join("kubernetes");
    if !has_helm() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let genesis = dir.path().join("genesis.json");
    fs::write(&genesis, "{\"a\": \"b: c\"}\n").unwrap();
    let with_genesis = format!("genesis={}", genesis.display());
    for (values, role, replicas, has_genesis) in [
        ("validators.yaml", "validator", 4, true),
        ("fullnodes.yaml", "fullnode", 3, false),
        ("archive.yaml", "fullnode", 1, true),
    ] {
        let more = if has_genesis { vec!["--set-file", with_genesis.as_str()] } else { Vec::new() };
        let text = rendered(values, &more).unwrap();
        let documents = documents(&text);
        validate(&schemas, dir.path(), values, &documents);

        let configs: Vec<_> =
            of_kind(&documents, "ConfigMap").filter_map(|it| it["data"]["node.yaml"].as_str()).collect();
        let [config] = configs[..] else { panic!("{values}: {configs:?}") };
        let config = slipstream_config::parse(config, Path::new("/config/node.yaml")).unwrap();
        assert_eq!((config.role.name(), config.genesis.is_some()), (role, has_genesis), "{values}");
        assert_eq!((config.api.listen.port(), config.network.listen.port()), (8545, 7400), "{values}");
        // The Service for clients and that of the pods.
        let services = of_kind(&documents, "Service").filter_map(|it| it["metadata"]["name"].as_str());
        assert!(
            services.filter(|name| config.api.allowed_hosts.iter().any(|host| host == name)).count() == 2,
            "{values}"
        );

        let sets: Vec<_> = of_kind(&documents, "StatefulSet").collect();
        let [set] = sets[..] else { panic!("{values}: {sets:?}") };
        assert_eq!(set["spec"]["replicas"], replicas, "{values}");
        let node = &set["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(node["livenessProbe"]["httpGet"]["path"], "/health/live");
        assert_eq!(node["readinessProbe"]["httpGet"]["path"], "/health/ready");
        // Every mount has its volume, and everything that is selected exists.
        let spec = &set["spec"]["template"]["spec"];
        let volumes = [&spec["volumes"], &set["spec"]["volumeClaimTemplates"]];
        let names: Vec<_> = volumes
            .into_iter()
            .flat_map(|volumes| volumes.as_array().unwrap())
            .map(|volume| volume.get("name").unwrap_or(&volume["metadata"]["name"]))
            .collect();
        for container in [node, &spec["initContainers"][0]] {
            for mount in container["volumeMounts"].as_array().unwrap() {
                assert!(names.contains(&&mount["name"]), "{values}: {mount} has no volume");
            }
        }
        let labels = set["spec"]["template"]["metadata"]["labels"].as_object().unwrap();
        for service in of_kind(&documents, "Service") {
            let selector = service["spec"]["selector"].as_object().unwrap();
            assert!(selector.iter().all(|(name, value)| labels[name] == *value), "{values}: {service}");
        }
        assert_eq!(of_kind(&documents, "PodDisruptionBudget").count(), 1, "{values}");
        let monitors = usize::from(values == "validators.yaml");
        assert_eq!(of_kind(&documents, "ServiceMonitor").count(), monitors, "{values}");
    }
    let refused = rendered("validators.yaml", &["--set", "groups.validators.keysSecret="]).unwrap_err();
    assert!(refused.contains("validators need keysSecret"), "{refused}");
}

/// Validates all documents except extension kinds with Kubernetes's own schemas, in one process: starting it takes far
/// longer than validating.
fn validate(schemas: &Path, dir: &Path, values: &str, documents: &[Value]) {
    let mut command = Command::new("python3");
    command.args(["-m", "kubernetes_validate", "--strict", "--quiet"]).env("PYTHONPATH", schemas);
    let is_known =
        |document: &&Value| document["kind"] != "ServiceMonitor" && document["kind"] != "PrometheusRule";
    let known = documents.iter().filter(is_known);
    for (index, document) in known.enumerate() {
        // JSON is YAML.
        let file = dir.join(format!("{values}-{index}.yaml"));
        fs::write(&file, serde_json::to_string_pretty(document).unwrap()).unwrap();
        command.arg(file);
    }
    printed(&mut command);
}

/// Returns Compose's own schema; `None` if it is missing and not required.
fn compose_schema() -> Option<jsonschema::Validator> {
    let schema = tools().join("compose-spec.json");
    if !is_installed("Compose's schema", || schema.exists()) {
        return None;
    }
    let mut schema: Value = serde_json::from_str(&fs::read_to_string(schema).unwrap()).unwrap();
    // It names its draft by a slightly different address, with https instead of http.
    schema.as_object_mut().unwrap().remove("$schema");
    Some(jsonschema::draft7::new(&schema).unwrap())
}

/// Returns the Compose file of a directory, which must match the schema.
fn compose_file(validator: &jsonschema::Validator, dir: &Path) -> Value {
    let text = fs::read_to_string(dir.join("compose.yaml")).unwrap();
    let file: Value = serde_saphyr::from_str(&text).unwrap();
    let problems: Vec<_> = validator.iter_errors(&file).map(|error| error.to_string()).collect();
    assert!(problems.is_empty(), "{problems:?}: {text}");
    file
}

/// Whether Helm and Kubernetes's schemas are installed.
fn has_helm() -> bool {
    is_installed("Helm with Kubernetes' schemas", || {
        tools().join("helm").exists() && tools().join("kubernetes").join("kubernetes_validate").exists()
    })
}

/// Goal: Compose and the nodes accept the output of `slipnet up --target compose`; with regions each node dials its
/// sidecar.
#[test]
fn compose_and_the_node_take_what_slipnet_writes() {
    let Some(validator) = compose_schema() else { return };
    for regions in [&[][..], &[Region::Eu, Region::Us]] {
        let dir = tempfile::tempdir().unwrap();
        target::write(Target::Compose, &plan(dir.path(), regions)).unwrap();
        let file = compose_file(&validator, dir.path());

        let nodes = ["validator-0", "validator-1", "fullnode-0"];
        for name in nodes {
            let path = dir.path().join(name).join("node.yaml");
            let config = slipstream_config::load(&path, &Overrides::default()).unwrap().config;
            assert_eq!(config.role.name(), name.split('-').next().unwrap());
            assert_eq!((config.api.listen.port(), config.network.listen.port()), (8545, 7400));
            assert_eq!(config.api.allowed_hosts, [name]);
            let peers: Vec<_> = config.network.peers.iter().map(ToString::to_string).collect();
            assert!(!peers.is_empty());
            let is_direct = |peer: &String| nodes.iter().any(|node| peer.ends_with(&format!("@{node}:7400")));
            let is_relayed = |peer: &String| peer.contains("@127.0.0.1:100");
            let service = &file["services"][name];
            assert!(strings(&service["volumes"]).contains(&format!("./{name}:/devnet/{name}").as_str()));
            let sidecar = &file["services"][format!("relay-{name}")];
            if regions.is_empty() {
                assert!(peers.iter().all(is_direct), "{peers:?}");
                assert!(sidecar.is_null());
            } else {
                assert!(peers.iter().all(is_relayed), "{peers:?}");
                assert_eq!(config.network.outbound, 0);
                assert_eq!(sidecar["network_mode"], format!("service:{name}"));
                check_links(&sidecar["command"], &nodes);
            }
        }
        let load = strings(&file["services"]["load"]["command"]);
        assert_eq!(load[..3], ["load", "--api", "http://validator-0:8545"]);
        // The load may start as soon as the containers exist, which is before the nodes are ready.
        assert!(load.windows(2).any(|pair| pair == ["--wait", "5m"]), "{load:?}");
        let mut services = file["services"].as_object().unwrap().values();
        assert!(services.all(|service| service["pull_policy"] == "never"), "an image is fetched");
    }
}

/// Goal: the chart, Kubernetes and the nodes accept the output of `slipnet up --target kubernetes`.
#[test]
fn the_chart_takes_what_slipnet_writes() {
    let schemas = tools().join("kubernetes");
    if !has_helm() {
        return;
    }
    for regions in [&[][..], &[Region::Eu, Region::Us]] {
        let dir = tempfile::tempdir().unwrap();
        target::write(Target::Kubernetes, &plan(dir.path(), regions)).unwrap();
        let text = rendered_target(dir.path());
        let mut documents = documents(&text);
        let keys: Value =
            serde_saphyr::from_str(&fs::read_to_string(dir.path().join("keys.yaml")).unwrap()).unwrap();
        documents.push(keys.clone());
        validate(&schemas, dir.path(), "target", &documents);

        let services: Vec<_> =
            of_kind(&documents, "Service").filter_map(|it| it["metadata"]["name"].as_str()).collect();
        let sets: Vec<_> = of_kind(&documents, "StatefulSet").collect();
        assert_eq!(sets.len(), 3);
        for set in sets {
            let name = set["metadata"]["name"].as_str().unwrap();
            assert!(keys["stringData"][format!("{name}-0.key")].is_string(), "{name} has no key");
            let containers = set["spec"]["template"]["spec"]["containers"].as_array().unwrap();
            assert_eq!(containers.len(), if regions.is_empty() { 1 } else { 2 });
            // The tag of `docker build -t slipstream`, not that of the chart's release.
            assert_eq!(containers[0]["image"], "slipstream:latest");
            assert!(containers.iter().all(|it| it["imagePullPolicy"] == "Never"), "an image is fetched");
            if let Some(sidecar) = containers.get(1) {
                check_links(&sidecar["args"], &services);
            }
        }
        for map in of_kind(&documents, "ConfigMap").filter(|map| map["data"]["node.yaml"].is_string()) {
            let config = map["data"]["node.yaml"].as_str().unwrap();
            let config = slipstream_config::parse(config, Path::new("/config/node.yaml")).unwrap();
            let peers: Vec<_> = config.network.peers.iter().map(ToString::to_string).collect();
            let is_known = |peer: &String| {
                let host = peer.split_once('@').unwrap().1.rsplit_once(':').unwrap().0;
                if regions.is_empty() { services.contains(&host) } else { host == "127.0.0.1" }
            };
            assert!(!peers.is_empty() && peers.iter().all(is_known), "{peers:?}");
        }
        let jobs: Vec<_> = of_kind(&documents, "Job").collect();
        assert_eq!(jobs.len(), 1);
        let job = &jobs[0]["spec"]["template"]["spec"];
        // The container's root is read-only, and generators write files.
        assert_eq!(job["containers"][0]["volumeMounts"][0]["mountPath"], "/tmp");
        assert_eq!(job["volumes"][0]["name"], job["containers"][0]["volumeMounts"][0]["name"]);
        let arguments = strings(&job["containers"][0]["args"]);
        assert_eq!(arguments[..3], ["load", "--api", "http://devnet-validator-0:8545"]);
        assert!(arguments.windows(2).any(|pair| pair == ["--wait", "5m"]), "{arguments:?}");
    }
}
