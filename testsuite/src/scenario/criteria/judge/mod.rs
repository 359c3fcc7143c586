//! [`judge`]: compares each criterion with the measurements.

use super::{
    Criterion, Findings, Percentile, PhaseTotals, Quantiles, ReadTotals, Statement, liars::liars_banned,
    names_of,
};
use crate::{
    report::{CriterionResult, NodeSeries, RunReport},
    scenario::{
        fault::What,
        model::Scenario,
        names::{Names, NodeIndex, VALIDATORS},
        plan::validators_at_end,
    },
};

/// The most list items that a result names; it counts the rest.
const TOLD_MAX: usize = 3;

/// The verdict on a criterion: whether it holds, what was measured, and what was wanted.
pub(super) type Verdict = (bool, String, String);

/// Judges all criteria of a scenario, in order.
pub fn judge(scenario: &Scenario, report: &RunReport, findings: &Findings) -> Vec<CriterionResult> {
    let names = Names::of(scenario);
    let told = names_of(&scenario.criteria);
    let judged = scenario.criteria.iter().zip(told).map(|(criterion, name)| {
        let (passed, measured, wanted) = one(criterion, scenario, &names, report, findings);
        CriterionResult { name, passed, measured, wanted }
    });
    judged.collect()
}

fn one(
    criterion: &Criterion,
    scenario: &Scenario,
    names: &Names,
    report: &RunReport,
    findings: &Findings,
) -> Verdict {
    let members = |list: &[String]| -> Vec<String> {
        names.find_all(list).into_iter().map(|place| names.name(place).to_owned()).collect()
    };
    match criterion {
        Criterion::Throughput { phase, at_least } => {
            let phase = phase_of(findings, phase);
            let rate = phase.map(|phase| phase.committed_per_second);
            let (passed, mut measured, wanted) = at_least_of(rate, *at_least, "per second");
            if phase.is_some_and(|phase| phase.is_limited_by_generators) {
                measured += "; the generators of the load were the limit, not the nodes";
            }
            (passed, measured, wanted)
        }
        Criterion::Commit { phase, percentile, at_most } => {
            let phase = phase_of(findings, phase);
            let missing = phase.map_or(0.0, |phase| phase.commit_missing_share);
            latency(phase.and_then(|phase| phase.commit_ms), missing, *percentile, at_most.ms())
        }
        Criterion::Follow { phase, percentile, at_most } => {
            let phase = phase_of(findings, phase);
            let missing = phase.map_or(0.0, |phase| phase.follow_missing_share);
            latency(phase.and_then(|phase| phase.follow_ms), missing, *percentile, at_most.ms())
        }
        Criterion::Read { phase, percentile, at_most, way } => {
            let of_way = phase_of(findings, phase).into_iter().flat_map(|phase| &phase.reads);
            let wanted = of_way.filter(|(found, _)| way.is_none_or(|way| way == **found));
            let reads = wanted.map(|(_, reads)| *reads).reduce(ReadTotals::worse).unwrap_or_default();
            latency(reads.ms, reads.failed_share, *percentile, at_most.ms())
        }
        Criterion::NewHeads { phase, percentile, at_most } => {
            let heads = phase_of(findings, phase).map(|phase| phase.new_heads).unwrap_or_default();
            latency(heads.ms, heads.failed_share, *percentile, at_most.ms())
        }
        Criterion::LoadComplete => load_complete(scenario, findings),
        Criterion::CatchUp { nodes, at_most } => {
            let drawn = drawn(scenario, names);
            catch_up(&members(nodes), &drawn, report, at_most.seconds())
        }
        Criterion::HeadAge { nodes, at_most, percent } => {
            head_age(&members(nodes), report, at_most.seconds(), *percent)
        }
        Criterion::NoProgress { at_most } => {
            at_most_of(longest_standstill(report), at_most.seconds(), "s without a new batch")
        }
        Criterion::Memory { nodes, mib_max } => {
            let most = worst(&members(nodes), report, NodeSeries::memory_max);
            at_most_of(most, *mib_max, "MiB")
        }
        Criterion::History { nodes, from_at_most, from_at_least } => {
            history(&members(nodes), findings, *from_at_most, *from_at_least)
        }
        Criterion::Epoch { at_least } => epoch(scenario, names, findings, *at_least),
        Criterion::EqualRoots => equal_roots(findings),
        Criterion::NobodyHonestBlamed => {
            none_of(&findings.blamed, &findings.unseen, "no honest node is blamed")
        }
        Criterion::NoAlarm => none_of(&findings.alarms, &findings.unseen, "no alarm"),
        Criterion::Convicted { nodes, of } => convicted(&members(nodes), names, findings, of),
        Criterion::LiarsBanned { nodes, at_most, lie } => {
            liars_banned(&members(nodes), *lie, at_most.seconds(), scenario, report)
        }
    }
}

fn phase_of<'a>(findings: &'a Findings, name: &str) -> Option<&'a PhaseTotals> {
    findings.phases.iter().find(|phase| phase.name == name)
}

fn at_least_of(value: Option<f64>, limit: f64, unit: &str) -> Verdict {
    (value.is_some_and(|value| value >= limit), shown(value, unit), format!("at least {limit} {unit}"))
}

fn at_most_of(value: Option<f64>, limit: f64, unit: &str) -> Verdict {
    (value.is_some_and(|value| value <= limit), shown(value, unit), format!("at most {limit} {unit}"))
}

fn shown(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.1} {unit}"))
}

/// Judges a latency percentile. Missing samples count as later than any other, so a percentile that falls on one fails.
fn latency(quantiles: Option<Quantiles>, missing_share: f64, percentile: Percentile, ms_max: u64) -> Verdict {
    let value = quantiles.map(|quantiles| quantiles.of(percentile));
    let (mut passed, mut measured, wanted) = at_most_of(value, ms_max as f64, "ms");
    if missing_share > 0.0 {
        measured += &format!("; {:.2} % never arrived", missing_share * 100.0);
    }
    passed &= missing_share <= 1.0 - percentile.share();
    (passed, measured, wanted)
}

fn load_complete(scenario: &Scenario, findings: &Findings) -> Verdict {
    let mut wrong: Vec<String> = findings.phases.iter().filter_map(incomplete).collect();
    // The outcome of such a load is unknown.
    let unknown = scenario.workload.iter().filter(|phase| phase_of(findings, &phase.name).is_none());
    wrong.extend(unknown.map(|phase| format!("{}: it reported no figures; see nothing_ended", phase.name)));
    let committed: u64 = findings.phases.iter().map(|phase| phase.committed).sum();
    let of = |count: fn(&PhaseTotals) -> u64| findings.phases.iter().map(count).sum::<u64>();
    let (receipts, balances) = (of(|phase| phase.audit.receipts), of(|phase| phase.audit.balances));
    let measured = match (wrong.is_empty(), committed) {
        (true, 0) => "no phase committed anything".to_owned(),
        (true, committed) => {
            format!(
                "{committed} committed, none missing; {receipts} receipts and {balances} balances are right"
            )
        }
        (false, _) => told(&wrong),
    };
    let wanted = "every accepted transaction is committed, and all receipts and balances are right";
    (wrong.is_empty() && committed > 0, measured, wanted.to_owned())
}

/// Describes what is missing or wrong in a phase; `None` if it is complete. Anything that was not compared counts as
/// missing.
fn incomplete(phase: &PhaseTotals) -> Option<String> {
    let PhaseTotals { name, accepted, given_up, committed, audit, .. } = phase;
    let mut wrong = audit.wrong();
    if audit.receipts < *committed {
        wrong.push(format!("{} receipts compared", audit.receipts));
    }
    if audit.balances == 0 {
        wrong.push("no balances compared".to_owned());
    }
    if committed >= accepted && *given_up == 0 && wrong.is_empty() {
        return None;
    }
    let wrong = if wrong.is_empty() { "0 wrong".to_owned() } else { wrong.join(", ") };
    Some(format!("{name}: {committed} of {accepted} committed, {given_up} given up, {wrong}"))
}

/// Returns nodes that the seed or the chain may have chosen for a fault. Lying peers do not count: a node that is lied
/// to keeps running.
fn drawn(scenario: &Scenario, names: &Names) -> Vec<String> {
    let leaves_out = |what: &What| what.draws() && !matches!(what, What::LyingPeers { .. });
    let may_be = |place: &NodeIndex| {
        let mut faults = scenario.faults.iter().filter(|fault| leaves_out(&fault.what));
        faults.any(|fault| fault.what.may_meet(&scenario.topology, names, *place))
    };
    names.all().filter(may_be).map(|place| names.name(place).to_owned()).collect()
}

fn catch_up(members: &[String], drawn: &[String], report: &RunReport, seconds_max: f64) -> Verdict {
    let wanted = format!("at most {seconds_max} s");
    let (mut slowest, mut measured): (f64, usize) = (0.0, 0);
    for name in members {
        let mut curves = report.catch_up.iter().filter(|curve| curve.node == *name).peekable();
        match curves.peek() {
            None if drawn.contains(name) => continue,
            None => return (false, format!("{name} neither joined nor came back"), wanted),
            Some(_) => measured += 1,
        }
        for curve in curves {
            match curve.seconds {
                Some(seconds) => slowest = slowest.max(seconds),
                None => return (false, format!("{name} did not reach the head"), wanted),
            }
        }
    }
    if measured == 0 {
        return (false, "no listed node joined or came back".to_owned(), wanted);
    }
    (slowest <= seconds_max, format!("{slowest:.1} s, the slowest of {measured}"), wanted)
}

fn head_age(members: &[String], report: &RunReport, seconds_max: f64, percent: f64) -> Verdict {
    let age = worst(members, report, |node| {
        let mut ages: Vec<f64> = node.head_age.points.iter().map(|(_, age)| *age).collect();
        ages.sort_by(f64::total_cmp);
        let rank = (ages.len() as f64 * percent / 100.0).ceil() as usize;
        ages.get(rank.max(1) - 1).copied()
    });
    let (passed, measured, wanted) = at_most_of(age, seconds_max, "s");
    (passed, measured, format!("{wanted} in {percent} % of the samples of each node"))
}

/// Returns the largest value of these nodes; `None` if a node has no value, or the list is empty.
fn worst(members: &[String], report: &RunReport, value: impl Fn(&NodeSeries) -> Option<f64>) -> Option<f64> {
    let of = |name: &String| report.nodes.iter().find(|node| node.name == *name).and_then(&value);
    let values: Vec<f64> = members.iter().map(of).collect::<Option<_>>()?;
    values.into_iter().max_by(f64::total_cmp)
}

/// Returns the longest time, in seconds, in which no node's head exceeded the highest so far, up to the end of the run.
fn longest_standstill(report: &RunReport) -> Option<f64> {
    let mut heads: Vec<(u64, f64)> = report.nodes.iter().flat_map(|node| node.head.points.clone()).collect();
    heads.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let (mut since, mut highest) = *heads.first()?;
    let mut longest = 0;
    for (at_ms, head) in heads {
        if head > highest {
            longest = longest.max(at_ms - since);
            (since, highest) = (at_ms, head);
        }
    }
    let end_ms = (report.seconds * 1_000.0) as u64;
    Some(longest.max(end_ms.saturating_sub(since)) as f64 / 1_000.0)
}

fn history(members: &[String], findings: &Findings, most: Option<u64>, least: Option<u64>) -> Verdict {
    let bounds = [
        most.map(|most| format!("batch {most} or before")),
        least.map(|least| format!("batch {least} or after")),
    ];
    let wanted = format!("begins at {}", bounds.into_iter().flatten().collect::<Vec<_>>().join(", and "));
    let wrong: Vec<String> = members
        .iter()
        .filter_map(|name| match findings.history.get(name) {
            None => Some(format!("{name} did not answer")),
            Some(from)
                if most.is_some_and(|most| *from > most) || least.is_some_and(|least| *from < least) =>
            {
                Some(format!("{name} begins at batch {from}"))
            }
            Some(_) => None,
        })
        .collect();
    let passed = wrong.is_empty() && !members.is_empty();
    (passed, if passed { format!("all {} nodes do", members.len()) } else { told(&wrong) }, wanted)
}

/// Judges the nodes' epoch. A validator that is down has failed to reach the epoch in which it must vote; other nodes
/// may be held down.
fn epoch(scenario: &Scenario, names: &Names, findings: &Findings, least: u64) -> Verdict {
    let wanted = format!("one epoch, at least {least}");
    let validators = validators_at_end(scenario, names);
    let is_asked =
        |place: &NodeIndex| validators.contains(place) || !findings.held.contains(names.name(*place));
    let found: Vec<(&str, Option<u64>)> = names
        .all()
        .filter(is_asked)
        .map(|place| names.name(place))
        .map(|name| (name, findings.epochs.get(name).copied()))
        .collect();
    let Some((_, first)) = found.first().copied() else {
        return (false, "every node is down".to_owned(), wanted);
    };
    let passed = first.is_some_and(|epoch| epoch >= least) && found.iter().all(|(_, epoch)| *epoch == first);
    let told: Vec<String> = found
        .iter()
        .filter(|(_, epoch)| *epoch != first)
        .map(|(name, epoch)| match epoch {
            Some(epoch) => format!("{name} is in {epoch}"),
            None => format!("{name} did not answer"),
        })
        .collect();
    let first = first.map_or_else(|| "unknown".to_owned(), |epoch| epoch.to_string());
    let rest = match (told.is_empty(), found.len() == names.len()) {
        (true, true) => "all nodes".to_owned(),
        (true, false) => format!("{} of {} nodes; the others are down", found.len(), names.len()),
        (false, _) => self::told(&told),
    };
    (passed, format!("{first}, {rest}"), wanted)
}

fn equal_roots(findings: &Findings) -> Verdict {
    let wanted = "one state root".to_owned();
    match findings.compared_at {
        _ if !findings.apart.is_empty() => (false, told(&findings.apart), wanted),
        Some(_) if findings.compared < 2 => (false, "only one node could be compared".to_owned(), wanted),
        Some(batch) => (true, format!("equal at {} nodes after batch {batch}", findings.compared), wanted),
        None => (false, "the states were not compared".to_owned(), wanted),
    }
}

fn convicted(liars: &[String], names: &Names, findings: &Findings, of: &[Statement]) -> Verdict {
    let kinds: Vec<&str> = of.iter().map(|statement| statement.name()).collect();
    let wanted = match kinds.is_empty() {
        true => "proof at each other validator".to_owned(),
        false => format!("proof at each other validator, of two {}", kinds.join(" and two ")),
    };
    let validators = names.find(VALIDATORS).into_iter().map(|place| names.name(place));
    let others: Vec<&str> = validators.filter(|name| !liars.iter().any(|liar| liar == name)).collect();
    let mut missing = Vec::new();
    for other in &others {
        for liar in liars {
            let found = findings.convictions.get(*other).and_then(|found| found.get(liar));
            match found {
                None => missing.push(format!("{other} has no proof that {liar} lied")),
                Some(found) => {
                    missing.extend(kinds.iter().filter(|kind| !found.contains(**kind)).map(|kind| {
                        format!("{other} has no proof that {liar} signed two {kind}, only of {found:?}")
                    }))
                }
            }
        }
    }
    let passed = missing.is_empty() && !liars.is_empty() && !others.is_empty();
    (passed, if passed { format!("all {} validators have it", others.len()) } else { told(&missing) }, wanted)
}

/// Judges an accusation list that must be empty. A node that never answered may have accused anyone.
fn none_of(list: &[String], unseen: &[String], wanted: &str) -> Verdict {
    let measured = match (list, unseen) {
        ([], []) => "none".to_owned(),
        ([], unseen) => format!("never answered: {}", told(unseen)),
        (list, _) => told(list),
    };
    (list.is_empty() && unseen.is_empty(), measured, wanted.to_owned())
}

/// Joins the first items of a list, with the number of further ones.
pub(super) fn told(list: &[String]) -> String {
    let mut text = list.iter().take(TOLD_MAX).cloned().collect::<Vec<_>>().join("; ");
    if list.len() > TOLD_MAX {
        text += &format!("; and {} more", list.len() - TOLD_MAX);
    }
    text
}

#[cfg(test)]
mod tests;
