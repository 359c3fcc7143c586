//! [`V1Follower`]: the first version of state sync, as the baseline. It requests one chunk of 1,000 transactions at a
//! time, from a random peer. It waits for the answer, verifies, executes and persists it, and only then requests the
//! next chunk.
//!
//! It uses the node's parts in another order: the transport, the server's protocol, `verify::range`, the executor's
//! functions and the store with its fsync. It requests no hints.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rand::seq::IndexedRandom;
use serde::{Deserialize, Serialize};
use slipstream_executor::{BatchContext, HintsMode, decode_body, execute, seal};
use slipstream_network::{Network, NetworkConfig, PeerTarget, Protocol, RequestLimits, Transport};
use slipstream_storage::{CommitBatch, StorageConfig, Store};
use slipstream_sync::{
    Trust,
    protocol::{ANSWER_BYTES_MAX, Parts, RANGE_BYTES_MAX, Range, RangeBatch, RangeRequest, Request},
    verify,
};
use slipstream_types::{
    B256, BatchNumber, BlobKind, Body, Certificate, ChainConfig, Digest, Genesis, SecretKey, codec,
};

use slipnet::cpu;

use crate::harness::{handler::refusing, workload::BATCH_TRANSACTIONS};

/// Transactions of one chunk.
const CHUNK_TRANSACTIONS: usize = 1_000;
/// The deadline of a request: the node's default.
const DEADLINE: Duration = Duration::from_secs(10);
/// The deadline of the first connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);
const CONNECT_POLL: Duration = Duration::from_millis(5);

/// The arguments of the v1 follower's process.
#[derive(Clone, Debug, clap::Args)]
pub struct V1Options {
    /// An empty directory for its store.
    #[arg(long)]
    pub dir: PathBuf,
    /// The chain's genesis file.
    #[arg(long)]
    pub genesis: PathBuf,
    /// The peers to ask.
    #[arg(long, required = true)]
    pub peer: Vec<PeerTarget>,
    /// The batch to stop at.
    #[arg(long)]
    pub target: u64,
}

/// The cost of a baseline run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct V1Report {
    /// From the first request to the last commit.
    pub(super) seconds: f64,
    pub(super) transactions: u64,
    /// Bytes on the follower's connections, headers and acknowledgements included.
    pub(super) bytes: u64,
    pub(super) cpu_s: f64,
    pub(super) state_root: Digest,
    pub(super) stages: Stages,
}

/// Seconds of each stage; nothing overlaps, so their sum is the whole time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Stages {
    pub(super) wait: f64,
    pub(super) verify: f64,
    pub(super) execute: f64,
    pub(super) commit: f64,
}

impl Stages {
    /// Returns the stages by their names in figures.
    pub(super) fn named(&self) -> Vec<(String, f64)> {
        let Stages { wait, verify, execute, commit } = *self;
        let named = [("wait", wait), ("verify", verify), ("execute", execute), ("commit", commit)];
        named.map(|(name, seconds)| (name.to_owned(), seconds)).into()
    }
}

/// The follower of the baseline.
struct V1Follower {
    store: Store,
    chain: ChainConfig,
    trust: Trust,
    transport: Arc<dyn Transport>,
    stages: Stages,
}

/// Runs the baseline in this process and prints its [`V1Report`] as JSON.
pub(crate) async fn run(options: V1Options) -> Result<()> {
    let genesis: Genesis = serde_json::from_slice(&std::fs::read(&options.genesis)?)?;
    let store =
        Store::open(&StorageConfig { snapshot_interval_batches: 0, ..Default::default() }, &options.dir)?;
    store.initialize(&genesis)?;
    let listen = "127.0.0.1:0".parse().expect("a constant");
    let config = NetworkConfig { listen, peers: options.peer, ..NetworkConfig::default() };
    let key = SecretKey::from_seed(Digest::tagged("slipnet/v1", &std::process::id().to_le_bytes()).0);
    let network = Network::start(&config, &key, refusing()).await?;
    let follower = V1Follower::new(store.clone(), network.clone())?;
    let report = follower.follow(BatchNumber::new(options.target)).await?;
    network.shutdown().await;
    store.close();
    crate::print_json(&report)
}

impl V1Follower {
    fn new(store: Store, transport: Arc<dyn Transport>) -> Result<V1Follower> {
        let genesis = store.genesis()?;
        let (chain, trust) = (genesis.chain.clone(), Trust::of_genesis(&genesis));
        Ok(V1Follower { store, chain, trust, transport, stages: Stages::default() })
    }

    async fn follow(mut self, target: BatchNumber) -> Result<V1Report> {
        self.wait_connected().await?;
        let (begin, cpu_before, bytes_before) = (Instant::now(), cpu::of_this_process(), self.bytes());
        let mut transactions = 0;
        loop {
            let head = self.store.head()?;
            if head.header.number >= target {
                let seconds = begin.elapsed().as_secs_f64();
                let (cpu_s, bytes) = (cpu::of_this_process() - cpu_before, self.bytes() - bytes_before);
                let (state_root, stages) = (head.header.state_root, self.stages);
                return Ok(V1Report { seconds, transactions, bytes, cpu_s, state_root, stages });
            }
            let request = RangeRequest {
                first: head.header.number.next(),
                batches_max: (CHUNK_TRANSACTIONS / BATCH_TRANSACTIONS) as u32,
                bytes_max: RANGE_BYTES_MAX,
                parts: Parts::BODY,
            };
            let asked = Instant::now();
            let answer = self.ask(&request).await?;
            let came = Instant::now();
            self.stages.wait += (came - asked).as_secs_f64();
            let due = target.since(request.first) + 1;
            transactions += tokio::task::block_in_place(|| self.take(&request, answer, due))?;
        }
    }

    async fn wait_connected(&self) -> Result<()> {
        let begin = Instant::now();
        while self.transport.peers().is_empty() {
            ensure!(begin.elapsed() < CONNECT_DEADLINE, "no peer connected in time");
            tokio::time::sleep(CONNECT_POLL).await;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.transport.peer_stats().iter().map(|peer| peer.bytes_received).sum()
    }

    async fn ask(&self, request: &RangeRequest) -> Result<Vec<u8>> {
        let peer = *self.transport.peers().choose(&mut rand::rng()).context("the last peer is gone")?;
        let payload = codec::encode("sync request", &Request::Range(*request))?;
        let limits = RequestLimits { deadline: DEADLINE, response_bytes_max: ANSWER_BYTES_MAX };
        Ok(self.transport.request(peer, Protocol::SYNC, payload, limits).await?)
    }

    /// Verifies, executes and persists one chunk; returns its number of transactions. The store checks that the chunk
    /// follows the head.
    fn take(&mut self, request: &RangeRequest, answer: Vec<u8>, due: u64) -> Result<u64> {
        let begin = Instant::now();
        let range: Range = codec::decode("range", &answer, ANSWER_BYTES_MAX)?;
        let range = verify::range(range, request, due, &self.trust)?;
        self.stages.verify += begin.elapsed().as_secs_f64();
        let mut transactions = 0;
        for batch in range.batches() {
            transactions += self.apply(batch, range.certificate())?;
        }
        Ok(transactions)
    }

    fn apply(&mut self, batch: &RangeBatch, certificate: &Certificate) -> Result<u64> {
        let begin = Instant::now();
        let RangeBatch { header, body: blob, .. } = batch;
        let body: Body = blob.as_ref().context("a verified batch has no body")?.open(BlobKind::Body)?;
        let transactions = decode_body(&body, &self.chain)?;
        let head = self.store.head()?;
        let basis = BatchContext::of(&head.header, header);
        let outcome = execute(&self.store.view()?, &basis.env(&self.chain), &transactions)?;
        let executed = Instant::now();
        self.stages.execute += (executed - begin).as_secs_f64();
        let speculation = self.store.speculate(&outcome.delta)?;
        let sealed = seal(HintsMode::Keys, &basis, &transactions, &outcome, speculation.root())?;
        ensure!(sealed.header == *header, "the execution of batch {} gave another header", header.number);
        let hashes: Vec<B256> = transactions.iter().map(|transaction| transaction.hash).collect();
        let commit = CommitBatch {
            certificate: (certificate.info.number == header.number).then_some(certificate),
            ..sealed.commit_batch(&outcome.delta, &hashes)
        };
        self.store.commit(commit, Some(speculation))?;
        self.stages.commit += executed.elapsed().as_secs_f64();
        Ok(transactions.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use slipstream_network::MemoryHub;
    use slipstream_sync::SyncServer;

    use super::*;
    use crate::harness::{chain::Source, handler::serving, workload::Workload};
    use slipnet::progress::Progress;

    /// Goal: the baseline is a follower like any other: it reaches the same head.
    #[tokio::test(flavor = "multi_thread")]
    async fn v1_ends_with_the_head_of_its_peers() {
        let server = Store::memory(&StorageConfig::default());
        let source = Source::make(&server, Workload::Erc20, 9, 50, Progress::Quiet).unwrap();
        let hub = MemoryHub::new();
        let id = |seed| SecretKey::from_seed([seed; 32]).public();
        let own = Store::memory(&StorageConfig::default());
        own.initialize(&source.genesis).unwrap();
        let transport = hub.join(id(1), refusing());
        let mut peers = Vec::new();
        for seed in [2, 3] {
            peers.push(hub.join(id(seed), serving(SyncServer::new(server.clone()))));
            assert!(hub.connect(id(1), id(seed)));
        }
        let follower = V1Follower::new(own.clone(), transport).unwrap();
        let report = follower.follow(source.head).await.unwrap();
        assert_eq!((report.state_root, report.transactions), (source.state_root, source.transactions));
        assert_eq!(own.head().unwrap().digest, server.head().unwrap().digest);
        let Stages { wait, verify, execute, commit } = report.stages;
        assert!(wait > 0.0 && verify > 0.0 && wait + verify + execute + commit <= report.seconds);
    }
}
