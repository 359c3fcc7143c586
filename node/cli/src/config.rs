//! `slipstream config`: checks and shows a configuration, without starting anything.

use std::path::{self, PathBuf};

use clap::{Args, Subcommand};
use miette::Result;

use super::{
    exit::{CommandFailure, Exit, OrFail as _},
    output::print,
    source::OverrideArgs,
};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Check a configuration, and the key and genesis that it names, without starting anything
    Check(CheckArgs),
    /// Print the effective configuration as YAML: the file with its preset, the environment and --set; secrets are masked
    Show(ShowArgs),
    /// Print the JSON Schema of configurations, for editors
    Schema,
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The configuration file
    #[arg(value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    overrides: OverrideArgs,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "node.yaml")]
    config: PathBuf,
    #[command(flatten)]
    overrides: OverrideArgs,
    /// Show where each value comes from: default, preset, file and line, environment variable or --set
    #[arg(long)]
    origin: bool,
}

pub(super) fn config(command: &ConfigCommand) -> Result<()> {
    match command {
        ConfigCommand::Check(args) => check(args),
        ConfigCommand::Show(args) => show(args),
        ConfigCommand::Schema => print(&schema()?),
    }
}

/// The schema as text for a file.
pub(super) fn schema() -> Result<String> {
    serde_json::to_string_pretty(&slipstream_config::schema()).or_fail()
}

fn check(args: &CheckArgs) -> Result<()> {
    let config = args.overrides.load(&args.config)?.config;
    if args.overrides.is_instance() && !config.key_file.exists() {
        let key = config.key_file.display();
        let text = format!("{key} does not exist yet: `slipstream run` with the same --instance creates it");
        return Err(CommandFailure::new(Exit::Config, text).into());
    }
    slipstream_node::check(&config).or_fail()?;
    super::run::configured_filter(&config.log).or_fail()?;
    print(&format!("{}: ok", args.config.display()))
}

fn show(args: &ShowArgs) -> Result<()> {
    let mut loaded = args.overrides.load(&args.config)?;
    // Absolute paths keep their meaning if the output is saved elsewhere.
    for (_, file) in loaded.config.paths_mut() {
        *file = path::absolute(&*file).or_fail()?;
    }
    print(loaded.to_yaml(args.origin).trim_end())
}
