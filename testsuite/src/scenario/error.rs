//! [`ScenarioError`].

use std::{io, path::PathBuf};

use slipstream_yaml::Place;

/// The reason why a scenario was refused. The text says what is wrong, where it is and what to write.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read the scenario {}: {source}; `slipnet scenarios list` lists the built-in ones", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is too long for a scenario.
    #[error("the scenario {} is longer than {max} bytes; is it the right file?", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit, in bytes.
        max: u64,
    },
    /// The file is not UTF-8.
    #[error("{}:{line}: this line is not valid UTF-8; save the file in UTF-8", path.display())]
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
        /// The place in the file.
        place: Place,
        /// What is wrong, with the key's full name, and what to write.
        message: String,
    },
}
