//! What the machine wants, carried out in its order.

use slipstream_types::{BatchHeader, Blob, Certificate, CommitStatement, LedgerInfo};

use super::{
    driver::{Done, Driver, Timer},
    ledger::Executed,
    proposing::FAILURE_PAUSE,
    records::VoteRecord,
};
use crate::{
    error::{ConsensusError, ProposalError},
    protocol::{
        effects::{Answer, Audience, Effect, Source},
        messages::Response,
        record::Vote,
        votes::VIEW,
    },
};

/// How far a proposal's clock may be ahead of this validator's: clocks kept by NTP differ by far less, and a proposer must
/// not be able to push the chain's time into the future.
const AHEAD_MS_MAX: u64 = 10_000;

impl Driver {
    /// Carries out what the machine wants, and what it wants because of that.
    pub(super) fn settle(&mut self) -> Result<(), ConsensusError> {
        while let Some(effect) = self.core.next_effect() {
            self.carry_out(effect)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, effect: Effect) -> Result<(), ConsensusError> {
        match effect {
            Effect::Record { vote, own } => self.record(vote, own),
            Effect::Sign { info, to } => return self.sign(&info, to),
            Effect::Answer(Answer::Behind { head }) => self.answer(Ok(Response::Behind { head })),
            Effect::Answer(Answer::Decided { head }) => self.answer(Ok(Response::Decided { head })),
            Effect::Refuse(error) => self.answer(Err(error)),
            Effect::Execute { header, body } => self.execute(header, body),
            Effect::Build => self.want_batch(),
            Effect::Rollback { to } => self.held.roll_back(to),
            Effect::Commit { certificate, own: true } => return self.conclude(certificate),
            Effect::Commit { certificate, own: false } => self.commit_decided(certificate),
            Effect::Withdraw => self.withdraw(),
            Effect::Fail(error) => return self.fail(error),
        }
        Ok(())
    }

    fn record(&mut self, vote: Vote, own: bool) {
        let made = self.held.get(vote.number).filter(|_| own);
        let proposal = made.map(|made| (made.sealed.header.clone(), made.sealed.body.clone()));
        let write = self.records.write(VoteRecord::new(vote, proposal));
        self.bench.add("vote", move || Done::Recorded(write()));
    }

    /// The only place where the key is used.
    fn sign(&mut self, info: &LedgerInfo, to: Audience) -> Result<(), ConsensusError> {
        let signature = CommitStatement::new(VIEW, info.digest()).sign(&self.key);
        match to {
            Audience::Asker => self.answer(Ok(Response::Vote { index: self.seat, signature })),
            Audience::Everybody => {
                self.propose(info.number)?;
                self.core.handle_vote(self.seat, signature);
            }
        }
        Ok(())
    }

    fn execute(&mut self, header: BatchHeader, body: Source) {
        let (ledger, clock, number) = (self.ledger.clone(), self.clock.clone(), header.number);
        let done =
            move |result: Result<Executed, ProposalError>| Done::Executed(number, result.map(Box::new));
        match body {
            Source::Request => {
                let order = self.asked.as_mut().and_then(|asked| asked.order.take());
                let Some((body, hints)) = order else { return };
                self.bench.add("vote", move || {
                    let in_time = is_in_time(&header, clock.now_ms());
                    done(in_time.and_then(|()| ledger.execute(&header, &body, hints.as_ref())))
                });
            }
            Source::Record => {
                tracing::info!(%number, "proposing the open batch again that this validator has voted for");
                let Some(record) = self.records.last().cloned() else { return };
                self.bench.add("re-execution", move || {
                    let body =
                        record.proposal().map(|(_, body)| body).ok_or(ProposalError::Overtaken { number });
                    done(body.and_then(|body: &Blob| ledger.execute(&header, body, None)))
                });
            }
        }
    }

    /// Commits the batch that this validator holds, if its certificate is one.
    fn commit_decided(&mut self, certificate: Certificate) {
        let number = certificate.info.number;
        let Some(mut executed) = self.held.take(&certificate.info).map(Box::new) else {
            return self.core.handle_decision_failed(ProposalError::Overtaken { number });
        };
        let ledger = self.ledger.clone();
        self.bench.add("vote", move || {
            let verified = certificate.verify(&ledger.set).map_err(ProposalError::from);
            let committed = verified.and_then(|()| Ok(ledger.commit(&mut executed, &certificate)?));
            Done::Decided(executed, committed)
        });
    }

    /// A failure that may pass is tried again after [`FAILURE_PAUSE`]; any other ends the driver.
    pub(super) fn fail(&mut self, error: ConsensusError) -> Result<(), ConsensusError> {
        if !error.is_retryable() {
            return Err(error);
        }
        tracing::warn!(%error, "no batch was made; trying again");
        self.timers.set(Timer::Retry, FAILURE_PAUSE);
        Ok(())
    }
}

fn is_in_time(header: &BatchHeader, now_ms: u64) -> Result<(), ProposalError> {
    let (number, timestamp_ms) = (header.number, header.timestamp_ms);
    if timestamp_ms > now_ms.saturating_add(AHEAD_MS_MAX) {
        return Err(ProposalError::FromTheFuture { number, timestamp_ms, now_ms, max_ms: AHEAD_MS_MAX });
    }
    Ok(())
}
