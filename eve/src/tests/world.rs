//! [`World`]: validators, their disks and the network between them, in virtual time, from one seed.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use slipstream_types::{
    Address, BatchNumber, Certificate, Digest, Epoch, LedgerInfo, SecretKey, ValidatorSet,
    validators::Failures,
};

use super::traitor::Traitor;
use crate::{
    Core, Effect, Flush, Message, NoOutcome, Order, Outcome, Output, Record, Settings, Setup, SignedOrder,
    Status, Timer, To, Work,
    planted::{Fault, lacks},
};

/// The conditions of a world. Times are in microseconds.
#[derive(Clone, Debug)]
pub(super) struct Climate {
    pub(super) validators: usize,
    pub(super) failures: Failures,
    /// Share of messages that are lost while faults last.
    pub(super) loss: f64,
    /// Share of commits and certificates that are lost besides, but to one: views end between a decision and its news.
    pub(super) news_loss: f64,
    /// Share of prepares that are lost besides.
    pub(super) prepare_loss: f64,
    /// Whether all lose power at once, now and then.
    pub(super) blackouts: bool,
    /// Longest way of a message.
    pub(super) delay_us: u64,
    /// Share of parallel executions that go wrong.
    pub(super) divergence: f64,
    /// Share of steps at which a validator goes down, while faults last.
    pub(super) crash: f64,
    /// Share of those that come back without their data.
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
    /// Each beside the token of the batch before.
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
    /// When the last commit that is under way is done: one comes after the other.
    committed_us: u64,
    timers: BTreeMap<Timer, u64>,
    incarnation: u64,
    /// Its height when it synced last, and how often before that.
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
    pub(super) random: StdRng,
    /// The outcome that each outcome was executed on.
    parents: BTreeMap<Digest, Digest>,
    /// The first commit at each number.
    decided: BTreeMap<BatchNumber, Digest>,
    /// Statements that honest validators signed: kind, seat, view, number.
    said: BTreeMap<(u8, u16, u64, BatchNumber), Digest>,
    /// The views that honest validators said to have left for.
    left: BTreeMap<u16, u64>,
    cut: BTreeSet<u16>,
    pub(super) convicted: BTreeSet<u16>,
    pub(super) fetched: u64,
    pub(super) crashes: u64,
    pub(super) views: u64,
    wiped: bool,
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
            random: StdRng::seed_from_u64(seed),
            parents: BTreeMap::new(),
            decided: BTreeMap::new(),
            said: BTreeMap::new(),
            left: BTreeMap::new(),
            cut: BTreeSet::new(),
            convicted: BTreeSet::new(),
            fetched: 0,
            crashes: 0,
            views: 0,
            wiped: false,
            climate,
        };
        for seat in 0..world.climate.validators as u16 {
            world.start(seat);
        }
        world
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
        let settings = self.climate.settings;
        let node = &mut self.nodes[usize::from(seat)];
        let head = node.disk.chain.last().map_or(genesis, |(info, _)| info.clone());
        node.disk.outcomes.retain(|(_, it)| it.info.number > head.number);
        node.held = BTreeMap::new();
        let orders: Vec<_> = node.disk.outcomes.iter().map(|(_, it)| it.order.clone()).collect();
        node.bodies = orders.iter().map(|it| it.order.digest(&domain)).collect();
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
            record: node.disk.record.clone(),
            outcomes,
            orders,
        };
        let mut core = Core::new(setup);
        core.handle_wanted(true);
        for (number, (_, info)) in &core.outcomes {
            node.held.insert(*number, info.clone());
        }
        node.core = Some(core);
        self.post(seat, 300_000, Event::Sync);
        self.pump(seat);
    }

    fn crash(&mut self, seat: u16) {
        let may_wipe = !self.wiped && !self.is_traitor(seat) && !self.climate.blackouts;
        let wiped = may_wipe && self.random.random_bool(self.climate.wipe);
        self.crashes += 1;
        let node = &mut self.nodes[usize::from(seat)];
        node.core = None;
        node.incarnation += 1;
        node.flushing = false;
        node.committed_us = 0;
        node.timers.clear();
        if wiped {
            self.wiped = true;
            node.disk = Disk::default();
        }
        let down_us = self.random.random_range(10_000..3_000_000);
        self.post(seat, down_us, Event::Restart { wiped });
    }

    /// Others that are down, lie or were wiped: no more than `u` may be at a time.
    fn may_crash(&self, seat: u16) -> bool {
        let down = (0..self.nodes.len() as u16)
            .filter(|it| self.nodes[usize::from(*it)].core.is_none() || self.is_traitor(*it))
            .count();
        let wiped = usize::from(self.wiped);
        !self.is_calm() && !self.is_traitor(seat) && down + wiped < usize::from(self.set.failures.any)
    }

    /// A place at which a validator may go down. True if it did.
    fn stumble(&mut self, seat: u16) -> bool {
        let share = self.climate.crash;
        let falls = share > 0.0 && self.may_crash(seat) && self.random.random_bool(share);
        if falls {
            self.crash(seat);
        }
        falls
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
                let node = &mut self.nodes[usize::from(seat)];
                if node.timers.get(&timer) == Some(&version) {
                    node.timers.remove(&timer);
                    node.core.as_mut().unwrap().handle_timer(timer);
                }
            }
            Event::Flushed(flush) => {
                if let Some(record) = flush.record {
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

    fn deliver(&mut self, seat: u16, from: u16, message: Message) {
        let domain = self.domain;
        let node = &mut self.nodes[usize::from(seat)];
        let core = node.core.as_mut().unwrap();
        if let Message::Order(order) = &message
            && core.wants(order)
        {
            node.bodies.insert(order.order.digest(&domain));
        }
        core.handle_message(from, message);
    }

    /// Executes an order on the outcome before it; parallel execution may err.
    fn execute(&mut self, before: &LedgerInfo, order: &Order, sequential: bool) -> LedgerInfo {
        let wrong = !sequential && !self.is_calm() && self.random.random_bool(self.climate.divergence);
        // Those that are wrong are wrong alike, which is the worst.
        let slip = u64::from(wrong);
        let content =
            [before.digest().as_bytes(), order.digest(&self.domain).as_bytes(), &slip.to_le_bytes()[..]]
                .concat();
        let info = LedgerInfo {
            accumulator_root: Digest::tagged("accumulator", &content),
            state_root: Digest::tagged("state", &content),
            timestamp_ms: order.timestamp_ms,
            ..slipstream_testkit::info(0, order.number.get())
        };
        self.parents.insert(info.digest(), before.digest());
        info
    }

    fn before(&self, seat: u16, number: BatchNumber) -> Option<LedgerInfo> {
        let node = &self.nodes[usize::from(seat)];
        let before = number.before(1);
        let head = node.disk.chain.last().map_or(&self.genesis, |(info, _)| info);
        node.held.get(&before).or(Some(head)).filter(|info| info.number == before).cloned()
    }

    fn work(&mut self, seat: u16, work: Work, order: Option<SignedOrder>, parent: Digest) {
        let Some(before) = self.before(seat, work.number) else { return self.overtaken(seat, work) };
        let is_built = order.is_none();
        let order = order.unwrap_or_else(|| {
            let order = Order {
                epoch: Epoch(0),
                view: work.view,
                number: work.number,
                parent,
                timestamp_ms: self.now_us / 1_000,
                transactions: Digest::tagged("body", &self.random.random::<u64>().to_le_bytes()),
            };
            SignedOrder::new(order, &self.domain, &self.keys[usize::from(seat)])
        });
        let digest = order.order.digest(&self.domain);
        let has_body = self.nodes[usize::from(seat)].bodies.contains(&digest);
        if !is_built && !has_body {
            let node = &mut self.nodes[usize::from(seat)];
            node.core.as_mut().unwrap().handle_executed(work, Err(NoOutcome::Missing));
            return;
        }
        if order.order.timestamp_ms < before.timestamp_ms {
            let core = self.nodes[usize::from(seat)].core.as_mut().unwrap();
            core.handle_executed(work, Err(NoOutcome::Refused));
            return;
        }
        // The driver learns of a rollback when the work is done and on disk.
        let is_void = self.nodes[usize::from(seat)].core.as_ref().unwrap().working != Some(work);
        let info = self.execute(&before, &order.order, work.sequential);
        let node = &mut self.nodes[usize::from(seat)];
        if !is_void {
            node.held.insert(work.number, info.clone());
        }
        node.bodies.insert(digest);
        if !lacks(Fault::ForgetOutcomes) {
            node.disk.outcomes.push((before.digest(), Outcome { order: order.clone(), info: info.clone() }));
        }
        if self.stumble(seat) {
            return;
        }
        let core = self.nodes[usize::from(seat)].core.as_mut().unwrap();
        match is_built {
            true => core.handle_built(work, order, info),
            false => core.handle_executed(work, Ok(info)),
        }
    }

    fn overtaken(&mut self, seat: u16, work: Work) {
        let core = self.nodes[usize::from(seat)].core.as_mut().unwrap();
        core.handle_executed(work, Err(NoOutcome::Overtaken));
    }

    /// Carries out what a core wants.
    fn pump(&mut self, seat: u16) {
        let index = usize::from(seat);
        loop {
            let Some(core) = &mut self.nodes[index].core else { return };
            let Some(effect) = core.next_effect() else { break };
            match effect {
                Effect::Build { work, parent } => {
                    let after_us = self.random.random_range(5_000..60_000);
                    self.post(seat, after_us, Event::Work { work, order: None, parent });
                }
                Effect::Execute { work, order } => {
                    let after_us = self.random.random_range(500..20_000);
                    self.post(seat, after_us, Event::Work { work, order: Some(order), parent: Digest::ZERO });
                }
                Effect::Rollback { to } => self.nodes[index].held.retain(|number, _| *number <= to),
                Effect::Fetch { certificate } => self.post(seat, 20_000, Event::Fetch(*certificate)),
                Effect::SetTimer(timer, after_ms) => {
                    let version = self.sequence;
                    self.nodes[index].timers.insert(timer, version);
                    self.post(seat, after_ms * 1_000, Event::Timer(timer, version));
                }
                Effect::CancelTimer(timer) => {
                    self.nodes[index].timers.remove(&timer);
                }
            }
        }
        let node = &mut self.nodes[index];
        if !node.flushing
            && let Some(flush) = node.core.as_mut().unwrap().flush()
        {
            self.views = self.views.max(node.core.as_ref().unwrap().view());
            node.flushing = true;
            let after_us = self.random.random_range(100..4_000);
            self.post(seat, after_us, Event::Flushed(Box::new(flush)));
        }
    }

    fn put_out(&mut self, seat: u16, output: Output) {
        match output {
            Output::Send(to, message) => {
                let targets: Vec<u16> = match to {
                    To::Others => (0..self.nodes.len() as u16).filter(|it| *it != seat).collect(),
                    To::Seat(target) => vec![target],
                };
                self.witness(seat, &message);
                for target in targets {
                    match self.climate.traitor.filter(|_| self.is_traitor(seat)) {
                        None => self.send(seat, target, message.clone()),
                        Some(traitor) => {
                            for message in traitor.twist(self, seat, target, message.clone()) {
                                self.send(seat, target, message);
                            }
                        }
                    }
                }
            }
            Output::Commit(certificate) => {
                let after_us = self.random.random_range(500..10_000);
                let node = &mut self.nodes[usize::from(seat)];
                node.committed_us = node.committed_us.max(self.now_us) + after_us;
                let after_us = node.committed_us - self.now_us;
                self.post(seat, after_us, Event::Commit(*certificate));
            }
            Output::Convict(evidence) => {
                let author = evidence.author(&self.set);
                assert!(self.is_traitor(author), "an honest validator is blamed: {evidence:?}");
                self.convicted.insert(author);
            }
        }
    }

    pub(super) fn send(&mut self, from: u16, to: u16, message: Message) {
        // One validator hears of decisions, and the others go on without it.
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
        // Only its end of the channel may go down meanwhile.
        self.post(to, after_us, Event::Deliver { from, message });
    }

    /// Nobody honest says two things where it may say one, over all restarts.
    fn witness(&mut self, seat: u16, message: &Message) {
        if self.is_traitor(seat) {
            return;
        }
        let (kind, view, number, what) = match message {
            Message::Prepare(vote) => (0, vote.ballot.view, vote.ballot.number, vote.ballot.token),
            Message::Commit(vote) => (1, vote.ballot.view, vote.ballot.number, vote.ballot.token),
            Message::Order(order) if self.set.primary(order.order.view) == seat => {
                (2, order.order.view, order.order.number, order.order.digest(&self.domain))
            }
            Message::ViewChange(change) => {
                let left = self.left.entry(seat).or_default();
                *left = change.view.max(*left);
                return;
            }
            _ => return,
        };
        let left = self.left.get(&seat).copied().unwrap_or_default();
        assert!(
            self.wiped || kind == 2 || view >= left,
            "{seat} votes in view {view} after it left for {left}"
        );
        let first = *self.said.entry((kind, seat, view, number)).or_insert(what);
        assert!(
            self.wiped || first == what,
            "{seat} says two things of {number} in view {view}, kind {kind}"
        );
    }

    fn commit(&mut self, seat: u16, certificate: Certificate) {
        let node = &mut self.nodes[usize::from(seat)];
        let number = certificate.info.number;
        if node.disk.chain.len() as u64 + 1 != number.get() {
            return;
        }
        assert_eq!(node.held.get(&number), Some(&certificate.info), "what is committed is held");
        self.append(seat, certificate);
    }

    fn append(&mut self, seat: u16, certificate: Certificate) {
        certificate.verify(&self.set).unwrap();
        let info = certificate.info.clone();
        let first = *self.decided.entry(info.number).or_insert(info.digest());
        assert_eq!(first, info.digest(), "two batches {} are certified", info.number);
        let last = self.nodes[usize::from(seat)].disk.chain.last().map_or(&self.genesis, |(info, _)| info);
        assert_eq!(
            self.parents.get(&info.digest()),
            Some(&last.digest()),
            "{} continues another batch",
            info.number
        );
        let node = &mut self.nodes[usize::from(seat)];
        node.disk.chain.push((info.clone(), certificate));
        node.disk.outcomes.retain(|(_, it)| it.info.number > info.number);
        if self.stumble(seat) {
            return;
        }
        let node = &mut self.nodes[usize::from(seat)];
        node.core.as_mut().unwrap().handle_committed(info.clone());
        node.held.retain(|number, _| *number > info.number);
    }

    /// Another validator hands over an outcome that it keeps.
    fn fetch(&mut self, seat: u16, certificate: Certificate) {
        let number = certificate.info.number;
        if self.nodes[usize::from(seat)].disk.chain.len() as u64 >= number.get() {
            return;
        }
        let has = |node: &Node| {
            node.core.is_some()
                && (node.held.get(&number) == Some(&certificate.info)
                    || node.disk.outcomes.iter().any(|(_, it)| it.info == certificate.info)
                    || node.disk.chain.iter().any(|(info, _)| *info == certificate.info))
        };
        let mut honest = (0..self.nodes.len()).filter(|it| !self.is_traitor(*it as u16));
        if self.before(seat, number).is_none() || !honest.any(|it| has(&self.nodes[it])) {
            return self.post(seat, 100_000, Event::Fetch(certificate));
        }
        self.fetched += 1;
        let node = &mut self.nodes[usize::from(seat)];
        node.held.insert(number, certificate.info.clone());
        node.core.as_mut().unwrap().handle_fetched(number);
    }

    /// Fetches certified batches when far behind; after seconds at one batch also when two behind. A validator that restarts holds the
    /// certificate of its last decision only, and those before as part of its chain.
    fn sync(&mut self, seat: u16) {
        self.post(seat, 300_000, Event::Sync);
        let node = &mut self.nodes[usize::from(seat)];
        let head = node.disk.chain.len();
        let (stood, times) = node.stood;
        node.stood = (head, if stood == head { times + 1 } else { 0 });
        let near = if node.stood.1 < 10 { 2 } else { 1 };
        let far = |node: &&Node| node.core.is_some() && node.disk.chain.len() > head + near;
        let Some(next) = self.nodes.iter().find(far).map(|node| node.disk.chain[head].clone()) else {
            return;
        };
        self.append(seat, next.1);
    }

    /// Keeps a validator from the others until the end of the next [`World::run_until`].
    pub(super) fn cut_off(&mut self, seat: u16) {
        self.cut.insert(seat);
    }

    /// Batches that a validator has committed.
    pub(super) fn height_of(&self, seat: u16) -> usize {
        self.nodes[usize::from(seat)].disk.chain.len()
    }

    /// Whether a validator may sign.
    pub(super) fn takes_part(&self, seat: u16) -> bool {
        self.nodes[usize::from(seat)].core.as_ref().is_some_and(|core| !core.is_silent())
    }

    /// Batches that all honest validators that are up have committed.
    pub(super) fn height(&self) -> usize {
        let honest = (0..self.nodes.len()).filter(|it| !self.is_traitor(*it as u16));
        honest.map(|it| self.nodes[it].disk.chain.len()).min().unwrap_or(0)
    }

    /// How everybody stands, for whoever reads a failure.
    pub(super) fn picture(&self) -> String {
        let line = |(seat, node): (usize, &Node)| {
            let Some(core) = &node.core else { return format!("{seat}: down") };
            let status: Status = core.status();
            format!(
                "{seat}: head {} {status:?} top {} working {:?} pending {:?} fetching {:?} silent {} amnesia {:?} adopted {:?} votes {:?} verifies {:?}",
                node.disk.chain.len(),
                core.top(),
                core.working,
                core.pending.keys().collect::<Vec<_>>(),
                core.fetching,
                core.is_silent(),
                core.amnesia,
                core.adopted.as_ref().map(|it| (it.view, it.info.number)),
                core.votes(),
                core.slots.get(&core.decided.next()).map(|slot| slot.verifies.clone()),
            )
        };
        self.nodes.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
    }
}
