//! [`rewrite`]: a node's configuration with some keys changed, beside its data: relative paths are the same there.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::target;

/// Writes the configuration, changed so, under this name; its file.
///
/// # Errors
/// If one of the files cannot be read or written, or the first one has no keys.
pub(super) fn rewrite(
    config: &Path,
    data: &Path,
    name: &str,
    change: impl FnOnce(&mut Map<String, Value>),
) -> Result<PathBuf> {
    let text = fs::read_to_string(config).with_context(|| format!("cannot read {}", config.display()))?;
    let mut value: Value =
        serde_saphyr::from_str(&text).with_context(|| format!("{} is no YAML", config.display()))?;
    change(value.as_object_mut().with_context(|| format!("{} has no keys", config.display()))?);
    let made = data.with_file_name(name);
    fs::write(&made, target::yaml(&value)?).with_context(|| format!("cannot write {}", made.display()))?;
    Ok(made)
}
