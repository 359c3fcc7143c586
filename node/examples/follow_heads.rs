//! Follows a chain's heads through a node's API: `eth_subscribe` over a WebSocket, as with any Ethereum node.
//!
//! A batch is final when it is announced: no head ever replaces another, so each one's parent is the head before. The
//! example also runs the node, so that it needs nothing else: the only validator of a new chain.
//!
//! `cargo run -p slipstream-node --example follow_heads`

use std::{
    error::Error,
    io::{Write as _, stdout},
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use slipstream_base::{Log, clock::SystemClock, genesis_file, keys};
use slipstream_config::{NodeConfig, Role};
use slipstream_node::Node;
use slipstream_types::Clock as _;
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{client_async, tungstenite::Message};

/// The heads to follow.
const HEADS: usize = 5;
/// How long they may take together.
const PATIENCE: Duration = Duration::from_secs(180);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let node = start(dir.path()).await?;
    let heads = timeout(PATIENCE, follow(node.api_address())).await??;
    node.stop().await?;
    if heads.len() != HEADS {
        return Err(format!("the node closed the socket after {} heads", heads.len()).into());
    }
    writeln!(stdout(), "proved: {HEADS} heads were announced, each the child of the one before")?;
    Ok(())
}

/// Subscribes to a node's heads, and returns the first ones.
async fn follow(api: SocketAddr) -> Result<Vec<Value>, Box<dyn Error>> {
    let stream = TcpStream::connect(api).await?;
    let (mut socket, _) = client_async(format!("ws://{api}/ws"), stream).await?;
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"] });
    socket.send(Message::text(call.to_string())).await?;

    let mut heads: Vec<Value> = Vec::new();
    while heads.len() < HEADS {
        let Some(message) = socket.next().await else { break };
        // The node also sends pings, which the library answers.
        let Message::Text(text) = message? else { continue };
        let mut heard: Value = serde_json::from_str(&text)?;
        if let Some(error) = heard.get("error") {
            return Err(error.to_string().into());
        }
        // The answer to the call has the subscription's id; news has a method instead.
        if heard["method"] != "eth_subscription" {
            continue;
        }
        let head = heard["params"]["result"].take();
        writeln!(stdout(), "head {} {}", head["number"], head["hash"])?;
        if heads.last().is_some_and(|last| last["hash"] != head["parentHash"]) {
            return Err(format!("{head} does not follow the head before").into());
        }
        heads.push(head);
    }
    Ok(heads)
}

/// Starts the only validator of a new chain, which makes empty batches, on free ports of this machine.
async fn start(dir: &Path) -> Result<Node, Box<dyn Error>> {
    let mut config = NodeConfig {
        role: Role::Validator,
        genesis: Some(dir.join("genesis.json")),
        key_file: dir.join("node.key"),
        data_dir: dir.join("data"),
        ..NodeConfig::default()
    };
    config.network.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    config.api.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    config.consensus.empty_batch_interval_ms = 100;
    let key = keys::create(&config.key_file)?;
    genesis_file::save(
        &dir.join("genesis.json"),
        &slipstream_testkit::genesis(&[key], SystemClock.now_ms()),
    )?;
    Ok(Node::start(&config, Log::open(&config.log)?).await?)
}
