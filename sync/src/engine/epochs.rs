//! [`EpochAnswers`]: how the node learns the validators of later epochs, certificate by certificate.
//!
//! ```text
//!  Epochs answer ─▶ EpochAnswers ─ one at a time ─▶ Worker: order, known ends by digest, signatures ─▶ Trust ─▶ kept in the store
//!  certificate of a summary, an announcement, a range, an offer ─ checked there ──────────────────────▶
//! ```
//!
//! An answer has up to 64 certificates of up to 128 signatures each. Its check takes some tenths of a second, so it
//! runs beside the engine. The next answer is checked against all that the one before it taught: an end that several
//! peers send costs its signatures once.

use std::{collections::VecDeque, sync::Arc};

use slipstream_network::PeerId;
use slipstream_types::{Certificate, Epoch};
use tokio::time::Instant;

use super::{
    Engine,
    jobs::{CheckEpochs, StoreEpochs},
};
use crate::{
    error::Fault,
    work::{Job, ProvedEnds},
};

/// Names an answer about the ends of epochs, for use in reasons.
pub(super) const EPOCH_ENDS: &str = "epoch ends";

/// Answers that wait for their check. A peer has at most one here, and is not asked meanwhile.
#[derive(Debug, Default)]
pub(super) struct EpochAnswers {
    waiting: VecDeque<EpochAnswer>,
}

#[derive(Debug)]
struct EpochAnswer {
    peer: PeerId,
    first: Epoch,
    answer: Vec<u8>,
}

impl EpochAnswers {
    /// Queues a peer's answer about the ends of the epochs from `first` on.
    pub(super) fn arrived(&mut self, peer: PeerId, first: Epoch, answer: Vec<u8>) {
        self.waiting.push_back(EpochAnswer { peer, first, answer });
    }

    /// Drops the answers of peers that are gone.
    pub(super) fn retain(&mut self, keep: impl Fn(&PeerId) -> bool) {
        self.waiting.retain(|waiting| keep(&waiting.peer));
    }
}

impl Engine {
    /// Whether a peer was asked about itself, and its answer is missing or not judged yet.
    pub(super) fn is_questioned(&self, peer: &PeerId) -> bool {
        let waits = self.epochs.waiting.iter().any(|waiting| waiting.peer == *peer);
        waits || self.jobs.epochs.iter().any(|check| check.peer == *peer) || self.streams.is_asked(peer)
    }

    /// Hands the next answer to the worker.
    pub(super) fn start_epochs(&mut self) {
        if self.jobs.epochs.is_any() {
            return;
        }
        let Some(EpochAnswer { peer, first, answer }) = self.epochs.waiting.pop_front() else { return };
        let trust = Arc::clone(&self.trust);
        self.run(CheckEpochs { peer, first }, Job::CheckEpochs { answer, first, trust });
    }

    /// Takes the result of a check. What it taught is true, whichever peer sent it. Then judges the peer's summary,
    /// which named an unknown epoch.
    pub(super) fn checked_epochs(&mut self, check: CheckEpochs, proved: ProvedEnds, now: Instant) {
        let CheckEpochs { peer, first } = check;
        let ProvedEnds { trust, ends, next, fault } = proved;
        let known = self.trust.epoch();
        // Another certificate may have ended an epoch meanwhile.
        if trust.epoch() > known && trust.continues(&self.trust) {
            self.trust = Arc::new(trust);
            self.epoch_ends.extend(ends.into_iter().filter(|end| end.info.epoch >= known));
            self.keep_epochs();
        }
        let judged = match fault {
            Some(fault) => Err(fault),
            None => self.judge_unproven(peer, next > first, now),
        };
        if let Err(fault) = judged {
            self.punish(peer, EPOCH_ENDS, &fault, now);
        }
    }

    fn judge_unproven(&mut self, peer: PeerId, has_moved: bool, now: Instant) -> Result<(), Fault> {
        let Some(summary) = self.unproven.remove(&peer) else { return Ok(()) };
        let claimed = summary.head.as_ref().map(|certificate| certificate.info.epoch);
        if has_moved && claimed.is_some_and(|epoch| epoch > self.trust.epoch()) {
            // One answer may lead only part of the way to the summary's epoch.
            self.unproven.insert(peer, summary);
            self.heard.insert(peer);
            return Ok(());
        }
        if let Some(certificate) = &summary.head {
            self.trust.verify(certificate)?;
        }
        self.book.summarize(peer, now, summary);
        Ok(())
    }

    /// Learns the next epoch's validators from a verified certificate that ends its own epoch. From then on the old
    /// signers have no say in later batches, even while all peers are silent about the new epoch.
    pub(super) fn learn_end(&mut self, certificate: &Certificate) {
        let info = &certificate.info;
        if info.next_validators.is_none() || info.epoch != self.trust.epoch() {
            return;
        }
        let mut trust = (*self.trust).clone();
        if trust.learn_end(certificate).is_ok() {
            self.trust = Arc::new(trust);
            self.epoch_ends.push(certificate.clone());
            self.keep_epochs();
        }
    }

    /// Whether epoch ends are being stored; until that is done, ends of later epochs cannot follow.
    pub(super) fn keeps_epochs(&self) -> bool {
        self.jobs.keep.is_any()
    }

    /// Stores the proven epoch ends in order; the store refuses one whose predecessor is missing.
    pub(super) fn keep_epochs(&mut self) {
        if !self.epoch_ends.is_empty() && !self.keeps_epochs() {
            let ends = std::mem::take(&mut self.epoch_ends);
            self.run(StoreEpochs, Job::KeepEpochs(ends));
        }
    }
}
