//! [`Promise`]: what the summary of a script's peer says, whatever the peer can answer.

use std::ops::RangeInclusive;

use slipstream_types::{BatchNumber, bounded::BoundedVec};

use super::chain::Chain;
use crate::protocol::{SnapshotOffer, Summary};

/// The content of a peer's summary.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Promise {
    head: u64,
    keeps_from: Option<u64>,
    bodies: bool,
    deltas: bool,
    states_from: Option<u64>,
    offers: Vec<SnapshotOffer>,
}

/// Keeps everything of these batches; the last one is its head.
pub(in crate::engine) fn serves(kept: RangeInclusive<u64>) -> Promise {
    Promise { keeps_from: Some(*kept.start()), ..pruned(*kept.end()) }
}

/// Keeps nothing of the batches up to its head.
pub(in crate::engine) fn pruned(head: u64) -> Promise {
    Promise { head, keeps_from: None, bodies: true, deltas: true, states_from: None, offers: Vec::new() }
}

impl Promise {
    /// Offers a snapshot with a claim of `rows` rows and `bytes` bytes.
    pub(in crate::engine) fn offering(mut self, number: u64, rows: u64, bytes: u64) -> Promise {
        self.offers.push(SnapshotOffer { number: BatchNumber::new(number), rows, bytes });
        self
    }

    /// Keeps bodies and no deltas.
    pub(in crate::engine) fn without_deltas(self) -> Promise {
        Promise { deltas: false, ..self }
    }

    /// Knows the states from a batch on.
    pub(in crate::engine) fn with_states(self, from: u64) -> Promise {
        Promise { states_from: Some(from), ..self }
    }

    /// Keeps deltas and no bodies.
    pub(in crate::engine) fn without_bodies(self) -> Promise {
        Promise { bodies: false, ..self }
    }

    pub(super) fn summary(&self, chain: &Chain) -> Summary {
        let store = &chain.store;
        let from = self.keeps_from.map(BatchNumber::new);
        Summary {
            genesis: store.header(BatchNumber::GENESIS).unwrap().unwrap().digest(),
            head: store.certificate(BatchNumber::new(self.head)).unwrap(),
            bodies_from: from.filter(|_| self.bodies),
            receipts_from: from,
            deltas_from: from.filter(|_| self.deltas),
            states_from: self.states_from.map(BatchNumber::new),
            snapshots: BoundedVec::new(self.offers.clone()).unwrap(),
            forks: store.chain().unwrap().schedule.told(),
        }
    }
}
