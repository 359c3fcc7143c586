//! [`Core`]: one validator's state, its inputs and its outputs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slipstream_types::{BatchNumber, Certificate, Digest, Epoch, LedgerInfo, SecretKey, ValidatorSet};

use crate::{
    effect::{Effect, Flush, Output, Timer, To},
    memory::MayHavePrepared,
    message::{Message, NewView, Prepared, SignedOrder, Status, ViewChange},
    planted::{Fault, lacks},
    record::Record,
    setup::{Kept, Outcome, Settings, Setup},
    slot::Slot,
};

/// Batches above the head that may be ordered, executed and voted on.
pub(crate) const WINDOW: u64 = 8;
/// Batches above the last decision that a primary orders. While validators agree on one, they execute the other, so its
/// tokens are ready when its turn comes. Any more would wait here instead of in the pool, where later transactions can
/// still join them.
pub(crate) const AHEAD: u64 = 2;
/// Batches above the head that a primary orders: decisions may be faster than commits.
pub(crate) const UNCOMMITTED_MAX: u64 = 4;
/// Decisions that are kept for validators that missed them.
pub(crate) const RECENT_MAX: usize = 16;
/// Interval at which a validator sends its status while nothing is decided, in milliseconds.
pub(crate) const TELL_MS: u64 = 500;

/// One validator's protocol state. See the crate.
#[derive(Clone, Debug)]
pub struct Core {
    pub(crate) set: ValidatorSet,
    pub(crate) key: SecretKey,
    pub(crate) seat: u16,
    pub(crate) domain: Digest,
    pub(crate) settings: Settings,
    /// The last committed batch.
    pub(crate) head: LedgerInfo,
    pub(crate) view: u64,
    pub(crate) changing: bool,
    pub(crate) complains: bool,
    /// Whether the view's primary omits transactions that it should order, as this validator's driver sees it.
    pub(crate) neglected: bool,
    /// The last batch that is known to be decided. It may not be committed yet.
    pub(crate) decided: BatchNumber,
    /// The highest certificate of this epoch that this validator has. Sync may have committed more.
    pub(crate) proof: Option<Certificate>,
    pub(crate) recent: BTreeMap<BatchNumber, Certificate>,
    /// Decided batches that wait for their outcome before they are handed out for commit.
    pub(crate) pending: BTreeMap<BatchNumber, Certificate>,
    pub(crate) fetching: Option<BatchNumber>,
    /// A pending batch to fetch: its order is no longer expected, or this validator has another outcome of it.
    pub(crate) overdue: Option<BatchNumber>,
    /// The first pending batch without an order at the last tick of [`Timer::Tell`].
    awaited: Option<BatchNumber>,
    /// The last prepare that this validator signed.
    pub(crate) prepare: Option<crate::Ballot>,
    /// Whether the driver keeps the outcome of `prepare`. A restart then learns from that outcome what was signed.
    pub(crate) prepared_own: bool,
    pub(crate) may_have_prepared: MayHavePrepared,
    /// The last batch that a quorum prepared, kept until the next one is. A view change shows it until its number is
    /// decided.
    pub(crate) prepared: Option<Prepared>,
    /// The outcome that this view must decide first.
    pub(crate) adopted: Option<Prepared>,
    /// The statements on each number above the last decision.
    pub(crate) slots: BTreeMap<BatchNumber, Slot>,
    /// Orders to execute, by number.
    pub(crate) orders: BTreeMap<BatchNumber, SignedOrder>,
    /// Digests of this view's orders, which the next orders name as their parents.
    pub(crate) links: BTreeMap<BatchNumber, Digest>,
    /// Each is executed on the one before, the first on the head. Fetched ones have no order.
    pub(crate) outcomes: BTreeMap<BatchNumber, (Option<SignedOrder>, LedgerInfo)>,
    pub(crate) working: Option<crate::Work>,
    /// The first order of this view that no honest primary would have sent.
    pub(crate) refused: Option<BatchNumber>,
    /// Orders of this view were dropped. If this validator is the primary, it has forgotten them, so it orders nothing
    /// else in this view.
    pub(crate) spent: bool,
    pub(crate) generation: u64,
    /// Batches up to this one are executed sequentially.
    pub(crate) careful_to: BatchNumber,
    /// The validator has no record, so it does not know what it signed.
    pub(crate) observing: bool,
    /// The epoch of the record, if that is later than the ledger's: the votes of this epoch are lost.
    pub(crate) ahead: Option<Epoch>,
    /// The highest number that it knows it signed for, in any epoch.
    pub(crate) voted: BatchNumber,
    /// The last number and view that it may have signed for before it lost its data. It votes only above that number,
    /// and orders only in views above that view.
    pub(crate) amnesia: Option<(BatchNumber, u64)>,
    /// Whether it was silent at the last `advance`.
    was_silent: bool,
    /// Seats that got orders or a new view since the last tick of [`Timer::Tell`].
    pub(crate) answered: BTreeSet<u16>,
    /// Seats that got this validator's status in reply to theirs, since the last tick of [`Timer::Tell`].
    pub(crate) greeted: BTreeSet<u16>,
    pub(crate) heard: BTreeMap<u16, Status>,
    pub(crate) changes: BTreeMap<u16, ViewChange>,
    pub(crate) new_view: Option<NewView>,
    /// Views since the last decision.
    pub(crate) attempts: u32,
    pub(crate) decided_in_view: u64,
    pub(crate) wanted: bool,
    /// At the last tick of [`Timer::Tell`], a batch was due and none had been decided since the tick before.
    stood: bool,
    pub(crate) patient: bool,
    /// Decisions since the last divergence.
    pub(crate) clean: u64,
    /// The batch whose tokens extra protection waits for, and whether that wait is over.
    pub(crate) protecting: Option<(BatchNumber, bool)>,
    pub(crate) divergences: u64,
    pub(crate) convicted: BTreeSet<(u16, u64, BatchNumber)>,
    /// The last decision at the last tick of [`Timer::Tell`].
    pub(crate) told: BatchNumber,
    pub(crate) costs: BTreeMap<u16, u8>,
    /// Seats whose messages failed verification since the last tick of [`Timer::Tell`].
    pub(crate) muted: BTreeSet<u16>,
    recorded: Option<Record>,
    pub(crate) effects: VecDeque<Effect>,
    outputs: Vec<Output>,
}

impl Core {
    /// Makes a validator that starts anew, or continues from its record.
    pub fn new(setup: Setup) -> Core {
        let Setup { set, key, seat, domain, settings, head, certificate, record, outcomes, kept } = setup;
        // A record of an earlier epoch leaves this validator free to vote.
        let observing = record.is_none() && set.quorum() > 1;
        let voted = record.as_ref().map_or(BatchNumber::GENESIS, Record::voted_up_to);
        let ahead = record.as_ref().map(|record| record.epoch).filter(|epoch| *epoch > set.epoch);
        let record = record.filter(|record| record.epoch == set.epoch).map(|it| it.beside(&head));
        let own = record.clone();
        let (view, changing) = record.as_ref().map_or((0, false), |it| (it.view, it.changing));
        let (adopted, amnesia) = record.as_ref().map_or((None, None), |it| (it.adopted.clone(), it.amnesia));
        let adopted = adopted.filter(|adopted| adopted.info.number > head.number);
        let (prepare, prepared, decided) =
            record.map_or((None, None, Vec::new()), |it| (it.prepare, it.prepared, it.decided.into_inner()));
        let certificate = certificate.filter(|it| it.info == head && it.info.epoch == set.epoch);
        let shown = [certificate, decided.last().cloned()].into_iter().flatten();
        let mut core = Core {
            decided: head.number,
            head,
            view,
            changing,
            complains: false,
            neglected: false,
            proof: shown.max_by_key(|it| it.info.number),
            recent: BTreeMap::new(),
            pending: BTreeMap::new(),
            fetching: None,
            overdue: None,
            awaited: None,
            prepare,
            prepared_own: false,
            may_have_prepared: MayHavePrepared::of(&kept, set.epoch),
            prepared,
            adopted,
            slots: BTreeMap::new(),
            orders: BTreeMap::new(),
            links: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            working: None,
            refused: None,
            spent: false,
            generation: 0,
            careful_to: BatchNumber::GENESIS,
            observing,
            ahead,
            voted,
            amnesia,
            was_silent: true,
            answered: BTreeSet::new(),
            greeted: BTreeSet::new(),
            heard: BTreeMap::new(),
            changes: BTreeMap::new(),
            new_view: None,
            attempts: 0,
            decided_in_view: 0,
            wanted: false,
            stood: false,
            patient: false,
            clean: 0,
            protecting: None,
            divergences: 0,
            convicted: BTreeSet::new(),
            told: BatchNumber::GENESIS,
            costs: BTreeMap::new(),
            muted: BTreeSet::new(),
            recorded: own,
            effects: VecDeque::new(),
            outputs: Vec::new(),
            set,
            key,
            seat,
            domain,
            settings,
        };
        core.resume(decided, outcomes, kept);
        core
    }

    fn resume(&mut self, decided: Vec<Certificate>, outcomes: Vec<Outcome>, kept: Vec<Kept>) {
        self.effects.push_back(Effect::SetTimer(Timer::Tell, TELL_MS));
        for certificate in decided {
            // Decided before the crash, but not committed.
            if certificate.info.number == self.decided.next() {
                self.decide(certificate);
            }
        }
        self.restore(outcomes, kept);
        if self.changing {
            self.say_change();
        }
        if self.is_silent() {
            self.tell(To::Others);
        }
        self.advance();
    }

    /// Takes a message from another validator, on a channel that proves its seat.
    pub fn handle_message(&mut self, from: u16, message: Message) {
        if from == self.seat || usize::from(from) >= self.set.validators.len() || self.muted.contains(&from) {
            return;
        }
        match message {
            Message::Order(order) => self.take_order(from, order),
            Message::Verify(verify) => self.take_verify(from, *verify),
            Message::Prepare(vote) => self.take_prepare(from, vote),
            Message::Commit(vote) => self.take_commit(from, vote),
            Message::Decided(certificate) if self.may_cost(from) => self.take_decided(from, *certificate),
            Message::ViewChange(change) if self.may_cost(from) => self.take_change(from, *change),
            Message::NewView(new) if self.may_cost(from) => self.take_new_view(from, *new),
            Message::Evidence(evidence) if self.may_cost(from) => self.take_evidence(from, evidence),
            Message::Status(status) => self.take_status(from, status),
            _ => {}
        }
        self.advance();
    }

    /// Call when `timer` fires.
    pub fn handle_timer(&mut self, timer: Timer) {
        match timer {
            // A cancelled timer may still fire.
            Timer::Patience => {
                if std::mem::take(&mut self.patient) {
                    self.complain();
                }
            }
            Timer::Tell => {
                self.costs.clear();
                self.muted.clear();
                self.answered.clear();
                self.greeted.clear();
                self.effects.push_back(Effect::SetTimer(Timer::Tell, TELL_MS));
                if self.is_to_tell() {
                    self.tell(To::Others);
                }
                let stands = self.decided == self.told && self.wanted && !self.changing;
                if std::mem::replace(&mut self.stood, stands) && stands {
                    self.wait();
                }
                self.told = self.decided;
                let first = self.pending.keys().next().copied();
                let awaited = first.filter(|number| !self.orders.contains_key(number));
                if awaited.is_some() && awaited == std::mem::replace(&mut self.awaited, awaited) {
                    self.overdue = awaited;
                }
            }
            Timer::Protect => {
                if let Some((_, is_over)) = &mut self.protecting {
                    *is_over = true;
                }
            }
        }
        self.advance();
    }

    /// Sets whether the view's primary omits transactions that it should order. While it does, this validator
    /// complains, whatever is decided meanwhile.
    pub fn handle_neglect(&mut self, is_neglected: bool) {
        let is_neglected = is_neglected && !self.changing;
        if std::mem::replace(&mut self.neglected, is_neglected) == is_neglected {
            return;
        }
        match is_neglected {
            true if !self.complains => self.complain(),
            true => self.tell(To::Others),
            false => self.end_complaint(),
        }
        self.advance();
    }

    /// Sets whether a batch is due, as the driver sees it.
    pub fn handle_wanted(&mut self, is_wanted: bool) {
        if self.wanted != is_wanted {
            self.wanted = is_wanted;
            self.advance();
        }
    }

    /// Returns the next effect that the driver must carry out at once.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the next record to make durable, with the outputs to send after it. Nothing of a later flush may
    /// overtake an earlier one.
    pub fn flush(&mut self) -> Option<Flush> {
        let record = self.record();
        // A record of a later epoch stays until that epoch begins.
        let is_new = !self.observing
            && self.ahead.is_none()
            && self.recorded.as_ref().is_none_or(|recorded| {
                // A prepare without a record of its own counts in `voted` once its batch is decided.
                record.binds_beyond(recorded) || self.voted.min(self.decided) > recorded.voted
            });
        if !is_new && self.outputs.is_empty() {
            return None;
        }
        let outputs = std::mem::take(&mut self.outputs);
        let record = is_new.then_some(record).filter(|_| !lacks(Fault::ForgetRecord));
        if record.is_some() {
            self.recorded.clone_from(&record);
        }
        Some(Flush { record, outputs })
    }

    /// Acts on the new state: votes, executes or orders, and sets or cancels patience.
    pub(crate) fn advance(&mut self) {
        let is_silent = self.is_silent();
        if std::mem::replace(&mut self.was_silent, is_silent) && !is_silent {
            self.speak();
            // The others still know it as silent.
            self.tell(To::Others);
        }
        self.agree();
        self.pursue();
        self.watch();
    }

    pub(crate) fn output(&mut self, output: Output) {
        self.outputs.push(output);
    }

    pub(crate) fn say(&mut self, message: Message) {
        if self.set.validators.len() > 1 {
            self.output(Output::Send(To::Others, message));
        }
    }

    /// Whether the epoch's last batch is decided or committed.
    pub(crate) fn is_over(&self) -> bool {
        let proof = self.proof.as_ref().map(|proof| &proof.info);
        [Some(&self.head), proof].into_iter().flatten().any(|info| self.ends(info))
    }

    /// Whether the batch is the last of this epoch.
    pub(crate) fn ends(&self, info: &LedgerInfo) -> bool {
        info.next_validators.as_ref().is_some_and(|next| next.epoch > self.set.epoch)
    }

    /// The token of the last decision.
    pub(crate) fn decided_token(&self) -> Digest {
        let proof = self.proof.as_ref().map(|proof| &proof.info);
        proof.filter(|info| info.number == self.decided).unwrap_or(&self.head).digest()
    }

    /// The view that this validator is in, or goes to.
    pub fn view(&self) -> u64 {
        self.view
    }

    /// Whether this validator has left the views below and waits for this one to begin.
    pub fn is_changing(&self) -> bool {
        self.changing
    }

    /// The seat of the view's primary.
    pub fn primary(&self) -> u16 {
        self.set.primary(self.view)
    }

    /// Whether this validator is the view's primary.
    pub fn is_primary(&self) -> bool {
        self.primary() == self.seat
    }

    /// The last decision that this validator knows.
    pub fn decided(&self) -> BatchNumber {
        self.decided
    }

    /// The last batch that this validator knows to be decided, or may have helped to decide by its vote. `None` while
    /// it does not know its votes. The number survives restarts, because the record keeps a prepared batch before any
    /// vote to commit it.
    pub fn voted(&self) -> Option<BatchNumber> {
        let prepared = self.prepared.as_ref().map_or(BatchNumber::GENESIS, |prepared| prepared.info.number);
        (!self.is_silent()).then_some(prepared.max(self.decided))
    }

    /// Whether this validator wants another primary.
    pub fn complains(&self) -> bool {
        self.complains
    }

    /// The last status of each other validator, by seat.
    pub fn heard(&self) -> &BTreeMap<u16, Status> {
        &self.heard
    }

    /// How often the others agreed on an outcome other than this validator's.
    pub fn divergences(&self) -> u64 {
        self.divergences
    }

    /// Counts the prepares and the commits of the next batch to be decided.
    pub fn votes(&self) -> (usize, usize) {
        self.slots.get(&self.decided.next()).map_or((0, 0), |slot| (slot.prepares.len(), slot.commits.len()))
    }
}
