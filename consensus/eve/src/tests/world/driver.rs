//! The driver of a simulated validator: carries out what its core wants, and keeps on its disk what must survive.

use std::collections::btree_map::Entry;

use rand::Rng;
use slipstream_types::{BatchNumber, Certificate, Digest, Epoch, LedgerInfo};

use super::{Event, Node, World};
use crate::{
    Effect, Message, NoOutcome, Order, Outcome, Output, Receivers, SignedOrder, Work,
    planted::{Fault, lacks},
};

impl World {
    pub(super) fn deliver(&mut self, seat: u16, from: u16, message: Message) {
        let (domain, now) = (self.domain, self.now());
        let node = &mut self.nodes[usize::from(seat)];
        let core = node.core.as_mut().unwrap();
        if let Message::Order(order) = &message
            && core.wants(&order.order)
        {
            node.bodies.insert(order.order.digest(&domain));
        }
        core.handle_message(from, message, now);
    }

    /// Executes an order on the outcome before it; parallel execution may err.
    fn execute(&mut self, before: &LedgerInfo, order: &Order, sequential: bool) -> LedgerInfo {
        let wrong = !sequential && !self.is_calm() && self.random.random_bool(self.climate.divergence);
        // All wrong executions are wrong alike, which is the worst.
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
        self.oracle.executed(&info, before);
        info
    }

    fn before(&self, seat: u16, number: BatchNumber) -> Option<LedgerInfo> {
        let node = &self.nodes[usize::from(seat)];
        let before = number.before(1);
        let head = node.disk.chain.last().map_or(&self.genesis, |(info, _)| info);
        node.held.get(&before).or(Some(head)).filter(|info| info.number == before).cloned()
    }

    pub(super) fn work(&mut self, seat: u16, work: Work, order: Option<SignedOrder>, parent: Digest) {
        let Some(before) = self.before(seat, work.number) else { return self.overtaken(seat, work) };
        let (is_built, now) = (order.is_none(), self.now());
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
            node.core.as_mut().unwrap().handle_executed(work, Err(NoOutcome::Missing), now);
            return;
        }
        if order.order.timestamp_ms < before.timestamp_ms {
            let core = self.nodes[usize::from(seat)].core.as_mut().unwrap();
            core.handle_executed(work, Err(NoOutcome::Refused), now);
            return;
        }
        // The driver learns of a rollback when the work is done and on disk.
        let is_void = self.nodes[usize::from(seat)].core.as_ref().unwrap().execution.working != Some(work);
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
            true => core.handle_built(work, order, info, now),
            false => core.handle_executed(work, Ok(info), now),
        }
    }

    fn overtaken(&mut self, seat: u16, work: Work) {
        let now = self.now();
        let core = self.nodes[usize::from(seat)].core.as_mut().unwrap();
        core.handle_executed(work, Err(NoOutcome::Overtaken), now);
    }

    /// Carries out what a core wants.
    pub(super) fn pump(&mut self, seat: u16) {
        let index = usize::from(seat);
        loop {
            let Some(core) = &mut self.nodes[index].core else { return };
            let Some(effect) = core.poll_effect() else { break };
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
            }
        }
        self.post_timers(seat);
        let node = &mut self.nodes[index];
        if !node.flushing
            && let Some(flush) = node.core.as_mut().unwrap().poll_flush()
        {
            self.views = self.views.max(node.core.as_ref().unwrap().view());
            node.flushing = true;
            let after_us = self.random.random_range(100..4_000);
            self.post(seat, after_us, Event::Flushed(Box::new(flush)));
        }
    }

    /// Posts the timers that the core set since the last call, and forgets those that it cancelled.
    fn post_timers(&mut self, seat: u16) {
        let now = self.now();
        let node = &mut self.nodes[usize::from(seat)];
        let timers = node.core.as_ref().unwrap().timers().clone();
        node.timers.retain(|timer, (at, _)| timers.get(timer) == Some(at));
        for (timer, at) in timers.into_iter().rev() {
            let version = self.sequence;
            let node = &mut self.nodes[usize::from(seat)];
            if let Entry::Vacant(entry) = node.timers.entry(timer) {
                entry.insert((at, version));
                let after_us = (at - now).as_micros() as u64;
                self.post(seat, after_us, Event::Timer(timer, version));
            }
        }
    }

    pub(super) fn put_out(&mut self, seat: u16, output: Output) {
        match output {
            Output::Send(to, message) => {
                let targets: Vec<u16> = match to {
                    Receivers::Others => (0..self.nodes.len() as u16).filter(|it| *it != seat).collect(),
                    Receivers::Seat(target) => vec![target],
                };
                if !self.is_traitor(seat) {
                    self.oracle.hear(seat, &message, &self.set, &self.domain);
                }
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
            Output::Convict(_) if lacks(Fault::ForgetEvidence) => {}
            Output::Convict(evidence) => {
                let author = evidence.author(&self.set);
                assert!(self.is_traitor(author), "an honest validator is blamed: {evidence:?}");
                self.convicted.insert(author);
            }
        }
    }

    pub(super) fn commit(&mut self, seat: u16, certificate: Certificate) {
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
        let last = self.nodes[usize::from(seat)].disk.chain.last().map_or(&self.genesis, |(info, _)| info);
        self.oracle.appended(&info, last);
        let node = &mut self.nodes[usize::from(seat)];
        node.disk.chain.push((info.clone(), certificate));
        node.disk.outcomes.retain(|(_, it)| it.info.number > info.number);
        if self.stumble(seat) {
            return;
        }
        let now = self.now();
        let node = &mut self.nodes[usize::from(seat)];
        node.core.as_mut().unwrap().handle_committed(info.clone(), now);
        node.held.retain(|number, _| *number > info.number);
    }

    /// Fetches an outcome that another validator keeps.
    pub(super) fn fetch(&mut self, seat: u16, certificate: Certificate) {
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
        let now = self.now();
        let node = &mut self.nodes[usize::from(seat)];
        node.held.insert(number, certificate.info.clone());
        node.core.as_mut().unwrap().handle_fetched(number, now);
    }

    /// Commits certified batches of others if far behind; after some seconds at one batch, even if two behind. A
    /// validator that restarts holds only the certificate of its last decision, and those before as part of its chain.
    pub(super) fn sync(&mut self, seat: u16) {
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
}
