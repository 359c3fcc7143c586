//! [`ATTACKS`]: the names of the siege's attacks, for the rules. The attacks themselves are in a crate above this one.
//! Attacks by servers are in [`PeerLie`].

use super::fault::PeerLie;

/// The attacks of the siege that are not by servers, in the order of `slipnet campaign siege --list`. A test of the
/// siege compares the two.
pub const ATTACKS: &[&str] = &[
    // HTTP.
    "slow-headers",
    "slow-body",
    "slow-reader",
    "half-open",
    "connection-flood",
    "endless-headers",
    "pipeline-unread",
    "batch-bomb",
    "deep-json",
    "log-bomb",
    "call-burner",
    "estimate-burner",
    "gone-callers",
    "idle-filters",
    "waiting-calls",
    "receipt-bomb",
    // WebSocket.
    "ws-half-upgrades",
    "ws-huge-frames",
    "ws-endless-fragments",
    "ws-ping-flood",
    "ws-long-messages",
    "ws-unread-news",
    "ws-many-subscriptions",
    // Connections and requests between peers.
    "stalled-handshakes",
    "handshake-flood",
    "identities",
    "identities-one-network",
    "identities-cycling",
    "identities-busy",
    "forged-addresses",
    "garbage-datagrams",
    "ban-evasion",
    "unread-answers",
    "range-deltas",
    "chunk-after-restart",
    "request-flood",
    "epochs-flood",
    "open-streams",
    "slow-requests",
    "oversized-frames",
    "truncated-frames",
    // Announcements.
    "stale-announcements",
    "future-announcements",
    "forged-announcements",
    "noise-broadcasts",
    "untaken-broadcasts",
    // Transactions.
    "junk-transactions",
    "bad-signatures",
    "replacements",
    "gas-hogs",
    "low-tips",
    "zero-tip-tails",
    "heavy-transactions",
    "nonce-gaps",
    "lone-transactions",
];

/// Checks that an attack of this name exists. The error is the most similar name.
pub(super) fn known(name: &str) -> Result<(), &'static str> {
    let servers = PeerLie::ALL.iter().map(|lie| lie.of_program());
    let all = ATTACKS.iter().copied().chain(servers);
    if all.clone().any(|attack| attack == name) {
        return Ok(());
    }
    Err(nearest(name, all))
}

/// Returns the most similar name.
pub(super) fn nearest(name: &str, all: impl Iterator<Item = &'static str>) -> &'static str {
    let likeness = |attack: &str| strsim::jaro_winkler(attack, name);
    let nearest = all.max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    nearest.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every attack that a scenario can ask for has a name in the siege, and a typo finds the intended name.
    #[test]
    fn names_are_known_or_the_nearest_is() {
        for &lie in PeerLie::ALL {
            assert_eq!(known(lie.of_program()), Ok(()));
        }
        assert_eq!(known("junk-transaction"), Err("junk-transactions"));
        assert_eq!(known("coruppt-answers"), Err("corrupt-answers"));
    }
}
