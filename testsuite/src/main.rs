//! `slipnet`: devnets, load and the demo of Slipstream, for people and for scripts.

use std::{
    ffi::OsString,
    fmt::Write as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use slipnet::{
    accounts::DEFAULT_SEED,
    compare::{RunsOptions, compare_runs},
    demo::{self, DemoOptions},
    devnet::{Devnet, DevnetOptions, SyncMode},
    load::{self, LoadCommand},
    manifest::Manifest,
    output::{self, print, print_line},
    progress::Progress,
    report::RunReport,
};
use tokio::signal::unix::{SignalKind, signal};

/// What a node allocates with is what its storage is measured with.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The program with simulations, the model and campaigns.
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
    /// Starts validators and fullnodes, and keeps them running until ctrl-c.
    Up(Up),
    /// Sends transactions and reads at the times of a schedule, and tells how long each node took.
    Load(LoadCommand),
    /// What a load starts: a generator.
    #[command(hide = true)]
    LoadWorker,
    /// Shows fresh fullnodes that catch up with a chain by snapshot, by delta and by replay.
    Demo(Demo),
    /// Measures a part of the node beside its floor and its peers.
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
    /// Tells what happened in a simulation of one seed: who lied, what each node thought, why it stood.
    #[command(disable_help_flag = true)]
    Explain {
        /// Which seed; `--help` lists the options.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Tells whether runs became worse, a regression from noise, and exits 1 if they did.
    Compare(RunsOptions),
    /// Writes a run's Markdown and HTML page beside its JSON.
    Report {
        /// The run's report.json.
        run: PathBuf,
        /// Where report.json, report.md and report.html go.
        #[arg(long, default_value = ".")]
        dir: PathBuf,
    },
    /// Searches all that may happen, within bounds, for something that must not.
    #[command(disable_help_flag = true)]
    Model {
        /// What to search; `--help` lists it.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Searches for a lie, with random faults, for minutes or hours.
    #[command(disable_help_flag = true)]
    Campaign {
        /// Where to search; `--help` lists it.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

#[derive(Args)]
struct Up {
    /// Validators.
    #[arg(short, long, default_value_t = 4)]
    validators: u32,
    /// Fullnodes.
    #[arg(short, long, default_value_t = 2)]
    fullnodes: u32,
    /// Funded accounts.
    #[arg(long, default_value_t = 1_000)]
    accounts: u32,
    /// Begin without the contracts that Ethereum's tools expect: a CREATE2 deployer, Multicall3, and that of EIP-4788.
    #[arg(long)]
    no_predeploys: bool,
    /// All keys come from this text.
    #[arg(long, default_value = DEFAULT_SEED)]
    seed: String,
    /// Where files go; kept at the end. Without it: a temporary directory, removed at the end.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Keep the temporary directory.
    #[arg(long)]
    keep: bool,
    /// First port; two per node. Without it nodes keep the ports that they had in --dir, and new ones get free ones.
    #[arg(long)]
    base_port: Option<u16>,
    /// How the fullnodes catch up.
    #[arg(long, value_enum, default_value_t = SyncMode::Auto)]
    sync_mode: SyncMode,
    /// Batches between two snapshots.
    #[arg(long, default_value_t = 100)]
    snapshot_interval: u64,
    /// States of the past that nodes answer for: at ten batches a second, five minutes of forks, wallets and debuggers.
    #[arg(long, default_value_t = 3_000)]
    state_history: u64,
    /// Log filter of the nodes.
    #[arg(long, default_value = "info")]
    log: String,
    /// Print the manifest as JSON once the devnet is ready.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Demo {
    /// Seconds of load.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Transactions per second.
    #[arg(long, default_value_t = 1_000)]
    tps: u32,
    /// Also write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return output::show_usage(&error),
    };
    let work = async {
        match command {
            Command::Up(arguments) => up(arguments).await,
            Command::Load(command) => interruptible(command.run(Progress::detect())).await,
            Command::LoadWorker => load::run_worker().await,
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

async fn up(arguments: Up) -> Result<()> {
    let progress = Progress::detect();
    // One listener for the whole time: a signal between two listeners would be lost.
    let mut stop = std::pin::pin!(interrupted());
    progress
        .step(&format!("starting {} validators and {} fullnodes", arguments.validators, arguments.fullnodes));
    let start = Devnet::start(DevnetOptions {
        validators: arguments.validators,
        fullnodes: arguments.fullnodes,
        accounts: arguments.accounts,
        predeploys: !arguments.no_predeploys,
        seed: arguments.seed,
        base_port: arguments.base_port,
        dir: arguments.dir,
        keep: arguments.keep,
        snapshot_interval_batches: arguments.snapshot_interval,
        state_history: Some(arguments.state_history),
        sync_mode: arguments.sync_mode,
        log_filter: arguments.log,
        ..DevnetOptions::default()
    });
    let mut devnet = tokio::select! {
        devnet = start => devnet?,
        () = &mut stop => bail!("interrupted while starting"),
    };
    let manifest = devnet.manifest().await?;
    if arguments.json {
        print_line(&serde_json::to_string_pretty(&manifest)?)?;
    } else {
        print(&described(&manifest, devnet.dir())?)?;
    }
    let mut check = tokio::time::interval(Duration::from_millis(500));
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = check.tick() => {
                for end in devnet.take_ended()? {
                    progress.step(&end.to_string());
                }
            }
        }
    }
    progress.step("stopping");
    for name in devnet.started_by_hand() {
        let dir = devnet.keep_directory();
        progress
            .step(&format!("{name} was started by hand and goes on; the files stay in {}", dir.display()));
    }
    devnet.stop().await
}

/// The manifest, for people.
fn described(manifest: &Manifest, dir: &Path) -> Result<String> {
    let mut text = format!("chain id {}, files in {}\n\n", manifest.chain_id, dir.display());
    writeln!(text, "accounts (keys are known to everybody: never use them elsewhere)")?;
    for account in manifest.accounts.iter().take(10) {
        writeln!(text, "  {}  {}", account.address, account.key)?;
    }
    if manifest.accounts.len() > 10 {
        writeln!(text, "  and {} more in manifest.json", manifest.accounts.len() - 10)?;
    }
    writeln!(text, "\nnodes")?;
    for node in &manifest.nodes {
        let (name, api, network) = (&node.name, &node.api, &node.network);
        writeln!(
            text,
            "  {name:<12} api {api}  network {network}  pid {}  {}",
            node.pid,
            node.dir.display()
        )?;
    }
    let manifest = dir.join("manifest.json");
    writeln!(text, "\nready: slipnet load --manifest {}   ctrl-c stops", manifest.display())?;
    Ok(text)
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

/// Ends the work on ctrl-c; what it holds, processes too, is dropped and thereby ended.
async fn interruptible(work: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::select! {
        result = work => result,
        () = interrupted() => bail!("interrupted"),
    }
}

/// Waits for ctrl-c or SIGTERM.
async fn interrupted() {
    let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM may be handled");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// Becomes another program, which is built apart because it links what nothing else needs. It gets `first` and the arguments.
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

    /// Goal: what another program parses goes to it as it stands, its help too.
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
