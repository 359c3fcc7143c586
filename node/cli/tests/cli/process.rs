//! The process in its environment: its output, signals, exit codes.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, PipeReader, PipeWriter, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, mknodat, open},
    process::Signal,
};
use serde_json::json;
use slipstream_base::keys;

use crate::{
    chain::{BINARY, Chain, PATIENCE, Running, ended, free_ports, wait},
    offline::transaction,
};

/// Waits until `look` returns a value.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not so in time: {what}");
        wait();
    }
}

/// A pipe without any reader. A process that another test was spawning holds all open files until it executes its
/// program.
fn closed_pipe() -> PipeWriter {
    let (reader, mut writer) = io::pipe().unwrap();
    drop(reader);
    until("the reader has gone", || {
        let written = writer.write(b".");
        written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe).then_some(())
    });
    writer
}

/// A pipe that accepts nothing more until somebody reads it.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    let full = (0..1 << 16).find_map(|_| writer.write(&[b'.'; 4_096]).err()).unwrap();
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    while writer.write(b".").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

/// A node with these destinations for its output.
fn start(chain: &Chain, stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> Running {
    let mut command = Command::new(BINARY);
    command.args(["run", "--config", &chain.config()]).env_remove("RUST_LOG").stdout(stdout).stderr(stderr);
    let (api, ready) = Default::default();
    Running { child: command.spawn().unwrap(), api, ready, log: chain.path("log") }
}

/// The API's address, from the lock file.
fn api(chain: &Chain) -> String {
    until("the lock file names the API", || {
        let text = fs::read_to_string(chain.path("data/LOCK")).ok()?;
        Some(text.lines().find_map(|line| line.strip_prefix("api "))?.to_owned())
    })
}

fn await_batches(node: &Running, more: u64) {
    let first = node.head();
    until("the chain moves", || (node.head() >= first + more).then_some(()));
}

/// Goal: a node outlives an unread pipe, a closed one and a full disk, and they never block it.
#[test]
fn a_node_outlives_whoever_reads_what_it_prints() {
    let chain = Chain::new();
    let (reader, writer) = full_pipe();
    let mut node = start(&chain, closed_pipe(), writer);
    node.api = api(&chain);
    until("it has started", || node.http("GET /health", "").starts_with('{').then_some(()));
    await_batches(&node, 2);
    drop(reader);
    until("lost lines are counted", || {
        let metrics = node.http("GET /metrics", "");
        let lost = metrics.lines().find_map(|line| line.strip_prefix("slipstream_log_lines_lost_total "))?;
        (lost != "0").then_some(())
    });
    await_batches(&node, 2);
    node.stop();

    fs::remove_file(chain.path("data/LOCK")).unwrap();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let mut node = start(&chain, full(), full());
    node.api = api(&chain);
    until("it has started", || node.http("GET /health", "").starts_with('{').then_some(()));
    await_batches(&node, 2);
    node.stop();
}

/// Goal: a reader that exits ends every command silently, like other Unix tools; a full disk is an error.
#[test]
fn a_closed_pipe_ends_a_command_quietly() {
    let chain = Chain::new();
    let node = Running::start(&chain);
    let (config, url) = (chain.config(), format!("http://{}", node.api));
    let new = chain.path("new");
    let commands: [&[&str]; 6] = [
        &["--help"],
        &["config", "check", &config],
        &["status", "--api", &url],
        &["db", "stats", "--config", &config],
        &["snapshot", "list", "--config", &config],
        &["init", "--role", "validator", "--dir", new.to_str().unwrap()],
    ];
    for args in commands {
        let output = Command::new(BINARY).args(args).stdout(closed_pipe()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), text.as_str()), (Some(141), ""), "{args:?}");
    }
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(BINARY).args(["status", "--api", &url]).stdout(full).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(75), "{text}");
    assert!(text.contains("cannot write the output: No space left on device"), "{text}");
    assert_eq!(text.matches("No space left").count(), 1, "{text}");
    // The same if nobody reads the error either.
    let status = Command::new(BINARY).args(["config", "check", "/"]).stderr(closed_pipe()).status().unwrap();
    assert_eq!(status.code(), Some(78));
    node.stop();
}

/// A set of signals of a process or a thread, from the kernel.
fn signals(status: &Path, which: &str) -> u64 {
    // A thread that has ended has no signals.
    let status = fs::read_to_string(status).unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix(which));
    set.map_or(0, |set| u64::from_str_radix(set.trim(), 16).unwrap())
}

/// The threads that block SIGTERM: each one that is in its handler, and some that always do.
fn deaf(node: &Running) -> BTreeSet<PathBuf> {
    let bit = 1_u64 << (Signal::TERM.as_raw() - 1);
    let threads = fs::read_dir(format!("/proc/{}/task", node.child.id())).unwrap();
    let threads = threads.map(|thread| thread.unwrap().path());
    threads.filter(|thread| signals(&thread.join("status"), "SigBlk:") & bit != 0).collect()
}

/// Sends SIGTERM, and waits until its handler has recorded it: before, another thread would take the next signal for
/// the first.
fn terminate(node: &Running) {
    let before = deaf(node);
    node.signal(Signal::TERM);
    let process = PathBuf::from(format!("/proc/{}/status", node.child.id()));
    until("the signal is taken", || (signals(&process, "ShdPnd:") == 0).then_some(()));
    // A moment passes between the delivery of a signal and its handler.
    wait();
    until("the handler has ended", || deaf(node).is_subset(&before).then_some(()));
}

fn log(chain: &Chain) -> fs::File {
    fs::File::create(chain.path("log")).unwrap()
}

/// Goal: a second signal ends the process, even if the first one goes unseen because the start waits for a hanging
/// disk.
#[test]
fn a_second_signal_stops_a_start_at_once() {
    let chain = Chain::new();
    let key = chain.path("hangs");
    mknodat(CWD, &key, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    chain.configure("key_file: hangs\n");
    let mut node = start(&chain, Stdio::null(), log(&chain));
    // A pipe opens for writing only while somebody opens it or has it open for reading.
    let _held =
        until("it reads its key", || open(&key, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).ok());
    terminate(&node);
    node.signal(Signal::TERM);
    assert_eq!(node.code(PATIENCE), 1);
}

/// The exit code of a node that gets a second signal while it stops and waits for a client that sends its request
/// slowly.
fn interrupted_stop(chain: &Chain) -> i32 {
    let mut node = Running::start(chain);
    let mut slow = std::net::TcpStream::connect(&node.api).unwrap();
    slow.write_all(
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    )
    .unwrap();
    // Its request is being processed once a later request was answered.
    assert_eq!(node.http("GET /health/live", ""), "ok\n");
    node.signal(Signal::TERM);
    until("it says that it stops", || says(chain, "stopping; a second signal stops at once").then_some(()));
    node.signal(Signal::INT);
    node.code(PATIENCE)
}

fn says(chain: &Chain, text: &str) -> bool {
    fs::read_to_string(chain.path("log")).unwrap().contains(text)
}

/// Goal: a second signal ends the process even while the node stops.
#[test]
fn a_second_signal_stops_a_stop_at_once() {
    let chain = Chain::new();
    // A node stops waiting after five seconds. If this process paused for that long, the second signal found no
    // process.
    let code = (0..3).map(|_| interrupted_stop(&chain)).find(|code| *code != 0);
    assert_eq!(code, Some(1));
    assert!(!says(&chain, "did not end in time") && !says(&chain, " stopped"));
    // Nothing is lost, and the operator need not clean up.
    Running::start(&chain).stop();
}

/// Goal: a caller of a starting node learns its current step, and may retry.
#[test]
fn a_starting_node_says_what_it_is_at() {
    let chain = Chain::new();
    keys::create(&chain.path("own.key")).unwrap();
    let port = free_ports(1);
    let text = format!(
        "role: fullnode\nkey_file: own.key\nwaypoint: \"7:0x{}\"\nnetwork: {{ listen: \"127.0.0.1:0\", peers: \
         [\"{}@127.0.0.1:9\"] }}\napi: {{ listen: \"127.0.0.1:{port}\" }}\n",
        "ab".repeat(32),
        "12".repeat(32)
    );
    fs::write(chain.path("node.yaml"), text).unwrap();
    let mut node = start(&chain, Stdio::null(), log(&chain));
    let expected = format!("the node at http://127.0.0.1:{port} is starting: asking peers for the genesis");
    until("it says so", || {
        let (code, text) = ended(&["status", "--config", &chain.config()]);
        assert_eq!(code, 75, "{text}");
        text.contains(&expected).then_some(())
    });
    node.signal(Signal::TERM);
    assert_eq!(node.code(PATIENCE), 0);
}

/// Goal: the exit code tells a service manager whether to restart, and the message names the setting at fault.
#[test]
fn exit_codes_tell_never_from_try_again() {
    let chain = Chain::new();
    let config = chain.config();
    assert_eq!(ended(&["run"]).0, 2);
    let filter = |value: &str| {
        let output = Command::new(BINARY).args(["run", "--config", &config]).env("RUST_LOG", value).output();
        let output = output.unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = filter("info,a[=");
    assert_eq!(code, 78, "{text}");
    assert!(text.contains("the environment variable RUST_LOG: `a[=` is not a log filter"), "{text}");
    assert!(!text.contains("log.filter"), "{text}");
    // The message names the environment instead of the file.
    let check =
        Command::new(BINARY).args(["config", "check", &config]).env("RUST_LOG", "a[=").status().unwrap();
    assert_eq!(check.code(), Some(0));

    let (code, text) = ended(&["config", "check", chain.path("none.yaml").to_str().unwrap()]);
    assert_eq!((code, text.matches("os error 2").count()), (78, 1), "each cause is said once: {text}");
    chain.configure("data_dir: genesis.json\n");
    let (code, text) = ended(&["run", "--config", &config]);
    assert_eq!((code, text.matches("os error").count()), (78, 1), "{text}");

    chain.configure("");
    Running::start(&chain).stop();
    fs::write(chain.path("data/db/FORMAT"), "nonsense").unwrap();
    let (code, text) = ended(&["run", "--config", &config]);
    assert_eq!(code, 65, "{text}");
    assert!(text.contains("the store is damaged") && text.contains("Never start this validator"), "{text}");

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let (code, text) = ended(&["status", "--api", &url]);
    assert_eq!(code, 75, "{text}");
    assert!(text.contains(&format!("no answer in 5 s from {url}")) && !text.contains("os error"), "{text}");
}

/// Goal: a killed node still has its acknowledged transactions, and executes them; damaged entries stop nothing.
#[test]
fn what_was_acknowledged_survives_a_kill() {
    const SLOW: &str = "consensus: { batch_interval_ms: 60000, empty_batch_interval_ms: 0 }\n";
    let chain = Chain::new();
    chain.configure(SLOW);
    let mut node = Running::start(&chain);
    let hashes: Vec<_> = (0..3)
        .map(|nonce| node.rpc("eth_sendRawTransaction", json!([transaction(nonce)]))["result"].clone())
        .collect();
    assert!(hashes.iter().all(|hash| hash.is_string()), "{hashes:?}");
    node.signal(Signal::KILL);
    node.child.wait().unwrap();
    let journal = chain.path("data/transactions.journal");
    let mut file = fs::File::options().append(true).open(&journal).unwrap();
    file.write_all(b"torn").unwrap();

    let node = Running::start(&chain);
    for hash in &hashes {
        until("the node has it again", || {
            let found = node.rpc("eth_getTransactionByHash", json!([hash]))["result"].clone();
            (found["hash"] == *hash).then_some(())
        });
    }
    node.stop();
    assert!(fs::read_to_string(chain.path("log")).unwrap().contains("the transaction journal is damaged"));
    chain.configure("consensus: { batch_interval_ms: 5 }\n");
    let node = Running::start(&chain);
    let receipt = || node.rpc("eth_getTransactionReceipt", json!([hashes[2]]))["result"].clone();
    until("it is executed", || receipt().is_object().then_some(()));
    node.stop();
}
