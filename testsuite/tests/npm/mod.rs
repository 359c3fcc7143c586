//! Unmodified clients from npm, run against a node.
//!
//! Their versions are pinned by a `package-lock.json`; they are installed once into the target directory. Without npm a test
//! says that it skips, unless `SLIPSTREAM_REQUIRE_CLIENTS=1`.

mod run;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) use run::run;

/// The directory with the packages of `source`, a directory of this crate, and its script; none if the test is to be skipped.
#[allow(clippy::print_stderr, reason = "whoever runs the tests is to see that one was left out")]
pub(crate) fn install(source: &str, script: &str) -> Option<PathBuf> {
    match installed(source, script) {
        Ok(dir) => Some(dir),
        Err(reason) if std::env::var("SLIPSTREAM_REQUIRE_CLIENTS").is_ok_and(|value| value == "1") => {
            panic!("{script} cannot be installed: {reason}")
        }
        Err(reason) => {
            eprintln!(
                "SKIPPED: {script} cannot be installed (SLIPSTREAM_REQUIRE_CLIENTS=1 makes this an error): {reason}"
            );
            None
        }
    }
}

fn installed(source: &str, script: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = program.ancestors().nth(3).ok_or("no target directory")?;
    let dir = target.join("slipnet-clients").join(script);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
    // The lock file last: the copy of it says that an installation of exactly these versions was finished.
    let lock = fs::read(source.join("package-lock.json")).map_err(|error| error.to_string())?;
    let installed = fs::read(dir.join("installed.json")).is_ok_and(|installed| installed == lock);
    for file in ["package.json", "package-lock.json", script] {
        fs::copy(source.join(file), dir.join(file)).map_err(|error| error.to_string())?;
    }
    if !installed {
        let npm = Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&dir).output();
        let npm = npm.map_err(|error| format!("npm cannot be started: {error}"))?;
        if !npm.status.success() {
            return Err(format!("npm ci failed: {}", String::from_utf8_lossy(&npm.stderr)));
        }
        fs::write(dir.join("installed.json"), lock).map_err(|error| error.to_string())?;
    }
    Ok(dir)
}
