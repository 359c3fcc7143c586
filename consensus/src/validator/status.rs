//! [`ConsensusStatus`]: what a validator shows of itself.

use std::collections::BTreeMap;

use alloy_primitives::hex;
use serde::Serialize;
use slipstream_eve::{Core, Evidence, Status};
use slipstream_types::{BatchNumber, ValidatorSet, codec};
use tokio::time::Instant;

/// What a validator is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConsensusStatus {
    /// Position in the set.
    pub index: u16,
    /// Size of the set.
    pub validators: usize,
    /// Signatures that make a certificate.
    pub quorum: usize,
    /// The view, by which the validators take turns as primary.
    pub view: u64,
    /// Whether it has left the views below and waits for this one to begin.
    pub changing: bool,
    /// Position of the view's primary, which orders the batches.
    pub primary: u16,
    /// Whether that is this validator.
    pub is_primary: bool,
    /// Whether it has no record of its votes and listens before it votes again.
    pub observing: bool,
    /// Whether it wants another primary.
    pub complains: bool,
    /// The last batch that it knows to be decided.
    pub decided: BatchNumber,
    /// The last batch that is decided, or that it voted to commit; none while it does not know its votes. Once its head is there,
    /// nothing is certified by its vote that it would not show.
    pub voted: Option<BatchNumber>,
    /// The batch that is voted on, if any vote is in.
    pub voting: Option<Voting>,
    /// How often the others agreed on another outcome than this validator's.
    pub divergences: u64,
    /// Messages and ordered batches of others that it refused since it started.
    pub refused: u64,
    /// Who was proved to have given two statements where it may give one.
    pub evidence: Vec<Conviction>,
    /// What the other validators said of themselves last.
    pub peers: Vec<PeerStanding>,
}

/// How far agreement on a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Voting {
    /// The batch.
    pub number: BatchNumber,
    /// Validators that prepare it, of a quorum.
    pub prepares: usize,
    /// Validators that commit to it, of a quorum.
    pub commits: usize,
}

/// A proven lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Conviction {
    /// Position of the validator that it convicts.
    pub author: u16,
    /// The view in which it happened.
    pub view: u64,
    /// The batch.
    pub number: BatchNumber,
    /// What was said twice.
    pub kind: EvidenceKind,
}

/// A proven lie with its proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Proof {
    /// Who lied, and where.
    #[serde(flatten)]
    pub conviction: Conviction,
    /// Both signed statements: `slipstream_eve::Evidence` in BCS, in hexadecimal digits.
    pub evidence: String,
}

/// What a validator said twice, differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceKind {
    /// It ordered two batches.
    Orders,
    /// It prepared two outcomes.
    Prepares,
    /// It committed to two outcomes.
    Commits,
}

/// How far another validator said that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PeerStanding {
    /// Its position in the set.
    pub index: u16,
    /// Its view.
    pub view: u64,
    /// Whether it waits for that view to begin.
    pub changing: bool,
    /// Whether it wants another primary.
    pub complains: bool,
    /// The last batch that it knows to be decided.
    pub decided: BatchNumber,
    /// The last order of its view that it has.
    pub ordered: BatchNumber,
    /// How long ago it said so, in milliseconds.
    pub heard_ms_ago: u64,
}

/// What the actor shows, with moments in place of ages.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) status: ConsensusStatus,
    /// When each of the peers spoke, in their order.
    heard_at: Vec<Instant>,
}

impl Shown {
    /// Of a validator that knows nothing yet.
    pub(super) fn new(index: u16, set: &ValidatorSet) -> Shown {
        let status = ConsensusStatus {
            index,
            validators: set.validators.len(),
            quorum: set.quorum(),
            view: 0,
            changing: false,
            primary: 0,
            is_primary: index == 0,
            observing: false,
            complains: false,
            decided: BatchNumber::GENESIS,
            voted: None,
            voting: None,
            divergences: 0,
            refused: 0,
            evidence: Vec::new(),
            peers: Vec::new(),
        };
        Shown { status, heard_at: Vec::new() }
    }

    /// Takes over how far the protocol is.
    pub(super) fn update(&mut self, core: &Core, heard_at: &BTreeMap<u16, Instant>) {
        let (prepares, commits) = core.votes();
        let voting = Voting { number: core.decided().next(), prepares, commits };
        let standing = |(index, status): (&u16, &Status)| PeerStanding {
            index: *index,
            view: status.view,
            changing: status.changing,
            complains: status.complains,
            decided: status.decided,
            ordered: status.ordered,
            heard_ms_ago: 0,
        };
        let status = &mut self.status;
        status.view = core.view();
        status.changing = core.is_changing();
        status.primary = core.primary();
        status.is_primary = core.is_primary();
        status.observing = core.is_observing();
        status.complains = core.complains();
        status.decided = core.decided();
        status.voted = core.voted();
        status.voting = (prepares + commits > 0).then_some(voting);
        status.divergences = core.divergences();
        status.peers = core.heard().iter().map(standing).collect();
        let moment = |peer: &PeerStanding| heard_at.get(&peer.index).copied();
        self.heard_at = status.peers.iter().map(|peer| moment(peer).unwrap_or_else(Instant::now)).collect();
    }

    /// As of now.
    pub(super) fn status(&self) -> ConsensusStatus {
        let mut status = self.status.clone();
        for (peer, heard_at) in status.peers.iter_mut().zip(&self.heard_at) {
            peer.heard_ms_ago = heard_at.elapsed().as_millis() as u64;
        }
        status
    }
}

impl Proof {
    pub(super) fn of(evidence: &Evidence, set: &ValidatorSet) -> Proof {
        let bytes = codec::encode("evidence", evidence).unwrap_or_default();
        Proof { conviction: Conviction::of(evidence, set), evidence: hex::encode_prefixed(bytes) }
    }
}

impl Conviction {
    pub(super) fn of(evidence: &Evidence, set: &ValidatorSet) -> Conviction {
        let (view, number) = evidence.place();
        let kind = match evidence {
            Evidence::Orders(_) => EvidenceKind::Orders,
            Evidence::Prepares(..) => EvidenceKind::Prepares,
            Evidence::Commits(..) => EvidenceKind::Commits,
        };
        Conviction { author: evidence.author(set), view, number, kind }
    }
}
