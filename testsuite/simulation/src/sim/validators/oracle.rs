//! [`Oracle`]: the rules that hold whatever goes wrong. All machines share one history, statements are on disk before
//! they are sent, transactions stay, and honest validators are never convicted.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use slipstream_consensus::{
    Conviction,
    simulated::{domain, kept},
};
use slipstream_eve::{Ballot, Evidence, Message};
use slipstream_storage::Store;
use slipstream_types::{
    B256, BatchHeader, BatchNumber, BlobKind, Body, Certificate, Digest, Epoch, Genesis, LedgerInfo,
    PublicKey, ValidatorSet, keccak256,
};

use super::{machine::Up, statements::Statements};

/// How far a batch's time may be ahead of the true time: the tolerance of honest clocks, plus their error.
const AHEAD_MS_MAX: u64 = 10_000 + 2_000;
/// A conviction that was shown for this long must be on disk.
const KEPT_AFTER: Duration = Duration::from_secs(3);

/// The rules and the evidence.
pub(super) struct Oracle {
    genesis: Digest,
    machines: Vec<PublicKey>,
    traitor: Option<usize>,
    /// The machine that lost its data, and may contradict its earlier statements.
    wiped: Option<usize>,
    pub(super) sets: BTreeMap<Epoch, ValidatorSet>,
    /// The first header that any machine had for each batch.
    ledger: BTreeMap<BatchNumber, Digest>,
    /// The batches that are certified, or whose commits amount to a certificate.
    certified: BTreeMap<BatchNumber, Digest>,
    /// The validators that committed to each outcome.
    commits: BTreeMap<(Epoch, u64, BatchNumber, Digest), BTreeSet<u16>>,
    pub(super) words: Statements,
    /// The convictions that machines showed, and since when.
    convicted: BTreeMap<(usize, Epoch), Vec<(Conviction, Duration)>>,
    /// The highest head that each machine acknowledged.
    seen: BTreeMap<usize, BatchNumber>,
    /// Up to which batch each machine's ledger was checked.
    checked: BTreeMap<usize, BatchNumber>,
    executed: BTreeSet<B256>,
}

impl Oracle {
    pub(super) fn new(genesis: &Genesis, machines: Vec<PublicKey>, traitor: Option<usize>) -> Result<Oracle> {
        let set = genesis.validator_set();
        Ok(Oracle {
            genesis: genesis.header()?.digest(),
            machines,
            traitor,
            wiped: None,
            sets: BTreeMap::from([(set.epoch, set)]),
            ledger: BTreeMap::new(),
            certified: BTreeMap::new(),
            commits: BTreeMap::new(),
            words: Statements::default(),
            convicted: BTreeMap::new(),
            seen: BTreeMap::new(),
            checked: BTreeMap::new(),
            executed: BTreeSet::new(),
        })
    }

    /// Returns the signature domain of an epoch.
    pub(super) fn domain(&self, set: &ValidatorSet) -> Digest {
        domain(self.genesis, set)
    }

    /// Returns the set of an epoch and the machine's seat in it.
    pub(super) fn seat(&self, machine: usize, epoch: Epoch) -> Option<(&ValidatorSet, u16)> {
        let set = self.sets.get(&epoch)?;
        Some((set, set.index_of(&self.machines[machine])?))
    }

    /// Returns the highest batch that any machine has.
    pub(super) fn head(&self) -> BatchNumber {
        self.ledger.last_key_value().map(|(number, _)| *number).unwrap_or_default()
    }

    /// Notes that the machine executes this batch wrongly.
    pub(super) fn note_error(&mut self, machine: usize, number: BatchNumber) {
        self.words.erred.insert((machine, number));
    }

    /// Notes that a machine loses its data.
    pub(super) fn forget(&mut self, machine: usize) {
        self.wiped = Some(machine);
        self.seen.remove(&machine);
        self.checked.remove(&machine);
    }

    /// Whether a machine's statements bind it.
    pub(super) fn is_bound(&self, machine: usize) -> bool {
        self.traitor != Some(machine) && self.wiped != Some(machine)
    }

    /// Checks the certificates and the evidence in a message.
    pub(super) fn hear_proofs(&mut self, epoch: Epoch, message: &Message) -> Result<()> {
        match message {
            Message::Decided(certificate) => self.certify(certificate),
            Message::ViewChange(change) => {
                change.decided.iter().try_for_each(|certificate| self.certify(certificate))
            }
            Message::Evidence(evidence) => self.judge(epoch, evidence),
            _ => Ok(()),
        }
    }

    /// Checks that evidence convicts no honest validator.
    fn judge(&self, epoch: Epoch, evidence: &Evidence) -> Result<()> {
        let Some(set) = self.sets.get(&epoch) else { return Ok(()) };
        if evidence.is_valid(set, &self.domain(set)) {
            self.accept(set, evidence.author(set))?;
        }
        Ok(())
    }

    fn accept(&self, set: &ValidatorSet, author: u16) -> Result<()> {
        let key = set.validators[usize::from(author)].public_key;
        let machine = self.machines.iter().position(|id| *id == key);
        let is_honest = machine.is_none_or(|machine| self.is_bound(machine));
        ensure!(!is_honest, "honest machine {machine:?} is convicted");
        Ok(())
    }

    /// Checks that a valid certificate is for a batch of the ledger.
    fn certify(&mut self, certificate: &Certificate) -> Result<()> {
        let LedgerInfo { epoch, number, .. } = certificate.info;
        let Some(set) = self.sets.get(&epoch) else { return Ok(()) };
        let token = certificate.info.digest();
        if self.certified.get(&number) == Some(&token) || certificate.verify(set).is_err() {
            return Ok(());
        }
        if let Some(next) = &certificate.info.next_validators {
            self.sets.insert(next.epoch, next.clone());
        }
        self.decide(number, token)
    }

    fn decide(&mut self, number: BatchNumber, token: Digest) -> Result<()> {
        let first = *self.certified.entry(number).or_insert(token);
        ensure!(first == token, "two versions of batch {number} are certified");
        Ok(())
    }

    /// Counts a commit towards its certificate, even if no machine assembles it.
    pub(super) fn count(&mut self, machine: usize, epoch: Epoch, ballot: Ballot) -> Result<()> {
        let Some((set, seat)) = self.seat(machine, epoch) else { return Ok(()) };
        let quorum = set.quorum();
        let Ballot { view, number, token } = ballot;
        let voters = self.commits.entry((epoch, view, number, token)).or_default();
        voters.insert(seat);
        if voters.len() >= quorum { self.decide(number, token) } else { Ok(()) }
    }

    /// Checks the store on which a process has started.
    pub(super) fn check_start(&mut self, up: &Up) -> Result<()> {
        let (machine, head) = (up.machine, up.store.head()?.header.number);
        let seen = self.seen.get(&machine).copied().unwrap_or_default();
        for number in head.next().through(seen) {
            // A commit that was not synced may be lost with the power; the outcome that it was made from must stay.
            let kept = kept(&up.store, number)?;
            let is_kept = self.certified.get(&number).is_some_and(|token| kept.contains(token));
            ensure!(
                is_kept,
                "machine {machine} had committed batch {number} and lost it: its head is {head}"
            );
        }
        // Batches that the process commits again are checked again.
        let checked = self.checked.entry(machine).or_default();
        *checked = head.min(*checked);
        if !self.is_bound(machine) {
            return Ok(());
        }
        let open = self.words.told.range((machine, head.next())..=(machine, BatchNumber::MAX));
        for ((_, number), tokens) in open {
            let kept = kept(&up.store, *number)?;
            let lost = tokens.iter().find(|token| !kept.contains(token));
            ensure!(
                lost.is_none(),
                "machine {machine} lost an outcome of batch {number} that it had promised to show"
            );
        }
        Ok(())
    }

    /// Checks a machine's evidence. Evidence that it showed for a while must be there again after a restart.
    pub(super) fn check_evidence(
        &mut self,
        up: &Up,
        epoch: Epoch,
        shown: &[Conviction],
        is_new: bool,
        now: Duration,
    ) -> Result<()> {
        let Some(set) = self.sets.get(&epoch) else { return Ok(()) };
        shown.iter().try_for_each(|conviction| self.accept(set, conviction.author))?;
        let before = self.convicted.entry((up.machine, epoch)).or_default();
        if is_new && self.wiped != Some(up.machine) {
            let old = before.iter().filter(|(_, since)| now.saturating_sub(*since) >= KEPT_AFTER);
            let lost = old.map(|(conviction, _)| conviction).find(|it| !shown.contains(it));
            ensure!(lost.is_none(), "machine {} lost evidence: {lost:?}", up.machine);
            before.retain(|(conviction, _)| shown.contains(conviction));
        }
        let fresh: Vec<_> =
            shown.iter().filter(|it| before.iter().all(|(known, _)| known != *it)).copied().collect();
        before.extend(fresh.into_iter().map(|conviction| (conviction, now)));
        Ok(())
    }

    /// Checks a machine's commits since the last check.
    pub(super) fn check_ledger(&mut self, up: &Up, now_ms: u64) -> Result<BatchNumber> {
        let head = up.store.head()?.header.number;
        let checked = self.checked.get(&up.machine).copied().unwrap_or_default();
        for number in checked.next().through(head) {
            self.check_batch(&up.store, number, now_ms).with_context(|| format!("machine {}", up.machine))?;
        }
        self.checked.insert(up.machine, head.max(checked));
        let seen = self.seen.entry(up.machine).or_default();
        *seen = head.max(*seen);
        Ok(head)
    }

    fn check_batch(&mut self, store: &Store, number: BatchNumber, now_ms: u64) -> Result<()> {
        let Some(header) = store.header(number)? else { bail!("batch {number} is committed but missing") };
        if let Some(certificate) = store.certificate(number)? {
            let set = self
                .sets
                .get(&certificate.info.epoch)
                .context("a certificate is of an epoch whose validators are unknown")?;
            let token = certificate.info.digest();
            if self.certified.get(&number) != Some(&token) {
                certificate.verify(set).context("a stored certificate does not verify")?;
            }
            self.certify(&certificate)?;
            self.decide(number, token)?;
        }
        let digest = header.digest();
        match self.ledger.get(&number) {
            Some(first) => {
                ensure!(*first == digest, "batch {number} differs from the same batch on other machines")
            }
            None => {
                self.ledger.insert(number, digest);
                self.check_first(store, &header, now_ms)?;
            }
        }
        Ok(())
    }

    /// Checks a batch once, on the first machine that has it.
    fn check_first(&mut self, store: &Store, header: &BatchHeader, now_ms: u64) -> Result<()> {
        let number = header.number;
        ensure!(
            header.timestamp_ms <= now_ms + AHEAD_MS_MAX,
            "the time of batch {number} is ahead of every clock"
        );
        if let Some(info) = store.ledger_info(number)?
            && let Some(next) = info.next_validators
        {
            self.sets.insert(next.epoch, next);
        }
        let Some(body) = store.blob(BlobKind::Body, number)? else { return Ok(()) };
        for raw in body.open::<Body>(BlobKind::Body)?.transactions.iter() {
            ensure!(
                self.executed.insert(keccak256(&raw[..])),
                "batch {number} repeats an executed transaction"
            );
        }
        Ok(())
    }
}
