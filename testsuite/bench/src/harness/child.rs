//! Processes that a bench starts from its own program. A child is a fresh process, so that its peak memory is its own.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;

use slipnet::devnet::die_with_parent;

fn command(name: &str, arguments: &[String]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("this program's path is unknown")?);
    command.args(["child", name]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::inherit());
    die_with_parent(&mut command);
    Ok(command)
}

/// Runs a child to its end; parses its output as the result.
pub(crate) fn run<T: DeserializeOwned>(name: &str, arguments: &[String]) -> Result<T> {
    let output = command(name, arguments)?.output()?;
    ensure!(output.status.success(), "the child {name} failed: {}", output.status);
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("cannot parse the output of the child {name}"))
}

/// A child that works until it is killed.
pub(crate) struct Endless(Child);

impl Endless {
    /// Starts a child, and waits until the child prints that it is working.
    pub(crate) fn start(name: &str, arguments: &[String]) -> Result<Endless> {
        let mut child = Endless(command(name, arguments)?.spawn()?);
        let output = child.0.stdout.take().context("standard output is not piped")?;
        let read = BufReader::new(output).read_line(&mut String::new())?;
        ensure!(read > 0, "the child {name} ended before it began its work");
        Ok(child)
    }

    /// Kills the child without a chance to clean up. Fails if the child had already ended.
    pub(crate) fn kill(mut self) -> Result<()> {
        ensure!(self.0.try_wait()?.is_none(), "the child ended before it was killed");
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        // The child may have ended; its result no longer matters.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
