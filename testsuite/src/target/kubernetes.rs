//! Values for the Helm chart in packaging/helm: a group for each node, with a sidecar if there are relays, and loads as
//! jobs.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::{
    Blueprint, JUDGE, JUDGE_PORT, Member, NAME, NODE_IMAGE, SCENARIO, START, TOOLS_IMAGE, Written, comment,
    config, escaped, judge, load, notes, operator, peers, programs, sidecar, write_private, write_yaml, yaml,
};
use crate::{accounts::judge_secret, devnet::files, load::JUDGE_SECRET};

/// The path at which the chart puts a node's configuration.
const CONFIG: &str = "/config/node.yaml";
/// The paths of a job's files, and of its claim.
const FILES: &str = "/files";
const CLAIM: &str = "/claim";
/// The claim whose directory all nodes share, if their keys name one. The user provides it: not every storage class
/// allows several pods to write.
const SHARED_CLAIM: &str = "devnet-shared";
/// The Secret of all nodes' keys, and its key with the judge's secret.
const SECRET: &str = "devnet-keys";
const JUDGE_KEY: &str = "judge.secret";
/// The pull policy: a registry's image of that name is somebody else's, and would get the keys.
const PULL: &str = "Never";
/// The ConfigMap with the start, which is unknown when the files are written, and its key.
const START_MAP: &str = "devnet-start";
const START_KEY: &str = "start";
/// The variable that Kubernetes expands to the start.
const START_VARIABLE: &str = "$(SLIPNET_START)";
/// The most memory of a node.
const MEMORY_MIB: u64 = 2_048;
/// The most memory of attackers beside a node.
const ATTACKERS_MIB: u64 = 1_024;
/// The longest name: the chart truncates longer ones, and the nodes would not find each other.
const NAME_BYTES_MAX: usize = 52;
/// The largest genesis: Kubernetes limits a ConfigMap to 1 MiB, including its names.
const GENESIS_BYTES_MAX: u64 = (1 << 20) - (8 << 10);
const COMMENT: &str = "Values for packaging/helm/slipstream, written by slipnet. All keys are known to everybody who knows the seed: for tests alone.\n\
                       The release must be called devnet: nodes find each other by the names of its services.";

pub(super) fn write(blueprint: &Blueprint) -> Result<Written> {
    let (mut groups, mut jobs) = (Map::new(), Map::new());
    for member in &blueprint.members {
        check_name(&service(member))?;
        groups.insert(member.name.clone(), group(blueprint, member));
    }
    let api = if blueprint.is_timed { pods } else { service };
    for job in &blueprint.jobs {
        check_name(&job_name(&job.name))?;
        let arguments = load(blueprint, job, api, &job_name(JUDGE));
        jobs.insert(job.name.clone(), job_value(blueprint, &arguments));
    }
    if let Some(scenario) = &blueprint.judged {
        ensure!(
            !groups.contains_key(JUDGE) && !jobs.contains_key(JUDGE),
            "a node or a load is called {JUDGE}, as what judges the scenario is: rename it"
        );
        jobs.insert(JUDGE.to_owned(), judge_value(blueprint, scenario));
    }
    let notes = notes(blueprint);
    let dir = &blueprint.dir;
    let values = dir.join("values.yaml");
    let genesis = dir.join(files::GENESIS);
    check_genesis(&genesis)?;
    // The image built by packaging/container; the chart's own version is that of a release.
    let image = json!({ "repository": NODE_IMAGE, "tag": "latest", "pullPolicy": PULL });
    let loads: Vec<String> = jobs.keys().map(|job| format!("job/{}", job_name(job))).collect();
    let mut value = json!({ "image": image, "groups": groups, "jobs": jobs });
    if blueprint.shared.is_some() {
        value["sharedClaim"] = json!(SHARED_CLAIM);
    }
    write_yaml(&values, &comment(COMMENT, &notes), &value)?;
    let keys = dir.join("keys.yaml");
    write_keys(&keys, blueprint)?;
    let usage = format!(
        "{values}\n{image}{claim}start: {start}kubectl apply -f {keys}\n       helm install {NAME} packaging/helm/slipstream -f {values} --set-file genesis={genesis}\n{loads}",
        values = values.display(),
        image = programs::usage(blueprint, dir),
        claim = claim_usage(blueprint),
        start = start_usage(blueprint.is_timed),
        keys = keys.display(),
        genesis = genesis.display(),
        loads = loads_usage(&loads, blueprint.judged.is_some()),
    );
    Ok(Written { usage, notes })
}

/// Describes what the user must provide if nodes share a directory.
fn claim_usage(blueprint: &Blueprint) -> String {
    if blueprint.shared.is_none() {
        return String::new();
    }
    format!(
        "claim: nodes share the directory of the claim {SHARED_CLAIM}, which is yours to make before: empty, ReadWriteMany, in a storage class that has such\n"
    )
}

/// Describes how to read the results of the loads, and the judge's report.
fn loads_usage(loads: &[String], is_judged: bool) -> String {
    let mut text = String::new();
    if !loads.is_empty() {
        text += &format!(
            "ends:  kubectl wait --for condition=complete --timeout 90m {loads}   # one that failed never completes: kubectl get jobs\n",
            loads = loads.join(" ")
        );
    }
    if is_judged {
        let judge = job_name(JUDGE);
        text += &format!(
            "judge: kubectl logs job/{judge}   # the criteria and the report; its JSON and HTML are in the claim {judge}\n"
        );
    }
    text
}

/// Returns the chart's name of a job and of its Service.
fn job_name(name: &str) -> String {
    format!("{NAME}-{name}")
}

fn job_value(blueprint: &Blueprint, arguments: &[String]) -> Value {
    let mut value = json!({ "image": TOOLS_IMAGE, "args": escaped(arguments, start(blueprint.is_timed)) });
    give_environment(blueprint, &mut value);
    value
}

/// Makes the judge's job, with its scenario in a ConfigMap, a Service for deliveries, and a claim for its report.
fn judge_value(blueprint: &Blueprint, scenario: &str) -> Value {
    let mut arguments = judge(blueprint, pods, (FILES, CLAIM));
    arguments.push("--markdown".to_owned());
    let mut value = job_value(blueprint, &arguments);
    value["files"] = json!({ SCENARIO: scenario });
    value["port"] = json!(JUDGE_PORT);
    value["storage"] = json!({ "size": "1Gi" });
    value
}

/// Refuses a genesis too large for a ConfigMap: Kubernetes would refuse the release.
fn check_genesis(path: &Path) -> Result<()> {
    let bytes = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    ensure!(
        bytes <= GENESIS_BYTES_MAX,
        "{} has {bytes} bytes, and a ConfigMap {GENESIS_BYTES_MAX} at most: take fewer accounts",
        path.display()
    );
    Ok(())
}

/// Describes how to set the start in the cluster.
fn start_usage(is_timed: bool) -> String {
    if !is_timed {
        return String::new();
    }
    format!(
        "kubectl create configmap {START_MAP} --from-literal {START_KEY}=$(($(date +%s) + 180))   # when the scenario's clock begins: nodes start before it\n       "
    )
}

fn check_name(name: &str) -> Result<()> {
    ensure!(
        name.len() <= NAME_BYTES_MAX,
        "{name} is longer than the {NAME_BYTES_MAX} bytes that the chart has for a name: use a shorter one"
    );
    Ok(())
}

/// Returns the chart's name of a group's Service for clients.
fn service(member: &Member) -> String {
    format!("{NAME}-{}", member.name)
}

/// Returns the name of its Service for its pods, which also resolves pods that are not ready: a scenario queries nodes
/// that are behind.
fn pods(member: &Member) -> String {
    format!("{}-pods", service(member))
}

/// Returns the name of its Service for peers.
fn host(member: &Member) -> String {
    format!("{}-peers", service(member))
}

fn start(is_timed: bool) -> Option<&'static str> {
    is_timed.then_some(START_VARIABLE)
}

fn start_variable() -> Value {
    json!({
        "name": START,
        "valueFrom": { "configMapKeyRef": { "name": START_MAP, "key": START_KEY } },
    })
}

/// Gives a container the start, and the judge's secret, if they exist.
fn give_environment(blueprint: &Blueprint, container: &mut Value) {
    let mut variables = Vec::new();
    if blueprint.is_timed {
        variables.push(start_variable());
    }
    if blueprint.judged.is_some() {
        let secret = json!({ "secretKeyRef": { "name": SECRET, "key": JUDGE_KEY } });
        variables.push(json!({ "name": JUDGE_SECRET, "valueFrom": secret }));
    }
    if !variables.is_empty() {
        container["env"] = json!(variables);
    }
}

fn group(blueprint: &Blueprint, member: &Member) -> Value {
    let mut group = json!({
        "role": member.role.name(),
        "keysSecret": SECRET,
        "config": config(blueprint, member, &peers(blueprint, member, host)),
        "storage": { "size": "10Gi" },
        "resources": {
            "requests": { "cpu": "250m", "memory": "512Mi" },
            "limits": { "memory": format!("{}Mi", memory_mib(member)) },
        },
    });
    if let Some(mib) = member.disk_mib {
        group["memoryDisk"] = json!(format!("{mib}Mi"));
    }
    if let Some(shared) = blueprint.shared {
        group["shared"] = json!(shared);
    }
    if let Some(arguments) = operator(blueprint, member, CONFIG, (pods, &job_name(JUDGE))) {
        group["image"] = json!(member.operator_image());
        group["args"] = json!(escaped(&arguments, start(blueprint.is_timed)));
        give_environment(blueprint, &mut group);
    }
    if let Some(region) = &member.region {
        group["annotations"] = json!({ "slipstream.dev/region": region });
    }
    if let Some(arguments) = sidecar(blueprint, member, host) {
        let is_timed = blueprint.is_timed && !member.changes.is_empty();
        group["sidecars"] = json!([relay(&escaped(&arguments, start(is_timed)), is_timed)]);
    }
    group
}

/// Returns the memory of a node. An in-memory disk counts as the node's memory, and so do attackers beside it.
fn memory_mib(member: &Member) -> u64 {
    let attackers = if member.has_attackers() { ATTACKERS_MIB } else { 0 };
    MEMORY_MIB + member.disk_mib.unwrap_or_default() + attackers
}

fn relay(arguments: &[String], is_timed: bool) -> Value {
    let mut container = json!({
        "name": "relay",
        "image": TOOLS_IMAGE,
        "imagePullPolicy": PULL,
        "args": arguments,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        "resources": {
            "requests": { "cpu": "100m", "memory": "64Mi" },
            // Both directions of all links may be full, with 32 MiB each; in practice a few are.
            "limits": { "memory": "1Gi" },
        },
    });
    if is_timed {
        container["env"] = json!([start_variable()]);
    }
    container
}

/// Writes a Secret with the file that the chart expects for each pod, and with the judge's secret if there is a judge.
fn write_keys(path: &Path, blueprint: &Blueprint) -> Result<()> {
    let key = |member: &Member| {
        let text = hex::encode(member.key.seed()) + "\n";
        (format!("{}-0.key", service(member)), Value::String(text))
    };
    let mut keys: Map<String, Value> = blueprint.members.iter().map(key).collect();
    if blueprint.judged.is_some() {
        keys.insert(JUDGE_KEY.to_owned(), judge_secret(&blueprint.seed).into());
    }
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": SECRET },
        "type": "Opaque",
        "stringData": keys,
    });
    write_private(path, &yaml(&secret).context("the keys are no YAML")?)
}
