//! Sends the payload as one chunk.

use std::sync::Arc;

use rand::RngCore;
use slipstream_types::PublicKey;

use crate::{
    codec::{Accepted, Check, CheckResult, Checked, Codec, Held, Verdict, Work, note_holders},
    limits::CANDIDATES_MAX,
    peers::Peers,
    plan::Plan,
    whole::WholePayload,
};

/// One payload that travels whole.
#[derive(Debug)]
pub(crate) struct Gossip {
    whole: WholePayload,
    /// Whether each peer has the payload.
    peers: Peers<bool>,
}

impl Gossip {
    /// Makes the codec of a payload's source.
    pub(crate) fn encode(plan: Plan, payload: Arc<[u8]>) -> Self {
        Self { whole: WholePayload::known(plan, payload), peers: Peers::new() }
    }

    /// Makes the codec of a receiver.
    pub(crate) fn open(plan: Plan) -> Self {
        Self { whole: WholePayload::expected(plan, CANDIDATES_MAX), peers: Peers::new() }
    }

    fn note(&mut self, peer: &PublicKey, has_it: bool) {
        if let Some(has) = self.peers.of(peer, false) {
            *has = has_it;
        }
    }
}

impl Codec for Gossip {
    fn plan(&self) -> &Plan {
        self.whole.plan()
    }

    fn accept(&mut self, from: PublicKey, chunk: &[u8]) -> Accepted {
        let accepted = self.whole.offer(Some(from), chunk, || chunk.into());
        if accepted == Accepted::Duplicate {
            self.note(&from, true);
        }
        accepted
    }

    fn supply(&mut self, from: Option<PublicKey>, payload: Arc<[u8]>) -> Accepted {
        self.whole.offer(from, &payload, || payload.clone())
    }

    fn check(&mut self, _: &mut dyn RngCore) -> Option<Check> {
        self.work()?;
        self.whole.compare()
    }

    fn work(&self) -> Option<Work> {
        (!self.whole.is_checking() && self.whole.has_candidate()).then_some(Work::Compare)
    }

    fn checked(&mut self, checked: Checked) -> Vec<Verdict> {
        let Some(CheckResult::Compared(is_right)) = self.whole.redeem(checked) else { return Vec::new() };
        let verdicts = self.whole.compared(is_right);
        note_holders(self, &verdicts);
        verdicts
    }

    fn next_chunk(&mut self, to: &PublicKey, _: &mut dyn RngCore) -> Option<Vec<u8>> {
        let payload = self.whole.payload()?;
        let has = self.peers.of(to, false)?;
        (!std::mem::replace(has, true)).then(|| payload.to_vec())
    }

    fn held(&self) -> Held {
        if self.whole.payload().is_some() { Held::Whole } else { Held::Chunks(0) }
    }

    fn peer_holds(&mut self, peer: &PublicKey, held: &Held, lost: bool) {
        match held {
            Held::Whole => self.note(peer, true),
            Held::Chunks(_) | Held::Shards(_) if lost => self.note(peer, false),
            Held::Chunks(_) | Held::Shards(_) => {}
        }
    }

    fn forget(&mut self, peer: &PublicKey) {
        self.peers.forget(peer);
        self.whole.forget(peer);
    }

    fn chunk_bytes(&self) -> usize {
        self.whole.bytes()
    }

    fn chunks_needed(&self) -> usize {
        1
    }

    fn chunks_held(&self) -> usize {
        usize::from(self.whole.payload().is_some())
    }

    fn chunks_waiting(&self) -> usize {
        self.whole.candidates()
    }

    fn payload(&self) -> Option<Arc<[u8]>> {
        self.whole.payload().cloned()
    }

    fn held_bytes(&self) -> usize {
        self.whole.held_bytes()
    }

    fn held_bytes_max(&self) -> usize {
        self.whole.held_bytes_max()
    }
}
