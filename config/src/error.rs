//! [`ConfigError`].

use std::{io, path::PathBuf};

use slipstream_yaml::Place;

use crate::Origin;

/// Why a configuration was refused. The text says what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}; `slipstream init --dir DIR` writes one", path.display())]
    Read {
        /// The file that cannot be read.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file cannot be a configuration.
    #[error("the configuration {} is longer than {max} bytes; is it the right file?", path.display())]
    TooLong {
        /// The file that is too long.
        path: PathBuf,
        /// The most bytes that a configuration may have.
        max: u64,
    },
    /// Broken YAML, an unknown or repeated key, or a value of another kind than its key takes.
    #[error("{}:{place}: {message}\n{}", path.display(), place.snippet)]
    Yaml {
        /// The file that holds the error.
        path: PathBuf,
        /// The error's place in the file.
        place: Place,
        /// The fault, with the key's full name.
        message: String,
    },
    /// A key without a default is missing.
    #[error("{}: {key} is missing; {advice}", path.display())]
    Missing {
        /// The file that lacks the key.
        path: PathBuf,
        /// The key's full name.
        key: String,
        /// The line that the operator should write.
        advice: &'static str,
    },
    /// A variable or a flag sets an unknown key, or a value that its key refuses.
    #[error("{}: {problem}", in_words(origin))]
    Override {
        /// The variable or flag that sets it.
        origin: Origin,
        /// The fault, and what to write instead.
        problem: String,
    },
    /// More variables, or more flags, than keys exist.
    #[error(
        "more than {max} keys are set by environment variables, or by --set; write them into the configuration file"
    )]
    TooManyOverrides {
        /// The number of keys, which bounds the overrides.
        max: usize,
    },
    /// A number outside its range, or a value that is valid by itself but not together with others.
    #[error("{}{}: {key}: {problem}{}", path.display(), prefix(place), suffix(place))]
    Rule {
        /// The file that breaks the rule.
        path: PathBuf,
        /// The place of the key's value in the file; `None` if the key has its default.
        place: Option<Place>,
        /// The key to look at.
        key: String,
        /// The fault, and what to write instead.
        problem: String,
    },
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

/// A value that fits its key's type and breaks a rule, with what to write instead.
pub(crate) struct RuleViolation {
    pub(crate) key: &'static str,
    pub(crate) text: String,
}

impl RuleViolation {
    pub(crate) fn new(key: &'static str, text: impl Into<String>) -> RuleViolation {
        RuleViolation { key, text: text.into() }
    }
}
