//! Scripts that Node.js runs.

use std::{path::Path, time::Duration};

use serde_json::Value;

/// Runs the script with these arguments; what it printed as JSON.
pub(crate) async fn run(dir: &Path, script: &str, args: &[&str]) -> Value {
    let mut node = tokio::process::Command::new("node");
    node.arg(script).args(args).current_dir(dir);
    let output = tokio::time::timeout(Duration::from_secs(90), node.kill_on_drop(true).output()).await;
    let output = output.unwrap_or_else(|_| panic!("{script} does not end")).unwrap();
    assert!(output.status.success(), "{script} failed: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
