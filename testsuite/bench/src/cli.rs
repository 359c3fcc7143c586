//! The command line of `slipnet-bench`. The library has it, not the program, so that its tests link with the library's
//! tests.

#[cfg(test)]
#[path = "../../tests/it/documented/commands.rs"]
mod commands;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use slipnet::output;

use crate::{AllOptions, Bench, BenchChild, BenchOptions, CompareOptions, DocumentOptions};

/// Measures a part of the node beside its floor and its rivals.
#[derive(Parser)]
#[command(
    name = "slipnet bench",
    bin_name = "slipnet bench",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
struct Cli {
    /// What to measure.
    #[arg(required = true)]
    bench: Option<Bench>,
    #[command(flatten)]
    options: BenchOptions,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Runs all benchmarks, one after another, and writes the figures to one file.
    All(AllOptions),
    /// Separates regressions from noise, and exits with 1 if there is a regression.
    Compare(CompareOptions),
    /// Writes the tables of named runs into docs/benchmarks.md, or checks them.
    Document(DocumentOptions),
    /// The child processes of a bench.
    #[command(subcommand, hide = true)]
    Child(BenchChild),
}

/// Runs the command that this process' arguments name, on its own runtime. A library function, because the body of an
/// async function would be compiled again in each program that calls it.
#[tokio::main]
pub async fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return output::show_usage(&error),
    };
    output::end("slipnet bench", run(cli).await)
}

async fn run(Cli { bench, options, command }: Cli) -> Result<()> {
    match (command, bench) {
        (Some(Command::Child(child)), _) => child.run().await,
        (Some(Command::All(options)), _) => tokio::task::spawn_blocking(move || options.run()).await?,
        (Some(Command::Compare(options)), _) => options.run(),
        (Some(Command::Document(options)), _) => options.run(),
        (None, Some(bench)) => {
            // On a blocking thread, because a bench keeps its threads busy.
            let work = move || crate::run(bench, &options);
            output::print(&tokio::task::spawn_blocking(work).await??.to_string())
        }
        (None, None) => unreachable!("the parser requires one of both"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let child = Cli::try_parse_from(["slipnet-bench", "child", "clients", "--help"]).err().expect("help");
        assert_eq!(child.kind(), clap::error::ErrorKind::DisplayHelp, "{child}");
    }

    /// Goal: every `slipnet bench` command in the documents names an existing benchmark, with valid arguments.
    #[test]
    fn documented_benchmarks_are_known() {
        let mut count = 0;
        for command in commands::documented() {
            let Some(arguments) = command.line.strip_prefix("slipnet bench ") else { continue };
            if let Err(error) = Cli::try_parse_from(["bench"].into_iter().chain(arguments.split(' '))) {
                panic!("{}: {}\n{error}", command.place, command.line);
            }
            count += 1;
        }
        assert!(count > 5, "only {count} command lines were found");
    }
}
