//! The command line.

mod access;
mod advice;
mod archive;
mod ask;
mod config;
mod db;
mod debug;
mod events;
mod exit;
mod genesis;
mod health;
mod init;
mod log;
mod mask;
mod operator;
mod output;
mod peers;
mod plan;
mod read;
mod rows;
mod run;
mod shell;
mod snapshot;
mod source;
mod status;
mod text;
mod top;
mod validators;
mod verify_account;
mod wait;

use std::{io, panic, process::ExitCode};

use clap::{Parser, Subcommand};
use miette::{MietteHandlerOpts, Result};

use self::exit::Exit;

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
    /// Run a node until a signal stops it (ctrl-c or SIGTERM)
    Run(run::RunArgs),
    /// Show the state of a running node
    Status(status::StatusArgs),
    /// Show what each way to the head would cost a running node, and how it would start without a ledger
    Plan(plan::PlanArgs),
    /// Check whether a running node is ready, or alive; the exit code gives the result
    Health(health::HealthArgs),
    /// Show a running node on the whole terminal, live, until `q` is pressed
    Top(top::TopArgs),
    /// Print changes at a node as they happen: heads, phases, blockers, peers, snapshots
    Events(events::EventsArgs),
    /// Wait until a node is synced, ready or healthy, or has a batch
    Wait(wait::WaitArgs),
    /// Ask a quorum of the validators, and accept only an answer on which enough of them agree
    Read(read::ReadArgs),
    /// Ask any node for an account, and accept only what the chain's validators signed
    VerifyAccount(verify_account::VerifyArgs),
    /// Show and change the validators of a chain
    #[command(subcommand)]
    Validators(validators::ValidatorsCommand),
    /// Inspect, check and prune the database of a stopped node
    #[command(subcommand)]
    Db(db::DbCommand),
    /// Manage the snapshots of a stopped node, and exports
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Show the peers of a running node, and control which peers it dials and bans
    #[command(subcommand)]
    Peers(peers::PeersCommand),
    /// Show and change what a running node logs
    #[command(subcommand)]
    Log(log::LogCommand),
    /// Collect the information that a helper needs
    #[command(subcommand)]
    Debug(debug::DebugCommand),
    /// Print a shell script that completes this program's arguments
    Completions(shell::CompletionsArgs),
    /// Write the manual pages into a directory
    Man(shell::ManArgs),
    /// Prepare the genesis file of a chain that has not begun
    #[command(subcommand)]
    Genesis(genesis::GenesisCommand),
    /// Work with configuration files
    #[command(subcommand)]
    Config(config::ConfigCommand),
}

/// Parses the arguments, runs the command and reports its error. docs/operations.md lists the exit codes.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return show_usage(&error),
    };
    // Messages contain paths, keys and carets. A wrapped line cannot be copied or searched.
    let handler = |_: &dyn miette::Diagnostic| {
        Box::new(MietteHandlerOpts::new().wrap_lines(false).break_words(false).build())
            as Box<dyn miette::ReportHandler>
    };
    // Only a second call can fail, and this is the only one.
    let _ = miette::set_hook(Box::new(move |diagnostic| handler(diagnostic)));
    // The panic hook has already printed the message.
    panic::catch_unwind(|| exit::end(run_command(&cli.command))).unwrap_or(Exit::Bug.into())
}

fn run_command(command: &Command) -> Result<()> {
    match command {
        Command::Init(args) => init::init(args),
        Command::Run(args) => run::run(args),
        Command::Status(args) => status::status(args),
        Command::Plan(args) => plan::plan(args),
        Command::Health(args) => health::health(args),
        Command::Top(args) => top::top(args),
        Command::Events(args) => events::events(args),
        Command::Wait(args) => wait::wait(args),
        Command::Read(args) => read::read(args),
        Command::VerifyAccount(args) => verify_account::verify_account(args),
        Command::Validators(command) => validators::validators(command),
        Command::Db(command) => db::db(command),
        Command::Snapshot(command) => snapshot::snapshot(command),
        Command::Peers(command) => peers::peers(command),
        Command::Log(command) => log::log(command),
        Command::Debug(command) => debug::debug(command),
        Command::Completions(args) => shell::completions(args),
        Command::Man(args) => shell::man(args),
        Command::Genesis(command) => genesis::genesis(command),
        Command::Config(command) => config::config(command),
    }
}

/// Prints the requested help, or the error in the arguments.
fn show_usage(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(closed) if closed.kind() == io::ErrorKind::BrokenPipe && !error.use_stderr() => {
            Exit::ClosedPipe.into()
        }
        _ if error.use_stderr() => Exit::Usage.into(),
        _ => ExitCode::SUCCESS,
    }
}
