//! Reads the layers, joins them, and checks the result.

use std::{fs::File, io::Read, path::Path};

use crate::{
    ConfigError, NodeConfig, Origin, Overrides, Place, Preset, decode,
    error::RuleViolation,
    instance,
    keys::{self, Key},
    origin::Origins,
    overrides::{Assignment, refused},
    rules,
    tree::Tree,
};

/// Longest configuration file: keeps a wrong file (a database, a log) from being read into memory.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// A checked configuration, and the origin of each of its values.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The node's configuration, joined from all layers.
    pub config: NodeConfig,
    /// The layer that set each key.
    pub origins: Origins,
}

/// Reads a file, applies the overrides above it and its preset below it, and checks the result. Relative paths start at
/// the file's directory, whichever layer names them.
///
/// If the overrides have an instance N, every port is N higher, `data` is `data-N` and `node.key` is `node-N.key`. So
/// several nodes can run from one file.
pub fn load(path: &Path, overrides: &Overrides) -> Result<LoadedConfig, ConfigError> {
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let file = File::open(path).map_err(read)?;
    let len = file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text).map_err(read)?;
    if len as u64 > CONFIG_BYTES_MAX {
        return Err(ConfigError::TooLong { path: path.to_owned(), max: CONFIG_BYTES_MAX });
    }
    join(&text, path, overrides)
}

/// Checks a text that is, or would be, in the file `path`, without overrides.
pub fn parse(text: &str, path: &Path) -> Result<NodeConfig, ConfigError> {
    parse_with(text, path, &Overrides::default())
}

/// As [`parse`], with the overrides above the text.
pub fn parse_with(text: &str, path: &Path, overrides: &Overrides) -> Result<NodeConfig, ConfigError> {
    join(text, path, overrides).map(|loaded| loaded.config)
}

fn join(text: &str, path: &Path, overrides: &Overrides) -> Result<LoadedConfig, ConfigError> {
    let file = Layer::of_file(text, path)?;
    let above: Vec<_> = overrides.assignments.iter().map(Layer::of_assignment).collect::<Result<_, _>>()?;
    // The highest layer that sets the preset decides; it may also set none.
    let preset = above.iter().rev().chain([&file]).find_map(Layer::preset).flatten();
    let below = preset.map(Layer::of_preset).transpose()?;

    let mut joined = Tree::of(&NodeConfig::default());
    let mut origins = Origins::default();
    for layer in below.iter().chain([&file]).chain(&above) {
        for (key, origin) in &layer.keys {
            joined.put(&key.name, layer.values.get(&key.name).cloned());
            origins.set(&key.name, origin.clone());
        }
    }
    let wrong = |key: &str, problem: String| {
        let place = file.keys.iter().find(|(found, _)| found.name == key);
        let place = place.map(|(found, _)| Place::quote(text, found.line, found.column).0);
        match origins.of(key) {
            Origin::Default => {
                ConfigError::Rule { path: path.to_owned(), place: None, key: key.to_owned(), problem }
            }
            Origin::File { .. } => {
                ConfigError::Rule { path: path.to_owned(), place, key: key.to_owned(), problem }
            }
            origin => refused(origin, format!("{key}: {problem}")),
        }
    };
    if *origins.of("role") == Origin::Default {
        let advice = "write `role: validator` or `role: fullnode`";
        return Err(ConfigError::Missing { path: path.to_owned(), key: "role".into(), advice });
    }
    let mut config = joined.decode().map_err(|(key, problem)| wrong(&key, problem))?;
    rules::check(&config).map_err(|RuleViolation { key, text }| wrong(key, text))?;
    if let Some(number) = overrides.instance {
        for key in
            instance::shift(&mut config, number).map_err(|RuleViolation { key, text }| wrong(key, text))?
        {
            origins.set(key, Origin::Instance(number));
        }
    }
    let dir = path.parent().unwrap_or(Path::new(""));
    for (_, file) in config.paths_mut() {
        // `Path::join` keeps an absolute path as it is.
        *file = dir.join(&*file);
    }
    Ok(LoadedConfig { config, origins })
}

/// The keys that one place sets.
struct Layer {
    /// The keys that it sets, and where.
    keys: Vec<(Key, Origin)>,
    /// The values of these keys, among defaults for all keys that the layer does not set.
    values: Tree,
    preset: Option<Preset>,
}

impl Layer {
    fn of_file(text: &str, path: &Path) -> Result<Layer, ConfigError> {
        let config = decode::file(text, path)?;
        let keys = keys::find(text, &[]);
        rules::check_layer(&config).map_err(|RuleViolation { key, text: problem }| {
            let place = keys.iter().find(|found| found.name == key);
            let place = place.map(|found| Place::quote(text, found.line, found.column).0);
            ConfigError::Rule { path: path.to_owned(), place, key: key.to_owned(), problem }
        })?;
        let origin = |key: &Key| Origin::File { path: path.to_owned(), line: key.line };
        Ok(Layer::new(&config, keys, origin))
    }

    fn of_preset(preset: Preset) -> Result<Layer, ConfigError> {
        let config = decode::file(preset.text(), Path::new(preset.name()))?;
        Ok(Layer::new(&config, keys::find(preset.text(), &[]), |_| Origin::Preset(preset)))
    }

    fn of_assignment(Assignment { key, value, origin }: &Assignment) -> Result<Layer, ConfigError> {
        let path: Vec<_> = key.split('.').collect();
        let config = decode::value(value, &path).map_err(|problem| refused(origin, problem))?;
        rules::check_layer(&config).map_err(|RuleViolation { text, .. }| refused(origin, text))?;
        Ok(Layer::new(&config, keys::find(value, &path), |_| origin.clone()))
    }

    fn new(config: &NodeConfig, keys: Vec<Key>, origin: impl Fn(&Key) -> Origin) -> Layer {
        let with_origin = |key: Key| {
            let origin = origin(&key);
            (key, origin)
        };
        Layer {
            keys: keys.into_iter().map(with_origin).collect(),
            values: Tree::of(config),
            preset: config.preset,
        }
    }

    /// Returns the preset that the layer names. `Some(None)` means that the layer wants none, `None` that it does not
    /// set the key.
    fn preset(&self) -> Option<Option<Preset>> {
        self.keys.iter().any(|(key, _)| key.name == "preset").then_some(self.preset)
    }
}
