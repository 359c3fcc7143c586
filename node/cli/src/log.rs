//! `slipstream log`.

use clap::{Args, Subcommand};
use miette::Result;
use slipstream_api::operator::FilterBody;

use super::{operator::OperatorArgs, output::print};

const PATH: &str = "/v1/operator/log/filter";

#[derive(Debug, Subcommand)]
pub(super) enum LogCommand {
    /// Show the log filter of a running node, or change it until the node stops
    Filter(FilterArgs),
}

#[derive(Debug, Args)]
pub(super) struct FilterArgs {
    /// The new filter, such as info,slipstream_sync=debug
    filter: Option<String>,
    #[command(flatten)]
    node: OperatorArgs,
}

pub(super) fn log(command: &LogCommand) -> Result<()> {
    let LogCommand::Filter(args) = command;
    let node = args.node.find()?;
    match &args.filter {
        None => print(&node.ask::<FilterBody>(PATH)?.filter),
        Some(filter) => {
            let before: FilterBody = node.order("PUT", PATH, &FilterBody { filter: filter.clone() })?;
            print(&format!("{filter} until the node stops; it was {}", before.filter))
        }
    }
}
