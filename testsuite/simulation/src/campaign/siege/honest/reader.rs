//! The reader: fifty requests a second of four kinds, every other one over a new connection.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipnet::rpc::Rpc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{READER, Waits};

const INTERVAL: Duration = Duration::from_millis(20);
/// The time until a failed request is sent again.
const RETRY: Duration = Duration::from_millis(100);
/// The most requests in flight; beyond it no new ones are sent.
const WAITING_MAX: usize = 256;

/// Sends requests until it is stopped.
pub(super) async fn run(url: String, waits: Waits, tasks: TaskTracker, stop: CancellationToken) {
    let Ok(kept) = Rpc::from_address(READER, &url) else { return };
    let waiting = std::sync::Arc::new(tokio::sync::Semaphore::new(WAITING_MAX));
    let mut ticks = tokio::time::interval(INTERVAL);
    for turn in 0_usize.. {
        let scheduled = ticks.tick().await.into_std();
        let Ok(place) = waiting.clone().try_acquire_owned() else { continue };
        let rpc = if turn % 2 == 0 { Rpc::from_address(READER, &url).ok() } else { Some(kept.clone()) };
        let (Some(rpc), waits) = (rpc, waits.clone()) else { return };
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            let _place = place;
            let wait = waits.begin(scheduled);
            while ask(&rpc, turn / 2).await.is_err() {
                tokio::time::sleep(RETRY).await;
            }
            waits.end(wait, Instant::now());
        }));
    }
}

async fn ask(rpc: &Rpc, turn: usize) -> anyhow::Result<Value> {
    let (method, params) = match turn % 4 {
        0 => ("eth_blockNumber", json!([])),
        1 => ("eth_getBalance", json!([format!("0x{}", "77".repeat(20)), "latest"])),
        2 => ("eth_getBlockByNumber", json!(["latest", true])),
        _ => ("eth_getLogs", json!([{ "fromBlock": "latest", "toBlock": "latest" }])),
    };
    rpc.call(method, params).await
}
