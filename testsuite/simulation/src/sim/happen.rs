//! A world's events, each delivered to its node.

use anyhow::Result;
use rand::Rng;

use slipstream_network::PeerId;
use slipstream_types::PublicKey;

use super::{
    chain::{Chain, epoch},
    explain::Kind,
    fault::Fault,
    server::Habit,
    world::{Event, FLOOD_INTERVAL, Place, RENAME_INTERVAL, To, World},
};

/// Announcements of a flood.
const FLOOD_MESSAGES: usize = 12;

impl World {
    pub(super) fn happen(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Grow => self.grow()?,
            Event::Wake(to) => self.with_engine(to, |engine, now| {
                engine.handle_timeout(now);
                Ok(())
            })?,
            Event::Request { to, id, peer, payload, deadline_at } => {
                self.requested(to, id, peer, &payload, deadline_at)?;
            }
            Event::Answer { to, id, peer, answer, is_lie } => self.answered(to, id, peer, answer, is_lie)?,
            Event::Broadcast { to, from, payload } => self.heard(to, from, payload)?,
            Event::Work { to, id, work, took } => self.worked(to, id, *work, took)?,
            Event::Head { to, number } => self.with_engine(to, |engine, now| {
                engine.handle_head(number, now);
                Ok(())
            })?,
            Event::Save(to) => self.save(to)?,
            Event::Prune(to) => self.prune(to)?,
            Event::Crash(node) => self.crash(node, Fault::RandomCrash)?,
            Event::Cut(to) => self.cut_power(to)?,
            Event::Waited { to, id } => self.check_handed_over(to, id)?,
            Event::Rename { server, key } => self.rename(server, key)?,
            Event::Flood(server) => self.flood(server)?,
            Event::Start(node) => self.start(node)?,
            Event::Flap { server, is_cut } => self.flap(server, is_cut)?,
            Event::Partition(begins) => self.part(begins)?,
            Event::Peers => self.refresh_peers()?,
            Event::Quiet => self.quiet()?,
        }
        Ok(())
    }

    fn grow(&mut self) -> Result<()> {
        self.certified = self.certified.next();
        self.trace.note(self.now, format_args!("batch {} is certified", self.certified), &[]);
        if self.nodes.iter().any(|node| self.certified.since(node.seen) > 1) {
            self.fired.insert(Fault::MovingTarget);
        }
        if epoch(self.certified) != epoch(self.certified.next()) {
            self.fired.insert(Fault::NewValidators);
        }
        if self.certified < self.plan.end {
            self.queue.push(self.now + self.plan.batch_interval, Event::Grow);
        }
        self.announce()
    }

    fn flap(&mut self, server: usize, is_cut: bool) -> Result<()> {
        let is_cut = is_cut && !self.is_quiet;
        self.cut[server] = is_cut;
        self.trace.mark(self.now, Kind::World, format_args!("server {server} is cut off: {is_cut}"));
        if is_cut {
            self.fired.insert(Fault::Flapping);
        }
        if !self.is_quiet {
            let pause = self.rng.random_range(self.plan.flap_interval / 4..2 * self.plan.flap_interval);
            self.queue.push(self.now + pause, Event::Flap { server, is_cut: !is_cut });
        }
        self.refresh_peers()
    }

    fn part(&mut self, begins: bool) -> Result<()> {
        self.trace.mark(self.now, Kind::World, format_args!("the network is split: {begins}"));
        if begins {
            let places = self.servers.len() + self.nodes.len();
            self.sides = Some((0..places).map(|_| self.rng.random()).collect());
            self.fired.insert(Fault::Partition);
        } else {
            self.sides = None;
        }
        self.refresh_peers()
    }

    fn quiet(&mut self) -> Result<()> {
        self.trace.mark(self.now, Kind::World, format_args!("the last fault is over"));
        self.is_quiet = true;
        self.sides = None;
        for (cut, server) in self.cut.iter_mut().zip(&self.servers) {
            *cut &= server.habit != Habit::Flapping;
        }
        self.refresh_peers()
    }

    /// Passes each node's current connections to it.
    pub(super) fn refresh_peers(&mut self) -> Result<()> {
        for node in 0..self.nodes.len() {
            self.refresh_peers_of(node)?;
        }
        Ok(())
    }

    /// A peer ends its connections and comes back as a stranger.
    fn rename(&mut self, server: usize, key: PeerId) -> Result<()> {
        // Two nodes may have banned the same key.
        if self.servers[server].id != key {
            return Ok(());
        }
        for node in 0..self.nodes.len() {
            self.lose_requests(To { node, life: self.nodes[node].life }, server);
        }
        let count = self.servers[server].former.len() + 1;
        let mut key = [server as u8 + 1; 32];
        key[..8].copy_from_slice(&(count as u64).to_be_bytes());
        let former = std::mem::replace(&mut self.servers[server].id, PublicKey(key));
        self.servers[server].former.push(former);
        self.fired.insert(Fault::FreshKey);
        self.trace.mark(
            self.now,
            Kind::World,
            format_args!("server {server} takes a new key (change {count})"),
        );
        if self.servers[server].habit == Habit::Stalling {
            let at = self.now + RENAME_INTERVAL + self.rng.random_range(0..RENAME_INTERVAL);
            self.queue.push(at, Event::Rename { server, key: self.servers[server].id });
        }
        self.refresh_peers()
    }

    /// Sends announcements that cost their receivers, and help no one.
    fn flood(&mut self, server: usize) -> Result<()> {
        self.fired.insert(Fault::Flood);
        for _ in 0..FLOOD_MESSAGES {
            let payload = super::lie::junk(self.certified, &mut self.rng)?;
            for node in 0..self.nodes.len() {
                self.broadcast(server, node, payload.clone());
            }
        }
        self.queue.push(self.now + FLOOD_INTERVAL, Event::Flood(server));
        Ok(())
    }

    /// Announces an honest server's new head; a liar may announce something false.
    fn announce(&mut self) -> Result<()> {
        let chain = Chain::canonical();
        // Only nodes that know that an epoch is over can detect its expired keys.
        let epochs = self.nodes.iter().filter_map(|node| node.up.as_ref()).map(|up| up.store.epoch());
        let known = epochs.min().unwrap_or_default();
        for server in 0..self.servers.len() {
            let number = self.servers[server].head(self.certified);
            let Some(made) = chain.batch(number) else { continue };
            let payload = match &self.servers[server].habit {
                Habit::Honest | Habit::Flapping => made.announcement.clone(),
                Habit::Lying(_) | Habit::Colluding { .. } if self.rng.random_ratio(1, 4) => {
                    self.fired.insert(Fault::FalseAnnouncement);
                    let (payload, is_expired) = super::lie::announcement(number, known, &mut self.rng)?;
                    self.fired.extend(is_expired.then_some(Fault::ExpiredKeys));
                    let head = format_args!("server {server} announces a false batch after {number}");
                    self.trace.tell(self.now, Kind::Lie, head);
                    payload
                }
                _ => continue,
            };
            for node in 0..self.nodes.len() {
                self.broadcast(server, node, payload.clone());
            }
        }
        Ok(())
    }

    /// Sends an announcement, if the link carries it.
    pub(super) fn broadcast(&mut self, from: Place, node: usize, payload: Vec<u8>) {
        if self.nodes[node].up.is_none() || !self.is_connected(node, from) {
            return;
        }
        let to = To { node, life: self.nodes[node].life };
        if let Some(at) = self.carry(from, self.place_of(node), payload.len()) {
            self.queue.push(at, Event::Broadcast { to, from, payload });
        }
    }
}
