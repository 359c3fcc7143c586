//! [`Proposed`]: the cost of making batches, for a chain's only validator. It works on its own state, from a pool that
//! is full before it starts.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::json;
use slipstream_consensus::Journal;

use super::{
    follow::{Row, storage},
    world::World,
};
use crate::harness::{
    chain::validator_key,
    node::{NodeOptions, NodeProcess, database},
    workload::BATCH_TRANSACTIONS,
};
use slipnet::rpc::quantity;

/// The polling interval: the error of both ends.
const POLL: Duration = Duration::from_millis(5);
/// Far above the time of any row.
const DEADLINE: Duration = Duration::from_secs(600);

/// The cost of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposed {
    /// From the first batch to the last.
    pub(super) seconds: f64,
    /// Transactions in the batches after the first.
    pub(super) transactions: f64,
    pub(super) cpu_s: f64,
}

impl Proposed {
    pub(super) fn tps(&self) -> f64 {
        self.transactions / self.seconds
    }

    pub(super) fn cpu_us_per_tx(&self) -> f64 {
        1e6 * self.cpu_s / self.transactions
    }
}

/// Makes batches of these transactions with a fresh process, on the state in `dir`.
///
/// # Errors
/// If the validator exits, or is late.
pub(super) async fn propose(
    world: &World,
    genesis: &Path,
    transactions: &[&[u8]],
    row: &Row,
    dir: &Path,
) -> Result<Proposed> {
    Journal::write(&database(dir).with_file_name("transactions.journal"), transactions.iter().copied())?;
    let options = NodeOptions {
        mode: "auto",
        executor: row.executor(),
        storage: storage(row.memory, world.rows()),
        consensus: format!(
            "  batch_transactions_max: {BATCH_TRANSACTIONS}\n  empty_batch_interval_ms: 0\n  pool:\n    transactions_max: {}\n",
            2 * transactions.len()
        ),
        ..NodeOptions::default()
    };
    let mut node = NodeProcess::start(dir, genesis, &validator_key(), &options).await?;
    let begin = Instant::now();
    let mut head = node.head().await?;
    let mut first = None;
    let mut made = 0;
    while made < transactions.len() as u64 {
        node.check_alive()?;
        ensure!(
            begin.elapsed() < DEADLINE,
            "the proposer committed only {made} of {} transactions in time",
            transactions.len()
        );
        tokio::time::sleep(POLL).await;
        let now = node.head().await?;
        if now == head {
            continue;
        }
        for number in head + 1..=now {
            made += node.transactions_of(number).await?;
        }
        head = now;
        if first.is_none() {
            first = Some((Instant::now(), made, node.cpu_s()?));
        }
    }
    let end = (Instant::now(), node.cpu_s()?);
    node.stop().await?;
    let (began, before, cpu_before) = first.expect("there are transactions, so there was a batch");
    Ok(Proposed {
        seconds: (end.0 - began).as_secs_f64(),
        transactions: (made - before) as f64,
        cpu_s: end.1 - cpu_before,
    })
}

impl NodeProcess {
    /// Returns the number of transactions in a batch.
    async fn transactions_of(&self, number: u64) -> Result<u64> {
        let number = format!("0x{number:x}");
        quantity(&self.call("eth_getBlockTransactionCountByNumber", json!([number])).await?)
    }
}
