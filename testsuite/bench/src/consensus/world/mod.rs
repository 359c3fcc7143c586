//! [`World`]: the real cores of all validators in virtual time. Each validator has its own CPU cores, however few this
//! machine has.
//!
//! ```text
//!  Core ── Build, Execute ──▶ Machine: the result, and how long it took ──▶ the validator's execution bench ───────┐
//!    ▲ └── Flush: record ──▶ record bench ──▶ messages ── one way ──▶ other cores                                  │
//!    └──── committed ◀── commit bench ◀── certificate                                        built, executed ◀─────┘
//! ```
//!
//! A core's own time for a message (mostly signatures) is measured as it happens. Work waits for its bench and for a
//! free CPU core, first come, first served.

mod parameters;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use slipstream_eve::{
    Core, Effect, Flush, Message, NoOutcome, Order, Output, Receivers, Settings, Setup, SignedOrder, Work,
};
use slipstream_types::{
    Address, BatchNumber, Certificate, Digest, Epoch, LedgerInfo, SecretKey, signature_cache,
};

pub(super) use self::parameters::{Decision, Job, Machine, Pace, Ran};

#[derive(Debug)]
enum Event {
    Message(u16, Message),
    Done { work: Work, rollbacks: u64, order: SignedOrder, info: LedgerInfo, is_build: bool },
    Timeout(Instant),
    Flushed(Vec<Output>),
    Committed(LedgerInfo),
    Fetched(Certificate),
}

#[derive(Clone, Copy)]
enum Bench {
    Driver,
    Execution,
    Record,
    Commit,
    Intake,
}

struct Seat {
    core: Core,
    head: LedgerInfo,
    /// Outcomes above the head.
    held: BTreeMap<BatchNumber, LedgerInfo>,
    /// The core's timeout, once its event is posted.
    timeout: Option<Instant>,
    is_flushing: bool,
    rollbacks: u64,
    /// When each bench is free, and each CPU core.
    benches: [u64; 5],
    cores: Vec<u64>,
}

impl Seat {
    /// Occupies a bench and a CPU core with work that can start at `now_us`; returns when the work ends.
    fn occupy(&mut self, bench: Bench, now_us: u64, took_us: u64) -> u64 {
        let free = &mut self.benches[bench as usize];
        let core = self.cores.iter_mut().min().expect("a validator has a core");
        let end = now_us.max(*free).max(*core) + took_us;
        (*free, *core) = (end, end);
        end
    }

    fn before(&self, number: BatchNumber) -> Option<LedgerInfo> {
        let before = number.previous()?;
        self.held.get(&before).or(Some(&self.head)).filter(|info| info.number == before).cloned()
    }
}

/// The world of a run.
pub(super) struct World<M> {
    pub(super) machine: M,
    pace: Pace,
    keys: Vec<SecretKey>,
    domain: Digest,
    seats: Vec<Seat>,
    events: BTreeMap<(u64, u64), (u16, Event)>,
    sequence: u64,
    now_us: u64,
    /// The beginning, as the cores see it.
    begun: Instant,
    /// The bodies by their outcomes' tokens.
    bodies: BTreeMap<Digest, Digest>,
    decisions: BTreeMap<BatchNumber, Decision>,
}

impl<M: Machine> World<M> {
    /// Makes `validators` validators on a state with this root.
    pub(super) fn new(validators: u8, genesis_root: Digest, pace: Pace, machine: M) -> World<M> {
        let keys = slipstream_testkit::keys(1..=validators);
        let set = slipstream_testkit::set(0, &keys, Address::ZERO);
        let domain = Digest::tagged("slipnet/bench", b"");
        let head = LedgerInfo {
            accumulator_root: domain,
            state_root: genesis_root,
            ..slipstream_testkit::info(0, BatchNumber::GENESIS.get())
        };
        let settings = Settings {
            view_timeout_ms: 2_000,
            rotate_after: 0,
            protect_after: 0,
            protect_wait_ms: 50,
            recalls_votes: true,
        };
        let begun = Instant::now();
        let seat = |(seat, key): (u16, &SecretKey)| Seat {
            core: Core::new(
                Setup {
                    set: set.clone(),
                    key: key.clone(),
                    seat,
                    domain,
                    settings,
                    head: head.clone(),
                    certificate: None,
                    record: None,
                    outcomes: Vec::new(),
                    kept: Vec::new(),
                },
                begun,
            ),
            head: head.clone(),
            held: BTreeMap::new(),
            timeout: None,
            is_flushing: false,
            rollbacks: 0,
            benches: [0; 5],
            cores: vec![0; pace.cores],
        };
        let seats = (0..).zip(&keys).map(seat).collect();
        let mut world = World {
            machine,
            pace,
            keys,
            domain,
            seats,
            events: BTreeMap::new(),
            sequence: 0,
            now_us: 0,
            begun,
            bodies: BTreeMap::new(),
            decisions: BTreeMap::new(),
        };
        for seat in 0..u16::from(validators) {
            world.seats[usize::from(seat)].core.handle_wanted(true, begun);
            world.pump(seat);
        }
        world
    }

    /// Runs until `batches` batches are decided, or until `most_us`; returns the decisions.
    pub(super) fn run(&mut self, batches: u64, most_us: u64) -> Vec<Decision> {
        while (self.decisions.len() as u64) < batches
            && let Some(((at, _), (seat, event))) = self.events.pop_first()
        {
            if at > most_us {
                break;
            }
            self.now_us = at;
            let free = self.seats[usize::from(seat)].benches[Bench::Driver as usize];
            if free > at {
                // Events are handled one at a time, in order.
                self.post_at(seat, free, event);
                continue;
            }
            // The validators are one process here, but must share no verified signatures.
            signature_cache::forget();
            let begun = Instant::now();
            let worked_us = self.happen(seat, event);
            let took_us = (begun.elapsed().as_micros() as u64).saturating_sub(worked_us);
            // Handling an event preempts longer work, as an operating system's scheduler allows.
            self.seats[usize::from(seat)].benches[Bench::Driver as usize] = self.now_us + took_us;
        }
        self.decisions.values().cloned().collect()
    }

    /// The present, as the cores see it.
    fn now(&self) -> Instant {
        self.begun + Duration::from_micros(self.now_us)
    }

    fn post_at(&mut self, seat: u16, at_us: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((at_us, self.sequence), (seat, event));
    }

    /// Passes an event to the core, and carries out its effects; returns the real time of the machines' work, which
    /// does not count as the core's.
    fn happen(&mut self, seat: u16, event: Event) -> u64 {
        let now = self.now();
        let at = &mut self.seats[usize::from(seat)];
        match event {
            Event::Message(from, message) => at.core.handle_message(from, message, now),
            Event::Timeout(timeout) => {
                // By now the core may have another timeout, with an event of its own.
                if at.timeout.take_if(|posted| *posted == timeout).is_some() {
                    at.core.handle_timeout(now);
                }
            }
            Event::Done { work, rollbacks, order, info, is_build } => {
                if rollbacks == at.rollbacks {
                    at.held.insert(work.number, info.clone());
                }
                match is_build {
                    true => at.core.handle_built(work, order, info, now),
                    false => at.core.handle_executed(work, Ok(info), now),
                }
            }
            Event::Flushed(outputs) => {
                at.is_flushing = false;
                outputs.into_iter().for_each(|output| self.put_out(seat, output));
            }
            Event::Committed(info) => {
                if at.head.number.next() == info.number {
                    at.held.retain(|number, _| *number > info.number);
                    at.head = info.clone();
                    at.core.handle_committed(info, now);
                }
            }
            Event::Fetched(certificate) => self.fetched(seat, certificate),
        }
        self.pump(seat)
    }

    fn fetched(&mut self, seat: u16, certificate: Certificate) {
        let (number, now) = (certificate.info.number, self.now());
        let at = &mut self.seats[usize::from(seat)];
        if at.head.number >= number {
            return;
        }
        if at.before(number).is_none() {
            let later_us = self.now_us + 10_000;
            return self.post_at(seat, later_us, Event::Fetched(certificate));
        }
        at.held.insert(number, certificate.info);
        at.core.handle_fetched(number, now);
    }

    fn pump(&mut self, seat: u16) -> u64 {
        let mut worked_us = 0;
        while let Some(effect) = self.seats[usize::from(seat)].core.poll_effect() {
            let at = &mut self.seats[usize::from(seat)];
            match effect {
                Effect::Build { work, parent } => worked_us += self.work(seat, work, None, parent),
                Effect::Execute { work, order } => {
                    worked_us += self.work(seat, work, Some(order), Digest::ZERO)
                }
                Effect::Rollback { to } => {
                    at.rollbacks += 1;
                    at.held.retain(|number, _| *number <= to);
                }
                Effect::Fetch { certificate } => {
                    let at_us = self.now_us + 2 * self.pace.one_way_us;
                    self.post_at(seat, at_us, Event::Fetched(*certificate));
                }
            }
        }
        let begun = self.begun;
        let at = &mut self.seats[usize::from(seat)];
        if let Some(timeout) = at.core.poll_timeout().filter(|timeout| at.timeout != Some(*timeout)) {
            at.timeout = Some(timeout);
            let at_us = (timeout - begun).as_micros() as u64;
            self.post_at(seat, at_us.max(self.now_us), Event::Timeout(timeout));
        }
        let at = &mut self.seats[usize::from(seat)];
        if !at.is_flushing
            && let Some(Flush { record, outputs }) = at.core.poll_flush()
        {
            at.is_flushing = true;
            let record_us = if record.is_some() { self.pace.record_us } else { 0 };
            // A record waits for the disk, not for a CPU core.
            let end = self.now_us.max(at.benches[Bench::Record as usize]) + record_us;
            at.benches[Bench::Record as usize] = end;
            self.post_at(seat, end, Event::Flushed(outputs));
        }
        worked_us
    }

    fn work(&mut self, seat: u16, work: Work, order: Option<SignedOrder>, parent: Digest) -> u64 {
        let (begun, now) = (Instant::now(), self.now());
        let Some(before) = self.seats[usize::from(seat)].before(work.number) else {
            self.seats[usize::from(seat)].core.handle_executed(work, Err(NoOutcome::Overtaken), now);
            return 0;
        };
        let is_build = order.is_none();
        let order = order.unwrap_or_else(|| self.ordered(seat, work, parent, before.state_root));
        let body = order.order.transactions;
        let job = Job { seat, before: before.state_root, body, is_build, sequential: work.sequential };
        let Ran { state_root, took_us } = self.machine.run(&job);
        let said = [before.digest(), order.order.digest(&self.domain), state_root];
        let info = LedgerInfo {
            accumulator_root: Digest::tagged("slipnet/bench/history", said.map(|it| it.0).as_flattened()),
            state_root,
            timestamp_ms: order.order.timestamp_ms,
            ..slipstream_testkit::info(0, work.number.get())
        };
        self.bodies.insert(info.digest(), body);
        let worked_us = begun.elapsed().as_micros() as u64;
        let (now_us, intake_us) = (self.now_us, self.pace.intake_us);
        let at = &mut self.seats[usize::from(seat)];
        let ready_us = if is_build { now_us.max(at.benches[Bench::Intake as usize]) } else { now_us };
        let end = at.occupy(Bench::Execution, ready_us, took_us);
        if is_build && intake_us > 0 {
            // Meanwhile the validator takes in the transactions of the next batch.
            at.occupy(Bench::Intake, now_us, intake_us);
        }
        let rollbacks = at.rollbacks;
        self.post_at(seat, end, Event::Done { work, rollbacks, order, info, is_build });
        worked_us
    }

    fn ordered(&mut self, seat: u16, work: Work, parent: Digest, before: Digest) -> SignedOrder {
        let order = Order {
            epoch: Epoch(0),
            view: work.view,
            number: work.number,
            parent,
            timestamp_ms: self.now_us / 1_000,
            transactions: self.machine.body(before),
        };
        SignedOrder::new(order, &self.domain, &self.keys[usize::from(seat)])
    }

    fn put_out(&mut self, seat: u16, output: Output) {
        match output {
            Output::Send(to, message) => {
                let all = 0..self.seats.len() as u16;
                let is_meant = |it: &u16| match to {
                    Receivers::Others => *it != seat,
                    Receivers::Seat(target) => *it == target,
                };
                let at_us = self.now_us + self.pace.one_way_us;
                for target in all.filter(is_meant) {
                    self.post_at(target, at_us, Event::Message(seat, message.clone()));
                }
            }
            Output::Commit(certificate) => {
                let Certificate { info, view, .. } = *certificate;
                let body = self.bodies.get(&info.digest()).copied().unwrap_or_default();
                let decision = Decision { info: info.clone(), body, view, at_us: self.now_us };
                self.decisions.entry(info.number).or_insert(decision);
                let (now_us, commit_us) = (self.now_us, self.pace.commit_us);
                let end = self.seats[usize::from(seat)].occupy(Bench::Commit, now_us, commit_us);
                self.post_at(seat, end, Event::Committed(info));
            }
            // No validator lies here.
            Output::Convict(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
