//! Asks for chunks that did not arrive.

use slipstream_network::Priority;
use slipstream_types::BatchNumber;
use tokio::time::{Duration, Instant};

use super::{
    Mesh,
    payload::{Payload, State},
};
use crate::message::{Message, PayloadId};

/// How long to wait when there is no peer to ask.
const PAUSE: Duration = Duration::from_millis(100);
/// The shortest time between two pulls of a payload: the answer to the first is on its way.
const PAUSE_MIN: Duration = Duration::from_millis(40);
/// The longest pause after the first pull: a slower peer is not waited for.
const PAUSE_MAX: Duration = Duration::from_millis(500);

impl Mesh {
    /// Asks peers for what is missing of a batch's payloads and did not arrive in time.
    pub(super) fn repair(&mut self, number: BatchNumber, now: Instant) {
        let Some(batch) = self.batches.get(&number) else { return };
        let is_due = |payload: &&Payload| {
            payload.state == State::Assembling && payload.due_at().is_some_and(|at| at <= now)
        };
        let due = batch.payloads.iter().filter(is_due);
        let due: Vec<_> = due.map(|payload| payload.id).collect();
        due.into_iter().for_each(|id| self.pull(id, now));
    }

    /// Sends chunks of lent payloads, once their leader had time to serve everybody.
    pub(super) fn start_lending(&mut self, number: BatchNumber, now: Instant) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        let is_due = |payload: &&mut Payload| payload.lend_at.is_some_and(|at| at <= now);
        let due: Vec<_> = batch
            .payloads
            .iter_mut()
            .filter(is_due)
            .map(|payload| {
                payload.lend_at = None;
                payload.id
            })
            .collect();
        due.into_iter().for_each(|id| self.begin_at_source(id));
    }

    /// Asks the peer that was asked least recently, of those that know the payload's plan. Among equals it prefers
    /// peers that claim to have the payload, then those that announced it, then the most useful.
    fn pull(&mut self, id: PayloadId, now: Instant) {
        let Some(batch) = self.places.get(&id).and_then(|number| self.batches.get_mut(number)) else {
            return;
        };
        let told = &batch.told;
        let Some(payload) = batch.payloads.iter_mut().find(|payload| payload.id == id) else { return };
        let known = told.iter().filter(|(_, told)| told.plans.contains(&id)).filter_map(|(peer, _)| {
            let neighbour = self.peers.get(peer).filter(|neighbour| !neighbour.is_muted(now))?;
            let side = payload.sides.get(peer);
            let (has, tells) = side.map_or((false, false), |side| (side.has, side.tells));
            Some(((has, tells), side.and_then(|side| side.asked_at), neighbour, *peer))
        });
        let best = known.max_by(|(has, asked, it, _), (other_has, other_asked, other, _)| {
            // Peers that were never asked come first, then those asked long ago. So a peer that claims to have the payload and keeps it
            // back is not asked over and over.
            let by_ask = other_asked.cmp(asked);
            by_ask.then(has.cmp(other_has)).then(it.score.total_cmp(&other.score))
        });
        let Some((_, _, neighbour, peer)) = best else {
            payload.repair_at = now + PAUSE;
            return;
        };
        let pause = neighbour.latency().clamp(PAUSE_MIN, PAUSE_MAX) * (1 << payload.asked.min(1));
        payload.repair_at = now + pause;
        payload.asked += 1;
        let held = payload.codec.held();
        payload.side(peer).asked_at = Some(now);
        self.status.pulls += 1;
        self.send(peer, &Message::Lack { id, held }, Priority::First);
    }
}
