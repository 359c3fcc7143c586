//! The program's manners towards shells, readers of manuals and containers.

use std::{fs, process::Command};

use crate::{
    chain::{Chain, Running, ended, printed},
    process::until,
};

/// Goal: each shell gets a script that it takes, and every command a page of the manual.
#[test]
fn the_command_line_describes_itself() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(&["completions", shell], true);
        assert!(script.contains("slipstream") && script.contains("rollback"), "{shell}: {script}");
        let file = dir.path().join(shell);
        fs::write(&file, script).unwrap();
        // Where the shell is installed it says whether it can read that.
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

/// Goal: the exit code tells a container's supervisor whether the process works, and a balancer's whether it is ready.
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
        assert!(code == 75 && text.contains("nobody listens"), "{code}: {text}");
    }
}
