//! A geth for one test, with a chain of one block.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use slipnet::rpc::Rpc;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Child,
    time::timeout,
};

use crate::common::PATIENCE;

/// The log message before the address of its API.
const STARTED: &str = "HTTP server started";

/// A geth that runs until the test is over.
pub(super) struct Geth {
    _program: Child,
    _dir: TempDir,
    pub(super) rpc: Rpc,
}

impl Geth {
    /// Starts this program with the rules of a devnet: by default `geth --dev` uses those of future forks.
    pub(super) async fn start(program: &Path) -> Geth {
        let dir = tempfile::tempdir().unwrap();
        let (data, genesis) = (dir.path().join("data"), dir.path().join("genesis.json"));
        fs::write(&genesis, rules().to_string()).unwrap();
        let made =
            Command::new(program).arg("init").arg("--datadir").arg(&data).arg(genesis).output().unwrap();
        assert!(made.status.success(), "geth init: {}", String::from_utf8_lossy(&made.stderr));
        let mut child = tokio::process::Command::new(program);
        child.args(["--dev", "--datadir"]).arg(&data);
        // The system chooses the port.
        child.args(["--http", "--http.addr", "127.0.0.1", "--http.port", "0", "--http.api", "eth,debug,net"]);
        child.args(["--ipcdisable", "--log.format", "json"]);
        child.env("HOME", dir.path()).kill_on_drop(true);
        child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = async {
            while let Some(line) = log.next_line().await.unwrap() {
                let line: Value = serde_json::from_str(&line).unwrap_or_default();
                if line["msg"] == STARTED {
                    return line["endpoint"].as_str().unwrap().to_owned();
                }
            }
            panic!("geth ended before its API began")
        };
        let address = timeout(PATIENCE, address).await.expect("geth opens no API");
        // A full pipe would block geth.
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        Geth { _program: child, _dir: dir, rpc: Rpc::new(&address).unwrap() }
    }
}

/// Returns a genesis file with the forks, the gas limit and the fee of a devnet.
fn rules() -> Value {
    let mut config = json!({
        "chainId": 7357, "terminalTotalDifficulty": 0, "shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0,
        "osakaTime": 0,
        "blobSchedule": {
            "cancun": { "target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477 },
            "prague": { "target": 6, "max": 9, "baseFeeUpdateFraction": 5_007_716 },
            "osaka": { "target": 6, "max": 9, "baseFeeUpdateFraction": 5_007_716 },
        },
    });
    for fork in [
        "homestead",
        "eip150",
        "eip155",
        "eip158",
        "byzantium",
        "constantinople",
        "petersburg",
        "istanbul",
        "berlin",
        "london",
    ] {
        config[format!("{fork}Block")] = json!(0);
    }
    json!({
        "config": config, "difficulty": "0x0", "gasLimit": "0x11e1a300", "baseFeePerGas": "0x989680",
        "timestamp": "0x67748580",
        // The contracts of EIP-7002 and EIP-7251, without which geth makes no block. They do nothing here.
        "alloc": {
            "0x00000961Ef480Eb55e80D19ad83579A64c007002": { "balance": "0x0", "code": "0x00" },
            "0x0000BBdDc7CE488642fb579F8B00f3a590007251": { "balance": "0x0", "code": "0x00" },
        },
    })
}
