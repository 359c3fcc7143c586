//! [`Driver`]: enough requests in flight to keep the validators busy, and the results.

use std::time::{Duration, Instant};

use alloy_primitives::B256;
use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use rayon::prelude::*;
use serde_json::{Value, json};

use super::{cluster::Cluster, object::Request};
use slipnet::{load::Chain, rpc::BATCH_CALLS_MAX, signer::Signed};

/// Concurrent requests to the node's API.
const LANES: usize = 4;
const POLL: Duration = Duration::from_millis(5);
/// The longest time for the last transactions to be committed.
const DRAIN: Duration = Duration::from_secs(90);

/// The amount of load, and its duration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pressure {
    /// The most transactions that are sent and not yet committed.
    pub(super) window: usize,
    /// The most transactions in total.
    pub(super) most: usize,
    /// The duration of sending, in seconds.
    pub(super) seconds: f64,
}

/// The result of a load.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// Transactions per second while the window was full, without the first second.
    pub(super) tps: f64,
    /// Bytes between validators, over the whole load.
    pub(super) bytes: u64,
    /// The first and the last batch.
    pub(super) batches: (u64, u64),
}

/// Sends conflict-free requests to a cluster's first validator: each account has its own object.
pub(super) struct Driver<'a> {
    cluster: &'a Cluster,
    nonces: Vec<u64>,
}

impl<'a> Driver<'a> {
    /// Makes a driver that sends from a cluster's accounts. Nothing else may use them meanwhile.
    pub(super) async fn new(cluster: &'a Cluster) -> Result<Driver<'a>> {
        let nonces = cluster.chain.nonces(cluster.devnet.accounts()).await?;
        Ok(Driver { cluster, nonces })
    }

    fn sign(&mut self, count: usize, request: Request) -> Vec<Signed> {
        let accounts = self.cluster.devnet.accounts();
        let sign = |index: usize| {
            let sender = index % accounts.len();
            let nonce = self.nonces[sender] + (index / accounts.len()) as u64;
            let call = request.call(self.cluster.contract, sender as u64);
            self.cluster.chain.sign(&accounts[sender], nonce, call)
        };
        (0..count).into_par_iter().map(sign).collect()
    }

    /// Keeps the validators busy, then waits until everything is committed.
    ///
    /// # Errors
    /// If a node refuses a transaction, or does not commit all of them.
    pub(super) async fn press(&mut self, request: Request, pressure: Pressure) -> Result<Flow> {
        let signed = self.sign(pressure.most, request);
        let chain = &self.cluster.chain;
        let bytes = self.cluster.bytes();
        let mut seen = Seen::new(chain.head().await?);
        let first = seen.head + 1;
        let (mut sent, begin) = (0, Instant::now());
        while !seen.is_enough(begin, pressure.seconds) && sent < signed.len() {
            let room = pressure.window.saturating_sub(sent - seen.committed).min(LANES * BATCH_CALLS_MAX);
            // Very small requests would cost more than they contribute.
            if room >= (pressure.window / 8).clamp(1, BATCH_CALLS_MAX) {
                let part = &signed[sent..(sent + room).min(signed.len())];
                try_join_all(part.chunks(BATCH_CALLS_MAX).map(|part| send(chain, part))).await?;
                sent += part.len();
            } else {
                tokio::time::sleep(POLL).await;
            }
            seen.look(chain).await?;
        }
        let pressed = seen.commits.len();
        let deadline = Instant::now() + DRAIN;
        while seen.committed < sent {
            ensure!(
                Instant::now() < deadline,
                "only {} of {sent} transactions were committed in time",
                seen.committed
            );
            tokio::time::sleep(POLL).await;
            seen.look(chain).await?;
        }
        self.nonces = chain.nonces(self.cluster.devnet.accounts()).await?;
        Ok(Flow {
            tps: seen.tps(begin, pressed)?,
            bytes: self.cluster.bytes() - bytes,
            batches: (first, seen.head),
        })
    }
}

async fn send(chain: &Chain, part: &[Signed]) -> Result<()> {
    let params: Vec<Value> = part.iter().map(|signed| json!([signed.raw])).collect();
    let _: Vec<B256> = chain.rpc().batch_all("eth_sendRawTransaction", &params).await?;
    Ok(())
}

/// The commits that were seen.
struct Seen {
    head: u64,
    committed: usize,
    /// The times of commits, and the total by then.
    commits: Vec<(Instant, usize)>,
}

/// The fewest batches that give a rate. After this multiple of the time, fewer batches suffice.
const COMMITS_MIN: usize = 5;
const SLOWNESS_MAX: f64 = 4.0;
/// The warm-up time, in which batches grow.
const WARM: Duration = Duration::from_secs(1);

impl Seen {
    fn new(head: u64) -> Seen {
        Seen { head, committed: 0, commits: Vec::new() }
    }

    async fn look(&mut self, chain: &Chain) -> Result<()> {
        let now = Instant::now();
        for number in self.head + 1..=chain.head().await? {
            let params = json!([format!("{number:#x}"), false]);
            let block: Value = chain.rpc().call("eth_getBlockByNumber", params).await?;
            let count =
                block["transactions"].as_array().context("a block has no list of transactions")?.len();
            self.committed += count;
            self.head = number;
            if count > 0 {
                self.commits.push((now, self.committed));
            }
        }
        Ok(())
    }

    /// Whether the time is over, with enough commits after [`WARM`] for a rate; slow validators get more time.
    fn is_enough(&self, begin: Instant, seconds: f64) -> bool {
        let warm = self.commits.iter().filter(|(at, _)| *at >= begin + WARM).count();
        let elapsed_s = begin.elapsed().as_secs_f64();
        elapsed_s >= seconds && (warm >= COMMITS_MIN || elapsed_s >= SLOWNESS_MAX * seconds)
    }

    /// Returns the rate between the first commit after [`WARM`] and the last one while sending continued.
    fn tps(&self, begin: Instant, pressed: usize) -> Result<f64> {
        let pressed = &self.commits[..pressed];
        let warm = pressed.iter().find(|(at, _)| *at >= begin + WARM);
        let (Some((from, before)), Some((to, after))) = (warm, pressed.last()) else {
            anyhow::bail!("no batch was committed after the first second: more time is needed");
        };
        let seconds = to.duration_since(*from).as_secs_f64();
        ensure!(seconds > 0.0, "only one batch was committed after the first second: more time is needed");
        Ok((after - before) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a rate counts the commits between two moments under load.
    #[test]
    fn rates_are_between_commits() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut seen = Seen::new(0);
        seen.commits =
            vec![(at(500), 50), (at(1_500), 100), (at(2_000), 300), (at(3_500), 500), (at(9_000), 501)];
        assert_eq!(seen.tps(begin, 4).unwrap(), 200.0);
        assert!(seen.tps(begin, 1).is_err() && seen.tps(begin, 2).is_err());
    }
}
