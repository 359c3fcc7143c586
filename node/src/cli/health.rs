//! `slipstream health`: one question with an exit code, for whoever watches a process and has no HTTP client, as in a container.

use std::path::PathBuf;

use clap::Args;
use miette::Result;

use super::{
    ask::{ask, authority, page, parse},
    exit::{Exit, Failed},
    operator::url_authority,
    output::print,
    source::OverrideArgs,
};

#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    /// The node's API
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8545", conflicts_with = "config")]
    api: String,
    /// The node's configuration file, to take the API's address from
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: OverrideArgs,
    /// Only ask whether the process works, as whoever restarts it wants to know: a node that is behind is none to be restarted
    #[arg(long)]
    live: bool,
}

pub(super) fn health(args: &HealthArgs) -> Result<()> {
    let authority = match args.overrides.load_if_named(args.config.as_deref())? {
        Some(config) => authority(config.api.listen),
        None => url_authority(&args.api)?,
    };
    if args.live {
        return print(ask(&authority, "/health/live")?.trim_end());
    }
    let health: serde_json::Value = match page(&authority, "/health/ready")? {
        said if said.starts_with('{') => parse(&said)?,
        // A node that starts says what it is at.
        said => return Err(Failed::new(Exit::TryAgain, said.trim()).into()),
    };
    if health["ready"] == true {
        return print("ready");
    }
    let why =
        health.pointer("/blocker/text").and_then(serde_json::Value::as_str).unwrap_or("no reason is given");
    Err(Failed::new(Exit::TryAgain, format!("not ready: {why}")).into())
}
