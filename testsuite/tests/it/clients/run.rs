//! Scripts that print their results.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::process::Command;

use crate::common::PATIENCE;

/// Runs the script, and returns the JSON that it printed. Its child processes end with it.
pub(crate) async fn run(script: &mut Command) -> Value {
    script.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = script.spawn().unwrap();
    let _group = Group(Pid::from_raw(child.id().unwrap() as i32).unwrap());
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
    let output = output.unwrap_or_else(|_| panic!("{script:?} does not end")).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script:?} failed: {said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{script:?}: {error}: {said}"))
}

/// A process group that is killed when the script is over or the test has failed.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        // An error means that none is left.
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}
