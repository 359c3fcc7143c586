//! [`Effect`]: what the machine wants of whoever drives it.

use slipstream_types::{BatchHeader, BatchNumber, Certificate, LedgerInfo};

use super::record::Vote;
use crate::error::{ConsensusError, ProposalError};

/// What whoever drives the machine is to do.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Make the vote durable, then tell by `handle_recorded`.
    Record {
        vote: Vote,
        /// With the proposer's own batch, which it must propose again after a restart.
        own: bool,
    },
    /// Sign the ledger info; its record is durable.
    Sign { info: LedgerInfo, to: Audience },
    /// Answer the open request.
    Answer(Answer),
    /// Refuse the open request.
    Refuse(ProposalError),
    /// Execute a batch that continues the tip, then tell by `handle_executed`.
    Execute { header: BatchHeader, body: Source },
    /// Make the next batch as soon as one is due, then tell by `handle_built`.
    Build,
    /// Drop what was executed above that batch and is not committed.
    Rollback { to: BatchNumber },
    /// Commit the batch that was executed. The new tip is told by `handle_committed`, a failure by `handle_decision_failed` or, of
    /// an own batch, `handle_commit_failed`.
    Commit {
        certificate: Certificate,
        /// The certificate was made here, of signatures that were checked: it is told to everybody first. Any other is to be
        /// verified first.
        own: bool,
    },
    /// Stop asking for votes: the batch is committed without this validator's doing.
    Withdraw,
    /// Proposing failed. If that may pass, tell by `handle_retry` when to go on.
    Fail(ConsensusError),
}

/// For whom a signature is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Audience {
    /// The asker of the open request.
    Asker,
    /// All validators: the batch is proposed to them, and the own vote comes back by `handle_vote`.
    Everybody,
}

/// Where the body of a batch is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// In the open request.
    Request,
    /// In the record of this proposer's vote.
    Record,
}

/// What a request is answered with, if it is not a vote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The batch is too far ahead.
    Behind { head: BatchNumber },
    /// The decision was taken, or left to sync.
    Decided { head: BatchNumber },
}
