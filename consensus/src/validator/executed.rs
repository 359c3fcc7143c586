//! [`Executed`]: a batch that was executed or fetched, and is not committed.

use std::sync::Arc;

use parking_lot::Mutex;
use slipstream_eve::SignedOrder;
use slipstream_executor::{Layer, SealedBatch};
use slipstream_storage::{SpeculatedState, Speculation};
use slipstream_types::{B256, BatchNumber, Delta, Digest, LedgerInfo};

use super::{message::OutcomeParts, tip::Tip};

/// An outcome, as stored and sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DurableOutcome {
    /// The order that was executed, or `None` for a fetched outcome.
    pub(super) order: Option<SignedOrder>,
    /// The sealed batch.
    pub(super) sealed: SealedBatch,
    /// The ledger info that validators sign for the batch.
    pub(super) info: LedgerInfo,
    /// Digest of the ledger info.
    pub(super) token: Digest,
}

impl DurableOutcome {
    pub(super) fn new(order: Option<SignedOrder>, sealed: SealedBatch, info: LedgerInfo) -> DurableOutcome {
        DurableOutcome { order, sealed, token: info.digest(), info }
    }

    pub(super) fn number(&self) -> BatchNumber {
        self.info.number
    }

    /// The outcome alone; its hints are left out, because they are advice.
    pub(super) fn outcome(&self) -> OutcomeParts {
        let sealed = &self.sealed;
        OutcomeParts {
            header: sealed.header.clone(),
            body: sealed.body.clone(),
            receipts: sealed.receipts.clone(),
            delta: sealed.delta.clone(),
        }
    }
}

/// A batch with everything that the next one's execution and its own commit need.
pub(super) struct Executed {
    pub(super) parts: Arc<DurableOutcome>,
    pub(super) tip: Tip,
    pub(super) delta: Delta,
    /// Hashes of its transactions.
    pub(super) hashes: Vec<B256>,
    /// The rows that it read and wrote.
    pub(super) layer: Arc<Layer>,
    /// The state after the batch.
    pub(super) state: SpeculatedState,
    /// The speculation, until its commit begins.
    pub(super) speculation: Mutex<Option<Speculation>>,
    /// For an own batch: candidates that turned out not to be executable.
    pub(super) rejected: Vec<B256>,
}

impl Executed {
    pub(super) fn number(&self) -> BatchNumber {
        self.tip.number()
    }

    pub(super) fn token(&self) -> Digest {
        self.parts.token
    }
}
