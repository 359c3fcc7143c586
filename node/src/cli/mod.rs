//! The command line.

mod advice;
mod config_check;
mod db;
mod init;
mod rows;
mod run;
mod snapshot;
mod status;
mod sync_status;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use miette::MietteHandlerOpts;

/// A state-sync node for EVM ledgers.
#[derive(Debug, Parser)]
#[command(name = "slipstream", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a configuration and a key into a directory
    Init(init::InitArgs),
    /// Run a node until it is told to stop (ctrl-c or SIGTERM)
    Run(run::RunArgs),
    /// Show what a running node does
    Status(status::StatusArgs),
    /// Look at, check and prune the database of a node that does not run
    #[command(subcommand)]
    Db(db::DbCommand),
    /// Work with the snapshots of a node that is stopped, and with exports
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Work with configuration files
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Check a configuration, and the key and genesis that it names, without starting anything
    Check(config_check::CheckArgs),
}

/// Parses the arguments, runs the command and reports its error: exit code 0 if all is well, 1 after an error, 2 for wrong
/// arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // Messages hold paths, keys and carets: a line that is broken elsewhere can be neither copied nor searched for.
    let handler = |_: &dyn miette::Diagnostic| {
        Box::new(MietteHandlerOpts::new().wrap_lines(false).break_words(false).build())
            as Box<dyn miette::ReportHandler>
    };
    // Only a second call can fail, and there is none.
    let _ = miette::set_hook(Box::new(move |diagnostic| handler(diagnostic)));
    let result = match cli.command {
        Command::Init(args) => init::init(&args),
        Command::Run(args) => run::run(&args),
        Command::Status(args) => status::status(&args),
        Command::Db(command) => db::db(&command),
        Command::Snapshot(command) => snapshot::snapshot(&command),
        Command::Config(ConfigCommand::Check(args)) => config_check::check(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(report) => {
            eprintln!("{report:?}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what a command was asked for. Everything else goes to standard error.
#[allow(clippy::print_stdout, reason = "this is the commands' output")]
fn print(text: &str) {
    println!("{text}");
}
