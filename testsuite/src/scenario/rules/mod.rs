//! The rules of a decoded scenario: bounds first, then names, then combinations. No number is used before it is
//! checked.

mod at;
mod config;
mod criteria;
mod happen;
mod liars;
mod load;
mod members;
mod regions;
mod siege;

use std::ops::RangeInclusive;

use at::{At, Checked, NAME_BYTES_MAX};

use super::{
    DISK_MIB_MAX,
    fault::What,
    model::{Group, LinkShape, Part, Scenario, Topology},
    names::{ALL, FULLNODES, Names, NodeIndex, PRIMARY, VALIDATORS},
    parse::Problem,
    span::Span,
};
use crate::{devnet::SyncMode, relay::KIB_PER_SECOND_MAX};

/// The most nodes of one scenario: a fullnode takes about 60 MiB, and ports and relays grow with the square of the
/// number.
pub const NODES_MAX: u32 = 64;
/// The most validators of one scenario.
pub const VALIDATORS_MAX: u32 = 32;
/// The most draws of one fault.
const TIMES_MAX: u32 = 100;
const SEED_BYTES_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 2_000;
const DURATION: RangeInclusive<u64> = 5_000..=3_600_000;
const DELAY_MS_MAX: u64 = 10_000;
/// The longest `ready_within`: a node that takes longer will not answer at all.
const READY_SECONDS_MAX: u64 = 600;

/// Refuses a scenario that cannot be run.
pub(super) fn check(scenario: &Scenario) -> Checked {
    At::key("name").name(&scenario.name)?;
    for (key, text, most) in
        [("seed", &scenario.seed, SEED_BYTES_MAX), ("description", &scenario.description, TEXT_BYTES_MAX)]
    {
        if text.is_empty() || text.len() > most {
            return Err(At::key(key).wrong(format!("must have 1 to {most} bytes, not {}", text.len())));
        }
    }
    if !DURATION.contains(&scenario.duration.ms()) {
        return Err(At::key("duration").wrong(format!("must be from 5s to 1h, not {}", scenario.duration)));
    }
    for (key, length) in [
        ("workload", scenario.workload.len()),
        ("faults", scenario.faults.len()),
        ("criteria", scenario.criteria.len()),
    ] {
        At::key(key).list(length)?;
    }
    if scenario.criteria.is_empty() {
        return Err(At::key("criteria").wrong(
            "is empty: a scenario without a criterion passes whatever happens; write `- equal_roots`",
        ));
    }
    topology(&scenario.topology, scenario.duration)?;
    // The counts are checked, so names can be made.
    let rules = Rules { scenario, names: Names::of(scenario) };
    rules.unique_names()?;
    rules.groups()?;
    rules.settings()?;
    rules.regions()?;
    rules.outbound()?;
    rules.configs()?;
    rules.workload()?;
    rules.faults()?;
    rules.criteria()
}

fn topology(topology: &Topology, duration: Span) -> Checked {
    let at = At::key("topology");
    at.then("validators").within(topology.validators.into(), 1..=VALIDATORS_MAX.into())?;
    at.then("groups").list(topology.groups.len())?;
    at.then("settings").list(topology.settings.len())?;
    at.then("links").list(topology.links.len())?;
    let mut nodes = topology.validators;
    for (index, group) in topology.groups.iter().enumerate() {
        let at = at.then("groups").item(index);
        at.then("name").name(&group.name)?;
        at.then("count").within(group.count.into(), 1..=(NODES_MAX - 1).into())?;
        if let Some(joins) = group.joins {
            at.then("joins").span(joins, 0, duration)?;
        }
        nodes += group.count;
        if nodes > NODES_MAX {
            return Err(at
                .then("count")
                .wrong(format!("makes more than {NODES_MAX} nodes in all; use fewer")));
        }
    }
    at.then("accounts").within(topology.accounts.into(), 2..=10_000)?;
    if let Some(interval) = topology.batch_interval_ms {
        at.then("batch_interval_ms").within(interval, 20..=60_000)?;
    }
    at.then("snapshot_interval_batches").within(topology.snapshot_interval_batches, 1..=1_000_000)?;
    at.then("ready_within").span(topology.ready_within, 1_000, Span::from_secs(READY_SECONDS_MAX))?;
    config::words(&at.then("config"), &topology.config)?;
    for (index, link) in topology.links.iter().enumerate() {
        let at = at.then("links").item(index);
        shape(&at.then("shape"), &link.shape)?;
        if topology.links[..index].iter().any(|other| other.is_beside(link)) {
            let [one, other] = &link.between;
            return Err(at.then("between").wrong(format!(
                "there are links between `{one}` and `{other}` already: merge both into one entry"
            )));
        }
        for region in &link.between {
            if !topology.settings.iter().any(|settings| settings.region.as_ref() == Some(region)) {
                return Err(at.then("between").wrong(format!(
                    "no node is in the region `{region}`: write `region: {region}` into `topology.settings`"
                )));
            }
        }
    }
    Ok(())
}

fn shape(at: &At, shape: &LinkShape) -> Checked {
    let most = Span::from_ms(DELAY_MS_MAX);
    at.then("delay").span(shape.delay, 0, most)?;
    at.then("jitter").span(shape.jitter, 0, most)?;
    if let Some(rate) = shape.kib_per_second {
        at.then("kib_per_second").within(rate, 1..=KIB_PER_SECOND_MAX)?;
    }
    if !(0.0..=1.0).contains(&shape.loss) {
        return Err(at.then("loss").wrong(format!("must be a share from 0 to 1, not {}", shape.loss)));
    }
    Ok(())
}

struct Rules<'a> {
    scenario: &'a Scenario,
    names: Names,
}

impl Rules<'_> {
    fn topology(&self) -> &Topology {
        &self.scenario.topology
    }

    /// Checks that the name of a node or group has no other meaning.
    fn unique_names(&self) -> Checked {
        let mut faults = self.scenario.faults.iter();
        // Exports use a directory of that name.
        let exports = faults.any(|fault| matches!(fault.what, What::ExportSnapshot(_)));
        for (index, group) in self.topology().groups.iter().enumerate() {
            let own = self.names.all().filter(|place| self.names.group(*place) == Some(index));
            let mut own = own.map(|place| self.names.name(place)).chain([group.name.as_str()]);
            let is_taken = |name: &&str| {
                let is_reserved = [ALL, VALIDATORS, FULLNODES, PRIMARY].contains(name);
                let is_directory = exports && group.count == 1 && *name == super::ARCHIVE;
                let is_above = self.topology().groups[..index].iter().any(|other| other.name == *name);
                let is_of_another = |place: NodeIndex| {
                    self.names.group(place) < Some(index) && self.names.name(place) == *name
                };
                is_reserved || is_directory || is_above || self.names.all().any(is_of_another)
            };
            if let Some(name) = own.find(is_taken) {
                let at = At::key("topology").then("groups").item(index).then("name");
                return Err(at.wrong(format!("`{name}` is taken: choose another name")));
            }
        }
        Ok(())
    }

    /// Checks that every name matches a node.
    fn known(&self, at: &At, list: &[String]) -> Checked {
        at.list(list.len())?;
        if list.is_empty() {
            return Err(at.wrong(format!("names no node; there are {}", self.names.offered())));
        }
        for (index, name) in list.iter().enumerate() {
            self.one_known(&at.item(index), name)?;
        }
        Ok(())
    }

    fn one_known(&self, at: &At, name: &str) -> Checked {
        if name == PRIMARY {
            return Err(at.wrong(
                "`primary` must stand alone in the `nodes` of a fault: give the other nodes their own fault",
            ));
        }
        match self.names.find(name)[..] {
            [] => Err(self.nobody(at, name, &self.names.offered())),
            _ => Ok(()),
        }
    }

    /// Makes the error for an unknown name, with existing names.
    fn nobody(&self, at: &At, name: &str, offered: &str) -> Problem {
        if name == FULLNODES {
            return at.wrong(format!(
                "every node is a validator, so `{FULLNODES}` names no node: write a group into `topology.groups`, or name some of {offered}"
            ));
        }
        let name: String = name.chars().take(NAME_BYTES_MAX).collect();
        at.wrong(format!("no node is called `{name}`; there are {offered}"))
    }

    fn single(&self, at: &At, name: &str) -> Checked {
        if name == PRIMARY {
            return Err(at.wrong(format!(
                "`primary` may be any validator, but one fixed node is needed: name one of {}",
                self.names.offered_nodes()
            )));
        }
        match self.names.find(name)[..] {
            [_] => Ok(()),
            [] => Err(self.nobody(at, name, &self.names.offered_nodes())),
            [first, ..] => Err(at.wrong(format!(
                "`{name}` are {} nodes: name one, such as `{}`",
                self.names.find(name).len(),
                self.names.name(first)
            ))),
        }
    }

    /// Returns when a node starts; zero if its group does not say.
    fn starts(&self, place: NodeIndex) -> Span {
        let group = self.names.group(place).map(|group| &self.topology().groups[group]);
        group.and_then(|group| group.joins).unwrap_or_default()
    }

    /// Checks that all of these nodes have started by a moment.
    fn there_by(&self, at: &At, list: &[String], moment: Span) -> Checked {
        let places = self.names.find_all(list);
        match places.into_iter().find(|place| self.starts(*place) > moment) {
            None => Ok(()),
            Some(late) => Err(at.wrong(format!(
                "`{}` is not there yet at {moment}: it joins at {}",
                self.names.name(late),
                self.starts(late)
            ))),
        }
    }

    fn groups(&self) -> Checked {
        for (index, group) in self.topology().groups.iter().enumerate() {
            let at = At::key("topology").then("groups").item(index);
            let Group { behind, among, waypoint, joins, part, mode, .. } = group;
            if !behind.is_empty() {
                self.known(&at.then("behind"), behind)?;
            }
            let first = self.names.all().find(|place| self.names.group(*place) == Some(index));
            if self.names.find_all(behind).iter().max() >= first.as_ref() && !behind.is_empty() {
                return Err(at
                    .then("behind")
                    .wrong("names nodes that start later: put their group above this one"));
            }
            self.there_by(&at.then("behind"), behind, joins.unwrap_or_default())?;
            if let Some(attack) = among {
                siege::among(&at.then("among"), attack)?;
            }
            if *part == Part::Candidate && *mode != SyncMode::Auto {
                return Err(at
                    .then("mode")
                    .wrong("is for fullnodes: a candidate catches up as `auto` does; leave it out"));
            }
            if *part == Part::Candidate && *waypoint {
                return Err(at
                    .then("waypoint")
                    .wrong("is for fullnodes: a candidate begins at the genesis; leave it out"));
            }
            if (among.is_some() || *waypoint) && joins.is_none() {
                return Err(
                    at.wrong("starts before there is a chain: write when it `joins`, such as `joins: 20s`")
                );
            }
        }
        Ok(())
    }

    fn settings(&self) -> Checked {
        for (index, settings) in self.topology().settings.iter().enumerate() {
            let at = At::key("topology").then("settings").item(index);
            self.known(&at.then("nodes"), &settings.nodes)?;
            config::words(&at.then("config"), &settings.config)?;
            for (key, name) in [("region", &settings.region), ("program", &settings.program)] {
                if let Some(name) = name {
                    at.then(key).name(name)?;
                }
            }
            if let Some(mib) = settings.disk_mib {
                at.then("disk_mib").within(mib, 128..=DISK_MIB_MAX)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
