//! `slipstream config check`.

use std::path::PathBuf;

use clap::Args;
use miette::Result;

use super::{exit::OrFail as _, output::print};
use crate::node;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The configuration file
    file: PathBuf,
}

pub(super) fn check(args: &CheckArgs) -> Result<()> {
    let config = slipstream_config::load(&args.file).or_fail()?;
    node::check(&config).or_fail()?;
    super::run::configured_filter(&config.log).or_fail()?;
    print(&format!("{}: ok", args.file.display()))
}
