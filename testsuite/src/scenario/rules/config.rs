//! The rules of `config`: keys of node.yaml that exist, with values that nodes accept, alone and together.

use std::{collections::BTreeSet, path::Path};

use slipstream_config::{ConfigError, NodeConfig, Origin, Overrides, parse_with};

use super::{
    Rules,
    at::{At, Checked},
};
use crate::{
    devnet::{DevnetOptions, SyncMode},
    file_names,
    manifest::Role,
    scenario::{engine::setup, model::Config, names::NodeIndex, parse::Problem},
};

/// The most bytes of one value of node.yaml, as JSON.
const VALUE_BYTES_MAX: usize = 4_096;
/// Keys that the harness writes itself: it owns ports and paths.
const OWN: [&str; 8] =
    ["role", "data_dir", "genesis", "waypoint", "key_file", "network.listen", "network.peers", "api.listen"];
/// Stands for the devnet's directory, which does not exist yet.
const SOME_DIR: &str = "/devnet";

/// Checks the rules for nodes of every program.
pub(super) fn words(at: &At, config: &Config) -> Checked {
    at.list(config.len())?;
    for (key, value) in config {
        let at = at.then(key);
        let is_name = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        };
        if key.len() > 100 || !key.split('.').all(is_name) {
            return Err(
                at.wrong("is not a key of node.yaml: write its full name, such as `storage.prune.bodies`")
            );
        }
        if value.to_string().len() > VALUE_BYTES_MAX {
            return Err(at.wrong(format!("is longer than {VALUE_BYTES_MAX} bytes")));
        }
        if let Some(own) = OWN.iter().find(|own| setup::sets(key, value, own)) {
            return Err(at.wrong(format!(
                "{own} belongs to the harness, which chooses ports, paths, roles and peers: leave it out"
            )));
        }
    }
    Ok(())
}

impl Rules<'_> {
    /// Checks each node's keys and values as the node will get them. Nodes with another program than the current one
    /// are skipped: its keys are unknown here.
    pub(super) fn configs(&self) -> Checked {
        let mut checked = BTreeSet::new();
        for place in self.names.all() {
            let program = setup::program_of(self.scenario, &self.names, place);
            if program.is_some_and(|program| program != setup::CURRENT) {
                continue;
            }
            let role = setup::role(self.scenario, &self.names, place);
            let overrides = setup::overrides(&setup::config_of(self.scenario, &self.names, place), SOME_DIR);
            let disk = self.disk(place);
            let group = self.names.group(place);
            let mode = group.map_or(SyncMode::Auto, |group| self.topology().groups[group].mode);
            if !checked.insert((role.name(), mode.name(), overrides.clone(), disk)) {
                continue;
            }
            let config = self.loaded(place, (role, mode), &overrides)?;
            // A node with a forbidden mode would still follow in that mode.
            if let Some(group) = group
                && config.sync.forbid.iter().any(|forbidden| forbidden.name() == mode.name())
            {
                return Err(At::key("topology").then("groups").item(group).then("mode").wrong(format!(
                    "`sync.forbid` of `{}`, which its `preset` may set, forbids `{}`: use another mode, or another preset",
                    self.names.name(place),
                    mode.name()
                )));
            }
            let least_mib = config.storage.disk_free_min_mib;
            if let Some((index, mib)) = disk.filter(|(_, mib)| *mib <= least_mib) {
                return Err(At::key("topology").then("settings").item(index).then("disk_mib").wrong(format!(
                    "{mib} MiB are too small for `{}`, which writes nothing while less than {least_mib} MiB are free: \
                     lower `storage.disk_free_min_mib`, or leave it out",
                    self.names.name(place)
                )));
            }
        }
        Ok(())
    }

    /// Returns the configuration of a node with these overrides.
    fn loaded(
        &self,
        place: NodeIndex,
        (role, sync_mode): (Role, SyncMode),
        overrides: &[String],
    ) -> Result<NodeConfig, Problem> {
        let text = DevnetOptions { sync_mode, ..setup::alike(self.scenario) }.node_yaml(role);
        let loaded = Overrides::new([], overrides)
            .and_then(|above| parse_with(&text, Path::new(file_names::CONFIG), &above));
        loaded.map_err(|error| match error {
            ConfigError::Override { origin: Origin::Flag { key }, problem } => {
                let twice = format!("{key}: ");
                self.last_word(place, &key).wrong(problem.strip_prefix(&twice).unwrap_or(&problem))
            }
            // A setting of the scenario invalidates a value that the scenario does not set.
            ConfigError::Rule { key, problem, .. } => {
                let name = self.names.name(place);
                At::key("topology").wrong(format!("{key} of `{name}` would be wrong: {problem}"))
            }
            other => At::key("topology").wrong(other.to_string()),
        })
    }

    /// Returns where a node's value of a key was last set; the topology if the harness sets it.
    fn last_word(&self, place: NodeIndex, key: &str) -> At {
        let topology = At::key("topology");
        let said = self.topology().settings.iter().rposition(|settings| {
            settings.config.contains_key(key) && self.names.find_all(&settings.nodes).contains(&place)
        });
        match said {
            Some(index) => topology.then("settings").item(index).then("config").then(key),
            None if self.topology().config.contains_key(key) => topology.then("config").then(key),
            None => topology,
        }
    }

    /// Returns a node's own disk: the index of the settings with it, and its MiB.
    fn disk(&self, place: NodeIndex) -> Option<(usize, u64)> {
        let settings = self.topology().settings.iter().enumerate().rev();
        settings
            .filter(|(_, settings)| self.names.find_all(&settings.nodes).contains(&place))
            .find_map(|(index, settings)| settings.disk_mib.map(|mib| (index, mib)))
    }
}
