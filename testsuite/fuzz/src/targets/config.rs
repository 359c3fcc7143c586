//! Configuration files. Whatever a file contains, it is accepted, or refused with its name and a line.

use std::path::Path;

use slipstream_config::{ConfigError, Preset, parse};

pub(super) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let path = Path::new("folder/node.yaml");
    if let Err(error) = parse(text, path) {
        assert!(!matches!(error, ConfigError::Read { .. }), "parsing reads no file, but reported: {error}");
        assert!(error.to_string().contains("node.yaml"), "{error}");
    }
}

/// Returns every preset in full. Operators' files are in the folder of kept inputs.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    Preset::ALL.iter().map(|preset| preset.text().as_bytes().to_vec()).collect()
}
