//! Checking, executing and signing what the proposer proposes. Everything here blocks.

use std::sync::Arc;

use slipstream_types::{
    BatchHeader, BatchNumber, Blob, Certificate, Clock, CommitStatement, LedgerInfo, SecretKey, Signature,
};

use super::ledger::{Executed, Ledger};
use crate::{
    error::ProposalError,
    protocol::{
        messages::{Proposal, Response},
        record::{self, Permission, RecordError, VoteRecord},
        votes::VIEW,
    },
};

/// How far a proposal's clock may be ahead of this validator's: clocks kept by NTP differ by far less, and a proposer must
/// not be able to push the chain's time into the future.
const AHEAD_MS_MAX: u64 = 10_000;

/// The one holder of this validator's signing right. Its owner lets one thread at a time use it.
pub(super) struct Voter {
    ledger: Arc<Ledger>,
    clock: Arc<dyn Clock>,
    key: SecretKey,
    index: u16,
    last: Option<VoteRecord>,
    /// The batch that was voted for, until it is committed.
    held: Option<Executed>,
    /// Set while a call works with this, so that one that panicked was the last.
    working: bool,
}

impl Voter {
    pub(super) fn new(
        ledger: Arc<Ledger>,
        clock: Arc<dyn Clock>,
        key: SecretKey,
        index: u16,
    ) -> Result<Voter, RecordError> {
        let last = record::load(&ledger.store)?;
        Ok(Voter { ledger, clock, key, index, last, held: None, working: false })
    }

    /// Lets one call work with the signing right.
    ///
    /// # Errors
    /// [`ProposalError::Stopping`] if an earlier one panicked: what it left half done must not be signed on.
    pub(super) fn work<R>(
        &mut self,
        work: impl FnOnce(&mut Voter) -> Result<R, ProposalError>,
    ) -> Result<R, ProposalError> {
        if std::mem::replace(&mut self.working, true) {
            return Err(ProposalError::Stopping);
        }
        let result = work(self);
        self.working = false;
        result
    }

    /// The batch that this proposer must propose again: it has signed it, and it is not committed.
    pub(super) fn unfinished(&self, head: BatchNumber) -> Option<(BatchHeader, Blob)> {
        self.last.as_ref().filter(|last| last.number > head)?.proposal.clone()
    }

    /// The number of the last vote.
    pub(super) fn voted(&self) -> Option<BatchNumber> {
        self.last.as_ref().map(|last| last.number)
    }

    /// Records the vote durably, then signs; the only place where the key is used.
    pub(super) fn sign(
        &mut self,
        info: &LedgerInfo,
        proposal: Option<(BatchHeader, Blob)>,
    ) -> Result<Signature, ProposalError> {
        let (number, digest) = (info.number, info.digest());
        match record::permission(self.last.as_ref(), number, digest) {
            Permission::Again => {}
            Permission::Never { voted } => return Err(ProposalError::AlreadyVoted { number, voted }),
            Permission::New => {
                let record = VoteRecord { number, info: digest, proposal };
                record::save(&self.ledger.store, &record)?;
                self.last = Some(record);
            }
        }
        Ok(CommitStatement::new(VIEW, digest).sign(&self.key))
    }

    /// Answers the proposer.
    pub(super) fn vote(&mut self, proposal: &Proposal) -> Result<Response, ProposalError> {
        if let Some(parent) = &proposal.parent {
            self.decide(parent)?;
        }
        let header = &proposal.header;
        let (number, head) = (header.number, self.ledger.head_number()?);
        if number <= head {
            return self.vote_again(header, head);
        }
        if number > head.next() {
            return Ok(Response::Behind { head });
        }
        let info = match self.held.as_ref().filter(|held| held.sealed.header == *header) {
            Some(held) => held.info.clone(),
            None => self.execute(proposal)?,
        };
        let signature = self.sign(&info, None)?;
        Ok(Response::Vote { index: self.index, signature })
    }

    /// Executes the proposal, unless something that is known before forbids a vote.
    fn execute(&mut self, proposal: &Proposal) -> Result<LedgerInfo, ProposalError> {
        let header = &proposal.header;
        let (number, timestamp_ms, now_ms) = (header.number, header.timestamp_ms, self.clock.now_ms());
        if timestamp_ms > now_ms.saturating_add(AHEAD_MS_MAX) {
            return Err(ProposalError::FromTheFuture { number, timestamp_ms, now_ms, max_ms: AHEAD_MS_MAX });
        }
        let info = self.ledger.claimed_info(header)?;
        // This also keeps the outcome of a batch that may not be signed from displacing the one that was.
        if let Permission::Never { voted } = record::permission(self.last.as_ref(), number, info.digest()) {
            return Err(ProposalError::AlreadyVoted { number, voted });
        }
        let executed = self.ledger.execute(header, &proposal.body, proposal.hints.as_ref())?;
        let info = executed.info.clone();
        self.held = Some(executed);
        Ok(info)
    }

    /// The proposer asks for a vote on what is committed here: it went down between the certificate and its own commit.
    fn vote_again(&mut self, header: &BatchHeader, head: BatchNumber) -> Result<Response, ProposalError> {
        let info = self.ledger.head_info()?;
        let committed = self.ledger.store.header(header.number)?;
        if info.number != header.number || committed.as_ref() != Some(header) {
            return Err(ProposalError::AlreadyCommitted { number: header.number, head });
        }
        let signature = self.sign(&info, None)?;
        Ok(Response::Vote { index: self.index, signature })
    }

    /// Tells a proposer how far the chain is, with the proof, and what time it is.
    pub(super) fn standing(&self) -> Result<Response, ProposalError> {
        let certificate = self.ledger.store.latest_certificate()?.map(Box::new);
        Ok(Response::Standing { certificate, now_ms: self.clock.now_ms() })
    }

    /// Commits the batch that this validator holds, if it is the certified one. Any other is left to sync.
    pub(super) fn decide(&mut self, certificate: &Certificate) -> Result<Response, ProposalError> {
        if let Some(held) = self.held.as_mut().filter(|held| held.info == certificate.info) {
            certificate.verify(&self.ledger.set)?;
            self.ledger.commit(held, certificate)?;
            self.held = None;
        }
        Ok(Response::Decided { head: self.ledger.head_number()? })
    }
}
