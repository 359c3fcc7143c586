//! Converts a topology to the options of a devnet, and to the links between its nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU64,
    path::PathBuf,
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use super::{RunOptions, act, assault, preload};
use crate::{
    devnet::{DevnetOptions, NodeOptions},
    manifest::Role,
    relay::{Region, Shape},
    scenario::{
        fault::What,
        model::{Config, LinkShape, Scenario, Settings},
        names::{Names, NodeIndex, may_validate},
    },
};

/// The program that nodes run by default.
pub(crate) const CURRENT: &str = "current";
/// The previous release. If none is given, the upgrade is from this program to itself, and the report says so.
pub(in crate::scenario) const BEFORE: &str = "before";
/// The placeholder of the devnet's directory in values of node.yaml.
pub(in crate::scenario) const DIR: &str = "{dir}";
/// The key of the free space below which a node writes nothing. Its default exceeds a small disk.
const DISK_FREE_MIN: &str = "storage.disk_free_min_mib";
/// The key for the number of announced peers that a node dials.
pub(in crate::scenario) const OUTBOUND: &str = "network.outbound";
/// A small disk counts as this number of equal parts, and its node keeps one of them free.
const DISK_PARTS: u64 = 8;

/// Whether datagrams go through relays.
pub(in crate::scenario) fn needs_links(scenario: &Scenario) -> bool {
    scenario.topology.settings.iter().any(|settings| settings.region.is_some())
        || scenario.faults.iter().any(|fault| fault.what.needs_relays())
}

/// Returns the devnet of a scenario, with only its validators. All other nodes are added one by one.
pub(super) fn devnet(scenario: &Scenario, names: &Names, options: &RunOptions) -> Result<DevnetOptions> {
    let mut nodes = BTreeMap::new();
    for place in names.all() {
        nodes.insert(names.name(place).to_owned(), node(scenario, names, options, place)?);
    }
    Ok(DevnetOptions { dir: Some(options.dir.clone()), nodes, ..alike(scenario) })
}

/// Returns the options that are the same for all nodes, wherever they run.
pub(in crate::scenario) fn alike(scenario: &Scenario) -> DevnetOptions {
    let topology = &scenario.topology;
    DevnetOptions {
        validators: topology.validators,
        fullnodes: 0,
        accounts: topology.accounts + if attacks(scenario) { assault::ACCOUNTS } else { 0 },
        seed: scenario.seed.clone(),
        batch_interval_ms: topology.batch_interval_ms,
        snapshot_interval_batches: topology.snapshot_interval_batches,
        ready_within: topology.ready_within.duration(),
        ..DevnetOptions::default()
    }
}

/// Lets the program itself check the settings of all nodes before anything runs, because it may be of another build
/// than the rules. Includes nodes that join later. Programs other than the current one may know other keys.
///
/// # Errors
/// Names the node, and quotes the program.
pub(super) async fn check(
    devnet: &DevnetOptions,
    scenario: &Scenario,
    names: &Names,
    options: &RunOptions,
) -> Result<()> {
    let mut checked = BTreeSet::new();
    for place in names.all() {
        let name = names.name(place);
        let Some(own) = devnet.nodes.get(name).filter(|own| own.program.is_none()) else { continue };
        let role = role(scenario, names, place);
        if !checked.insert((role.name(), &own.overrides)) {
            continue;
        }
        let file = options.dir.join(format!("check-{}.yaml", role.name()));
        std::fs::write(&file, devnet.node_yaml(role))
            .with_context(|| format!("cannot write {}", file.display()))?;
        let mut arguments = vec!["config", "show", "--config", act::text(&file)?];
        arguments.extend(own.overrides.iter().flat_map(|set| ["--set", set.as_str()]));
        act::command(&arguments).await.with_context(|| format!("the `config` of {name}"))?;
        std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    Ok(())
}

fn attacks(scenario: &Scenario) -> bool {
    scenario.topology.groups.iter().any(|group| group.among.is_some())
        || scenario.faults.iter().any(|fault| matches!(fault.what, What::Attack { .. }))
}

fn node(scenario: &Scenario, names: &Names, options: &RunOptions, place: NodeIndex) -> Result<NodeOptions> {
    let program = program_of(scenario, names, place);
    let program = program.map(|name| self::program(name, &options.programs)).transpose()?.flatten();
    let environment = match preload::is_needed(scenario, names, place) {
        true => preload::environment(&options.dir, names.name(place))?,
        false => BTreeMap::new(),
    };
    let config = config_of(scenario, names, place);
    Ok(NodeOptions {
        program,
        overrides: overrides(&config, &options.dir.display().to_string()),
        environment,
    })
}

/// Returns the role with which a node starts.
pub(in crate::scenario) fn role(scenario: &Scenario, names: &Names, place: NodeIndex) -> Role {
    match may_validate(&scenario.topology, names, place) {
        true => Role::Validator,
        false => Role::Fullnode,
    }
}

/// Returns the name of the program with which a node starts; `None` if the scenario does not set it.
pub(in crate::scenario) fn program_of<'a>(
    scenario: &'a Scenario,
    names: &'a Names,
    place: NodeIndex,
) -> Option<&'a str> {
    settings_of(scenario, names, place).filter_map(|settings| settings.program.as_deref()).last()
}

/// Returns the MiB of a node's own disk, if it has one.
pub(in crate::scenario) fn disk_mib(scenario: &Scenario, names: &Names, place: NodeIndex) -> Option<u64> {
    settings_of(scenario, names, place).filter_map(|settings| settings.disk_mib).last()
}

/// Returns a node's own keys of node.yaml, which override the keys of the whole devnet; later settings win.
pub(in crate::scenario) fn config_of(scenario: &Scenario, names: &Names, place: NodeIndex) -> Config {
    let mut config = scenario.topology.config.clone();
    if needs_links(scenario) {
        // Announced addresses bypass the relays; a file with another number is refused.
        config.insert(OUTBOUND.to_owned(), 0.into());
    }
    for settings in settings_of(scenario, names, place) {
        config.extend(settings.config.clone());
    }
    keep_room(&mut config, disk_mib(scenario, names, place));
    config
}

/// Sets the free space of a node on a small disk, unless the configuration does.
pub(in crate::scenario) fn keep_room(config: &mut Config, disk_mib: Option<u64>) {
    if let Some(mib) = disk_mib
        && !config.iter().any(|(key, value)| sets(key, value, DISK_FREE_MIN))
    {
        config.insert(DISK_FREE_MIN.to_owned(), (mib / DISK_PARTS).into());
    }
}

/// Whether an entry of `config` sets this key.
pub(in crate::scenario) fn sets(entry: &str, value: &Value, key: &str) -> bool {
    given(entry, value, key).is_some()
}

/// Returns the value that an entry of `config` gives this key: by itself, or in the value of a section around it.
pub(in crate::scenario) fn given<'a>(entry: &str, value: &'a Value, key: &str) -> Option<&'a Value> {
    match key.strip_prefix(entry)? {
        "" => Some(value),
        rest => rest.strip_prefix('.')?.split('.').try_fold(value, |section, name| section.get(name)),
    }
}

/// Returns the settings of a node, in the order of the file.
pub(in crate::scenario) fn settings_of<'a>(
    scenario: &'a Scenario,
    names: &'a Names,
    place: NodeIndex,
) -> impl Iterator<Item = &'a Settings> {
    let all = scenario.topology.settings.iter();
    all.filter(move |settings| names.find_all(&settings.nodes).contains(&place))
}

/// Formats the keys for `--set`.
pub(in crate::scenario) fn overrides(config: &Config, dir: &str) -> Vec<String> {
    // JSON is YAML on one line.
    config.iter().map(|(key, value)| format!("{key}={}", value.to_string().replace(DIR, dir))).collect()
}

/// Returns the program with this name; `None` if it is the current one, or the previous release and none was given.
///
/// # Errors
/// If the program was not given, or does not exist.
pub(super) fn program(name: &str, programs: &BTreeMap<String, PathBuf>) -> Result<Option<PathBuf>> {
    if let Some(path) = programs.get(name) {
        let path = path.canonicalize();
        return path.map(Some).with_context(|| format!("the program {name} is not at the path in --program"));
    }
    if name != CURRENT && name != BEFORE {
        bail!("the scenario needs the program `{name}`: name a `slipstream` with --program {name}=PATH");
    }
    Ok(None)
}

/// Returns the programs that a scenario names: those with which nodes start, and those to which they are upgraded.
pub(in crate::scenario) fn programs_of(scenario: &Scenario) -> BTreeSet<&str> {
    let started = scenario.topology.settings.iter().filter_map(|settings| settings.program.as_deref());
    let upgraded = scenario.faults.iter().filter_map(|fault| match &fault.what {
        What::Upgrade { to, .. } => Some(to.as_str()),
        _ => None,
    });
    started.chain(upgraded).collect()
}

/// Looks for all programs that a scenario names before anything starts, including those of a late upgrade.
///
/// # Errors
/// If a program was not given, or does not exist.
pub(in crate::scenario) fn check_programs(
    scenario: &Scenario,
    programs: &BTreeMap<String, PathBuf>,
) -> Result<()> {
    programs_of(scenario).into_iter().try_for_each(|name| program(name, programs).map(drop))
}

/// Whether nodes start with the previous release, and none was given.
pub(super) fn is_from_itself(scenario: &Scenario, options: &RunOptions) -> bool {
    let mut settings = scenario.topology.settings.iter();
    settings.any(|settings| settings.program.as_deref() == Some(BEFORE))
        && !options.programs.contains_key(BEFORE)
}

/// Returns the link between two nodes without faults. `links` may define it for their regions; otherwise it is the
/// built-in link between the world's regions.
pub(in crate::scenario) fn shape(
    scenario: &Scenario,
    names: &Names,
    one: NodeIndex,
    other: NodeIndex,
) -> Shape {
    let region = |place| settings_of(scenario, names, place).filter_map(|it| it.region.as_deref()).last();
    let (Some(one), Some(other)) = (region(one), region(other)) else { return Shape::default() };
    let is_it = |between: &[String; 2]| {
        let [from, to] = between.each_ref().map(String::as_str);
        (from, to) == (one, other) || (from, to) == (other, one)
    };
    if let Some(link) = scenario.topology.links.iter().find(|link| is_it(&link.between)) {
        return relayed(&link.shape);
    }
    let [one, other] = [one, other].map(|name| Region::from_str(name, true).ok());
    one.zip(other).map_or_else(Shape::default, |(one, other)| one.link(other))
}

/// Converts a shape for the relay.
pub(in crate::scenario) fn relayed(shape: &LinkShape) -> Shape {
    Shape {
        delay: shape.delay.duration(),
        jitter: shape.jitter.duration(),
        bandwidth_bytes_per_second: shape.kib_per_second.and_then(|kib| NonZeroU64::new(kib << 10)),
        loss: shape.loss,
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use super::*;

    const TEXT: &str = "\
name: a
description: b
duration: 10s
topology:
  validators: 3
  config: { storage.snapshots_kept: 3 }
  settings:
  - { nodes: [validators], region: eu, config: { sync.archives: ['file://{dir}/archive'] } }
  - { nodes: [validator-1], region: us, program: fork, config: { storage.snapshots_kept: 1 } }
  - { nodes: [validator-2], region: moon }
  links:
  - { between: [moon, eu], shape: { delay: 1300ms, kib_per_second: 4, loss: 0.5 } }
criteria: [equal_roots]
";

    /// Goal: a node's last setting wins, values suit `--set`, and links between regions are those of the file, or else
    /// those of the world.
    #[test]
    fn nodes_and_links_are_as_the_topology_says() {
        let scenario = Scenario::parse(TEXT, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let names = Names::of(&scenario);
        let program = std::env::current_exe().unwrap();
        let programs = BTreeMap::from([("fork".to_owned(), program)]);
        let options = RunOptions { dir: "/d".into(), programs, command: String::new() };
        let devnet = devnet(&scenario, &names, &options).unwrap();
        assert_eq!(
            devnet.nodes["validator-0"].overrides,
            ["network.outbound=0", "storage.snapshots_kept=3", "sync.archives=[\"file:///d/archive\"]"]
        );
        let other = &devnet.nodes["validator-1"];
        assert!(other.overrides.contains(&"storage.snapshots_kept=1".to_owned()), "{other:?}");
        assert_eq!((other.program.is_some(), devnet.nodes["validator-0"].program.is_none()), (true, true));

        let shape = |one, other| shape(&scenario, &names, NodeIndex(one), NodeIndex(other));
        let moon = shape(0, 2);
        assert_eq!((moon.delay, moon.loss), (Duration::from_millis(1_300), 0.5));
        assert_eq!(moon.bandwidth_bytes_per_second.map(NonZeroU64::get), Some(4_096));
        assert_eq!(shape(2, 0), moon);
        assert_eq!(shape(0, 1), Region::Eu.link(Region::Us));
        assert_eq!(shape(1, 2), Shape::default(), "nobody knows the way from there to the moon");
        let nothing = RunOptions { programs: BTreeMap::new(), ..options };
        let error = self::devnet(&scenario, &names, &nothing).unwrap_err().to_string();
        assert!(error.contains("--program fork=PATH"), "{error}");
    }

    /// Goal: a program that only an upgrade names is looked for like the others, before anything starts.
    #[test]
    fn programs_of_upgrades_are_looked_for() {
        let text = "name: a\ndescription: b\nduration: 60s\ncriteria: [equal_roots]\n\
                    topology: { settings: [{ nodes: [all], program: before }] }\n\
                    faults: [{ at: 45s, what: { upgrade: { who: { nodes: [all] }, to: nightly } } }]\n";
        let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(programs_of(&scenario).into_iter().collect::<Vec<_>>(), ["before", "nightly"]);
        let error = check_programs(&scenario, &BTreeMap::new()).unwrap_err().to_string();
        assert!(error.contains("--program nightly=PATH"), "{error}");
        let given = |path: PathBuf| BTreeMap::from([("nightly".to_owned(), path)]);
        check_programs(&scenario, &given(std::env::current_exe().unwrap())).unwrap();
        let error = check_programs(&scenario, &given("/no/such/program".into())).unwrap_err().to_string();
        assert!(error.contains("nightly is not at"), "{error}");
    }

    /// Goal: a node can write to its small disk. A minimum in the file counts, whether it is set by its key or in a
    /// section.
    #[test]
    fn a_small_disk_has_a_minimum_that_fits() {
        let text = "name: a\ndescription: b\nduration: 10s\ncriteria: [equal_roots]\ntopology:\n  validators: 4\n  settings:\n\
                    \x20 - { nodes: [validator-0, validator-1, validator-2], disk_mib: 512 }\n\
                    \x20 - { nodes: [validator-1], disk_mib: 256, config: { storage: { disk_free_min_mib: 100 } } }\n\
                    \x20 - { nodes: [validator-2], config: { storage.disk_free_min_mib: 90 } }\n";
        let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let names = Names::of(&scenario);
        let set = |place| overrides(&config_of(&scenario, &names, NodeIndex(place)), "/d");
        assert_eq!(set(0), ["storage.disk_free_min_mib=64"]);
        assert_eq!(set(1), ["storage={\"disk_free_min_mib\":100}"]);
        assert_eq!(set(2), ["storage.disk_free_min_mib=90"]);
        assert_eq!(set(3), Vec::<String>::new());
        let disks = [0, 1, 2, 3].map(|place| disk_mib(&scenario, &names, NodeIndex(place)));
        assert_eq!(disks, [Some(512), Some(256), Some(512), None]);
    }
}
