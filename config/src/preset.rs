//! [`Preset`]: the settings of a kind of node, in a separate file that the operator's file overrides.

use serde::{Deserialize, Serialize};
use strum::EnumMessage as _;

/// A set of values for a kind of node. Every other layer except the defaults overrides it.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    strum::VariantArray,
    strum::IntoStaticStr,
    strum::EnumMessage,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Preset {
    /// Executes, votes and certifies, on a machine of its own.
    Validator,
    /// Follows, serves peers and wallets.
    Fullnode,
    /// Keeps all history and all states, from the first batch on.
    Archive,
    /// Keeps the state and no transactions, on a small machine.
    Light,
}

impl Preset {
    /// All presets, in the order of the documentation.
    pub const ALL: &'static [Preset] = <Preset as strum::VariantArray>::VARIANTS;

    /// Returns the name in the configuration.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns what such a node does, in one line.
    pub fn summary(self) -> &'static str {
        self.get_documentation().unwrap_or_default().trim_end_matches('.')
    }

    /// Returns whether such a node takes part in agreement.
    pub fn is_validator(self) -> bool {
        self.text().lines().any(|line| line == "role: validator")
    }

    /// Returns the preset's keys as YAML, with the reasons as comments.
    pub fn text(self) -> &'static str {
        match self {
            Preset::Validator => include_str!("../presets/validator.yaml"),
            Preset::Fullnode => include_str!("../presets/fullnode.yaml"),
            Preset::Archive => include_str!("../presets/archive.yaml"),
            Preset::Light => include_str!("../presets/light.yaml"),
        }
    }
}
