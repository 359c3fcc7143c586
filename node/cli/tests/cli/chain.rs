//! A chain with one validator, and the binary run on it.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    slice,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use k256::ecdsa::SigningKey;
use serde_json::{Value, json};
use slipstream_base::{genesis_file, keys};
use slipstream_types::{Address, ChainConfig, Genesis, U256, genesis::GenesisAccount};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_slipstream");
/// Far longer than anything takes on a slow machine: only a failing test reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// The secret key of an account that can pay for transactions.
pub(crate) const SENDER: [u8; 32] = [5; 32];

fn slipstream(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).env_remove("RUST_LOG").output().unwrap()
}

/// The exit code and output of a command.
pub(crate) fn ended(args: &[&str]) -> (i32, String) {
    let output = slipstream(args);
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap_or_else(|| panic!("{args:?} ended by a signal: {text}")), text)
}

/// The output of a command, after a check of its exit code.
pub(crate) fn printed(args: &[&str], success: bool) -> String {
    let (code, text) = ended(args);
    assert_eq!(code == 0, success, "{args:?}: {text}");
    text
}

/// The first of `count` consecutive free ports, for TCP and UDP, that no other test gets. They lie below those that the
/// system assigns itself.
pub(crate) fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id() % 200 * 100;
    let next = || 10_000 + (first + NEXT.fetch_add(count.into(), Ordering::SeqCst)) % 20_000;
    let ports = std::iter::repeat_with(|| next() as u16);
    let free = ports.take(200).find(|port| (0..count).all(|above| is_free(port + above)));
    free.expect("some ports in a row are free")
}

/// Whether no socket has the port, according to the kernel. A trial bind would be inherited by a process that another
/// test is spawning, until that executes its program.
fn is_free(port: u16) -> bool {
    let end = format!(":{port:04X}");
    ["tcp", "tcp6", "udp", "udp6"].iter().all(|table| {
        let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let mut local = text.lines().filter_map(|line| line.split_whitespace().nth(1));
        !local.any(|address| address.ends_with(&end))
    })
}

/// A port on which nobody listens, and that nobody else gets while the socket is kept.
pub(crate) fn closed_port() -> (tokio::net::TcpSocket, SocketAddr) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// A directory with a chain of one validator: genesis.json, node.key and a node.yaml that listens on free ports.
pub(crate) struct Chain {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) genesis: Genesis,
}

impl Chain {
    pub(crate) fn new() -> Chain {
        let dir = tempfile::tempdir().unwrap();
        let key = slipstream_testkit::key(7);
        let rich =
            GenesisAccount { balance: U256::from(10).pow(U256::from(20)), ..GenesisAccount::default() };
        let genesis = Genesis {
            chain: ChainConfig::default(),
            timestamp_ms: 1_700_000_000_000,
            validators: slipstream_testkit::members(slice::from_ref(&key), Address::repeat_byte(9)),
            accounts: BTreeMap::from([
                (Address::repeat_byte(1), rich.clone()),
                (Address::from_private_key(&SigningKey::from_slice(&SENDER).unwrap()), rich),
            ]),
            ..Genesis::default()
        };
        let chain = Chain { dir, genesis };
        genesis_file::save(&chain.path("genesis.json"), &chain.genesis).unwrap();
        keys::save(&chain.path("node.key"), &key).unwrap();
        chain.configure("");
        chain
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes node.yaml with further lines at its end.
    pub(crate) fn configure(&self, rest: &str) {
        let api = if rest.contains("api:") { "" } else { "api: { listen: \"127.0.0.1:0\" }\n" };
        let network = if rest.contains("network:") { "" } else { "network: { listen: \"127.0.0.1:0\" }\n" };
        let text = format!("role: validator\ngenesis: genesis.json\n{network}{api}{rest}");
        fs::write(self.path("node.yaml"), text).unwrap();
    }

    pub(crate) fn config(&self) -> String {
        self.path("node.yaml").to_str().unwrap().to_owned()
    }

    /// Checks that `run` refuses, says why, and leaves nothing behind. Returns the exit code.
    pub(crate) fn refused(&self, reasons: &[&str]) -> i32 {
        let (code, text) = ended(&["run", "--config", &self.config()]);
        assert_ne!(code, 0, "{text}");
        for reason in reasons {
            assert!(text.contains(reason), "`{reason}` is not in: {text}");
        }
        assert!(!self.path("data").exists(), "a node that cannot start writes nothing");
        code
    }
}

/// A running node; killed if the test ends before the node is stopped.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) api: String,
    pub(crate) ready: String,
    /// The file with its standard error.
    pub(crate) log: PathBuf,
}

impl Running {
    pub(crate) fn start(chain: &Chain) -> Running {
        let child = Command::new(BINARY)
            .args(["run", "--config", &chain.config()])
            .stdout(Stdio::piped())
            .stderr(Stdio::from(fs::File::create(chain.path("log")).unwrap()))
            .spawn()
            .unwrap();
        Running::of(child, &chain.path("log"))
    }

    /// Waits for the ready line of a node whose standard output is a pipe.
    pub(crate) fn of(mut child: Child, log: &Path) -> Running {
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let api = ready.split_once("api=http://").and_then(|(_, rest)| rest.split_once(' '));
        let Some((api, _)) = api else {
            let _ = child.wait();
            panic!("no ready line but {ready:?}; log: {}", fs::read_to_string(log).unwrap());
        };
        Running { child, api: api.to_owned(), ready: ready.trim().to_owned(), log: log.to_owned() }
    }

    pub(crate) fn http(&self, request: &str, body: &str) -> String {
        self.answer(request, body).1
    }

    /// The head and the body of the answer.
    pub(crate) fn answer(&self, request: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.api).unwrap();
        let length = body.len();
        let request = format!(
            "{request} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        // Sent in one write: a starting node answers the first bytes and closes.
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    pub(crate) fn rpc(&self, method: &str, params: Value) -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer: Value = serde_json::from_str(&self.http("POST /", &request.to_string())).unwrap();
        assert_eq!(answer["id"], 1);
        answer
    }

    /// The number of its last batch.
    pub(crate) fn head(&self) -> u64 {
        quantity(&self.rpc("eth_blockNumber", json!([]))["result"])
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Sends SIGTERM; the exit code must be 0.
    pub(crate) fn stop(mut self) {
        self.signal(rustix::process::Signal::TERM);
        assert_eq!(self.code(PATIENCE), 0);
    }

    /// Waits for the end of the process, and returns its exit code.
    pub(crate) fn code(&mut self, patience: Duration) -> i32 {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or_else(|| {
                    panic!(
                        "the node ended by {status}; log: {}",
                        fs::read_to_string(&self.log).unwrap_or_default()
                    )
                });
            }
            wait();
        }
        panic!("the node did not stop in time");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[allow(clippy::disallowed_methods)] // a test that polls another process has nothing else to do
pub(crate) fn wait() {
    std::thread::sleep(Duration::from_millis(50));
}

pub(crate) fn quantity(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}
