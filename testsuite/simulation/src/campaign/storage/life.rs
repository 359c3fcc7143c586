//! The work of a process to kill: a leader and a follower. The leader commits the chain and makes snapshots. The
//! follower restores from them, abandons restores, follows batch by batch, prunes and is reopened. Together they pass
//! every crash point.
//!
//! Each life continues with the store that the previous one left, like a restarted node.

use std::{
    io::Write,
    path::{Path as FilePath, PathBuf},
};

use anyhow::{Context, Result};
use clap::Args;
use slipstream_storage::{
    Ancestry, Backlog, CommitBatch, CrashPoint, Faults, PastBatch, PastRun, PruneConfig, Restore,
    RestoreTarget, Snapshot, StorageConfig, Store, Takeover,
};
use slipstream_types::{BatchNumber, BlobKind, Delta, Path};

use super::chain::Chain;

/// Batches between two snapshots.
pub(super) const SNAPSHOT_INTERVAL: u64 = 8;
pub(super) const SNAPSHOTS_KEPT: usize = 2;
/// For one batch in this many, the certificate comes after the commit.
pub(super) const LATE_CERTIFICATE_INTERVAL: u64 = 3;
/// The record that is written after every batch.
pub(super) const VOTE: &str = "vote";
/// Small chunks, so that a restore has many.
const CHUNK_BYTES: usize = 2_000;
const RESTORE_HEADERS: u64 = 4;
/// Batches per write of a backfill.
const BACKFILL_BATCHES: u64 = 2;
/// The follower's windows of bodies, receipts, deltas and hints, in batches: shorter than a round, and different for
/// each kind.
pub(super) const WINDOWS: [u64; 4] = [1, 3, 5, 2];

/// Returns the settings of all stores of the campaign, except for the follower's pruning.
pub(super) fn config(fsync: bool) -> StorageConfig {
    StorageConfig {
        block_cache_mib: 8,
        snapshot_interval_batches: SNAPSHOT_INTERVAL,
        snapshots_kept: SNAPSHOTS_KEPT,
        fsync,
        // The campaign's small disks are below any sensible minimum.
        disk_free_min_mib: 0,
        ..StorageConfig::default()
    }
}

/// Returns the settings of the follower's store.
pub(super) fn follower_config() -> StorageConfig {
    StorageConfig { prune: PruneConfig::of_batches(WINDOWS), ..config(true) }
}

/// Returns the directory of the leader's store.
pub(super) fn leader_dir(dir: &FilePath) -> PathBuf {
    dir.join("leader")
}

/// Returns the directory of the follower's store.
pub(super) fn follower_dir(dir: &FilePath) -> PathBuf {
    dir.join("follower")
}

/// Arguments of the process that is killed.
#[derive(Clone, Debug, Args)]
pub struct LifeOptions {
    /// The directory of both stores.
    #[arg(long)]
    pub dir: PathBuf,
    /// The chain's seed.
    #[arg(long)]
    pub seed: u64,
    /// The crash point at which to abort.
    #[arg(long)]
    pub point: Option<CrashPoint>,
    /// The pass of that point at which to abort, from 1.
    #[arg(long, default_value_t = 1)]
    pub passing: u64,
    /// Rounds of one snapshot each, after which the process ends by itself.
    #[arg(long, default_value_t = 12)]
    pub rounds: u64,
}

/// Runs until it is killed. Reports on standard output what it has acknowledged.
///
/// # Errors
/// If a store fails: it must not, in whatever state the previous life left it.
pub(super) fn live(options: &LifeOptions) -> Result<()> {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).context("cannot disable core dumps")?;
    let faults = options.point.map_or_else(Faults::none, |point| Faults::abort_at(point, options.passing));
    let mut life = Life::open(options, faults)?;
    for _ in 0..options.rounds {
        life.round()?;
    }
    Ok(())
}

/// Prints one line that outlives the process.
fn tell(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

struct Life {
    chain: Chain,
    dir: PathBuf,
    faults: Faults,
    leader: Store,
    follower: Store,
}

impl Life {
    fn open(options: &LifeOptions, faults: Faults) -> Result<Life> {
        let chain = Chain { seed: options.seed, body_bytes: 300 };
        let open = |config: StorageConfig, dir: PathBuf| -> Result<Store> {
            let store = Store::open_with(&config, &dir, &faults)?;
            store.initialize(&chain.genesis())?;
            Ok(store)
        };
        let leader = open(config(true), leader_dir(&options.dir))?;
        let follower = open(follower_config(), follower_dir(&options.dir))?;
        settle(&leader, &chain)?;
        Ok(Life { chain, dir: options.dir.clone(), faults, leader, follower })
    }

    /// Commits a few batches, one of them with a snapshot. Then the follower catches up in one of its ways, and prunes.
    fn round(&mut self) -> Result<()> {
        let head = self.leader.head()?.header.number.get();
        let end = (head / SNAPSHOT_INTERVAL + 1) * SNAPSHOT_INTERVAL + 2;
        for _ in head..end {
            step(&self.leader, &self.chain)?;
            tell(&format!("leader {}", self.leader.head()?.header.number))?;
        }
        if let Some(info) = self.leader.snapshots().first()
            && info.number > self.follower.head()?.header.number
        {
            let gives_up = (end / SNAPSHOT_INTERVAL).is_multiple_of(3);
            self.restore(info.number, gives_up)?;
        }
        self.follow()?;
        self.follower.prune()?;
        // Opening frees an abandoned restore.
        let dir = follower_dir(&self.dir);
        let gone = std::mem::replace(&mut self.follower, Store::memory(&config(false)));
        drop(gone);
        self.follower = Store::open_with(&follower_config(), &dir, &self.faults)?;
        Ok(())
    }

    fn restore(&self, number: BatchNumber, gives_up: bool) -> Result<()> {
        let snapshot = self.leader.snapshot(number)?.context("a listed snapshot is missing")?;
        let restore = self.follower.restore(&target(&self.leader, number)?)?;
        if gives_up {
            add_chunks(&restore, &snapshot, 2)?;
            return Ok(());
        }
        add_chunks(&restore, &snapshot, usize::MAX)?;
        finish(restore, &self.leader, number)?;
        tell(&format!("follower {number}"))?;
        self.backfill()
    }

    /// Backfills the windows' batches from before the restored state, newest first.
    fn backfill(&self) -> Result<()> {
        while let Some((lowest, wanted_from)) = Backlog::missing(&self.follower.backlog()?) {
            let last = lowest.before(1);
            let first = last.before(BACKFILL_BATCHES - 1).max(wanted_from);
            let mut batches = Vec::new();
            for number in first.through(last) {
                let header = self.leader.header(number)?.context("the leader lacks a header")?;
                let blob = |kind| self.leader.blob(kind, number)?.context("the leader lacks a blob");
                let blobs = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints].map(blob);
                let [body, receipts, delta, hints] = blobs;
                batches.push((header, body?, receipts?, delta?, hints?));
            }
            let certificate = self.leader.latest_certificate()?.context("the leader has no certificate")?;
            let leaves = certificate.info.number.leaves();
            let proof = self.leader.header_range_proof(leaves, first, batches.len())?;
            let batches = batches.iter().map(|(header, body, receipts, delta, hints)| PastBatch {
                header,
                body: Some(body),
                receipts: Some(receipts),
                delta: Some(delta),
                hints: Some(hints),
                transaction_hashes: &[],
            });
            let batches: Vec<PastBatch<'_>> = batches.collect();
            self.follower.backfill(&PastRun {
                certificate: &certificate,
                proof: &proof,
                batches: &batches,
            })?;
        }
        Ok(())
    }

    /// Follows batch by batch, with the leader's stored parts.
    fn follow(&self) -> Result<()> {
        let end = self.leader.head()?.header.number;
        let mut number = self.follower.head()?.header.number;
        while number < end {
            number = number.next();
            let header = self.leader.header(number)?.context("the leader lacks a header")?;
            let blob = |kind| self.leader.blob(kind, number)?.context("the leader lacks a blob");
            let (body, receipts) = (blob(BlobKind::Body)?, blob(BlobKind::Receipts)?);
            let (delta_blob, hints) = (blob(BlobKind::Delta)?, blob(BlobKind::Hints)?);
            let (delta, certificate) = (Delta::open(&delta_blob)?, self.leader.certificate(number)?);
            let batch = CommitBatch {
                body: Some(&body),
                receipts: Some(&receipts),
                delta_blob: Some(&delta_blob),
                hints: Some(&hints),
                certificate: certificate.as_ref(),
                ..CommitBatch::new(&header, &delta)
            };
            self.follower.commit(batch, None)?;
            tell(&format!("follower {number}"))?;
        }
        Ok(())
    }
}

/// Commits the chain's next batch, its certificate with or after it, and then its vote.
pub(super) fn step(store: &Store, chain: &Chain) -> Result<()> {
    let head = store.head()?;
    let delta = chain.delta(head.header.number.get() + 1)?;
    let speculation = store.speculate(&delta)?;
    let made = chain.seal(&head.header, &head.accumulator, speculation.root())?;
    let late = made.header.number.get().is_multiple_of(LATE_CERTIFICATE_INTERVAL);
    let certificate = (!late).then_some(&made.certificate);
    store.commit(CommitBatch { certificate, ..made.batch() }, Some(speculation))?;
    if late {
        store.put_certificate(&made.certificate)?;
    }
    Ok(store.put_record(VOTE, &made.header.number.get().to_be_bytes())?)
}

/// Redoes what a kill between a commit and its vote left undone.
pub(super) fn settle(store: &Store, chain: &Chain) -> Result<()> {
    let head = store.head()?;
    let number = head.header.number;
    if number > BatchNumber::GENESIS && store.certificate(number)?.is_none() {
        store.put_certificate(&chain.certificate(&head.header, head.accumulator.root()))?;
    }
    if number > BatchNumber::GENESIS {
        store.put_record(VOTE, &number.get().to_be_bytes())?;
    }
    Ok(())
}

/// Returns the target of a follower's restore to `number`.
pub(super) fn target(leader: &Store, number: BatchNumber) -> Result<RestoreTarget> {
    Ok(RestoreTarget {
        header: leader.header(number)?.context("the leader lacks a header")?,
        certificate: leader.certificate(number)?.context("a snapshot's batch has no certificate")?,
    })
}

/// Checks the rows that a restore to an older target left unchecked, adds up to `max` chunks, and then the missing
/// code.
pub(super) fn add_chunks(restore: &Restore, snapshot: &Snapshot, max: usize) -> Result<()> {
    while let Some(span) = restore.unchecked(1)?.pop() {
        restore.check_range(span, &snapshot.range_proof(span.first, span.last)?)?;
    }
    for _ in 0..max {
        let Some(next) = restore.next_path() else { break };
        restore.add_chunk(&snapshot.chunk(next, CHUNK_BYTES)?)?;
    }
    for hash in restore.missing_codes(1_000)? {
        let code = snapshot.code(&hash)?.context("a snapshot lacks the code of an account")?;
        restore.add_code(&code)?;
    }
    Ok(())
}

/// Finishes a restore with the last headers.
pub(super) fn finish(restore: Restore, leader: &Store, number: BatchNumber) -> Result<()> {
    let count = RESTORE_HEADERS.min(number.get()) as usize;
    let first = number.next().before(count as u64);
    let headers = leader.headers(first, count)?;
    let proof = leader.header_range_proof(number.leaves(), first, count)?;
    let genesis_proof = leader.header_range_proof(number.leaves(), BatchNumber::GENESIS, 1)?;
    Ok(restore.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis_proof })?)
}

/// Returns all rows of a snapshot, chunk by chunk, each verified.
pub(super) fn snapshot_rows(snapshot: &Snapshot) -> Result<super::chain::State> {
    let mut rows = super::chain::State::new();
    let mut next = Some(Path::MIN);
    while let Some(first) = next {
        let chunk = snapshot.chunk(first, CHUNK_BYTES)?;
        chunk.verify(snapshot.info().state_root).context("a served chunk does not verify")?;
        rows.extend(chunk.rows.iter().copied());
        next = chunk.last.successor();
    }
    Ok(rows)
}
