//! [`ConfigError`].

use std::{io, path::PathBuf};

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
    #[error("{}:{line}:{column}: {message}\n{snippet}", path.display())]
    Yaml {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Counted from 1.
        column: u64,
        /// What is wrong, with the key's full name.
        message: String,
        /// The line with a caret under the place.
        snippet: String,
    },
    /// Each value is right by itself, but not together with the others.
    #[error("{}: {key}: {problem}; {advice}", path.display())]
    Rule {
        /// The file.
        path: PathBuf,
        /// The key to look at.
        key: &'static str,
        /// What is wrong.
        problem: String,
        /// What to write.
        advice: &'static str,
    },
    /// A rule of the network section; the text names the key.
    #[error("{}: {source}", path.display())]
    Network {
        /// The file.
        path: PathBuf,
        /// The key and its rule.
        source: slipstream_network::NetworkError,
    },
}
