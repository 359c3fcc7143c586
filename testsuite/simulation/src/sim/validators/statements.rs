//! The machines' statements, and the writes that must precede them on disk: the part of the oracle that checks every
//! message.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use slipstream_consensus::simulated::{Request, kept, votes};
use slipstream_eve::{Ballot, Message, Record, SignedOrder, Verify};
use slipstream_types::{BatchNumber, Digest, Epoch};

use super::{machine::Up, oracle::Oracle};

/// The statements that a validator may make only once per number, view and epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Statement {
    Order,
    Prepare,
    Commit,
}

/// The subject of a statement: machine, epoch, view, and batch.
type Place = (usize, Epoch, u64, BatchNumber);

/// The statements so far.
#[derive(Default)]
pub(super) struct Statements {
    said: BTreeMap<(Statement, Place), Digest>,
    /// The view that each machine said it went to, and the record that bound the machine then.
    left: BTreeMap<(usize, Epoch), (u64, Record)>,
    /// The outcome of an order on the batch before it.
    outcomes: BTreeMap<(Digest, Digest), Digest>,
    /// The machines that executed a batch wrongly, with the batch.
    pub(super) erred: BTreeSet<(usize, BatchNumber)>,
    /// The outcomes that machines reported, and must be able to show.
    pub(super) told: BTreeMap<(usize, BatchNumber), BTreeSet<Digest>>,
}

impl Oracle {
    /// Checks that a machine may send this message, and that its record is on disk first.
    pub(super) fn hear(&mut self, up: &Up, request: &Request) -> Result<()> {
        let machine = up.machine;
        let honest = self.is_bound(machine);
        match request {
            Request::Order(ordered) if honest => self.hear_order(up, &ordered.order),
            Request::Say(epoch, message) => {
                self.hear_proofs(*epoch, message)?;
                if let Message::Commit(vote) = &**message {
                    self.count(machine, *epoch, vote.ballot)?;
                }
                if honest { self.hear_word(up, *epoch, message) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    fn hear_order(&mut self, up: &Up, signed: &SignedOrder) -> Result<()> {
        let order = &signed.order;
        let Some((set, seat)) = self.seat(up.machine, order.epoch) else { return Ok(()) };
        if set.primary(order.view) != seat {
            return Ok(());
        }
        let digest = order.digest(&self.domain(set));
        let is_kept = !kept(&up.store, order.number)?.is_empty() || self.has(up, order.number)?;
        ensure!(is_kept, "machine {} orders batch {} without a kept outcome", up.machine, order.number);
        self.say(Statement::Order, (up.machine, order.epoch, order.view, order.number), digest)
    }

    fn hear_word(&mut self, up: &Up, epoch: Epoch, message: &Message) -> Result<()> {
        let machine = up.machine;
        match message {
            Message::Verify(verify) => self.hear_outcome(up, epoch, verify),
            Message::Prepare(vote) | Message::Commit(vote) => {
                let Ballot { view, number, token } = vote.ballot;
                let is_prepare = matches!(message, Message::Prepare(_));
                let statement = if is_prepare { Statement::Prepare } else { Statement::Commit };
                self.say(statement, (machine, epoch, view, number), token)?;
                // A statement that waited in a queue was made before the machine left the view.
                let left = self.words.left.get(&(machine, epoch)).filter(|(left, _)| view < *left);
                if let Some((left, record)) = left {
                    let is_old = match is_prepare {
                        true => record.voted_up_to() >= number,
                        false => remembers_commit(record, &vote.ballot) || self.has(up, number)?,
                    };
                    ensure!(is_old, "machine {machine} votes in view {view} after it left for view {left}");
                }
                let record = self.record(up, epoch)?;
                let binds = match &record {
                    None => true,
                    Some(record) if is_prepare => {
                        remembers_prepare(record, &vote.ballot)
                            || kept(&up.store, number)?.contains(&token)
                            || self.has(up, number)?
                    }
                    Some(record) => remembers_commit(record, &vote.ballot) || self.has(up, number)?,
                };
                let what = format!("{statement:?} of batch {number} in view {view}");
                ensure!(binds, "machine {machine} sends {what}, which is not on its disk: {record:?}");
                Ok(())
            }
            Message::ViewChange(change) => {
                let view = change.view;
                let Some(record) = self.record(up, epoch)? else { return Ok(()) };
                ensure!(
                    record.view >= view,
                    "machine {machine} leaves for view {view}, which is not on its disk: {record:?}"
                );
                let is_new = self.words.left.get(&(machine, epoch)).is_none_or(|(left, _)| *left < view);
                if is_new {
                    self.words.left.insert((machine, epoch), (view, record));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns the record that binds the votes of this epoch; `None` if the machine is in a later epoch.
    fn record(&self, up: &Up, epoch: Epoch) -> Result<Option<Record>> {
        let record = votes(&up.store)?.filter(|record| record.epoch >= epoch);
        let record = record.with_context(|| format!("machine {} votes without a record", up.machine))?;
        Ok((record.epoch == epoch).then_some(record))
    }

    fn has(&self, up: &Up, number: BatchNumber) -> Result<bool> {
        Ok(up.store.head()?.header.number >= number)
    }

    fn hear_outcome(&mut self, up: &Up, epoch: Epoch, verify: &Verify) -> Result<()> {
        let (machine, number, token) = (up.machine, verify.info.number, verify.info.digest());
        let is_kept = kept(&up.store, number)?.contains(&token) || self.has(up, number)?;
        ensure!(is_kept, "machine {machine} reports an outcome of batch {number} that it has not kept");
        self.words.told.entry((machine, number)).or_default().insert(token);
        let Some(set) = self.sets.get(&epoch) else { return Ok(()) };
        if self.words.erred.contains(&(machine, number)) {
            return Ok(());
        }
        let place = (verify.order.order.digest(&self.domain(set)), verify.before);
        let first = *self.words.outcomes.entry(place).or_insert(token);
        ensure!(first == token, "machine {machine} executed batch {number} with another outcome than others");
        Ok(())
    }

    fn say(&mut self, statement: Statement, place: Place, what: Digest) -> Result<()> {
        let first = *self.words.said.entry((statement, place)).or_insert(what);
        let (machine, _, view, number) = place;
        ensure!(
            first == what,
            "machine {machine} makes two statements about batch {number} in view {view}: {statement:?}"
        );
        Ok(())
    }
}

/// Whether the record keeps its validator from preparing anything else for this ballot. A forgotten statement has a
/// lower view or number.
fn remembers_prepare(record: &Record, ballot: &Ballot) -> bool {
    let last = record.prepare.map(|it| (it.view, it.number));
    let adopted = record.adopted.as_ref().map(|it| (record.view, it.info.number, it.info.digest()));
    record.prepare == Some(*ballot)
        || adopted == Some((ballot.view, ballot.number, ballot.token))
        || record.view > ballot.view
        || last > Some((ballot.view, ballot.number))
}

/// Whether the record makes its validator report its commit to a later view.
fn remembers_commit(record: &Record, ballot: &Ballot) -> bool {
    let prepared = record.prepared.as_ref();
    let is_later = |number: BatchNumber, view| (number, view) >= (ballot.number, ballot.view);
    prepared.is_some_and(|it| is_later(it.info.number, it.view))
        || record.decided.iter().any(|it| it.info.number >= ballot.number)
}
