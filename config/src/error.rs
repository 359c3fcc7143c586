//! [`ConfigError`].

use std::{fmt, io, path::PathBuf};

use crate::Origin;

/// Why a configuration was refused. The text says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}; `slipstream init --dir DIR` writes one", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file cannot be a configuration.
    #[error("the configuration {} is longer than {max} bytes; is it the right file?", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit.
        max: u64,
    },
    /// Not YAML, an unknown or repeated key, or a value that its key does not take.
    #[error("{}:{place}: {message}\n{}", path.display(), place.snippet)]
    Yaml {
        /// The file.
        path: PathBuf,
        /// Where it is in the file.
        place: Place,
        /// What is wrong, with the key's full name.
        message: String,
    },
    /// A key that has no default is not there.
    #[error("{}: {key} is missing; {advice}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The key's full name.
        key: String,
        /// What to write.
        advice: &'static str,
    },
    /// A variable or a flag that sets a key which nobody knows, or a value that its key does not take.
    #[error("{}: {problem}", in_words(origin))]
    Override {
        /// Which one.
        origin: Origin,
        /// What is wrong, and what to write.
        problem: String,
    },
    /// More variables, or more flags, than there are keys.
    #[error(
        "more than {max} keys are set by environment variables, or by --set; write them into the configuration file"
    )]
    TooManyOverrides {
        /// The limit.
        max: usize,
    },
    /// A number outside of its range, or a value that is right by itself, but not together with the others.
    #[error("{}{}: {key}: {problem}{}", path.display(), prefix(place), suffix(place))]
    Rule {
        /// The file.
        path: PathBuf,
        /// Where the key's value is in the file; none if the key has its default.
        place: Option<Place>,
        /// The key to look at.
        key: String,
        /// What is wrong, and what to write.
        problem: String,
    },
}

/// A place in the configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Counted from 1.
    pub line: u64,
    /// Counted from 1.
    pub column: u64,
    /// The line with a caret under the place.
    pub snippet: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

fn in_words(origin: &Origin) -> String {
    match origin {
        Origin::Variable { .. } => format!("the {origin}"),
        _ => origin.to_string(),
    }
}

fn prefix(place: &Option<Place>) -> String {
    place.as_ref().map(|place| format!(":{place}")).unwrap_or_default()
}

fn suffix(place: &Option<Place>) -> String {
    place.as_ref().map(|place| format!("\n{}", place.snippet)).unwrap_or_default()
}
