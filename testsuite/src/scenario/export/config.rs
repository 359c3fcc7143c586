//! The node.yaml of a node on another machine, without paths, ports, the role and peers.

use serde_json::{Value, json};

use super::has_relays;
use crate::{
    devnet::DevnetOptions,
    scenario::{
        engine::setup::{DIR, disk_mib, keep_room, settings_of},
        model::{Config, Scenario},
        names::{Names, Place},
    },
    target::SHARED,
};

/// Whether a value of node.yaml names the directory that all nodes share.
pub(super) fn names_dir(scenario: &Scenario) -> bool {
    let settings = scenario.topology.settings.iter().map(|settings| &settings.config);
    let mut values = settings.chain([&scenario.topology.config]).flat_map(|config| config.values());
    values.any(|value| value.to_string().contains(DIR))
}

/// Returns a node's configuration. The shared directory replaces `{dir}`.
pub(super) fn of(scenario: &Scenario, names: &Names, place: Place) -> Value {
    let topology = &scenario.topology;
    let defaults = DevnetOptions::default();
    let group = names.group(place).map(|group| &topology.groups[group]);
    let mut config = json!({
        "network": {},
        "storage": {
            "block_cache_mib": defaults.block_cache_mib,
            "snapshot_interval_batches": topology.snapshot_interval_batches,
        },
        "sync": { "mode": group.map_or(defaults.sync_mode, |group| group.mode).name() },
        "log": { "filter": defaults.log_filter },
    });
    if has_relays(scenario) {
        // Announced addresses bypass the relays.
        config["network"]["outbound"] = json!(0);
    }
    if let Some(interval) = topology.batch_interval_ms {
        config["consensus"] = json!({ "batch_interval_ms": interval, "empty_batch_interval_ms": interval });
    }
    let mut said: Config = topology.config.clone();
    for settings in settings_of(scenario, names, place) {
        said.extend(settings.config.clone());
    }
    keep_room(&mut said, disk_mib(scenario, names, place));
    for (key, value) in said {
        let text = value.to_string().replace(DIR, SHARED);
        let value: Result<Value, _> = text.parse();
        set(&mut config, &key, value.expect("the directory's name needs no escape in JSON"));
    }
    config
}

/// Sets a key by its full name.
fn set(config: &mut Value, key: &str, value: Value) {
    let mut place = config;
    for part in key.split('.') {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[part];
    }
    *place = value;
}
