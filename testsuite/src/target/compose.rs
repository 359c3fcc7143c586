//! A Compose file: a service for each node, a sidecar beside it where there are regions, and the load as a service of a profile.

use std::path::Path;

use anyhow::{Context, Result};
use rustix::process::{getgid, getuid};
use serde_json::{Map, Value, json};

use super::{
    API_PORT, Member, NAME, NODE_IMAGE, PEERS_PORT, TOOLS_IMAGE, config, load, peers, sidecar, write_member,
    write_yaml,
};
use crate::{devnet::files, lab::Plan};

/// Where the devnet's directory is in a container.
const MOUNT: &str = "/devnet";
const COMMENT: &str = "Written by slipnet. All keys are known to everybody who knows the seed: for tests alone.\n\
                       Images: packaging/container/Containerfile (slipstream) and Containerfile.slipnet (slipnet).\n\
                       docker compose up -d; docker compose --profile load run --rm load; docker compose down";

pub(super) fn write(dir: &Path, plan: &Plan, members: &[Member]) -> Result<String> {
    let mut services = Map::new();
    for member in members {
        write_config(dir, plan, members, member)?;
        services.insert(member.name.clone(), service(plan, member)?);
        if let Some(arguments) = sidecar(plan, members, member, host) {
            services.insert(format!("relay-{}", member.name), relay(member, &arguments));
        }
    }
    let generator = json!({
        "image": TOOLS_IMAGE,
        "profiles": ["load"],
        "command": load(plan, members, host),
    });
    services.insert("load".to_owned(), generator);
    let path = dir.join("compose.yaml");
    write_yaml(&path, COMMENT, &json!({ "name": NAME, "services": services }))?;
    Ok(format!(
        "{}\nstart: docker compose -f {} up -d\nload:  docker compose -f {} --profile load run --rm load\n",
        path.display(),
        path.display(),
        path.display()
    ))
}

/// Services are reached by their names.
fn host(member: &Member) -> String {
    member.name.clone()
}

fn write_config(dir: &Path, plan: &Plan, members: &[Member], member: &Member) -> Result<()> {
    let mut config = config(plan, &peers(plan, members, member, host));
    config["role"] = json!(member.role.name());
    config["data_dir"] = json!(files::DATA);
    config["genesis"] = json!(format!("../{}", files::GENESIS));
    config["key_file"] = json!(files::KEY);
    config["network"]["listen"] = json!(format!("0.0.0.0:{PEERS_PORT}"));
    config["api"] = json!({ "listen": format!("0.0.0.0:{API_PORT}"), "allowed_hosts": [member.name] });
    let path = write_member(dir, member)?.join(files::CONFIG);
    write_yaml(&path, "Written by slipnet. Relative paths start at this file's directory.", &config)
}

fn service(plan: &Plan, member: &Member) -> Result<Value> {
    let base = plan.devnet.base_port.unwrap_or(API_PORT);
    let port = u16::try_from(member.index).ok().and_then(|index| base.checked_add(index));
    let port = port.context("the ports behind --base-port are not enough")?;
    let (name, genesis) = (&member.name, files::GENESIS);
    let mut service = json!({
        "image": NODE_IMAGE,
        // Whoever wrote the key, which nobody else can read.
        "user": format!("{}:{}", getuid().as_raw(), getgid().as_raw()),
        "command": ["run", "--config", format!("{MOUNT}/{name}/{}", files::CONFIG)],
        "volumes": [format!("./{genesis}:{MOUNT}/{genesis}:ro"), format!("./{name}:{MOUNT}/{name}")],
        "ports": [format!("127.0.0.1:{port}:{API_PORT}")],
        "stop_grace_period": "60s",
    });
    let mut labels = json!({ "slipstream.role": member.role.name() });
    if let Some(region) = plan.region(member.index) {
        labels["slipstream.region"] = json!(region.name());
    }
    service["labels"] = labels;
    Ok(service)
}

/// In its node's network: the node dials it on loopback.
fn relay(member: &Member, arguments: &[String]) -> Value {
    json!({
        "image": TOOLS_IMAGE,
        "network_mode": format!("service:{}", member.name),
        "depends_on": [member.name],
        "command": arguments,
    })
}
