//! The floor of serving: the same answers over the same transport, by a handler that looks them up in memory.

use std::{collections::HashMap, future::ready, path::PathBuf, sync::Arc};

use anyhow::{Result, anyhow};
use slipstream_network::{BoxFuture, Network, NetworkConfig, Payload, PeerAddress, Refusal};
use slipstream_storage::{StorageConfig, Store};
use slipstream_sync::{SyncServer, protocol::Request};
use slipstream_types::{BatchNumber, codec};

use super::clients::{after, range_request};
use crate::harness::handler::Answering;
use slipnet::{accounts::node_key, output::print_line};

const SEED: &str = "slipnet-bench-sender";
/// The prefix of the line that reports readiness; the address for peers follows.
pub(super) const READY: &str = "sender ready ";

/// The arguments of the sender's process.
#[derive(Clone, Debug, clap::Args)]
pub struct SenderOptions {
    /// The database whose answers it sends.
    #[arg(long)]
    pub database: PathBuf,
}

/// Prepares all answers, prints its address, and serves until it is killed.
pub(crate) async fn run(options: SenderOptions) -> Result<()> {
    let key = node_key(SEED, 0);
    let answers = answers(&options).await?;
    let handler = Arc::new(Answering(move |_, payload| -> BoxFuture<'static, _> {
        let answer = answers.get(&payload).cloned().map(Payload::from);
        Box::pin(ready(answer.ok_or_else(|| Refusal::not_kept("no such answer"))))
    }));
    let listen = "127.0.0.1:0".parse().expect("a constant");
    let config = NetworkConfig { listen, ..NetworkConfig::default() };
    let network = Network::start(&config, &key, handler).await?;
    let address = PeerAddress { id: key.public(), address: network.local_address() };
    print_line(&format!("{READY}{address}"))?;
    Err(anyhow!("the network failed: {}", network.failed().await))
}

async fn answers(options: &SenderOptions) -> Result<HashMap<Vec<u8>, Vec<u8>>> {
    let config = StorageConfig { snapshot_interval_batches: 0, ..Default::default() };
    let store = Store::open(&config, &options.database)?;
    let head = store.head()?.header.number;
    let server = SyncServer::new(store.clone());
    let mut answers = HashMap::new();
    let mut answer = async |request: &Request| -> Result<Vec<u8>> {
        let payload = codec::encode("sync request", request)?;
        // Each request comes from another peer, so that none exceeds its share.
        let asker = slipstream_testkit::key(answers.len() as u8).public();
        let answer =
            server.handle(asker, payload.clone()).await.map_err(|refusal| anyhow!(refusal))?.into_vec();
        answers.insert(payload, answer.clone());
        Ok(answer)
    };
    answer(&Request::Summary).await?;
    let mut next = BatchNumber::new(1);
    while next <= head {
        next = after(next, &answer(&range_request(next)).await?)?;
    }
    store.close();
    Ok(answers)
}
