//! [`write_files`]: writes a scenario's nodes, loads and faults as files for other machines.
//!
//! Loads, link faults and most node faults follow the scenario's clock by themselves. Anything that the files cannot do
//! is reported by name: nothing is left out silently.

mod config;
mod taker;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

pub(super) use self::taker::stays_free;
use self::taker::taker;
use super::{
    attacks::ATTACKS,
    engine::{
        act::described,
        phase::audit_behind,
        setup::{CURRENT, alike, disk_mib, program_of, relayed, settings_of, shape},
    },
    fault::What,
    model::{Part, Phase, PhaseRate, Scenario},
    names::{Names, Place, may_validate},
    parse::SCENARIO_BYTES_MAX,
    plan::{Action, Event, Harm, Who, plan},
    unjudged::unjudged,
};
use crate::{
    accounts,
    devnet::{self, DevnetOptions, files},
    load::Workload,
    manifest::Role,
    operate::{self, Order},
    relay::Change,
    report::Unjudged,
    target::{self, Blueprint, Job, Member, SHARED, Target, Way, Written, link_address},
    time,
};

/// Writes the files that run a scenario on a target into a directory. Compose publishes the nodes' APIs from
/// `base_port` up.
///
/// # Errors
/// If the scenario exceeds a limit of the files, or a file cannot be written.
pub fn write_files(
    target: Target,
    scenario: &Scenario,
    dir: &Path,
    base_port: Option<u16>,
) -> Result<Written> {
    target::write_blueprint(target, &blueprint(scenario, dir, base_port, target.has_lists())?)
}

/// Builds the target's input. `has_lists` says whether loads have their access lists there.
fn blueprint(scenario: &Scenario, dir: &Path, base_port: Option<u16>, has_lists: bool) -> Result<Blueprint> {
    let names = Names::of(scenario);
    let events = plan(scenario);
    let mut left_out = left_out(scenario, has_lists);
    let mut members = Vec::with_capacity(names.len());
    for place in names.all() {
        members.push(member(scenario, &names, &events, place)?);
    }
    let jobs = jobs(scenario, &names, (has_lists, &mut left_out))?;
    left_out.extend(undone(scenario, &names, &events));
    Ok(Blueprint {
        dir: dir.to_owned(),
        base_port,
        seed: scenario.seed.clone(),
        validators: scenario.topology.validators,
        accounts: alike(scenario).accounts,
        attackers_from: scenario.topology.accounts,
        extras: files::Extras::of(&DevnetOptions::default()),
        members,
        jobs,
        is_timed: true,
        shared: config::names_dir(scenario).then_some(SHARED),
        judged: Some(text(scenario)?),
        left_out,
    })
}

/// Formats the scenario for its judge.
fn text(scenario: &Scenario) -> Result<String> {
    let value = serde_json::to_value(scenario).context("the scenario is no YAML")?;
    let text = target::yaml(&value).context("the scenario is no YAML")?;
    let length = text.len() as u64;
    ensure!(
        length <= SCENARIO_BYTES_MAX,
        "written out, the scenario has {length} bytes, and {SCENARIO_BYTES_MAX} are read: take fewer faults or phases"
    );
    Ok(text)
}

/// Describes the parts that no target can do.
fn left_out(scenario: &Scenario, has_lists: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for group in &scenario.topology.groups {
        if let Some(attack) = group.among.as_ref().filter(|_| group.waypoint) {
            lines.push(format!(
                "the attack {attack} among the peers of {}, which trusts a waypoint: only its honest peers are",
                group.name
            ));
        }
    }
    let unjudged = unjudged(scenario, has_lists).into_iter();
    lines.extend(unjudged.map(|Unjudged { name, why }| format!("the criterion {name} is not judged: {why}")));
    lines
}

fn has_relays(scenario: &Scenario) -> bool {
    let mut faults = scenario.faults.iter();
    scenario.topology.settings.iter().any(|settings| settings.region.is_some())
        || faults.any(|fault| matches!(fault.what, What::Link { .. } | What::Partition { .. }))
}

fn member(scenario: &Scenario, names: &Names, events: &[Event], place: Place) -> Result<Member> {
    let name = names.name(place);
    let has_relays = has_relays(scenario);
    let peers = peers(scenario, names, place);
    let orders = orders(scenario, names, events, place);
    // Attackers beside a node connect from loopback addresses, and reach another node only through the sidecar.
    let group = names.group(place).map(|group| &scenario.topology.groups[group]);
    let among = group.filter(|group| !group.waypoint).and_then(|group| group.among.clone());
    let has_sidecar = has_relays || among.is_some() || orders.iter().any(|order| order.what.has_attackers());
    let changes = peers.iter().flat_map(|peer| changes(scenario, events, place, *peer)).collect();
    let ways = peers
        .iter()
        .map(|peer| Way { to: peer.0, shape: has_sidecar.then(|| shape(scenario, names, place, *peer)) });
    let region = settings_of(scenario, names, place).filter_map(|settings| settings.region.clone()).last();
    Ok(Member {
        name: name.to_owned(),
        role: match may_validate(&scenario.topology, names, place) {
            true => Role::Validator,
            false => Role::Fullnode,
        },
        key: accounts::node_key(&scenario.seed, u32::try_from(place.0)?),
        region,
        ways: ways.collect(),
        changes,
        orders,
        among,
        waypoint_from: waypoint_from(scenario, names, place),
        program: other_program(scenario, names, place).map(str::to_owned),
        disk_mib: disk_mib(scenario, names, place),
        config: config::of(scenario, names, place),
    })
}

/// Returns the node that gives a fullnode its waypoint: the first validator.
fn waypoint_from(scenario: &Scenario, names: &Names, place: Place) -> Option<usize> {
    let group = &scenario.topology.groups[names.group(place)?];
    (group.waypoint && group.part == Part::Fullnode).then_some(0)
}

/// Returns the program that a node starts with, if it is not the current one.
fn other_program<'a>(scenario: &'a Scenario, names: &'a Names, place: Place) -> Option<&'a str> {
    program_of(scenario, names, place).filter(|program| *program != CURRENT)
}

/// Returns when a node starts, in ms after the clock does.
fn starts_ms(scenario: &Scenario, names: &Names, place: Place) -> u64 {
    let joins = names.group(place).and_then(|group| scenario.topology.groups[group].joins);
    joins.map_or(0, |joins| joins.ms())
}

/// Returns the nodes that a node dials: those of `behind`, or else all that started before it. Validators dial each
/// other.
fn peers(scenario: &Scenario, names: &Names, place: Place) -> Vec<Place> {
    let validators = scenario.topology.validators as usize;
    let group = names.group(place).map(|group| &scenario.topology.groups[group]);
    match group {
        None => names.all().filter(|other| devnet::dials(place.0, other.0, validators)).collect(),
        Some(group) if !group.behind.is_empty() => names.find_all(&group.behind),
        Some(_) => {
            let order = |place: Place| (starts_ms(scenario, names, place), place);
            names.all().filter(|other| order(*other) < order(place)).collect()
        }
    }
}

/// Returns the changes that the plan makes to the link from one node to another.
fn changes(scenario: &Scenario, events: &[Event], from: Place, to: Place) -> impl Iterator<Item = Change> {
    events.iter().filter_map(move |event| {
        let Action::Links { pairs, shape } = &event.action else { return None };
        let lies_between = pairs.contains(&(from, to)) || pairs.contains(&(to, from));
        lies_between.then(|| Change {
            listen: link_address(to.0),
            from: Duration::from_millis(event.at_ms),
            until: until_ms(scenario, event).map(Duration::from_millis),
            shape: shape.as_ref().map(relayed),
        })
    })
}

/// Returns the plan's orders for a node. Orders for the primary go to every node that may be primary; the one that is
/// primary at that time carries them out.
fn orders(scenario: &Scenario, names: &Names, events: &[Event], place: Place) -> Vec<Order> {
    let meets = |event: &&Event| match &event.action {
        Action::Join(node)
        | Action::ExportSnapshot(node)
        | Action::Node { who: Who::Node(node), .. }
        | Action::LyingPeers { who: Who::Node(node), .. }
        | Action::Attack { victim: node, .. } => *node == place,
        Action::Node { who: Who::Primary, .. } | Action::LyingPeers { who: Who::Primary, .. } => {
            may_validate(&scenario.topology, names, place)
        }
        Action::AddValidator(node) | Action::RemoveValidator(node) => {
            taker(scenario, names, events, (*node, event.at_ms)) == Some(place)
        }
        Action::Links { .. } => false,
    };
    events.iter().filter(meets).filter_map(|event| order(scenario, event)).collect()
}

/// Returns the nodes whose operator reports to the judge.
pub(super) fn operated(scenario: &Scenario, names: &Names) -> Vec<Place> {
    let events = plan(scenario);
    let has_orders = |place: Place| !orders(scenario, names, &events, place).is_empty();
    let is_operated = |place: &Place| {
        has_orders(*place)
            || waypoint_from(scenario, names, *place).is_some()
            || other_program(scenario, names, *place).is_some()
    };
    names.all().filter(is_operated).collect()
}

/// Returns when an event ends: at the latest with the scenario, as on one machine.
pub(super) fn until_ms(scenario: &Scenario, event: &Event) -> Option<u64> {
    let end_ms = scenario.duration.ms();
    // Programs beside a node end with the scenario even if nothing ends them, so that somebody sees whether they lasted
    // until then.
    let is_beside = matches!(event.action, Action::LyingPeers { .. } | Action::Attack { .. });
    let until_ms = event.until_ms.or((is_beside && event.at_ms < end_ms).then_some(end_ms));
    until_ms.map(|until| if event.at_ms < end_ms { until.min(end_ms) } else { until })
}

/// Whether the files include the load of a phase. `has_lists` says whether loads have their access lists there.
pub(super) fn has_load(scenario: &Scenario, name: &str, has_lists: bool) -> bool {
    scenario.workload.iter().any(|phase| phase.name == name && (has_lists || !takes_lists(phase)))
}

fn takes_lists(phase: &Phase) -> bool {
    phase.mix.contains_key(Workload::AccessLists.name())
}

/// Whether the files carry out the event.
pub(super) fn is_done(scenario: &Scenario, event: &Event) -> bool {
    matches!(event.action, Action::Links { .. }) || order(scenario, event).is_some()
}

/// Converts an event to an order for the affected node; `None` if nothing in a container can carry it out.
fn order(scenario: &Scenario, event: &Event) -> Option<Order> {
    let index = |place: &Place| u32::try_from(place.0).ok();
    let key = |index: u32| accounts::node_key(&scenario.seed, index).public();
    let what = match &event.action {
        Action::Join(_) => operate::What::Join,
        Action::Node { harm, .. } => order_of(harm)?,
        Action::LyingPeers { lie, count, .. } => operate::What::LyingPeers(lie.of_program(), *count),
        Action::Attack { name, .. } => {
            operate::What::Attack(ATTACKS.iter().find(|attack| *attack == name).copied()?)
        }
        Action::ExportSnapshot(_) => operate::What::ExportSnapshot,
        Action::AddValidator(place) => {
            let index = index(place)?;
            operate::What::AddValidator(key(index), accounts::fee_recipient(&scenario.seed, index))
        }
        Action::RemoveValidator(place) => operate::What::RemoveValidator(key(index(place)?)),
        Action::Links { .. } => return None,
    };
    let to_primary = event.action.whom() == Some(Who::Primary);
    // An upgrade is over once the node runs again.
    let is_upgrade = matches!(event.action, Action::Node { harm: Harm::Upgrade(_), .. });
    let until = until_ms(scenario, event).filter(|_| !is_upgrade).map(Duration::from_millis);
    Some(Order { from: Duration::from_millis(event.at_ms), until, what, to_primary })
}

/// Returns the order's text as its node reports it to the judge; `None` if the node does not report it.
pub(super) fn told_order(scenario: &Scenario, event: &Event) -> Option<String> {
    order(scenario, event).filter(Order::is_told).map(|order| order.to_string())
}

fn order_of(harm: &Harm) -> Option<operate::What> {
    match harm {
        Harm::Kill => Some(operate::What::Kill),
        Harm::Pause => Some(operate::What::Pause),
        Harm::Restart => Some(operate::What::Restart),
        Harm::Wipe => Some(operate::What::Wipe),
        Harm::BitFlip(draw) => Some(operate::What::BitFlip(*draw)),
        Harm::SlowDisk(delay_ms) => Some(operate::What::SlowDisk(*delay_ms)),
        Harm::ClockJump(by_ms) => Some(operate::What::ClockJump(*by_ms)),
        Harm::FullDisk => Some(operate::What::FullDisk),
        Harm::Liar(lie) => Some(operate::What::Lie(lie)),
        Harm::Upgrade(to) => Some(operate::What::Upgrade(to.clone())),
        Harm::OldState => Some(operate::What::OldData),
        Harm::Twin(_) => None,
    }
}

fn jobs(
    scenario: &Scenario,
    names: &Names,
    (has_lists, left_out): (bool, &mut Vec<String>),
) -> Result<Vec<Job>> {
    let phases = &scenario.workload;
    // Each phase has its own accounts: phases may overlap, and two loads would take each other's nonces.
    let share = (scenario.topology.accounts as usize / phases.len().max(1)).max(1);
    let mut jobs = Vec::with_capacity(phases.len());
    for (index, phase) in phases.iter().enumerate() {
        if takes_lists(phase) && !has_lists {
            left_out.push(format!("the phase {}: no image has its access lists", phase.name));
            continue;
        }
        let first = |name: &String| names.find(name).first().copied();
        let read_from = phase.read_from.as_ref().and_then(first);
        let others = names.find_all(&phase.to).into_iter().filter(|place| Some(*place) != read_from);
        jobs.push(Job {
            name: format!("load-{}", phase.name),
            phase: Some(phase.name.clone()),
            submit: read_from.into_iter().chain(others).map(|place| place.0).collect(),
            followers: names.find_all(&phase.followers).into_iter().map(|place| place.0).collect(),
            access_lists: access_lists(phase)?,
            arguments: arguments(scenario, phase, index * share, share),
        });
    }
    Ok(jobs)
}

/// Returns the full path of a phase's access lists.
fn access_lists(phase: &Phase) -> Result<Option<PathBuf>> {
    let dir = phase.access_lists.as_ref().filter(|_| takes_lists(phase)).map(PathBuf::from);
    let found = dir.map(|dir| {
        dir.canonicalize().with_context(|| format!("the access lists of {}: {}", phase.name, dir.display()))
    });
    found.transpose()
}

fn arguments(scenario: &Scenario, phase: &Phase, skipped: usize, accounts: usize) -> Vec<String> {
    let mix: Vec<String> = phase.mix.iter().map(|(kind, weight)| format!("{kind}={weight}")).collect();
    let random = accounts::number(&scenario.seed, &format!("load {}", phase.name));
    let mut pairs = vec![
        ("--seed", scenario.seed.clone()),
        ("--accounts", accounts.to_string()),
        ("--skip-accounts", skipped.to_string()),
        ("--random", random.to_string()),
        ("--mix", mix.join(",")),
        ("--reads", phase.reads_per_second.to_string()),
        ("--audit-behind", audit_behind(&scenario.topology).to_string()),
        ("--at", time::short(phase.at.ms())),
    ];
    let lasts = time::short(phase.lasts.ms());
    match phase.rate {
        PhaseRate::Constant(rate) => pairs.extend([("--tps", rate.to_string()), ("--duration", lasts)]),
        PhaseRate::Ramp { from, to } => {
            pairs.extend([("--tps", from.to_string()), ("--ramp-to", to.to_string()), ("--duration", lasts)])
        }
        PhaseRate::Burst { base, peak, period, peak_lasts } => {
            let burst = format!("{peak}:{}:{}", time::short(period.ms()), time::short(peak_lasts.ms()));
            pairs.extend([("--tps", base.to_string()), ("--burst", burst), ("--duration", lasts)]);
        }
        PhaseRate::Saturation { from, step_seconds } => pairs.extend([
            ("--tps", from.to_string()),
            ("--duration", format!("{step_seconds}s")),
            ("--search-for", lasts),
        ]),
    }
    let mut arguments: Vec<String> =
        pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
    if matches!(phase.rate, PhaseRate::Saturation { .. }) {
        arguments.push("--saturate".to_owned());
    }
    arguments
}

/// Describes the events that the files cannot carry out, one per line.
fn undone(scenario: &Scenario, names: &Names, events: &[Event]) -> Vec<String> {
    let told = |event: &Event| {
        let who = match &event.action {
            Action::Node { who: Who::Node(place), .. }
            | Action::LyingPeers { who: Who::Node(place), .. }
            | Action::Attack { victim: place, .. } => names.name(*place),
            _ => "the primary",
        };
        let until = event.until_ms.map_or_else(String::new, |ms| format!(" until {}", time::short(ms)));
        format!("at {}: {} {who}{until}", time::short(event.at_ms), described(&event.action))
    };
    events.iter().filter(|event| !is_done(scenario, event)).map(told).collect()
}

#[cfg(test)]
mod tests;
