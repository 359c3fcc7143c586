//! Clients that send the requests of followers: a summary, then aligned ranges one after another, up to the head. They
//! check only the cheap parts of answers, so that on two cores the server has the CPU.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use slipstream_network::{Network, NetworkConfig, PeerAddress, Protocol, RequestLimits, Transport};
use slipstream_sync::{
    SyncConfig,
    protocol::{ANSWER_BYTES_MAX, Parts, Range, RangeRequest, Request, Summary},
};
use slipstream_types::{BatchNumber, codec};

use crate::harness::handler::refusing;
use slipnet::accounts::node_key;

/// The deadline of a request: the node's default.
const DEADLINE: Duration = Duration::from_secs(10);
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);
const CONNECT_POLL: Duration = Duration::from_millis(5);
/// The pause after which a refused client retries.
const REFUSED_PAUSE: Duration = Duration::from_millis(250);
const SEED: &str = "slipnet-bench-client";

/// The arguments of the clients' process.
#[derive(Clone, Debug, clap::Args)]
pub struct ClientsOptions {
    /// The server.
    #[arg(long)]
    pub peer: PeerAddress,
    /// The number of clients.
    #[arg(long)]
    pub count: u32,
    /// Milliseconds between the starts of two clients.
    #[arg(long)]
    pub gap_ms: u64,
}

/// The total cost of all clients.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ClientsReport {
    /// From the first start to the last end.
    pub(super) seconds: f64,
    /// The bytes of all answers.
    pub(super) bytes: u64,
    /// Requests that the server refused; they were repeated.
    pub(super) refused: u64,
    pub(super) cpu_s: f64,
}

/// Returns the request of a follower with the default configuration: its range ends where the ranges of all other
/// followers end.
pub(super) fn range_request(first: BatchNumber) -> Request {
    let config = SyncConfig::default();
    let batches = u64::from(config.range_batches_max.get());
    Request::Range(RangeRequest {
        first,
        batches_max: (batches - first.get() % batches) as u32,
        bytes_max: config.range_bytes_max.get(),
        parts: Parts::BODY.with(Parts::RECEIPTS).with(Parts::DELTA),
    })
}

/// Returns the batch after an answer to [`range_request`].
pub(super) fn after(first: BatchNumber, answer: &[u8]) -> Result<BatchNumber> {
    let range: Range = codec::decode("range", answer, ANSWER_BYTES_MAX)?;
    for (batch, number) in range.batches.iter().zip(first.through(BatchNumber::MAX)) {
        ensure!(
            batch.header.number == number,
            "the answer has batch {} in place of {number}",
            batch.header.number
        );
    }
    ensure!(!range.batches.is_empty(), "the answer has no batch from {first} on");
    Ok(first.after(range.batches.len() as u64))
}

/// Runs all clients in this process and prints their [`ClientsReport`] as JSON.
pub(crate) async fn run(options: ClientsOptions) -> Result<()> {
    let begin = Instant::now();
    let clients = (0..options.count).map(|index| {
        let start = begin + Duration::from_millis(options.gap_ms * u64::from(index));
        let peer = options.peer;
        async move { tokio::spawn(client(index, peer, start)).await? }
    });
    let done = try_join_all(clients).await?;
    let mut report = ClientsReport {
        seconds: begin.elapsed().as_secs_f64(),
        cpu_s: slipnet::cpu::of_this_process(),
        ..ClientsReport::default()
    };
    for (bytes, refused) in done {
        report.bytes += bytes;
        report.refused += refused;
    }
    crate::print_json(&report)
}

/// Runs one client from its start to the head; returns its bytes and its refused requests.
async fn client(index: u32, peer: PeerAddress, start: Instant) -> Result<(u64, u64)> {
    tokio::time::sleep_until(start.into()).await;
    let listen = "127.0.0.1:0".parse().expect("a constant");
    let config = NetworkConfig { listen, peers: vec![peer.into()], ..NetworkConfig::default() };
    let network = Network::start(&config, &node_key(SEED, index), refusing()).await?;
    let begin = Instant::now();
    while network.peers().is_empty() {
        ensure!(begin.elapsed() < CONNECT_DEADLINE, "the server did not connect in time");
        tokio::time::sleep(CONNECT_POLL).await;
    }
    let (mut bytes, mut refused) = (0, 0);
    let mut ask = async |request: &Request| loop {
        let payload = codec::encode("sync request", request)?;
        let limits = RequestLimits { deadline: DEADLINE, response_bytes_max: ANSWER_BYTES_MAX };
        match network.request(peer.id, Protocol::SYNC, payload, limits).await {
            Ok(answer) => {
                bytes += answer.len() as u64;
                return anyhow::Ok(answer);
            }
            Err(slipstream_network::NetworkError::Refused { .. }) => {
                refused += 1;
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    };
    let summary: Summary = codec::decode("summary", &ask(&Request::Summary).await?, ANSWER_BYTES_MAX)?;
    let head = summary.head.map_or(BatchNumber::GENESIS, |certificate| certificate.info.number);
    let mut next = BatchNumber::new(1);
    while next <= head {
        next = after(next, &ask(&range_request(next)).await?)?;
    }
    network.shutdown().await;
    Ok((bytes, refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_those_of_followers_do() {
        let count = |first| match range_request(BatchNumber::new(first)) {
            Request::Range(request) => request.batches_max,
            _ => 0,
        };
        assert_eq!((count(1), count(255), count(256)), (255, 1, 256));
    }
}
