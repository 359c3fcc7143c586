//! Checks that the chain makes progress from a state, once messages arrive and faults end.
//!
//! All messages in flight are lost. The liar is silent. From then on every message arrives at once and in order, and
//! timers fire on time. That is one fair schedule, run from many states.

use std::collections::{BTreeMap, VecDeque};

use slipstream_eve::{Message, Receivers, Timer};

use crate::{
    constants::Constants,
    node::{Node, NodeOutput},
};

/// Virtual time, in milliseconds, within which all honest validators must commit a batch that none of them had.
const PATIENCE_MS: u64 = 60_000;
/// Maximum number of messages that may be taken within a run.
const MESSAGES_MAX: u64 = 5_000;

struct LivenessRun<'a> {
    constants: &'a Constants,
    nodes: Vec<Node>,
    now_ms: u64,
    /// When each running timer fires.
    ends: BTreeMap<(usize, Timer), u64>,
    queue: VecDeque<(usize, u16, Message)>,
}

/// Runs until every node has committed a batch that none had. Returns the milliseconds of virtual time that this took,
/// or `None` if the run ends without that.
pub(crate) fn go_on(constants: &Constants, nodes: Vec<Node>) -> Option<u64> {
    constants.plant();
    let goal = nodes.iter().map(Node::head).max()? + 1;
    let mut life = LivenessRun { constants, nodes, now_ms: 0, ends: BTreeMap::new(), queue: VecDeque::new() };
    for index in 0..life.nodes.len() {
        let before = BTreeMap::new();
        let output = life.nodes[index].resume(constants, goal);
        life.heed(index, &before, output);
    }
    let mut messages = 0;
    while life.nodes.iter().any(|node| node.head() < goal) {
        if let Some((index, from, message)) = life.queue.pop_front() {
            messages += 1;
            if messages > MESSAGES_MAX {
                return None;
            }
            let before = life.nodes[index].timers(constants);
            let output = life.nodes[index].take(constants, from, message, None);
            life.heed(index, &before, output);
        } else {
            life.wait()?;
        }
    }
    Some(life.now_ms)
}

impl LivenessRun<'_> {
    /// Lets time pass until the next timer fires.
    fn wait(&mut self) -> Option<()> {
        let (&(index, timer), &end_ms) = self.ends.iter().min_by_key(|(_, end_ms)| **end_ms)?;
        self.now_ms = end_ms;
        self.ends.remove(&(index, timer));
        let mut before = self.nodes[index].timers(self.constants);
        before.remove(&timer);
        let output = self.nodes[index].tick(self.constants, timer, None);
        self.heed(index, &before, output);
        (self.now_ms <= PATIENCE_MS).then_some(())
    }

    /// Sends what was said, and sets the timers.
    fn heed(&mut self, index: usize, before: &BTreeMap<Timer, u64>, output: NodeOutput) {
        let node = &self.nodes[index];
        let (from, timers) = (node.seat, node.timers(self.constants));
        self.ends.retain(|(it, timer), _| *it != index || timers.contains_key(timer));
        for (timer, after_ms) in &timers {
            if !before.contains_key(timer) || !self.ends.contains_key(&(index, *timer)) {
                self.ends.insert((index, *timer), self.now_ms + after_ms);
            }
        }
        for (to, message) in output.said {
            let is_to = |node: &Node| match to {
                Receivers::Others => node.seat != from,
                Receivers::Seat(seat) => node.seat == seat,
            };
            let targets = (0..self.nodes.len()).filter(|it| is_to(&self.nodes[*it]));
            let sent: Vec<_> = targets.map(|it| (it, from, message.clone())).collect();
            self.queue.extend(sent);
        }
    }
}
