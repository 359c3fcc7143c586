//! The rules of the siege's attacks. Most attack by themselves; servers lie to a node that knows them.

use super::at::{At, Checked};
use crate::scenario::{attacks, fault::PeerLie};

/// Checks the attack of a fault: any that attacks by itself.
pub(super) fn attack(at: &At, name: &str, victim: &str) -> Checked {
    at.name(name)?;
    attacks::known(name).map_err(|nearest| {
        at.wrong(format!(
            "there is no attack `{name}`; the nearest is `{nearest}`, and `slipnet campaign siege --list` lists all"
        ))
    })?;
    match PeerLie::of_attack(name) {
        None => Ok(()),
        Some(lie) => Err(at.wrong(format!(
            "`{name}` are servers, which an `attack` announces to no node: write `lying_peers: {{ who: {{ nodes: [{victim}] }}, lie: {} }}` instead",
            lie.name()
        ))),
    }
}

/// Checks an attack among a node's peers: one by servers. Others would attack the first validator instead.
pub(super) fn among(at: &At, name: &str) -> Checked {
    at.name(name)?;
    if PeerLie::of_attack(name).is_some() {
        return Ok(());
    }
    let servers = PeerLie::ALL.iter().copied().map(PeerLie::of_program).collect::<Vec<_>>();
    let all = servers.join(", ");
    Err(at.wrong(match attacks::known(name) {
        Ok(()) => format!(
            "`{name}` has no servers that could be among peers: write it into `faults` as `attack`, or use one of {all}"
        ),
        Err(_) => {
            let nearest = attacks::nearest(name, servers.into_iter());
            format!("there is no attack `{name}`; the nearest is `{nearest}`; the servers are {all}")
        }
    }))
}
