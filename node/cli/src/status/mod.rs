//! `slipstream status`: a node's [`NodeStatus`] as text or JSON, once or repeatedly.

pub(super) mod peers;
mod sync;
mod table;
pub(super) mod units;
mod watch;
#[cfg(test)]
mod wording_tests;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use miette::Result;
use slipstream_status::NodeStatus;

pub(super) use self::{
    sync::{backfill, past_states},
    watch::line,
};
use super::{
    ask::{NodeUrl, ask, ask_within, parse},
    output::print,
    source::OverrideArgs,
};

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Print the JSON document unchanged
    #[arg(long)]
    json: bool,
    /// Repeat every SECONDS seconds until interrupted: in place on a terminal, as lines elsewhere
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=3_600))]
    watch: Option<u32>,
}

/// The node to ask.
#[derive(Debug, Args)]
pub(super) struct NodeArgs {
    /// The node's API: http://HOST:PORT, or https://HOST/PATH of a proxy in front of it
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8545", conflicts_with = "config")]
    api: String,
    /// The node's configuration file, from which the API's address is taken
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: OverrideArgs,
}

impl NodeArgs {
    /// The URL of the node's API.
    pub(super) fn address(&self) -> Result<NodeUrl> {
        match self.overrides.load_if_named(self.config.as_deref())? {
            Some(config) => Ok(NodeUrl::of(config.api.listen)),
            None => NodeUrl::parse(&self.api),
        }
    }
}

pub(super) fn status(args: &StatusArgs) -> Result<()> {
    let node = args.node.address()?;
    if let Some(seconds) = args.watch {
        return watch::watch(&node, seconds, args.json);
    }
    let body = ask(&node, "/v1/status")?;
    match args.json {
        true => print(body.trim_end()),
        false => print(table::table(&parse(&body)?).trim_end()),
    }
}

/// Requests a node's status, within `patience`.
pub(super) fn read_within(node: &NodeUrl, patience: Duration) -> Result<NodeStatus> {
    parse(&ask_within(node, "/v1/status", patience)?)
}
