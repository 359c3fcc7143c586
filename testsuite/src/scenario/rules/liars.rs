//! The rules of liars: how many lying peers a node has at once, who must ban them, and who must be convicted.

use super::{
    Rules,
    at::{At, Checked},
};
use crate::scenario::{
    criteria::{Statement, counts_liars},
    fault::{Lie, PeerLie, What},
    names::{NodeIndex, may_validate},
    plan::{Action, PlannedNode, of_fault},
    span::Span,
};

/// The most liars of one node at once: a node accepts no more peers from its operator's command.
const LIARS_AT_ONCE_MAX: u32 = 64;
/// How much longer than planned liars may stay: a fault ends late by the time that its beginning and earlier events
/// took.
const LATE_MS: u64 = 5_000;

/// Liars that a node gets.
struct PlannedLiars {
    /// The index of the fault.
    fault: usize,
    who: PlannedNode,
    count: u32,
    from_ms: u64,
    /// `None` if the fault has no end.
    until_ms: Option<u64>,
}

impl PlannedLiars {
    /// Whether they may be present at a moment.
    fn lasts_at(&self, moment_ms: u64) -> bool {
        self.from_ms <= moment_ms && self.until_ms.is_none_or(|until| moment_ms < until + LATE_MS)
    }
}

impl Rules<'_> {
    /// Checks, with the seed's draws, that a node never has more liars than it accepts. `primary` may be any validator.
    pub(super) fn liars_at_once(&self) -> Checked {
        let given = self.given();
        for place in self.names.all() {
            let meets = |given: &&PlannedLiars| match given.who {
                PlannedNode::Node(met) => met == place,
                PlannedNode::Primary => may_validate(self.topology(), &self.names, place),
            };
            // Their number is largest when new ones arrive.
            for last in given.iter().filter(meets) {
                let there = given.iter().filter(meets).filter(|other| other.lasts_at(last.from_ms));
                let count: u32 = there.map(|other| other.count).sum();
                if count > LIARS_AT_ONCE_MAX {
                    return Err(At::key("faults").item(last.fault).wrong(format!(
                        "with it `{}` may have {count} liars at once, and a node takes at most {LIARS_AT_ONCE_MAX}: use a smaller `count`, or end others {} earlier with `for`",
                        self.names.name(place),
                        Span::from_ms(LATE_MS)
                    )));
                }
            }
        }
        Ok(())
    }

    fn given(&self) -> Vec<PlannedLiars> {
        let mut given = Vec::new();
        for (fault, _) in self.scenario.faults.iter().enumerate().filter(|(_, it)| it.what.gives_liars()) {
            for event in of_fault(self.scenario, &self.names, fault) {
                if let Action::LyingPeers { count, who, .. } = event.action {
                    let (from_ms, until_ms) = (event.at_ms, event.until_ms);
                    given.push(PlannedLiars { fault, who, count, from_ms, until_ms });
                }
            }
        }
        given
    }

    /// Checks that nodes that must ban liars get liars whose lie can be proven.
    pub(super) fn lied_to(&self, at: &At, nodes: &[String], lie: Option<PeerLie>) -> Checked {
        if let Some(lie) = lie.filter(|lie| !lie.can_be_proven()) {
            let provable = PeerLie::ALL.iter().copied().filter(|lie| lie.can_be_proven()).map(PeerLie::name);
            return Err(at.then("lie").wrong(format!(
                "no node can prove `{}`: name one of {}",
                lie.name(),
                provable.collect::<Vec<_>>().join(", ")
            )));
        }
        let whats = self.scenario.faults.iter().map(|fault| &fault.what);
        let given: Vec<&What> = whats.filter(|what| counts_liars(lie, what)).collect();
        if given.is_empty() {
            let lie = lie.unwrap_or(PeerLie::ForgedHeads).name();
            return Err(at.wrong(format!(
                "no fault gives a node such liars: write `lying_peers` with `lie: {lie}` into `faults`"
            )));
        }
        let may_be =
            |place: NodeIndex| given.iter().any(|what| what.may_meet(self.topology(), &self.names, place));
        match self.names.find_all(nodes).into_iter().find(|place| !may_be(*place)) {
            None => Ok(()),
            Some(never) => Err(at.then("nodes").wrong(format!(
                "no fault gives `{}` such liars: leave it out, or name it in a `lying_peers`",
                self.names.name(never)
            ))),
        }
    }

    /// Checks that a validator that must be convicted tells a lie with evidence, of each required statement.
    pub(super) fn lied(&self, at: &At, nodes: &[String], of: &[Statement]) -> Checked {
        for place in self.names.find_all(nodes) {
            let name = self.names.name(place);
            let lies = self.lies_of(place);
            if lies.is_empty() {
                return Err(at
                    .then("nodes")
                    .wrong(format!("no fault makes `{name}` lie: write `lying_validator` into `faults`")));
            }
            let evidence: Vec<Statement> = lies.iter().flat_map(|lie| lie.evidence()).copied().collect();
            if evidence.is_empty() {
                return Err(at.then("nodes").wrong(format!(
                    "no lie of `{name}` leaves evidence, so no validator can convict it: only {} do",
                    Lie::CONVICTS
                )));
            }
            if let Some(index) = of.iter().position(|statement| !evidence.contains(statement)) {
                let mut names: Vec<&str> = evidence.iter().map(|statement| statement.name()).collect();
                names.sort_unstable();
                names.dedup();
                return Err(at.then("of").item(index).wrong(format!(
                    "no lie of `{name}` leaves evidence of two {}, only of {}: ask for these",
                    of[index].name(),
                    names.join(" and ")
                )));
            }
        }
        Ok(())
    }

    /// Returns the lies that faults may make a validator tell. Any validator may be primary at that time.
    fn lies_of(&self, place: NodeIndex) -> Vec<&Lie> {
        let faults = self.scenario.faults.iter().map(|fault| &fault.what);
        let faults = faults.filter(|what| what.may_meet(self.topology(), &self.names, place));
        faults
            .filter_map(|what| match what {
                What::LyingValidator { lie, .. } => Some(lie),
                _ => None,
            })
            .collect()
    }
}
