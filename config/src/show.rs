//! A configuration as YAML for people: every key, with its value and, on request, its origin. Secrets are masked.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{
    LoadedConfig,
    mask::mask_value,
    tree::{Tree, joined},
};

/// Words that YAML does not read as texts.
const RESERVED: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];

impl LoadedConfig {
    /// Returns the effective configuration as YAML. If nothing is masked, reading the output gives the same
    /// configuration.
    pub fn to_yaml(&self, with_origins: bool) -> String {
        let mut text = String::new();
        let tree = Tree::of(&self.config);
        ConfigText { loaded: self, with_origins }.section(&mut text, &tree, "", 0);
        text
    }
}

struct ConfigText<'a> {
    loaded: &'a LoadedConfig,
    with_origins: bool,
}

impl ConfigText<'_> {
    fn section(&self, text: &mut String, tree: &Tree, section: &str, depth: usize) {
        let Tree::Section(entries) = tree else { return };
        let indent = "  ".repeat(depth);
        for (name, tree) in entries {
            let key = joined(section, name);
            let Tree::Value(value) = tree else {
                line(text, format_args!("{indent}{name}:"));
                self.section(text, tree, &key, depth + 1);
                continue;
            };
            let comment = match self.with_origins {
                true => format!(" # {}", self.loaded.origins.of(&key)),
                false => String::new(),
            };
            match value {
                Value::Array(items) if items.len() > 1 => {
                    line(text, format_args!("{indent}{name}:{comment}"));
                    for item in items {
                        line(text, format_args!("{indent}  - {}", scalar(&key, item)));
                    }
                }
                value => line(text, format_args!("{indent}{name}: {}{comment}", scalar(&key, value))),
            }
        }
    }
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    writeln!(text, "{content}").expect("a String takes everything");
}

fn scalar(key: &str, value: &Value) -> String {
    match value {
        Value::String(value) => {
            let shown = mask_value(key, value);
            if is_plain(&shown) { shown.into_owned() } else { Value::from(shown).to_string() }
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| scalar(key, item)).collect();
            format!("[{}]", items.join(", "))
        }
        // JSON is YAML.
        other => other.to_string(),
    }
}

/// Whether a text is the same without quotes.
fn is_plain(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'))
        && !RESERVED.contains(&text.to_ascii_lowercase().as_str())
}
