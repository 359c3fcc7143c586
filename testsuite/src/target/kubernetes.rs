//! Values for the Helm chart in packaging/helm: a group for each node, its sidecar where there are regions, and the load as a job.

use std::{fs::File, io::Write as _, os::unix::fs::OpenOptionsExt, path::Path};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::{Member, NAME, TOOLS_IMAGE, config, load, peers, sidecar, write_yaml, yaml};
use crate::{devnet::files, lab::Plan};

/// The Secret of all nodes' keys.
const SECRET: &str = "devnet-keys";
const COMMENT: &str = "Values for packaging/helm/slipstream, written by slipnet. All keys are known to everybody who knows the seed: for tests alone.\n\
                       The release must be called devnet: nodes find each other by the names of its services.";

pub(super) fn write(dir: &Path, plan: &Plan, members: &[Member]) -> Result<String> {
    let mut groups = Map::new();
    for member in members {
        groups.insert(member.name.clone(), group(plan, members, member));
    }
    let jobs = json!({ "load": { "image": TOOLS_IMAGE, "args": load(plan, members, service) } });
    let values = dir.join("values.yaml");
    write_yaml(&values, COMMENT, &json!({ "groups": groups, "jobs": jobs }))?;
    let keys = dir.join("keys.yaml");
    write_keys(&keys, members)?;
    let genesis = dir.join(files::GENESIS);
    Ok(format!(
        "{values}\nstart: kubectl apply -f {keys}\n       helm install {NAME} packaging/helm/slipstream -f {values} --set-file genesis={genesis}\n",
        values = values.display(),
        keys = keys.display(),
        genesis = genesis.display()
    ))
}

/// The name that the chart gives a group's Service for clients.
fn service(member: &Member) -> String {
    format!("{NAME}-{}", member.name)
}

/// The name of its Service for peers.
fn host(member: &Member) -> String {
    format!("{}-peers", service(member))
}

fn group(plan: &Plan, members: &[Member], member: &Member) -> Value {
    let mut group = json!({
        "role": member.role.name(),
        "replicas": 1,
        "keysSecret": SECRET,
        "config": config(plan, &peers(plan, members, member, host)),
        "storage": { "size": "10Gi" },
        "resources": {
            "requests": { "cpu": "250m", "memory": "512Mi" },
            "limits": { "memory": "2Gi" },
        },
    });
    if let Some(region) = plan.region(member.index) {
        group["annotations"] = json!({ "slipstream.dev/region": region.name() });
    }
    if let Some(arguments) = sidecar(plan, members, member, host) {
        group["sidecars"] = json!([{
            "name": "relay",
            "image": TOOLS_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "args": arguments,
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            },
            "resources": {
                "requests": { "cpu": "100m", "memory": "64Mi" },
                // Both directions of all links may be full, 32 MiB each; a few are.
                "limits": { "memory": "1Gi" },
            },
        }]);
    }
    group
}

/// A Secret with the file that the chart expects for each pod. Readable by its owner alone, as keys are.
fn write_keys(path: &Path, members: &[Member]) -> Result<()> {
    let key = |member: &Member| {
        let text = hex::encode(member.key.seed()) + "\n";
        (format!("{}-0.key", service(member)), Value::String(text))
    };
    let keys: Map<String, Value> = members.iter().map(key).collect();
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": SECRET },
        "type": "Opaque",
        "stringData": keys,
    });
    let text = yaml(&secret).context("the keys are no YAML")?;
    let file = File::options().create(true).truncate(true).write(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}
