//! The command line of `slipnet-simulation`. The library has it, not the program, so that its tests link with the
//! library's tests.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use slipnet::{
    output::{self, print, print_line},
    progress::Progress,
    signals::interruptible,
};

use crate::{
    campaign::{
        gas::{self, GasCampaign},
        liar::LiarOptions,
        siege::{self, AttackerOptions, SiegeCampaign},
        storage::{self, StorageCampaign, StorageChild},
    },
    model::ModelOptions,
    sim::{
        self, SimOptions,
        broadcast::{self, BroadcastSimOptions},
        explain::ExplainOptions,
        validators::{self, ValidatorsOptions},
    },
};

/// Searches for violations, in simulations, in a model and on this machine.
#[derive(Parser)]
#[command(name = "slipnet", bin_name = "slipnet", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Simulates nodes among hostile peers, one world for each seed.
    Sim(Sim),
    /// Shows what happened in a simulation of one seed: which peers lied, what each node did and why, and why it stood
    /// still.
    Explain(ExplainOptions),
    /// Searches all possible runs, within bounds, for one that breaks the protocol.
    #[command(subcommand)]
    Model(Model),
    /// Searches for violations under random faults, for minutes or hours.
    #[command(subcommand)]
    Campaign(Campaign),
    /// The processes that a campaign starts and kills.
    #[command(subcommand, hide = true)]
    CampaignChild(CampaignChild),
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
struct Sim {
    /// What to simulate; nodes that follow, by default.
    #[command(subcommand)]
    whom: Option<Simulated>,
    #[command(flatten)]
    options: SimOptions,
}

#[derive(Subcommand)]
enum Simulated {
    /// Simulates validators in consensus, one world for each seed.
    Validators(ValidatorsOptions),
    /// Simulates the broadcast of one batch among thousands of nodes.
    Broadcast(BroadcastSimOptions),
}

#[derive(Subcommand)]
enum Model {
    /// The validators' protocol: the core that ships, one Byzantine validator, crashes, and a network that delivers in
    /// any order.
    Consensus(ModelOptions),
}

#[derive(Subcommand)]
enum Campaign {
    /// Storage: crash points, kills, torn and flipped files, a full disk, and a reference model.
    Storage(StorageCampaign),
    /// Siege: real attackers against a real node under honest load, over QUIC and HTTP.
    Siege(SiegeCampaign),
    /// Gas: the slowest programs for their gas, and their effect on four validators under honest load.
    Gas(GasCampaign),
}

#[derive(Subcommand)]
enum CampaignChild {
    #[command(flatten)]
    Storage(StorageChild),
    /// Attacks until it is killed.
    SiegeAttacker(AttackerOptions),
    /// Lies in a validator's place until it is killed; `slipnet run` starts it.
    LyingValidator(LiarOptions),
}

/// Runs the command that this process' arguments name, on its own runtime. A library function, because the body of an
/// async function would be compiled again in each program that calls it.
#[tokio::main]
pub async fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return output::show_usage(&error),
    };
    output::end("slipnet", run(command).await)
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Sim(sim) => run_sim(sim).await,
        Command::Explain(options) => tokio::task::spawn_blocking(move || options.run()).await?,
        Command::Model(Model::Consensus(options)) => tokio::task::block_in_place(|| options.run()),
        Command::Campaign(Campaign::Storage(options)) => run_campaign(options).await,
        Command::Campaign(Campaign::Siege(options)) => interruptible(run_siege(options)).await,
        Command::Campaign(Campaign::Gas(options)) => interruptible(run_gas(options)).await,
        Command::CampaignChild(CampaignChild::Storage(child)) => tokio::task::block_in_place(|| child.run()),
        Command::CampaignChild(CampaignChild::SiegeAttacker(options)) => options.run().await,
        Command::CampaignChild(CampaignChild::LyingValidator(options)) => options.run().await,
    }
}

/// Runs a storage campaign on a blocking thread, because the campaign keeps its threads busy. The processes that it
/// kills run this same program.
async fn run_campaign(options: StorageCampaign) -> Result<()> {
    let program = std::env::current_exe().context("this program's path is unknown")?;
    let work = move || storage::run(&options, &program, Progress::detect());
    print_line(&tokio::task::spawn_blocking(work).await??.to_string())
}

/// Fails if the node did not survive an attack; a missed target for latency or memory is only reported.
async fn run_siege(options: SiegeCampaign) -> Result<()> {
    if options.list {
        return print(&siege::list());
    }
    let program = std::env::current_exe().context("this program's path is unknown")?;
    let summary = siege::run(&options, &program, Progress::detect()).await?;
    print(&summary.to_string())?;
    let lost = summary.lost_to();
    ensure!(
        lost.is_empty(),
        "attacks that the node did not survive, or that could not be tried: {}",
        lost.join(", ")
    );
    Ok(())
}

/// Reports a missed target, and does not fail for it.
async fn run_gas(options: GasCampaign) -> Result<()> {
    print(&gas::run(&options, Progress::detect()).await?.to_string())
}

/// Runs `slipnet sim` on a blocking thread, as [`run_campaign`] does.
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
        let child = Cli::try_parse_from(["slipnet", "campaign-child", "live", "--help"]).err().expect("help");
        assert_eq!(child.kind(), clap::error::ErrorKind::DisplayHelp, "{child}");
    }

    #[test]
    fn a_gas_campaign_has_the_options_of_its_neighbours() {
        let line = ["slipnet", "campaign", "gas", "--quick", "--json", "gas.json", "--seed", "7"];
        let Ok(Cli { command: Command::Campaign(Campaign::Gas(options)) }) = Cli::try_parse_from(line) else {
            panic!("{line:?} is taken");
        };
        assert!(options.quick && !options.keep);
        assert_eq!((options.seed, options.json), (7, Some("gas.json".into())));
    }
}
