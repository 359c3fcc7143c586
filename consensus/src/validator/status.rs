//! [`ConsensusStatus`]: a validator's report on itself.

use std::collections::BTreeMap;

use alloy_primitives::hex;
use serde::{Deserialize, Serialize};
use slipstream_eve::{Core, Evidence, Status};
use slipstream_types::{BatchNumber, PublicKey, Validator, ValidatorSet, codec};
use tokio::time::Instant;

use super::silence::Silence;

/// Maximum number of silent validators that one log line names.
const NAMED_MAX: usize = 8;

/// A validator's state and progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ConsensusStatus {
    /// Position in the set.
    pub index: u16,
    /// The operator's name for this validator's key; a validator itself knows no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Size of the set.
    pub validators: usize,
    /// Signatures that make a certificate.
    pub quorum: usize,
    /// The view, by which the validators take turns as primary.
    pub view: u64,
    /// Whether this validator has left the views below and waits for this one to begin.
    pub changing: bool,
    /// Position of the view's primary, which orders the batches.
    pub primary: u16,
    /// The operator's name for the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_name: Option<String>,
    /// Whether this validator is the primary.
    pub is_primary: bool,
    /// Why this validator signs nothing; absent if it signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence: Option<Silence>,
    /// Whether this validator wants another primary.
    pub complains: bool,
    /// The last batch that this validator knows to be decided.
    pub decided: BatchNumber,
    /// The last batch that is decided, or that this validator voted to commit; none while it does not know its votes.
    /// Once its head reaches that batch, it can show every batch that its vote helped to certify.
    pub voted: Option<BatchNumber>,
    /// The batch that is voted on, once any vote is in.
    pub voting: Option<Voting>,
    /// How often the others agreed on another outcome than this validator's.
    pub divergences: u64,
    /// Messages and ordered batches of others that this validator refused since it started.
    pub refused: u64,
    /// Orders of others that this validator did not want, and did not unpack, since it started.
    #[serde(default)]
    pub unwanted: u64,
    /// Validators that provably gave two statements where they may give one.
    pub evidence: Vec<Conviction>,
    /// The other validators, with the last status of each.
    pub peers: Vec<PeerStanding>,
}

impl ConsensusStatus {
    /// Counts the validators of the set that were heard within the last `ms` milliseconds, including this one.
    pub fn heard_within(&self, ms: u64) -> usize {
        let heard = self.peers.iter().filter(|peer| peer.heard_ms_ago.is_some_and(|ago| ago <= ms));
        1 + heard.count()
    }

    /// Names the validators that this one knows not to vote; `None` if it knows none. Those that say that they sign
    /// nothing come with their reason. Those that were not heard within `ms` milliseconds come with the time since
    /// then.
    pub fn silent(&self, ms: u64) -> Option<String> {
        let mut said: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut unheard = Vec::new();
        for peer in &self.peers {
            let member = self.member(peer.index);
            match (peer.heard_ms_ago, peer.said.and_then(|said| said.silence)) {
                (None, _) => unheard.push(member),
                (Some(ago), _) if ago > ms => unheard.push(format!("{member} for {} s", ago / 1_000)),
                (Some(_), Some(silence)) => said.entry(silence.name()).or_default().push(member),
                (Some(_), None) => {}
            }
        }
        let names = |members: &[String]| {
            let more = members.len().saturating_sub(NAMED_MAX);
            let shown = members[..members.len() - more].join(", ");
            if more == 0 { shown } else { format!("{shown} and {more} more") }
        };
        let said = said.iter().map(|(name, who)| format!("{} {}", name.replace('_', " "), names(who)));
        let unheard = (!unheard.is_empty()).then(|| format!("not heard {}", names(&unheard)));
        let all: Vec<String> = said.chain(unheard).collect();
        (!all.is_empty()).then(|| format!("validators that do not vote: {}", all.join("; ")))
    }

    /// The operator's name for the validator at a position.
    pub fn name_of(&self, index: u16) -> Option<&str> {
        match index == self.index {
            true => self.name.as_deref(),
            false => self.peers.iter().find(|peer| peer.index == index)?.name.as_deref(),
        }
    }

    /// The validator at a position, for people to read: the position, with the name if it has one.
    pub fn member(&self, index: u16) -> String {
        self.name_of(index).map_or_else(|| index.to_string(), |name| format!("{index} ({name})"))
    }
}

/// The progress of agreement on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Voting {
    /// The batch.
    pub number: BatchNumber,
    /// Validators that prepared it, out of a quorum.
    pub prepares: usize,
    /// Validators that committed to it, out of a quorum.
    pub commits: usize,
}

/// A proven lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Conviction {
    /// Position of the convicted validator.
    pub author: u16,
    /// The view in which it happened.
    pub view: u64,
    /// The batch.
    pub number: BatchNumber,
    /// The kind of both statements.
    pub kind: EvidenceKind,
}

/// A proven lie with its proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Proof {
    /// The convicted validator, with the view and number.
    #[serde(flatten)]
    pub conviction: Conviction,
    /// The key of the convicted validator.
    pub key: PublicKey,
    /// The operator's name for that validator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Both signed statements: `slipstream_eve::Evidence` in BCS, in hexadecimal digits.
    pub evidence: String,
}

/// The kind of statement that a validator gave twice, differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceKind {
    /// It ordered two batches.
    Orders,
    /// It prepared two outcomes.
    Prepares,
    /// It committed to two outcomes.
    Commits,
}

/// Another validator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PeerStanding {
    /// Its position in the set.
    pub index: u16,
    /// Its key, which is its identity as a peer.
    pub key: PublicKey,
    /// The operator's name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Milliseconds since anything came from it; absent if nothing did since this validator started. Votes count, but
    /// none are sent while there is nothing to decide: a part of the node that sends it other requests may have heard
    /// it later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ms_ago: Option<u64>,
    /// Its orders that this validator did not want, and did not unpack, since this validator started.
    #[serde(default)]
    pub unwanted: u64,
    /// The progress that it last reported. It reports when nothing is decided for a while.
    #[serde(flatten)]
    pub said: Option<Position>,
}

/// The progress that another validator reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Position {
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
    /// Why it signs nothing; absent if it signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence: Option<Silence>,
    /// Milliseconds since it reported this.
    pub said_ms_ago: u64,
}

/// The state that the actor shows, with moments instead of ages.
#[derive(Clone, Debug)]
pub(super) struct PublishedStatus {
    pub(super) status: ConsensusStatus,
    /// The last batch whose commit the core knows.
    pub(super) committed: BatchNumber,
    heard: BTreeMap<u16, LastHeard>,
}

/// When a validator was heard last.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastHeard {
    /// The moment of its last message of any kind.
    pub(super) at: Instant,
    /// The moment of its last status.
    pub(super) said_at: Option<Instant>,
}

impl PublishedStatus {
    /// The state of a validator that knows nothing yet.
    pub(super) fn new(index: u16, set: &ValidatorSet) -> PublishedStatus {
        let members = (0..).zip(set.validators.iter()).filter(|(member, _)| *member != index);
        let peer = |(index, it): (u16, &Validator)| PeerStanding {
            index,
            key: it.public_key,
            name: None,
            heard_ms_ago: None,
            unwanted: 0,
            said: None,
        };
        let status = ConsensusStatus {
            index,
            name: None,
            validators: set.validators.len(),
            quorum: set.quorum(),
            view: 0,
            changing: false,
            primary: 0,
            primary_name: None,
            is_primary: index == 0,
            silence: None,
            complains: false,
            decided: BatchNumber::GENESIS,
            voted: None,
            voting: None,
            divergences: 0,
            refused: 0,
            unwanted: 0,
            evidence: Vec::new(),
            peers: members.map(peer).collect(),
        };
        PublishedStatus { status, committed: BatchNumber::GENESIS, heard: BTreeMap::new() }
    }

    /// Takes over the core's state.
    pub(super) fn update(&mut self, core: &Core, committed: BatchNumber, heard: &BTreeMap<u16, LastHeard>) {
        self.committed = committed;
        let (prepares, commits) = core.votes();
        let voting = Voting { number: core.decided().next(), prepares, commits };
        let said = |status: &Status| Position {
            view: status.view,
            changing: status.changing,
            complains: status.complains,
            decided: status.decided,
            ordered: status.ordered,
            silence: status.silence.map(Silence::from),
            said_ms_ago: 0,
        };
        let status = &mut self.status;
        status.view = core.view();
        status.changing = core.is_changing();
        status.primary = core.primary();
        status.is_primary = core.is_primary();
        status.silence = core.silence().map(Silence::from);
        status.complains = core.complains();
        status.decided = core.decided();
        status.voted = core.voted();
        status.voting = (prepares + commits > 0).then_some(voting);
        status.divergences = core.divergences();
        for peer in &mut status.peers {
            peer.said = core.heard().get(&peer.index).map(said);
        }
        self.heard.clone_from(heard);
    }

    /// Counts an order of the seat that was not wanted.
    pub(super) fn note_unwanted(&mut self, seat: u16) {
        self.status.unwanted += 1;
        if let Some(peer) = self.status.peers.iter_mut().find(|peer| peer.index == seat) {
            peer.unwanted += 1;
        }
    }

    /// The status as of now.
    pub(super) fn status(&self) -> ConsensusStatus {
        let mut status = self.status.clone();
        let ms_ago = |at: Instant| at.elapsed().as_millis() as u64;
        for peer in &mut status.peers {
            let Some(heard) = self.heard.get(&peer.index) else { continue };
            peer.heard_ms_ago = Some(ms_ago(heard.at));
            if let (Some(said), Some(said_at)) = (&mut peer.said, heard.said_at) {
                said.said_ms_ago = ms_ago(said_at);
            }
        }
        status
    }
}

impl Proof {
    /// Makes the proof from evidence. `None` if the set lacks the convicted seat.
    pub(super) fn of(evidence: &Evidence, set: &ValidatorSet) -> Option<Proof> {
        let conviction = Conviction::of(evidence, set);
        let key = set.validators.get(usize::from(conviction.author))?.public_key;
        let bytes = codec::encode("evidence", evidence).unwrap_or_default();
        Some(Proof { conviction, key, name: None, evidence: hex::encode_prefixed(bytes) })
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

#[cfg(test)]
mod tests {
    use slipstream_eve::{Ballot, Vote};
    use slipstream_types::{Digest, SecretKey};

    use super::*;
    use crate::testing::genesis;

    /// Goal: a proof has the key of the validator that it convicts; for a seat that the set lacks, there is no proof.
    #[test]
    fn a_proof_has_the_key_of_its_seat() {
        let set = genesis(3).validator_set();
        let ballot = Ballot { view: 1, number: BatchNumber::new(6), token: Digest::ZERO };
        let vote = Vote { ballot, signature: SecretKey::from_seed([1; 32]).sign(b"") };
        let proof = |seat| Proof::of(&Evidence::Prepares(seat, Box::new([vote; 2])), &set);
        for (seat, validator) in (0..).zip(set.validators.iter()) {
            let proof = proof(seat).unwrap();
            assert_eq!((proof.conviction.author, proof.key), (seat, validator.public_key));
        }
        assert_eq!(proof(3), None);
    }
}
