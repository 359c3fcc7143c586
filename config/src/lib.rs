//! Turns a YAML file, with the layers above and below it, into a checked [`NodeConfig`], or into an error that says
//! where the mistake is.
//!
//! Every crate owns its own section and its defaults. This crate combines the sections, refuses unknown keys, and
//! checks ranges and the rules that concern several keys. It opens only the configuration file: `node` reads the key
//! and genesis files, and decides what a missing one means.
//!
//! ```text
//!  --set KEY=VALUE ──────────┐ above all
//!  SLIPSTREAM__KEY=VALUE ────┤             each decoded alone, so that an error names its place
//!  node.yaml ────────────────┼─▶ Layer ──▶ joined key by key ──▶ rules ──▶ paths made absolute ──▶ Loaded
//!  preset ───────────────────┤                    │
//!  defaults ─────────────────┘ below all          └── Origins: which layer each value is from
//! ```
//!
//! Invariants: an unknown or repeated key is an error, never a warning; a file is read up to [`CONFIG_BYTES_MAX`]. A
//! loaded configuration has passed every rule. Each of its paths is absolute, or relative to the working directory with
//! the file's own directory prepended. [`mask`] masks every configuration that is shown.
//!
//! ```
//! use slipstream_config::{ConfigError, parse};
//!
//! let error = parse("role: fullnode\nrpc:\n  listen: 127.0.0.1:1\n", "node.yaml".as_ref()).unwrap_err();
//! let ConfigError::Yaml { place, .. } = error else { panic!("{error}") };
//! assert_eq!((place.line, place.column), (2, 1));
//! ```

mod decode;
mod error;
mod instance;
mod keys;
mod load;
mod model;
mod origin;
mod overrides;
mod preset;
mod ranges;
mod rules;
mod schema;
mod show;
mod tree;

#[cfg(test)]
mod tests;

pub use error::ConfigError;
pub use instance::INSTANCE_MAX;
pub use load::{CONFIG_BYTES_MAX, LoadedConfig, load, parse, parse_with};
pub use model::{ApiConfig, LogConfig, LogFileConfig, LogFormat, NodeConfig, Role};
pub use origin::{Origin, Origins};
pub use overrides::{OVERRIDE_BYTES_MAX, OVERRIDES_MAX, Overrides, VARIABLE_PREFIX};
pub use preset::Preset;
pub use schema::schema;
pub use slipstream_yaml::{Place, mask};
