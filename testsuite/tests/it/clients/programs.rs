//! Installs the programs of `clients/` from their registries, and runs scripts with them.
//!
//! Lock files pin the versions. Each program is installed once, into the target directory. If npm, Python, Go or a
//! registry is missing, a test says that it skips, unless `SLIPSTREAM_REQUIRE_CLIENTS=1`.

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

/// The lock of each client, held during its installation: other tests may need it too. Different clients are installed
/// in parallel.
static INSTALLING: Mutex<BTreeMap<String, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());

/// A directory of `clients/`, copied into the target directory, with its packages.
pub(crate) struct Client {
    dir: PathBuf,
    /// The program that runs its scripts, and that program's directory.
    interpreter: &'static str,
    bin: PathBuf,
}

impl Client {
    /// Returns `clients/NAME` with its packages from npm, and the Node that `clients/node` pins; `None` if the test
    /// should be skipped.
    pub(crate) fn npm(name: &str) -> Option<Client> {
        let install = || {
            let bin = installed("node", "package-lock.json", |dir| npm(dir, None))?.join("node_modules/.bin");
            let dir = installed(name, "package-lock.json", |dir| npm(dir, Some(&bin)))?;
            Ok(Client { dir, interpreter: "node", bin })
        };
        or_skip(name, install())
    }

    /// Returns `clients/NAME` with its packages from PyPI; `None` if the test should be skipped.
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

    /// Returns the command of the script with these arguments.
    pub(crate) fn command(&self, script: &str, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(self.interpreter);
        command.arg(script).args(args).current_dir(&self.dir).env("PATH", path(Some(&self.bin)));
        // The programs keep their own files here, and must not use colours or prompt.
        command.env("HOME", &self.dir).env("NO_COLOR", "1").env("CI", "1");
        command
    }
}

/// Returns geth, as compiled by `./x tools`; compiles it if it is required. `None` if the test should be skipped.
pub(crate) fn geth() -> Option<PathBuf> {
    let program = target().join("tools/geth");
    is_installed("geth", || program.exists()).then_some(program)
}

/// Returns the program of `clients/go`, compiled with the modules in its `go.sum`; `None` if the test should be
/// skipped.
pub(crate) fn go() -> Option<PathBuf> {
    let compile = || {
        let dir = installed("go", "go.sum", |_| Ok(()))?;
        let mut go = Command::new("go");
        // Go does not recompile unchanged packages. Without C and optimisation the build takes half of the time.
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
        // An older Go downloads the version in go.mod.
        let settings = [("GOFLAGS", ""), ("GOTOOLCHAIN", "auto"), ("CGO_ENABLED", "0")];
        done(go.args(build).envs(settings).current_dir(&dir))?;
        Ok(dir.join("client"))
    };
    or_skip("the client of Go", compile())
}

fn or_skip<T>(name: &str, program: Result<T>) -> Option<T> {
    program.inspect_err(|reason| skip(&format!("{name} cannot be installed: {reason:#}"))).ok()
}

/// Installs `clients/NAME` with the packages in its lock file, and returns its directory.
fn installed(name: &str, lock: &str, install: impl Fn(&Path) -> Result<()>) -> Result<PathBuf> {
    let own = INSTALLING.lock().entry(name.to_owned()).or_default().clone();
    let _one = own.lock();
    let dir = target().join("slipnet-clients").join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name);
    copy(&source, &dir).with_context(|| format!("cannot copy {}", source.display()))?;
    // A copy of the lock file, written last, records that exactly these versions are installed.
    let (lock, done) = (fs::read(dir.join(lock))?, dir.join("installed"));
    if fs::read(&done).is_ok_and(|done| done == lock) {
        return Ok(dir);
    }
    install(&dir)?;
    fs::write(done, lock)?;
    Ok(dir)
}

/// Writes only the files that differ: another test may be reading the rest.
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

/// Returns the search path of programs, with this directory first.
fn path(first: Option<&Path>) -> OsString {
    let rest = env::var_os("PATH").unwrap_or_default();
    let places = first.map(Path::to_owned).into_iter().chain(env::split_paths(&rest));
    env::join_paths(places).unwrap_or(rest)
}
