//! [`Tracker`]: reads every new batch of one node and notes when it saw which transaction.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::plan::Plan;
use crate::rpc::Rpc;

/// A batch is seen at most this late: the error of every latency.
const POLL: Duration = Duration::from_millis(5);
/// A node that does not answer for this long ends the run.
const PATIENCE: Duration = Duration::from_secs(30);
/// Latencies above ten minutes are counted as ten minutes.
const LATENCY_US_MAX: u64 = 600_000_000;

/// What one node committed of a plan.
pub(super) struct Tracked {
    /// Microseconds from a transaction's due time until its batch was seen.
    pub(super) latency: Histogram<u64>,
    /// The plan's transactions in the order of the chain.
    pub(super) seen: Vec<u32>,
    /// From the first due time until the last of them was seen.
    pub(super) last: Duration,
    /// Batches with at least one of them.
    pub(super) batches: u64,
    /// The last batch that was read.
    pub(super) head: u64,
}

/// A running reader.
pub(super) struct Tracker {
    committed: Arc<AtomicU64>,
    task: JoinHandle<Result<Tracked>>,
}

impl Tracker {
    pub(super) fn start(
        rpc: Rpc,
        plan: Arc<Plan>,
        first_batch: u64,
        begin: Instant,
        stop: CancellationToken,
    ) -> Tracker {
        let committed = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(track(rpc, plan, first_batch, begin, stop, committed.clone()));
        Tracker { committed, task }
    }

    pub(super) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Its result, after the run was stopped.
    pub(super) async fn result(self) -> Result<Tracked> {
        self.task.await.context("a tracker panicked")?
    }
}

async fn track(
    rpc: Rpc,
    plan: Arc<Plan>,
    first_batch: u64,
    begin: Instant,
    stop: CancellationToken,
    committed: Arc<AtomicU64>,
) -> Result<Tracked> {
    let mut tracked = Tracked::new(first_batch.saturating_sub(1))?;
    let mut last_answer = Instant::now();
    loop {
        let params = json!([format!("{:#x}", tracked.head + 1), false]);
        match rpc.call::<Value>("eth_getBlockByNumber", params).await {
            Ok(block) if !block.is_null() => {
                tracked.read(&block, &plan, Instant::now().saturating_duration_since(begin))?;
                committed.store(tracked.seen.len() as u64, Ordering::Relaxed);
                last_answer = Instant::now();
                continue;
            }
            Ok(_) => last_answer = Instant::now(),
            Err(error) if last_answer.elapsed() > PATIENCE => return Err(error),
            Err(_) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(tracked),
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

impl Tracked {
    fn new(head: u64) -> Result<Tracked> {
        let latency = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).context("constant bounds")?;
        Ok(Tracked { latency, seen: Vec::new(), last: Duration::ZERO, batches: 0, head })
    }

    /// Takes in the next batch, seen at this time after the start.
    fn read(&mut self, block: &Value, plan: &Plan, now: Duration) -> Result<()> {
        let hashes = block["transactions"].as_array().context("a block without a list of transactions")?;
        let before = self.seen.len();
        for hash in hashes {
            let hash: B256 =
                hash.as_str().unwrap_or_default().parse().context("a transaction hash in a block")?;
            let Some(index) = plan.find(&hash) else { continue };
            let latency = now.saturating_sub(plan.due(index as usize));
            self.latency.saturating_record(latency.as_micros() as u64);
            self.seen.push(index);
        }
        if self.seen.len() > before {
            self.last = now;
            self.batches += 1;
        }
        self.head += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The point of an open loop: a batch that comes late is late for each transaction since that was due.
    #[test]
    fn latencies_count_from_the_due_time() {
        let plan = super::super::plan::tests::plan();
        let mut tracked = Tracked::new(4).unwrap();
        let block = |range: std::ops::Range<usize>| {
            let hashes: Vec<_> = range.map(|index| plan.hash(index).to_string()).collect();
            json!({ "transactions": hashes })
        };
        let other = json!({ "transactions": [B256::repeat_byte(1).to_string()] });
        tracked.read(&other, &plan, Duration::from_millis(100)).unwrap();
        tracked.read(&block(0..10), &plan, Duration::from_millis(1_000)).unwrap();
        tracked.read(&block(10..11), &plan, Duration::from_millis(5_000)).unwrap();
        assert_eq!((tracked.head, tracked.batches, tracked.seen.len()), (7, 2, 11));
        assert_eq!(tracked.last, Duration::from_secs(5));
        let ms = |value: u64| value / 1_000;
        assert!((99..=101).contains(&ms(tracked.latency.min())), "{}", tracked.latency.min());
        assert!((3_990..=4_010).contains(&ms(tracked.latency.max())), "{}", tracked.latency.max());
        assert!(tracked.read(&json!({}), &plan, Duration::ZERO).is_err());
    }
}
