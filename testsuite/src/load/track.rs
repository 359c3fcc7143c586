//! The nodes' view of a running load. [`Contents`] has the transactions of each batch, read once; [`Heads`] has the
//! time at which each node showed each batch. Together they give the latency of each transaction at each node, for one
//! small call per poll.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::{sync::mpsc::UnboundedSender, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::rpc::Rpc;

/// The interval between two polls of a node, apart from the time of its answer. A batch is seen up to this much late:
/// the error of every latency.
const POLL: Duration = Duration::from_millis(5);
/// The most nodes that are polled every [`POLL`]. More nodes are polled less often, so that polling costs the same.
const NODES_PER_POLL: usize = 5;
/// How long all nodes may be silent before the run fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a node may be silent before the run no longer waits for it.
const ABSENT_AFTER: Duration = Duration::from_secs(2);
/// The most batches of one run: eleven days at ten per second.
const BATCHES_MAX: usize = 10_000_000;

/// Returns the interval between two polls of a node.
pub(super) fn interval(nodes: usize) -> Duration {
    POLL * nodes.div_ceil(NODES_PER_POLL).max(1) as u32
}

/// A batch that is not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Full {
    pub(super) number: u64,
    pub(super) transactions: usize,
}

/// The hashes of each batch's transactions, from batch `first` on.
#[derive(Default, Debug)]
pub(super) struct Contents {
    pub(super) first: u64,
    pub(super) batches: Vec<Vec<B256>>,
}

impl Contents {
    /// Returns the number and hashes of each batch that is not empty.
    pub(super) fn full(&self) -> impl Iterator<Item = (u64, &Vec<B256>)> {
        (self.first..).zip(&self.batches).filter(|(_, hashes)| !hashes.is_empty())
    }

    /// Returns the last batch that was read.
    pub(super) fn head(&self) -> u64 {
        (self.first + self.batches.len() as u64).saturating_sub(1)
    }

    fn read(&mut self, block: &Value) -> Result<&[B256]> {
        let hashes = block["transactions"].as_array().context("the block has no list of transactions")?;
        let parse = |hash: &Value| hash.as_str().and_then(|hash| hash.parse().ok());
        let hashes: Option<Vec<B256>> = hashes.iter().map(parse).collect();
        self.batches.push(hashes.context("the block lists a transaction that is not a hash")?);
        Ok(self.batches.last().map_or(&[], Vec::as_slice))
    }
}

/// A running reader of batches.
pub(super) struct ContentsReader {
    committed: Arc<AtomicU64>,
    /// The last batch with transactions of the load.
    last: Arc<AtomicU64>,
    task: JoinHandle<Result<Contents>>,
}

impl ContentsReader {
    /// Reads every batch once, from the first node that answers, and announces non-empty ones on `full`. It stores at
    /// most `BATCHES_MAX` batches.
    pub(super) fn start(
        nodes: Vec<Rpc>,
        first: u64,
        hashes: Arc<HashMap<B256, u32>>,
        full: UnboundedSender<Full>,
        stop: CancellationToken,
    ) -> ContentsReader {
        let (committed, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let counters = (committed.clone(), last.clone());
        let task = tokio::spawn(read_all(nodes, (first, hashes), full, stop, counters));
        ContentsReader { committed, last, task }
    }

    /// Returns how many of the load's transactions were in the batches read so far.
    pub(super) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    pub(super) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Whether it has ended, which is an error before the end of a run.
    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Returns the batches, after the run was stopped.
    pub(super) async fn result(self) -> Result<Contents> {
        self.task.await.context("the reader of batches panicked")?
    }
}

async fn read_all(
    nodes: Vec<Rpc>,
    (first, hashes): (u64, Arc<HashMap<B256, u32>>),
    full: UnboundedSender<Full>,
    stop: CancellationToken,
    (committed, last): (Arc<AtomicU64>, Arc<AtomicU64>),
) -> Result<Contents> {
    let mut contents = Contents { first, batches: Vec::new() };
    let (mut node, mut last_answer) = (0, Instant::now());
    loop {
        let number = contents.head() + 1;
        match nodes[node].call::<Value>("eth_getBlockByNumber", json!([format!("{number:#x}"), false])).await
        {
            Ok(block) if !block.is_null() && contents.batches.len() < BATCHES_MAX => {
                let read = contents.read(&block)?;
                if !read.is_empty() {
                    // If the audit has failed, the reader of its result sees the error.
                    let _ = full.send(Full { number, transactions: read.len() });
                }
                let own = read.iter().filter(|hash| hashes.contains_key(*hash)).count();
                if own > 0 {
                    last.store(number, Ordering::Relaxed);
                    committed.fetch_add(own as u64, Ordering::Relaxed);
                }
                last_answer = Instant::now();
                continue;
            }
            Ok(_) => last_answer = Instant::now(),
            Err(error) if last_answer.elapsed() > PATIENCE => return Err(error),
            Err(_) => node = (node + 1) % nodes.len(),
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(contents),
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

/// The times at which a node first showed each batch, from `first` on, after the start of the run.
#[derive(Clone, Default, Debug)]
pub(super) struct Heads {
    pub(super) name: String,
    pub(super) first: u64,
    pub(super) seen: Vec<Duration>,
    /// The number of answers to polls.
    pub(super) looks: u64,
}

impl Heads {
    /// Returns when it showed this batch, if it did.
    pub(super) fn at(&self, batch: u64) -> Option<Duration> {
        self.seen.get(usize::try_from(batch.checked_sub(self.first)?).ok()?).copied()
    }

    /// Records that its head is now this batch: all batches up to it exist.
    fn note(&mut self, head: u64, now: Duration) {
        self.looks += 1;
        let known = (head + 1).saturating_sub(self.first) as usize;
        if known > self.seen.len() {
            self.seen.resize(known.min(BATCHES_MAX), now);
        }
    }
}

/// A running watcher of one node's head.
pub(super) struct HeadWatch {
    head: Arc<AtomicU64>,
    is_absent: Arc<AtomicBool>,
    task: JoinHandle<Heads>,
}

impl HeadWatch {
    pub(super) fn start(
        (name, rpc): (String, Rpc),
        first: u64,
        begin: Instant,
        interval: Duration,
        stop: CancellationToken,
    ) -> HeadWatch {
        let (head, is_absent) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let shared = (head.clone(), is_absent.clone());
        let heads = Heads { name, first, ..Heads::default() };
        let task = tokio::spawn(watch(heads, rpc, begin, interval, stop, shared));
        HeadWatch { head, is_absent, task }
    }

    /// Whether the node shows this batch, or has been silent for too long.
    pub(super) fn has(&self, batch: u64) -> bool {
        self.is_absent.load(Ordering::Relaxed) || self.head.load(Ordering::Relaxed) >= batch
    }

    /// Returns the times, after the run was stopped.
    pub(super) async fn result(self) -> Result<Heads> {
        self.task.await.context("a watcher of a head panicked")
    }
}

async fn watch(
    mut heads: Heads,
    rpc: Rpc,
    begin: Instant,
    interval: Duration,
    stop: CancellationToken,
    (head, is_absent): (Arc<AtomicU64>, Arc<AtomicBool>),
) -> Heads {
    let mut last_answer = Instant::now();
    loop {
        if let Ok(number) = rpc.head().await {
            heads.note(number, Instant::now().saturating_duration_since(begin));
            head.store(number, Ordering::Relaxed);
            last_answer = Instant::now();
        }
        is_absent.store(last_answer.elapsed() > ABSENT_AFTER, Ordering::Relaxed);
        tokio::select! {
            () = stop.cancelled() => return heads,
            () = tokio::time::sleep(interval) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_jumps_shows_all_batches_before_it_at_once() {
        let mut heads = Heads { first: 5, ..Heads::default() };
        let at = Duration::from_millis;
        heads.note(4, at(1));
        heads.note(5, at(2));
        heads.note(7, at(9));
        heads.note(6, at(10));
        assert_eq!(
            [4, 5, 6, 7, 8].map(|batch| heads.at(batch)),
            [None, Some(at(2)), Some(at(9)), Some(at(9)), None]
        );
        assert_eq!(heads.looks, 4);
    }

    #[test]
    fn batches_are_read_in_order_and_empty_ones_are_passed_over() {
        let mut contents = Contents { first: 5, batches: Vec::new() };
        assert_eq!(contents.head(), 4);
        contents.read(&json!({ "transactions": [] })).unwrap();
        let hash = B256::repeat_byte(1);
        contents.read(&json!({ "transactions": [hash] })).unwrap();
        assert_eq!(contents.full().collect::<Vec<_>>(), [(6, &vec![hash])]);
        assert_eq!(contents.head(), 6);
        assert!(contents.read(&json!({})).is_err());
        assert!(contents.read(&json!({ "transactions": [5] })).is_err());
    }

    #[test]
    fn many_nodes_are_looked_at_more_seldom() {
        assert_eq!([1, 5, 6, 44].map(interval), [POLL, POLL, 2 * POLL, 9 * POLL]);
    }
}
