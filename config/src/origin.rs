//! [`Origin`]: the layer that set a value.

use std::{collections::BTreeMap, fmt, num::NonZeroU8, path::PathBuf};

use crate::Preset;

/// The place where a key's value was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// No layer sets it: the value is the default.
    Default,
    /// The preset of this name set it.
    Preset(Preset),
    /// The configuration file sets it.
    File {
        /// The file that sets the key.
        path: PathBuf,
        /// The line at which the value begins, counted from 1.
        line: u64,
    },
    /// An environment variable sets it.
    Variable {
        /// The variable's name.
        name: String,
    },
    /// A `--set` of the command line sets it.
    Flag {
        /// The text before the `=`.
        key: String,
    },
    /// Another layer's value, changed so that instances do not collide.
    Instance(NonZeroU8),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Preset(preset) => write!(f, "preset {}", preset.name()),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Variable { name } => write!(f, "environment variable {name}"),
            Origin::Flag { key } => write!(f, "--set {key}"),
            Origin::Instance(number) => write!(f, "--instance {number}"),
        }
    }
}

/// The origin of every key that has a value.
#[derive(Clone, Debug, Default)]
pub struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// The origin of a key such as `sync.mode`; [`Origin::Default`] for a key that no layer sets.
    pub fn of(&self, key: &str) -> &Origin {
        self.0.get(key).unwrap_or(&Origin::Default)
    }

    pub(crate) fn set(&mut self, key: &str, origin: Origin) {
        self.0.insert(key.to_owned(), origin);
    }
}
