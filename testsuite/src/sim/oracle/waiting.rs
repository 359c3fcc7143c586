//! Nobody waits for a silent peer while another could serve, and nobody forgets what he has.

use anyhow::{Result, ensure};
use slipstream_sync::{Phase, protocol::Request};

use super::{
    super::{
        node::Asked,
        queue::Moment,
        server::{Habit, Keeps},
        world::{To, World},
    },
    ANCHOR,
};

/// An answer that takes so long is late by any measure of a peer that never answered.
const LATE: Moment = 5_000_000;
/// So long before a deadline somebody else must have been free to ask.
const FREE: Moment = 1_000_000;

impl World {
    /// A deadline has come: of a peer that never answers, the same was asked of somebody else long before, if somebody had nothing to do.
    pub(in super::super) fn check_hedged(&mut self, to: To, asked: Asked) -> Result<()> {
        let (now, instant) = (self.now, self.instant());
        let deadline = self.nodes[to.node].plan.sync.request_deadline_ms.get() * 1_000;
        let is_silent = self.servers.get(asked.place).is_some_and(|server| server.habit == Habit::Stalling);
        let has_all = self.servers[ANCHOR].keeps == Keeps::ALL;
        let is_there = self.is_connected(to.node, ANCHOR);
        let Some(first) = asked.range.filter(|_| is_silent && has_all && is_there && deadline >= LATE) else {
            return Ok(());
        };
        let anchor = self.servers[ANCHOR].id;
        let Some(up) = self.process(to) else { return Ok(()) };
        let is_asked = up.requests.values().any(|other| other.range == Some(first));
        let is_free = up.free_since.is_some_and(|since| since + FREE < now);
        let status = up.engine.status(instant);
        let serves = status.peers.iter().any(|peer| {
            peer.id == anchor && peer.pause_ms == 0 && peer.head.is_some_and(|head| head >= first)
        });
        ensure!(
            is_asked || !is_free || !serves,
            "liveness: node {} waits {deadline} us for batch {first} of a silent peer, and asks nobody else",
            to.node
        );
        Ok(())
    }

    /// A request that an engine wants to send: a restarted node goes on with the restore that it has, while it knows that the first
    /// server, whom it may ask, serves it.
    pub(in super::super) fn check_request(&mut self, to: To, request: &Request) -> Result<()> {
        // Headers are asked for beside the offer, and may leave first.
        let (Request::Offer { number, .. } | Request::Headers { last: number, .. }) = request else {
            return Ok(());
        };
        let (now, anchor) = (self.instant(), self.servers[ANCHOR].id);
        let Some(up) = self.process(to) else { return Ok(()) };
        // It is chosen once, for its rows or for a range delta to it; what happens to it then is another matter.
        if up.begun == Some(*number) {
            up.begun = None;
        }
        let status = up.engine.status(now);
        // A range delta does without the rows of a restore, and a survey is about no snapshot.
        if status.phase != Phase::Snapshot {
            return Ok(());
        }
        let Some(begun) = up.begun.take() else { return Ok(()) };
        let (head, offered) = &up.offered;
        let may_be_asked = status.peers.iter().any(|peer| {
            let is_known = peer.head.is_some_and(|found| found >= *head);
            peer.id == anchor && !peer.banned && peer.pause_ms == 0 && is_known
        });
        ensure!(
            !may_be_asked || !offered.contains(&begun),
            "liveness: node {} forgets its restore of batch {begun}, which is still served, for batch {number}",
            to.node
        );
        Ok(())
    }
}
