//! A child process that cannot outlive its parent.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

use crate::leftovers::started;

/// The time limit for a node to stop. Within it a node flushes its last commit, even on a loaded machine; then it is
/// killed.
const STOP_DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// Returns the path of the `slipstream` program: `$SLIPSTREAM_BIN`, or the one that cargo put beside this program.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("SLIPSTREAM_BIN") {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(path);
        }
        bail!("SLIPSTREAM_BIN names {}, which is not a file", path.display());
    }
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    // Cargo puts test programs one directory deeper than other programs.
    let places = program.ancestors().skip(1).take(2).map(|dir| dir.join("slipstream"));
    if let Some(path) = places.into_iter().find(|path| path.is_file()) {
        return Ok(path);
    }
    bail!(
        "the program slipstream is not beside {}; build it with `cargo build -p slipstream-cli` (and --release \
         for a release build), or name it with SLIPSTREAM_BIN",
        program.display()
    );
}

/// Whether a process with this id exists. A zombie does not count.
pub fn exists(pid: u32) -> bool {
    started(pid).is_ok_and(|started| started.is_some())
}

/// A running child process. Dropping it kills it and waits for its end.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the program and appends its output to the log file.
    ///
    /// The kernel kills the child when the thread that called this ends. So call it from a thread that lives as long as
    /// the program (main, a test's own, or a tokio worker), and never from `spawn_blocking`.
    ///
    /// # Errors
    /// If the program or its log cannot be opened.
    pub fn spawn(program: &Path, arguments: &[&str], log: PathBuf) -> Result<Process> {
        Process::spawn_in(program, arguments, &BTreeMap::new(), log)
    }

    /// As [`Process::spawn`], with environment variables in addition to those of this process.
    ///
    /// # Errors
    /// As [`Process::spawn`].
    pub fn spawn_in(
        program: &Path,
        arguments: &[&str],
        environment: &BTreeMap<String, String>,
        log: PathBuf,
    ) -> Result<Process> {
        let file = File::options().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("cannot open the log file {}", log.display()))?;
        let mut command = Command::new(program);
        command.args(arguments).envs(environment).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // The child has its own process group: ctrl-c reaches slipnet alone, which stops its children in order.
        command.process_group(0);
        die_with_parent(&mut command);
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Process { child, log })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns how the process ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Checks that the process runs.
    ///
    /// # Errors
    /// If the process has ended; the error quotes the end of the log.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => bail!(
                "the process ended: {}. The end of its log, {}:\n{}",
                describe(status),
                self.log.display(),
                self.log_end()
            ),
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        // Only this struct waits for the child, so its id cannot have been reused.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for the end after [`Signal::TERM`], and kills the process at the deadline.
    ///
    /// # Errors
    /// If the process stopped badly, or had to be killed.
    pub async fn wait_stopped(&mut self) -> Result<()> {
        let deadline = Instant::now() + STOP_DEADLINE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                if status.success() || status.signal() == Some(Signal::TERM.as_raw()) {
                    return Ok(());
                }
                bail!(
                    "it did not stop cleanly: {}. The end of its log:\n{}",
                    describe(status),
                    self.log_end()
                );
            }
            tokio::time::sleep(POLL).await;
        }
        self.kill();
        bail!("it did not stop within {} s of SIGTERM and was killed", STOP_DEADLINE.as_secs());
    }

    /// Kills the process (`kill -9`) and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the last lines of the log.
    pub(crate) fn log_end(&self) -> String {
        log_end(&self.log)
    }
}

/// Returns the last lines of a log, or an empty text if it does not exist.
pub(super) fn log_end(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(8_192)..]).into_owned();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Describes an exit status in words.
pub(super) fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("exit code {}", status.code().unwrap_or(-1)),
    }
}

/// Asks the kernel to kill the child when its parent ends for any reason: `kill -9` of slipnet leaves no orphan.
#[allow(
    unsafe_code,
    reason = "the death signal can be set only between fork and exec; see the SAFETY comment"
)]
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let before_exec = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before the line above took effect.
        match getppid() {
            Some(pid) if pid.as_raw_nonzero().get().unsigned_abs() == parent => Ok(()),
            _ => Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error())),
        }
    };
    // SAFETY: between fork and exec only async-signal-safe work is allowed. The closure makes two plain system calls
    // (prctl and getppid). It takes no lock, and an error made from an OS code allocates no memory.
    unsafe {
        command.pre_exec(before_exec);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_child_is_stopped_politely_or_killed_and_its_log_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        // The script prints `started` once its signal handler is set.
        let script = "trap 'echo stopping; exit 0' TERM; echo started; while :; do sleep 0.05; done";
        let mut child = Process::spawn(Path::new("/bin/sh"), &["-c", script], log.clone()).unwrap();
        while !std::fs::read_to_string(&log).unwrap().contains("started") {
            tokio::time::sleep(POLL).await;
        }
        child.check_alive().unwrap();
        child.signal(Signal::TERM);
        child.wait_stopped().await.unwrap();
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "started\nstopping\n");

        let child = Process::spawn(Path::new("/bin/sleep"), &["100"], log).unwrap();
        let pid = child.pid();
        assert!(exists(pid));
        drop(child);
        assert!(!exists(pid));
    }

    #[tokio::test]
    async fn a_child_that_fails_is_reported_with_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let script = "echo the port is busy >&2; exit 3";
        let mut child =
            Process::spawn(Path::new("/bin/sh"), &["-c", script], dir.path().join("log")).unwrap();
        let error = loop {
            match child.check_alive() {
                Ok(()) => tokio::time::sleep(POLL).await,
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("exit code 3") && error.contains("the port is busy"), "{error}");
    }
}
