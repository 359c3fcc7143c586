//! `slipstream peers`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use miette::{Result, bail};
use serde_json::{Value, json};
use slipstream_api::operator::{AddBody, BAN_SECONDS, BanBody, Banned, Pong, WHY_BYTES_MAX};
use slipstream_network::{PeerId, PeerTarget};
use slipstream_status::NodeStatus;

use super::{
    ask::{NodeUrl, ask, parse},
    operator::{OperatorArgs, running},
    output::{note, print},
    rows::Rows,
    source::OverrideArgs,
    status::peers as text,
};

#[derive(Debug, Subcommand)]
pub(super) enum PeersCommand {
    /// Show connected peers and where they are from (config, added, found), missing peers, and bans with their end and
    /// reason
    List(ListArgs),
    /// Dial a peer KEY@HOST:PORT and reserve a place for it, as if it were in network.peers, even after a restart
    Add(AddArgs),
    /// Stop dialling and keeping a peer, whether it was added or is in network.peers
    Remove(KeyArgs),
    /// Disconnect a peer and keep it out, for a time or until it is unbanned, even after a restart
    Ban(BanArgs),
    /// Lift the ban of a peer, whether the operator or the node itself imposed it
    Unban(KeyArgs),
    /// Send a connected peer a small request, and show how long its answer takes
    Ping(PingArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// The configuration file of a node on this machine
    #[arg(long, value_name = "FILE", required_unless_present = "api")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: OverrideArgs,
    /// The node's API: http://HOST:PORT, or https://HOST/PATH of a proxy in front of it
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    api: Option<String>,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct AddArgs {
    /// The peer, as `slipstream status` on it prints it
    #[arg(value_name = "KEY@HOST:PORT")]
    peer: PeerTarget,
    #[command(flatten)]
    node: OperatorArgs,
}

#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// The peer's key
    #[arg(value_name = "KEY")]
    peer: PeerId,
    #[command(flatten)]
    node: OperatorArgs,
}

#[derive(Debug, Args)]
pub(super) struct BanArgs {
    #[command(flatten)]
    peer: KeyArgs,
    /// Duration, such as 30m, 1h or 2days, at most a year; if omitted, until unbanned for a peer of network.peers, and
    /// an hour for any other
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Option<Duration>,
    /// The reason, shown in the list of bans; the peer does not see it
    #[arg(long, value_name = "TEXT", default_value = "by hand")]
    why: String,
}

#[derive(Debug, Args)]
pub(super) struct PingArgs {
    #[command(flatten)]
    peer: KeyArgs,
    /// How many times to ping
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    count: u32,
}

pub(super) fn peers(command: &PeersCommand) -> Result<()> {
    match command {
        PeersCommand::List(args) => list(args),
        PeersCommand::Add(AddArgs { peer, node }) => {
            let body = AddBody { at: peer.at.to_string() };
            node.find()?.order::<Value>("PUT", &format!("/v1/operator/peers/{}", peer.id), &body)?;
            print(&format!("{peer} is dialled and kept, even after a restart, until it is removed"))
        }
        PeersCommand::Remove(KeyArgs { peer, node }) => {
            node.find()?.order::<Value>("DELETE", &format!("/v1/operator/peers/{peer}"), &json!({}))?;
            print(&format!("{peer} is no longer dialled or kept; it may still connect unless it is banned"))
        }
        PeersCommand::Ban(args) => ban(args),
        PeersCommand::Unban(KeyArgs { peer, node }) => {
            node.find()?.order::<Value>("DELETE", &format!("/v1/operator/bans/{peer}"), &json!({}))?;
            print(&format!("{peer} may connect again"))
        }
        PeersCommand::Ping(args) => ping(args),
    }
}

fn list(args: &ListArgs) -> Result<()> {
    let node = match args.overrides.load_if_named(args.config.as_deref())? {
        Some(config) => running(&config)?,
        None => NodeUrl::parse(args.api.as_deref().unwrap_or_default())?,
    };
    let status: NodeStatus = parse(&ask(&node, "/v1/status")?)?;
    if args.json {
        let NodeStatus {
            peers,
            configured_peers,
            removed_peers,
            bans,
            bans_count,
            exchange,
            shared_keys,
            ..
        } = status;
        let list = json!({
            "peers": peers, "configured_peers": configured_peers, "removed_peers": removed_peers, "bans": bans, "bans_count": bans_count, "exchange": exchange,
            "shared_keys": shared_keys,
        });
        return print(&list.to_string());
    }
    let mut rows = Rows::default();
    text::describe(&mut rows, &status);
    print(rows.0.trim_end())
}

fn ban(args: &BanArgs) -> Result<()> {
    let KeyArgs { peer, node } = &args.peer;
    if let Some(time) = args.time.filter(|time| !BAN_SECONDS.contains(&time.as_secs())) {
        bail!("--for: a ban lasts from a second to a year, not {}", humantime::format_duration(time));
    }
    if args.why.len() > WHY_BYTES_MAX {
        bail!("--why: a reason has at most {WHY_BYTES_MAX} bytes, not {}", args.why.len());
    }
    let body = BanBody { seconds: args.time.map(|time| time.as_secs()), why: args.why.clone() };
    let standing: Banned = node.find()?.order("PUT", &format!("/v1/operator/bans/{peer}"), &body)?;
    if let Some(warning) = &standing.warning {
        note(&format!("warning: {warning}"));
    }
    print(&format!("banned {}", text::ban(&standing.ban)))
}

fn ping(args: &PingArgs) -> Result<()> {
    let KeyArgs { peer, node } = &args.peer;
    let node = node.find()?;
    for _ in 0..args.count {
        let pong: Pong = node.ask(&format!("/v1/operator/peers/{peer}/ping"))?;
        let said = match pong.refusal {
            None => format!("{} bytes", pong.bytes),
            Some(refusal) => format!("refused: {refusal}"),
        };
        let (answer_ms, rtt_ms) = (pong.answer_ms, pong.rtt_ms);
        print(&format!("{peer} {answer_ms:.1} ms, {said}; the connection's round trip is {rtt_ms:.1} ms"))?;
    }
    Ok(())
}
