//! The program's behaviour towards shells, readers of manuals and containers.

use std::{fs, process::Command};

use crate::{
    chain::{Chain, Running, ended, printed},
    process::until,
};

/// Goal: each shell gets a script that it accepts, and every command has a manual page.
#[test]
fn the_command_line_describes_itself() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(&["completions", shell], true);
        assert!(script.contains("slipstream") && script.contains("rollback"), "{shell}: {script}");
        let file = dir.path().join(shell);
        fs::write(&file, script).unwrap();
        // If the shell is installed, it checks the script's syntax.
        if let Ok(output) = Command::new(shell).arg("-n").arg(&file).output() {
            assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    assert_eq!(ended(&["completions", "cmd"]).0, 2);
    let man = dir.path().join("share/man");
    assert!(printed(&["man", man.to_str().unwrap()], true).contains("slipstream.1"));
    for page in ["slipstream.1", "slipstream-run.1", "slipstream-peers-ban.1", "slipstream-db-rollback.1"] {
        let text = fs::read_to_string(man.join(page)).unwrap();
        assert!(text.starts_with(".ie") && text.contains(".SH NAME"), "{page}: {text}");
    }
}

/// Goal: the exit code tells a container's supervisor whether the process works, and a load balancer's whether it is
/// ready.
#[test]
fn health_is_an_exit_code() {
    let chain = Chain::new();
    let node = Running::start(&chain);
    let url = format!("http://{}", node.api);
    let ask = |more: &[&str]| ended(&[&["health", "--api", &url], more].concat());
    assert_eq!(ask(&["--live"]), (0, "ok\n".into()));
    until("it is ready", || (ask(&[]) == (0, "ready\n".into())).then_some(()));
    node.stop();
    for more in [&[][..], &["--live"]] {
        let (code, text) = ask(more);
        assert!(code == 75 && text.contains("nothing listens"), "{code}: {text}");
    }
}

/// Goal: a container that is built and run from its file has a configuration, and a key that it may read.
#[test]
fn a_container_begins_as_its_file_says() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/container/Containerfile");
    let file = fs::read_to_string(file).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("data").display().to_string();
    let waypoint = format!("7:0x{}", "11".repeat(32));
    let peer = format!("{}@192.0.2.1:7400", "1".repeat(64));
    let words = file.lines().find_map(|line| Some(line.split_once("/data slipstream init ")?.1)).unwrap();
    let words = words.replace("/data", &volume).replace("NUMBER:0xHASH", &waypoint);
    let words = words.replace("KEY@HOST:PORT", &peer);
    printed(&["init"].into_iter().chain(words.split(' ')).collect::<Vec<_>>(), true);

    let command = file.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    let command: Vec<String> = serde_json::from_str(&command.replace("/data", &volume)).unwrap();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let ["run", "--config", config, ref overrides @ ..] = command[..] else { panic!("{command:?}") };
    let overrides = overrides.iter().copied();
    printed(&["config", "check", config].into_iter().chain(overrides.clone()).collect::<Vec<_>>(), true);
    let shown: Vec<_> = ["config", "show", "--config", config].into_iter().chain(overrides).collect();
    // A container's loopback cannot be reached from outside.
    let shown = printed(&shown, true);
    assert!(shown.contains("0.0.0.0:8545"), "{shown}");
    for (key, file) in [("data_dir", "data"), ("key_file", "node.key")] {
        assert!(shown.contains(&format!("{key}: {volume}/node/{file}")), "{shown}");
    }
}
