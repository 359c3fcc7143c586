//! [`ScenarioError`].

use std::{io, path::PathBuf};

use slipstream_yaml::Place;

/// Why a scenario was refused. The text says what, where and what to write.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read the scenario {}: {source}; `slipnet scenarios list` names those that ship", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file cannot be a scenario.
    #[error("the scenario {} is longer than {max} bytes; is it the right file?", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit, in bytes.
        max: u64,
    },
    /// The file is no text.
    #[error("{}:{line}: here is something that is no text in UTF-8; save the file in UTF-8", path.display())]
    NoText {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// Broken YAML, an unknown or repeated key, or a value that its key refuses, alone or beside the others.
    #[error("{}:{place}: {message}\n{}", path.display(), place.snippet)]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Where it is in the file.
        place: Place,
        /// What is wrong, with the key's full name, and what to write.
        message: String,
    },
}
