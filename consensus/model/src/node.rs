//! [`Node`]: a real core, its disk, and a driver that carries out at once what the core wants.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    time::Instant,
};

use slipstream_eve::{
    Core, Effect, Evidence, KeptOutcome, Message, Outcome, Output, Receivers, Record, Setup, SignedOrder,
    Status, Timer, Work,
};
use slipstream_types::{BatchNumber, Certificate, Digest, LedgerInfo};

use crate::constants::{Constants, SETTINGS};

/// The part of a node that survives a crash.
#[derive(Clone, Default, Debug)]
struct Disk {
    record: Option<Record>,
    /// Each with the token of the batch before.
    outcomes: Vec<(Digest, Outcome)>,
    chain: Vec<LedgerInfo>,
}

/// Where a crash cuts a step off. Either cut loses what the step would have said.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum CrashPoint {
    /// Outcomes are on disk, the record is not.
    BeforeRecord,
    /// The record is on disk, and nothing that follows it has happened.
    AfterRecord,
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CrashPoint::BeforeRecord => "before its record is durable",
            CrashPoint::AfterRecord => "after its record is durable",
        })
    }
}

/// One honest validator between two steps.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) seat: u16,
    pub(crate) core: Core,
    disk: Disk,
    /// Outcomes in memory.
    held: BTreeMap<BatchNumber, LedgerInfo>,
    /// A build above the bound, which is held back.
    building: Option<(Work, Digest)>,
    /// Restarts so far: they distinguish a batch built after a restart from one built before.
    restarts: u8,
    /// The number of the last batch that it builds.
    last_batch: u64,
    /// Whether the search controls its clock.
    is_searched: bool,
}

/// The results of one step.
#[derive(Default, Debug)]
pub(crate) struct NodeOutput {
    pub(crate) said: Vec<(Receivers, Message)>,
    pub(crate) convicted: Vec<Evidence>,
    /// The violation, if an honest validator did what it must not.
    pub(crate) wrong: Option<String>,
}

impl Node {
    /// Makes a node whose disk holds only its first record, and which has heard that the epoch has no decision.
    pub(crate) fn new(constants: &Constants, seat: u16) -> (Node, NodeOutput) {
        let mut node = Node {
            seat,
            core: boot(constants, seat, &Disk::default()),
            disk: Disk::default(),
            held: BTreeMap::new(),
            building: None,
            restarts: 0,
            last_batch: constants.bounds.batches,
            is_searched: true,
        };
        let others = constants.honest.iter().filter(|it| **it != seat);
        for other in others.take(constants.set.quorum() - 1) {
            node.core.handle_message(*other, Message::Status(asks(0, 0)), constants.now);
        }
        let output = node.settle(constants, None);
        (node, output)
    }

    /// Restarts from its disk.
    pub(crate) fn restart(&mut self, constants: &Constants) -> NodeOutput {
        self.restarts += 1;
        self.core = boot(constants, self.seat, &self.disk);
        (self.held, self.building) = Default::default();
        for Outcome { info, .. } in self.disk.linked(&constants.genesis) {
            self.held.insert(info.number, info);
        }
        self.settle(constants, None)
    }

    pub(crate) fn take(
        &mut self,
        constants: &Constants,
        from: u16,
        message: Message,
        cut: Option<CrashPoint>,
    ) -> NodeOutput {
        self.core.handle_message(from, message, constants.now);
        self.settle(constants, cut)
    }

    /// Fires a timer; does nothing if that timer is off.
    pub(crate) fn tick(
        &mut self,
        constants: &Constants,
        timer: Timer,
        cut: Option<CrashPoint>,
    ) -> NodeOutput {
        if !self.core.timers().contains_key(&timer) {
            return NodeOutput::default();
        }
        self.core.handle_timer(timer, constants.now);
        self.settle(constants, cut)
    }

    /// Continues without the search's bound: builds batches up to `last_batch`.
    pub(crate) fn resume(&mut self, constants: &Constants, last_batch: u64) -> NodeOutput {
        (self.last_batch, self.is_searched) = (last_batch, false);
        if let Some((work, parent)) = self.building.take() {
            self.build(constants, work, parent);
        }
        self.settle(constants, None)
    }

    /// The node's answers to a peer that knows nothing. They repeat what it says to all.
    pub(crate) fn asked(&self, constants: &Constants) -> Vec<Message> {
        let asker = (0..constants.set.validators.len() as u16)
            .find(|it| *it != self.seat && Some(*it) != constants.liar);
        let Some(asker) = asker else { return Vec::new() };
        let decided = self.core.decided().get();
        let mut node = self.clone();
        let mut said = Vec::new();
        for from in (0..decided.max(1)).step_by(2) {
            let status = asks(self.core.view(), from);
            let output = node.take(constants, asker, Message::Status(status), None);
            if output.said.iter().any(|(to, _)| *to == Receivers::Others) {
                // The node does more than answer, which belongs to a separate step.
                break;
            }
            let answers = output.said.into_iter().map(|(_, message)| message);
            // A new view is its primary's message, which the primary sent to all, or may send at any time.
            said.extend(answers.filter(|message| !matches!(message, Message::NewView(_))));
        }
        said
    }

    /// The running timers, with the milliseconds that they were set to: the core's time stands still.
    pub(crate) fn timers(&self, constants: &Constants) -> BTreeMap<Timer, u64> {
        let after_ms = |at: &Instant| (*at - constants.now).as_millis() as u64;
        self.core.timers().iter().map(|(timer, at)| (*timer, after_ms(at))).collect()
    }

    pub(crate) fn head(&self) -> u64 {
        self.disk.chain.len() as u64
    }

    pub(crate) fn chain(&self) -> &[LedgerInfo] {
        &self.disk.chain
    }

    /// Fingerprints of the state that determines the node's future, and of the part on its disk. Without crashes, only
    /// chain, view and decision count for the disk.
    pub(crate) fn fingerprints(&self, constants: &Constants) -> (u64, u64) {
        let mut hasher = DefaultHasher::new();
        (&self.disk.chain, self.core.view(), self.core.is_changing(), self.core.decided()).hash(&mut hasher);
        if constants.bounds.crashes > 0 {
            self.disk.hash_kept(&mut hasher);
        }
        let disk = hasher.finish();
        self.core.hash_conduct(&mut hasher);
        (&self.held, self.building.map(|(work, parent)| (work.number, parent)), self.restarts)
            .hash(&mut hasher);
        (hasher.finish(), disk)
    }

    /// Carries out what the core wants, until it wants nothing. A cut ends it at the first flush.
    fn settle(&mut self, constants: &Constants, cut: Option<CrashPoint>) -> NodeOutput {
        let mut step = NodeOutput::default();
        loop {
            while let Some(effect) = self.core.poll_effect() {
                self.effect(constants, effect);
            }
            let Some(flush) = self.core.poll_flush() else {
                if self.loses_patience(constants) {
                    continue;
                }
                break;
            };
            if cut == Some(CrashPoint::BeforeRecord) {
                break;
            }
            if flush.record.is_some() {
                self.disk.record = flush.record;
            }
            if cut == Some(CrashPoint::AfterRecord) {
                break;
            }
            for output in flush.outputs {
                match output {
                    Output::Send(to, message) => step.said.push((to, message)),
                    Output::Commit(certificate) => self.commit(constants, *certificate, &mut step),
                    Output::Convict(evidence) => step.convicted.push(evidence),
                }
            }
        }
        if cut.is_some() {
            return self.restart(constants);
        }
        step
    }

    /// Makes the node complain from the beginning of each view, up to the last one. A validator that complains still
    /// votes, and a complaint affects only validators that hear it. So an early complaint that is heard later covers
    /// every late complaint.
    fn loses_patience(&mut self, constants: &Constants) -> bool {
        let is_due =
            self.is_searched && !self.core.complains() && self.core.view() < constants.bounds.last_view;
        let ends = is_due && self.core.timers().contains_key(&Timer::Patience);
        if ends {
            self.core.handle_timer(Timer::Patience, constants.now);
        }
        ends
    }

    fn effect(&mut self, constants: &Constants, effect: Effect) {
        match effect {
            Effect::Build { work, parent } if work.number.get() > self.last_batch => {
                self.building = Some((work, parent));
            }
            Effect::Build { work, parent } => self.build(constants, work, parent),
            Effect::Execute { work, order } => {
                let info = self.execute(constants, work.number, &order);
                self.core.handle_executed(work, Ok(info), constants.now);
            }
            Effect::Rollback { to } => {
                self.held.retain(|number, _| *number <= to);
                self.building = None;
            }
            Effect::Fetch { certificate } => {
                let info = certificate.info;
                self.held.insert(info.number, info.clone());
                self.core.handle_fetched(info.number, constants.now);
            }
        }
    }

    fn build(&mut self, constants: &Constants, work: Work, parent: Digest) {
        let order = constants.order(work.view, work.number.get(), parent, self.restarts);
        let info = self.execute(constants, work.number, &order);
        self.core.handle_built(work, order, info, constants.now);
    }

    fn execute(&mut self, constants: &Constants, number: BatchNumber, order: &SignedOrder) -> LedgerInfo {
        let before = self.before(constants, number);
        let info = constants.execute(&before, &order.order, false);
        self.held.insert(number, info.clone());
        let kept = (before.digest(), Outcome { order: order.clone(), info: info.clone() });
        if !constants.lacks_outcomes() && !self.disk.outcomes.contains(&kept) {
            self.disk.outcomes.push(kept);
        }
        info
    }

    fn before(&self, constants: &Constants, number: BatchNumber) -> LedgerInfo {
        let before = number.before(1);
        let head = self.disk.chain.last().unwrap_or(&constants.genesis);
        self.held.get(&before).unwrap_or(head).clone()
    }

    fn commit(&mut self, constants: &Constants, certificate: Certificate, output: &mut NodeOutput) {
        let info = certificate.info.clone();
        if info.number.get() != self.head() + 1 {
            return;
        }
        if self.held.get(&info.number) != Some(&info) {
            output.wrong = Some(format!("{} commits {} without its outcome", self.seat, info.number));
        }
        if let Err(error) = certificate.verify(&constants.set) {
            output.wrong = Some(format!("{} commits by an invalid certificate: {error}", self.seat));
        }
        self.disk.chain.push(info.clone());
        self.disk.outcomes.retain(|(_, it)| it.info.number > info.number);
        self.core.handle_committed(info.clone(), constants.now);
        self.held.retain(|number, _| *number > info.number);
    }
}

impl Disk {
    /// The outcomes that build on each other, the first on the head. If two build on the same one, the later view's is
    /// taken.
    fn linked(&self, genesis: &LedgerInfo) -> Vec<Outcome> {
        let mut last = self.chain.last().unwrap_or(genesis).digest();
        let mut linked = Vec::new();
        loop {
            let next = self.outcomes.iter().filter(|(before, _)| *before == last);
            let Some((_, next)) = next.max_by_key(|(_, it)| it.order.order.view) else { return linked };
            last = next.info.digest();
            linked.push(next.clone());
        }
    }

    fn hash_kept(&self, hasher: &mut impl Hasher) {
        if let Some(record) = &self.record {
            let Record { epoch: _, view, changing, prepare, prepared, adopted, amnesia, decided, voted } =
                record;
            (view, changing, prepare, amnesia, voted).hash(hasher);
            for shown in [prepared, adopted] {
                shown.as_ref().map(|it| (it.view, &it.info)).hash(hasher);
            }
            decided.iter().for_each(|it| (it.view, &it.info).hash(hasher));
        }
        self.outcomes.hash(hasher);
    }
}

fn boot(constants: &Constants, seat: u16, disk: &Disk) -> Core {
    let head = disk.chain.last().unwrap_or(&constants.genesis).clone();
    let mut core = Core::new(
        Setup {
            set: constants.set.clone(),
            key: constants.key(seat).clone(),
            seat,
            domain: constants.domain,
            settings: SETTINGS,
            head,
            certificate: None,
            record: disk.record.clone(),
            outcomes: disk.linked(&constants.genesis),
            kept: disk.outcomes.iter().map(|(_, it)| KeptOutcome::from(it)).collect(),
        },
        constants.now,
    );
    core.handle_wanted(true, constants.now);
    if let Some(liar) = constants.liar {
        core.handle_message(liar, Message::Status(complains_for_ever()), constants.now);
    }
    core
}

/// The liar's complaint about every view from the beginning. The search loses no behaviour by that: a node that should
/// react later hears the other complaints later.
fn complains_for_ever() -> Status {
    let (decided, ordered) = (BatchNumber::GENESIS, BatchNumber::GENESIS);
    Status {
        view: u64::MAX,
        changing: false,
        complains: true,
        decided,
        ordered,
        neglected: false,
        silence: None,
    }
}

/// The status of a validator that has nothing of a view.
fn asks(view: u64, decided: u64) -> Status {
    let decided = BatchNumber::new(decided);
    Status {
        view,
        changing: true,
        complains: false,
        decided,
        ordered: decided,
        neglected: false,
        silence: None,
    }
}
