//! `slipnet`: devnets, load and the demo of Slipstream, for people and for scripts.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use slipnet::{
    accounts::{Account, DEFAULT_SEED},
    campaign::{
        siege::{self, AttackerOptions, SiegeCampaign},
        storage::{self, StorageCampaign, StorageChild},
    },
    demo::{self, DemoOptions},
    lab::{LabCommand, Up},
    load::{self, LoadOptions, Workload},
    manifest::Manifest,
    model::ModelOptions,
    output::{self, print, print_line},
    progress::Progress,
    relay::RelayOptions,
    rpc::Rpc,
    signals::interruptible,
    sim::{
        self, SimOptions,
        broadcast::{self, BroadcastSimOptions},
        validators::{self, ValidatorsOptions},
    },
    time::duration,
};

/// What a node allocates with is what its storage is measured with.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Runs devnets of real Slipstream nodes on this machine, and drives load through them.
#[derive(Parser)]
#[command(name = "slipnet", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts validators and fullnodes, and keeps them running until ctrl-c, or detached.
    Up(Up),
    #[command(flatten)]
    Lab(LabCommand),
    /// Relays UDP with delay, jitter, bandwidth and loss: beside a node that runs in a container.
    Relay(RelayOptions),
    /// Sends signed transactions at a fixed rate, and tells how long they took to be committed and followed.
    Load(Load),
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
    Sim(Sim),
    /// Searches all that may happen, within bounds, for something that must not.
    #[command(subcommand)]
    Model(Model),
    /// Searches for a lie, with random faults, for minutes or hours.
    #[command(subcommand)]
    Campaign(Campaign),
    /// What a campaign starts and kills.
    #[command(subcommand, hide = true)]
    CampaignChild(CampaignChild),
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
struct Sim {
    /// Whom to simulate; without it nodes that follow.
    #[command(subcommand)]
    whom: Option<Simulated>,
    #[command(flatten)]
    options: SimOptions,
}

#[derive(Subcommand)]
enum Simulated {
    /// Simulates validators that agree, one world for each seed.
    Validators(ValidatorsOptions),
    /// Simulates one batch among thousands of nodes.
    Broadcast(BroadcastSimOptions),
}

#[derive(Subcommand)]
enum Model {
    /// The validators' protocol: the core that they run, one liar, crashes, and a network that does what it likes.
    Consensus(ModelOptions),
}

#[derive(Subcommand)]
enum Campaign {
    /// Storage: crash points, kills, torn and flipped files, a full disk, and a model.
    Storage(StorageCampaign),
    /// Siege: real attackers against a real node under honest load, over QUIC and HTTP.
    Siege(SiegeCampaign),
}

#[derive(Subcommand)]
enum CampaignChild {
    #[command(flatten)]
    Storage(StorageChild),
    /// Attacks until it is killed.
    SiegeAttacker(AttackerOptions),
}

#[derive(Args)]
struct Load {
    /// What the transactions do.
    #[arg(long, value_enum, default_value_t = Workload::Transfers)]
    workload: Workload,
    /// Transactions per second.
    #[arg(long, default_value_t = 500)]
    tps: u32,
    /// How long: 30s, 5m, or a number of seconds.
    #[arg(long, default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// manifest.json of a devnet, for its nodes and accounts.
    #[arg(long, conflicts_with = "api")]
    manifest: Option<PathBuf>,
    /// API of a node; the first gets the commits read, the last, if there are several, is the follower.
    #[arg(long)]
    api: Vec<String>,
    /// Sending accounts.
    #[arg(long, default_value_t = 200)]
    accounts: u32,
    /// Where accounts come from when there is no manifest.
    #[arg(long, default_value = DEFAULT_SEED)]
    seed: String,
    /// Connections; each has one batch in flight.
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Also write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
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
            Command::Up(up) => up.run().await,
            Command::Lab(command) => command.run().await,
            Command::Relay(options) => interruptible(options.run()).await,
            Command::Load(arguments) => interruptible(run_load(arguments)).await,
            Command::Demo(arguments) => interruptible(run_demo(arguments)).await,
            Command::Bench { arguments } => become_bench(arguments),
            Command::Sim(sim) => run_sim(sim).await,
            Command::Model(Model::Consensus(options)) => tokio::task::block_in_place(|| options.run()),
            Command::Campaign(Campaign::Storage(options)) => run_campaign(options).await,
            Command::Campaign(Campaign::Siege(options)) => interruptible(run_siege(options)).await,
            Command::CampaignChild(CampaignChild::Storage(child)) => {
                tokio::task::block_in_place(|| child.run())
            }
            Command::CampaignChild(CampaignChild::SiegeAttacker(options)) => options.run().await,
        }
    };
    output::end("slipnet", work.await)
}

async fn run_load(arguments: Load) -> Result<()> {
    let defaults = match &arguments.manifest {
        Some(path) => LoadOptions::for_manifest(&Manifest::load(path)?, arguments.accounts as usize)?,
        None => {
            ensure!(!arguments.api.is_empty(), "name the chain with --manifest FILE or --api URL");
            let apis = arguments.api.iter().map(|url| Rpc::new(url)).collect::<Result<Vec<_>>>()?;
            let accounts = Account::derive_many(&arguments.seed, arguments.accounts);
            let follower = apis.last().filter(|_| apis.len() > 1).cloned();
            LoadOptions { accounts, submit: apis, follower, ..LoadOptions::default() }
        }
    };
    let options = LoadOptions {
        workload: arguments.workload,
        tps: arguments.tps,
        duration: arguments.duration,
        connections: arguments.connections,
        ..defaults
    };
    let report = load::run(&options, Progress::detect()).await?;
    print(&report.to_string())?;
    write_json(arguments.json.as_deref(), &report)?;
    ensure!(report.committed > 0, "nothing was committed");
    Ok(())
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

/// Becomes the program of the benchmarks, which is built apart: it links what nothing else needs.
fn become_bench(arguments: Vec<OsString>) -> Result<()> {
    let program = std::env::current_exe().context("this program's path is unknown")?;
    let bench = program.with_file_name("slipnet-bench");
    ensure!(bench.is_file(), "the program {} is missing: `./x build` makes it", bench.display());
    Err(std::process::Command::new(&bench).args(arguments).exec())
        .with_context(|| format!("cannot run {}", bench.display()))
}

/// Keeps its threads busy: it runs beside the runtime, not on it. The processes that it kills are this program.
async fn run_campaign(options: StorageCampaign) -> Result<()> {
    let program = std::env::current_exe().context("this program's path is unknown")?;
    let work = move || storage::run(&options, &program, Progress::detect());
    print_line(&tokio::task::spawn_blocking(work).await??.to_string())
}

/// Fails if the node did not survive an attack; an aim of latency or memory that is missed is only said.
async fn run_siege(options: SiegeCampaign) -> Result<()> {
    if options.list {
        return print(&siege::list());
    }
    let program = std::env::current_exe().context("this program's path is unknown")?;
    let summary = siege::run(&options, &program, Progress::detect()).await?;
    print(&summary.to_string())?;
    let lost = summary.lost_to();
    ensure!(lost.is_empty(), "not survived: {}", lost.join(", "));
    Ok(())
}

/// As [`run_campaign`].
async fn run_sim(sim: Sim) -> Result<()> {
    let work = move || -> Result<String> {
        Ok(match sim.whom {
            None => sim::run(&sim.options, Progress::detect())?.to_string(),
            Some(Simulated::Validators(options)) => {
                validators::run(&options, Progress::detect())?.to_string()
            }
            Some(Simulated::Broadcast(options)) => broadcast::run(&options, Progress::detect())?.to_string(),
        })
    };
    print(&tokio::task::spawn_blocking(work).await??)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
