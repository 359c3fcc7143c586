//! The texts that operators read, word by word: help and usual mistakes. `./x bless` writes them anew into `snapshots`.

use std::{
    fs,
    net::{TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    process::Command,
};

use slipstream_base::keys;

use crate::chain::{BINARY, Chain, closed_port, printed};

/// Compares a text with its snapshot, without ports and keys.
fn check(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.add_filter(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT");
    settings.add_filter(r"\b[0-9a-f]{64}\b", "HEX");
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// The help of a command, and of the commands below it.
fn help(command: &[&str]) -> String {
    let own = printed(&[command, &["--help"]].concat(), true);
    let mut text = format!("$ slipstream {} --help\n{own}", command.join(" "));
    for name in names(&own) {
        text += &format!("\n{}", help(&[command, &[name.as_str()]].concat()));
    }
    text
}

/// The commands that a help lists, except `help` itself.
fn names(help: &str) -> Vec<String> {
    let list =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Lines that continue a description are indented further.
    let entries = list.filter_map(|line| line.strip_prefix("  ")).filter(|entry| !entry.starts_with(' '));
    let names = entries.filter_map(|entry| entry.split(' ').next()).filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

/// Goal: nobody changes a command's help without seeing it.
#[test]
fn help_is_worded_as_before() {
    let text = printed(&["--help"], true);
    check("help", &text);
    let names = names(&text);
    assert!(names.len() > 15, "{names:?}");
    names.iter().for_each(|name| check(&format!("help-{name}"), &help(&[name.as_str()])));
}

/// What a command that fails in this directory prints, after its exit code. The log is off, so nothing has a time.
fn refusal(chain: &Chain, command: &[&str]) -> String {
    let output = Command::new(BINARY)
        .args(command)
        .current_dir(chain.dir.path())
        .env("RUST_LOG", "off")
        .output()
        .unwrap();
    let code = output.status.code().unwrap();
    assert_ne!(code, 0, "{command:?}");
    let text = [output.stdout, output.stderr].concat();
    format!("exit code {code}\n{}", String::from_utf8(text).unwrap())
}

/// Goal: the texts about usual mistakes stay as they were, unless somebody means to change them.
#[test]
fn mistakes_are_worded_as_before() {
    const RUN: [&str; 3] = ["run", "--config", "node.yaml"];
    let chain = Chain::new();
    let wrong = |name: &str, command: &[&str]| check(&format!("mistake-{name}"), &refusal(&chain, command));
    let misconfigured = |name: &str, lines: &str| {
        chain.configure(lines);
        wrong(name, &RUN);
    };
    wrong("no-such-command", &["statsu"]);
    wrong("no-argument", &["run"]);
    wrong("no-configuration", &["run", "--config", "none.yaml"]);
    wrong("no-trust", &["init", "--dir", "new"]);
    wrong("not-a-url", &["status", "--api", "localhost:8545"]);
    let (_held, closed) = closed_port();
    wrong("no-node", &["status", "--api", &format!("http://{closed}")]);

    misconfigured("unknown-key", "storrage: {}\n");
    misconfigured("wrong-type", "sync: { mode: fast }\n");
    misconfigured("out-of-range", "network: { listen: \"127.0.0.1:0\", transfer_timeout_ms: 1 }\n");
    misconfigured("no-key", "key_file: nowhere.key\n");
    keys::save(&chain.path("other.key"), &slipstream_testkit::key(8)).unwrap();
    misconfigured("wrong-key", "key_file: other.key\n");
    fs::set_permissions(chain.path("other.key"), fs::Permissions::from_mode(0o644)).unwrap();
    misconfigured("open-key", "key_file: other.key\n");
    misconfigured("not-a-waypoint", "waypoint: 12\n");

    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    misconfigured("port-taken", &format!("api: {{ listen: \"{}\" }}\n", tcp.local_addr().unwrap()));
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    misconfigured("peers-port-taken", &format!("network: {{ listen: \"{}\" }}\n", udp.local_addr().unwrap()));

    chain.configure("");
    fs::write(chain.path("genesis.json"), "{\n  \"chain\": 1 }").unwrap();
    wrong("not-a-genesis", &RUN);
    fs::remove_file(chain.path("genesis.json")).unwrap();
    wrong("no-genesis", &RUN);
}
