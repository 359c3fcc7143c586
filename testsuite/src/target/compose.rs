//! A Compose file: a service for each node, a sidecar beside it where links have a shape, and the load as a service of a profile.

use std::path::Path;

use anyhow::{Context, Result};
use rustix::process::{getgid, getuid};
use serde_json::{Map, Value, json};

use super::{
    API_PORT, Blueprint, Member, NAME, NODE_IMAGE, PEERS_PORT, TOOLS_IMAGE, config, escaped, load, peers,
    sidecar, write_member, write_yaml,
};
use crate::file_names;

/// The path of the devnet's directory in a container.
const MOUNT: &str = "/devnet";
/// The load's service.
const LOAD: &str = "load";
/// When an image is fetched.
const PULL: &str = "never";
const COMMENT: &str = "Written by slipnet. Everybody who knows the seed knows all keys: use them only for tests.\n\
                       Images: packaging/container/Containerfile (slipstream) and Containerfile.slipnet (slipnet).";

pub(super) fn write(blueprint: &Blueprint) -> Result<String> {
    let mut services = Map::new();
    for (place, member) in blueprint.members.iter().enumerate() {
        write_config(blueprint, member)?;
        services.insert(member.name.clone(), service(blueprint, place, member)?);
        if let Some(arguments) = sidecar(blueprint, member, host) {
            services.insert(format!("relay-{}", member.name), relay(member, &arguments));
        }
    }
    let arguments = escaped(&load(blueprint, host));
    let load = json!({ "image": TOOLS_IMAGE, "pull_policy": PULL, "profiles": [LOAD], "command": arguments });
    services.insert(LOAD.to_owned(), load);
    let path = blueprint.dir.join("compose.yaml");
    let comment = format!("{COMMENT}\n{}", usage(Path::new("compose.yaml")));
    write_yaml(&path, &comment, &json!({ "name": NAME, "services": services }))?;
    Ok(format!("{}\n{}", path.display(), usage(&path)))
}

/// How the file is used.
fn usage(file: &Path) -> String {
    let compose = format!("docker compose -f {}", file.display());
    // The node's image declares a volume that these nodes do not use. Each container has its own, which `--volumes`
    // removes.
    format!(
        "start: {compose} up -d\nload:  {compose} --profile {LOAD} run --rm {LOAD}\nstop:  {compose} --profile '*' down --volumes\n"
    )
}

/// Services are reached by their names.
fn host(member: &Member) -> String {
    member.name.clone()
}

fn write_config(blueprint: &Blueprint, member: &Member) -> Result<()> {
    let mut config = config(blueprint, member, &peers(blueprint, member, host));
    config["role"] = json!(member.role.name());
    config["data_dir"] = json!(file_names::DATA);
    config["genesis"] = json!(format!("../{}", file_names::GENESIS));
    config["key_file"] = json!(file_names::KEY);
    config["network"]["listen"] = json!(format!("0.0.0.0:{PEERS_PORT}"));
    config["api"]["listen"] = json!(format!("0.0.0.0:{API_PORT}"));
    config["api"]["allowed_hosts"] = json!([member.name]);
    let dir = write_member(&blueprint.dir, member)?;
    let path = dir.join(file_names::CONFIG);
    write_yaml(&path, "Written by slipnet. Relative paths start at this file's directory.", &config)
}

/// Returns the port of a node's API on this machine.
fn port(blueprint: &Blueprint, place: usize) -> Option<u16> {
    let base = blueprint.base_port.unwrap_or(API_PORT);
    u16::try_from(place).ok().and_then(|place| base.checked_add(place))
}

fn service(blueprint: &Blueprint, place: usize, member: &Member) -> Result<Value> {
    let port = port(blueprint, place).context("there are too few ports from --base-port on")?;
    let (name, genesis) = (&member.name, file_names::GENESIS);
    let mut service = json!({
        "image": NODE_IMAGE,
        // The image is built here: a registry's image of that name is somebody else's.
        "pull_policy": PULL,
        // The user that wrote the key, which nobody else can read.
        "user": format!("{}:{}", getuid().as_raw(), getgid().as_raw()),
        "command": ["run", "--config", format!("{MOUNT}/{name}/{}", file_names::CONFIG)],
        "volumes": [format!("./{genesis}:{MOUNT}/{genesis}:ro"), format!("./{name}:{MOUNT}/{name}")],
        "ports": [format!("127.0.0.1:{port}:{API_PORT}")],
        "stop_grace_period": "60s",
    });
    let mut labels = json!({ "slipstream.role": member.role.name() });
    if let Some(region) = &member.region {
        labels["slipstream.region"] = json!(region);
    }
    service["labels"] = labels;
    Ok(service)
}

/// A sidecar runs in its node's network namespace, so that the node dials it on loopback.
fn relay(member: &Member, arguments: &[String]) -> Value {
    json!({
        "image": TOOLS_IMAGE,
        "pull_policy": PULL,
        "network_mode": format!("service:{}", member.name),
        "depends_on": [member.name],
        "command": escaped(arguments),
    })
}
