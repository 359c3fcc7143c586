//! The sources of a command's configuration: the file of `--config`, the environment, `--set` and `--instance`.

use std::{
    num::NonZeroU8,
    path::{Path, PathBuf},
};

use clap::Args;
use miette::Result;
use slipstream_config::{INSTANCE_MAX, LoadedConfig, NodeConfig, Overrides};

use super::exit::{CommandFailure, Exit, OrFail as _};

/// The configuration arguments of commands that require a configuration.
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    /// The node's configuration file; `slipstream init` writes one
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    overrides: OverrideArgs,
}

impl ConfigArgs {
    /// For a file without overrides.
    #[cfg(test)]
    pub(super) fn of(config: PathBuf) -> ConfigArgs {
        ConfigArgs { config, overrides: OverrideArgs::default() }
    }

    pub(super) fn load(&self) -> Result<NodeConfig> {
        self.overrides.load(&self.config).map(|loaded| loaded.config)
    }

    /// Whether this is one of several nodes that share the file, rather than the one whose key `init` wrote.
    pub(super) fn is_instance(&self) -> bool {
        self.overrides.is_instance()
    }
}

/// The overrides of a configuration file.
#[derive(Debug, Default, Args)]
pub(super) struct OverrideArgs {
    /// Set a key for this command only, as in sync.mode=delta; overrides the file and variables such as
    /// SLIPSTREAM__SYNC__MODE; the value is YAML; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// One of several nodes on this machine that share the file: ports are increased by N, data becomes data-N,
    /// node.key becomes node-N.key
    #[arg(long, value_name = "N", value_parser = parse_instance)]
    instance: Option<NonZeroU8>,
}

impl OverrideArgs {
    /// Whether no override is set, so that no configuration is needed.
    fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.instance.is_none()
    }

    pub(super) fn is_instance(&self) -> bool {
        self.instance.is_some()
    }

    /// Loads a file, if one is named, with its overrides.
    pub(super) fn load_if_named(&self, file: Option<&Path>) -> Result<Option<NodeConfig>> {
        match file {
            Some(file) => self.load(file).map(|loaded| Some(loaded.config)),
            None if self.is_empty() => Ok(None),
            None => {
                let text = "--set and --instance change what --config FILE says; name the file";
                Err(CommandFailure::new(Exit::Usage, text).into())
            }
        }
    }

    /// Loads the file with its overrides.
    pub(super) fn load(&self, file: &Path) -> Result<LoadedConfig> {
        let overrides = Overrides::new(std::env::vars_os(), &self.sets).or_fail()?;
        slipstream_config::load(file, &overrides.with_instance(self.instance)).or_fail()
    }
}

fn parse_instance(text: &str) -> std::result::Result<NonZeroU8, String> {
    let number = text.parse().ok().filter(|number: &NonZeroU8| number.get() <= INSTANCE_MAX);
    number.ok_or_else(|| format!("write a number from 1 to {INSTANCE_MAX}"))
}
