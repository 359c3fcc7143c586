//! The machine alone: inputs in, effects out.

use slipstream_types::{
    BatchHeader, BatchNumber, Certificate, CommitStatement, Epoch, LedgerInfo, Signature, ValidatorSet,
    accumulator::Accumulator,
};

use super::{
    effects::{Answer, Audience, Effect, Source},
    fixed::FixedProposer,
    record::Vote,
    tip::Tip,
    votes::{VIEW, Verdict, Votes},
};
use crate::{
    ConsensusError, ProposalError, RecordError,
    testing::{genesis, validator_key},
};

fn set() -> ValidatorSet {
    genesis(4).validator_set()
}

fn tip_of(header: BatchHeader, mut accumulator: Accumulator) -> Tip {
    accumulator.append(header.digest());
    Tip { digest: header.digest(), header, accumulator, next: None }
}

/// The genesis.
fn origin() -> Tip {
    tip_of(genesis(4).header().unwrap(), Accumulator::default())
}

/// A batch that may come after the tip; others differ from it.
fn after(tip: &Tip, other: u64) -> BatchHeader {
    BatchHeader {
        number: tip.number().next(),
        parent: tip.digest,
        proposer: set().validators[0].fee_recipient,
        gas_used: other,
        ..tip.header.clone()
    }
}

/// The tip with one more batch.
fn on(tip: &Tip, header: &BatchHeader) -> Tip {
    tip_of(header.clone(), tip.accumulator.clone())
}

fn signature(info: &LedgerInfo, seat: u16) -> Signature {
    CommitStatement::new(VIEW, info.digest()).sign(&validator_key(seat.into()))
}

fn certificate(info: &LedgerInfo) -> Certificate {
    let mut votes = Votes::new(info.clone());
    for seat in 0..3 {
        votes.add(&set(), seat, signature(info, seat));
    }
    votes.certificate(&set()).unwrap()
}

/// What the machine wants now, in short.
fn wants(core: &mut FixedProposer) -> Vec<String> {
    let effects = std::iter::from_fn(|| core.next_effect());
    let name = |effect| match effect {
        Effect::Record { vote, own } => {
            format!("record {} {}", vote.number, if own { "own" } else { "other" })
        }
        Effect::Sign { info, to: Audience::Asker } => format!("sign {} to asker", info.number),
        Effect::Sign { info, to: Audience::Everybody } => format!("sign {} to all", info.number),
        Effect::Answer(Answer::Behind { head }) => format!("behind {head}"),
        Effect::Answer(Answer::Decided { head }) => format!("decided {head}"),
        Effect::Refuse(error) => format!("refuse: {error}"),
        Effect::Execute { header, body: Source::Request } => format!("execute {}", header.number),
        Effect::Execute { header, body: Source::Record } => format!("execute {} again", header.number),
        Effect::Build => "build".to_owned(),
        Effect::Rollback { to } => format!("roll back to {to}"),
        Effect::Commit { certificate, own } => {
            format!("commit {} {}", certificate.info.number, if own { "own" } else { "decided" })
        }
        Effect::Withdraw => "withdraw".to_owned(),
        Effect::Fail(error) => format!("fail: {error}"),
    };
    effects.map(name).collect()
}

fn unwritable() -> RecordError {
    RecordError::Unreadable(slipstream_types::CodecError::TooLong { what: "vote record", len: 2, max: 1 })
}

/// One that answers, and its genesis.
fn voter() -> (FixedProposer, Tip) {
    (FixedProposer::new(set(), origin(), None, None), origin())
}

/// Goal: nothing is signed before its record is durable; once it is, it is signed again without another one.
#[test]
fn nothing_is_signed_before_its_record() {
    let (mut core, tip) = voter();
    let header = after(&tip, 0);
    core.handle_request(None, Some(header.clone()));
    assert_eq!(wants(&mut core), ["execute 1"]);
    assert!(!core.is_free());
    core.handle_executed(header.number, Ok(tip.info_after(&header)));
    assert_eq!(wants(&mut core), ["record 1 other"]);
    assert!(!core.is_free() && core.voted().is_none());
    core.handle_recorded(Ok(()));
    assert_eq!(wants(&mut core), ["sign 1 to asker"]);
    assert!(core.is_free() && core.voted() == Some(BatchNumber(1)));
    core.handle_request(None, Some(header.clone()));
    assert_eq!(wants(&mut core), ["sign 1 to asker"]);
    // Another one is refused unexecuted.
    core.handle_request(None, Some(after(&tip, 1)));
    assert_eq!(
        wants(&mut core),
        ["refuse: batch 1 is refused: this validator has voted for another batch 1"]
    );
    // One that restarts knows its vote, executes again, and needs no other record.
    let vote = Vote::on(&tip.info_after(&header));
    let mut again = FixedProposer::new(set(), origin(), Some(vote), None);
    again.handle_request(None, Some(header.clone()));
    assert_eq!(wants(&mut again), ["execute 1"]);
    again.handle_executed(header.number, Ok(tip.info_after(&header)));
    assert_eq!(wants(&mut again), ["sign 1 to asker"]);
}

/// Goal: a vote that could not be recorded was not given, so that another one may be.
#[test]
fn a_vote_that_is_not_recorded_was_not_given() {
    let (mut core, tip) = voter();
    for (other, result) in [(0, Err(unwritable())), (1, Ok(()))] {
        let header = after(&tip, other);
        core.handle_request(None, Some(header.clone()));
        core.handle_executed(header.number, Ok(tip.info_after(&header)));
        assert_eq!(wants(&mut core), ["execute 1", "record 1 other"]);
        let recorded = result.is_ok();
        core.handle_recorded(result);
        let wanted = wants(&mut core);
        match recorded {
            true => assert_eq!(wanted, ["sign 1 to asker"]),
            false => assert!(wanted[0].starts_with("refuse: the vote record is unreadable"), "{wanted:?}"),
        }
        assert!(core.is_free());
    }
}

/// Goal: a decision is taken before the proposal that brings it is looked at, once, and only of what was executed here.
#[test]
fn decisions_come_before_proposals() {
    let (mut core, tip) = voter();
    let first = after(&tip, 0);
    let info = tip.info_after(&first);
    core.handle_request(Some(certificate(&info)), None);
    assert_eq!(wants(&mut core), ["decided 0"], "what is not held is left to sync");
    core.handle_request(None, Some(first.clone()));
    core.handle_executed(first.number, Ok(info.clone()));
    core.handle_recorded(Ok(()));
    assert_eq!(wants(&mut core), ["execute 1", "record 1 other", "sign 1 to asker"]);

    let committed = on(&tip, &first);
    let second = after(&committed, 0);
    core.handle_request(Some(certificate(&info)), Some(second.clone()));
    assert_eq!(wants(&mut core), ["commit 1 decided"]);
    core.handle_decision_failed(ProposalError::Overtaken { number: BatchNumber(1) });
    assert!(wants(&mut core)[0].starts_with("refuse: batch 1 was overtaken"));
    core.handle_request(Some(certificate(&info)), Some(second.clone()));
    core.handle_committed(committed.clone());
    assert_eq!(wants(&mut core), ["commit 1 decided", "execute 2"]);
    core.handle_executed(second.number, Err(ProposalError::Overtaken { number: second.number }));
    assert!(wants(&mut core)[0].starts_with("refuse: batch 2 was overtaken"));
    core.handle_request(Some(certificate(&info)), None);
    assert_eq!(wants(&mut core), ["decided 1"]);
    core.handle_request(None, Some(first));
    assert_eq!(wants(&mut core), ["sign 1 to asker"], "the proposer went down before its own commit");
    core.handle_request(None, Some(after(&tip, 1)));
    assert_eq!(wants(&mut core), ["refuse: batch 1 is not next: batch 1 is committed here"]);
    core.handle_request(None, Some(BatchHeader { number: BatchNumber(9), ..second }));
    assert_eq!(wants(&mut core), ["behind 1"]);
}

/// Goal: what sync committed while it was executed here is voted for, but not held: its decision commits nothing any more.
#[test]
fn what_sync_committed_is_not_held() {
    let (mut core, tip) = voter();
    let header = after(&tip, 0);
    let info = tip.info_after(&header);
    core.handle_request(None, Some(header.clone()));
    core.handle_committed(on(&tip, &header));
    core.handle_executed(header.number, Ok(info.clone()));
    core.handle_recorded(Ok(()));
    assert_eq!(wants(&mut core), ["execute 1", "record 1 other", "sign 1 to asker"]);
    core.handle_request(Some(certificate(&info)), None);
    assert_eq!(wants(&mut core), ["decided 1"]);
}

/// A proposer that has signed its first batch.
fn proposer() -> (FixedProposer, Tip, BatchHeader, LedgerInfo) {
    let (mut core, tip) = voter();
    let header = after(&tip, 0);
    let info = tip.info_after(&header);
    core.start();
    assert_eq!(wants(&mut core), ["build"]);
    core.handle_built(header.clone(), info.clone());
    assert_eq!(wants(&mut core), ["record 1 own"]);
    assert_eq!(core.proposing(), None);
    core.handle_recorded(Ok(()));
    assert_eq!(wants(&mut core), ["sign 1 to all"]);
    (core, tip, header, info)
}

fn vote(core: &mut FixedProposer, seat: u16, info: &LedgerInfo) -> Option<Verdict> {
    core.handle_vote(seat, signature(info, seat))
}

/// Goal: a quorum of different, valid votes decides, once; then comes the next batch.
#[test]
fn a_quorum_decides() {
    let (mut core, tip, header, info) = proposer();
    assert_eq!(vote(&mut core, 0, &info), Some(Verdict::Counted));
    assert_eq!(vote(&mut core, 1, &tip.info()), Some(Verdict::Invalid));
    assert_eq!(vote(&mut core, 2, &info), Some(Verdict::Counted));
    assert_eq!(vote(&mut core, 2, &info), Some(Verdict::Repeated));
    assert_eq!(core.proposing(), Some((BatchNumber(1), 2)));
    assert_eq!(wants(&mut core), [""; 0]);
    assert_eq!(vote(&mut core, 3, &info), Some(Verdict::Counted));
    assert_eq!(wants(&mut core), ["commit 1 own"]);
    assert_eq!(core.proposing(), Some((BatchNumber(1), 3)));
    assert_eq!(vote(&mut core, 1, &info), None, "too late");
    core.handle_committed(on(&tip, &header));
    assert_eq!(wants(&mut core), ["build"]);
    assert_eq!(core.proposing(), None);
}

/// Goal: a proposer that could not commit its certified batch proposes the same again, and no other.
#[test]
fn a_failed_commit_is_proposed_again() {
    let (mut core, _, header, info) = proposer();
    for seat in 0..3 {
        vote(&mut core, seat, &info);
    }
    assert_eq!(wants(&mut core), ["commit 1 own"]);
    let source = Box::new(ProposalError::Stopping);
    core.handle_commit_failed(ConsensusError::Repropose { number: header.number, source });
    assert!(wants(&mut core)[0].starts_with("fail: "));
    core.handle_retry();
    assert_eq!(wants(&mut core), ["execute 1 again"]);
    core.handle_executed(header.number, Ok(info));
    assert_eq!(wants(&mut core), ["sign 1 to all"]);
    core.handle_retry();
    assert_eq!(wants(&mut core), [""; 0], "nothing to retry");
}

/// Goal: what was signed before a restart is proposed again before anything else, and a failure to execute it stops the proposer.
#[test]
fn a_restart_proposes_the_open_batch() {
    let tip = origin();
    let header = after(&tip, 0);
    let info = tip.info_after(&header);
    let restart = || {
        let mut core = FixedProposer::new(set(), origin(), Some(Vote::on(&info)), Some(header.clone()));
        core.start();
        assert_eq!(wants(&mut core), ["execute 1 again"]);
        core
    };
    let mut core = restart();
    core.handle_executed(header.number, Ok(info.clone()));
    assert_eq!(wants(&mut core), ["sign 1 to all"]);
    let mut differs = restart();
    differs.handle_executed(header.number, Ok(tip.info_after(&after(&tip, 1))));
    assert!(wants(&mut differs)[0].starts_with("fail: this validator voted up to batch 1"));
    let mut refused = restart();
    refused.handle_executed(header.number, Err(ProposalError::Stopping));
    assert!(wants(&mut refused)[0].contains("does not execute to the same again"));
}

/// Goal: a proposer whose votes are ahead of its chain signs nothing until sync has brought it there.
#[test]
fn a_proposer_behind_its_votes_waits() {
    let tip = origin();
    let header = after(&tip, 0);
    let ahead = Vote { number: BatchNumber(1), ..Vote::on(&tip.info()) };
    let mut core = FixedProposer::new(set(), tip.clone(), Some(ahead), None);
    core.start();
    assert!(wants(&mut core)[0].starts_with("fail: this validator voted up to batch 1"));
    core.handle_retry();
    assert!(wants(&mut core)[0].starts_with("fail: this validator voted up to batch 1"));
    core.handle_committed(on(&tip, &header));
    core.handle_retry();
    assert_eq!(wants(&mut core), ["build"]);
}

/// Goal: after the last batch of its epoch a validator votes for nothing more, and a proposer makes nothing.
#[test]
fn an_epoch_that_is_over_is_left_alone() {
    let (mut core, tip) = voter();
    let next = Some(ValidatorSet { epoch: Epoch(set().epoch.0 + 1), ..set() });
    let over = Tip { next, ..on(&tip, &after(&tip, 0)) };
    core.handle_committed(over.clone());
    core.handle_request(None, Some(after(&over, 0)));
    assert_eq!(wants(&mut core), ["refuse: batch 2 is refused: epoch 0 is over"]);
    let mut proposer = FixedProposer::new(set(), over, None, None);
    proposer.start();
    assert_eq!(wants(&mut proposer), [""; 0]);
}

/// Goal: when sync is faster, the votes are no longer collected, and what was built on the old head is dropped unsigned.
#[test]
fn sync_may_be_faster() {
    let (mut core, tip, header, info) = proposer();
    let committed = on(&tip, &header);
    core.handle_committed(committed.clone());
    assert_eq!(wants(&mut core), ["withdraw", "build"]);
    assert_eq!(vote(&mut core, 1, &info), None);
    let second = after(&committed, 0);
    let later = on(&committed, &second);
    core.handle_committed(later.clone());
    core.handle_built(second.clone(), committed.info_after(&second));
    assert_eq!(wants(&mut core), ["roll back to 2", "build"]);
    // While the vote was being recorded.
    let third = after(&later, 0);
    core.handle_built(third.clone(), later.info_after(&third));
    core.handle_committed(on(&later, &third));
    core.handle_recorded(Ok(()));
    assert_eq!(wants(&mut core), ["record 3 own", "sign 3 to all", "withdraw", "build"]);
}
