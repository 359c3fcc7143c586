//! Installs the programs of `clients/` from their registries, and runs scripts with them.
//!
//! Lock files pin the versions; each is installed once, into the target directory. Where npm, Python, Go or a registry is missing a test
//! says that it skips, unless `SLIPSTREAM_REQUIRE_CLIENTS=1`.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use serde_json::Value;

use super::run::run;
use crate::common::{is_installed, skip, target};

/// Held while a client is installed, by name: other tests may need it too. Different clients are installed side by side.
static INSTALLING: Mutex<BTreeMap<String, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());

/// A directory of `clients/`, copied into the target directory, with its packages.
pub(crate) struct Client {
    dir: PathBuf,
    /// The program that runs its scripts, and its place.
    interpreter: &'static str,
    bin: PathBuf,
}

impl Client {
    /// `clients/NAME` with its packages from npm, and the Node that `clients/node` pins; none if the test is to be skipped.
    pub(crate) fn npm(name: &str) -> Option<Client> {
        let install = || {
            let bin = installed("node", "package-lock.json", |dir| npm(dir, None))?.join("node_modules/.bin");
            let dir = installed(name, "package-lock.json", |dir| npm(dir, Some(&bin)))?;
            Ok(Client { dir, interpreter: "node", bin })
        };
        or_skip(name, install())
    }

    /// `clients/NAME` with its packages from PyPI; none if the test is to be skipped.
    pub(crate) fn pip(name: &str) -> Option<Client> {
        let install = || {
            let dir = installed(name, "requirements.txt", pip)?;
            Ok(Client { bin: dir.join("venv/bin"), dir, interpreter: "python" })
        };
        or_skip(name, install())
    }

    /// Runs the script with these arguments, and returns the JSON that it printed.
    pub(crate) async fn run(&self, script: &str, args: &[&str]) -> Value {
        run(&mut self.command(script, args)).await
    }

    /// The script with these arguments, to be run.
    pub(crate) fn command(&self, script: &str, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(self.interpreter);
        command.arg(script).args(args).current_dir(&self.dir).env("PATH", path(Some(&self.bin)));
        // The programs' own files stay here, and they must not paint or ask.
        command.env("HOME", &self.dir).env("NO_COLOR", "1").env("CI", "1");
        command
    }
}

/// geth, which `./x tools` compiles; that is done here if it is required. None if the test is to be skipped.
pub(crate) fn geth() -> Option<PathBuf> {
    let program = target().join("tools/geth");
    is_installed("geth", || program.exists()).then_some(program)
}

/// The program of `clients/go`, compiled with the modules that its `go.sum` names; none if the test is to be skipped.
pub(crate) fn go() -> Option<PathBuf> {
    let compile = || {
        let dir = installed("go", "go.sum", |_| Ok(()))?;
        let mut go = Command::new("go");
        // What has not changed is not compiled again. Without C and without optimising it takes half of the time.
        let build = [
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-gcflags=all=-N -l",
            "-ldflags=-s -w",
            "-o",
            "client",
            ".",
        ];
        // An older Go fetches the version that go.mod names.
        let settings = [("GOFLAGS", ""), ("GOTOOLCHAIN", "auto"), ("CGO_ENABLED", "0")];
        done(go.args(build).envs(settings).current_dir(&dir))?;
        Ok(dir.join("client"))
    };
    or_skip("the client of Go", compile())
}

fn or_skip<T>(name: &str, program: Result<T>) -> Option<T> {
    program.inspect_err(|reason| skip(&format!("{name} cannot be installed: {reason:#}"))).ok()
}

/// Where `clients/NAME` is with the packages that its lock file names.
fn installed(name: &str, lock: &str, install: impl Fn(&Path) -> Result<()>) -> Result<PathBuf> {
    let own = INSTALLING.lock().entry(name.to_owned()).or_default().clone();
    let _one = own.lock();
    let dir = target().join("slipnet-clients").join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name);
    copy(&source, &dir).with_context(|| format!("cannot copy {}", source.display()))?;
    // A copy of the lock file, written last, says that exactly these versions are there.
    let (lock, done) = (fs::read(dir.join(lock))?, dir.join("installed"));
    if fs::read(&done).is_ok_and(|done| done == lock) {
        return Ok(dir);
    }
    install(&dir)?;
    fs::write(done, lock)?;
    Ok(dir)
}

/// Writes what differs: another test may be reading the rest.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&from, &to)?;
        } else if fs::read(&to).ok() != Some(fs::read(&from)?) {
            fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

fn npm(dir: &Path, bin: Option<&Path>) -> Result<()> {
    let mut npm = Command::new("npm");
    done(npm.args(["ci", "--no-audit", "--no-fund"]).current_dir(dir).env("PATH", path(bin)))
}

fn pip(dir: &Path) -> Result<()> {
    done(Command::new("python3").args(["-m", "venv", "--clear", "venv"]).current_dir(dir))?;
    // The file names every package; none is built here.
    let all = ["install", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"];
    done(Command::new(dir.join("venv/bin/pip")).args(all).args(["-r", "requirements.txt"]).current_dir(dir))
}

fn done(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?} cannot be started"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Where programs are looked for, first in this directory.
fn path(first: Option<&Path>) -> OsString {
    let rest = env::var_os("PATH").unwrap_or_default();
    let places = first.map(Path::to_owned).into_iter().chain(env::split_paths(&rest));
    env::join_paths(places).unwrap_or(rest)
}
