//! [`FixedProposer`]: the rules of one validator, as a machine without I/O.
//!
//! ```text
//!  requests, votes ──▶ ┌───────────────┐ ──▶ Record, Sign, Answer, Refuse
//!  executed, built ──▶ │ FixedProposer │ ──▶ Execute, Build, Rollback
//!  recorded, head  ──▶ └───────────────┘ ──▶ Commit, Withdraw, Fail
//! ```
//!
//! It has no store, clock, key, lock or task: whoever drives it feeds it one input after another and carries out the effects in
//! their order. Nothing is signed before the input [`handle_recorded`](FixedProposer::handle_recorded) has said that its record is
//! durable. A validator looks at one request at a time ([`is_free`](FixedProposer::is_free)); the proposer has one batch on its way.

use std::collections::VecDeque;

use slipstream_types::{BatchHeader, BatchNumber, Certificate, LedgerInfo, Signature, ValidatorSet};

use super::{
    effects::{Answer, Audience, Effect, Source},
    record::{Permission, Vote, permission},
    tip::Tip,
    votes::{Verdict, Votes},
};
use crate::error::{ConsensusError, ProposalError, RecordError};

/// The open request, as far as it has come.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Asked {
    Nothing,
    /// Its certificate is being committed; then comes the proposal, if there is one.
    Committing(BatchNumber, Option<BatchHeader>),
    Executing(BatchHeader),
    Recording,
}

/// What the proposer is at.
#[derive(Debug)]
enum Making {
    /// This validator does not propose, or not yet.
    Nothing,
    Building,
    /// Executing the open batch again.
    Repeating,
    Recording,
    Collecting(Votes),
    Committing(BatchNumber),
    /// After a failure, until it is time to go on.
    Resting,
}

/// A signature that waits for its record.
#[derive(Debug)]
struct Recording {
    info: LedgerInfo,
    to: Audience,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FixedProposer {
    set: ValidatorSet,
    tip: Tip,
    voted: Option<Vote>,
    /// The batch of the proposer's last vote.
    own: Option<BatchHeader>,
    /// The proposed batch that was executed last, until it is committed.
    held: Option<(BatchHeader, LedgerInfo)>,
    asked: Asked,
    making: Making,
    recording: Option<Recording>,
    effects: VecDeque<Effect>,
}

impl FixedProposer {
    /// A validator that has committed `tip` and signed `voted` last; `own` is the batch of that vote, if it proposed it.
    pub(crate) fn new(
        set: ValidatorSet,
        tip: Tip,
        voted: Option<Vote>,
        own: Option<BatchHeader>,
    ) -> FixedProposer {
        FixedProposer {
            set,
            tip,
            voted,
            own,
            held: None,
            asked: Asked::Nothing,
            making: Making::Nothing,
            recording: None,
            effects: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub(crate) fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Whether a request may come: one is answered before the next is looked at.
    pub(crate) fn is_free(&self) -> bool {
        self.asked == Asked::Nothing
    }

    /// The last committed batch.
    pub(crate) fn tip(&self) -> &Tip {
        &self.tip
    }

    /// The number of the last vote.
    pub(crate) fn voted(&self) -> Option<BatchNumber> {
        self.voted.map(|vote| vote.number)
    }

    /// The batch that votes are collected for or that is being committed, and how many votes it has.
    pub(crate) fn proposing(&self) -> Option<(BatchNumber, usize)> {
        match &self.making {
            Making::Collecting(votes) => Some((votes.number(), votes.len())),
            Making::Committing(number) => Some((*number, self.set.quorum())),
            _ => None,
        }
    }

    /// A validator announces a decision, or proposes a batch, perhaps with its parent's certificate. Only when it is free.
    pub(crate) fn handle_request(&mut self, certificate: Option<Certificate>, proposal: Option<BatchHeader>) {
        debug_assert!(self.is_free(), "one request at a time");
        // Any batch but the held one is left to sync.
        match certificate.filter(|it| self.held.as_ref().is_some_and(|(_, info)| *info == it.info)) {
            Some(certificate) => {
                self.asked = Asked::Committing(certificate.info.number, proposal);
                self.effects.push_back(Effect::Commit { certificate, own: false });
            }
            None => self.look_at(proposal),
        }
    }

    /// A batch was executed, which the effect demanded.
    pub(crate) fn handle_executed(&mut self, number: BatchNumber, result: Result<LedgerInfo, ProposalError>) {
        if let Asked::Executing(header) = &self.asked {
            let header = header.clone();
            match result {
                Ok(info) => match permission(self.voted, Vote::on(&info)) {
                    // It must not displace the outcome of what was signed.
                    Permission::Never { voted } => self.refuse(ProposalError::AlreadyVoted { number, voted }),
                    Permission::New | Permission::Again => {
                        // Sync may have committed it meanwhile, or another one.
                        self.held = (number > self.tip.number()).then(|| (header, info.clone()));
                        self.vote(info);
                    }
                },
                Err(error) => self.refuse(error),
            }
        } else if matches!(self.making, Making::Repeating) {
            match result {
                Ok(info) => self.propose(info),
                // Sync has brought it, or another one.
                Err(_) if number <= self.tip.number() => self.go_on(),
                Err(source) => self.fail(ConsensusError::Repropose { number, source: Box::new(source) }),
            }
        }
    }

    /// What a signature waited for is durable, or could not be made so.
    pub(crate) fn handle_recorded(&mut self, result: Result<(), RecordError>) {
        let Some(Recording { info, to }) = self.recording.take() else { return };
        match (result, to) {
            (Ok(()), _) => {
                self.voted = Some(Vote::on(&info));
                self.sign(info, to);
            }
            (Err(error), Audience::Asker) => self.refuse(error.into()),
            (Err(error), Audience::Everybody) => self.fail(error.into()),
        }
    }

    /// The store has another head: by this validator's commit, or by sync.
    pub(crate) fn handle_committed(&mut self, tip: Tip) {
        let number = tip.number();
        self.tip = tip;
        self.held.take_if(|(held, _)| held.number <= number);
        if let Asked::Committing(awaited, proposal) = &mut self.asked
            && *awaited <= number
        {
            let proposal = proposal.take();
            self.asked = Asked::Nothing;
            self.look_at(proposal);
        }
        match &self.making {
            Making::Collecting(votes) if votes.number() <= number => self.withdraw(),
            Making::Committing(awaited) if *awaited <= number => self.go_on(),
            _ => {}
        }
    }

    /// The batch that the open request decides could not be committed.
    pub(crate) fn handle_decision_failed(&mut self, error: ProposalError) {
        if matches!(self.asked, Asked::Committing(..)) {
            self.refuse(error);
        }
    }

    /// The proposer's own batch could not be committed.
    pub(crate) fn handle_commit_failed(&mut self, error: ConsensusError) {
        if matches!(self.making, Making::Committing(_)) {
            self.fail(error);
        }
    }

    /// Whether this proposer has begun.
    pub(crate) fn has_started(&self) -> bool {
        !matches!(self.making, Making::Nothing)
    }

    /// This proposer knows how far the chain is, and begins.
    pub(crate) fn start(&mut self) {
        if !self.has_started() {
            self.go_on();
        }
    }

    /// The time to go on after a failure has come.
    pub(crate) fn handle_retry(&mut self) {
        if matches!(self.making, Making::Resting) {
            self.go_on();
        }
    }

    /// The proposer's batch is made and executed.
    pub(crate) fn handle_built(&mut self, header: BatchHeader, info: LedgerInfo) {
        if !matches!(self.making, Making::Building) {
            return;
        }
        if header.parent != self.tip.digest {
            // Sync was faster.
            self.effects.push_back(Effect::Rollback { to: self.tip.number() });
            self.effects.push_back(Effect::Build);
            return;
        }
        self.own = Some(header);
        self.propose(info);
    }

    /// A validator's vote on the open batch; none if there is no open batch.
    pub(crate) fn handle_vote(&mut self, seat: u16, signature: Signature) -> Option<Verdict> {
        let Making::Collecting(votes) = &mut self.making else { return None };
        let verdict = votes.add(&self.set, seat, signature);
        if let Some(certificate) = votes.certificate(&self.set) {
            self.making = Making::Committing(certificate.info.number);
            self.effects.push_back(Effect::Commit { certificate, own: true });
        }
        Some(verdict)
    }

    fn look_at(&mut self, proposal: Option<BatchHeader>) {
        let head = self.tip.number();
        let Some(header) = proposal else { return self.answer(Answer::Decided { head }) };
        if header.number > head.next() {
            return self.answer(Answer::Behind { head });
        }
        match self.known(&header) {
            Ok(Some(info)) => self.vote(info),
            Ok(None) => {
                self.asked = Asked::Executing(header.clone());
                self.effects.push_back(Effect::Execute { header, body: Source::Request });
            }
            Err(error) => self.refuse(error),
        }
    }

    /// What is to be signed for the proposal; none if it must be executed first, which nothing known before forbids.
    fn known(&self, header: &BatchHeader) -> Result<Option<LedgerInfo>, ProposalError> {
        let (number, head) = (header.number, self.tip.number());
        if number <= head {
            // The proposer went down between the certificate and its own commit.
            let committed = self.tip.header == *header;
            return committed
                .then(|| Some(self.tip.info()))
                .ok_or(ProposalError::AlreadyCommitted { number, head });
        }
        if let Some((_, info)) = self.held.as_ref().filter(|(held, _)| held == header) {
            return Ok(Some(info.clone()));
        }
        self.tip.check(header, &self.set)?;
        // What would be signed only execution tells, because the batch may end its epoch: where the outcome of the last vote is not held, the
        // vote forbids another batch after it.
        let is_held = self.held.as_ref().is_some_and(|(held, _)| held.number == number);
        match self.voted() {
            Some(voted) if voted > number || voted == number && is_held => {
                Err(ProposalError::AlreadyVoted { number, voted })
            }
            _ => Ok(None),
        }
    }

    /// Votes for whoever asked.
    fn vote(&mut self, info: LedgerInfo) {
        let number = info.number;
        match self.record(info, Audience::Asker) {
            Ok(()) if self.recording.is_some() => self.asked = Asked::Recording,
            Ok(()) => {}
            Err(voted) => self.refuse(ProposalError::AlreadyVoted { number, voted }),
        }
    }

    /// Votes for the proposer's own batch.
    fn propose(&mut self, info: LedgerInfo) {
        let number = info.number;
        self.making = Making::Recording;
        if let Err(voted) = self.record(info, Audience::Everybody) {
            self.fail(ConsensusError::AlreadyVoted { number, voted });
        }
    }

    /// Signs at once what was signed before, and other things once they are on record.
    ///
    /// # Errors
    /// The number of the last vote, if that forbids it.
    fn record(&mut self, info: LedgerInfo, to: Audience) -> Result<(), BatchNumber> {
        let vote = Vote::on(&info);
        match permission(self.voted, vote) {
            Permission::Never { voted } => return Err(voted),
            Permission::Again => self.sign(info, to),
            Permission::New => {
                self.recording = Some(Recording { info, to });
                self.effects.push_back(Effect::Record { vote, own: to == Audience::Everybody });
            }
        }
        Ok(())
    }

    /// The only place that demands a signature.
    fn sign(&mut self, info: LedgerInfo, to: Audience) {
        match to {
            Audience::Asker => self.asked = Asked::Nothing,
            Audience::Everybody => self.making = Making::Collecting(Votes::new(info.clone())),
        }
        let overtaken = info.number <= self.tip.number();
        self.effects.push_back(Effect::Sign { info, to });
        if to == Audience::Everybody && overtaken {
            self.withdraw();
        }
    }

    /// Proposes the open batch again, or the next one.
    fn go_on(&mut self) {
        if self.tip.is_over(&self.set) {
            // The next epoch has a proposer of its own.
            self.making = Making::Nothing;
            return;
        }
        let next = self.tip.number().next();
        // Others may hold this validator's signature on the open batch, so that it may propose no other.
        let open = self.own.as_ref().filter(|own| Some(own.number) == self.voted() && own.number == next);
        if let Some(header) = open.cloned() {
            self.making = Making::Repeating;
            self.effects.push_back(Effect::Execute { header, body: Source::Record });
            return;
        }
        match self.voted() {
            Some(voted) if voted >= next => self.fail(ConsensusError::AlreadyVoted { number: next, voted }),
            _ => {
                self.making = Making::Building;
                self.effects.push_back(Effect::Build);
            }
        }
    }

    fn withdraw(&mut self) {
        self.effects.push_back(Effect::Withdraw);
        self.go_on();
    }

    fn answer(&mut self, answer: Answer) {
        self.asked = Asked::Nothing;
        self.effects.push_back(Effect::Answer(answer));
    }

    fn refuse(&mut self, error: ProposalError) {
        self.asked = Asked::Nothing;
        self.effects.push_back(Effect::Refuse(error));
    }

    fn fail(&mut self, error: ConsensusError) {
        self.making = Making::Resting;
        self.effects.push_back(Effect::Fail(error));
    }
}
