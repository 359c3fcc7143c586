//! The command line of `slipnet`. It belongs to the library, so that its tests link with the library's tests.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;

use crate::{
    compare::{RunsOptions, compare_runs},
    demo::{self, DemoOptions},
    lab::{LabCommand, Up},
    leftovers,
    load::{self, LoadCommand},
    output::{self, print},
    progress::Progress,
    relay::RelayOptions,
    report::RunReport,
    scenario::{RunScenarios, ScenariosCommand},
    signals::interruptible,
};

/// The program of simulations, the model and campaigns.
const SIMULATION: &str = "slipnet-simulation";

/// Runs devnets of real Slipstream nodes on this machine, and drives load through them.
#[derive(Parser)]
#[command(name = "slipnet", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts validators and fullnodes, and keeps them running until ctrl-c; detached with `-d`.
    Up(Up),
    #[command(flatten)]
    Lab(LabCommand),
    /// Relays UDP with delay, jitter, limited bandwidth and loss. Runs beside a node in a container.
    Relay(RelayOptions),
    /// Sends transactions and reads at the times of a schedule, and reports how long each node took.
    Load(LoadCommand),
    /// Runs one generator. A load starts it.
    #[command(hide = true)]
    LoadWorker,
    /// Runs scenarios from YAML files: nodes, load, faults, and criteria.
    Run(RunScenarios),
    /// Lists, checks and prints scenarios.
    #[command(subcommand)]
    Scenarios(ScenariosCommand),
    /// Shows how fresh fullnodes catch up with a chain: by snapshot, by delta and by replay.
    Demo(Demo),
    /// Measures a part of the node beside its floor and its rivals.
    #[command(disable_help_flag = true)]
    Bench {
        /// What to measure, and how; `--help` lists it.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Simulates nodes among hostile peers, one world for each seed.
    #[command(disable_help_flag = true)]
    Sim {
        /// What to simulate; `--help` lists it.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Shows what happened in a simulation of one seed: which peers lied, what each node did and why, and why it stood
    /// still.
    #[command(disable_help_flag = true)]
    Explain {
        /// Which seed; `--help` lists the options.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Compares runs, separates regressions from noise, and exits with 1 if there is a regression.
    Compare(RunsOptions),
    /// Writes a run's Markdown and HTML reports from its JSON.
    Report {
        /// The run's report.json.
        run: PathBuf,
        /// The directory of report.json, report.md and report.html.
        #[arg(long, default_value = ".")]
        dir: PathBuf,
    },
    /// Searches all possible runs, within bounds, for one that breaks the protocol.
    #[command(disable_help_flag = true)]
    Model {
        /// What to search; `--help` lists it.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Searches for violations under random faults, for minutes or hours.
    #[command(disable_help_flag = true)]
    Campaign {
        /// Where to search; `--help` lists it.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

#[derive(Args)]
struct Demo {
    /// Seconds of load.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Transactions per second.
    #[arg(long, default_value_t = 1_000)]
    tps: u32,
    /// Also writes the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Runs the command in this process's arguments, on its own runtime. It is not async itself: an async function would be
/// compiled again in each program that calls it.
#[tokio::main]
pub async fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return output::show_usage(&error),
    };
    let work = async {
        if matches!(command, Command::Up(_) | Command::Run(_) | Command::Demo(_) | Command::Load(_)) {
            leftovers::sweep().iter().for_each(|line| Progress::detect().step(line));
        }
        match command {
            Command::Up(up) => up.run().await,
            Command::Lab(command) => command.run().await,
            Command::Relay(options) => interruptible(options.run()).await,
            Command::Load(command) => interruptible(command.run(Progress::detect())).await,
            Command::LoadWorker => load::run_worker().await,
            Command::Run(scenarios) => interruptible(scenarios.run()).await,
            Command::Scenarios(command) => command.run(),
            Command::Demo(arguments) => interruptible(run_demo(arguments)).await,
            Command::Bench { arguments } => become_program("slipnet-bench", &[], &arguments),
            Command::Sim { arguments } => become_program(SIMULATION, &["sim"], &arguments),
            Command::Explain { arguments } => become_program(SIMULATION, &["explain"], &arguments),
            Command::Compare(options) => compare_runs(&options)?.show(options.thresholds.json),
            Command::Report { run, dir } => RunReport::load(&run)?.write(&dir),
            Command::Model { arguments } => become_program(SIMULATION, &["model"], &arguments),
            Command::Campaign { arguments } => become_program(SIMULATION, &["campaign"], &arguments),
        }
    };
    output::end("slipnet", work.await)
}

async fn run_demo(arguments: Demo) -> Result<()> {
    let defaults = DemoOptions::default();
    let options = DemoOptions { seconds: arguments.seconds, tps: arguments.tps, ..defaults };
    let report = demo::run(&options, Progress::detect()).await?;
    print(&format!("\n{report}"))?;
    write_json(arguments.json.as_deref(), &report)
}

fn write_json(path: Option<&Path>, report: &impl Serialize) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces this process with another program, which is a separate crate because of its extra dependencies. That
/// program gets `first` and then `arguments`.
fn become_program(name: &str, first: &[&str], arguments: &[OsString]) -> Result<()> {
    let program = std::env::current_exe().context("this program's path is unknown")?.with_file_name(name);
    ensure!(program.is_file(), "the program {} is missing: `./x build` makes it", program.display());
    Err(std::process::Command::new(&program).args(first).args(arguments).exec())
        .with_context(|| format!("cannot run {}", program.display()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Goal: another program's arguments reach it unchanged, including `--help`.
    #[test]
    fn arguments_of_other_programs_pass() {
        for line in [
            &["slipnet", "sim", "--help"][..],
            &["slipnet", "sim", "validators", "--seeds", "0..9"],
            &["slipnet", "explain", "7", "--html", "seven.html"],
            &["slipnet", "model", "consensus", "--batches", "2"],
            &["slipnet", "campaign", "siege", "--only", "log-bomb"],
        ] {
            let parsed = Cli::try_parse_from(line).map(|cli| cli.command);
            let (Ok(Command::Sim { arguments })
            | Ok(Command::Explain { arguments })
            | Ok(Command::Model { arguments })
            | Ok(Command::Campaign { arguments })) = parsed
            else {
                panic!("{line:?} is parsed here");
            };
            assert_eq!(arguments, line[2..]);
        }
    }
}
