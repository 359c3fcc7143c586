//! Error texts for invalid YAML files: the line with a caret, the value, and no secret.
//!
//! Two crates read YAML that people write: `config` reads a node's, `testsuite` reads scenarios. Each decodes its own
//! types with serde-saphyr, and knows its keys and rules. Both format errors in the same way, with this crate.
//!
//! ```text
//!  text ─▶ serde-saphyr ([`options`]) ─▶ Error ─▶ YamlError: where, and in which words
//!    └─────────────────────────────────────────▶ Place: the line with a caret ([`mask`] hides what is secret)
//! ```
//!
//! Invariants: a quoted line shows no password of a URL and no value of a key that names a secret, and is cut to 160
//! characters.
//!
//! ```
//! use slipstream_yaml::Place;
//!
//! let (place, word) = Place::quote("a: 1\nb: many", 2, 4);
//! assert_eq!((place.to_string().as_str(), word.as_str()), ("2:4", "many"));
//! assert_eq!(place.snippet, "  |\n2 | b: many\n  |    ^^^^");
//! ```

pub mod mask;
mod mistake;
mod place;

pub use mistake::{YamlError, options};
pub use place::Place;
