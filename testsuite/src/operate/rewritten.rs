//! [`rewrite`]: writes a node's configuration with some keys changed, beside its data, where relative paths mean the
//! same.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::target;

/// Writes the changed configuration under this name, and returns its path. The file is replaced atomically: it is
/// complete even if this program is killed.
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
    let (made, new) = (data.with_file_name(name), data.with_file_name(format!("{name}.new")));
    let written = fs::write(&new, target::yaml(&value)?).and_then(|()| fs::rename(&new, &made));
    written.with_context(|| format!("cannot write {}", made.display()))?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an existing file is replaced by a complete one, and never written in place.
    #[test]
    fn a_configuration_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("node.yaml"), "role: fullnode\n").unwrap();
        fs::write(at("made.yaml"), "before").unwrap();
        fs::hard_link(at("made.yaml"), at("opened before")).unwrap();
        let change = |keys: &mut Map<String, Value>| {
            keys.insert("role".to_owned(), "validator".into());
        };
        let made = rewrite(&at("node.yaml"), &at("data"), "made.yaml", change).unwrap();
        assert_eq!(made, at("made.yaml"));
        assert_eq!(fs::read_to_string(made).unwrap().trim(), "role: validator");
        assert_eq!(fs::read_to_string(at("opened before")).unwrap(), "before");
        assert!(!at("made.yaml.new").exists());
    }
}
