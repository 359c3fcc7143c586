//! Processes that a bench starts of its own program: what runs in one has no past, so that its peak of memory is its own.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;

use crate::devnet::die_with_parent;

fn command(name: &str, arguments: &[String]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("this program's path is unknown")?);
    command.args(["bench-child", name]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::inherit());
    die_with_parent(&mut command);
    Ok(command)
}

/// Runs a child to its end; its result is what it prints.
pub(in crate::bench) fn run<T: DeserializeOwned>(name: &str, arguments: &[String]) -> Result<T> {
    let output = command(name, arguments)?.output()?;
    ensure!(output.status.success(), "the child {name} failed: {}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("what the child {name} printed"))
}
