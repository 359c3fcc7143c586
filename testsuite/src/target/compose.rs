//! A Compose file: a service for each node, a sidecar for nodes with relays, and loads as services of a profile.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use rustix::process::{getgid, getuid};
use serde_json::{Map, Value, json};

use super::{
    ACCESS_LISTS, API_PORT, Blueprint, JUDGE, Member, NAME, NODE_IMAGE, PEERS_PORT, REPORT, SCENARIO, START,
    TOOLS_IMAGE, Written, comment, config, escaped, judge, load, notes, operator, peers, programs, sidecar,
    write_member, write_private, write_yaml,
};
use crate::{accounts::judge_secret, devnet::files, load::JUDGE_SECRET};

/// The path of the devnet's directory in a container.
const MOUNT: &str = "/devnet";
/// The directory beside compose.yaml that all nodes share.
const SHARED_DIR: &str = "shared";
/// The file beside compose.yaml with the judge's secret.
const JUDGE_ENV: &str = "judge.env";
/// The pull policy of images.
const PULL: &str = "never";
/// The variable that Compose expands to the start; the text after `?` is its error message.
const START_VARIABLE: &str =
    "${SLIPNET_START:?write SLIPNET_START=SECONDS_SINCE_1970 into .env beside this file}";
const COMMENT: &str = "Written by slipnet. All keys are known to everybody who knows the seed: for tests alone.\n\
                       Images: packaging/container/Containerfile (slipstream) and Containerfile.slipnet (slipnet).";

pub(super) fn write(blueprint: &Blueprint) -> Result<Written> {
    let mut services = Map::new();
    let mut add = |name: String, service: Value| -> Result<()> {
        ensure!(
            services.insert(name.clone(), service).is_none(),
            "two services would be called {name}: rename the nodes or phases of that name"
        );
        Ok(())
    };
    for (place, member) in blueprint.members.iter().enumerate() {
        ensure!(
            ![REPORT, SHARED_DIR].contains(&member.name.as_str()),
            "a node is called {}, as a directory beside compose.yaml is: rename it",
            member.name
        );
        write_config(blueprint, member)?;
        add(member.name.clone(), service(blueprint, place, member)?)?;
        if let Some(arguments) = sidecar(blueprint, member, host) {
            add(relay_name(&member.name), relay(blueprint, member, &arguments))?;
        }
    }
    for job in &blueprint.jobs {
        let arguments = escaped(&load(blueprint, job, host, JUDGE), start(blueprint.is_timed));
        let mut service =
            json!({ "image": TOOLS_IMAGE, "pull_policy": PULL, "profiles": ["load"], "command": arguments });
        if let Some(dir) = &job.access_lists {
            let source = dir.display().to_string().replace('$', "$$");
            let lists =
                json!({ "type": "bind", "source": source, "target": ACCESS_LISTS, "read_only": true });
            service["volumes"] = json!([lists]);
            // The user that can read that directory.
            service["user"] = json!(user());
        }
        give_secret(blueprint, &mut service);
        add(job.name.clone(), service)?;
    }
    if let Some(scenario) = &blueprint.judged {
        let secret = format!("{JUDGE_SECRET}={}\n", judge_secret(&blueprint.seed));
        write_private(&blueprint.dir.join(JUDGE_ENV), &secret)?;
        add(JUDGE.to_owned(), judge_service(blueprint, scenario)?)?;
    }
    if blueprint.shared.is_some() {
        let shared = blueprint.dir.join(SHARED_DIR);
        fs::create_dir_all(&shared)
            .with_context(|| format!("cannot make the directory {}", shared.display()))?;
    }
    let notes = notes(blueprint);
    let path = blueprint.dir.join("compose.yaml");
    let comment = comment(&format!("{COMMENT}\n{}", usage(blueprint, Path::new("compose.yaml"))), &notes);
    write_yaml(&path, &comment, &json!({ "name": NAME, "services": services }))?;
    Ok(Written { usage: format!("{}\n{}", path.display(), usage(blueprint, &path)), notes })
}

/// Describes how to use the file.
fn usage(blueprint: &Blueprint, file: &Path) -> String {
    let compose = format!("docker compose -f {}", file.display());
    // The node's image has a volume that these nodes do not use, and each container gets its own.
    let stop = format!("stop:  {compose} --profile '*' down --volumes\n");
    if !blueprint.is_timed {
        return format!("start: {compose} up -d\nload:  {compose} --profile load run --rm load\n{stop}");
    }
    let env = file.with_file_name(".env");
    let image = programs::usage(blueprint, file.parent().unwrap_or(Path::new("")));
    let loads = blueprint.jobs.iter().map(|job| job.name.as_str());
    let waited: Vec<&str> = loads.chain(blueprint.judged.as_ref().map(|_| JUDGE)).collect();
    format!(
        "{image}start: echo {START}=$(($(date +%s) + 60)) > {env} && {compose} --profile load up -d\n\
         {START} is when the scenario's clock begins: give nodes the time to start before it\n\
         ends:  {compose} --profile load wait {waited}   # tells exit codes; once they have ended, ps -a in place of wait does\n\
         judge: {compose} --profile load logs {JUDGE}   # the criteria; the report is in {report}\n{stop}",
        env = env.display(),
        waited = waited.join(" "),
        report = file.with_file_name(REPORT).display()
    )
}

fn start(is_timed: bool) -> Option<&'static str> {
    is_timed.then_some(START_VARIABLE)
}

/// Returns the host name: services are reached by their names.
fn host(member: &Member) -> String {
    member.name.clone()
}

fn relay_name(node: &str) -> String {
    format!("relay-{node}")
}

fn write_config(blueprint: &Blueprint, member: &Member) -> Result<()> {
    let mut config = config(blueprint, member, &peers(blueprint, member, host));
    config["role"] = json!(member.role.name());
    config["data_dir"] = json!(files::DATA);
    config["genesis"] = json!(format!("../{}", files::GENESIS));
    config["key_file"] = json!(files::KEY);
    config["network"]["listen"] = json!(format!("0.0.0.0:{PEERS_PORT}"));
    config["api"]["listen"] = json!(format!("0.0.0.0:{API_PORT}"));
    config["api"]["allowed_hosts"] = json!([member.name]);
    let dir = write_member(&blueprint.dir, member)?;
    if member.disk_mib.is_some() {
        // Otherwise the mount of the disk would create the directory as root.
        let data = dir.join(files::DATA);
        fs::create_dir_all(&data).with_context(|| format!("cannot make the directory {}", data.display()))?;
    }
    let path = dir.join(files::CONFIG);
    write_yaml(&path, "Written by slipnet. Relative paths start at this file's directory.", &config)
}

/// Returns the port of a node's API on this machine.
fn port(blueprint: &Blueprint, place: usize) -> Option<u16> {
    let base = blueprint.base_port.unwrap_or(API_PORT);
    u16::try_from(place).ok().and_then(|place| base.checked_add(place))
}

fn service(blueprint: &Blueprint, place: usize, member: &Member) -> Result<Value> {
    let port = port(blueprint, place).context("the ports behind --base-port are not enough")?;
    let (name, genesis) = (&member.name, files::GENESIS);
    let config = format!("{MOUNT}/{name}/{}", files::CONFIG);
    let (image, command) = match operator(blueprint, member, &config, (host, JUDGE)) {
        Some(arguments) => (member.operator_image(), escaped(&arguments, start(blueprint.is_timed))),
        None => (NODE_IMAGE, vec!["run".to_owned(), "--config".to_owned(), config]),
    };
    let mut service = json!({
        "image": image,
        // The image is built here: a registry's image of that name is somebody else's.
        "pull_policy": PULL,
        // The user that wrote the key, which nobody else can read.
        "user": user(),
        "command": command,
        "volumes": [format!("./{genesis}:{MOUNT}/{genesis}:ro"), format!("./{name}:{MOUNT}/{name}")],
        "ports": [format!("127.0.0.1:{port}:{API_PORT}")],
        "stop_grace_period": "60s",
    });
    if member.is_operated() {
        give_secret(blueprint, &mut service);
    }
    if let Some(volumes) = service["volumes"].as_array_mut() {
        volumes.extend(blueprint.shared.map(|shared| json!(format!("./{SHARED_DIR}:{shared}"))));
        let target = format!("{MOUNT}/{name}/{}", files::DATA);
        let disk = |mib: u64| json!({ "type": "tmpfs", "target": target, "tmpfs": { "size": mib << 20 } });
        volumes.extend(member.disk_mib.map(disk));
    }
    let mut labels = json!({ "slipstream.role": member.role.name() });
    if let Some(region) = &member.region {
        labels["slipstream.region"] = json!(region);
    }
    service["labels"] = labels;
    Ok(service)
}

/// Makes the judge's service. It reads its scenario, and writes its report, beside compose.yaml.
fn judge_service(blueprint: &Blueprint, scenario: &str) -> Result<Value> {
    let path = blueprint.dir.join(SCENARIO);
    fs::write(&path, scenario).with_context(|| format!("cannot write {}", path.display()))?;
    let report = blueprint.dir.join(REPORT);
    fs::create_dir_all(&report).with_context(|| format!("cannot make the directory {}", report.display()))?;
    let arguments = judge(blueprint, host, (MOUNT, &format!("{MOUNT}/{REPORT}")));
    let mut service = json!({
        "image": TOOLS_IMAGE,
        "pull_policy": PULL,
        // In the profile of the loads, because it waits for them.
        "profiles": ["load"],
        // The user that made the report's directory.
        "user": user(),
        "command": escaped(&arguments, start(blueprint.is_timed)),
        "volumes": [format!("./{SCENARIO}:{MOUNT}/{SCENARIO}:ro"), format!("./{REPORT}:{MOUNT}/{REPORT}")],
    });
    give_secret(blueprint, &mut service);
    Ok(service)
}

/// Gives a service the judge's secret, if there is a judge.
fn give_secret(blueprint: &Blueprint, service: &mut Value) {
    if blueprint.judged.is_some() {
        service["env_file"] = json!([format!("./{JUDGE_ENV}")]);
    }
}

/// Returns the user that writes these files.
fn user() -> String {
    format!("{}:{}", getuid().as_raw(), getgid().as_raw())
}

/// Makes the sidecar in its node's network, where the node dials it on loopback.
fn relay(blueprint: &Blueprint, member: &Member, arguments: &[String]) -> Value {
    let is_timed = blueprint.is_timed && !member.changes.is_empty();
    json!({
        "image": TOOLS_IMAGE,
        "pull_policy": PULL,
        "network_mode": format!("service:{}", member.name),
        "depends_on": [member.name],
        "command": escaped(arguments, start(is_timed)),
    })
}
