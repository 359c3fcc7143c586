//! [`World`]: validators, their disks and the network between them, in virtual time, from one seed.

mod driver;
mod oracle;
mod outages;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use slipstream_types::{
    Address, BatchNumber, Certificate, Digest, LedgerInfo, SecretKey, ValidatorSet, validators::Failures,
};

use self::oracle::Oracle;
use super::traitor::Traitor;
use crate::{
    Core, Flush, KeptOutcome, Message, Outcome, Record, Settings, Setup, SignedOrder, Status, Timer, Work,
    planted::{Fault, lacks},
};

/// The conditions of a world. Times are in microseconds.
#[derive(Clone, Debug)]
pub(super) struct Climate {
    pub(super) validators: usize,
    pub(super) failures: Failures,
    /// Share of messages that are lost while faults last.
    pub(super) loss: f64,
    /// Share of commits and certificates that are lost in addition, except to one: views end between a decision and its
    /// news.
    pub(super) news_loss: f64,
    /// Share of prepares that are lost in addition.
    pub(super) prepare_loss: f64,
    /// Whether all validators lose power at once, now and then.
    pub(super) blackouts: bool,
    /// Longest delay of a message.
    pub(super) delay_us: u64,
    /// Share of parallel executions that go wrong.
    pub(super) divergence: f64,
    /// Share of steps at which a validator goes down, while faults last.
    pub(super) crash: f64,
    /// Share of crashed validators that come back without their data.
    pub(super) wipe: f64,
    pub(super) partitions: bool,
    pub(super) traitor: Option<Traitor>,
    pub(super) settings: Settings,
    /// When the last fault is over.
    pub(super) calm_us: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Event {
    Deliver { from: u16, message: Message },
    Work { work: Work, order: Option<SignedOrder>, parent: Digest },
    Timer(Timer, u64),
    Flushed(Box<Flush>),
    Commit(Certificate),
    Fetch(Certificate),
    Sync,
    Restart { wiped: bool },
}

/// The part of a validator that survives a crash.
#[derive(Default)]
struct Disk {
    record: Option<Record>,
    /// Each with the token of the batch before.
    outcomes: Vec<(Digest, Outcome)>,
    chain: Vec<(LedgerInfo, Certificate)>,
}

struct Node {
    core: Option<Core>,
    disk: Disk,
    /// Outcomes in memory.
    held: BTreeMap<BatchNumber, LedgerInfo>,
    /// Bodies in memory.
    bodies: BTreeSet<Digest>,
    flushing: bool,
    /// When the last commit in progress is done: commits come one after the other.
    committed_us: u64,
    /// The timers that are posted: when each is due, and the version of its event.
    timers: BTreeMap<Timer, (Instant, u64)>,
    incarnation: u64,
    /// Its height at the last sync, and how often it was the same before.
    stood: (usize, u32),
}

/// See the module.
pub(super) struct World {
    pub(super) climate: Climate,
    pub(super) set: ValidatorSet,
    pub(super) domain: Digest,
    pub(super) keys: Vec<SecretKey>,
    genesis: LedgerInfo,
    nodes: Vec<Node>,
    events: BinaryHeap<Reverse<(u64, u64, u16, u64)>>,
    waiting: BTreeMap<u64, Event>,
    sequence: u64,
    pub(super) now_us: u64,
    begun: Instant,
    pub(super) random: StdRng,
    oracle: Oracle,
    cut: BTreeSet<u16>,
    pub(super) convicted: BTreeSet<u16>,
    pub(super) fetched: u64,
    pub(super) crashes: u64,
    pub(super) views: u64,
}

impl World {
    pub(super) fn new(seed: u64, climate: Climate) -> World {
        let keys = slipstream_testkit::keys(1..=climate.validators as u8);
        let set =
            ValidatorSet { failures: climate.failures, ..slipstream_testkit::set(0, &keys, Address::ZERO) };
        let genesis = LedgerInfo {
            accumulator_root: Digest::tagged("genesis", b""),
            ..slipstream_testkit::info(0, BatchNumber::GENESIS.get())
        };
        let node = || Node {
            core: None,
            disk: Disk::default(),
            held: BTreeMap::new(),
            bodies: BTreeSet::new(),
            flushing: false,
            committed_us: 0,
            timers: BTreeMap::new(),
            incarnation: 0,
            stood: (0, 0),
        };
        let nodes = (0..climate.validators).map(|_| node()).collect();
        let mut world = World {
            set,
            domain: Digest::tagged("world", &seed.to_le_bytes()),
            keys,
            genesis,
            nodes,
            events: BinaryHeap::new(),
            waiting: BTreeMap::new(),
            sequence: 0,
            now_us: 0,
            begun: Instant::now(),
            random: StdRng::seed_from_u64(seed),
            oracle: Oracle::default(),
            cut: BTreeSet::new(),
            convicted: BTreeSet::new(),
            fetched: 0,
            crashes: 0,
            views: 0,
            climate,
        };
        for seat in 0..world.climate.validators as u16 {
            world.start(seat);
        }
        world
    }

    /// The present, as the cores see it.
    fn now(&self) -> Instant {
        self.begun + Duration::from_micros(self.now_us)
    }

    fn is_calm(&self) -> bool {
        self.now_us >= self.climate.calm_us
    }

    fn is_traitor(&self, seat: u16) -> bool {
        self.climate.traitor.is_some() && seat == 0
    }

    fn post(&mut self, seat: u16, after_us: u64, event: Event) {
        self.sequence += 1;
        let incarnation = self.nodes[usize::from(seat)].incarnation;
        self.events.push(Reverse((self.now_us + after_us, self.sequence, seat, incarnation)));
        self.waiting.insert(self.sequence, event);
    }

    fn start(&mut self, seat: u16) {
        let genesis = self.genesis.clone();
        let (set, key, domain) = (self.set.clone(), self.keys[usize::from(seat)].clone(), self.domain);
        let (settings, now) = (self.climate.settings, self.now());
        let node = &mut self.nodes[usize::from(seat)];
        let head = node.disk.chain.last().map_or(genesis, |(info, _)| info.clone());
        node.disk.outcomes.retain(|(_, it)| it.info.number > head.number);
        node.held = BTreeMap::new();
        let kept: Vec<_> = node.disk.outcomes.iter().map(|(_, it)| KeptOutcome::from(it)).collect();
        node.bodies = kept.iter().map(|it| it.order.order.digest(&domain)).collect();
        let mut outcomes: Vec<Outcome> = Vec::new();
        let mut last = head.digest();
        let newest = |last: Digest, node: &Node| {
            let next = node.disk.outcomes.iter().filter(|(before, _)| *before == last);
            next.max_by_key(|(_, it)| it.order.order.view).map(|(_, it)| it.clone())
        };
        while let Some(next) = newest(last, node) {
            last = next.info.digest();
            outcomes.push(next);
        }
        let setup = Setup {
            set,
            key,
            seat,
            domain,
            settings,
            head,
            certificate: node.disk.chain.last().map(|(_, certificate)| certificate.clone()),
            record: node.disk.record.clone(),
            outcomes,
            kept,
        };
        let mut core = Core::new(setup, now);
        core.handle_wanted(true, now);
        for (number, (_, info)) in &core.execution.outcomes {
            node.held.insert(*number, info.clone());
        }
        node.core = Some(core);
        self.post(seat, 300_000, Event::Sync);
        self.pump(seat);
    }

    /// Runs until that moment.
    pub(super) fn run_until(&mut self, until_us: u64) {
        while let Some(Reverse((at, sequence, seat, incarnation))) = self.events.peek().copied() {
            if at > until_us {
                break;
            }
            self.events.pop();
            let event = self.waiting.remove(&sequence).unwrap();
            self.now_us = at;
            if incarnation == self.nodes[usize::from(seat)].incarnation {
                self.happen(seat, event);
            }
        }
        self.now_us = until_us;
        if self.climate.partitions && !self.is_calm() {
            let most = usize::from(self.set.failures.any);
            self.cut.clear();
            for _ in 0..self.random.random_range(0..=most + 1) {
                let seat = self.random.random_range(0..self.nodes.len() as u16);
                self.cut.insert(seat);
            }
        } else {
            self.cut.clear();
        }
        if self.climate.blackouts && !self.is_calm() && self.random.random_bool(0.2) {
            for seat in 0..self.nodes.len() as u16 {
                if self.nodes[usize::from(seat)].core.is_some() {
                    self.crash(seat);
                }
            }
        }
    }

    fn happen(&mut self, seat: u16, event: Event) {
        if let Event::Restart { .. } = event {
            return self.start(seat);
        }
        if self.nodes[usize::from(seat)].core.is_none() || self.stumble(seat) {
            return;
        }
        match event {
            Event::Restart { .. } => {}
            Event::Deliver { from, message } => self.deliver(seat, from, message),
            Event::Work { work, order, parent } => self.work(seat, work, order, parent),
            Event::Timer(timer, version) => {
                let now = self.now();
                let node = &mut self.nodes[usize::from(seat)];
                if node.timers.get(&timer).is_some_and(|(_, posted)| *posted == version) {
                    node.timers.remove(&timer);
                    node.core.as_mut().unwrap().handle_timer(timer, now);
                }
            }
            Event::Flushed(flush) => {
                if let Some(record) = flush.record
                    && !lacks(Fault::ForgetRecord)
                {
                    self.nodes[usize::from(seat)].disk.record = Some(record);
                }
                for output in flush.outputs {
                    if self.stumble(seat) {
                        return;
                    }
                    self.put_out(seat, output);
                }
                self.nodes[usize::from(seat)].flushing = false;
            }
            Event::Commit(certificate) => self.commit(seat, certificate),
            Event::Fetch(certificate) => self.fetch(seat, certificate),
            Event::Sync => self.sync(seat),
        }
        self.pump(seat);
    }

    pub(super) fn send(&mut self, from: u16, to: u16, message: Message) {
        // One validator hears of decisions, and the others continue without it.
        let is_lucky = usize::from(to) + 1 == self.nodes.len();
        let news_loss = match message {
            Message::Commit(_) | Message::Decided(_) if !is_lucky => self.climate.news_loss,
            Message::Prepare(_) => self.climate.prepare_loss,
            _ => 0.0,
        };
        let mut falls = |share: f64| share > 0.0 && self.random.random_bool(share);
        let lost = (falls(self.climate.loss) | falls(news_loss)) && !self.is_calm();
        if lost || self.cut.contains(&from) != self.cut.contains(&to) {
            return;
        }
        let after_us = self.random.random_range(100..self.climate.delay_us);
        // The message is lost only if its receiver goes down meanwhile.
        self.post(to, after_us, Event::Deliver { from, message });
    }

    /// Keeps a validator from the others until the end of the next [`World::run_until`].
    pub(super) fn cut_off(&mut self, seat: u16) {
        self.cut.insert(seat);
    }

    /// Counts the batches that a validator has committed.
    pub(super) fn height_of(&self, seat: u16) -> usize {
        self.nodes[usize::from(seat)].disk.chain.len()
    }

    /// Whether a validator may sign.
    pub(super) fn takes_part(&self, seat: u16) -> bool {
        self.nodes[usize::from(seat)].core.as_ref().is_some_and(|core| !core.is_silent())
    }

    /// Counts the batches that all honest validators have committed.
    pub(super) fn height(&self) -> usize {
        let honest = (0..self.nodes.len()).filter(|it| !self.is_traitor(*it as u16));
        honest.map(|it| self.nodes[it].disk.chain.len()).min().unwrap_or(0)
    }

    /// Every validator's state, for readers of a failure.
    pub(super) fn picture(&self) -> String {
        let line = |(seat, node): (usize, &Node)| {
            let Some(core) = &node.core else { return format!("{seat}: down") };
            let status: Status = core.status();
            format!(
                "{seat}: head {} {status:?} top {} working {:?} pending {:?} fetching {:?} silent {} amnesia {:?} adopted {:?} votes {:?} verifies {:?}",
                node.disk.chain.len(),
                core.top(),
                core.execution.working,
                core.decisions.pending.keys().collect::<Vec<_>>(),
                core.decisions.fetching,
                core.is_silent(),
                core.memory.amnesia,
                core.term.adopted.as_ref().map(|it| (it.view, it.info.number)),
                core.votes(),
                core.term.slots.get(&core.decisions.last.next()).map(|slot| slot.verifies.clone()),
            )
        };
        self.nodes.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
    }
}
