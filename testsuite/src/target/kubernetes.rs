//! Values for the Helm chart in packaging/helm: a group for each node, its sidecar where links have a shape, and the load as a job.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::{
    Blueprint, Member, NAME, NODE_IMAGE, TOOLS_IMAGE, config, escaped, load, peers, sidecar, write_yaml, yaml,
};
use crate::{file_names, private_file::write_private};

/// The Secret of all nodes' keys.
const SECRET: &str = "devnet-keys";
/// When a node of the cluster fetches an image: a registry's image of that name is somebody else's, and would be given the keys.
const PULL: &str = "Never";
/// The name of the load's job in the values.
const LOAD: &str = "load";
/// The most memory of a node.
const MEMORY_MIB: u64 = 2_048;
/// The longest name: the chart cuts longer ones, and the nodes would not find each other.
const NAME_BYTES_MAX: usize = 52;
/// The largest genesis: Kubernetes limits a ConfigMap to 1 MiB, including its names.
const GENESIS_BYTES_MAX: u64 = (1 << 20) - (8 << 10);
const COMMENT: &str = "Values for packaging/helm/slipstream, written by slipnet. Everybody who knows the seed knows all keys: use them only for tests.\n\
                       The release must be called devnet: nodes find each other by the names of its services.";

pub(super) fn write(blueprint: &Blueprint) -> Result<String> {
    let mut groups = Map::new();
    for member in &blueprint.members {
        check_name(&service(member))?;
        groups.insert(member.name.clone(), group(blueprint, member));
    }
    let load = json!({ "image": TOOLS_IMAGE, "args": escaped(&load(blueprint, service)) });
    let dir = &blueprint.dir;
    let (values, keys) = (dir.join("values.yaml"), dir.join("keys.yaml"));
    let genesis = dir.join(file_names::GENESIS);
    check_genesis(&genesis)?;
    // The image that packaging/container builds; the chart's own default is a release's image.
    let image = json!({ "repository": NODE_IMAGE, "tag": "latest", "pullPolicy": PULL });
    let value = json!({ "image": image, "groups": groups, "jobs": { LOAD: load } });
    write_yaml(&values, COMMENT, &value)?;
    write_keys(&keys, blueprint)?;
    Ok(format!(
        "{values}\nstart: kubectl apply -f {keys}\n       helm install {NAME} packaging/helm/slipstream -f {values} --set-file genesis={genesis}\n\
         ends:  kubectl wait --for condition=complete --timeout 90m job/{NAME}-{LOAD}   # one that failed never completes: kubectl get jobs\n",
        values = values.display(),
        keys = keys.display(),
        genesis = genesis.display(),
    ))
}

/// Refuses a genesis too large for a ConfigMap: Kubernetes would refuse the release.
fn check_genesis(path: &Path) -> Result<()> {
    let bytes = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    ensure!(
        bytes <= GENESIS_BYTES_MAX,
        "{} has {bytes} bytes, and a ConfigMap takes at most {GENESIS_BYTES_MAX}: use fewer accounts",
        path.display()
    );
    Ok(())
}

fn check_name(name: &str) -> Result<()> {
    ensure!(
        name.len() <= NAME_BYTES_MAX,
        "{name} is longer than {NAME_BYTES_MAX} bytes, which is the chart's limit for a name: use a shorter one"
    );
    Ok(())
}

/// Returns the chart's name of a group's Service for clients.
fn service(member: &Member) -> String {
    format!("{NAME}-{}", member.name)
}

/// The name of its Service for peers.
fn host(member: &Member) -> String {
    format!("{}-peers", service(member))
}

fn group(blueprint: &Blueprint, member: &Member) -> Value {
    let mut group = json!({
        "role": member.role.name(),
        "keysSecret": SECRET,
        "config": config(blueprint, member, &peers(blueprint, member, host)),
        "storage": { "size": "10Gi" },
        "resources": {
            "requests": { "cpu": "250m", "memory": "512Mi" },
            "limits": { "memory": format!("{MEMORY_MIB}Mi") },
        },
    });
    if let Some(region) = &member.region {
        group["annotations"] = json!({ "slipstream.dev/region": region });
    }
    if let Some(arguments) = sidecar(blueprint, member, host) {
        group["sidecars"] = json!([relay(&escaped(&arguments))]);
    }
    group
}

fn relay(arguments: &[String]) -> Value {
    json!({
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
    })
}

/// A Secret with the file that the chart expects for each pod.
fn write_keys(path: &Path, blueprint: &Blueprint) -> Result<()> {
    let key = |member: &Member| {
        let text = hex::encode(member.key.seed()) + "\n";
        (format!("{}-0.key", service(member)), Value::String(text))
    };
    let keys: Map<String, Value> = blueprint.members.iter().map(key).collect();
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": SECRET },
        "type": "Opaque",
        "stringData": keys,
    });
    write_private(path, &yaml(&secret).context("the keys are no YAML")?)
}
