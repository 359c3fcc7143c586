//! A directory with the documents' files, and a shell in it.

use std::{
    fs::{self, File},
    os::unix::{fs::symlink, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Instant,
};

use rustix::process::Signal;
use slipnet::devnet::{FreePort, binary, die_with_parent};

use super::{
    process::{Running, Started, drawn, terminal},
    rules::How,
    values::Values,
};
use crate::common::{deadline, pause};

/// Runs command lines in its own directory. Devnets that a failed test has left end with it.
pub(crate) struct Shell {
    // The node comes before the directory: fields drop in order, and a process must end before its files are removed.
    node: Option<Started>,
    dir: tempfile::TempDir,
    /// The port of the node's API: devnets of other tests start before the node does.
    _api: FreePort,
    /// The `PATH`, with the programs first.
    path: String,
    /// The environment of `slipstream`. It overrides node.yaml, whose ports other tests and programs may use.
    settings: Vec<(&'static str, String)>,
    /// The values of placeholders.
    pub(crate) values: Values,
    /// The counter for names of files and directories.
    made: u32,
}

impl Shell {
    /// Makes a shell in an empty directory, with the programs that cargo built.
    pub(crate) fn new() -> Shell {
        let dir = tempfile::Builder::new().prefix("docs-").tempdir().unwrap();
        let programs = dir.path().join("programs");
        fs::create_dir(&programs).unwrap();
        let slipnet = Path::new(env!("CARGO_BIN_EXE_slipnet"));
        let simulation = slipnet.with_file_name("slipnet-simulation");
        assert!(
            simulation.is_file(),
            "{} is missing: `cargo test --workspace` builds it",
            simulation.display()
        );
        symlink(slipnet, programs.join("slipnet")).unwrap();
        symlink(binary().unwrap(), programs.join("slipstream")).unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        let port = FreePort::find().unwrap();
        let api = format!("127.0.0.1:{}", port.number());
        let settings = vec![
            ("SLIPSTREAM__API__LISTEN", api.clone()),
            ("SLIPSTREAM__NETWORK__LISTEN", "127.0.0.1:0".to_owned()),
            // A node that executes all batches has data of every kind.
            ("SLIPSTREAM__SYNC__MODE", "replay".to_owned()),
            // `db prune` needs a window; nothing lies beyond this one.
            ("SLIPSTREAM__STORAGE__PRUNE__BODIES", "100000".to_owned()),
        ];
        let mut values = Values::default();
        values.set("http://127.0.0.1:8545", format!("http://{api}"));
        values.set("s3://BUCKET/PREFIX", format!("file://{}/archive", dir.path().display()));
        values.set("NAME", "regional-latency");
        values.set("SCENARIO", "calm");
        values.set("SEED", "17");
        Shell { node: None, dir, _api: port, path, settings, values, made: 0 }
    }

    /// Returns the path of a file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns where `slipnet` keeps devnets.
    pub(crate) fn home(&self) -> PathBuf {
        self.file("home")
    }

    /// Whether a program with this name exists.
    pub(crate) fn has(&self, program: &str) -> bool {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("command -v {program}")).env("PATH", &self.path);
        command.output().unwrap().status.success()
    }

    fn command(&self, line: &str, dir: &Path) -> Command {
        let mut command = Command::new("/bin/sh");
        // With `exec`, the process is the program itself, which so gets the signals.
        command.arg("-c").arg(format!("exec {line}")).current_dir(dir).stdin(Stdio::null());
        command.env("PATH", &self.path).env("SLIPNET_HOME", self.home()).env_remove("RUST_LOG");
        if line.starts_with("slipstream ") {
            command.envs(self.settings.iter().cloned());
        }
        die_with_parent(&mut command);
        command
    }

    /// Returns the output of a command line that ends by itself.
    pub(crate) fn output(&self, line: &str) -> Output {
        self.command(line, self.dir.path()).output().unwrap()
    }

    /// Runs a documented command line from `place`, which must behave as the rule says.
    pub(crate) fn run(&mut self, place: &str, line: &str, how: How) {
        let line = self.values.fill(line);
        let what = format!("{place}: {line}");
        match how {
            How::Ends => ended_well(&what, &self.output(&line)),
            How::Alone => {
                let dir = self.directory_alone();
                ended_well(&what, &self.command(&line, &dir).output().unwrap());
            }
            How::Anew => {
                let data = self.file("other/data");
                if data.exists() {
                    fs::remove_dir_all(data).unwrap();
                }
                ended_well(&what, &self.output(&line));
            }
            How::Soon => self.soon(&what, &line),
            How::Serves => {
                let mut node = self.started(&line);
                node.await_words(&what, "slipstream ready ");
                self.node = Some(node);
            }
            How::Until(signal, code) => {
                let mut started = self.started(&line);
                started.await_words(&what, "");
                // It may handle signals only after its first output.
                pause();
                let status = started.process.stop(&what, signal);
                let expected = (code, code.is_none().then(|| signal.as_raw()));
                assert_eq!((status.code(), status.signal()), expected, "{what}: {}", started.said());
            }
            How::Draws => self.draws(&what, &line),
        }
    }

    fn soon(&self, what: &str, line: &str) {
        let deadline = deadline();
        let mut output = self.output(line);
        while !output.status.success() && Instant::now() < deadline {
            pause();
            output = self.output(line);
        }
        ended_well(what, &output);
    }

    /// Stops the fullnode, as its operator does.
    pub(crate) fn stop_node(&mut self) {
        let mut node = self.node.take().expect("a documented command starts it");
        let status = node.process.stop("slipstream run", Signal::TERM);
        assert_eq!(status.code(), Some(0), "{}", node.said());
    }

    fn made(&mut self, kind: &str) -> PathBuf {
        self.made += 1;
        self.file(&format!("{kind}-{}", self.made))
    }

    /// Creates a new directory, with the genesis once that exists.
    fn directory_alone(&mut self) -> PathBuf {
        let dir = self.made("alone");
        fs::create_dir(&dir).unwrap();
        let genesis = self.file("genesis.json");
        if genesis.exists() {
            fs::copy(genesis, dir.join("genesis.json")).unwrap();
        }
        dir
    }

    fn started(&mut self, line: &str) -> Started {
        let [stdout, stderr] = ["stdout", "stderr"].map(|kind| self.made(kind));
        let mut command = self.command(line, self.dir.path());
        command.stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
        Started { process: Running(command.spawn().unwrap()), stdout, stderr }
    }

    fn draws(&self, what: &str, line: &str) {
        let (viewer, terminal) = terminal();
        let stdio = || Stdio::from(terminal.try_clone().unwrap());
        let mut command = self.command(line, self.dir.path());
        command.env("TERM", "xterm-256color").stdin(stdio()).stdout(stdio()).stderr(stdio());
        let mut process = Running(command.spawn().unwrap());
        let drawn = drawn(viewer);
        let (deadline, mut text) = (deadline(), String::new());
        while !text.contains("Slipstream") {
            let piece = drawn.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            text += &piece.unwrap_or_else(|_| panic!("{what}: it draws nothing but {text:?}"));
        }
        let status = process.stop(what, Signal::TERM);
        text.extend(drawn.try_iter());
        assert_eq!(status.code(), Some(0), "{what}: {text:?}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.home()).into_iter().flatten().flatten() {
            let line = format!("slipnet down -n {}", entry.file_name().to_string_lossy());
            let _ = self.command(&line, self.dir.path()).output();
        }
    }
}

/// Checks that a command exited with 0 and wrote to standard output, or to the named file.
pub(crate) fn ended_well(what: &str, output: &Output) {
    let Output { status, stdout, stderr } = output;
    let said = format!("{}{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
    assert!(status.success(), "{what}: {status}: {said}");
    assert!(!stdout.is_empty() || what.contains(" > "), "{what}: it says nothing: {said}");
}
