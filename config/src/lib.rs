//! From a YAML file to a checked [`NodeConfig`], or to an error that names file, line and column.
//!
//! Every crate owns its own section and its defaults; this crate only puts the sections together, refuses what it does not
//! know, and checks the numbers' ranges and the rules that concern several keys. It opens nothing but the configuration file itself: key and
//! genesis files are read by `node`, which also decides what a missing one means.
//!
//! ```text
//!  node.yaml ──▶ serde-saphyr ──▶ NodeConfig ──▶ ranges and rules ──▶ relative paths made absolute ──▶ node
//!                    │                               │
//!                    └── file:line:column, caret ────┴── the key and what to write there
//! ```
//!
//! Invariants: an unknown or repeated key is an error, never a warning; a file is read up to [`CONFIG_BYTES_MAX`]; a
//! loaded configuration has passed every rule, and each of its paths is absolute or relative to the working directory
//! exactly as if the file's own directory had been written before it.
//!
//! ```
//! use slipstream_config::{ConfigError, parse};
//!
//! let error = parse("role: fullnode\nrpc:\n  listen: 127.0.0.1:1\n", "node.yaml".as_ref()).unwrap_err();
//! let ConfigError::Yaml { place, .. } = error else { panic!("{error}") };
//! assert_eq!((place.line, place.column), (2, 1));
//! ```

mod error;
mod load;
mod locate;
mod model;
mod ranges;

#[cfg(test)]
mod tests;

pub use error::{ConfigError, Place};
pub use load::{CONFIG_BYTES_MAX, load, parse};
pub use model::{ApiConfig, LogConfig, LogFileConfig, LogFormat, NodeConfig, Role};
