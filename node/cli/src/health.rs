//! `slipstream health`: one check with an exit code, for supervisors without an HTTP client, as in a container.

use clap::Args;
use miette::Result;

use super::{
    ask::{ask, page, parse},
    exit::{CommandFailure, Exit},
    output::{note, print},
    status::NodeArgs,
};

#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Check only whether the process works, to decide on a restart: a node that is behind does not need one
    #[arg(long)]
    live: bool,
}

pub(super) fn health(args: &HealthArgs) -> Result<()> {
    let node = args.node.address()?;
    if args.live {
        return print(ask(&node, "/health/live")?.trim_end());
    }
    let health: serde_json::Value = match page(&node, "/health/ready")? {
        said if said.starts_with('{') => parse(&said)?,
        // A starting node reports its current step.
        said => return Err(CommandFailure::new(Exit::TryAgain, said.trim()).into()),
    };
    let told = |at| health.pointer(at).and_then(serde_json::Value::as_str);
    if let (Some(text), Some(way_out)) = (told("/silence/text"), told("/silence/way_out")) {
        note(&format!("{text}; {way_out}"));
    }
    if health["ready"] == true {
        return print("ready");
    }
    let why = told("/blocker/text").unwrap_or("no reason is given");
    Err(CommandFailure::new(Exit::TryAgain, format!("not ready: {why}")).into())
}
