//! Tests of the layers: defaults, presets, files, variables and flags.

use std::{fs, num::NonZeroU8, path::Path};

use slipstream_storage::StateHistory;
use slipstream_sync::Mode;

use super::{PEER, fullnode};
use crate::{
    ConfigError, LoadedConfig, Origin, Overrides, Preset, Role, load, parse, parse_with, tree::Tree,
};

/// Loads a file with this text, overridden by these variables and flags.
fn loaded(text: &str, variables: &[(&str, &str)], flags: &[&str]) -> Result<LoadedConfig, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.yaml");
    fs::write(&path, text).unwrap();
    let flags: Vec<_> = flags.iter().map(ToString::to_string).collect();
    let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
    load(&path, &Overrides::new(variables, &flags)?)
}

fn refused(text: &str, variables: &[(&str, &str)], flags: &[&str]) -> String {
    loaded(text, variables, flags).expect_err("must be refused").to_string()
}

/// Goal: the five layers have the documented order, and each value names the layer that set it.
#[test]
fn the_highest_layer_decides_and_is_named() {
    let text =
        fullnode("preset: light\nstorage: { block_cache_mib: 1, snapshots_kept: 1 }\nsync: { mode: auto }\n");
    let variables = [("SLIPSTREAM__STORAGE__SNAPSHOTS_KEPT", "2"), ("SLIPSTREAM__SYNC__MODE", "replay")];
    let LoadedConfig { config, origins } =
        loaded(&text, &variables, &["sync.mode=range_delta", "sync.mode=delta"]).unwrap();
    assert_eq!((config.storage.fsync, origins.of("storage.fsync")), (true, &Origin::Default));
    assert_eq!(config.storage.tree_memory_mib, 256);
    assert_eq!(origins.of("storage.tree_memory_mib"), &Origin::Preset(Preset::Light));
    assert_eq!(config.storage.block_cache_mib, 1);
    assert!(origins.of("storage.block_cache_mib").to_string().ends_with("node.yaml:8"));
    assert_eq!(config.storage.snapshots_kept, 2);
    assert_eq!(
        origins.of("storage.snapshots_kept").to_string(),
        "environment variable SLIPSTREAM__STORAGE__SNAPSHOTS_KEPT"
    );
    assert_eq!(config.sync.mode, Mode::Delta);
    assert_eq!(origins.of("sync.mode").to_string(), "--set sync.mode");
}

/// Goal: a text without a file is checked together with its overrides, and an error names the wrong one.
#[test]
fn a_text_is_checked_with_its_overrides() {
    let text = fullnode("");
    let with = |flag: &str| {
        let overrides = Overrides::new([], &[flag.to_owned()]).unwrap();
        parse_with(&text, Path::new("node.yaml"), &overrides)
    };
    assert_eq!(with("sync.mode=delta").unwrap().sync.mode, Mode::Delta);
    let error = with("sync.audit=2").unwrap_err();
    assert!(
        matches!(&error, ConfigError::Override { origin: Origin::Flag { key }, .. } if key == "sync.audit"),
        "{error}"
    );
}

/// Goal: a section sets only the keys that it names, a list is replaced whole, and a key can be unset.
#[test]
fn sections_lists_and_nothing() {
    let other = PEER.replace("127.0.0.1", "192.0.2.7");
    let text = fullnode("schedule: forks.json\nstorage: { prune: { bodies: 5, deltas: 6 } }\n");
    let peers = format!("network.peers=[\"{other}\"]");
    let LoadedConfig { config, origins } =
        loaded(&text, &[("SLIPSTREAM__STORAGE__PRUNE", "{ bodies: 7d }")], &[&peers, "schedule=~"]).unwrap();
    let prune = config.storage.prune;
    assert_eq!((prune.bodies.to_string(), prune.deltas.to_string()), ("7d".into(), "6".into()));
    assert!(matches!(origins.of("storage.prune.bodies"), Origin::Variable { .. }));
    assert!(matches!(origins.of("storage.prune.deltas"), Origin::File { line: 8, .. }));
    assert_eq!(config.network.peers.iter().map(ToString::to_string).collect::<Vec<_>>(), [other]);
    assert_eq!(config.schedule, None);
}

/// Goal: an error about a value names the variable or the flag that set it, whether its type or a rule refuses it. A replaced value
/// of the file is not blamed.
#[test]
fn errors_name_the_layer() {
    let text = fullnode("sync: { audit: 0.5 }\n");
    assert_eq!(
        refused(&text, &[("SLIPSTREAM__SYNC__MODE", "fast")], &[]),
        "the environment variable SLIPSTREAM__SYNC__MODE: unknown variant `fast`, expected one of auto, replay, delta, snapshot, \
         range_delta"
    );
    assert_eq!(
        refused(&text, &[], &["api.listen=1.2.3"]),
        "--set api.listen: invalid socket address syntax, found `1.2.3`"
    );
    let error = refused(&text, &[], &["storage.prune={ bodis: 1 }"]);
    assert!(error.starts_with("--set storage.prune: storage.prune.bodis: unknown field `bodis`"), "{error}");
    for audit in ["2", ".nan"] {
        let error = refused(&text, &[], &[&format!("sync.audit={audit}")]);
        assert!(
            error.starts_with("--set sync.audit: ") && error.contains("is not a share of the batches"),
            "{error}"
        );
    }
    let error = refused(&text, &[("SLIPSTREAM__STORAGE__SNAPSHOTS_KEPT", "1001")], &[]);
    assert_eq!(
        error,
        "the environment variable SLIPSTREAM__STORAGE__SNAPSHOTS_KEPT: storage.snapshots_kept: must be from 0 to 1000, not 1001"
    );
    let error = refused(&fullnode("sync: { audit: 2 }\n"), &[], &[]);
    assert!(error.contains("node.yaml:7:16: sync.audit: 2 is not a share"), "{error}");
    loaded(&fullnode("sync: { audit: 2 }\n"), &[], &["sync.audit=0.5"]).unwrap();
    // A malformed value is an error, even if a higher layer replaces it.
    assert!(
        refused(&fullnode("sync: { audit: x }\n"), &[], &["sync.audit=0.5"]).contains("node.yaml:7:16: ")
    );
}

/// Goal: the role may come from any layer, and one layer must set it.
#[test]
fn any_layer_says_the_role() {
    let text = fullnode("").replace("role: fullnode\n", "");
    assert!(
        refused(&text, &[], &[]).ends_with("role is missing; write `role: validator` or `role: fullnode`")
    );
    for flag in ["role=fullnode", "preset=light"] {
        assert_eq!(loaded(&text, &[], &[flag]).unwrap().config.role, Role::Fullnode);
    }
    let config = loaded(&text, &[("SLIPSTREAM__ROLE", "validator")], &["preset=archive"]).unwrap().config;
    assert_eq!(config.role, Role::Validator);
}

/// Goal: every preset, together with the keys that only an operator knows, is a valid configuration and sets its
/// purpose's values.
#[test]
fn presets() {
    let text = fullnode("").replace("role: fullnode\n", "");
    let with = |preset: &str| loaded(&text, &[], &[&format!("preset={preset}")]).unwrap().config;
    for &preset in Preset::ALL {
        assert_eq!(with(preset.name()).preset, Some(preset));
    }
    assert_eq!(with("validator").role, Role::Validator);
    let archive = with("archive");
    assert_eq!(archive.storage.state_history, StateHistory::All);
    assert_eq!(archive.storage.prune, Default::default());
    let (light, default) = (with("light"), loaded(&fullnode(""), &[], &[]).unwrap().config);
    for preset in ["validator", "light"] {
        assert_eq!(with(preset).storage.state_history, StateHistory::Batches(256), "{preset}");
    }
    // The documentation promises this to wallets.
    assert_eq!(default.storage.state_history, StateHistory::Batches(3_000));
    assert_eq!(with("fullnode").storage.state_history, default.storage.state_history);
    assert!(!light.sync.executes_head() && light.storage.tree_memory_mib < 2_048 && !light.sync.history);
    assert_eq!(light.api.max_body_bytes, 2 << 20, "a long request takes many times its length");
    // A preset that a higher layer removes sets nothing.
    let plain = loaded(&fullnode("preset: archive\n"), &[], &["preset=~"]).unwrap();
    assert_eq!(plain.config.storage.state_history, StateHistory::default());
    let names: Vec<_> = Preset::ALL.iter().map(|preset| preset.name()).collect();
    let error = refused(&text, &[], &["preset=tiny"]);
    assert!(error.contains(&format!("expected one of {}", names.join(", "))), "{error}");
}

/// Goal: a preset only has keys that differ from a node's defaults, or values that it guarantees.
#[test]
fn presets_are_documented() {
    let documented = include_str!("../../../docs/configuration.md");
    for &preset in Preset::ALL {
        let text = preset.text();
        assert!(
            documented.contains(text.trim_end()),
            "docs/configuration.md lacks the preset {}:\n{text}",
            preset.name()
        );
    }
}

/// Goal: the shown configuration can be loaded, has the same meaning, and names the origin of each value.
#[test]
fn what_is_shown_is_read_back() {
    let text = fullnode(
        "preset: light\nlog: { filter: \"info,slipstream_sync=debug\" }\napi: { allowed_hosts: [a.example, \"*\"] }\n",
    );
    let shown = loaded(&text, &[("SLIPSTREAM__SYNC__AUDIT", "0.25")], &["data_dir=/d"]).unwrap();
    for with_origins in [false, true] {
        let yaml = shown.to_yaml(with_origins);
        let again =
            parse(&yaml, Path::new("/elsewhere/node.yaml")).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        assert_eq!(Tree::of(&again), Tree::of(&shown.config), "{yaml}");
    }
    let yaml = shown.to_yaml(true);
    for line in [
        "  audit: 0.25 # environment variable SLIPSTREAM__SYNC__AUDIT\n",
        "data_dir: /d # --set data_dir\n",
        "  fsync: true # default\n",
        "  tree_memory_mib: 256 # preset light\n",
        "node.yaml:8\n",
    ] {
        assert!(yaml.contains(line), "{line} is not in:\n{yaml}");
    }
    assert!(!shown.to_yaml(false).contains('#'));
}

/// Goal: instances share neither files nor ports, and a port above the highest is refused.
#[test]
fn instances_are_moved_out_of_each_others_way() {
    let text = format!(
        "role: fullnode\ngenesis: g.json\nkey_file: node.key\nnetwork:\n  listen: 0.0.0.0:7400\n  advertise: [\"8.8.8.8:7400\"]\n  peers: \
         [\"{PEER}\"]\napi: {{ listen: 127.0.0.1:8545 }}\nlog: {{ file: {{ path: node.log }} }}\n"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.yaml");
    fs::write(&path, &text).unwrap();
    let instance = |number: u8, flag: &str| {
        let overrides = Overrides::new([], &[flag.to_owned()]).unwrap();
        load(&path, &overrides.with_instance(NonZeroU8::new(number)))
    };
    let LoadedConfig { config, origins } = instance(3, "data_dir=a.b/data").unwrap();
    assert_eq!(config.data_dir, dir.path().join("a.b/data-3"));
    assert_eq!(config.key_file, dir.path().join("node-3.key"));
    assert_eq!(config.log.file.path, Some(dir.path().join("node-3.log")));
    assert_eq!(origins.of("log.file.path").to_string(), "--instance 3");
    assert_eq!(config.network.listen.to_string(), "0.0.0.0:7403");
    assert_eq!(config.network.advertise[0].to_string(), "8.8.8.8:7403");
    assert_eq!(config.api.listen.to_string(), "127.0.0.1:8548");
    assert_eq!(origins.of("api.listen").to_string(), "--instance 3");
    assert_eq!(config.network.peers[0].to_string(), PEER, "others stay where they are");
    assert_eq!(instance(3, "api.listen=127.0.0.1:0").unwrap().config.api.listen.port(), 0);
    let error = instance(3, "api.listen=127.0.0.1:65534").unwrap_err().to_string();
    assert!(
        error.contains(
            "--set api.listen: api.listen: the port of 127.0.0.1:65534 plus 3 is above the highest port"
        ),
        "{error}"
    );
    let error = instance(3, "data_dir=..").unwrap_err().to_string();
    assert!(
        error.contains("data_dir: .. has no file name to which an instance could add its number"),
        "{error}"
    );
}
