//! `slipstream completions` and `slipstream man`: completion scripts and manual pages, generated from the command
//! line's definition.

use std::{fs, path::PathBuf};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use miette::Result;

use super::{Cli, exit::OrFail as _, output::print};

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell that will read the script
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Directory for the pages, created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "slipstream", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())
}

pub(super) fn man(args: &ManArgs) -> Result<()> {
    fs::create_dir_all(&args.dir).or_fail()?;
    clap_mangen::generate_to(Cli::command(), &args.dir).or_fail()?;
    print(&format!("wrote the manual to {}: man -l {}/slipstream.1", args.dir.display(), args.dir.display()))
}
