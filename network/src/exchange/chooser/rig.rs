//! A test rig for the chooser: a world of peers that answer or not, in virtual time.

use std::collections::{BTreeMap, BTreeSet};

use slipstream_types::PublicKey;

use super::*;
use crate::exchange::Reach;

/// Start time of every test.
pub(super) const START_MS: u64 = 1_700_000_000_000;
/// Time until an unanswered attempt is noticed.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn id(n: u32) -> PeerId {
    let mut key = [3; 32];
    key[..4].copy_from_slice(&n.to_be_bytes());
    PublicKey(key)
}

pub(super) fn at(ip: [u8; 4]) -> SocketAddr {
    SocketAddr::from((ip, 7400))
}

/// How a peer at an address behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    /// Takes connections.
    Open,
    /// Ends each connection at once.
    Full,
    /// Has another key.
    Stranger,
}

/// The chooser in its world. Peers outside the world stay silent.
pub(super) struct Rig {
    pub(super) chooser: Chooser,
    pub(super) world: BTreeMap<SocketAddr, Manner>,
    pub(super) neighbours: Vec<Neighbour>,
    /// Peers that are useless.
    pub(super) idle: BTreeSet<PeerId>,
    /// All actions with their times.
    pub(super) done: Vec<(Duration, Action)>,
    /// Attempts that get no answer, and when that is noticed.
    vain: Vec<(Instant, PeerAddress)>,
    start: Instant,
    now: Instant,
}

impl Rig {
    pub(super) fn new(outbound: usize) -> Rig {
        Rig::with(
            ChooserRules { outbound, configured: BTreeSet::from([id(0)]), advertised: Vec::new() },
            None,
        )
    }

    pub(super) fn with(rules: ChooserRules, saved: Option<&[u8]>) -> Rig {
        let (start, local, reach) = (Instant::now(), id(u32::MAX), Reach::of(&[]));
        let book = match saved {
            Some(saved) => AddressBook::restore(saved, &Digest::ZERO, local, reach, START_MS).unwrap(),
            None => AddressBook::new([7; 32], local, reach),
        };
        let now = Moment { instant: start, ms: START_MS };
        let mut rig = Rig {
            chooser: Chooser::new(rules, book, Draws::new([8; 32]), now),
            world: BTreeMap::new(),
            neighbours: Vec::new(),
            idle: BTreeSet::new(),
            done: Vec::new(),
            vain: Vec::new(),
            start,
            now: start,
        };
        // The configured peer is always connected, and not by choice.
        rig.connect(id(0), at([9, 9, 9, 9]), true);
        rig
    }

    pub(super) fn now(&self) -> Moment {
        let passed = self.now.saturating_duration_since(self.start);
        Moment { instant: self.now, ms: START_MS + passed.as_millis() as u64 }
    }

    /// Reports peers from a peer at `teller`.
    pub(super) fn tell(&mut self, teller: [u8; 4], peers: impl IntoIterator<Item = (u32, [u8; 4])>) {
        let now = self.now();
        let record = |(n, ip)| PeerRecord::made_up(id(n), &[at(ip)], now.ms);
        self.chooser.hear(peers.into_iter().map(record), teller.into(), now);
    }

    pub(super) fn connect(&mut self, id: PeerId, address: SocketAddr, is_dialled: bool) {
        self.neighbours.push(Neighbour { id, address, is_dialled, since: self.now, used: None, served: 0.0 });
    }

    pub(super) fn disconnect(&mut self, id: PeerId) {
        self.neighbours.retain(|peer| peer.id != id);
    }

    /// Makes one step, with everything that follows at once.
    pub(super) fn step(&mut self) {
        for peer in self.neighbours.iter_mut().filter(|peer| !self.idle.contains(&peer.id)) {
            peer.used = Some(self.now);
        }
        let now = self.now();
        let (late, vain): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.vain).into_iter().partition(|(at, _)| *at <= self.now);
        self.vain = vain;
        for (_, peer) in late {
            self.chooser.dialled(&peer, DialOutcome::Unreachable, now);
        }
        let actions = self.chooser.step(&self.neighbours, now);
        assert!(self.chooser.wake_at() > self.now, "it spins");
        let passed = self.now.saturating_duration_since(self.start);
        for action in actions {
            self.done.push((passed, action));
            match action {
                Action::Dial(peer) => match self.world.get(&peer.address) {
                    Some(Manner::Open) => self.connect(peer.id, peer.address, true),
                    Some(Manner::Full) => self.chooser.dialled(&peer, DialOutcome::Ended, now),
                    Some(Manner::Stranger) => self.chooser.dialled(&peer, DialOutcome::WrongKey, now),
                    None => self.vain.push((self.now + PATIENCE, peer)),
                },
                Action::Ask(peer) => self.chooser.asked(&peer, AskOutcome::Answered, now),
                Action::Drop(peer) => self.disconnect(peer),
            }
        }
    }

    /// Lets time pass, step by step.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
            let noticed = self.vain.iter().map(|(at, _)| *at).min().unwrap_or(end);
            let next = self.chooser.wake_at().min(noticed).min(self.now + Duration::from_secs(1));
            self.now = next.max(self.now + Duration::from_millis(1)).min(end);
        }
    }

    /// The peers that the chooser chose and is connected with.
    pub(super) fn chosen(&self) -> Vec<PeerId> {
        self.chooser.status().chosen
    }

    /// The peers that the chooser dialled since index `from` of `done`.
    pub(super) fn dialled(&self, from: usize) -> Vec<PeerAddress> {
        let dialled = self.done[from..].iter().filter_map(|(_, action)| match action {
            Action::Dial(peer) => Some(*peer),
            Action::Ask(_) | Action::Drop(_) => None,
        });
        dialled.collect()
    }

    pub(super) fn count(&self, event: ExchangeEvent) -> u64 {
        let events = self.chooser.status().events;
        events.into_iter().find(|(it, _)| *it == event).map_or(0, |(_, count)| count)
    }
}
