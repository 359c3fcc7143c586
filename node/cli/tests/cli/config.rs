//! The sources of a node's configuration: presets, variables, flags, instances.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use serde_json::Value;
use slipstream_base::keys;
use slipstream_config::Preset;

use crate::{
    chain::{BINARY, Chain, PATIENCE, Running, ended, free_ports, printed, wait},
    process::until,
};

/// The exit code and output of a command with a variable in its environment.
fn with_variable(name: &str, value: &str, args: &[&str]) -> (i32, String) {
    let output = Command::new(BINARY).args(args).env(name, value).output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.code().unwrap(), text)
}

/// Goal: a value from the environment or the command line reaches every command, in the documented order. A mistake in
/// such a value is named, and nothing starts.
#[test]
fn variables_and_flags_stand_above_the_file() {
    let chain = Chain::new();
    let config = chain.config();
    let show = ["config", "show", "--origin", "--config", &config];
    let (code, text) = with_variable("SLIPSTREAM__SYNC__MODE", "delta", &show);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("  mode: delta # environment variable SLIPSTREAM__SYNC__MODE\n"), "{text}");
    assert!(text.contains(&format!("role: validator # {config}:1\n")), "{text}");
    let flagged = [&show[..], &["--set", "sync.mode=replay"]].concat();
    let (_, text) = with_variable("SLIPSTREAM__SYNC__MODE", "delta", &flagged);
    assert!(text.contains("  mode: replay # --set sync.mode\n"), "{text}");

    let shown = chain.path("shown.yaml");
    let text = printed(&["config", "show", "--config", &config, "--set", "data_dir=elsewhere"], true);
    assert!(text.contains(&format!("data_dir: {}\n", chain.path("elsewhere").display())), "{text}");
    fs::write(&shown, &text).unwrap();
    assert_eq!(printed(&["config", "show", "--config", shown.to_str().unwrap()], true), text);

    for args in [
        vec!["run", "--config", &config],
        vec!["config", "check", &config],
        vec!["db", "stats", "--config", &config],
        vec!["snapshot", "list", "--config", &config],
        vec!["status", "--config", &config],
    ] {
        let (code, text) = with_variable("SLIPSTREAM__SYNC__MOD", "delta", &args);
        assert_eq!(code, 78, "{args:?}: {text}");
        assert!(
            text.contains("the environment variable SLIPSTREAM__SYNC__MOD: there is no key `sync.mod`; the nearest is SLIPSTREAM__SYNC__MODE"),
            "{args:?}: {text}"
        );
        let (code, text) = ended(&[&args[..], &["--set", "api.listen=nowhere"]].concat());
        assert_eq!(code, 78, "{args:?}: {text}");
        assert!(
            text.contains("--set api.listen: invalid socket address syntax, found `nowhere`"),
            "{args:?}: {text}"
        );
    }
    assert!(!chain.path("data").exists());
    // Without a configuration there is nothing to override.
    assert_eq!(ended(&["status", "--set", "sync.mode=auto"]).0, 2);
}

/// Goal: a node runs as its flags say, and a command with the same flags finds it.
#[test]
fn a_node_runs_on_what_flags_say() {
    let chain = Chain::new();
    let child = Command::new(BINARY)
        .args([
            "run",
            "--config",
            &chain.config(),
            "--set",
            "data_dir=other",
            "--set",
            "api.max_connections=7",
        ])
        .args(["--set", "log.filter=info # https://user:canary@host"])
        .stdout(Stdio::piped())
        .stderr(Stdio::from(fs::File::create(chain.path("log")).unwrap()))
        .spawn()
        .unwrap();
    let node = Running::of(child, &chain.path("log"));
    let lock = fs::read_to_string(chain.path("other/LOCK")).unwrap();
    assert!(lock.contains("https://***@host") && !lock.contains("canary"), "{lock}");
    assert!(!chain.path("data").exists());
    let listen = format!("api.listen={}", node.api);
    let status = printed(&["status", "--json", "--config", &chain.config(), "--set", &listen], true);
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["role"], "validator");
    node.stop();
}

/// Goal: `init` writes a short file for each kind of node; the loaded configuration shows which values come from the
/// preset.
#[test]
fn init_writes_presets_and_ports() {
    let chain = Chain::new();
    let (genesis, peer) = (chain.path("genesis.json"), format!("{}@127.0.0.1:7400", "12".repeat(32)));
    for preset in Preset::ALL.iter().map(|preset| preset.name()) {
        let line = format!(" # preset {preset}");
        let dir = chain.path(preset);
        let (dir, genesis) = (dir.to_str().unwrap(), genesis.to_str().unwrap());
        let args = ["init", "--dir", dir, "--preset", preset, "--genesis", genesis, "--peer", &peer];
        printed(&[&args[..], &["--api-port", "9545", "--network-port", "9400"]].concat(), true);
        let config = format!("{dir}/node.yaml");
        let text = printed(&["config", "show", "--origin", "--config", &config], true);
        assert!(text.contains(&line), "{text}");
        assert!(
            text.contains("listen: \"127.0.0.1:9545\"") && text.contains("listen: \"0.0.0.0:9400\""),
            "{text}"
        );
    }
    let (code, text) = ended(&["init", "--dir", "x", "--preset", "light", "--role", "validator"]);
    assert_eq!(code, 2, "{text}");
}

/// Goal: editors find a schema next to the file that names it, and it is the project's schema.
#[test]
fn init_writes_a_schema_for_editors() {
    let chain = Chain::new();
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/node.schema.json");
    let (dir, committed) = (chain.path("new"), fs::read_to_string(committed).unwrap());
    printed(&["init", "--dir", dir.to_str().unwrap(), "--role", "validator", "--schema"], true);
    let text = fs::read_to_string(dir.join("node.yaml")).unwrap();
    assert!(text.starts_with("# yaml-language-server: $schema=node.schema.json\n"), "{text}");
    assert_eq!(fs::read_to_string(dir.join("node.schema.json")).unwrap(), committed);
    assert_eq!(printed(&["config", "schema"], true), committed);
}

/// One node of the chain's file; `None` if another program took one of its ports meanwhile.
fn start_instance(chain: &Chain, config: &Path, number: u16) -> Option<Running> {
    let log = chain.path(&format!("log-{number}"));
    let number = number.to_string();
    let instance: &[&str] = if number == "0" { &[] } else { &["--instance", &number] };
    let mut child = Command::new(BINARY)
        .args(["run", "--config", config.to_str().unwrap()])
        .args(instance)
        .stdout(Stdio::piped())
        .stderr(Stdio::from(fs::File::create(&log).unwrap()))
        .spawn()
        .unwrap();
    let in_use = || fs::read_to_string(&log).unwrap().contains("cannot listen on");
    let mut ready = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut ready)
        .unwrap();
    let api = ready.split_once("api=http://").and_then(|(_, rest)| rest.split_once(' '));
    let Some((api, _)) = api else {
        let _ = child.wait();
        assert!(in_use(), "{}", fs::read_to_string(&log).unwrap());
        return None;
    };
    Some(Running { child, api: api.to_owned(), ready: ready.trim().to_owned(), log })
}

/// Goal: three nodes of one file run side by side, each with its own data, key and ports. They follow the same chain,
/// and are found by their number.
#[test]
fn three_instances_of_one_file_run_side_by_side() {
    let chain = Chain::new();
    let validator = Running::start(&chain);
    let (_, peer) = validator.ready.split_once("network=").unwrap();
    let peer = peer.split_whitespace().next().unwrap();
    let file = chain.path("fullnode.yaml");
    keys::create(&chain.path("full.key")).unwrap();
    let nodes = (0..5).find_map(|_| {
        // Ports may be taken after instances have started: then all start again with new keys.
        for number in 1..3 {
            let _ = fs::remove_dir_all(chain.path(&format!("full-{number}")));
            let _ = fs::remove_file(chain.path(&format!("full-{number}.key")));
        }
        let (api, network) = (free_ports(3), free_ports(3));
        let text = format!(
            "role: fullnode\ngenesis: genesis.json\ndata_dir: full\nkey_file: full.key\nnetwork: {{ listen: \"127.0.0.1:{network}\", peers: \
             [\"{peer}\"] }}\napi: {{ listen: \"127.0.0.1:{api}\" }}\n"
        );
        fs::write(&file, text).unwrap();
        let nodes: Option<Vec<_>> = (0..3).map(|number| start_instance(&chain, &file, number)).collect();
        Some((nodes?, api))
    });
    let (nodes, api) = nodes.expect("ports stay free for the moment of a start");
    let config = file.to_str().unwrap();
    let mut peers = Vec::new();
    for (number, node) in (0..).zip(&nodes) {
        assert_eq!(node.api, format!("127.0.0.1:{}", api + number));
        let number = number.to_string();
        let instance: &[&str] = if number == "0" { &[] } else { &["--instance", &number] };
        let status = printed(&[&["status", "--json", "--config", config], instance].concat(), true);
        let status: Value = serde_json::from_str(&status).unwrap();
        peers.push(status["peer_address"].as_str().unwrap().to_owned());
        let suffix = if number == "0" { String::new() } else { format!("-{number}") };
        let key = keys::load(&chain.path(&format!("full{suffix}.key"))).unwrap().public();
        assert!(peers[peers.len() - 1].starts_with(&key.to_string()), "{peers:?}");
        assert!(chain.path(&format!("full{suffix}/LOCK")).exists());
        if number != "0" {
            // The log is written in the background.
            until("the log tells of the key", || {
                let log = fs::read_to_string(&node.log).unwrap();
                (log.contains("made a key for this instance") && log.contains(&key.to_string())).then_some(())
            });
        }
    }
    peers.dedup();
    assert_eq!(peers.len(), 3);
    for node in nodes {
        node.stop();
    }
    // A second start uses the existing key.
    let before = fs::read_to_string(chain.path("full-1.key")).unwrap();
    if let Some(node) = start_instance(&chain, &file, 1) {
        node.stop();
    }
    assert_eq!(fs::read_to_string(chain.path("full-1.key")).unwrap(), before);
    validator.stop();

    let (code, text) = ended(&["config", "check", config, "--instance", "7"]);
    assert!(code == 78 && text.contains("full-7.key does not exist yet"), "{code}: {text}");
    for number in ["0", "201", "x"] {
        let (code, text) = ended(&["run", "--config", config, "--instance", number]);
        assert!(code == 2 && text.contains("write a number from 1 to 200"), "{code}: {text}");
    }
}

/// Goal: a peer is found by its name, and an unknown name is reported where an operator looks.
#[test]
fn a_peer_is_found_by_its_name() {
    let chain = Chain::new();
    let validator = Running::start(&chain);
    let (_, peer) = validator.ready.split_once("network=").unwrap();
    let (id, port) = (peer.split_once('@').unwrap().0, peer.rsplit_once(':').unwrap().1);
    let follower = Chain { dir: tempfile::tempdir().unwrap(), genesis: chain.genesis.clone() };
    keys::create(&follower.path("node.key")).unwrap();
    fs::copy(chain.path("genesis.json"), follower.path("genesis.json")).unwrap();
    let nobody = "12".repeat(32);
    let text = format!(
        "role: fullnode\ngenesis: genesis.json\nnetwork:\n  listen: 127.0.0.1:0\n  peers: [\"{id}@localhost:{port}\", \
         \"{nobody}@name.invalid:7400\"]\napi: {{ listen: \"127.0.0.1:0\" }}\n"
    );
    fs::write(follower.path("node.yaml"), text).unwrap();
    let node = Running::start(&follower);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status: Value = serde_json::from_str(&node.http("GET /v1/status", "")).unwrap();
        let peers = status["configured_peers"].as_array().unwrap();
        assert_eq!(peers[0]["peer"], format!("{id}@localhost:{port}"));
        let problem = peers[1]["problem"].as_str().unwrap_or_default();
        if peers[0]["state"] == "connected" && problem.starts_with("cannot resolve name.invalid: ") {
            break;
        }
        assert!(Instant::now() < deadline, "{status}");
        wait();
    }
    let text = printed(&["status", "--api", &format!("http://{}", node.api)], true);
    assert!(text.contains("cannot resolve name.invalid"), "{text}");
    node.stop();
    validator.stop();
}
