//! Arguments of the programs of a blueprint: relays and the load, and the peers that nodes dial.

use std::net::SocketAddr;

use super::{API_PORT, Blueprint, Member, PEERS_PORT, Way};
use crate::relay::Link;

/// The first port of a sidecar. The port of a link is this plus the place of its target node.
const LINK_PORT: u16 = 10_000;
/// How long the load waits for its nodes, which start with it.
const WAIT: &str = "5m";

/// The entries of a node's `network.peers`. `host` gives the name by which a node is reached.
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

/// Where a node's sidecar listens for datagrams to the peer at this place.
fn link_address(peer: usize) -> SocketAddr {
    // The number of nodes is bounded far below the ports that are left.
    let port = LINK_PORT + u16::try_from(peer).unwrap_or(u16::MAX - LINK_PORT);
    ([127, 0, 0, 1], port).into()
}

/// The arguments of a node's sidecar; `None` if the node dials its peers directly.
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
    (arguments.len() > before).then_some(arguments)
}

/// The arguments of the load.
pub(super) fn load(blueprint: &Blueprint, host: impl Fn(&Member) -> String) -> Vec<String> {
    let url = |place: &usize| format!("http://{}:{API_PORT}", host(&blueprint.members[*place]));
    let mut arguments = vec!["load".to_owned()];
    arguments.extend(blueprint.load.submit.iter().flat_map(|place| ["--api".to_owned(), url(place)]));
    arguments.extend(["--wait", WAIT].map(str::to_owned));
    arguments.extend(blueprint.load.arguments.iter().cloned());
    arguments
}

/// Escapes arguments for a file whose reader replaces `$NAME`.
pub(super) fn escaped(arguments: &[String]) -> Vec<String> {
    arguments.iter().map(|argument| argument.replace('$', "$$")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reader_would_replace_is_escaped() {
        let arguments = ["--seed".to_owned(), "a$b${c}".to_owned()];
        assert_eq!(escaped(&arguments), ["--seed", "a$$b$${c}"]);
    }
}
