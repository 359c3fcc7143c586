//! [`Core`]: one validator's decisions, without I/O, threads or clock.
//!
//! Events go in through `handle_…(event, now)`. Effects come out of [`Core::poll_effect`], and the time of the next
//! call comes out of [`Core::poll_timeout`]. So a simulator runs the same core that ships, and the same events give the
//! same decisions. Outputs that need a durable record come out of [`Core::poll_flush`].
//!
//! Call order: after every `handle_…` the driver takes and performs effects in order until none is left. Then it asks
//! for a flush, unless the record of the last one is still being written, and for the timeout. It calls
//! [`Core::handle_timeout`] at that time or later; an earlier call changes nothing. `now` never decreases between
//! calls, but it may stay the same. Each [`Core::handle_timeout`] fires one timer, so the next timeout may already have
//! come. Without a timeout, only an event can change anything.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Instant,
};

use slipstream_types::{BatchNumber, Certificate, Digest, LedgerInfo, SecretKey, ValidatorSet};

use crate::{
    effect::{Effect, Output, Receivers, Timer},
    limits::TELL_MS,
    message::{Message, Seat},
    record::Record,
    setup::{KeptOutcome, Outcome, Settings, Setup},
    state::{CurrentView, Decisions, Execution, Others, Phase, Protection, SeenFaults, Term, Tick},
    timers::Timers,
    vote_memory::{MayHavePrepared, OwnPrepare, VoteMemory},
};

/// One validator's protocol state. See the crate.
#[derive(Clone, Debug)]
pub struct Core {
    pub(crate) set: ValidatorSet,
    pub(crate) key: SecretKey,
    pub(crate) seat: Seat,
    pub(crate) domain: Digest,
    pub(crate) settings: Settings,
    /// The last committed batch.
    pub(crate) head: LedgerInfo,
    pub(crate) view: CurrentView,
    pub(crate) term: Term,
    pub(crate) decisions: Decisions,
    pub(crate) memory: VoteMemory,
    pub(crate) execution: Execution,
    pub(crate) others: Others,
    pub(crate) tick: Tick,
    pub(crate) seen: SeenFaults,
    /// Whether a batch is due, as the driver sees it.
    pub(crate) wanted: bool,
    pub(crate) timers: Timers,
    pub(crate) effects: VecDeque<Effect>,
    pub(crate) outputs: Vec<Output>,
}

impl Core {
    /// Makes a validator that starts anew, or continues from its record.
    pub fn new(setup: Setup, now: Instant) -> Core {
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
        let phase = if changing { Phase::Changing } else { Phase::BEGUN };
        let mut core = Core {
            view: CurrentView { number: view, phase, complains: false, attempts: 0 },
            term: Term { adopted, ..Term::default() },
            decisions: Decisions {
                last: head.number,
                proof: shown.max_by_key(|it| it.info.number),
                recent: BTreeMap::new(),
                pending: BTreeMap::new(),
                fetching: None,
                overdue: None,
            },
            memory: VoteMemory {
                prepare: prepare.map(|ballot| OwnPrepare { ballot, is_kept: false }),
                may_have_prepared: MayHavePrepared::of(&kept, set.epoch),
                prepared,
                voted,
                observing,
                ahead,
                amnesia,
                was_silent: true,
                recorded: own,
            },
            execution: Execution {
                orders: BTreeMap::new(),
                outcomes: BTreeMap::new(),
                working: None,
                generation: 0,
                careful_to: BatchNumber::GENESIS,
            },
            others: Others::default(),
            tick: Tick {
                answered: BTreeSet::new(),
                greeted: BTreeSet::new(),
                costs: BTreeMap::new(),
                muted: BTreeSet::new(),
                decided: BatchNumber::GENESIS,
                stood: false,
                awaited: None,
            },
            seen: SeenFaults::default(),
            wanted: false,
            timers: Timers::new(now),
            effects: VecDeque::new(),
            outputs: Vec::new(),
            head,
            set,
            key,
            seat,
            domain,
            settings,
        };
        core.resume(decided, outcomes, kept);
        core
    }

    fn resume(&mut self, decided: Vec<Certificate>, outcomes: Vec<Outcome>, kept: Vec<KeptOutcome>) {
        self.timers.set(Timer::Tell, TELL_MS);
        for certificate in decided {
            // The batch was decided before the crash, but not committed.
            if certificate.info.number == self.decisions.last.next() {
                self.decide(certificate);
            }
        }
        self.restore(outcomes, kept);
        if self.is_changing() {
            self.say_change();
        }
        if self.is_silent() {
            self.tell(Receivers::Others);
        }
        self.advance();
    }

    /// Makes the deadlines count from `now`. A driver that starts some time after it made the core calls this once,
    /// before any other input.
    pub fn handle_start(&mut self, now: Instant) {
        self.timers.start(now);
    }

    /// Takes a message from another validator, on a channel that proves its seat.
    pub fn handle_message(&mut self, from: Seat, message: Message, now: Instant) {
        self.timers.note(now);
        if from == self.seat
            || usize::from(from) >= self.set.validators.len()
            || self.tick.muted.contains(&from)
        {
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

    /// Call when the time of [`Core::poll_timeout`] has come. Fires the timer that is due first.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some((timer, at)) = self.timers.first()
            && at <= now
        {
            self.handle_timer(timer, now);
        }
    }

    /// Fires a timer, due or not. For model checkers, which choose what happens first.
    pub fn handle_timer(&mut self, timer: Timer, now: Instant) {
        self.timers.note(now);
        let was_set = self.timers.cancel(timer);
        match timer {
            Timer::Patience if was_set => self.complain(),
            Timer::Patience => {}
            Timer::Tell => {
                self.tick.costs.clear();
                self.tick.muted.clear();
                self.tick.answered.clear();
                self.tick.greeted.clear();
                self.timers.set(Timer::Tell, TELL_MS);
                if self.is_to_tell() {
                    self.tell(Receivers::Others);
                }
                let stands = self.decisions.last == self.tick.decided && self.wanted && !self.is_changing();
                if std::mem::replace(&mut self.tick.stood, stands) && stands {
                    self.wait();
                }
                self.tick.decided = self.decisions.last;
                let first = self.decisions.pending.keys().next().copied();
                let awaited = first.filter(|number| !self.execution.orders.contains_key(number));
                if awaited.is_some() && awaited == std::mem::replace(&mut self.tick.awaited, awaited) {
                    self.decisions.overdue = awaited;
                }
            }
            Timer::Protect => {
                if let Some(Protection { is_over, .. }) = &mut self.term.protection {
                    *is_over = true;
                }
            }
        }
        self.advance();
    }

    /// Sets whether the view's primary omits transactions that it should order. While it does, this validator
    /// complains, even if batches are decided.
    pub fn handle_neglect(&mut self, is_neglected: bool, now: Instant) {
        self.timers.note(now);
        let is_neglected = is_neglected && !self.is_changing();
        if self.is_neglected() == is_neglected {
            return;
        }
        self.view.phase = Phase::Active { is_neglected };
        match is_neglected {
            true if !self.view.complains => self.complain(),
            true => self.tell(Receivers::Others),
            false => self.end_complaint(),
        }
        self.advance();
    }

    /// Sets whether a batch is due, as the driver sees it.
    pub fn handle_wanted(&mut self, is_wanted: bool, now: Instant) {
        self.timers.note(now);
        if self.wanted != is_wanted {
            self.wanted = is_wanted;
            self.advance();
        }
    }

    /// Returns the next effect, which the driver must carry out at once, or `None` until another event.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the time of the next [`Core::handle_timeout`] if no event comes first.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(_, at)| at)
    }

    /// Acts on the new state: votes, executes or orders, and sets or cancels patience.
    pub(crate) fn advance(&mut self) {
        let is_silent = self.is_silent();
        if std::mem::replace(&mut self.memory.was_silent, is_silent) && !is_silent {
            self.speak();
            // The other validators still take this one for silent.
            self.tell(Receivers::Others);
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
            self.output(Output::Send(Receivers::Others, message));
        }
    }

    /// Whether the epoch's last batch is decided or committed.
    pub(crate) fn is_over(&self) -> bool {
        let proof = self.decisions.proof.as_ref().map(|proof| &proof.info);
        [Some(&self.head), proof].into_iter().flatten().any(|info| self.ends(info))
    }

    /// Whether the batch is the last of this epoch.
    pub(crate) fn ends(&self, info: &LedgerInfo) -> bool {
        info.next_validators.as_ref().is_some_and(|next| next.epoch > self.set.epoch)
    }

    /// The token of the last decision.
    pub(crate) fn decided_token(&self) -> Digest {
        let proof = self.decisions.proof.as_ref().map(|proof| &proof.info);
        proof.filter(|info| info.number == self.decisions.last).unwrap_or(&self.head).digest()
    }
}
