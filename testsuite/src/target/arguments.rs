//! The arguments of a blueprint's programs: relays, loads, `slipnet operate` and `slipnet judge`; and the nodes that
//! each node dials.

use std::net::SocketAddr;

use super::{ACCESS_LISTS, API_PORT, Blueprint, JUDGE, JUDGE_PORT, Job, Member, PEERS_PORT, SCENARIO, Way};
use crate::relay::Link;

/// The first port of a sidecar; the place of the link's target node is added.
const LINK_PORT: u16 = 10_000;
/// How long a load waits for its nodes: those of a chain that starts together with it, and those of a scenario, which
/// had until its start.
const WAIT_START: &str = "5m";
const WAIT_TIMED: &str = "60s";

/// Returns the entries of a node's `network.peers`. `host` gives the host name of each node.
pub(super) fn peers(blueprint: &Blueprint, member: &Member, host: impl Fn(&Member) -> String) -> Vec<String> {
    let entry = |way: &Way| {
        let peer = &blueprint.members[way.to];
        let address = match way.shape {
            None => format!("{}:{PEERS_PORT}", host(peer)),
            Some(_) => link_address(way.to).to_string(),
        };
        format!("{}@{address}", peer.key.public())
    };
    member.ways.iter().map(entry).collect()
}

/// Returns where a node's sidecar listens for the link to the peer at this place.
pub(crate) fn link_address(peer: usize) -> SocketAddr {
    // The number of nodes is bounded far below the ports that are left.
    let port = LINK_PORT + u16::try_from(peer).unwrap_or(u16::MAX - LINK_PORT);
    ([127, 0, 0, 1], port).into()
}

/// Returns the arguments of a node's sidecar, without the start; `None` if it dials its peers directly.
pub(super) fn sidecar(
    blueprint: &Blueprint,
    member: &Member,
    host: impl Fn(&Member) -> String,
) -> Option<Vec<String>> {
    let mut arguments = vec!["relay".to_owned(), "--seed".to_owned(), blueprint.seed.clone()];
    let before = arguments.len();
    for Way { to, shape } in &member.ways {
        let Some(shape) = *shape else { continue };
        let target = format!("{}:{PEERS_PORT}", host(&blueprint.members[*to]));
        let link = Link { listen: link_address(*to), target, shape };
        arguments.extend(["--link".to_owned(), link.to_string()]);
    }
    if arguments.len() == before {
        return None;
    }
    for change in &member.changes {
        arguments.extend(["--change".to_owned(), change.to_string()]);
    }
    Some(arguments)
}

/// Returns the arguments of a node's operator, without the start; `None` if the node has none. `judge` is the judge's
/// host name.
pub(super) fn operator(
    blueprint: &Blueprint,
    member: &Member,
    config: &str,
    (host, judge): (impl Fn(&Member) -> String, &str),
) -> Option<Vec<String>> {
    if !member.is_operated() {
        return None;
    }
    let mut arguments =
        ["operate", "--seed", &blueprint.seed, "--config", config].map(str::to_owned).to_vec();
    if let Some(shared) = blueprint.shared {
        arguments.extend(["--shared".to_owned(), shared.to_owned()]);
    }
    if let Some(place) = member.waypoint_from {
        arguments.extend(["--waypoint-from".to_owned(), url(&host(&blueprint.members[place]))]);
    }
    if let Some(program) = &member.program {
        arguments.extend(["--program".to_owned(), program.clone()]);
    }
    if let (Some(attack), Some(validator)) = (&member.among, blueprint.members.first()) {
        let api = url(&host(validator));
        arguments.extend(["--among".to_owned(), attack.clone(), "--among-api".to_owned(), api]);
    }
    if member.has_attackers() {
        arguments.extend(["--skip-accounts".to_owned(), blueprint.attackers_from.to_string()]);
    }
    if blueprint.judged.is_some() {
        let judge = format!("{judge}:{JUDGE_PORT}");
        arguments.extend(["--judge".to_owned(), judge, "--name".to_owned(), member.name.clone()]);
    }
    arguments.extend(member.orders.iter().flat_map(|order| ["--do".to_owned(), order.to_string()]));
    Some(arguments)
}

/// Returns the arguments of a load, without the start. `judge` is the judge's host name.
pub(super) fn load(
    blueprint: &Blueprint,
    job: &Job,
    host: impl Fn(&Member) -> String,
    judge: &str,
) -> Vec<String> {
    let url = |place: &usize| url(&host(&blueprint.members[*place]));
    let mut arguments = vec!["load".to_owned()];
    arguments.extend(job.submit.iter().flat_map(|place| ["--api".to_owned(), url(place)]));
    arguments.extend(job.followers.iter().flat_map(|place| ["--follower".to_owned(), url(place)]));
    let wait = if blueprint.is_timed { WAIT_TIMED } else { WAIT_START };
    arguments.extend(["--wait".to_owned(), wait.to_owned()]);
    arguments.extend(job.arguments.iter().cloned());
    if job.access_lists.is_some() {
        arguments.extend(["--access-lists", ACCESS_LISTS].map(str::to_owned));
    }
    if let (Some(phase), true) = (&job.phase, blueprint.judged.is_some()) {
        let judge = format!("{judge}:{JUDGE_PORT}");
        arguments.extend(["--judge".to_owned(), judge, "--phase".to_owned(), phase.clone()]);
    }
    arguments
}

/// Returns the arguments of the judge, without the start. Its scenario and its report are in these directories.
pub(super) fn judge(
    blueprint: &Blueprint,
    host: impl Fn(&Member) -> String,
    (scenario, report): (&str, &str),
) -> Vec<String> {
    let mut arguments = vec![JUDGE.to_owned(), "--scenario".to_owned(), format!("{scenario}/{SCENARIO}")];
    let nodes = blueprint.members.iter().map(|member| format!("{}={}", member.name, url(&host(member))));
    arguments.extend(nodes.flat_map(|node| ["--node".to_owned(), node]));
    arguments.extend(["--listen".to_owned(), format!("0.0.0.0:{JUDGE_PORT}")]);
    arguments.extend(["--dir".to_owned(), report.to_owned()]);
    if blueprint.jobs.iter().any(|job| job.access_lists.is_some()) {
        arguments.push("--access-lists".to_owned());
    }
    arguments
}

/// Returns the URL of the API at a host.
fn url(host: &str) -> String {
    format!("http://{host}:{API_PORT}")
}

/// Escapes arguments for a file whose reader expands `$NAME`; `start` is the expression that expands to the start.
pub(super) fn escaped(arguments: &[String], start: Option<&str>) -> Vec<String> {
    let mut escaped: Vec<String> = arguments.iter().map(|argument| argument.replace('$', "$$")).collect();
    if let Some(start) = start {
        escaped.extend(["--start".to_owned(), start.to_owned()]);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reader_would_replace_is_escaped_and_the_start_is_not() {
        let arguments = ["--seed".to_owned(), "a$b${c}".to_owned()];
        assert_eq!(escaped(&arguments, Some("${START}")), ["--seed", "a$$b$${c}", "--start", "${START}"]);
        assert_eq!(escaped(&arguments, None).len(), 2);
    }
}
