//! Judges whether nodes detected the peers that lied to them.

use std::collections::BTreeSet;

use super::judge::{Verdict, told};
use crate::{
    report::{LiarOpinion, RunReport},
    scenario::{
        fault::{PeerLie, Target, What},
        model::Scenario,
        names::Names,
    },
};

/// Whether a criterion covers the liars of a fault. A criterion without a lie covers the lies that every node hears.
pub(in crate::scenario) fn counts_liars(lie: Option<PeerLie>, what: &What) -> bool {
    matches!(what, What::LyingPeers { lie: told, .. } if is_about(lie, *told))
}

fn is_about(lie: Option<PeerLie>, told: PeerLie) -> bool {
    lie.map_or_else(|| told.is_told_to_all(), |lie| lie == told)
}

/// Judges the bans. Each liar must be banned, and each node that a fault names must have met a liar with that lie.
/// Without `nodes`, the liars of all nodes count.
pub(super) fn liars_banned(
    nodes: &[String],
    lie: Option<PeerLie>,
    seconds_max: f64,
    scenario: &Scenario,
    report: &RunReport,
) -> Verdict {
    let wanted = format!("each within {seconds_max} s");
    let is_asked = |node: &String| nodes.is_empty() || nodes.contains(node);
    let is_counted = |it: &&LiarOpinion| {
        is_asked(&it.node) && PeerLie::named(&it.lie).is_some_and(|told| is_about(lie, told))
    };
    let liars: Vec<&LiarOpinion> = report.liars.iter().filter(is_counted).collect();
    let mut missing: Vec<String> = named_by_faults(lie, scenario)
        .into_iter()
        .filter(|(node, lie)| is_asked(node) && !liars.iter().any(|it| it.node == *node && it.lie == *lie))
        .map(|(node, lie)| format!("{node} met no liar ({lie})"))
        .collect();
    let mut slowest: f64 = 0.0;
    for LiarOpinion { node, liar, lie, banned_after_seconds, .. } in &liars {
        match banned_after_seconds {
            Some(seconds) => slowest = slowest.max(*seconds),
            None => missing.push(format!("{node} did not ban {liar} ({lie})")),
        }
    }
    if !missing.is_empty() {
        return (false, told(&missing), wanted);
    }
    if liars.is_empty() {
        return (false, "the nodes met no liar".to_owned(), wanted);
    }
    (slowest <= seconds_max, format!("{slowest:.1} s, the slowest of {}", liars.len()), wanted)
}

/// Returns the nodes that faults name explicitly, each with the lie that it should hear. Nodes chosen by the seed or
/// the chain do not count.
fn named_by_faults(lie: Option<PeerLie>, scenario: &Scenario) -> BTreeSet<(String, String)> {
    let names = Names::of(scenario);
    let mut all = BTreeSet::new();
    for fault in scenario.faults.iter().filter(|fault| counts_liars(lie, &fault.what)) {
        let What::LyingPeers { who: Target::Nodes(list) | Target::Rolling { nodes: list, .. }, lie, .. } =
            &fault.what
        else {
            continue;
        };
        // `primary` matches no node.
        let named = names.find_all(list).into_iter().map(|place| names.name(place).to_owned());
        all.extend(named.map(|node| (node, lie.name())));
    }
    all
}
