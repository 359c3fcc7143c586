//! The oracles: what no run may ever show, whatever the peers do.
//!
//! Safety, after every check, commit, restore and start:
//! * what a check let pass is the ledger's;
//! * headers, certificates, blobs, rows and root of a store are the ledger's, and nothing is stored behind what is certified;
//! * nobody earns credit by an answer that is a lie, and no honest peer is banned ([`World::act`]);
//! * a batch that was committed survives every crash;
//! * what a node serves is what the ledger has, and what it believes in is certified.
//!
//! Liveness is in [`super::world`]: some time after the last fault every node is caught up.

use anyhow::{Context, Result, ensure};
use slipstream_storage::{Span, Store, VerifiedChunk};
use slipstream_sync::{
    Phase, answer,
    engine::{Done, Job, RestoreJob},
    protocol::{ANSWER_BYTES_MAX, Codes, Parts, Range, RangeBatch, RangeRequest, Request, Summary},
    verify::VerifiedRange,
    work::Step,
};
use slipstream_types::{BatchNumber, Blob, BlobKind, Delta, Digest, StateKey, codec, keccak256};

use super::{
    chain::{Chain, epoch},
    fault::Fault,
    node::Asked,
    queue::Moment,
    server::{Habit, Keeps},
    world::{Place, To, World},
};

/// The first server: honest, always there, and with all that any node of its world needs.
pub(super) const ANCHOR: Place = 0;
/// An answer that takes so long is late by any measure of a peer that never answered.
const LATE: Moment = 5_000_000;
/// So long before a deadline somebody else must have been free to ask.
const FREE: Moment = 1_000_000;

/// What a job is about, as far as its result can be held against the ledger.
pub(super) enum Claim {
    /// A range that was asked for.
    Range(RangeRequest, u64),
    /// Rows of a range.
    Chunk(Vec<u8>, Span),
    /// Code by hash.
    Codes(Vec<u8>, Vec<Digest>),
    /// A restore of a snapshot.
    Begin(BatchNumber),
    /// None of these.
    Nothing,
}

impl Claim {
    pub(super) fn of(job: &Job) -> Claim {
        match job {
            Job::CheckRange { request, due, .. } => Claim::Range(*request, *due),
            Job::Restore(RestoreJob::Chunk { answer, request: Request::Chunk { first, last, .. } }) => {
                Claim::Chunk(answer.clone(), Span { first: *first, last: *last })
            }
            Job::Restore(RestoreJob::Codes { answer, hashes }) => {
                Claim::Codes(answer.clone(), hashes.clone())
            }
            Job::Restore(RestoreJob::Begin { target, .. }) => Claim::Begin(target.header.number),
            _ => Claim::Nothing,
        }
    }
}

impl World {
    /// Holds what came of a job against the ledger.
    pub(super) fn check_done(&mut self, to: To, claim: &Claim, done: &Done) -> Result<()> {
        let node = to.node;
        let checked = match (claim, done) {
            (Claim::Range(request, due), Done::Range(Ok(range))) => {
                expect_range(range, Some((request, *due)))
            }
            (_, Done::Announced(Ok(Some(range)))) => expect_range(range, None),
            (Claim::Chunk(bytes, span), Done::Restored(Ok(restored))) => {
                match (&restored.step, &restored.progress) {
                    (Step::Chunk { checked: Ok(()), .. }, Some(progress)) => {
                        expect_chunk(bytes, *span, progress.number)
                    }
                    _ => Ok(()),
                }
            }
            (Claim::Codes(bytes, hashes), Done::Restored(Ok(restored))) => match restored.step {
                Step::Codes(Ok(())) => expect_codes(bytes, hashes),
                _ => Ok(()),
            },
            (Claim::Begin(number), Done::Restored(Ok(_))) => {
                let last = self.process(to).and_then(|up| up.restoring.replace(*number));
                if last.is_some_and(|last| last != *number) {
                    self.fired.insert(Fault::Retarget);
                }
                Ok(())
            }
            _ => Ok(()),
        };
        checked.with_context(|| format!("safety: a check of node {node} let pass what is not the ledger's"))
    }

    /// Holds what a store has got since the last time against the ledger.
    pub(super) fn check_state(&mut self, index: usize) -> Result<()> {
        let chain = Chain::canonical();
        let (certified, seen) = (self.certified, self.nodes[index].seen);
        let Some(up) = &self.nodes[index].up else { return Ok(()) };
        let store = &up.store;
        // A store that failed as planned answers nothing any more; what it has is looked at when it is opened again.
        if up.has_failed() {
            return Ok(());
        }
        let head = store.head()?;
        let number = head.header.number;
        let check = || -> Result<()> {
            ensure!(
                number <= certified,
                "its head {number} is behind batch {certified}, the last certified one"
            );
            ensure!(head.header == chain.header(number)?, "batch {number} has another header");
            ensure!(store.header(number.next())?.is_none(), "something is stored behind the head {number}");
            for number in (seen.0..=number.0).map(BatchNumber) {
                expect_batch(store, number)?;
            }
            // After a restore all rows are new.
            let whole = store.lowest(BlobKind::Delta)?.is_none_or(|lowest| lowest > seen.next());
            let keys: Vec<StateKey> = match whole {
                true => chain.keys().to_vec(),
                false => changed(seen, number)?,
            };
            expect_rows(store, number, &keys)
        };
        check().with_context(|| format!("safety: the store of node {index}"))?;
        self.nodes[index].seen = seen.max(number);
        Ok(())
    }

    /// No peer has more credit than answers that may be true earned it.
    pub(super) fn check_credit(&mut self, to: To) -> Result<()> {
        let now = self.instant();
        let node = to.node;
        let Some(up) = self.process(to) else { return Ok(()) };
        for peer in up.engine.status(now).peers {
            let most = up.creditable.get(&peer.id).copied().unwrap_or_default();
            let found = peer.verified_bytes;
            let peer = peer.id.short();
            ensure!(
                found <= most,
                "safety: node {node} credits peer {peer} with {found} bytes, {most} of its answers may be true"
            );
        }
        Ok(())
    }

    /// A peer whose summary is a lie is out at once, unless nobody can tell yet: its epoch is behind what the node knows.
    pub(super) fn check_disbelief(&mut self, to: To, peer: Place, told: &[u8]) -> Result<()> {
        let id = self.id(peer);
        let Some(up) = self.process(to) else { return Ok(()) };
        let known = epoch(up.engine.head());
        let summary = codec::decode::<Summary>("summary", told, ANSWER_BYTES_MAX);
        let head = summary.ok().and_then(|summary| summary.head);
        let is_ahead = head.is_some_and(|head| head.info.epoch > known);
        if up.banned.contains(&id) || is_ahead {
            return Ok(());
        }
        self.fail(&format!("safety: node {} believes a false summary of server {peer}", to.node))
    }

    /// A deadline has come: of a peer that never answers, the same was asked of somebody else long before, if somebody had nothing to do.
    pub(super) fn check_hedged(&mut self, to: To, asked: Asked) -> Result<()> {
        let (now, instant) = (self.now, self.instant());
        let deadline = self.nodes[to.node].plan.sync.request_deadline_ms.get() * 1_000;
        let is_silent = self.servers.get(asked.place).is_some_and(|server| server.habit == Habit::Stalling);
        let has_all = self.servers[ANCHOR].keeps == Keeps::ALL;
        let is_there = self.is_connected(to.node, ANCHOR);
        let Some(first) = asked.range.filter(|_| is_silent && has_all && is_there && deadline >= LATE) else {
            return Ok(());
        };
        let anchor = self.servers[ANCHOR].id;
        let Some(up) = self.process(to) else { return Ok(()) };
        let is_asked = up.requests.values().any(|other| other.range == Some(first));
        let is_free = up.free_since.is_some_and(|since| since + FREE < now);
        let status = up.engine.status(instant);
        let serves = status.peers.iter().any(|peer| {
            peer.id == anchor && peer.pause_ms == 0 && peer.head.is_some_and(|head| head >= first)
        });
        ensure!(
            is_asked || !is_free || !serves,
            "liveness: node {} waits {deadline} us for batch {first} of a silent peer, and asks nobody else",
            to.node
        );
        Ok(())
    }

    /// A request that an engine wants to send: a restarted node goes on with the restore that it has, while it knows that the first
    /// server, whom it may ask, serves it.
    pub(super) fn check_request(&mut self, to: To, request: &Request) -> Result<()> {
        // Headers are asked for beside the offer, and may leave first.
        let (Request::Offer { number, .. } | Request::Headers { last: number, .. }) = request else {
            return Ok(());
        };
        let (now, anchor) = (self.instant(), self.servers[ANCHOR].id);
        let Some(up) = self.process(to) else { return Ok(()) };
        // It is chosen once, for its rows or for a range delta to it; what happens to it then is another matter.
        if up.begun == Some(*number) {
            up.begun = None;
        }
        let status = up.engine.status(now);
        // A range delta does without the rows of a restore, and a survey is about no snapshot.
        if status.phase != Phase::Snapshot {
            return Ok(());
        }
        let Some(begun) = up.begun.take() else { return Ok(()) };
        let (head, offered) = &up.offered;
        let may_be_asked = status.peers.iter().any(|peer| {
            let is_known = peer.head.is_some_and(|found| found >= *head);
            peer.id == anchor && !peer.banned && peer.pause_ms == 0 && is_known
        });
        ensure!(
            !may_be_asked || !offered.contains(&begun),
            "liveness: node {} forgets its restore of batch {begun}, which is still served, for batch {number}",
            to.node
        );
        Ok(())
    }

    /// What must be true at the end.
    pub(super) fn check_end(&mut self) -> Result<()> {
        let now = self.instant();
        for index in 0..self.nodes.len() {
            let Some(up) = self.nodes[index].up.as_ref().filter(|up| !up.has_failed()) else { continue };
            let (store, status) = (up.store.clone(), up.engine.status(now));
            let certified = self.certified;
            ensure!(
                status.target <= certified,
                "safety: node {index} believes in batch {}, certified is {certified}",
                status.target
            );
            ensure!(status.alarm.is_none(), "safety: an audit of node {index} finds {:?}", status.alarm);
            self.check_state(index)?;
            expect_rows(&store, certified, Chain::canonical().keys())
                .with_context(|| format!("safety: the store of node {index}"))?;
            expect_served(&store).with_context(|| format!("safety: what node {index} serves"))?;
        }
        Ok(())
    }
}

/// A range that passed its check is as long as it has to be, and all of it is the ledger's.
fn expect_range(range: &VerifiedRange, asked: Option<(&RangeRequest, u64)>) -> Result<()> {
    expect_certificate(&range.certificate().info)?;
    let batches = range.batches();
    for batch in batches {
        expect_parts(batch)?;
    }
    let Some((request, due)) = asked else { return Ok(()) };
    let first = batches.first().map(|batch| batch.header.number);
    ensure!(first == Some(request.first), "it begins with {first:?}, asked for was {}", request.first);
    let parts = |batch: &RangeBatch| {
        let has = [
            (Parts::BODY, batch.body.is_some()),
            (Parts::RECEIPTS, batch.receipts.is_some()),
            (Parts::DELTA, batch.delta.is_some()),
        ];
        has.into_iter().all(|(part, is_there)| is_there || !request.parts.has(part))
    };
    ensure!(batches.iter().all(parts), "parts are missing");
    let bytes: usize = batches.iter().map(RangeBatch::certified_bytes).sum();
    let wanted = u64::from(request.batches_max).min(due);
    let is_long = batches.len() as u64 >= wanted || bytes >= request.bytes_max as usize;
    ensure!(is_long, "it has {} batches, {wanted} were due", batches.len());
    Ok(())
}

fn expect_certificate(info: &slipstream_types::LedgerInfo) -> Result<()> {
    let made = Chain::canonical().batch(info.number).map(|made| &made.certificate.info);
    ensure!(made == Some(info), "a certificate of batch {} is not the ledger's", info.number);
    Ok(())
}

fn expect_parts(batch: &RangeBatch) -> Result<()> {
    let number = batch.header.number;
    ensure!(batch.header == Chain::canonical().header(number)?, "batch {number} has another header");
    let parts = [
        (BlobKind::Body, &batch.body),
        (BlobKind::Receipts, &batch.receipts),
        (BlobKind::Delta, &batch.delta),
    ];
    for (kind, blob) in parts {
        if let Some(blob) = blob {
            expect_blob(kind, number, blob)?;
        }
    }
    Ok(())
}

/// The content is the ledger's; how it is compressed is for its maker to say.
fn expect_blob(kind: BlobKind, number: BatchNumber, blob: &Blob) -> Result<()> {
    let made = Chain::canonical().store.blob(kind, number)?.context("the ledger has all blobs")?;
    let is_same = made == *blob || made.content(kind)? == blob.content(kind)?;
    ensure!(is_same, "the {} of batch {number} is not the ledger's", kind.name());
    Ok(())
}

/// Whatever a store has of a batch is the ledger's.
fn expect_batch(store: &Store, number: BatchNumber) -> Result<()> {
    if let Some(header) = store.header(number)? {
        ensure!(header == Chain::canonical().header(number)?, "batch {number} has another header");
    }
    if number.0 == 0 {
        return Ok(());
    }
    if let Some(certificate) = store.certificate(number)? {
        expect_certificate(&certificate.info)?;
    }
    for kind in [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta] {
        if let Some(blob) = store.blob(kind, number)? {
            expect_blob(kind, number, &blob)?;
        }
    }
    Ok(())
}

/// The keys that batches after one, up to another, touched.
fn changed(after: BatchNumber, last: BatchNumber) -> Result<Vec<StateKey>> {
    let chain = Chain::canonical();
    let mut keys = Vec::new();
    for number in (after.0 + 1..=last.0).map(BatchNumber) {
        let made = chain.batch(number).context("the head is in the ledger")?;
        keys.extend(made.delta.entries().iter().map(|entry| entry.key));
    }
    Ok(keys)
}

/// The rows of these keys are the ledger's, and the root over all rows is.
fn expect_rows(store: &Store, number: BatchNumber, keys: &[StateKey]) -> Result<()> {
    let chain = Chain::canonical();
    let state = chain.state(number);
    for (key, row) in keys.iter().zip(store.view()?.rows(keys)?) {
        ensure!(state.get(key).copied() == row, "the row of {key:?} is {row:?} at batch {number}");
    }
    let root = store.speculate(&Delta::default())?.root();
    let expected = chain.header(number)?.state_root;
    ensure!(root == expected, "the state root is {root} at batch {number}, the ledger's is {expected}");
    Ok(())
}

fn expect_chunk(bytes: &[u8], span: Span, number: BatchNumber) -> Result<()> {
    let root = Chain::canonical().header(number)?.state_root;
    let content = Blob::from_bytes(bytes.to_vec())?.content(BlobKind::StateChunk)?;
    let chunk = VerifiedChunk::open(content, root)?;
    ensure!(chunk.first() == span.first && chunk.last() <= span.last, "rows of another range");
    Ok(())
}

fn expect_codes(bytes: &[u8], hashes: &[Digest]) -> Result<()> {
    let codes: Codes = codec::decode("codes", bytes, ANSWER_BYTES_MAX)?;
    let found: Vec<Digest> = codes.codes.iter().map(|code| Digest::from(keccak256(&code[..]))).collect();
    ensure!(found == hashes, "code of another hash");
    Ok(())
}

/// What a store serves is the ledger's.
fn expect_served(store: &Store) -> Result<()> {
    let ask = |request: &Request| answer(store, &codec::encode("sync request", request)?).map_err(refused);
    let summary: Summary = codec::decode("summary", &ask(&Request::Summary)?, ANSWER_BYTES_MAX)?;
    let Some(head) = &summary.head else { return Ok(()) };
    expect_certificate(&head.info)?;
    let last = head.info.number;
    let parts = [
        (Parts::BODY, summary.bodies_from),
        (Parts::RECEIPTS, summary.receipts_from),
        (Parts::DELTA, summary.deltas_from),
    ];
    for (parts, from) in parts {
        let Some(first) = from.map(|from| from.max(BatchNumber(1))).filter(|first| *first <= last) else {
            continue;
        };
        let request = RangeRequest { first, batches_max: 1_024, bytes_max: 16 << 20, parts };
        let range: Range = codec::decode("range", &ask(&Request::Range(request))?, ANSWER_BYTES_MAX)?;
        expect_certificate(&range.certificate.info)?;
        ensure!(range.batches.len() as u64 == last.0 - first.0 + 1, "what it promises is not there");
        range.batches.iter().try_for_each(expect_parts)?;
    }
    for offered in summary.snapshots.iter() {
        let header = Chain::canonical().header(offered.number)?;
        let (first, last) = (slipstream_types::Path::MIN, slipstream_types::Path::MAX);
        let request = Request::Chunk { number: offered.number, first, last, bytes_max: 4 << 20 };
        let content = Blob::from_bytes(ask(&request)?)?.content(BlobKind::StateChunk)?;
        VerifiedChunk::open(content, header.state_root)?;
    }
    Ok(())
}

fn refused(refusal: slipstream_network::Refusal) -> anyhow::Error {
    anyhow::anyhow!("it refuses what it promises: {refusal}")
}
