//! A fullnode inside another program: the node follows a chain, and the program asks it for a batch.
//!
//! The example also runs the chain, so that it needs nothing else: one validator, a second node of the same program.
//! Your program has the second half alone, with the genesis file and a peer of a real chain.
//!
//! `cargo run -p slipstream-node --example embedded_fullnode`

use std::{
    error::Error,
    io::{Write as _, stdout},
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use serde_json::{Value, json};
use slipstream_base::{Log, clock::SystemClock, genesis_file, keys};
use slipstream_config::{NodeConfig, Role};
use slipstream_node::Node;
use slipstream_types::Clock as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::sleep,
};

/// The batch that the fullnode must reach.
const BATCH: &str = "0x5";
/// How often the program asks, and how long it waits in all.
const POLL: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(180);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;

    // The chain: a genesis file that names one validator, which makes empty batches.
    let mut config = config(dir.path(), "validator");
    config.role = Role::Validator;
    config.consensus.empty_batch_interval_ms = 100;
    let key = keys::create(&config.key_file)?;
    genesis_file::save(
        &dir.path().join("genesis.json"),
        &slipstream_testkit::genesis(&[key], SystemClock.now_ms()),
    )?;
    // Nothing is logged until the program calls `log.install`, or has a `tracing` subscriber of its own.
    let log = Log::open(&config.log)?;
    let validator = Node::start(&config, log.clone()).await?;

    // The embedded fullnode: a key of its own, and one peer. Other settings have their defaults.
    let mut config = self::config(dir.path(), "fullnode");
    keys::create(&config.key_file)?;
    config.network.peers.push(validator.peer_address().into());
    let mut node = Node::start(&config, log).await?;
    let api = node.api_address();
    writeln!(stdout(), "{}", node.ready_line())?;

    // A node's tasks run until one fails: whoever embeds the node watches for that.
    let block = tokio::select! {
        block = reached(api) => block?,
        failure = node.failure() => return Err(failure.to_string().into()),
        () = sleep(PATIENCE) => return Err("the fullnode does not follow".into()),
    };
    let original = batch(validator.api_address()).await?;
    if block["hash"] != original["hash"] {
        return Err(format!("the fullnode has {block}, and the validator {original}").into());
    }

    // A stop ends every task, then closes the store. What is committed stays.
    node.stop().await?;
    validator.stop().await?;
    writeln!(
        stdout(),
        "proved: an embedded fullnode followed the chain to batch 5, with the hash that the validator gives"
    )?;
    Ok(())
}

/// The configuration of a node whose files are in `dir` under its name, on free ports of this machine.
fn config(dir: &Path, name: &str) -> NodeConfig {
    let mut config = NodeConfig {
        genesis: Some(dir.join("genesis.json")),
        key_file: dir.join(format!("{name}.key")),
        data_dir: dir.join(name),
        ..NodeConfig::default()
    };
    config.network.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    config.api.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    config
}

/// Waits until the node has the batch.
async fn reached(api: SocketAddr) -> Result<Value, Box<dyn Error>> {
    loop {
        let block = batch(api).await?;
        if !block.is_null() {
            return Ok(block);
        }
        sleep(POLL).await;
    }
}

/// Asks a node for the batch, as any Ethereum client would; `null` before it is there.
async fn batch(api: SocketAddr) -> Result<Value, Box<dyn Error>> {
    let call =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_getBlockByNumber", "params": [BATCH, false] })
            .to_string();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {api}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        call.len()
    );
    let mut stream = TcpStream::connect(api).await?;
    stream.write_all((head + &call).as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or("the node's answer has no body")?;
    let mut answer: Value = serde_json::from_str(body)?;
    match answer.get("error") {
        Some(error) => Err(error.to_string().into()),
        None => Ok(answer["result"].take()),
    }
}
