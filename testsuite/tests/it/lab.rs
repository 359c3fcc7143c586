//! Devnets that outlive the command: `slipnet up -d`, `status`, `logs`, `stop`, `start`, `down` and `clean`.

use std::{path::Path, process::Output};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use slipnet::{devnet::exists, manifest::Manifest};

use crate::common::{gone, ports, program, until_blocking};

/// A registry of this test. Devnets that a failed test has left end with it.
struct Lab {
    home: tempfile::TempDir,
}

impl Lab {
    fn new() -> Lab {
        Lab { home: tempfile::Builder::new().prefix("lab-").tempdir().unwrap() }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        program().args(arguments).env("SLIPNET_HOME", self.home.path()).output().unwrap()
    }

    /// Returns the output of a command that must succeed.
    fn said(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the error of a command that must be refused.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn up(&self, name: &str, arguments: &[&str]) -> Manifest {
        let all = [&["up", "-d", name, "--json", "--accounts", "2"][..], arguments].concat();
        let text = self.said(&all);
        serde_json::from_str(&text).unwrap()
    }

    /// Returns the state of a devnet, null if it is stopped, and the heads of its nodes.
    fn state(&self, name: &str) -> (Value, Vec<Option<u64>>) {
        let text = self.said(&["status", "--json", "--devnet", name]);
        let mut all: Vec<Value> = serde_json::from_str(&text).unwrap();
        let one = all.pop().unwrap();
        let heads = one["heads"].as_array().unwrap().iter().map(Value::as_u64).collect();
        (one["state"].clone(), heads)
    }

    fn wait(&self, name: &str, what: &str, is_so: impl Fn(&Value, &[Option<u64>]) -> bool) {
        until_blocking(what, || {
            let (state, heads) = self.state(name);
            is_so(&state, &heads).then_some(()).ok_or_else(|| format!("{state} {heads:?}"))
        });
    }

    /// Returns the head of a running node; retries, because a busy node may be shown without one.
    fn head(&self, name: &str, place: usize) -> u64 {
        until_blocking("a head", || {
            let (state, heads) = self.state(name);
            heads[place].ok_or_else(|| state.to_string())
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.home.path()).into_iter().flatten().flatten() {
            self.run(&["down", "--devnet", entry.file_name().to_str().unwrap()]);
        }
    }
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

fn wait_gone(manifest: &Manifest) {
    until_blocking("its keeper has ended", || gone(manifest));
}

/// Goal: two devnets outlive their commands side by side. One node is stopped, killed and started without an effect on
/// the others. A stopped devnet continues with its files and ports. `clean` removes only stopped ones.
#[test]
fn devnets_outlive_the_command_side_by_side() {
    let lab = Lab::new();
    let a = lab.up("a", &["-v", "1", "-f", "1"]);
    let b =
        lab.up("b", &["-v", "2", "-f", "0", "--latency", "eu,us", "--loss", "1", "--kib-per-second", "8192"]);
    assert!(a.nodes.iter().chain(&b.nodes).all(|node| exists(node.pid)));
    assert!(lab.refused(&["up", "-d", "a"]).contains("is already running"));
    assert!(lab.refused(&["down"]).contains("there are: a, b"));

    assert!(lab.refused(&["stop", "nobody", "-n", "a"]).contains("there are: validator-0, fullnode-0"));
    lab.said(&["stop", "fullnode-0", "-n", "a"]);
    assert!(lab.refused(&["stop", "fullnode-0", "-n", "a"]).contains("is not running"));
    let (state, heads) = lab.state("a");
    assert!(state["nodes"][1]["pid"].is_null() && heads[1].is_none(), "{state}");
    let stopped_at = lab.head("a", 0);
    lab.wait("a", "the validator goes on", |_, heads| heads[0] > Some(stopped_at + 1));
    lab.said(&["start", "fullnode-0", "-n", "a"]);
    assert!(lab.refused(&["start", "fullnode-0", "-n", "a"]).contains("fullnode-0 is already running"));
    lab.wait("a", "the fullnode follows", |_, heads| heads[1] > Some(stopped_at));

    let pid = lab.state("a").0["nodes"][1]["pid"].as_u64().unwrap();
    kill(pid as u32);
    lab.wait("a", "the end is noticed", |state, _| state["nodes"][1]["pid"].is_null());
    assert!(lab.said(&["logs", "-n", "a"]).contains("fullnode-0 ended: killed by signal 9"));
    assert!(!lab.said(&["logs", "validator-0", "-n", "a"]).is_empty());
    assert!(lab.refused(&["logs", "../a", "-n", "a"]).contains("there is no node `../a`"));

    let (state, _) = lab.state("b");
    assert_eq!(state["nodes"][1]["region"], "us", "{state}");
    assert!(state["relays"]["datagrams"].as_u64().unwrap() > 0, "{state}");
    lab.wait("b", "one of a hundred datagrams is lost", |state, _| {
        state["relays"]["lost"].as_u64() > Some(0)
    });

    assert!(lab.refused(&["clean", "-n", "a"]).contains("a is running: `slipnet down --devnet a` stops it"));
    lab.said(&["down", "-n", "a"]);
    wait_gone(&a);
    assert!(lab.state("a").0.is_null());
    let again = lab.up("a", &["-v", "1", "-f", "1"]);
    assert_eq!(ports(&again), ports(&a));
    lab.wait("a", "the chain goes on", |_, heads| heads[0] > Some(stopped_at));
    lab.said(&["down", "-n", "a"]);
    assert!(lab.said(&["clean", "--all"]).contains("b is running and stays"));
    assert!(!a.genesis_file.exists() && b.genesis_file.exists());
    lab.said(&["down"]);
    wait_gone(&b);
}

/// Goal: a killed keeper takes its nodes with it, and its devnet starts again. A devnet that cannot start says why and
/// leaves nothing behind.
#[test]
fn a_keeper_that_dies_leaves_no_node() {
    let lab = Lab::new();
    let first = lab.up("a", &["-v", "1", "-f", "0"]);
    kill(parent(first.nodes[0].pid));
    wait_gone(&first);
    lab.wait("a", "the lock is free", |state, _| state.is_null());
    let again = lab.up("a", &["-v", "1", "-f", "0"]);
    assert_eq!(ports(&again), ports(&first));
    lab.said(&["down"]);

    let refused = lab.refused(&["up", "-d", "a", "-v", "2", "-f", "0", "--accounts", "2"]);
    assert!(refused.contains("did not start") && refused.contains("belongs to another devnet"), "{refused}");
    assert!(lab.state("a").0.is_null());
}

/// Returns the parent of a process, from the kernel.
fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}
