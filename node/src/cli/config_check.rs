//! `slipstream config check`.

use std::path::PathBuf;

use clap::Args;
use miette::{IntoDiagnostic, Result};

use super::print;
use crate::node;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The configuration file
    file: PathBuf,
}

pub(super) fn check(args: &CheckArgs) -> Result<()> {
    let config = slipstream_config::load(&args.file).into_diagnostic()?;
    node::check(&config).into_diagnostic()?;
    super::run::log_filter(&config.log).into_diagnostic()?;
    print(&format!("{}: ok", args.file.display()));
    Ok(())
}
