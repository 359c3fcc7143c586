//! Reads everything from a store and compares each answer with the chain.
//!
//! After a crash every answer must be present and right. After damage to its files a store may refuse with an error,
//! but each answer must still be right.

use std::fmt::Display;

use anyhow::{Context, Result, bail, ensure};
use slipstream_storage::{StorageError, Store};
use slipstream_types::{BatchHeader, BatchNumber, BlobKind, Digest, StateKey, StateValue, keccak256};

use super::{
    chain::{History, Moment, transaction_hash},
    life::{LATE_CERTIFICATE_INTERVAL, VOTE, snapshot_rows},
};

/// The number of past states that are read: the oldest, the newest and some between. Right after a start they come from
/// the log or the history, depending on how far the sealing has come.
const PAST_STATES: u64 = 8;
/// One in this many keys is read individually.
const PAST_KEY_STEP: usize = 16;
/// The number of past batches whose states are kept: the default.
const WINDOW: u64 = 256;
/// Headers proved at once.
const PROVED_HEADERS_MAX: u64 = 50;
const KINDS: [BlobKind; 4] = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta, BlobKind::Hints];

/// The demands on a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Demand {
    /// Whether the store's files were damaged, so that errors are allowed.
    pub damaged: bool,
    /// Whether the store must have every batch from the genesis on, and the votes.
    pub complete: bool,
}

/// The result of an audit that found nothing wrong.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Audit {
    /// The store's head; `None` if it is empty.
    pub head: Option<BatchNumber>,
    /// The number of right answers.
    pub right: u64,
    /// The number of errors, where they are allowed.
    pub refused: u64,
}

/// Reads everything.
///
/// # Errors
/// If an answer is wrong, or a required answer is missing.
pub(super) fn audit(store: &Store, history: &mut History, demand: Demand) -> Result<Audit> {
    let mut auditor = Auditor { store, demand, audit: Audit::default() };
    let head = match store.head() {
        Ok(head) => head,
        Err(StorageError::NotInitialized) => return Ok(auditor.audit),
        Err(error) => bail!("cannot read the head: {error}"),
    };
    let number = head.header.number;
    auditor.audit.head = Some(number);
    let moment = history.at(number)?.clone();
    ensure!(head.header == moment.header, "the head, batch {number}, differs from the chain");
    ensure!(
        head.accumulator == moment.accumulator,
        "the accumulator at batch {number} differs from the chain"
    );
    auditor.state(&moment, &history.chain.keys())?;
    for each in BatchNumber::GENESIS.through(number) {
        auditor.batch(history.at(each)?, number)?;
    }
    auditor.past(history, number)?;
    auditor.proofs(history, &moment)?;
    auditor.beyond(number.next())?;
    auditor.snapshots(history)?;
    if demand.complete {
        auditor.vote(number)?;
    }
    Ok(auditor.audit)
}

struct Auditor<'a> {
    store: &'a Store,
    demand: Demand,
    audit: Audit,
}

impl Auditor<'_> {
    /// Returns an answer; `None` if it was refused where refusals are allowed.
    fn ask<T>(&mut self, what: impl Display, answer: Result<T, StorageError>) -> Result<Option<T>> {
        match answer {
            Ok(answer) => {
                self.audit.right += 1;
                Ok(Some(answer))
            }
            Err(_) if self.demand.damaged => {
                self.audit.refused += 1;
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {what}")),
        }
    }

    /// Checks that an answer equals `expected`.
    fn expect<T: PartialEq>(
        &mut self,
        what: impl Display,
        answer: Result<T, StorageError>,
        expected: &T,
    ) -> Result<()> {
        let answer = self.ask(&what, answer)?;
        ensure!(answer.is_none_or(|answer| answer == *expected), "{what} is wrong");
        Ok(())
    }

    /// Checks an answer as [`Auditor::expect`] does; it may be absent if `optional`.
    fn expect_some<T: PartialEq>(
        &mut self,
        what: impl Display,
        answer: Result<Option<T>, StorageError>,
        expected: &T,
        optional: bool,
    ) -> Result<()> {
        match self.ask(&what, answer)? {
            None => Ok(()),
            Some(None) if optional => Ok(()),
            Some(None) => bail!("{what} is missing"),
            Some(Some(answer)) => {
                ensure!(answer == *expected, "{what} is wrong");
                Ok(())
            }
        }
    }

    /// Checks every possible row, in bulk and one by one, and all code.
    fn state(&mut self, moment: &Moment, keys: &[StateKey]) -> Result<()> {
        let view = self.store.view()?;
        let expected: Vec<Option<StateValue>> =
            keys.iter().map(|key| moment.state.get(key).copied()).collect();
        self.expect("the state in bulk", view.rows(keys), &expected)?;
        for (key, expected) in keys.iter().zip(expected) {
            let found = match key {
                StateKey::Account(address) => {
                    view.account(address).map(|found| found.map(StateValue::Account))
                }
                StateKey::Slot(address, slot) => view
                    .slot(address, slot)
                    .map(|value| Some(StateValue::Slot(value)).filter(|_| !value.is_zero())),
            };
            self.expect(format!("row {key:?}"), found, &expected)?;
        }
        for value in moment.state.values() {
            let StateValue::Account(account) = value else { continue };
            let Some(hash) = account.code_hash else { continue };
            let code = self.ask(format!("code {hash}"), view.code(&hash))?;
            if let Some(code) = code {
                let found = code.map(|code| Digest::from(keccak256(&code)));
                ensure!(found == Some(hash), "code {hash} is missing or wrong");
            }
        }
        Ok(())
    }

    /// Checks the states of the window below the head, which must survive a restart unchanged.
    fn past(&mut self, history: &mut History, head: BatchNumber) -> Result<()> {
        let Some(first) = self.ask("the first kept state", self.store.states_from())? else {
            return Ok(());
        };
        if self.demand.complete {
            let expected = BatchNumber::new(head.get().saturating_sub(WINDOW));
            ensure!(first == expected, "states are kept from batch {first} on, not from {expected}");
        }
        let keys = history.chain.keys();
        let step = ((head.get() - first.get()) / PAST_STATES).max(1);
        for number in (first.get()..head.get()).step_by(step as usize).map(BatchNumber::new) {
            let Some(view) = self.ask(format!("the state of batch {number}"), self.store.view_of(number))?
            else {
                continue;
            };
            let view = view.with_context(|| format!("the state of batch {number} is missing"))?;
            let state = &history.at(number)?.state;
            let expected: Vec<Option<StateValue>> = keys.iter().map(|key| state.get(key).copied()).collect();
            self.expect(format!("the state of batch {number} in bulk"), view.rows(&keys), &expected)?;
            for (key, expected) in keys.iter().zip(expected).step_by(PAST_KEY_STEP) {
                let found = view.rows(&[*key]).map(|rows| rows.into_iter().next().flatten());
                self.expect(format!("row {key:?} of the state of batch {number}"), found, &expected)?;
            }
        }
        Ok(())
    }

    fn batch(&mut self, moment: &Moment, head: BatchNumber) -> Result<()> {
        let (store, number, digest) = (self.store, moment.header.number, moment.header.digest());
        let gap = !self.demand.complete;
        self.expect_some(format!("header {number}"), store.header(number), &moment.header, gap)?;
        self.expect_some(format!("header by digest {number}"), store.find_header(&digest), &number, gap)?;
        let digest_found = store.view()?.header_digest(number);
        self.expect_some(format!("digest {number}"), digest_found, &digest, gap)?;
        let Some(made) = &moment.made else { return self.genesis(moment) };
        for (kind, blob) in &made.blobs {
            let stored = self.lowest(*kind)?.is_some_and(|lowest| lowest <= number);
            let optional = gap && !stored;
            self.expect_some(format!("{} {number}", kind.name()), store.blob(*kind, number), blob, optional)?;
        }
        let late = number == head && number.get().is_multiple_of(LATE_CERTIFICATE_INTERVAL);
        let certificate = store.certificate(number);
        self.expect_some(format!("certificate {number}"), certificate, &made.certificate, gap || late)?;
        for (index, hash) in (0..).zip(&made.hashes) {
            let found = store.transaction_places(hash).map(|places| places.first().copied());
            self.expect_some(format!("transaction {number}.{index}"), found, &(number, index), gap)?;
        }
        Ok(())
    }

    fn genesis(&mut self, moment: &Moment) -> Result<()> {
        if let Some(genesis) = self.ask("the genesis", self.store.genesis())? {
            let header = genesis.header()?;
            ensure!(header == moment.header, "the genesis is wrong");
        }
        Ok(())
    }

    fn lowest(&mut self, kind: BlobKind) -> Result<Option<BatchNumber>> {
        let lowest =
            self.ask(format!("the lowest batch that has its {}", kind.name()), self.store.lowest(kind))?;
        if self.demand.complete
            && let Some(lowest) = lowest
            && self.audit.head > Some(BatchNumber::GENESIS)
        {
            ensure!(
                lowest == Some(BatchNumber::new(1)),
                "the lowest batch that has its {} is {lowest:?}, not 1",
                kind.name()
            );
        }
        Ok(lowest.flatten())
    }

    /// Checks the proof of the newest headers against the head's accumulator.
    fn proofs(&mut self, history: &mut History, moment: &Moment) -> Result<()> {
        let last = moment.header.number;
        let leaves = last.leaves();
        let count = if self.demand.complete { leaves.min(PROVED_HEADERS_MAX) } else { 1 };
        let first = last.next().before(count);
        let proof = self.store.header_range_proof(leaves, first, count as usize);
        let Some(proof) = self.ask("the proof of headers", proof)? else { return Ok(()) };
        let mut digests = Vec::new();
        for number in first.through(last) {
            digests.push(BatchHeader::digest(&history.at(number)?.header));
        }
        let root = moment.accumulator.root();
        proof.verify(root, leaves, first.get(), &digests).context("the proof of headers does not verify")?;
        Ok(())
    }

    /// Checks that the store has no part of the uncommitted batch.
    fn beyond(&mut self, number: BatchNumber) -> Result<()> {
        self.expect(format!("header {number}"), self.store.header(number), &None)?;
        self.expect(format!("certificate {number}"), self.store.certificate(number), &None)?;
        for kind in KINDS {
            self.expect(format!("{} {number}", kind.name()), self.store.blob(kind, number), &None)?;
        }
        let hash = transaction_hash(number, 0);
        let places = self.store.transaction_places(&hash);
        self.expect(format!("transaction {number}.0"), places, &Vec::new())
    }

    /// Checks that every snapshot serves exactly the rows of its batch, in chunks that verify, and their code.
    fn snapshots(&mut self, history: &mut History) -> Result<()> {
        for info in self.store.snapshots() {
            let number = info.number;
            let moment = history.at(number)?;
            ensure!(Some(number) <= self.audit.head, "the snapshot of batch {number} is above the head");
            let certificate = moment.made.as_ref().map(|made| &made.certificate);
            ensure!(
                certificate == Some(&info.certificate),
                "the certificate of the snapshot of batch {number} is wrong"
            );
            ensure!(
                info.state_root == moment.header.state_root,
                "the root of the snapshot of batch {number} is wrong"
            );
            let Some(Some(snapshot)) = self.ask("a snapshot", self.store.snapshot(number))? else { continue };
            let rows = match snapshot_rows(&snapshot) {
                Err(error) if self.demand.damaged && error.is::<StorageError>() => {
                    self.audit.refused += 1;
                    continue;
                }
                rows => rows.with_context(|| format!("the snapshot of batch {number} cannot be served"))?,
            };
            ensure!(rows == moment.state, "the snapshot of batch {number} serves other rows");
            self.audit.right += 1;
        }
        Ok(())
    }

    fn vote(&mut self, head: BatchNumber) -> Result<()> {
        let Some(vote) = self.ask("the vote", self.store.record(VOTE))? else { return Ok(()) };
        let vote = vote.map_or(Ok(0), |bytes| bytes.try_into().map(u64::from_be_bytes));
        let vote = vote.map_err(|bytes| anyhow::anyhow!("the vote has {} bytes", bytes.len()))?;
        ensure!(vote == head.get() || vote + 1 == head.get(), "the vote is for batch {vote} at head {head}");
        Ok(())
    }
}
