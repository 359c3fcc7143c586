//! Checks that a node asks another peer instead of waiting for a silent one, and that it keeps its restore.

use anyhow::{Result, ensure};
use slipstream_sync::{Phase, engine::RequestId, protocol::Request};

use super::{
    super::{
        node::RequestSubject,
        queue::Moment,
        server::{Habit, Keeps},
        world::{Event, Place, To, World},
    },
    ANCHOR,
};

/// The longest that a node may wait for a silent peer alone, if the request's deadline is later.
const HAND_OVER: Moment = 6_000_000;
/// How long another peer must have been free to ask by then.
const FREE: Moment = 1_000_000;

impl World {
    /// Schedules a check of a request to a silent peer.
    pub(in super::super) fn expect_hand_over(&mut self, to: To, id: RequestId, place: Place) {
        let deadline = self.nodes[to.node].plan.sync.request_deadline_ms.get() * 1_000;
        let is_silent = self.servers.get(place).is_some_and(|server| server.habit == Habit::Stalling);
        if is_silent && deadline > HAND_OVER + FREE {
            self.queue.push(self.now + HAND_OVER, Event::Waited { to, id });
        }
    }

    /// Checks that a silent peer's request went to another peer by now, if the first server has been idle for a while.
    pub(in super::super) fn check_handed_over(&mut self, to: To, id: RequestId) -> Result<()> {
        let (now, instant, anchor) = (self.now, self.instant(), self.servers[ANCHOR].id);
        let keeps_all = self.servers[ANCHOR].keeps == Keeps::ALL;
        let is_there = self.is_connected(to.node, ANCHOR);
        let Some(up) = self.process(to) else { return Ok(()) };
        let Some(asked) = up.requests.get(&id).copied() else { return Ok(()) };
        let Some(thing) = asked.thing else { return Ok(()) };
        let is_asked = up.requests.iter().any(|(other, it)| *other != id && it.thing == Some(thing));
        // Another peer's answer is being checked, or was wrong.
        let came = up.came.get(&thing).is_some_and(|at| *at >= asked.at);
        let is_free = up.free_since.is_some_and(|since| since + FREE < now);
        let (head, offered) = &up.offered;
        let serves = match thing {
            RequestSubject::Range(number) | RequestSubject::Headers(number) => keeps_all && number <= *head,
            RequestSubject::Offer(number)
            | RequestSubject::Rows(number, _)
            | RequestSubject::Codes(number) => keeps_all && offered.contains(&number),
        };
        if is_asked || came || !is_free || !serves || !is_there {
            return Ok(());
        }
        let status = up.engine.status(instant);
        let may_be_asked = status.peers.iter().any(|peer| {
            peer.id == anchor && peer.pause_ms == 0 && peer.head.is_some_and(|found| found >= *head)
        });
        ensure!(
            !may_be_asked,
            "liveness: node {} waits {HAND_OVER} us for {thing:?} from a silent peer, and asks no other peer",
            to.node
        );
        Ok(())
    }

    /// Checks a request that an engine wants to send. A restarted node must continue its restore while it knows that
    /// the first server serves it and may be asked.
    pub(in super::super) fn check_request(&mut self, to: To, request: &Request) -> Result<()> {
        // Headers are requested beside the offer, and may leave first.
        let (Request::Offer { number, .. } | Request::Headers { last: number, .. }) = request else {
            return Ok(());
        };
        let (now, anchor) = (self.instant(), self.servers[ANCHOR].id);
        let Some(up) = self.process(to) else { return Ok(()) };
        // The snapshot is chosen again once, for its rows or as the end of a range delta; later requests are not
        // checked.
        if up.begun == Some(*number) {
            up.begun = None;
        }
        let status = up.engine.status(now);
        // Only this phase fetches a restore's rows: range deltas and surveys do not need them.
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
            "liveness: node {} abandons its restore of batch {begun}, which is still served, for batch {number}",
            to.node
        );
        Ok(())
    }
}
