//! The nodes' thoughts (their work and its reason), and their state at the end of a run.

use std::collections::BTreeMap;

use slipstream_sync::{PeerStatus, SyncStatus};

use super::{EndState, Kind};
use crate::sim::{
    oracle::ANCHOR,
    queue::Moment,
    server::{Habit, Server},
    world::World,
};

/// Each node's last thought, while a recording runs.
#[derive(Debug, Default)]
pub(in crate::sim) struct Thoughts(BTreeMap<usize, Thought>);

#[derive(Debug)]
struct Thought {
    /// The node's work and its reason, without the numbers, which change with every batch.
    shape: String,
    head: u64,
    /// When the node reached this head.
    since: Moment,
}

impl World {
    /// Returns the participants, each with its real habit.
    pub(super) fn cast(&self) -> Vec<String> {
        let servers = self.servers.iter().enumerate().map(|(place, server)| describe(place, server));
        let nodes = self.nodes.iter().enumerate().map(|(index, node)| {
            let plan = &node.plan;
            let misled = if plan.is_misled { ", with a waypoint of another ledger" } else { "" };
            let crashes = plan.crashes.len() + plan.points.len();
            format!(
                "node {index} (peer {}): begins at batch {}, mode {:?}, {:.1} times as slow as a good machine, {crashes} crashes planned{misled}",
                self.place_of(index),
                plan.head,
                plan.sync.mode,
                plan.slowness
            )
        });
        servers.chain(nodes).collect()
    }

    /// Records each node that changed its work or its reason.
    pub(in crate::sim) fn think(&mut self) {
        if !self.trace.is_recorded() {
            return;
        }
        let now = self.instant();
        for index in 0..self.nodes.len() {
            let Some(up) = &self.nodes[index].up else { continue };
            let status = up.engine.status(now);
            let (text, head) = (thought(&status), status.head.get());
            let shape: String = text.chars().filter(|it| !it.is_ascii_digit()).collect();
            let last = self.thoughts.0.get(&index);
            let since = last.filter(|last| last.head == head).map_or(self.now, |last| last.since);
            if last.is_none_or(|last| last.shape != shape) {
                let what = format!("node {index} at batch {head} of {}: {text}", status.target);
                self.trace.tell(self.now, Kind::Thought, format_args!("{what}"));
            }
            self.thoughts.0.insert(index, Thought { shape, head, since });
        }
    }

    /// Returns each node's current state.
    pub(in crate::sim) fn stands(&self) -> Vec<EndState> {
        let now = self.instant();
        let stand = |index: usize| {
            let Some(up) = &self.nodes[index].up else {
                let why = if self.nodes[index].has_refused { "refused to continue" } else { "is down" };
                return EndState {
                    what: format!("node {index} {why}"),
                    facts: Vec::new(),
                    peers: Vec::new(),
                };
            };
            let status = up.engine.status(now);
            let since = self.thoughts.0.get(&index).map_or(0, |thought| thought.since);
            let mut facts = vec![format!(
                "head {} of {} certified, unchanged for {:.3} s; its target is batch {}",
                status.head,
                self.certified,
                (self.now - since) as f64 / 1e6,
                status.target
            )];
            facts.push(format!("{} requests in flight", status.requests));
            facts.extend(status.waiting.as_ref().map(|waiting| match waiting.retry_ms {
                Some(retry_ms) => format!("waits: {}; tries again in {retry_ms} ms", waiting.reason),
                None => format!("waits: {}; no timeout ends this", waiting.reason),
            }));
            facts.extend(status.snapshot.as_ref().map(|snapshot| {
                format!("restore of batch {}: {:.1} % of the paths", snapshot.number, snapshot.share * 100.0)
            }));
            facts.extend(status.alarm.as_ref().map(|alarm| format!("alarm: {alarm}")));
            let peers = status.peers.iter().map(|peer| self.seen(peer)).collect();
            EndState { what: format!("node {index}: {}", thought(&status)), facts, peers }
        };
        (0..self.nodes.len()).map(stand).collect()
    }

    /// Describes a peer as a node sees it, with its real habit.
    fn seen(&self, peer: &PeerStatus) -> String {
        let place = self.place(&peer.id);
        let who = match place.as_ref().map(|place| (*place, self.servers.get(*place))) {
            Ok((place, Some(server))) => format!("server {place} ({})", habit(&server.habit)),
            Ok((place, None)) => format!("node {}", place - self.servers.len()),
            Err(_) => format!("peer {}", peer.id.short()),
        };
        let state = match (peer.banned, peer.pause_ms) {
            (true, _) => "banned".to_owned(),
            (false, 0) => format!("score {}", peer.score),
            (false, pause_ms) => format!("score {}, paused for {pause_ms} ms", peer.score),
        };
        let head = peer.head.map_or_else(|| "no head".to_owned(), |head| format!("head {head}"));
        let last = peer.last_reason.as_ref().map(|reason| format!("; last failure: {reason}"));
        let last = last.unwrap_or_default();
        format!(
            "{who}: {state}, {head}, {} bytes verified, {} failures{last}",
            peer.verified_bytes, peer.failures
        )
    }
}

/// Describes a node's work and its reason.
fn thought(status: &SyncStatus) -> String {
    let waiting = status.waiting.as_ref().map(|waiting| format!("; waits: {}", waiting.reason));
    format!("{}, {}{}", status.phase, status.reason, waiting.unwrap_or_default())
}

fn describe(place: usize, server: &Server) -> String {
    let mut text = format!("server {place}: {}", habit(&server.habit));
    if place == ANCHOR {
        text += "; always available, and keeps everything that nodes need";
    }
    if server.lag > 0 {
        text += &format!("; {} batches behind", server.lag);
    }
    if server.renames {
        text += "; returns under other keys";
    }
    text
}

/// Describes a server's habit, in the words of docs/simulation.md.
fn habit(habit: &Habit) -> String {
    match habit {
        Habit::Honest => "honest".to_owned(),
        Habit::Flapping => "honest, but its connections come and go".to_owned(),
        Habit::Lying(lies) => {
            let lies: Vec<_> = lies.iter().map(|lie| lie.name()).collect();
            format!("lies: {}", lies.join(", "))
        }
        Habit::Stalling => "answers only requests for summaries".to_owned(),
        Habit::Dripping => "answers just before the deadline".to_owned(),
        Habit::Colluding { summaries: true } => "shows the forged ledger, in its summaries too".to_owned(),
        Habit::Colluding { summaries: false } => "shows the forged ledger under honest summaries".to_owned(),
        Habit::Pretending => "offers snapshots that it does not send".to_owned(),
        Habit::Trickling => "sends chunks just often enough to keep a restore alive".to_owned(),
        Habit::Busy => "is busy for everything except summaries".to_owned(),
        Habit::Flooding => "honest, but announces endlessly".to_owned(),
    }
}
